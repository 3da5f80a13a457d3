"""Readers that turn evidence of a GPU host into facts: pure functions, Python 3.9 standard library only.

Each file here is the reader of one subject, besides gather.py, which calls them, and cross_facts.py, for facts that
need two subjects. The folders hold what the readers are made of: parsers and computed facts, by what they read.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036  the host's Python, before a file is read that it would not understand
    raise RuntimeError("Python 3.9 or newer is needed, %s is %d.%d" % (sys.executable, *sys.version_info[:2]))
