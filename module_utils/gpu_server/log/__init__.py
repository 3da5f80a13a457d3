"""A server's log: where it is, its lines, what they say, and the faults that they report."""
