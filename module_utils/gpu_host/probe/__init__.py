"""The P2P probe: how its worker is run, and what its figures and result codes mean."""
