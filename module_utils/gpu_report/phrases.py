"""Words that every report for people shares."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

from ..gpu_host.virtualization import CLOUDS

# Captured text may hold escape sequences that would move the cursor or colour the terminal; nothing but text is shown.
_ESCAPES = re.compile(r"\x1b\[[0-?]*[ -/]*[@-~]|\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)?|\x1b.?")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069]")


# What people call the machine under a guest, by `hypervisor_kind` of the facts.
HYPERVISORS = {
    "proxmox": " (Proxmox host)",
    "libvirt": " (libvirt)",
    "vmware": " (VMware)",
    "hyperv": " (Hyper-V)",
    "xen": " (Xen)",
}


def strip_controls(text: Any) -> str:
    """`text` without escape sequences and control characters; tabs and line ends stay."""
    return _CONTROLS.sub("\N{REPLACEMENT CHARACTER}", _ESCAPES.sub("", str(text).replace("\r\n", "\n")))


def join_names(hosts: Sequence[str], shown: int = 6) -> str:
    """'gpu1, gpu2, gpu3 and 97 more'."""
    more = len(hosts) - shown
    if more <= 1:  # "and 1 more" is no shorter than the name
        return ", ".join(hosts)
    return "%s and %d more" % (", ".join(hosts[:shown]), more)


def describe_incomplete(run: dict[str, Any]) -> str:
    """Why the run, or a part of one that was merged, did not come to its end; "" where it did."""
    if run.get("complete") is not False:
        return ""
    lost = ["%s: %s" % (part["name"], part["problem"]) for part in run.get("parts") or () if part.get("problem")]
    if not lost:
        return "The run was interrupted: this is what was known by then."
    return "There is no report of %s. What follows is of the rest." % "; of ".join(lost)


def cut_text(text: str, longest: int) -> str:
    """`text`, or as much of it as fits into `longest` characters."""
    return text if len(text) <= longest else text[: longest - 2] + " …"


def format_count(number: int, noun: str, plural: str = "") -> str:
    """'1 host', '2 hosts'."""
    return "%d %s" % (number, noun if number == 1 else plural or noun + "s")


def name_machine(remedy: dict[str, Any], hosts: Sequence[str]) -> str:
    """On which machine a remedy is carried out."""
    of = join_names(hosts, 3)
    return {
        "host": "on %s" % of,
        "hypervisor": "by the provider of %s (on the hypervisor)" % of
        if remedy.get("hypervisor") in CLOUDS
        else "on the hypervisor%s of %s" % (HYPERVISORS.get(str(remedy.get("hypervisor")), ""), of),
        "container_host": "on the machine that runs the container %s" % of,
        "guest": "inside the guest %s" % of,
        "firmware": "in the firmware setup (BIOS/BMC) of the machine behind %s" % of,
        "controller": "on this machine (the Ansible controller)",
    }.get(str(remedy.get("on")), "on %s" % of)


def take_sentences(text: str, limit: int = 240) -> str:
    """As many whole sentences of `text` as fit into `limit` characters, at least one."""
    sentences = re.split(r"(?<=[.!?])\s+(?=[A-Z])", " ".join(text.split()))
    kept = sentences[0]
    for sentence in sentences[1:]:
        if len(kept) + 1 + len(sentence) > limit:
            break
        kept += " " + sentence
    return kept
