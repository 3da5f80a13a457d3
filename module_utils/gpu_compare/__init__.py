"""What differs between two looks at one host (drift), and between hosts of one kind. Pure functions on facts."""
