"""CUDA's result codes: their names, and what is known to cause each on a multi-GPU host (first the most likely)."""

from __future__ import annotations

from typing import Any

from ..evidence import values

HMM = (
    "the open module's HMM set-up failed (kernel address-space randomisation leaves no room for the GPUs' memory): "
    "options nvidia_uvm uvm_disable_hmm=1 on the machine that runs the kernel"
)
# Codes of cuInit and of the first calls. [NVIDIA cuda.h; open-gpu-kernel-modules #797, #901; CUDA 12.9 to 13.2 release
# notes]
CAUSES: dict[int, tuple[str, ...]] = {
    2: ("another process holds nearly all memory of the GPU",),
    3: (HMM, "nvidia_uvm failed to initialise for another reason: kernel log"),
    34: (
        "the toolkit's stub libcuda stands first on the library path: remove .../stubs from LD_LIBRARY_PATH and "
        "ld.so.conf",
    ),
    46: (
        "the GPU is in compute mode EXCLUSIVE_PROCESS and taken, or PROHIBITED: nvidia-smi -c 0",
        "the GPU is being reset or is wedged",
    ),
    100: (
        "no /dev/nvidia* nodes in this container",
        "the nvidia driver is not bound to the GPUs (vfio-pci holds them, or it is not loaded): lspci -nnk -d 10de:",
        "CUDA_VISIBLE_DEVICES is set to nothing (the probe removes it)",
    ),
    101: (
        "a GPU node is missing or is not the GPU's own: compare /dev/nvidia* with "
        "/proc/driver/nvidia/gpus/*/information",
    ),
    214: ("uncorrectable memory error on the GPU: nvidia-smi -q -d ECC",),
    217: ("the driver does not grant peer access to this pair: nvidia-smi topo -p2p r",),
    220: ("uncorrectable NVLink error: nvidia-smi nvlink -e",),
    304: (
        "opening a device node was refused by the operating system: cgroup rules of the container "
        "(lxc.cgroup2.devices.allow), or permissions",
        "the file limit or locked-memory limit is too low: ulimit -n, ulimit -l",
    ),
    711: ("more peers than the driver allows one GPU (8)",),
    800: ("MPS or a profiler refuses this user",),
    802: (
        "the NVSwitch fabric is not ready: nvidia-fabricmanager is not running or not of the driver's version",
        "on a host without NVSwitch: " + HMM,
    ),
    803: (
        "libcuda and the loaded kernel module are of different versions: reboot or reload after an upgrade, align the "
        "container with the host",
    ),
    804: (
        "a forward-compatibility libcuda (cuda-compat) on a GPU that does not allow it: take /usr/local/cuda/compat "
        "off the library path",
    ),
    805: ("an MPS control daemon is set (CUDA_MPS_PIPE_DIRECTORY) and does not answer",),
    999: (
        "/dev/nvidia-uvm is missing or has an old major number (containers): compare with /proc/devices",
        "nvidia_uvm is not loaded or failed: nvidia-modprobe -u -c=0",
        "a device node that the container's cgroup does not allow",
        "the GPU is wedged or the host was suspended: kernel log, reboot",
    ),
}
HANG_CAUSES = (
    HMM,
    "a GPU or its GSP firmware is wedged: kernel log (Xid 119, 120, 79), then reboot",
    "another process holds the driver's lock in the kernel: ps -eo pid,stat,wchan:30,cmd | awk '$2 ~ /D/'",
)
MISSING_LIBRARY_CAUSES = (
    "the driver's user-space part is not installed (Debian and Ubuntu: libnvidia-compute or libcuda1; RHEL: "
    "nvidia-driver-cuda-libs)",
    "in a container: the host's libcuda.so.1 is not mounted, or the version inside is not installed",
)


def explain_code(code: int | None) -> list[str]:
    return list(CAUSES.get(code or 0, ()))


def normalise_address(text: str) -> str:
    """A PCI address in the kernel's form (`0000:01:00.0`) from nvidia-smi's (`00000000:01:00.0`)."""
    domain, _, rest = text.strip().lower().partition(":")
    number = values.hexadecimal_number(domain)
    return text.strip().lower() if number is None else "%04x:%s" % (number, rest)


def parse_number(text: Any) -> float | None:
    return values.decimal_number(text)
