"""NVIDIA's nccl-tests (all_reduce_perf and its kin): bus bandwidth by size, and whether the results were right."""

from __future__ import annotations

import re

from ..evidence import values
from .output import COLLECTIVE, Figures, Output, format_address, parse_count, parse_figure

_RANK = re.compile(r"^#\s+Rank\s+(\d+)\s.*?\bdevice\s+(\d+)\s+\[(?:0x)?([0-9a-fA-F:]{2,16})\]\s+(.{1,80}?)\s*$", re.M)
_ROW = re.compile(
    r"^\s*(?P<size>\d{1,16})\s+\d{1,16}\s+[a-z]\w{1,12}\s+(?P<op>[a-z]{3,8})(?:\s+-?\d{1,4})?\s+(?P<time>[\d.]+(?:e\+?\d+)?)\s+(?P<algorithm>[\d.]+)\s+(?P<bus>[\d.]+)"
    r"\s+(?P<wrong>[\d.e+-]+|N/A)(?:\s+[\d.]+(?:e\+?\d+)?\s+[\d.]+\s+(?P<bus_in>[\d.]+)\s+(?P<wrong_in>[\d.e+-]+|N/A))?\s*$",
    re.M,
)
_NAME = re.compile(
    r"\b(all_reduce|all_gather|reduce_scatter|alltoall|sendrecv|broadcast|scatter|gather|hypercube|reduce)_perf\b"
)
_BOUNDS = re.compile(r"^# Out of bounds values : (\d+) (\w+)", re.M)


def read_output(text: str) -> Output:
    """The largest size tells the bandwidth: the "Avg bus bandwidth" is the mean over all sizes."""
    found = Output("nccl-tests")
    for _rank, device, where, name in _RANK.findall(text):
        parts = where.split(":")
        known = (
            format_address(parts[-2], parts[-1])
            if len(parts) == 2
            else format_address(*parts[:3])
            if len(parts) == 3
            else None
        )
        found.devices[parse_count(device)] = {"name": name, "address": known}
    rows = list(_ROW.finditer(text))
    named = _NAME.search(text)
    operation = named.group(1) if named else "all_reduce" if any(row["op"] == "sum" for row in rows) else "collective"
    # Of a size that was measured several times (other settings, run after run) the best is how fast it goes.
    best: dict[int, float] = {}
    for row in rows:
        size, value = parse_count(row["size"]), max(parse_figure(row["bus"]) or 0.0, parse_figure(row["bus_in"]) or 0.0)
        if size and value:
            best[size] = max(best.get(size, 0.0), value)
        found.checks_data = found.checks_data or any(one and one != "N/A" for one in (row["wrong"], row["wrong_in"]))
        wrong = [text for text in (row["wrong"], row["wrong_in"]) if values.is_digits(text) and parse_count(text)]
        if wrong:
            found.wrong.append("%s of %d bytes: %s wrong values" % (operation, size, wrong[0]))
    bounds = _BOUNDS.search(text)
    if bounds and (bounds.group(2) != "OK" or parse_count(bounds.group(1))):
        found.wrong.append("%s: %s values out of bounds, %s" % (operation, *bounds.groups()))
    if re.search(r"Test (?:NCCL|CUDA) failure|NCCL failure|unhandled (?:cuda|system) error", text):
        found.failed.append("%s: it ended with a failure of NCCL or CUDA" % operation)
    if best:
        size = max(best)
        off = bool(re.search(r"NCCL_P2P_DISABLE=1\s+(?:\S*/)?\w+_perf", text))
        found.figures.append(Figures(COLLECTIVE, operation, False if off else None, {}, best[size], size))
    found.complete = bool(bounds) or not rows
    return found
