"""Where a GPU hangs in the machine: the bridges above it and its NUMA node, as sysfs shows them.

In a virtual machine both are the emulated machine's. `root` is /sys everywhere but in tests.
"""

from __future__ import annotations

import os
import re
from typing import Any

_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")
_RANGE = re.compile(r"(\d{1,5})(?:-(\d{1,5}))?")


def read_place(address: str, root: str = "/sys") -> dict[str, Any]:
    """``{path, root_complex, numa_node}``: the bridges above the GPU, root port first (None where sysfs does not show
    the device); ``pci0000:00``; the node, None where the firmware names none."""
    device = os.path.join(root, "bus/pci/devices", address)
    place: dict[str, Any] = {"path": None, "root_complex": None, "numa_node": None}
    if not os.path.exists(device):
        return place
    parts = os.path.realpath(device).split("/")
    place["path"] = [part for part in parts[:-1] if _ADDRESS.fullmatch(part)]
    place["root_complex"] = next((part for part in parts if part.startswith("pci") and ":" in part), None)
    node = read_number(os.path.join(device, "numa_node"))
    place["numa_node"] = int(node) if node is not None and node >= 0 else None
    return place


def read_nodes(root: str = "/sys") -> dict[int, dict[str, Any]]:
    """The NUMA nodes that have memory: ``{number: {cpus, free_mib, distances}}``, distances by node number; empty where
    the kernel shows none (one node, or a kernel without NUMA)."""
    base = os.path.join(root, "devices/system/node")
    listed = read_text(os.path.join(base, "has_memory")) or read_text(os.path.join(base, "online"))
    nodes = {}
    online = parse_ranges(read_text(os.path.join(base, "online")))
    for number in parse_ranges(listed):
        at = os.path.join(base, "node%d" % number)
        free = re.search(r"MemFree:\s+(\d{1,15}) kB", read_text(os.path.join(at, "meminfo")))
        words = read_text(os.path.join(at, "distance")).split()
        distances = dict(zip(online, map(int, words))) if all(word.isdigit() for word in words) else {}
        nodes[number] = {
            "cpus": parse_ranges(read_text(os.path.join(at, "cpulist"))),
            "free_mib": int(free[1]) >> 10 if free else None,
            "distances": distances,
        }
    return nodes


def choose_far_node(near: int, nodes: dict[int, dict[str, Any]]) -> int | None:
    """The node that is farthest from `near`, by the firmware's distances; None where there is no other."""
    others = sorted(number for number in nodes if number != near)
    distances = (nodes.get(near) or {}).get("distances") or {}
    return max(others, key=lambda number: distances.get(number, 0), default=None)


def parse_ranges(text: str) -> list[int]:
    """``0-3,8`` as the kernel writes lists of CPUs and nodes."""
    found: list[int] = []
    for word in text.strip().split(","):
        match = _RANGE.fullmatch(word)
        if match:
            found.extend(range(int(match[1]), int(match[2] or match[1]) + 1))
    return found


def read_text(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.read()
    except OSError:
        return ""


def read_number(path: str) -> float | None:
    """The number at the beginning of a file of sysfs (``32.0 GT/s PCIe``); None where it is not there or has none."""
    try:
        return float(read_text(path).split()[0])
    except (ValueError, IndexError):
        return None


def read_link(address: str, root: str = "/sys") -> dict[str, Any]:
    """The GPU's PCIe link now: ``{speed_gt_s, width, max_speed_gt_s, max_width}``; None where the kernel does not say.

    An idle link lowers its speed, so this is read right after work.
    """
    found: dict[str, Any] = {}
    for key, name in (
        ("speed_gt_s", "current_link_speed"),
        ("width", "current_link_width"),
        ("max_speed_gt_s", "max_link_speed"),
        ("max_width", "max_link_width"),
    ):
        number = read_number(os.path.join(root, "bus/pci/devices", address, name)) or 0.0  # 0: "Unknown"
        found[key] = (int(number) if "width" in key else number) if number > 0 else None
    return found
