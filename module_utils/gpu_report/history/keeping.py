"""Keeps a run in the history of a directory of reports, and writes the pages anew."""

from __future__ import annotations

import os
import time
from dataclasses import dataclass, field
from typing import Any

from .. import directories, files, page_folder, page_names
from . import pages, store
from .timeline import Timeline, TimelineBuilder

FOLDER = "history"
_PATIENCE_S = 10.0  # for another run that writes the same history at this moment


@dataclass
class Kept:
    """`pages`: the index where it was written. `problems`: what could not be kept. `notes`: what was left out."""

    pages: list[str] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    runs: int = 0


def keep_run(directory: str, report: dict[str, Any], rendered: str, runs: int) -> Kept:
    """Add a run to the history in `directory` (DIRECTORY_OF_REPORTS/history), and keep the last `runs`.

    `rendered`: the path of its report.json. A history that cannot be written does not stop anything else.
    """
    kept = Kept()
    try:
        os.makedirs(directory, exist_ok=True)
        turn = _wait_for_turn(directory)
        try:
            newest = store.write_run(directory, report, rendered)
            store.remove_old_runs(directory, runs, newest)
            _write_pages(directory, list(report["hosts"]), kept)
        finally:
            if turn:
                turn.close()
    except OSError as error:
        kept.problems.append("the history in %s cannot be written: %s" % (directory, error.strerror or error))
    except Exception as error:  # a fault of the history is none of the report
        kept.problems.append("the history in %s cannot be made: %s: %s" % (directory, type(error).__name__, error))
    return kept


def read_timeline(directory: str) -> Timeline:
    """All runs of a history that can be read, and what was left out."""
    builder = TimelineBuilder()
    for name, summary, problem in store.read_runs(directory):
        if summary is None:
            builder.leave_out(name, problem)
        else:
            builder.add(name, summary)
    return builder.finish()


def _write_pages(directory: str, hosts: list[str], kept: Kept) -> None:
    """The index, and the pages of `hosts`: those of other hosts are as the last run that looked at them left them."""
    found = read_timeline(directory)
    kept.runs = len(found.runs)
    kept.notes = [
        "%s is left out of the history: %s" % (os.path.join(directory, name), why) for name, why in found.left_out
    ]
    folder = os.path.join(directory, pages.HOSTS)
    wanted = set(hosts)
    names = [
        name
        for name in found.hosts
        if name in wanted or not os.path.exists(os.path.join(folder, page_names.name_page(name)))
    ]
    index = os.path.join(directory, pages.INDEX)
    files.write_file(index, pages.render_index(found), durable=False)
    _written, problems = page_folder.write_pages(folder, pages.list_pages(found, names))
    kept.problems += problems
    page_folder.remove_pages(folder, [page_names.name_page(name) for name in found.hosts])
    kept.pages = [index]


def _wait_for_turn(directory: str) -> Any:
    """What keeps other runs from writing the same pages meanwhile; None where there is nothing of the kind."""
    until = time.monotonic() + _PATIENCE_S
    while (taken := directories.take_directory(directory)) is directories.TAKEN:
        if time.monotonic() > until:
            return None  # each file is whole in any case; the next run writes the pages anew
        time.sleep(0.1)
    return taken
