"""The container that a server runs in, as its host sees it: from /proc and /sys/fs/cgroup, and by its runtime."""
