"""NVIDIA's nvbandwidth, its text and its JSON (-j). It verifies what it copies, and waives a test that has no peers."""

from __future__ import annotations

import json
import re
from typing import Any

from .output import (
    ACCESS_LATENCY,
    BANDWIDTH,
    BOTH_WAYS,
    FROM_HOST,
    TO_HOST,
    Figures,
    Output,
    format_address,
    parse_count,
    parse_figure,
)

_DEVICE = re.compile(
    r"Device (\d{1,3}): (.{1,100}?)(?: \(([0-9a-fA-F]{4,8}):([0-9a-fA-F]{2}):([0-9a-fA-F]{2})\))?(?:\s*$|,)", re.M
)
_RUNNING = re.compile(r"^Running (\w{3,80})\.\s*$")
_WAIVED = re.compile(r"^(?:Waiving (\w{3,80})\.|Waived:\s{0,8}(\w{3,80})?)\s{0,8}$")
_HEADING = re.compile(r"(?:GPU|CPU)\(row\) (<->|<-|->) (?:GPU|CPU)\(column\)(?P<rest>[^\n]{0,60})")
_COLUMNS = re.compile(r"^\s+(\d{1,3}(?:\s+\d{1,3})*)\s*$")
_ROW = re.compile(r"^\s*(\d{1,3})((?:\s+(?:[\d.]+|N/A|nan))+)\s*$")
_PAIRS = re.compile(
    r"device_to_device_(?P<what>memcpy|bidirectional_memcpy|latency)_?(?P<way>read|write)?_?(?P<engine>ce|sm)"
)


def read_output(text: str) -> Output:
    found = Output("nvbandwidth")
    document = _document(text)
    if document is not None:
        _read_json(document, found)
    else:
        _read_text(text, found)
    # It runs a test of pairs only where CUDA grants peer access, and prints N/A for a pair without.
    found.can_access = {pair: True for figures in found.figures for pair in figures.pairs}
    found.checks_data = bool(found.figures or found.wrong) and "skipVerification" not in text
    for figures in found.figures:
        figures.pairs = {pair: round(value, 4) for pair, value in figures.pairs.items()}
    return found


def _document(text: str) -> dict[str, Any] | None:
    start = text.find("{")
    if start < 0 or '"nvbandwidth"' not in text:
        return None
    try:
        content, _end = json.JSONDecoder().raw_decode(text[start:])
    except (ValueError, RecursionError):
        return None
    inner = content.get("nvbandwidth") if isinstance(content, dict) else None
    return inner if isinstance(inner, dict) else None


def _read_json(document: dict[str, Any], found: Output) -> None:
    for entry in document.get("GPU Device list") or document.get("GPU Device info") or ():
        _devices(str(entry), found)
    for case in document.get("testcases") or ():
        if not isinstance(case, dict):
            continue
        name, status = str(case.get("name")), str(case.get("status"))
        if status == "Waived":
            found.waived.append(name)
        elif status not in ("Passed", "Running", "None"):
            found.failed.append("%s: %s" % (name, status))
        matrix = case.get("bandwidth_matrix") or case.get("latency_matrix")
        heading = _HEADING.search(str(case.get("bandwidth_description") or case.get("latency_description") or ""))
        figures = _figures(name, "")
        if not isinstance(matrix, list) or figures is None:
            continue
        arrow = heading.group(1) if heading else _arrow_of(name)
        for row, cells in enumerate(matrix):
            if isinstance(cells, list):
                _add_row(figures, arrow, row, list(range(len(cells))), cells)
        _keep(figures, found)
    if document.get("error"):
        _fault("nvbandwidth: %s" % document["error"], found)


def _read_text(text: str, found: Output) -> None:
    _devices(text, found)
    test, arrow = "", ""
    columns: list[int] = []
    figures: Figures | None = None
    for line in text.split("\n"):
        running, waived, heading = _RUNNING.match(line), _WAIVED.match(line), _HEADING.search(line)
        row, named = _ROW.match(line), _COLUMNS.match(line)
        if running:
            test, figures, columns = running.group(1), None, []
        elif waived:
            found.waived.append(waived.group(1) or waived.group(2) or test or "a test")
        elif heading:
            arrow, columns = heading.group(1), []
            figures = _figures(test or _test_of(line), heading["rest"])
        elif figures is not None and not columns and named:
            columns = [parse_count(word) for word in named.group(1).split()]
        elif figures is not None and columns and row:
            _add_row(figures, arrow, parse_count(row.group(1)), columns, row.group(2).split())
        elif line.startswith(("SUM ", "MIN ")) and figures is not None:
            _keep(figures, found)
            figures = None
        elif re.search(
            r"Invalid value when checking the pattern|ASSERT in expression|^ERROR:|\[ERROR\]|CUDA_ERROR", line
        ):
            _fault("%s: %s" % (test or "nvbandwidth", line.strip()[:200]), found)
    if figures is not None and figures.pairs:
        _keep(figures, found)
        found.complete = False


def _fault(sentence: str, found: Output) -> None:
    (found.wrong if "pattern" in sentence.lower() else found.failed).append(sentence)


def _devices(text: str, found: Output) -> None:
    for match in _DEVICE.finditer(text):
        index, name, domain, bus, device = match.groups()
        found.devices[parse_count(index)] = {
            "name": name.strip(),
            "address": format_address(domain, bus, device) if domain else None,
        }


def _test_of(heading: str) -> str:
    """A pasted matrix without the line that names its test."""
    engine = "sm" if " SM " in heading else "ce"
    if "Latency" in heading:
        return "device_to_device_latency_sm"
    if "CPU(row)" in heading:
        return "device_to_host_memcpy_ce" if "<- GPU" in heading else "host_to_device_memcpy_ce"
    return "device_to_device_%smemcpy_%s_%s" % (
        "bidirectional_" if "<->" in heading else "",
        "read" if "->" in heading else "write",
        engine,
    )


def _arrow_of(name: str) -> str:
    return "<->" if "bidirectional" in name or "latency" in name else "->" if "read" in name else "<-"


def _figures(name: str, rest: str) -> Figures | None:
    match = _PAIRS.match(name)
    if match:
        engine = "copy engine" if match["engine"] == "ce" else "kernel"
        if match["what"] == "latency":
            return Figures(ACCESS_LATENCY, "kernel, a chain of loads", True)
        both = match["what"].startswith("bidirectional")
        if both and "Total" not in rest and rest:
            return None  # one way of two, and the sum follows
        return Figures(BOTH_WAYS if both else BANDWIDTH, "%s, %s" % (engine, match["way"] or "copy"), True)
    if name.startswith("host_to_device_memcpy"):
        return Figures(FROM_HOST, "copy engine" if name.endswith("ce") else "kernel")
    if name.startswith("device_to_host_memcpy"):
        return Figures(TO_HOST, "copy engine" if name.endswith("ce") else "kernel")
    return None


def _add_row(figures: Figures, arrow: str, row: int, columns: list[int], cells: list[Any]) -> None:
    for column, cell in zip(columns, cells):
        value = parse_figure(cell)
        if value is None or (value == 0 and row == column):
            continue
        if figures.kind in (FROM_HOST, TO_HOST):
            figures.pairs[column, column] = value
        elif row != column:
            figures.pairs[(row, column) if arrow == "->" else (column, row)] = value


def _keep(figures: Figures, found: Output) -> None:
    if figures.kind == ACCESS_LATENCY:
        figures.pairs = {pair: value / 1000 for pair, value in figures.pairs.items()}  # printed in nanoseconds
    if figures.kind in (FROM_HOST, TO_HOST):
        figures.value = min(figures.pairs.values(), default=None)
        figures.pairs = {}
    if figures.pairs or figures.value is not None:
        found.figures.append(figures)
