"""A measured value of one host over the runs as a picture: SVG that stands in the page, its classes in report.css.

Runs stand at the same distance from one another, in every picture of a page at the same places: ten runs of one
morning and one of the month before are as easy to tell apart.
"""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup, escape

from ..phrases import strip_controls
from .figures import PLOTS, Plot, find_plot
from .timeline import Look, Run

_WIDTH, _HEIGHT = 420, 132
_LEFT, _RIGHT, _TOP, _BASE = 12, 12, 22, 106  # of the drawing
_ROOM = 0.15  # of the range of values, above and below
_LEAST_ROOM = 0.02  # of the value: noise is not to look like a fall
_CLASSES = ("first", "second")
_DOTS = 120  # values beyond which only the line is drawn, and the last dot


def list_plots(looks: Sequence[Look], runs: Sequence[Run]) -> list[Markup]:
    """The pictures of one host, in the order of figures.PLOTS."""
    names = {name: None for look in looks for name in look.figures}
    prefixes = dict.fromkeys(name.rpartition(".")[0] for name in names)
    order = list(PLOTS)
    known = [(prefix, plot) for prefix in prefixes if (plot := find_plot(prefix)) is not None]
    known.sort(key=lambda pair: (order.index(pair[0].partition("@")[0]), pair[0]))
    return [draw_plot(prefix, plot, looks, runs) for prefix, plot in known]


def draw_plot(prefix: str, plot: Plot, looks: Sequence[Look], runs: Sequence[Run]) -> Markup:
    """One picture: a line for each of the plot's `lines` that was measured at least once."""
    lines = {
        word: [(look.run, value) for look in looks if (value := look.take_figure("%s.%s" % (prefix, line))) is not None]
        for line, word in plot.lines.items()
    }
    lines = {word: points for word, points in lines.items() if points}
    if not lines:
        return Markup("")
    values = [value for points in lines.values() for _run, value in points]
    low, high = min(values), max(values)
    room = max((high - low) * _ROOM, abs(high) * _LEAST_ROOM, 1e-9)
    bottom, top = low - room, high + room
    step = (_WIDTH - _LEFT - _RIGHT) / max(len(runs) - 1, 1)

    def place(run: Run, value: float) -> tuple[float, float]:
        x = _LEFT + run.place * step if len(runs) > 1 else _WIDTH / 2
        return round(x, 1), round(_BASE - (value - bottom) / (top - bottom) * (_BASE - _TOP), 1)

    told = _write("%s, %s: %s is better" % (plot.title, plot.unit, plot.better))
    described = _write("; ".join(_describe(word, points, plot) for word, points in lines.items()))
    parts = [
        '<figure class="plot over-time"><figcaption><b>%s</b><br>' % told,
        "; ".join(
            '<span class="key %s"></span> %s' % (_CLASSES[number % 2], _write(_describe(word, points, plot)))
            for number, (word, points) in enumerate(lines.items())
        ),
        '</figcaption><svg viewBox="0 0 %d %d" role="img" aria-label="%s. %s">' % (_WIDTH, _HEIGHT, told, described),
        '<line class="axis" x1="%d" x2="%d" y1="%d" y2="%d"/>' % (_LEFT, _WIDTH - _RIGHT, _BASE, _BASE),
    ]
    for value in dict.fromkeys((low, high)):
        _x, y = place(runs[0], value)
        parts.append('<line class="grid" x1="%d" x2="%d" y1="%.1f" y2="%.1f"/>' % (_LEFT, _WIDTH - _RIGHT, y, y))
    for number, points in reversed(list(enumerate(lines.values()))):
        parts += _draw_line(points, _CLASSES[number % 2], place, plot.unit)
    for value in dict.fromkeys((low, high)):
        _x, y = place(runs[0], value)
        above = value == high
        parts.append('<text x="%d" y="%.1f">%s</text>' % (_LEFT, y - 4 if above else y + 13, format_value(value)))
    parts.append('<text x="%d" y="%d">%s</text>' % (_LEFT, _BASE + 16, _write(runs[0].when[:10])))
    if len(runs) > 1:
        last = _write(runs[-1].when[:10])
        parts.append('<text x="%d" y="%d" text-anchor="end">%s</text>' % (_WIDTH - _RIGHT, _BASE + 16, last))
    return Markup("".join([*parts, "</svg></figure>"]))  # noqa: S704  numbers, and text that _write has escaped


def _draw_line(points: list[tuple[Run, float]], kind: str, place: object, unit: str) -> list[str]:
    """A line through the runs that measured it, and a dot with its value on each of them."""
    at = [place(run, value) for run, value in points]  # type: ignore[operator]
    drawn = ['<polyline class="%s" points="%s"/>' % (kind, " ".join("%.1f,%.1f" % one for one in at))]
    few = len(points) <= _DOTS
    for (run, value), (x, y) in list(zip(points, at)) if few else [(points[-1], at[-1])]:
        said = _write("%s: %s %s" % (run.when, format_value(value), unit))
        drawn.append('<circle class="%s" cx="%.1f" cy="%.1f" r="2.5"><title>%s</title></circle>' % (kind, x, y, said))
    return drawn


def _describe(word: str, points: list[tuple[Run, float]], plot: Plot) -> str:
    """'lowest pair: last 54.4, from 51.2 to 55.4'."""
    values = [value for _run, value in points]
    now, low, high = (format_value(value) for value in (values[-1], min(values), max(values)))
    return "%s: %s" % (word, now) if low == high else "%s: last %s, from %s to %s" % (word, now, low, high)


def format_value(value: float) -> str:
    """Three digits, without a power of ten."""
    return "%.0f" % value if abs(value) >= 100 else "%.3g" % value


def _write(text: str) -> str:
    return str(escape(strip_controls(text)))
