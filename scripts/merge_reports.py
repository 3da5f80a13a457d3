#!/usr/bin/env python3
"""Merges the reports of several runs into one: of several clusters, control nodes, or parts of an inventory.

    python scripts/merge_reports.py REPORT... [--reports-dir DIR]

A REPORT is a report.json, or a directory that holds one. NAME=REPORT puts NAME/ before the names of its hosts, for two
clusters that both have a gpu1. Hosts of one kind are compared anew over all of them. One that cannot be read is named
in the report, which is then not ready. The exit status is that of one run over all hosts: 0 where every host is ready,
2 where one is not, 4 where one could not be reached, 1 where a report cannot be read or written.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.gpu_report import directories, merging, terminal, writers

_WIDTH = 100


def main(arguments: list[str]) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("reports", nargs="+", metavar="REPORT")
    add_directory_option(parser)
    options = parser.parse_args(arguments)
    try:
        report = merging.merge_reports([read_part(word) for word in options.reports])
    except merging.MergeError as error:
        print("Nothing was merged. %s" % error, file=sys.stderr)
        return merging.NOT_WRITTEN
    return publish_report(report, options.reports_dir)


def add_directory_option(parser: argparse.ArgumentParser) -> None:
    default = os.environ.get("GPU_HOST_REPORTS_DIR") or str(ROOT / "reports")
    parser.add_argument("--reports-dir", default=default, help="where the merged report is written (%(default)s)")


def read_part(word: str) -> merging.Part:
    """The report that an argument names."""
    name, path = split_name(word)
    file = Path(path).expanduser()
    file = file / "report.json" if file.is_dir() else file
    prefix = name + "/" if name else ""
    try:
        return merging.Part(name or str(file), merging.read_report(file.read_bytes()), prefix=prefix)
    except OSError as error:
        return merging.Part(name or str(file), problem="%s: %s" % (file, error.strerror or error))
    except merging.MergeError as error:
        return merging.Part(name or str(file), problem="%s: %s" % (file, error))


def split_name(word: str) -> tuple[str, str]:
    """(name or "", path). A path that exists is one, whatever stands in it."""
    name, equals, path = word.partition("=")
    return ("", word) if not equals or not name or "/" in name or Path(word).exists() else (name, path)


def publish_report(report: dict[str, Any], directory: str) -> int:
    """Write the reports, show the one for the terminal, and give the exit status."""
    held = directories.take_directory(directory)
    if held is directories.TAKEN:
        print("Another run writes its reports to %s. Name another --reports-dir." % directory, file=sys.stderr)
        return merging.NOT_WRITTEN
    written, problems = writers.write_all(report, directory)
    width = min(_WIDTH, shutil.get_terminal_size((_WIDTH, 24)).columns) if sys.stdout.isatty() else _WIDTH
    for line, _tone in terminal.render_terminal(report, width, 0, tuple(written)):
        print(line)
    for problem in problems:
        print("[ERROR]: " + problem, file=sys.stderr)
    return merging.NOT_WRITTEN if problems else merging.find_exit_status(report)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
