"""The pairs of GPUs by the path that joins them, what each class reaches, and pairs far below the rest of their class.

No expectation is needed for that: the pairs of one path are compared with one another.
"""

from __future__ import annotations

import statistics
from typing import Any

from .pair_verdict import find_median

Facts = dict[str, Any]
# From near to far, in the words of `nvidia-smi topo -m`; NVLink stands for every NV#.
CLASSES = {
    "NVLink": "joined by NVLink",
    "PIX": "below one PCIe switch",
    "PXB": "across several PCIe switches",
    "PHB": "through one host bridge",
    "NODE": "across host bridges of one NUMA node",
    "SYS": "across NUMA nodes",
}
FEWEST_PAIRS = 4  # to compare
# Below the median by more than so many MADs (scaled as a standard deviation is) and by more than this share of it.
MOST_MADS, LEAST_SHARE = 5.0, 0.10
# In a guest the path is that of the emulated machine, so that a class holds pairs of one socket and of two.
LEAST_SHARE_IN_GUEST = 0.25
MOST_OUTLIERS_SHARE = 1 / 3  # more than this are no outliers: the class has two kinds of pairs
_SCALE = 1.4826  # MAD of a normal distribution to its standard deviation


def classify_path(cell: str | None, source: Facts | None, target: Facts | None) -> str | None:
    """The class of a pair by its cell of `nvidia-smi topo -m`, or without one by the places of both GPUs in sysfs; None
    where neither is known."""
    if cell:
        return "NVLink" if cell.startswith("NV") else cell if cell in CLASSES else None
    one, other = source or {}, target or {}
    first, second = one.get("path"), other.get("path")
    if first is None or second is None or None in first or None in second:
        return None
    shared = next((at for at, (a, b) in enumerate(zip(first, second)) if a != b), min(len(first), len(second)))
    if shared:
        return "PIX" if max(len(first), len(second)) <= shared + 1 else "PXB"
    if one.get("root_complex") is not None and one.get("root_complex") == other.get("root_complex"):
        return "PHB"
    nodes = one.get("numa_node"), other.get("numa_node")
    return None if None in nodes else "NODE" if nodes[0] == nodes[1] else "SYS"


def summarise_classes(pairs: Facts, in_guest: bool | None) -> Facts:
    """``{classes, outliers, explanations, compared}`` of `pairs`, each with its `path_class`.

    ``classes``: by class, from near to far ``{meaning, pairs, measured, median_gb_s, mad_gb_s, lowest_gb_s,
    highest_gb_s, slower_percent (than the fastest class)}``; ``outliers``: names of pairs, ``explanations``: a sentence
    for each; ``compared``: how many pairs stand in a class with enough others.
    """
    rates: dict[str, dict[str, float]] = {}
    counts: dict[str, int] = {}
    for name, pair in pairs.items():
        rate = find_median(pair.get("bandwidth_gb_s"), "copy_alone", "copy")
        if pair.get("path_class") is None:
            continue
        counts[pair["path_class"]] = counts.get(pair["path_class"], 0) + 1
        if rate is not None:
            rates.setdefault(pair["path_class"], {})[name] = rate
    best = max((statistics.median(found.values()) for found in rates.values()), default=None)
    result: Facts = {"classes": {}, "outliers": [], "explanations": [], "compared": 0}
    for name, meaning in CLASSES.items():
        if name not in counts:
            continue
        found = rates.get(name) or {}
        middle = statistics.median(found.values()) if found else None
        spread = statistics.median(abs(rate - middle) for rate in found.values()) if middle is not None else None
        result["classes"][name] = {
            "meaning": meaning,
            "pairs": counts[name],
            "measured": len(found),
            "median_gb_s": middle and round(middle, 2),
            "mad_gb_s": None if spread is None else round(spread, 3),
            "lowest_gb_s": min(found.values(), default=None),
            "highest_gb_s": max(found.values(), default=None),
            "slower_percent": round(100 * (1 - middle / best), 1) if middle and best else None,
        }
        if len(found) < FEWEST_PAIRS or middle is None or spread is None:
            continue
        result["compared"] += len(found)
        share = LEAST_SHARE_IN_GUEST if in_guest is not False and name != "NVLink" else LEAST_SHARE
        below = max(MOST_MADS * _SCALE * spread, share * middle)
        far = sorted(pair for pair, rate in found.items() if rate < middle - below)
        if len(far) > MOST_OUTLIERS_SHARE * len(found):
            continue
        result["outliers"] += far
        result["explanations"] += [
            "%s: %.3g GB/s, the median of the %d pairs %s (%s) is %.3g (MAD %.2g)"
            % (pair, found[pair], len(found), meaning, name, middle, spread)
            for pair in far
        ]
    return result
