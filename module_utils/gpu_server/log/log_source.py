"""Where a server's log is, and the part of it that matters.

From the last start to now, across a rotation, in bounded size.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import DENIED, FAILED, HUNG, OK, TIMEOUT, Evidence
from ..engines import ENGINES, Engine
from .log_lines import UNIT_START

PART_BYTES = 4 * 1024 * 1024  # a start is some 100 KB; what comes after it is looked at from its end
JOURNAL_LINES = 40000
SECONDS = 20.0


def journal_command(unit: str, invocation: str | None) -> tuple[str, ...]:
    """The unit's own lines since its last start; with `--all`, progress bars stay text instead of "blob data"."""
    which = ("_SYSTEMD_INVOCATION_ID=" + invocation,) if invocation else ("--unit", unit, "--boot")
    return ("journalctl", "--no-pager", "--all", "--quiet", "--output=short-unix", "--lines=%d" % JOURNAL_LINES, *which)


def tail_command(path: str) -> tuple[str, ...]:
    return ("tail", "-c", str(PART_BYTES), path)


def starts_command(path: str, engine: Engine | None) -> tuple[str, ...]:
    """Byte offsets of the lines that begin a start."""
    patterns = [UNIT_START.pattern, *(one.starts.pattern for one in ([engine] if engine else ENGINES.values()))]
    return ("grep", "--byte-offset", "--text", "--only-matching", "--extended-regexp", "|".join(patterns), path)


def part_command(path: str, offset: int) -> tuple[str, ...]:
    return (
        "dd",
        "if=" + path,
        "bs=65536",
        "skip=%d" % offset,
        "count=%d" % (PART_BYTES // 65536),
        "iflag=skip_bytes,fullblock",
        "status=none",
    )


def read_log_source(
    evidence: Evidence, unit: dict[str, Any] | None, path: str | None, engine: Engine | None, errors: Errors
) -> dict[str, Any]:
    """``{kind, path, text, modified, gap, cut, rotated}``: `kind` 'file', 'journal' or None.

    `text` None where there is no log to read.

    `gap`: a part of the log was left out, the middle of a long one. `cut`: the part is its end or its last start, which
    could not be read: what `text` does not say may stand there. `rotated`: the last start stands in the file that was
    rotated away.
    """
    found: dict[str, Any] = {
        "kind": None, "path": None, "text": None, "modified": None, "gap": False, "cut": False, "rotated": False,
    }  # fmt: skip
    path = path or _unit_file(unit)
    if path:
        _read_file(evidence, path, engine, errors, found)
    elif unit and unit["loaded"] and (unit["output"] or "journal").startswith(("journal", "kmsg", "syslog")):
        command = journal_command(unit["name"], unit["invocation"])
        outcome = evidence.run(command, SECONDS)
        found.update(kind="journal", path=" ".join(command))
        if outcome.status == OK and not outcome.rc:
            found.update(text=outcome.text, gap=outcome.truncated, cut=outcome.truncated)
        if not outcome.succeeded:
            errors.unsuccessful(outcome)
    return found


def _unit_file(unit: dict[str, Any] | None) -> str | None:
    kind, colon, path = ((unit or {}).get("output") or "").partition(":")
    return path if colon and kind in ("file", "append", "truncate") and path.startswith("/") else None


def _read_file(evidence: Evidence, path: str, engine: Engine | None, errors: Errors, found: dict[str, Any]) -> None:
    found.update(kind="file", path=path)
    entry = evidence.list(posixpath.dirname(path)).entries.get(posixpath.basename(path))
    found["modified"] = entry.modified if entry else None
    head = evidence.read(path, PART_BYTES)
    if not head.ok and not head.truncated:
        errors.unanswered(head)
        return
    text = head.text
    if head.truncated:
        text = _long_file(evidence, engine, errors, found, text)
    if not _has_start(text, engine):
        before = evidence.run(tail_command(path + ".1"), SECONDS)
        if before.succeeded and _has_start(before.text, engine):
            text, found["rotated"] = before.text.rstrip("\n") + "\n" + text, True
        elif before.status in (DENIED, FAILED, TIMEOUT, HUNG) or before.truncated:
            errors.unsuccessful(before)
            found.update(gap=True, cut=True)
    found["text"] = text


def _long_file(evidence: Evidence, engine: Engine | None, errors: Errors, found: dict[str, Any], head: str) -> str:
    """The last start and the end of a file that is too long to read."""
    path = found["path"]
    tail = evidence.run(tail_command(path), SECONDS)
    if not tail.succeeded:
        errors.unsuccessful(tail)
        found.update(gap=True, cut=True)
        return head
    end = tail.text.partition("\n")[2]
    if _has_start(end, engine):
        return end
    found["gap"] = True
    starts = evidence.run(starts_command(path, engine), SECONDS)
    offsets = re.findall(r"^([0-9]{1,18}):", starts.text, re.MULTILINE)
    if not starts.ok or starts.rc not in (0, 1):  # 1: no line is one
        errors.unsuccessful(starts)
        found["cut"] = True
    if not offsets:
        return head + "\n" + end if _has_start(head, engine) else end
    start = evidence.run(part_command(path, values.number_in_name(offsets[-1])), SECONDS)
    if not start.succeeded:
        errors.unsuccessful(start)
        found["cut"] = True
    return (start.text if start.succeeded else head) + "\n" + end


def _has_start(text: str, engine: Engine | None) -> bool:
    return bool(UNIT_START.search(text)) or any(
        one.starts.search(text) for one in ([engine] if engine else ENGINES.values())
    )
