"""What the roles need to know before and while they change a host: packages, keys, who uses the GPUs, module options."""
