"""Evidence: a live host or a bundle behind the same four calls, with errors, secrets and limits."""
