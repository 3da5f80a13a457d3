"""NVIDIA's p2pBandwidthLatencyTest (cuda-samples): copies of the copy engine, with peer access on and off."""

from __future__ import annotations

import re

from .output import BANDWIDTH, BOTH_WAYS, LATENCY, Figures, Output, format_address, parse_count, parse_figure

_DEVICE = re.compile(
    r"^Device: (\d{1,3}), (.{1,100}?), pciBusID: ([0-9a-f]{1,2}), pciDeviceID: ([0-9a-f]{1,2}), pciDomainID: "
    r"?([0-9a-f]{1,8})",
    re.M,
)
_ACCESS = re.compile(r"^Device=(\d{1,3}) (CAN|CANNOT) Access Peer Device=(\d{1,3})", re.M)
_HEADING = re.compile(
    r"(?P<ways>Unidirectional|Bidirectional) P2P=(?P<on>\w+) Bandwidth(?: \(P2P (?P<how>\w+)\))? Matrix"
    r"|P2P=(?P<lon>\w+) Latency(?: \(P2P (?P<lhow>\w+)\))? Matrix"
)
_COLUMNS = re.compile(r"^\s*(?P<who>D\\D|GPU|CPU)((?:\s+\d{1,3})+)\s*$")
_ROW = re.compile(r"^\s*(\d{1,3})((?:\s+(?:[\d.]+|N/A|nan|inf))+)\s*$")


def read_output(text: str) -> Output:
    """Rows are sources for writes, which is the default; with ``--p2p_read`` they are destinations."""
    found = Output("p2pBandwidthLatencyTest")
    for match in _DEVICE.finditer(text):
        index, name, bus, device, domain = match.groups()
        found.devices[parse_count(index)] = {"name": name, "address": format_address(domain, bus, device)}
    for first, can, second in _ACCESS.findall(text):
        found.can_access[parse_count(first), parse_count(second)] = can == "CAN"
    figures: Figures | None = None
    columns: list[int] = []
    reads = False
    for line in text.split("\n"):
        heading = _HEADING.search(line)
        if heading:
            figures, columns = _figures(heading), []
            reads = (heading["how"] or heading["lhow"] or "").lower().startswith("read")
            found.figures.append(figures)
            continue
        named = _COLUMNS.match(line)
        if named:
            # The second latency matrix is what the CPU waited.
            columns = [] if named["who"] == "CPU" else [parse_count(word) for word in named.group(2).split()]
            continue
        row = _ROW.match(line)
        if row and columns and figures is not None:
            _add_row(figures, parse_count(row.group(1)), columns, row.group(2).split(), reads)
    found.figures = [one for one in found.figures if one.pairs]
    found.complete = len(found.figures) >= 6 or not found.figures
    return found


def _figures(heading: re.Match[str]) -> Figures:
    peer = (heading["on"] or heading["lon"]).lower() == "enabled"
    if heading["lon"]:
        return Figures(LATENCY, "copy engine, 16 bytes, 100 repeats", peer, size_bytes=16)
    kind = BANDWIDTH if heading["ways"] == "Unidirectional" else BOTH_WAYS
    return Figures(kind, "copy engine, 160 MB, 5 repeats", peer, size_bytes=160_000_000)


def _add_row(figures: Figures, row: int, columns: list[int], cells: list[str], reads: bool) -> None:
    for column, cell in zip(columns, cells):
        value = parse_figure(cell)
        if column != row and value is not None:
            figures.pairs[(column, row) if reads else (row, column)] = value
