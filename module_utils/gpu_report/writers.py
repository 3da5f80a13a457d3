"""The report files: one writer a format, each from the same report. A new format is one module and one line here."""

from __future__ import annotations

import os
from typing import Any, Callable

from . import files, html_report, json_report, junit, markdown_report, metrics_report, page_folder, reason

# File name -> function(report) -> bytes. JSON first: whatever happens to the others, the record is kept.
WRITERS: dict[str, Callable[[dict[str, Any]], bytes]] = {
    "report.json": json_report.render_json,
    "junit.xml": junit.render_junit,
    "report.html": html_report.render_html,
    "report.md": markdown_report.render_markdown,
    "metrics.prom": metrics_report.render_metrics,
}


def write_all(report: dict[str, Any], directory: str, history: str = "") -> tuple[list[str], list[str]]:
    """(paths written, a sentence for each report that could not be). One that fails does not stop the others.

    `history`: the address of the folder of the history, seen from `directory` ('history/'), "" where none is kept.
    """
    written: list[str] = []
    problems: list[str] = []
    for name, render in WRITERS.items():
        path = os.path.join(directory, name)
        try:
            linked = {"history": history + "index.html"} if history and name == "report.html" else {}
            files.write_file(path, render(report, **linked))
            written.append(path)
        except OSError as error:
            problems.append("%s cannot be written: %s" % (path, error.strerror or error))
        except Exception as error:  # a fault of one writer
            problems.append("%s cannot be made: %s: %s" % (path, type(error).__name__, error))
    pages = os.path.join(directory, html_report.HOSTS)
    kept: list[str] = []
    if html_report.has_host_pages(report):
        listed = list(html_report.list_host_pages(report, "../%shosts/" % history if history else ""))
        kept = [name for name, _render in listed]
        number, faults = page_folder.write_pages(pages, listed)
        problems += faults
        if number:
            written.append("%s (%d pages)" % (os.path.join(pages, ""), number))
    page_folder.remove_pages(pages, kept)
    return written, problems


def write_reasons(report: dict[str, Any], path: str) -> list[str]:
    """Write why each host may not take work, one line per host. A sentence where it could not be written."""
    try:
        files.write_file(path, reason.render_reasons(report))
    except OSError as error:
        return ["%s cannot be written: %s" % (path, error.strerror or error)]
    return []
