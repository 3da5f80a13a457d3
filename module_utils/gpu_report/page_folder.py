"""A folder of pages that is written anew by every run: one file per host, and no page of an earlier run left."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Callable, Iterable

from . import files

# Every page of ours says so at its beginning: what somebody else keeps in the same folder is never removed.
MARK = b'<meta name="generator" content="gpu-host-validation">'
_HEAD = 1024  # bytes in which the mark stands


def write_pages(directory: str, pages: Iterable[tuple[str, Callable[[], bytes]]]) -> tuple[int, list[str]]:
    """(pages written, what could not be, in one sentence for each kind). A page that fails does not stop the others."""
    written = 0
    problems: dict[str, list[str]] = {}
    for name, render in pages:
        try:
            files.write_file(os.path.join(directory, name), render(), durable=False)
            written += 1
        except OSError as error:
            problems.setdefault("cannot be written: %s" % (error.strerror or error), []).append(name)
        except Exception as error:  # a fault of one page
            problems.setdefault("cannot be made: %s: %s" % (type(error).__name__, error), []).append(name)
    return written, [
        "%s%s %s" % (os.path.join(directory, names[0]), _count_others(len(names) - 1), problem)
        for problem, names in problems.items()
    ]


def _count_others(number: int) -> str:
    return " and %d more" % number if number else ""


def remove_pages(directory: str, kept: Iterable[str]) -> None:
    """Remove our pages that are not among `kept`, and the folder where nothing is left in it."""
    keep = set(kept)
    with contextlib.suppress(OSError):
        with os.scandir(directory) as entries:
            found = [entry.path for entry in entries if entry.name not in keep and _is_page(entry)]
        for path in found:
            os.unlink(path)
        if not keep:
            os.rmdir(directory)  # fails, as it should, where somebody keeps something else there


def _is_page(entry: os.DirEntry[str]) -> bool:
    if not entry.name.endswith(".html") or not entry.is_file(follow_symlinks=False):
        return False
    try:
        with open(entry.path, "rb") as handle:
            return MARK in handle.read(_HEAD)
    except OSError:
        return False
