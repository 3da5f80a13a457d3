"""What the roles need to know before and while they change a host.

Packages, keys, who uses the GPUs, module options.
"""
