"""NVLink links of each GPU (``nvidia-smi nvlink -s``) and what their counters of errors say (``nvlink -e``)."""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from . import smi_values

_GPU = re.compile(r"GPU (?P<index>\d{1,3}): .{0,200}")
_LINK = re.compile(
    r"\s*Link (?P<link>\d{1,3}): (?:(?P<speed>\d{1,5}(?:\.\d{1,4})?) GB/s|(?P<inactive><?inactive>?))\s*", re.IGNORECASE
)
_LINES_LIMIT = 20_000
_COUNTER = re.compile(r"\s*Link (?P<link>\d{1,3}): (?P<name>[A-Za-z][A-Za-z /-]{1,60}): (?P<count>\S{1,30})\s*")
# Counters that stay at 0 on a good link. Up to Hopper a packet was sent again or the link trained anew (DCGM,
# dcgm_gpu_hardware_limits.h, DCGM_LIMIT_MAX_NVLINK_ERROR: 1); with NVLink 5 an error got past the correction
# (nvml.h, NVML_FI_DEV_NVLINK_COUNT_*). CRC and symbol errors are what the correction is there for.
ERRORS = frozenset(
    {"replay errors", "recovery errors", "rx errors", "malformed packet errors", "buffer overrun errors"}
    | {"local link integrity errors", "link recovery failed events", "effective errors"}
)
# Sentences of NVML under the name of a GPU (or alone, where no GPU has an active link), instead of lines of links.
_ALL_INACTIVE = re.compile(r"(?i)as all links are inactive")
_NO_NVLINK = re.compile(r"(?i)unable to retrieve nvlink information: not supported|nvlink is not supported")
_IN_MIG_MODE = re.compile(r"(?i)not supported for devices in mig mode")


def parse_nvlink(data: bytes) -> dict[int, list[dict[str, Any]]] | None:
    """GPU index -> ``[{link, speed_gb_s, active, said}]``; an empty list for a GPU without NVLink. None if `data` names
    no GPU.

    `active` is None where the line is in no known spelling. A sentence in the place of links is an entry without a
    number: `said` holds its words, and `active` is False if it says that all links are inactive. Where no GPU is named
    and the only sentence is that one, no GPU has an active link: ``{}``.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    links: list[dict[str, Any]] | None = None
    alone: list[str] = []
    for line in smi_values.strip_codes(data.decode("utf-8", "replace")).split("\n")[:_LINES_LIMIT]:
        gpu = _GPU.fullmatch(line.strip()[:300])
        link = _LINK.fullmatch(line[:300])
        if gpu is not None:
            links = found.setdefault(values.number_in_name(gpu.group("index")), [])
        elif link is not None and links is not None:
            speed = values.decimal_number(link.group("speed"))
            links.append(_entry(values.whole_number(link.group("link")), speed, speed is not None and speed > 0))
        elif line.strip() and links is not None:
            said = " ".join(line.split())[:200]
            if not _NO_NVLINK.search(said):
                links.append(_entry(None, None, False if _ALL_INACTIVE.search(said) else None, said))
        elif line.strip():
            alone.append(line)
    if not found and alone and all(_ALL_INACTIVE.search(line) for line in alone):
        return {}
    return found or None


def parse_nvlink_errors(data: bytes) -> dict[int, dict[int, dict[str, int]]] | None:
    """GPU index -> link -> ``{counter: count}``, names in lower case; None if `data` shows no counter of any GPU."""
    found: dict[int, dict[int, dict[str, int]]] = {}
    links: dict[int, dict[str, int]] | None = None
    for line in smi_values.strip_codes(data.decode("utf-8", "replace")).split("\n")[:_LINES_LIMIT]:
        gpu = _GPU.fullmatch(line.strip()[:300])
        counter = _COUNTER.fullmatch(line[:300])
        if gpu is not None:
            links = found.setdefault(values.whole_number(gpu.group("index")) or 0, {})
        elif counter is not None and links is not None:
            count = smi_values.parse_whole(counter.group("count"))
            counters = links.setdefault(values.whole_number(counter.group("link")) or 0, {})
            if isinstance(count, int):
                counters[counter.group("name").lower()] = count
    return found if any(found.values()) else None


def list_link_errors(links: dict[int, dict[str, int]]) -> list[dict[str, Any]]:
    """``[{link, counts}]`` of the links of one GPU that made errors."""
    found = []
    for link, counters in sorted(links.items()):
        if any(counters.get(name) for name in ERRORS):
            shown = {name: count for name, count in counters.items() if count and ("errors" in name or name in ERRORS)}
            found.append({"link": link, "counts": shown})
    return found


def _entry(link: int | None, speed: float | None, active: bool | None, said: str | None = None) -> dict[str, Any]:
    return {"link": link, "speed_gb_s": speed, "active": active, "said": said}


def summarise_nvlink(links: list[dict[str, Any]]) -> dict[str, Any]:
    """``{links, active, inactive, all_inactive, unknown, mig, said, speed_gb_s}`` of one GPU.

    `links`, `active`: counts; `inactive`: numbers of the inactive links; `all_inactive`: NVML says so in a sentence,
    without their number; `unknown`: how many lines could not be read; `said`: those lines; `mig`: NVML does not answer
    because the GPU is in MIG mode; `speed_gb_s`: the lowest of an active link.
    """
    active = [link for link in links if link["active"]]
    unknown = [link for link in links if link["active"] is None]
    return {
        "links": sum(1 for link in links if link["link"] is not None),
        "active": len(active),
        "inactive": [link["link"] for link in links if link["active"] is False and link["link"] is not None],
        "all_inactive": any(link["active"] is False and link["link"] is None for link in links),
        "unknown": len(unknown),
        "mig": any(_IN_MIG_MODE.search(link["said"] or "") for link in unknown),
        "said": [link["said"] for link in unknown],
        "speed_gb_s": min((link["speed_gb_s"] for link in active), default=None),
    }
