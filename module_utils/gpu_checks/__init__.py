"""Judging: loads the checks, evaluates them on the facts of a host, finds causes, gives the verdict on the host."""
