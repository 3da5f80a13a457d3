"""What the roles need to know before and while they change a host.

Packages, keys, who uses the GPUs, module options.
"""

import sys

if sys.version_info < (3, 9):  # noqa: UP036  the host's Python, before a file is read that it would not understand
    raise RuntimeError("Python 3.9 or newer is needed, %s is %d.%d" % (sys.executable, *sys.version_info[:2]))
