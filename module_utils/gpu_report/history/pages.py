"""The pages of the history: an index of hosts and runs, and a page per host. All of them open from a disk."""

from __future__ import annotations

import dataclasses
import functools
import urllib.parse
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from .. import html_report, page_names
from ..collector import READY
from . import plot, timeline
from .record import LETTERS
from .timeline import Look, Timeline

HOSTS = "hosts"
INDEX = "index.html"
_COLUMNS = 60  # runs of the tables; beyond it the pages say so, and the pictures show all
_TOLD = 4_000  # cells of the index that say what changed there
_WORDS = {letter: status for status, letter in LETTERS.items()}
SIGNS = {
    "p": ("good", "✓"), "f": ("bad", "✗"), "e": ("bad", "!"), "u": ("doubt", "?"), "w": ("doubt", "~"), "s": ("", "–"),
}  # fmt: skip


def render_index(found: Timeline) -> bytes:
    """history/index.html."""
    runs = found.runs[-_COLUMNS:]
    first = runs[0].place if runs else 0
    changed = sum(bool(look.change) for looks in found.hosts.values() for look in looks)
    rows = [
        _row(number, name, looks, first, changed <= _TOLD) for number, (name, looks) in enumerate(found.hosts.items())
    ]
    quiet = [row for row in rows if row["quiet"]]
    page = {
        "found": found,
        "runs": runs,
        "changes": timeline.list_run_changes(found)[:_COLUMNS],
        "rows": sorted((row for row in rows if not row["quiet"]), key=lambda row: row["last"].state == READY),
        "quiet": quiet,
    }
    return html_report.render_template("history.html.j2", page, ("report.js", "filter.js"), 300)


def list_pages(found: Timeline, names: Iterable[str]) -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(file name, what renders the page) for each of `names`."""
    for name in names:
        yield page_names.name_page(name), functools.partial(render_host, found, name)


def render_host(found: Timeline, name: str) -> bytes:
    """history/hosts/NAME.html."""
    looks = found.hosts[name]
    # Only runs that looked at the host: another inventory or a limit would leave most of the picture empty.
    runs = [look.run for look in looks]
    moved = [_move(look, place) for place, look in enumerate(looks)]
    moved_runs = [look.run for look in moved]
    troubled = timeline.list_troubled_checks(looks)  # by the places of the runs among all
    page = {
        "name": name,
        "last": looks[-1],
        "ready": timeline.count_ready(looks),
        "looks": looks[::-1],
        "runs": runs[-_COLUMNS:],
        "left_out": max(len(runs) - _COLUMNS, 0),
        "troubled": [(check, found.titles.get(check, check), letters) for check, letters in troubled],
        "others": len(set().union(*{look.run.checks for look in looks if look.statuses})) - len(troubled),
        "plots": plot.list_plots(moved, moved_runs),
        "signs": SIGNS,
        "words": _WORDS,
    }
    return html_report.render_template("history_host.html.j2", page, longest=300)


def _move(look: Look, place: int) -> Look:
    """The look with its run at `place`: its number among the runs of this host."""
    return dataclasses.replace(look, run=dataclasses.replace(look.run, place=place))


def _row(number: int, name: str, looks: list[Look], first: int, tell: bool) -> dict[str, Any]:
    """One line of the index. `quiet`: ready in every run that looked at it."""
    cells = {look.run.place - first: _cell(look, tell) for look in looks if look.run.place >= first}
    return {
        "number": number,
        "name": name,
        "page": "%s/%s" % (HOSTS, urllib.parse.quote(page_names.name_page(name))),
        "last": looks[-1],
        "ready": timeline.count_ready(looks),
        "looks": len(looks),
        "cells": cells,
        "quiet": timeline.count_ready(looks) == len(looks),
    }


def _cell(look: Look, tell: bool) -> tuple[str, str, str]:
    """(class, sign, what changed)."""
    kind, sign = {"ready": ("good", "✓"), "not_ready": ("bad", "✗")}.get(look.state, ("doubt", "?"))
    if look.unreachable:
        sign = "∅"
    if not look.change:
        return kind, sign, ""
    return kind + " changed", sign, "%s: %s" % (look.run.when, describe_change(look)[:100]) if tell else ""


def describe_change(look: Look) -> str:
    """'not ready: 2 failed; new: a, b; mended: c'."""
    change = look.change
    parts = ["%s: %s" % (look.state.replace("_", " "), look.message)] if change.state else []
    for word, checks in (("new", change.new), ("unknown now", change.unknown), ("mended", change.mended)):
        if checks:
            parts.append("%s: %s" % (word, ", ".join(checks)))
    return "; ".join([*parts, *change.machine])
