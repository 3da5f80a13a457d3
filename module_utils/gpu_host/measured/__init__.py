"""What other tools measured of GPUs and of the server on them, read with the method that each used."""
