"""The P2P probe's worker: what runs in a child process on the GPUs, with the standard library and ctypes alone.

No file here imports Ansible or `gpu_host`: the child gets this package on its path and nothing else.
"""
