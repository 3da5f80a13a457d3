"""The report as HTML: nothing is loaded from elsewhere, and nothing that was captured can run in it.

Up to ten hosts are one page, which somebody can attach to a ticket. More have a first page that says what is wrong
where, in less than 2 MB, and a page per host with its matrices, its PCIe tree and its checks: a probed host of eight
GPUs takes 70 KB, so that ten load at once, and nobody reads a hundred of them one below the other.

Captured text is data: jinja2 escapes every value, and the Content-Security-Policy allows the one script and the one
style sheet of this page by their hash and nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from . import (
    alike_plot,
    alike_text,
    changes,
    findings,
    kept_templates,
    link_figures,
    matrix,
    page_names,
    pcie_tree,
    phrases,
    tables,
)
from .collector import NOT_READY, NOT_VALIDATED, READY

_TEMPLATES = Path(__file__).parent / "templates"
ONE_PAGE = 10  # hosts; with more, each has a page of its own
HOSTS = "hosts"  # the folder of those pages
FIRST_PAGE = 1_900_000  # bytes; fewer things are shown in full rather than more of them loaded
_OPEN_WHEN_AT_MOST = 3  # hosts; with more, those with findings, if they are few too
_OPEN_BAD_AT_MOST = 5
_POLICY = "default-src 'none'; style-src %s; script-src %s; img-src data:; base-uri 'none'; form-action 'none'"
_SHORT = 64  # characters
_LONGEST = 2_000  # of one captured text: a browser takes seconds for a page of unbroken thousands
STATUSES = ("fail", "error", "unknown", "waived", "pass", "skip")


@dataclass(frozen=True)
class Shown:
    """How much of everything the first page of a fleet shows in full, at most."""

    text: int  # characters of one captured text
    rows: int  # of one table of hosts
    brief: int  # causes by name
    articles: int  # causes in full
    links: int  # hosts of one cause
    lines: int  # of everything else
    plots: int
    readings: int = 3
    explained: int = 6
    commands: int = 3_000  # characters


# The next is taken where the page is too large with the one before.
_MEASURES = (
    Shown(text=600, rows=4_000, brief=300, articles=120, links=60, lines=40, plots=40),
    Shown(text=300, rows=2_500, brief=300, articles=60, links=30, lines=20, plots=20),
    Shown(text=160, rows=1_500, brief=150, articles=25, links=20, lines=10, plots=10),
    Shown(text=80, rows=800, brief=50, articles=5, links=12, lines=5, plots=3, readings=1, explained=2, commands=400),
)


def has_host_pages(report: dict[str, Any]) -> bool:
    """Whether the hosts of the report are pages of their own (list_host_pages)."""
    return len(report["hosts"]) > ONE_PAGE


def render_html(report: dict[str, Any], history: str = "") -> bytes:
    """The bytes of report.html. `history`: the address of the history's index, "" where there is none."""
    if not has_host_pages(report):
        return _render_one_page(report, history)
    page = b""
    for shown in _MEASURES:
        page = _render_first_page(report, history, shown)
        if len(page) <= FIRST_PAGE:
            break
    return page


def list_host_pages(report: dict[str, Any], history: str = "") -> Iterator[tuple[str, Callable[[], bytes]]]:
    """(file name, what renders the page) of every host; `history`: the folder of the pages of their history."""
    for number, name in enumerate(report["hosts"], 1):
        page = page_names.name_page(name)
        past = history + urllib.parse.quote(page) if history else ""
        yield page, functools.partial(_render_host_page, report, number, name, past)


def _render_one_page(report: dict[str, Any], history: str) -> bytes:
    hosts = [_host(number, name, host, report) for number, (name, host) in enumerate(report["hosts"].items(), 1)]
    page = {
        **_describe_run(report),
        "found": findings.group_findings(report),
        "kinds": list(_list_kinds(report, 1_000)),
        "history": history,
        "hosts": hosts,
        "links": {host["name"]: "#" + host["id"] for host in hosts},
    }
    return render_template("report.html.j2", page)


def _render_first_page(report: dict[str, Any], history: str, shown: Shown) -> bytes:
    names = {name: number for number, name in enumerate(report["hosts"])}
    found = findings.group_findings(report)
    page = {
        **_describe_run(report),
        "found": found,
        **{name: _fold(getattr(found, name), names) for name in ("causes", "broken", "warnings")},
        "behind": lambda folded: changes.find_changes_behind(report, folded.first.check, folded.hosts),
        "kinds": list(_list_kinds(report, shown.plots)),
        "history": history,
        "hosts": [_summarise_host(names[name], name, host) for name, host in report["hosts"].items()],
        "links": {name: "%s/%s" % (HOSTS, urllib.parse.quote(page_names.name_page(name))) for name in names},
        "shown": shown,
    }
    return render_template("fleet.html.j2", page, ("report.js", "filter.js"), shown.text)


def _render_host_page(report: dict[str, Any], number: int, name: str, history: str) -> bytes:
    own = {**report, "hosts": {name: report["hosts"][name]}, "alike": {}}  # of all hosts, which is no part of this page
    page = {
        **_describe_run(own),
        "found": findings.group_findings(own),
        "history": history,
        "item": {**_host(number, name, report["hosts"][name], own), "open": True},
        "fleet": "../report.html",
    }
    return render_template("host_page.html.j2", page)


def _describe_run(report: dict[str, Any]) -> dict[str, Any]:
    """What every page tells of the run."""
    return {
        "report": report,
        "unproven": findings.group_unproven(report),
        "drifts": changes.group_drift(report),
        "said_of_kinds": alike_text.list_said(report, 50),
        "behind": lambda finding: changes.find_changes_behind(report, finding.check, finding.hosts),
    }


def _list_kinds(report: dict[str, Any], plots: int) -> Iterator[dict[str, Any]]:
    """The kinds of hosts with the pictures of their measured values, `plots` pictures in all at most."""
    for kind in (report.get("alike") or {}).get("kinds", ()):
        drawn = alike_plot.list_plots(kind)[:plots]
        plots -= len(drawn)
        yield {"name": kind["name"], "hosts": kind["hosts"], "plots": drawn}


def _fold(found: Iterable[findings.Finding], numbers: dict[str, int]) -> list[findings.Folded]:
    folded = findings.fold_findings(found)
    for one in folded:
        one.places = write_ranges([numbers[name] for name in one.hosts])
    return folded


def write_ranges(numbers: Iterable[int]) -> str:
    """'3-17,20': what a script can tell hosts by without their names, which would be most of the page."""
    ranges: list[list[int]] = []
    for number in sorted(numbers):
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    return ",".join(str(first) if first == last else "%d-%d" % (first, last) for first, last in ranges)


def render_template(
    name: str, page: dict[str, Any], scripts: Sequence[str] = ("report.js",), longest: int = _LONGEST
) -> bytes:
    """The bytes of a page from a template of ours, with the style sheet and the `scripts` that its policy allows.
    `longest`: characters of one captured text."""
    style, script = _text("report.css"), "".join(map(_text, scripts))
    given = {
        "style": Markup(style),  # noqa: S704  ours, not captured
        "script": Markup(script),  # noqa: S704
        "policy": _write_policy(style, script),
        "READY": READY,
        "NOT_READY": NOT_READY,
        "NOT_VALIDATED": NOT_VALIDATED,
    }
    return _environment(longest).get_template(name).render({**page, **given}).encode("utf-8", "replace")


@functools.lru_cache(maxsize=8)
def _write_policy(style: str, script: str) -> str:
    return _POLICY % (_hash(style), _hash(script))


@functools.cache
def _environment(longest: int) -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        bytecode_cache=kept_templates.KeptTemplates("longest=%d" % longest),
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=functools.partial(_safe, longest=longest),
    )
    environment.filters["whole"] = lambda text: escape(
        phrases.strip_controls(text)
    )  # commands, which somebody will copy
    environment.globals.update(phrases=phrases, heat=matrix.HEAT, cells=_cells, check_row=_check_row)
    return environment


def _safe(value: Any, longest: int = _LONGEST) -> Any:
    """Every value on its way into the page: text without control characters, escaped."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) < _SHORT:
        return _safe_short(str(value))
    if len(value) > longest:
        value = value[:longest] + " … (cut here; whole in report.json)"
    return escape(phrases.strip_controls(value))


@functools.lru_cache(maxsize=4096)  # cells and statuses: the same few texts, hundreds of times a host
def _safe_short(text: str) -> Markup:
    return escape(phrases.strip_controls(text))


def _cells(row: Sequence[matrix.Cell]) -> Markup:
    """One row of a P2P table.

    Here rather than in the template: there are thousands of them in the report of a fleet.
    """
    # Both are safe.
    return Markup("".join('<td class="%s">%s</td>' % (cell.level, _safe(cell.text)) for cell in row))  # noqa: S704


_SIGNS = {
    "pass": ("good", "✓"),
    "fail": ("bad", "✗"),
    "error": ("bad", "!"),
    "unknown": ("doubt", "?"),
    "waived": ("doubt", "~"),
    "skip": ("", "–"),
}


def _check_row(result: dict[str, Any], title: str) -> Markup:
    """One row of the table of all checks of a host: most are the same on every host."""
    waiver = result.get("waiver")
    waived = "waived until %s: %s" % (waiver["expires"], waiver["reason"]) if waiver else ""
    return _write_check_row(result["id"], title, result["status"], _safe(result["note"]), _safe(waived))


@functools.lru_cache(maxsize=2048)
def _write_check_row(check: str, title: str, status: str, *notes: Markup) -> Markup:
    level, sign = _SIGNS[status]
    more = Markup("").join(Markup("<br>%s") % note for note in notes if note)
    cells = '<tr><td><span class="chip %s">%s %s</span></td><td>%s <code class="muted">%s</code>%s</td></tr>\n'
    return Markup(cells) % (level, sign, status, _safe(title), _safe(check), more)  # noqa: S704  ours, filled with escaped text


@functools.cache
def _text(name: str) -> str:
    return "\n" + (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def _summarise_host(number: int, name: str, host: dict[str, Any]) -> dict[str, Any]:
    """What a row of the table of hosts shows of one."""
    facts = host["facts"]
    return {
        "number": number,
        "name": name,
        "state": host["state"],
        "message": host["message"],
        "unreachable": host["unreachable"],
        "recorded": bool((facts.get("evidence") or {}).get("recorded")),
        "gpu_count": (facts.get("gpus") or {}).get("count"),
        "p2p": tables.summarise_p2p(facts) if facts.get("p2p") else "",
    }


def _host(number: int, name: str, host: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """What the template shows of one host."""
    facts = host["facts"]
    states = [other["state"] for other in report["hosts"].values()]
    few = len(states) <= _OPEN_WHEN_AT_MOST
    return {
        **_summarise_host(number, name, host),
        "id": "host-%d" % number,
        "problems": host["problems"],
        "unproven": host.get("unproven") or [],
        "before": host.get("before"),
        "open": few or (host["state"] == NOT_READY and states.count(NOT_READY) <= _OPEN_BAD_AT_MOST),
        "overview": tables.list_overview(facts),
        "gpus": tables.build_gpu_table(facts),
        "matrices": matrix.build_matrices(facts),
        "probe_notes": tables.list_probe_notes(facts),
        "reasons": tables.list_faulty_pairs(facts),
        "figures": tables.build_figure_table(facts),
        "paths": link_figures.build_path_table(facts),
        "host_links": link_figures.list_bars(facts),
        "link_table": link_figures.build_host_link_table(facts),
        "ladder": link_figures.build_ladder_table(facts, host["results"]),
        "phases": link_figures.build_phase_table(facts),
        "collective": tables.build_all_reduce_table(facts),
        "tree": pcie_tree.build_pcie_trees(facts),
        "errors": [
            {name: error.get(name) for name in ("source", "problem", "needs_root")}
            for error in (*(facts.get("errors") or ()), *((facts.get("probe") or {}).get("errors") or ()))
        ],
        "results": [
            {**result, "note": result.get("found") or result.get("reason") or "", "waiver": result.get("waiver")}
            for result in sorted(host["results"], key=lambda result: STATUSES.index(result["status"]))
        ],
        "counts": {status: sum(result["status"] == status for result in host["results"]) for status in STATUSES},
    }
