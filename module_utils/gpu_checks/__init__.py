"""Judging: loads the checks, evaluates them on the facts of a host, finds causes, and says what that means for the host
as a whole."""
