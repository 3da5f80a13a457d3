"""NVIDIA's software on a host: packages, services, CUDA toolkits, and what GPUs ask of the driver."""
