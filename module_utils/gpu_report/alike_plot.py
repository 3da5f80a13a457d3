"""Measured values of the hosts of one kind as a picture: one strip per value, as SVG that stands in the page.

A strip is a histogram, so that five hundred hosts take no more room than five; hosts that stand out are dots with
their names. There is no style in it: the classes are in report.css.
"""

from __future__ import annotations

from typing import Any

from markupsafe import Markup, escape

from .phrases import strip_controls

_WIDTH, _HEIGHT = 420, 76
_LEFT, _RIGHT, _TOP, _BASE = 12, 12, 14, 54  # of the drawing; values stand between _LEFT and _WIDTH - _RIGHT
_BINS = 60
_NAMED = 40  # hosts that stand out and are drawn, of one value
_LABELLED = 2
_SPEEDS = ("GB/s", "us", "s", "tokens/s")


def list_plots(kind: dict[str, Any]) -> list[Markup]:
    """A picture for each measured speed of a kind of three hosts or more."""
    return [
        draw_strip(entry)
        for entry in kind["measured"]
        if entry["unit"] in _SPEEDS and len(entry["values"]) >= 3 and entry["median"] > 0
    ]


def draw_strip(entry: dict[str, Any]) -> Markup:
    """The SVG of one measured value (alike.py, `measured`)."""
    values = {str(host): float(value) for host, value in entry["values"].items()}
    odd = set(entry["outliers"])
    low, high = min(values.values()), max(values.values())
    around = max((high - low) * 0.06, abs(entry["median"]) * 0.02)
    low, high = low - around, high + around

    def place(value: float) -> float:
        return round(_LEFT + (value - low) / (high - low) * (_WIDTH - _LEFT - _RIGHT), 1)

    counts = [0] * _BINS
    for host, value in values.items():
        if host not in odd:
            counts[min(int((value - low) / (high - low) * _BINS), _BINS - 1)] += 1
    told = _write("%.120s, %s is better: %d hosts, median %s %s%s"
                  % (entry["what"], entry["better"], len(values), _number(entry["median"]), entry["unit"],
                     ", %d %s out" % (len(odd), "stands" if len(odd) == 1 else "stand") if odd else ""))  # fmt: skip
    parts = [
        '<figure class="plot"><figcaption>%s</figcaption>' % told,
        '<svg viewBox="0 0 %d %d" role="img" aria-label="%s">' % (_WIDTH, _HEIGHT, told),
        _draw_band(place, entry, low, high),
    ]
    wide, most = (_WIDTH - _LEFT - _RIGHT) / _BINS, max(counts) or 1
    for number, count in enumerate(counts):
        if count:
            tall = round(3 + (_BASE - _TOP - 3) * count / most, 1)
            parts.append(
                '<rect class="bar" x="%.1f" y="%.1f" width="%.1f" height="%.1f"><title>%d %s</title></rect>'
                % (_LEFT + number * wide, _BASE - tall, wide - 1, tall, count, "host" if count == 1 else "hosts")
            )
    middle = place(entry["median"])
    parts.append('<line class="median" x1="%.1f" x2="%.1f" y1="%d" y2="%d"/>' % (middle, middle, _TOP - 4, _BASE))
    listed = sorted((host for host in values if host in odd), key=lambda host: -abs(values[host] - entry["median"]))
    for number, host in enumerate(listed[:_NAMED]):
        at, said = place(values[host]), _write("%s: %s %s" % (host, _number(values[host]), entry["unit"]))
        parts.append('<circle class="odd" cx="%.1f" cy="%d" r="4"><title>%s</title></circle>' % (at, _BASE - 4, said))
        if number < _LABELLED:
            anchor = "start" if at < _WIDTH / 2 else "end"
            parts.append(
                '<text class="odd" x="%.1f" y="%d" text-anchor="%s">%s</text>'
                % (at, _BASE - 12 - 12 * number, anchor, _write(host[:24]))
            )
    parts.append('<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>' % (_LEFT, _WIDTH - _RIGHT, _BASE, _BASE))
    for value, anchor in ((low + around, "start"), (high - around, "end")):
        parts.append(
            '<text class="tick" x="%.1f" y="%d" text-anchor="%s">%s %s</text>'
            % (place(value), _BASE + 16, anchor, _number(value), _write(entry["unit"]))
        )
    return Markup("".join([*parts, "</svg></figure>"]))  # noqa: S704  numbers, and text that _write has escaped


def _draw_band(place: Any, entry: dict[str, Any], low: float, high: float) -> str:
    """Where a value is no outlier."""
    start = place(max(entry["median"] - entry["limit"], low))
    end = place(min(entry["median"] + entry["limit"], high))
    return '<rect class="band" x="%.1f" y="%d" width="%.1f" height="%d"/>' % (
        start,
        _TOP - 4,
        max(end - start, 1.0),
        _BASE - _TOP + 4,
    )


def _number(value: float) -> str:
    return "%.3g" % value if abs(value) < 1000 else "%.0f" % value


def _write(text: str) -> str:
    return str(escape(strip_controls(text)))
