"""What the links and the kernel counted while each phase of the probe ran, and which of it is a fault.

A pair can be fast and right while its link sends every thousandth packet again: only the counters say so.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..log import log_findings, log_lines, log_patterns
from ..pcie.aer import MOST_REPLAYS_PER_MINUTE, REPLAYS

Facts = dict[str, Any]
# A single packet sent again is no sign: what a training of the link leaves behind.
MOST_IN_A_PHASE = 2
_HARMLESS = frozenset({"UnsupReq"})  # see pcie/aer.py
_OF_THE_KERNEL = frozenset(
    {"xid", "sxid", "fallen_off_bus", "io_page_fault", "aer", "nvlink", "driver_assert", "driver_oops", "lockup"}
)
_KEYS = {"replays": "link_errors_in_phases", "nvlink": "link_errors_in_phases", "brakes": "throttled_in_phases"}
LISTS = ("link_errors_in_phases", "throttled_in_phases", "kernel_lines_in_phases")


def summarise_counters(phases: Facts) -> Facts:
    """The lists of `LISTS`, each of sentences that name the phase.

    None where nothing was found and a counter of some GPU could not be read in some phase. A counter that a GPU does
    not have is left out by the probe. The kernel's log is only read where the probe may (`counter_sources` says so):
    the checks of kernel_log judge all of it.
    """
    found: dict[str, list[str]] = {name: [] for name in LISTS}
    unread = dict.fromkeys(LISTS, False)
    for phase, facts in phases.items():
        counters = facts.get("counters")
        if facts.get("seconds") is None or counters is None:
            unread = dict.fromkeys(LISTS, True)
            continue
        minutes = facts["seconds"] / 60
        if not counters.get("gpus") or counters.get("aer") is None:
            unread.update(link_errors_in_phases=True)
            unread["throttled_in_phases"] = unread["throttled_in_phases"] or not counters.get("gpus")
        for address, counted in (counters.get("gpus") or {}).items():
            gpu = counted or {}
            for key, name in _KEYS.items():
                unread[name] = unread[name] or (key in gpu and gpu[key] is None) or not gpu
            replays = gpu.get("replays")
            if replays is not None and replays > max(MOST_IN_A_PHASE, MOST_REPLAYS_PER_MINUTE * minutes):
                _add(found, "link_errors_in_phases", phase, address, "%d PCI Express replays" % replays)
            for name, count in (gpu.get("nvlink") or {}).items():
                if count:
                    _add(found, "link_errors_in_phases", phase, address, "NVLink %s +%d" % (name, count))
            if gpu.get("brakes"):
                words = ", ".join(str(name).replace("_", " ") for name in gpu["brakes"])
                _add(found, "throttled_in_phases", phase, address, words)
        for address, counts in (counters.get("aer") or {}).items():
            told = _judge_aer(counts or {}, minutes)
            if told:
                _add(found, "link_errors_in_phases", phase, address, told)
        for line in _read_log(counters.get("log") or ()):
            found["kernel_lines_in_phases"].append("while %s ran: %s" % (_words(phase), line))
    return {name: found[name] or (None if unread[name] else []) for name in LISTS}


def _read_log(lines: Sequence[Any]) -> list[str]:
    """What in new lines of the kernel log is a fault of a GPU, a link or the IOMMU, by the patterns of kernel_log."""
    findings = log_findings.Findings(lambda _address: None)
    text = "\n".join(line for line in lines if isinstance(line, str))
    for line in log_lines.find_lines(text.encode("utf-8", "replace"), log_patterns.HINT, None):
        findings.add(line)
    return [finding["text"] for finding in findings.result() if finding["kind"] in _OF_THE_KERNEL]


def _judge_aer(counts: Facts, minutes: float) -> str:
    """What of the kernel's counters of one device is a fault: anything uncorrected, or too many packets sent again."""
    uncorrected, again = {}, {}
    for name, count in counts.items():
        kind, _, word = name.partition(" ")
        if kind != "correctable" and word not in _HARMLESS and count:
            uncorrected[name] = count
        if kind == "correctable" and word in REPLAYS and count:
            again[word] = count
    shown = dict(uncorrected)
    if sum(again.values()) > max(MOST_IN_A_PHASE, MOST_REPLAYS_PER_MINUTE * minutes):
        shown.update(again)
    return ", ".join("%s +%d" % item for item in sorted(shown.items()))


def _add(found: dict[str, list[str]], name: str, phase: str, address: str, what: str) -> None:
    found[name].append("%s while %s ran: %s" % (address, _words(phase), what))


def _words(phase: str) -> str:
    return phase.replace("_", " ")
