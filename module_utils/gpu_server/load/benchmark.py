"""What a benchmark's figures mean: GPU samples, targets, the run before. Pure functions."""

from __future__ import annotations

import statistics
from typing import Any

from ...gpu_host.evidence import values
from .generators import BUILTIN

DMON_COMMAND = ("nvidia-smi", "dmon", "-s", "put", "-d", "1")
SLOWER_SHARE = 0.10  # slower than the run before by more than this is a finding
_COLUMNS = {"pwr": "power_w", "sm": "utilization_percent", "rxpci": "pcie_rx_mb_s", "txpci": "pcie_tx_mb_s"}


def parse_samples(text: str) -> dict[str, dict[str, dict[str, float]]] | None:
    """``{gpu index: {power_w, utilization_percent, pcie_rx_mb_s, pcie_tx_mb_s: {mean, max}}}`` of `nvidia-smi dmon`.

    None without samples.

    Columns are found by the names in its head line, which differ from driver to driver; a "-" is no sample.
    """
    names: list[str] = []
    found: dict[str, dict[str, list[float]]] = {}
    for line in text.splitlines():
        words = line.split()
        if words[:2] == ["#", "gpu"]:
            names = words[1:]
        elif words and values.is_digits(words[0]) and len(words) == len(names):
            for name, word in zip(names, words):
                number = values.decimal_number(word)
                if name in _COLUMNS and number is not None:
                    found.setdefault(words[0], {}).setdefault(_COLUMNS[name], []).append(number)
    if not found:
        return None
    return {
        gpu: {name: {"mean": round(statistics.fmean(seen), 1), "max": max(seen)} for name, seen in columns.items()}
        for gpu, columns in sorted(found.items(), key=lambda item: values.number_in_name(item[0]))
    }


def cell_name(cell: dict[str, Any]) -> str:
    return "%d at once, %d in, %d out" % (cell["concurrency"], cell["prompt_tokens_asked"], cell["output_tokens_asked"])


def generator_name(generator: dict[str, Any]) -> str:
    """For a person: the name, the version, how it was started."""
    if generator["name"] == BUILTIN:
        return "builtin (our own small one)"
    return "%s %s (%s)" % (
        generator["name"],
        generator["version"] or "of unknown version",
        " ".join(generator["start"]),
    )


def is_report(content: Any) -> bool:
    """Whether a file can be a baseline: a report as the action writes it."""
    cells = content.get("cells") if isinstance(content, dict) else None
    named = ("concurrency", "prompt_tokens_asked", "output_tokens_asked")
    return isinstance(cells, list) and all(
        isinstance(cell, dict) and all(isinstance(cell.get(name), int) for name in named) for cell in cells
    )


def choose_baseline(
    before: dict[str, Any] | None, generator: dict[str, Any]
) -> tuple[dict[str, Any] | None, list[str]]:
    """The baseline where the same generator measured it, else None; and what is to be said of it.

    Generators count differently (where a token begins, what a first token is), so that figures of two are no
    comparison.
    """
    if not before:
        return None, []
    then = before.get("generator")
    then = then if isinstance(then, dict) else {"name": BUILTIN, "version": None}  # reports before there was a choice
    if then.get("name") != generator["name"]:
        return None, [
            "the baseline was measured with %s, this run with %s: they are not compared"
            % (then.get("name"), generator["name"])
        ]
    if then.get("version") != generator["version"]:
        versions = (then.get("version"), generator["name"], generator["version"])
        return before, ["the baseline was measured with version %s of %s, this run with version %s" % versions]
    return before, []


def find_shortfalls(
    cells: list[dict[str, Any]], targets: dict[str, Any], before: dict[str, Any] | None
) -> list[dict[str, str]]:
    """What of the figures is not as it should be, as ``[{severity, text}]``.

    Loads without figures, failed requests, targets that are missed, cells that are slower than the run before.
    """
    found = []
    for cell in cells:
        if cell["seconds"] is None:
            found.append(
                {"severity": "error", "text": "%s: no figures: %s" % (cell_name(cell), "; ".join(cell["problems"]))}
            )
        elif cell["failed"]:
            why = "; ".join(cell["problems"]) or "they did not end in time, or no reason is given"
            found.append(
                {
                    "severity": "error",
                    "text": "%s: %d of %d requests failed: %s"
                    % (cell_name(cell), cell["failed"], cell["requests"], why),
                }
            )
    single = [
        cell["per_stream_tokens_per_s"]
        for cell in cells
        if cell["concurrency"] == 1 and cell["per_stream_tokens_per_s"]
    ]
    wanted = (
        (
            "single_stream_tokens_per_s",
            "a single stream",
            max(single) if single else None,
            "no cell with one request at a time ran",
        ),
        ("output_tokens_per_s", "output tokens", _best(cells, "output_tokens_per_s"), "nothing was measured"),
        ("total_tokens_per_s", "total tokens", _best(cells, "total_tokens_per_s"), "nothing was measured"),
    )
    for name, words, value, missing in wanted:
        target = values.decimal_number(targets.get(name))
        if target is None:
            continue
        if value is None:
            found.append({"severity": "error", "text": "target %s: %s" % (name, missing)})
        elif value < target:
            found.append(
                {
                    "severity": "error",
                    "text": "%s: %.1f tokens/s at best, the target is %.1f" % (words, value, target),
                }
            )
    old = {cell_name(cell): cell for cell in (before or {}).get("cells") or ()}
    for cell in cells:
        change = _change(cell, old.get(cell_name(cell)))
        if change is not None and change < -SLOWER_SHARE:
            text = "%s: %.1f output tokens/s, %.0f %% slower than the baseline" % (
                cell_name(cell),
                cell["output_tokens_per_s"],
                -change * 100,
            )
            found.append({"severity": "error", "text": text})
    return found


def render_table(cells: list[dict[str, Any]], before: dict[str, Any] | None) -> list[str]:
    """Lines for a terminal."""
    old = {cell_name(cell): cell for cell in (before or {}).get("cells") or ()}
    head = "%-34s %10s %10s %10s %14s %12s %10s" % (
        "load",
        "output/s",
        "total/s",
        "stream/s",
        "first token s",
        "failed",
        "baseline",
    )
    lines = [head]
    for cell in cells:
        first, change = cell["first_token_s"], _change(cell, old.get(cell_name(cell)))
        lines.append("%-34s %10s %10s %10s %14s %12s %10s" % (
            cell_name(cell), _shown(cell["output_tokens_per_s"]), _shown(cell["total_tokens_per_s"]),
            _shown(cell["per_stream_tokens_per_s"]),
            "%.2f / %.2f" % (first["median"], first["p95"]) if first else "-",
            "%d of %d" % (cell["failed"], cell["requests"]),
            "%+.0f %%" % (change * 100) if change is not None else "none",
        ))  # fmt: skip
        for gpu, one in (cell.get("gpus") or {}).items():
            shown = ", ".join("%s %.0f (max %.0f)" % (name, value["mean"], value["max"]) for name, value in one.items())
            lines.append("    GPU %s: %s" % (gpu, shown))
    return lines


def _best(cells: list[dict[str, Any]], name: str) -> float | None:
    return max((cell[name] for cell in cells if cell[name] is not None), default=None)


def _change(cell: dict[str, Any], old: dict[str, Any] | None) -> float | None:
    if not old or not old.get("output_tokens_per_s") or cell["output_tokens_per_s"] is None:
        return None
    return values.decimal_number(cell["output_tokens_per_s"] / old["output_tokens_per_s"] - 1.0)


def _shown(value: float | None) -> str:
    return "-" if value is None else "%.1f" % value
