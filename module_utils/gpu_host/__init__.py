"""Readers that turn evidence of a GPU host into facts: pure functions, Python 3.9 standard library only."""
