"""Where a server's log is, and the part of it that matters.

From the last start to now, across a rotation, in bounded size.
"""

from __future__ import annotations

import posixpath
import re
import shlex
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import DENIED, FAILED, HUNG, OK, TIMEOUT, Evidence, Outcome
from ..containers.container_log import decode_log, find_rotated, merge_streams
from ..engines import ENGINES, Engine
from .log_lines import UNIT_START

PART_BYTES = 4 * 1024 * 1024  # a start is some 100 KB; what comes after it is looked at from its end
JOURNAL_LINES = 40000
SECONDS = 20.0
_PREFIX_BYTES = 1024
_NO_LOG: dict[str, Any] = {
    "kind": None, "path": None, "text": None, "modified": None, "gap": False, "cut": False, "rotated": False,
}  # fmt: skip


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
    evidence: Evidence,
    unit: dict[str, Any] | None,
    path: str | None,
    engine: Engine | None,
    errors: Errors,
    form: str | None = None,
) -> dict[str, Any]:
    """``{kind, path, text, modified, gap, cut, rotated, form}``: `kind` 'file', 'journal' or None.

    `text` None where there is no log to read.

    `gap`: a part of the log was left out, the middle of a long one. `cut`: the part is its end or its last start, which
    could not be read: what `text` does not say may stand there. `rotated`: the last start stands in the file that was
    rotated away. `form`: that of a file which a container's runtime writes (containers/container_log.py).
    """
    found = {**_NO_LOG, "form": form}
    path = path or _unit_file(unit)
    if path:
        _read_file(_File(evidence, path, form), engine, errors, found)
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


def read_container_source(
    evidence: Evidence, place: dict[str, Any], engine: Engine | None, errors: Errors
) -> dict[str, Any]:
    """As read_log_source, of the log at `place`, which container_log.find_log names."""
    if place["path"]:
        return read_log_source(evidence, None, place["path"], engine, errors, place["form"])
    command = place["command"]
    found = {**_NO_LOG, "form": place["form"]}
    if command:
        outcome = evidence.run(command, SECONDS)
        found.update(kind="journal" if command[0] == "journalctl" else "runtime", path=" ".join(command))
        if outcome.status == OK and not outcome.rc:
            text = outcome.text if found["kind"] == "journal" else merge_streams(outcome.text, outcome.error_text)
            found.update(text=decode_log(text, place["form"]), gap=outcome.truncated, cut=outcome.truncated)
        if not outcome.succeeded:
            errors.unsuccessful(outcome)
    return found


def name_commands(source: dict[str, Any], container: dict[str, Any] | None) -> dict[str, str | None]:
    """The commands by which a person sees the log, all of it (`show`) and its end (`show_end`); None without one.

    Of a container whose runtime keeps the log, the runtime's own: its file is not for reading.
    """
    path, kind = source["path"], source["kind"]
    if kind is None or path is None:
        return {"show": None, "show_end": None}
    kept = container is not None and source["form"] is not None
    if container is not None and kept:
        own = (container["name"] or "") if container["runtime"] in ("docker", "podman", "nerdctl") else ""
        program = container["runtime"] if container["runtime"] in ("docker", "podman", "nerdctl") else "crictl"
        named = own or container["id"][:12]
        return {"show": "%s logs %s 2>&1" % (program, named), "show_end": "%s logs --tail 100 %s" % (program, named)}
    if kind == "file":
        quoted = shlex.quote(path)
        return {"show": "tail -n +1 %s" % quoted, "show_end": "tail -n 100 %s" % quoted}
    limit = "--lines=%d" % JOURNAL_LINES
    return {"show": path.replace(limit, "--lines=all"), "show_end": path.replace(limit, "--lines=100")}


class _File:
    """A log file; `form` says how its lines are written, `own` whether it is an open file of a process, which has no
    neighbours: `/proc/PID/fd/2` is a file in a container, by a name that no link of the container leads astray."""

    def __init__(self, evidence: Evidence, path: str, form: str | None) -> None:
        self.evidence, self.path, self.form = evidence, path, form
        self.own = re.fullmatch(r"/proc/\d+/fd/\d+", path) is not None

    def decode(self, text: str) -> str:
        return decode_log(text, self.form)

    def read_tail(self, path: str) -> Outcome:
        return self.evidence.run(tail_command(path), SECONDS)


def _read_file(file: _File, engine: Engine | None, errors: Errors, found: dict[str, Any]) -> None:
    path, evidence = file.path, file.evidence
    found.update(kind="file", path=path)
    entry = None if file.own else evidence.list(posixpath.dirname(path)).entries.get(posixpath.basename(path))
    found["modified"] = entry.modified if entry else None
    head = evidence.read(path, PART_BYTES)
    if not head.ok and not head.truncated:
        errors.unanswered(head)
        return
    text = file.decode(head.text)
    if head.truncated:
        text = _long_file(file, engine, errors, found, text)
    if not _has_start(text, engine) and not file.own:
        before = file.read_tail(find_rotated(evidence, path, file.form))
        older = file.decode(before.text)
        if before.succeeded and _has_start(older, engine):
            text, found["rotated"] = older.rstrip("\n") + "\n" + text, True
        elif before.status in (DENIED, FAILED, TIMEOUT, HUNG) or before.truncated:
            errors.unsuccessful(before)
            found.update(gap=True, cut=True)
    found["text"] = text


def _long_file(file: _File, engine: Engine | None, errors: Errors, found: dict[str, Any], head: str) -> str:
    """The last start and the end of a file that is too long to read."""
    path, evidence = file.path, file.evidence
    tail = file.read_tail(path)
    if not tail.succeeded:
        errors.unsuccessful(tail)
        found.update(gap=True, cut=True)
        return head
    end = file.decode(tail.text.partition("\n")[2])
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
    # What a runtime writes before the text belongs to the line; the line before, which is cut, is left out.
    offset = max(0, values.number_in_name(offsets[-1]) - (_PREFIX_BYTES if file.form else 0))
    start = evidence.run(part_command(path, offset), SECONDS)
    if not start.succeeded:
        errors.unsuccessful(start)
        found["cut"] = True
    return (file.decode(start.text) if start.succeeded else head) + "\n" + end


def _has_start(text: str, engine: Engine | None) -> bool:
    return bool(UNIT_START.search(text)) or any(
        one.starts.search(text) for one in ([engine] if engine else ENGINES.values())
    )
