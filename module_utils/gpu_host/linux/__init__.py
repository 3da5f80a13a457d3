"""What Linux itself reads: kernel command lines, modprobe.d, the initramfs, module parameters."""
