"""Inference servers: what runs, what its log, processes and API say, what its settings mean on this host."""
