"""Xid errors: what each number means and what NVIDIA says to do first.

Actions after NVIDIA's Xid catalogue, whose words stand in xid_catalogue.py. Health checkers disagree about some
numbers; this table follows NVIDIA except where `_OVERRIDES` says why.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from .xid_catalogue import CONDITIONS, IMMEDIATE, INVESTIGATORY, NAMES, UNUSED, bucket_by_code, expand_codes

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
    "UNUSED": (
        APPLICATION,
        "NVIDIA's catalogue calls this number unused since Ampere: collect nvidia-bug-report.sh and ask the vendor.",
    ),
    "POWER_SMOOTHING": (NOTICE, "The circuit that smooths the power draw changed its state; the GPU goes on."),
    "NO_ACTION_GIVEN": (APPLICATION, "NVIDIA's catalogue names this number and gives no action for it."),
    "WITH_48": (FATAL, "Uncorrectable memory error: reset the GPU, then look at the remapped rows."),
    "UNKNOWN": (APPLICATION, "Not in the catalogue; look the number up in NVIDIA's Xid documentation."),
}

# NVIDIA's bucket -> our action, where the sentence for it has another name.
_OF_BUCKET = {
    "WORKFLOW_XID_45": "WORKFLOW_45",
    "WORKFLOW_XID_48": "WORKFLOW_48",
    "WORKFLOW_NVLINK_ERR": "WORKFLOW_NVLINK",
    "WORKFLOW_NVLINK5_ERR": "WORKFLOW_NVLINK5",
    "XID_154": "RECOVERY_ACTION",
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
# NVIDIA says IGNORE for 63 because nothing failed yet, but the row is only replaced at the next reset; 119 and 120 have
# their own sentence for RESET_GPU; 162 to 172 have no bucket, and what their text says is in CONDITIONS.
_OVERRIDES = {
    63: "RESET_TO_REMAP",
    119: "RESET_GSP",
    120: "RESET_GSP",
    **dict.fromkeys((162, 163, 164, 165), "POWER_SMOOTHING"),
    **dict.fromkeys((166, 167, 168, 169, 170), "NO_ACTION_GIVEN"),
    171: "WITH_48",
    172: "WITH_48",
}


@dataclass(frozen=True)
class Xid:
    """One row of the catalogue. `name` is None for a number whose name we do not know."""

    code: int
    name: str | None
    action: str  # a key of ACTIONS
    severity: str
    advice: str
    bucket: str | None = None  # NVIDIA's own word for the first action (RESET_GPU)
    investigate: str | None = None  # and for what follows where it comes back (CONTACT_SUPPORT)


_BUCKET_OF = bucket_by_code(IMMEDIATE)
_INVESTIGATE_OF = bucket_by_code(INVESTIGATORY)


def _table() -> dict[int, str]:
    table = {code: _OF_BUCKET.get(bucket, bucket) for code, bucket in _BUCKET_OF.items()}
    unused = dict.fromkeys(expand_codes(UNUSED), "UNUSED")
    return {**table, **unused, **_OVERRIDES}


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
    bucket, investigate = _BUCKET_OF.get(code), _INVESTIGATE_OF.get(code)
    advice = " ".join(part for part in (advice, CONDITIONS.get(code), _quote_nvidia(bucket, investigate)) if part)
    return Xid(code, NAMES.get(code), action, severity, advice, bucket, investigate)


def _quote_nvidia(bucket: str | None, investigate: str | None) -> str:
    """NVIDIA's own words for the recovery, for a person who looks them up or hands the case to the vendor."""
    if bucket is None:
        return ""
    again = "; where it comes back: %s" % investigate if investigate and investigate != bucket else ""
    return "(NVIDIA: %s%s.)" % (bucket, again)
