"""The P2P table as plain text: for the terminal, and for a ticket."""

from __future__ import annotations

import textwrap
from typing import Any

from . import link_figures, matrix
from .matrix import Matrix

_GAP = 1


def describe_p2p(facts: dict[str, Any], width: int, verbose: bool = False) -> list[str]:
    """The lines of one host's P2P: a table only where pairs differ, else a sentence; then the figures of the probe.

    Without pairs, what the probe found of the links to the host. `verbose`: also what is well.
    """
    every = matrix.build_matrices(facts)
    tables = {table.key: table for table in every}
    if not tables:
        return [line for text in link_figures.describe_links(facts, verbose) for line in _wrapped(text, width)]
    said = any((facts.get("p2p") or {}).get(name) for name in ("read", "write"))
    table = tables.get("verdict") or (tables["granted"] if said or "measured" not in tables else tables["measured"])
    by = _BY[table.key] + (", not proven" if table.key == "granted" and _all_granted(table) else "")
    lines = _wrapped(unknown, width) if (unknown := _unknown(table, facts)) else _pairs(table, by, width)
    for key in ("bandwidth", "latency"):
        if key in tables:
            lines += _wrapped(_range(tables[key]) + _expected(key, tables), width)
    for text in link_figures.describe_links(facts, verbose):
        lines += _wrapped(text, width)
    if "measured" in tables and table.key != "measured":
        lines += _pairs(tables["measured"], _BY["measured"], width)
    for one in every:
        if one.key in ("measured_bandwidth", "measured_latency"):
            lines += _wrapped(_range(one), width)
    for one in (facts.get("measurements") or {}).get("figures") or ():
        if one["value"] is not None:
            lines += _wrapped(_single(one), width)
    probe = facts.get("probe") or {}
    all_reduce = _all_reduce(probe.get("collective") or {})
    lines += _wrapped(all_reduce, width) if all_reduce else []
    if probe and not probe.get("ran"):
        lines += _wrapped("the probe did not run: %s" % (probe.get("skipped_reason") or "no reason was given"), width)
    return lines


def _expected(key: str, tables: dict[str, Matrix]) -> str:
    """' (a healthy pair: at least 37.8 to 47.9)', of the bandwidth; "" where nothing is expected."""
    if key != "bandwidth":
        return ""
    wanted = [text for text, meaning in tables[key].legend if meaning == matrix.LEAST]
    if "expected" in tables:
        cells = [cell.text for _source, _target, cell in tables["expected"].others() if cell.text != matrix.NO_VALUE]
        wanted = [choose(cells, key=float) for choose in (min, max)]
    return " (a healthy pair: at least %s)" % " to ".join(wanted) if wanted else ""


_BY = {"verdict": "proven by the probe", "granted": "as the driver says", "measured": "as other tools measured it"}


def _all_granted(table: Matrix) -> bool:
    return all(cell.level == matrix.GOOD for _source, _target, cell in table.others())


def _single(one: dict[str, Any]) -> str:
    """'all_reduce of 256 MiB by nccl-tests: 299 GB/s'."""
    what = {"from_host": "host to GPU, ", "to_host": "GPU to host, ", "network": "network card to GPU, "}.get(
        one["kind"], ""
    )
    size = one["size_bytes"] or 0
    of = " of %s" % ("%d MiB" % (size >> 20) if size >= 1 << 20 else "%d bytes" % size) if size else ""
    off = " with P2P switched off" if one["peer"] is False else ""
    return "%s%s%s by %s%s: %.3g GB/s" % (what, one["method"].replace("_", "-"), of, one["tool"], off, one["value"])


def _unknown(table: Matrix, facts: dict[str, Any]) -> str:
    """The sentence for a host of which no pair is known, "" for any other.

    A matrix of reads alone is often all that there is.
    """
    pairs = table.others()
    if table.key != "granted" or any(cell.text != matrix.NO_VALUE for _source, _target, cell in pairs):
        return ""
    seen = [name for name in ("read", "write") if (facts.get("p2p") or {}).get(name)]
    half = (
        ": the driver's answer for %s is at hand%s, not the other"
        % ("reads" if seen == ["read"] else "writes", _all_ok(facts, seen[0], len(pairs)))
        if len(seen) == 1
        else ""
    )
    return "%s: unknown whether the driver grants P2P%s" % (_all_of(len(pairs)), half)


def _all_ok(facts: dict[str, Any], name: str, pairs: int) -> str:
    cells = [status for row in facts["p2p"][name].values() for status in row.values()]
    return " (OK on every pair)" if len(cells) == pairs and set(cells) == {"OK"} else ""


def _all_reduce(collective: dict[str, Any]) -> str:
    """The largest all-reduce, beside the same without P2P; empty where none was measured."""
    figures = []
    for arm in ("configured", "p2p_disabled"):
        sizes = ((collective.get("arms") or {}).get(arm) or {}).get("sizes") or {}
        largest = max(sizes, key=int, default="")
        rate = sizes[largest].get("bus_bandwidth_gb_s") if largest else None
        figures.append((int(largest) >> 20, rate) if rate else None)
    if not figures[0]:
        return ""
    text = "all-reduce of %d MiB by NCCL: %.3g GB/s" % figures[0]
    return text + ("; %.3g GB/s without P2P" % figures[1][1] if figures[1] else "")


def _pairs(table: Matrix, by: str, width: int) -> list[str]:
    counts: dict[str, int] = {}
    for _source, _target, cell in table.others():
        counts[cell.text] = counts.get(cell.text, 0) + 1
    meanings = dict(table.legend)
    total = sum(counts.values())
    if len(counts) == 1:
        text = next(iter(counts))
        meaning = meanings.get(
            text, "unknown" if text == matrix.NO_VALUE else "NVLink" if text.startswith("NV") else ""
        )
        return _wrapped(
            "%s %s%s (%s)" % (_all_of(total), text, ": " + meaning if meaning and meaning != text else "", by), width
        )
    lines = _wrapped("%d directed pairs, %s; rows are sources:" % (total, by), width)
    lines += draw_matrix(table, width)
    legend = [
        "%s %s (%d)" % (text, meanings[text], counts.get(text, 0))
        if text in counts
        else "%s %s" % (text, meanings[text])
        for text in meanings
    ]
    return lines + _wrapped("; ".join(legend), width)


def _all_of(total: int) -> str:
    return "both directed pairs" if total == 2 else "all %d directed pairs" % total


def draw_matrix(table: Matrix, width: int) -> list[str]:
    """The table itself; narrow terminals get it in blocks of columns."""
    labels = [gpu.label for gpu in table.gpus]
    cell_width = max(2, *(len(cell.text) for row in table.rows for cell in row), *map(len, labels))
    with_address = ["%s %s" % (gpu.label.rjust(max(map(len, labels))), gpu.address) for gpu in table.gpus]
    narrow = [label.rjust(max(map(len, labels))) for label in labels]
    unlabelled = matrix.NO_VALUE in labels  # then only the address tells GPUs apart
    wanted = len(with_address[0]) + len(labels) * (cell_width + _GAP)
    heads = with_address if wanted <= width or unlabelled else narrow
    fitting = max(1, (width - len(heads[0])) // (cell_width + _GAP))
    lines: list[str] = []
    for start in range(0, len(labels), fitting):
        part = slice(start, start + fitting)
        if start:
            lines.append("")
        lines.append(" " * len(heads[0]) + _row(labels[part], cell_width))
        lines += [head + _row([cell.text for cell in row[part]], cell_width) for head, row in zip(heads, table.rows)]
    return lines


def _row(cells: list[str], width: int) -> str:
    return "".join(" " * _GAP + cell.rjust(width) for cell in cells)


def _range(table: Matrix) -> str:
    """'bandwidth 45.2 to 55.4 GB/s, worst GPU 0 to 4 (0000:01:00.0 to 0000:81:00.0)'."""
    known = [
        (float(cell.text), source, target) for source, target, cell in table.others() if cell.text != matrix.NO_VALUE
    ]
    if not known:
        return "%s: not measured" % table.title.lower()
    low, high = min(known, key=lambda entry: entry[0]), max(known, key=lambda entry: entry[0])
    worst = high if table.key.endswith("latency") else low
    name = table.title[0].lower() + table.title[1:]
    if low[0] == high[0]:
        return "%s %s %s on every pair" % (name, matrix.format_figure(low[0]), table.unit)
    _value, source, target = worst
    return "%s %s to %s %s, worst from GPU %s to GPU %s (%s to %s)" % (
        name,
        matrix.format_figure(low[0]),
        matrix.format_figure(high[0]),
        table.unit,
        source.label,
        target.label,
        source.address,
        target.address,
    )


def _wrapped(text: str, width: int) -> list[str]:
    return textwrap.wrap(text, width, break_long_words=False, break_on_hyphens=False) or [""]
