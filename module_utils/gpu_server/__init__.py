"""Inference servers: what runs, what its log, its processes and its API say, and what its settings mean on this host."""
