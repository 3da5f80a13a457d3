"""The report as one HTML file: nothing is loaded from elsewhere, and nothing that was captured can run in it.

Captured text is data: jinja2 escapes every value, and the Content-Security-Policy allows the one script and the one
style sheet of this page by their hash and nothing else.
"""

from __future__ import annotations

import base64
import functools
import hashlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jinja2
from markupsafe import Markup, escape

from . import alike_plot, alike_text, changes, findings, link_figures, matrix, pcie_tree, phrases, tables
from .collector import NOT_READY, NOT_VALIDATED, READY

_TEMPLATES = Path(__file__).parent / "templates"
_OPEN_WHEN_AT_MOST = 3  # hosts; with more, those with findings, if they are few too
_OPEN_BAD_AT_MOST = 5
_POLICY = "default-src 'none'; style-src %s; script-src %s; img-src data:; base-uri 'none'; form-action 'none'"
_SHORT = 64  # characters
_LONGEST = 2_000  # of one captured text: a browser takes seconds for a page of unbroken thousands
STATUSES = ("fail", "error", "unknown", "waived", "pass", "skip")


def render_html(report: dict[str, Any]) -> bytes:
    """The bytes of report.html."""
    style, script = (_text(name) for name in ("report.css", "report.js"))
    hosts = [_host(number, name, host, report) for number, (name, host) in enumerate(report["hosts"].items(), 1)]
    page = {
        "report": report,
        "found": findings.group_findings(report),
        "unproven": findings.group_unproven(report),
        "drifts": changes.group_drift(report),
        "said_of_kinds": alike_text.list_said(report, 50),
        "kinds": [
            {"name": kind["name"], "hosts": kind["hosts"], "plots": alike_plot.list_plots(kind)}
            for kind in (report.get("alike") or {}).get("kinds", ())
        ],
        "behind": lambda finding: changes.find_changes_behind(report, finding.check, finding.hosts),
        "hosts": hosts,
        "links": {host["name"]: host["id"] for host in hosts},
        "style": Markup(style),  # noqa: S704  ours, not captured
        "script": Markup(script),  # noqa: S704
        "policy": _POLICY % (_hash(style), _hash(script)),
        "READY": READY,
        "NOT_READY": NOT_READY,
        "NOT_VALIDATED": NOT_VALIDATED,
    }
    return _environment().get_template("report.html.j2").render(page).encode("utf-8", "replace")


def _environment() -> jinja2.Environment:
    environment = jinja2.Environment(
        loader=jinja2.FileSystemLoader(_TEMPLATES),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=_safe,
    )
    environment.filters["whole"] = lambda text: escape(
        phrases.strip_controls(text)
    )  # commands, which somebody will copy
    environment.globals.update(phrases=phrases, heat=matrix.HEAT, cells=_cells)
    return environment


def _safe(value: Any) -> Any:
    """Every value on its way into the page: text without control characters, escaped."""
    if not isinstance(value, str) or isinstance(value, Markup):
        return value
    if len(value) < _SHORT:
        return _safe_short(str(value))
    if len(value) > _LONGEST:
        value = value[:_LONGEST] + " … (cut here; whole in report.json)"
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


def _text(name: str) -> str:
    return "\n" + (_TEMPLATES / name).read_text(encoding="utf-8")


def _hash(content: str) -> str:
    return "'sha256-%s'" % base64.b64encode(hashlib.sha256(content.encode("utf-8")).digest()).decode("ascii")


def _host(number: int, name: str, host: dict[str, Any], report: dict[str, Any]) -> dict[str, Any]:
    """What the template shows of one host."""
    facts = host["facts"]
    states = [other["state"] for other in report["hosts"].values()]
    few = len(states) <= _OPEN_WHEN_AT_MOST
    return {
        "id": "host-%d" % number,
        "name": name,
        "state": host["state"],
        "message": host["message"],
        "unreachable": host["unreachable"],
        "problems": host["problems"],
        "unproven": host.get("unproven") or [],
        "before": host.get("before"),
        "open": few or (host["state"] == NOT_READY and states.count(NOT_READY) <= _OPEN_BAD_AT_MOST),
        "recorded": bool((facts.get("evidence") or {}).get("recorded")),
        "gpu_count": (facts.get("gpus") or {}).get("count"),
        "p2p": tables.summarise_p2p(facts) if facts.get("p2p") else "",
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
