"""Samples, and the text format in which Prometheus reads them.

https://prometheus.io/docs/instrumenting/exposition_formats/#text-based-format: of each metric HELP, TYPE and all of its
samples together, each once.
"""

from __future__ import annotations

import functools
import math
from typing import Any

from .. import phrases
from .families import FAMILIES, PREFIX, UNKNOWN_VALUES

NOT_APPLICABLE = "n/a"
_LONGEST_LABEL = 200


class Samples:
    """The samples of all hosts, by metric. A value that is unknown has no sample; it is counted instead."""

    def __init__(self) -> None:
        # Metric -> labels as text -> value as text.
        self._lines: dict[str, dict[str, str]] = {name: {} for name in FAMILIES}
        self._unknown: dict[str, int] = {}
        self._host = ""

    def begin_host(self, host: str) -> None:
        """The samples that follow are of `host`."""
        self.end_host()
        self._host = 'host="%s"' % escape_label(host)

    def end_host(self) -> None:
        """Write how much of the present host is unknown."""
        unknown, self._unknown = self._unknown, {}
        for name, count in unknown.items():
            self._write(UNKNOWN_VALUES, float(count), {"metric": name})

    def add_value(self, metric: str, value: Any, scale: float = 1.0, **labels: Any) -> None:
        """A sample of `metric` (without its prefix): a number or a truth, times `scale`.

        None, and whatever is no number, counts as unknown; "n/a" is no value that is missing, and gives nothing.
        """
        name = PREFIX + metric
        number = parse_number(value)
        if number is not None:
            self._write(name, number * scale, labels)
        elif value != NOT_APPLICABLE:
            self.count_unknown(metric)

    def add_info(self, metric: str, **labels: Any) -> None:
        """A sample that is 1 and says something in its labels; a label whose value is unknown is left empty."""
        self._write(PREFIX + metric, 1.0, labels)

    def count_unknown(self, metric: str, number: int = 1) -> None:
        """`number` samples of `metric` are missing because nobody knows their values."""
        if number > 0:
            self._unknown[PREFIX + metric] = self._unknown.get(PREFIX + metric, 0) + number

    def render_text(self) -> bytes:
        """The text of everything."""
        self.end_host()
        parts = []
        for name, lines in self._lines.items():
            if lines:
                family = FAMILIES[name]
                parts.append("# HELP %s %s\n# TYPE %s %s\n" % (name, _escape_help(family.help), name, family.type))
                parts += ["%s{%s} %s\n" % (name, labels, value) for labels, value in lines.items()]
        return "".join(parts).encode("utf-8", "replace")

    def _write(self, name: str, number: float, labels: dict[str, Any]) -> None:
        if tuple(labels) != FAMILIES[name].labels:
            raise ValueError("%s has the labels %s, not %s" % (name, FAMILIES[name].labels, tuple(labels)))
        text = self._host
        for label, value in labels.items():
            text += ',%s="%s"' % (
                label,
                escape_label(value if isinstance(value, (str, bool, int)) else _describe(value)),
            )
        # Prometheus refuses the whole file where two samples have the same labels: the first one stays.
        self._lines[name].setdefault(text, format_number(number))


def _describe(value: Any) -> str:
    return "" if value is None else str(value)


def parse_number(value: Any) -> float | None:
    """`value` as a number; None where it is none."""
    if isinstance(value, bool):
        return float(value)
    if not isinstance(value, (int, float)) or not math.isfinite(value):
        return None
    return float(value)


def format_number(number: float) -> str:
    """Whole numbers with all of their digits, others with 12: a time with its tenths, and none of a float's noise."""
    if number == int(number) and abs(number) < 1e15:
        return "%d" % number
    return "%.12g" % number


@functools.lru_cache(maxsize=4096, typed=True)  # the same few stand in most samples
def escape_label(value: str | bool | int) -> str:
    r"""A label's value: \\, \" and \n are escaped; control characters and what is no Unicode text are replaced."""
    if isinstance(value, bool):
        return "true" if value else "false"
    text = phrases.strip_controls(value).encode("utf-8", "replace").decode("utf-8")[:_LONGEST_LABEL]
    return text.replace("\\", "\\\\").replace("\n", "\\n").replace('"', '\\"')


def _escape_help(text: str) -> str:
    return text.replace("\\", "\\\\").replace("\n", "\\n")
