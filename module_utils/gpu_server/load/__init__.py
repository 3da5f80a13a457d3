"""Load for a server: generators, how one is found and run, and what its figures mean."""
