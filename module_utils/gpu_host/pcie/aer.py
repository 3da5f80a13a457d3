"""Counters of PCI Express errors since the boot: what the kernel's Advanced Error Reporting counted for a device.

Source: Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats. One line for each kind of error, ``BadTLP 12``, and a
total; a device without AER, or whose firmware keeps AER to itself, has no such files.
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, NOT_CAPTURED, Evidence
from ..evidence.offenders import Offenders

FILES = {"correctable": "aer_dev_correctable", "nonfatal": "aer_dev_nonfatal", "fatal": "aer_dev_fatal"}
# The link sends a packet again after each of these; NVIDIA's driver recommends 8 per minute at most (DCGM,
# dcgm_gpu_hardware_limits.h).
REPLAYS = ("BadTLP", "BadDLLP", "Rollover", "Timeout")
MOST_REPLAYS_PER_MINUTE = 8
LEAST_MINUTES = 60.0  # so that what the first training of a link leaves behind does not look like a rate
# An access to something that is not there: every scan of a bus leaves some behind, and nothing is lost.
_HARMLESS = frozenset({"UnsupReq"})
_LINE = re.compile(r"(?P<name>[A-Za-z]\w{0,40}) (?P<count>\d{1,20})")


def read_aer(evidence: Evidence, base: str, errors: Errors) -> dict[str, dict[str, int]] | None:
    """``{correctable, nonfatal, fatal: {name: count}}`` of the device at `base`, counts above 0 only.

    ``{}`` where the kernel counts none for it; None where a file could not be read.
    """
    found: dict[str, dict[str, int]] = {}
    unknown = False
    for kind, name in FILES.items():
        reading = evidence.read("%s/%s" % (base, name))
        if reading.status == ABSENT:
            continue
        counts = parse_counters(reading.text) if reading.ok else None
        if counts is None:
            unknown = True
            if reading.status == NOT_CAPTURED:
                continue  # a recording from before these were read: said once for all devices
            errors.unanswered(reading)
            if reading.ok:
                errors.odd(reading.path, "is no list of counters", _find_odd_line(reading.text))
        else:
            found[kind] = counts
    return None if unknown else found


def _find_odd_line(text: str) -> str:
    """The first line that is no counter; all of the text where only its total is missing."""
    return next((line for line in text.splitlines() if not _LINE.fullmatch(line.strip())), text)


def parse_counters(text: str) -> dict[str, int] | None:
    """Name -> count of the errors that happened; None if `text` is no whole list, which ends with its total."""
    counts: dict[str, int] = {}
    whole = False
    for line in text.splitlines():
        match = _LINE.fullmatch(line.strip())
        if match is None:
            return None
        if match["name"].startswith("TOTAL_ERR_"):
            whole = True
        else:
            count = values.whole_number(match["count"])
            if count is None:
                return None
            if count:
                counts[match["name"]] = count
    return counts if whole else None


def average_per_minute(count: float, uptime_s: float | None) -> float | None:
    return None if uptime_s is None else count / max(uptime_s / 60, LEAST_MINUTES)


def summarise_aer(devices: dict[str, dict[str, Any]], uptime_s: float | None, unknown: bool) -> dict[str, Any]:
    """``aer_reported``, ``aer_uncorrected``, ``aer_replays_high`` of `devices`: address -> {aer, gpus}.

    Lists of ``{address, gpus, counts}`` (and `per_minute`, the average since the boot).
    """
    seen = [device["aer"] for device in devices.values()]
    uncorrected, replays = Offenders(unknown), Offenders(unknown)
    for address, device in sorted(devices.items()):
        aer, entry = device["aer"], {"address": address, "gpus": device["gpus"]}
        if aer is None:
            uncorrected.unread()
            replays.unread()
            continue
        counts: dict[str, int] = {}
        for kind in ("nonfatal", "fatal"):
            for name, count in aer.get(kind, {}).items():
                if name not in _HARMLESS:
                    counts[name] = counts.get(name, 0) + count
        uncorrected.judge(bool(counts), {**entry, "counts": counts})
        again = sum(aer.get("correctable", {}).get(name, 0) for name in REPLAYS)
        if again:
            rate = average_per_minute(again, uptime_s)
            high = None if rate is None else rate > MOST_REPLAYS_PER_MINUTE
            replays.judge(high, {**entry, "counts": aer["correctable"], "per_minute": round(rate or 0.0, 1)})
    reported = True if any(seen) else None if unknown or None in seen else False
    return {
        "aer_reported": reported,
        "aer_uncorrected": uncorrected.listed(),
        "aer_replays_high": replays.listed(),
    }
