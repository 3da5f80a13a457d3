"""NVLink links of each GPU: ``nvidia-smi nvlink -s``."""

from __future__ import annotations

import re
from typing import Any

from . import smi_values

_GPU = re.compile(r"GPU (?P<index>\d{1,3}): .{0,200}")
_LINK = re.compile(
    r"\s*Link (?P<link>\d{1,3}): (?:(?P<speed>\d{1,5}(?:\.\d{1,4})?) GB/s|(?P<inactive><?inactive>?))\s*", re.IGNORECASE
)
_LINES_LIMIT = 20_000


def parse_nvlink(data: bytes) -> dict[int, list[dict[str, Any]]] | None:
    """GPU index -> ``[{link, speed_gb_s, active}]``; an empty list for a GPU without NVLink.

    None if `data` names no GPU.

    `active` is None where the line is in no known spelling.
    """
    found: dict[int, list[dict[str, Any]]] = {}
    links: list[dict[str, Any]] | None = None
    for line in smi_values.strip_codes(data.decode("utf-8", "replace")).split("\n")[:_LINES_LIMIT]:
        gpu = _GPU.fullmatch(line.strip()[:300])
        link = _LINK.fullmatch(line[:300])
        if gpu is not None:
            links = found.setdefault(int(gpu.group("index")), [])
        elif link is not None and links is not None:
            speed = float(link.group("speed")) if link.group("speed") else None
            links.append(
                {"link": int(link.group("link")), "speed_gb_s": speed, "active": speed is not None and speed > 0}
            )
        elif links is not None and re.match(r"\s*Link \d{1,3}:", line[:40]):
            links.append({"link": None, "speed_gb_s": None, "active": None})
    return found or None


def summarise_nvlink(links: list[dict[str, Any]]) -> dict[str, Any]:
    """``{links, active, inactive, unknown, speed_gb_s}`` of one GPU.

    Counts, numbers of the inactive links, lowest speed of an active one.
    """
    active = [link for link in links if link["active"]]
    return {
        "links": len(links),
        "active": len(active),
        "inactive": [link["link"] for link in links if link["active"] is False],
        "unknown": sum(1 for link in links if link["active"] is None),
        "speed_gb_s": min((link["speed_gb_s"] for link in active), default=None),
    }
