"""Readers that turn evidence of a GPU host into facts: pure functions, Python 3.9 standard library only.

Each file here is the reader of one subject, besides gather.py, which calls them, and cross_facts.py, for facts that
need two subjects. The folders hold what the readers are made of: parsers and computed facts, by what they read.
"""
