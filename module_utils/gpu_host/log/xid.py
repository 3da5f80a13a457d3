"""Xid errors: what each number means and what NVIDIA says to do first.

Actions after NVIDIA's Xid catalogue (docs.nvidia.com/deploy/xid-errors, analyzing-xid-catalog), names after its Xid
documentation. Health checkers disagree about some numbers; this table follows NVIDIA except where `_OVERRIDES` says
why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

FATAL = "fatal"  # the GPU needs a reset, the host a reboot, or someone to look at it
APPLICATION = "application"  # a process failed; the GPU goes on
NOTICE = "notice"  # written down only

# action -> (severity, what to do)
ACTIONS = {
    "RESTART_APP": (
        APPLICATION,
        "Restart the application; if it comes back with another application, suspect the GPU.",
    ),
    "IGNORE": (NOTICE, "No action: a consequence or a note."),
    "RESET_GPU": (
        FATAL,
        "Stop what uses the GPU and reset it (nvidia-smi --gpu-reset -i ADDRESS); reboot if that is refused.",
    ),
    "RESET_GSP": (
        FATAL,
        "The GPU's own processor (GSP) does not answer, and whatever asks the driver then hangs. Stop what uses the "
        "GPU "
        "and reset it (nvidia-smi --gpu-reset -i ADDRESS); reboot if that is refused or hangs. If it comes back, "
        "install "
        "a newer driver of the branch.",
    ),
    "RESTART_BM": (
        FATAL,
        "Reboot the machine; if it comes back, power it off, reseat the card and its power cables, then replace it.",
    ),
    "RESTART_VM": (FATAL, "Restart the virtual machine."),
    "WORKFLOW_48": (FATAL, "Uncorrectable memory error: reset the GPU, then look at the remapped rows."),
    "WORKFLOW_NVLINK": (FATAL, "NVLink error: look at nvidia-smi nvlink -s and -e, reset every GPU of the fabric."),
    "WORKFLOW_NVLINK5": (
        FATAL,
        "NVLink error: the sub-code names the cause; reset the GPU, and the fabric if it is fatal.",
    ),
    "WORKFLOW_45": (NOTICE, "Follows another error or the end of a process; look for the Xid before it."),
    "CHECK_MECHANICALS": (FATAL, "Check that the auxiliary power cables of the card are plugged in."),
    "UPDATE_SWFW": (FATAL, "Update the vGPU software on hypervisor and guest together."),
    "CONTACT_SUPPORT": (FATAL, "Collect nvidia-bug-report.sh and ask the vendor."),
    "CHECK_UVM": (APPLICATION, "Look for nvidia-uvm errors beside it; restart the application, then the driver."),
    "RECOVERY_ACTION": (FATAL, "Do what nvidia-smi -q prints as GPU Recovery Action."),
    "RESET_TO_REMAP": (APPLICATION, "A memory row waits to be remapped: reset the GPU when it is idle, or reboot."),
    "UNKNOWN": (APPLICATION, "Not in the catalogue; look the number up in NVIDIA's Xid documentation."),
}

_BY_ACTION = {
    "RESTART_APP": "8 11 13 25 31-32 39-41 60 68-72 75-77 80 82-86 88-89 94 96-105 126-135 139",
    "IGNORE": "37-38 43-44 66-67 92-93 106-107 121 137 141 152-153 157 160-161",
    "RESET_GPU": "46 62 64 95 109-110 136 140 143 155-156 158",
    "RESET_GSP": "119-120",
    "RESTART_BM": "79",
    "RESTART_VM": "151",
    "WORKFLOW_48": "48",
    "WORKFLOW_45": "45",
    "WORKFLOW_NVLINK": "74",
    "WORKFLOW_NVLINK5": "144-150",
    "CHECK_MECHANICALS": "54",
    "UPDATE_SWFW": "78",
    "CONTACT_SUPPORT": "142",
    "CHECK_UVM": "159",
    "RECOVERY_ACTION": "154",
}
# What an all-clear of the driver ("recovery action changed … to 0x0 (None)") ends; memory and links may stay damaged.
STATE = "RECOVERY_ACTION"
ENDED_BY_RESET = frozenset({STATE, "RESET_GPU", "RESET_GSP"})
# The recovery actions that Xid 154 names (nvmlDeviceGpuRecoveryAction_t), the particular before the general.
_RECOVERIES = (
    ("Node Reboot", "Reboot the machine: the driver says that this GPU is not recovered otherwise."),
    (
        "Drain and Reset",
        "Give this GPU no new work, let what runs on it end, then reset it (nvidia-smi --gpu-reset -i ADDRESS).",
    ),
    (
        "Drain P2P",
        "Let the work that uses peer-to-peer with this GPU end (drain it), and start none; what runs on other GPUs may "
        "go on. Then reset this GPU (nvidia-smi --gpu-reset -i ADDRESS).",
    ),
    ("Reset", "Stop what uses the GPU and reset it (nvidia-smi --gpu-reset -i ADDRESS); reboot if that is refused."),
)
# NVIDIA says IGNORE for 63 because nothing failed yet, but the row is only replaced at the next reset.
_OVERRIDES = {63: "RESET_TO_REMAP"}

NAMES = {
    8: "GPU stopped processing",
    13: "Graphics engine exception",
    31: "GPU memory page fault",
    32: "Invalid or corrupted push buffer stream",
    38: "Driver firmware error",
    43: "GPU stopped processing (reset of a faulty channel)",
    44: "Graphics engine fault during context switch",
    45: "Preemptive cleanup, due to previous errors",
    46: "GPU stopped processing",
    48: "Double bit ECC error",
    54: "Auxiliary power is not connected to the board",
    56: "Display engine error",
    57: "Error programming the video memory interface",
    58: "Unstable video memory interface",
    61: "Internal micro-controller breakpoint or warning",
    62: "Internal micro-controller halt",
    63: "Row remapping or page retirement recorded",
    64: "Row remapping or page retirement could not be recorded",
    65: "Video processor exception",
    68: "Video decoder exception",
    69: "Graphics engine class error",
    74: "NVLink error",
    78: "vGPU start error",
    79: "GPU has fallen off the bus",
    92: "High rate of single bit ECC errors",
    93: "InfoROM wear limit provisioned exceeded",
    94: "Contained memory error",
    95: "Uncontained memory error",
    109: "Context switch timeout",
    110: "Security fault",
    119: "GSP RPC timeout",
    120: "GSP error",
    121: "C2C link corrected error",
    136: "Link training failed",
    137: "NVLink remote access (FLA) error",
    140: "Unrecovered ECC error",
    143: "GPU initialisation error",
    144: "NVLink SAW error",
    145: "NVLink RLW error",
    146: "NVLink TLW error",
    147: "NVLink TREX error",
    148: "NVLink NVLPW_CTRL error",
    149: "NVLink NETIR error",
    150: "NVLink MSE error",
    151: "Key rotation error",
    154: "GPU recovery action changed",
    155: "NVLink error defined by software",
    156: "Resource retirement",
    157: "Resource retirement failed",
    158: "GPU fatal timeout",
    167: "PCIe fatal timeout",
}


@dataclass(frozen=True)
class Xid:
    """One row of the catalogue. `name` is None for a number whose name we do not know."""

    code: int
    name: str | None
    action: str  # a key of ACTIONS
    severity: str
    advice: str


def _table() -> dict[int, str]:
    table = {}
    for action, codes in _BY_ACTION.items():
        for part in codes.split():
            first, _dash, last = part.partition("-")
            table.update(dict.fromkeys(range(int(first), int(last or first) + 1), action))
    return {**table, **_OVERRIDES}


_ACTION_OF = _table()


def describe_xid(code: int, text: str = "") -> Xid:
    """The catalogue's row for `code`; `text` is the rest of the log line, which decides for codes with sub-codes.

    NVLink 5 codes (144-150) say 'Fatal' or 'Nonfatal' themselves; 154 says which recovery action is now due, and
    'None' means that none is.
    """
    action = _ACTION_OF.get(code, "UNKNOWN")
    severity, advice = ACTIONS[action]
    nonfatal_link = action == "WORKFLOW_NVLINK5" and re.search(r"\bNon-?fatal\b", text, re.IGNORECASE)
    recovered = action == STATE and re.search(r"\bto 0x0+ \(None\)", text)
    if nonfatal_link or recovered:
        severity = NOTICE
    if action == STATE:
        due = text.rpartition(" to ")[2]
        advice = next((said for word, said in _RECOVERIES if word.lower() in due.lower()), advice)
        advice = ACTIONS["IGNORE"][1] if recovered else advice
    return Xid(code, NAMES.get(code), action, severity, advice)
