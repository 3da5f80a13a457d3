"""What nvidia-smi prints, in each of its forms, and what is computed from that alone."""
