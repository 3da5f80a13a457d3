"""What a kernel log says about GPUs: the messages of the driver and the kernel that stand for a fault, as data.

Sources of the wording: NVIDIA's open kernel modules (nv.c, nv-pci.c, osinit.c, uvm_pmm_gpu.c),
drivers/iommu/amd/iommu.c, drivers/iommu/intel/dmar.c, drivers/pci/setup-bus.c and setup-res.c, drivers/pci/pcie/aer.c,
mm/oom_kill.c, kernel/hung_task.c, kernel/watchdog.c, kernel/rcu/tree_stall.h.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

_ADDRESS = r"(?P<address>[0-9a-fA-F]{2,8}:[0-9a-fA-F:.]{2,10})"

# Kind -> what to do first. The text of a check may say more.
KINDS = {
    "xid": "",  # the catalogue in xid.py says
    "sxid": "Follow the Fabric Manager guide for this SXid; a fatal one needs a reset of the GPUs and switches "
    "together.",
    "fallen_off_bus": "Reboot; if it comes back, power off, reseat the card and its power cables, then replace it.",
    "bar_unassigned": "The firmware's or the guest's window for 64-bit BARs is too small for this GPU.",
    "power_cable": "Connect the auxiliary power cables of this card.",
    "rm_init_failed": "The driver found the GPU and could not start it; the lines before this one say why.",
    "needs_open_modules": "Install the open kernel modules (nvidia-open) of the same driver release.",
    "unsupported_gpu": "Install a driver release that lists this GPU.",
    "api_mismatch": "Load the module of the version of the libraries: reboot, or reload the modules when nothing uses "
    "them.",
    "uvm_hmm": "Set uvm_disable_hmm=1 for nvidia_uvm where the kernel runs.",
    "uvm_failed": "Reload nvidia_uvm when nothing uses the GPUs; reboot if it cannot be unloaded.",
    "io_page_fault": "The IOMMU refused an access: set it to passthrough (iommu=pt) or off on the machine that owns "
    "it.",
    "aer": "A PCIe link makes errors: reseat card, riser and cables; look at the firmware's settings for the slot.",
    "driver_assert": "The driver found its own state wrong; expected only with a patched driver.",
    "nvlink": "NVLink did not train: look at nvidia-smi nvlink -s.",
    "peermem": "GPUDirect RDMA lost a mapping: look at the versions of nvidia-peermem and the network driver.",
    "probe_failed": "The driver gave the device up; the lines before this one say why.",
    "module_rejected": "Secure Boot refused the module: sign it with an enrolled key.",
    "out_of_memory": "The kernel killed a process because host memory ran out.",
    "resumed": "The host was suspended and woke up: CUDA may need nvidia_uvm loaded anew.",
    "hung_task": "A process waits in the kernel and cannot be killed.",
    "lockup": "A processor did not come back from the kernel in time; what the trace names kept it.",
    "driver_oops": "The kernel stopped inside the NVIDIA driver; reboot, and install a newer driver of the branch.",
}
# Kinds that a later successful load of the driver makes history.
ENDED_BY_RELOAD = frozenset(
    {"needs_open_modules", "unsupported_gpu", "rm_init_failed", "bar_unassigned", "api_mismatch"}
    | {"probe_failed", "uvm_hmm", "uvm_failed", "module_rejected", "power_cable", "resumed"}
)

# A line without one of these words is not looked at again.
HINT = re.compile(
    rb"NVRM|nvidia|SXid|IO_PAGE_FAULT|DMAR: \[|: BAR \d|\[10de:|PCIe Bus Error|memory: Killed process|blocked for "
    rb"more than|"
    rb"Loading of |PM: |Linux version |\[[A-Z][a-z]{2} ?\d|"
    rb"BUG: |Oops|kernel BUG at|general protection fault|end trace|hard LOCKUP|INFO: "
)
BOOT = re.compile(r"Linux version \d")
DRIVER_BEGINS = "nvidia-nvlink: Nvlink Core is being initialized"
DRIVER_LOADED = "NVRM: loading NVIDIA UNIX"


@dataclass(frozen=True)
class Pattern:
    """A line that holds `word` is tried with `regex`.

    Its groups may be named: address, code (what tells findings of one kind apart), driver (who holds the device).
    """

    kind: str
    word: str
    regex: re.Pattern[str]


def _pattern(kind: str, word: str, regex: str) -> Pattern:
    return Pattern(kind, word, re.compile(regex))


# Tried in order, the first that matches counts.
PATTERNS = (
    # The comma ends the number: a log cut inside it must not turn 79 into 7.
    _pattern("xid", "Xid (", r"NVRM: Xid \((?:PCI:)?" + _ADDRESS + r"\): (?P<code>\d{1,4}),(?P<rest>.*)"),
    _pattern("sxid", "SXid (", r"SXid \(PCI:" + _ADDRESS + r"\): (?P<code>\d{1,6}),(?P<rest>.*)"),
    _pattern(
        "fallen_off_bus", "fallen off", r"NVRM: (?:GPU )?(?:at )?(?:PCI:)?" + _ADDRESS + r":? .{0,40}fallen off the bus"
    ),
    _pattern(
        "power_cable",
        "power cable",
        r"NVRM: (?:GPU )?(?:at )?(?:PCI:)?" + _ADDRESS + r":? .{0,60}power cables? (?:is|are)? ?(?:not )?connected",
    ),
    _pattern(
        "rm_init_failed",
        "RmInitAdapter",
        r"NVRM: GPU " + _ADDRESS + r": RmInitAdapter failed! \((?P<detail>[^)]{1,40})\)",
    ),
    _pattern("rm_init_failed", "rm_init_adapter", r"NVRM: GPU " + _ADDRESS + r": rm_init_adapter failed"),
    _pattern("uvm_hmm", "request_free_mem_region", r"nvidia-uvm: .{0,120}request_free_mem_region\(\) err"),
    _pattern(
        "uvm_failed",
        "nvidia-uvm:",
        r"nvidia-uvm: .{0,200}(?:\berr -\d+|\bERROR\b|[Ff]atal|[Aa]ssert\w* failed|[Ff]ailed)",
    ),
    _pattern("io_page_fault", "IO_PAGE_FAULT", r"\[IO_PAGE_FAULT device=" + _ADDRESS + r" "),
    _pattern(
        "io_page_fault",
        "IO_PAGE_FAULT",
        r"(?P<driver>[\w-]{1,40}) " + _ADDRESS + r": AMD-Vi: Event logged \[IO_PAGE_FAULT ",
    ),
    _pattern(
        "io_page_fault",
        "DMAR",
        r"DMAR: \[DMA (?:Read|Write)[^\]]{0,20}\] Request device \[" + _ADDRESS + r"\] fault addr",
    ),
    _pattern(
        "aer",
        "PCIe Bus Error",
        r"(?P<driver>[\w-]{1,40}) " + _ADDRESS + r": (?:AER: )?PCIe Bus Error: severity=(?P<code>[^,]{1,30}),",
    ),
    _pattern(
        "driver_assert",
        "Assertion failed",
        r"NVRM: nvAssert\w{0,30}: Assertion failed: .{0,300} @ (?P<code>[\w.-]{1,60}:\d{1,6})",
    ),
    _pattern("nvlink", "knvlink", r"NVRM: knvlink\w{1,60}: .{0,200}[Ff]ailed"),
    _pattern("peermem", "nvidia-peermem", r"nvidia-peermem .{0,80}ERROR"),
    _pattern("probe_failed", "probe of", r"nvidia: probe of " + _ADDRESS + r" failed with error"),
    _pattern(
        "probe_failed",
        "probe with",
        r"(?P<driver>nvidia) " + _ADDRESS + r": probe with driver nvidia failed with error",
    ),
    _pattern(
        "module_rejected", "is rejected", r"Loading of (?:unsigned module|module with unavailable key) is rejected"
    ),
    _pattern("out_of_memory", "Killed process", r"[Oo]ut of memory: Killed process \d+ \((?P<code>[^)]{1,40})\)"),
    _pattern("resumed", "PM: ", r"PM: (?:suspend|hibernation) exit|ACPI: PM: Waking up from system sleep"),
    _pattern("hung_task", "blocked for more", r"task (?P<code>.{1,40}?):\d+ blocked for more than"),
    # kernel/watchdog.c, kernel/watchdog_perf.c, kernel/rcu/tree_stall.h
    _pattern("lockup", "soft lockup", r"BUG: soft lockup - CPU#\d+ stuck for \d+s! \[(?P<code>.{1,40}?):\d+\]"),
    _pattern("lockup", "hard LOCKUP", r"(?:detected|Watchdog detected) hard LOCKUP on cpu (?P<code>\d{1,5})"),
    _pattern("lockup", "stall", r"INFO: (?P<code>rcu\w{0,30}) (?:self-)?detected (?:expedited )?stalls? on"),
)
# `BAR 1: no space for [mem size …]` before kernel 6.10, `BAR 1 [mem size …]: can't assign; no space` since. BAR 6 is
# the expansion ROM and an I/O BAR is of no use to a GPU: neither matters. "VF BAR" is SR-IOV's.
KERNEL_BAR = re.compile(r"(?:^|\s)(?P<driver>[\w-]{1,40}) " + _ADDRESS + r": BAR (?P<bar>[0-5])(?P<rest>[: ].*)")
BAR_REFUSED = re.compile(
    r"(?:no space for|failed to assign) \[mem|\[mem [^\]]{1,60}\]: (?:can't assign|failed to assign)|can't assign mem"
)
BAR_ASSIGNED = re.compile(r": (?:re)?assigned(?:$| \[mem)")
NVIDIA_DEVICE = re.compile(r"pci " + _ADDRESS + r": \[10de:[0-9a-f]{4}\] type 00 class 0x03(?:00|02)")

# The driver's messages of several lines. `NVRM: ` stands at the start of each.
THE_GPU = re.compile(r"The NVIDIA GPU (?:PCI:)?" + _ADDRESS)
ENDINGS = (
    ("fallen_off_bus", re.compile(r"fallen off the bus")),
    ("needs_open_modules", re.compile(r"requires use of the NVIDIA open kernel modules")),
    ("unsupported_gpu", re.compile(r"is not supported by (?:the|open)\b")),
)
# A fault of the kernel (arch/x86/mm/fault.c, arch/x86/kernel/dumpstack.c, lib/bug.c; arch/arm64/mm/fault.c) and the
# frames of it that are the driver's: the place where it happened, or a caller that the unwinder is sure of (no "?").
OOPS = re.compile(
    r"BUG: (?:kernel NULL pointer|unable to handle)|Oops: |general protection fault|kernel BUG at |"
    r"Unable to handle kernel "
)
OOPS_ENDS = "end trace"
DRIVER_FRAME = re.compile(
    r"^(?:RIP: \w{4}:|pc : |lr : )?(?P<code>[\w.]{1,80})\+0x[0-9a-f]+/0x[0-9a-f]+ \[(?P<module>nvidia\w{0,20})\b"
)
INVALID_REGION = re.compile(r"NVRM: BAR(?P<bar>[0-5]) is 0M @ 0x0+ \(PCI:" + _ADDRESS + r"\)")
API_MISMATCH = re.compile(r"NVRM: API mismatch")
HAS_VERSION = re.compile(r"has the version ([0-9.]{3,20})")
