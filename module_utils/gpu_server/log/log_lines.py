"""Lines of a server's log, their time, and nothing unbounded.

They are split where a terminal would: progress bars use carriage returns.
"""

from __future__ import annotations

import datetime
import re
from collections.abc import Iterator
from dataclasses import dataclass

from ...gpu_host.evidence import values

LINE_LIMIT = 4000  # characters kept of one line: a line of a megabyte is a dumped prompt or binary junk
_STAMPS = (
    # journalctl -o short-unix
    ("unix", re.compile(r"^(\d{9,11}\.\d{6}) \S+ [^:\[]*\[?\d*\]?: ?")),
    # [2026-02-19 01:25:37 TP0] and 2026-06-16 20:47:04,014 -
    ("full", re.compile(r"(?:^|[\[ (])(\d{4})-(\d{2})-(\d{2})[ T](\d{2}):(\d{2}):(\d{2})")),
    # [12/20/2025-04:20:04] [TRT-LLM] [I]: the month first
    ("month_first", re.compile(r"^\[(\d{2})/(\d{2})/(\d{4})-(\d{2}):(\d{2}):(\d{2})\]")),
    # INFO 05-15 03:30:49 [utils.py:306]
    ("no_year", re.compile(r"\b(?:DEBUG|INFO|WARNING|ERROR|CRITICAL) (\d{2})-(\d{2}) (\d{2}):(\d{2}):(\d{2})\b")),
)
# What the unit of the role inference_server writes before it starts the engine. Some engines write no time, and one
# file holds all starts.
UNIT_START = re.compile(r"\[[0-9-]+ [0-9:]+\] systemd starts [^ ]+\.service")
# What podman prints of a container that it removes, into the log of the unit that runs it.
_CONTAINER = re.compile(r"[0-9a-f]{64}")
_ANSI = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")


@dataclass(frozen=True)
class Line:
    """`at`: seconds since the epoch, the time of the line or of the last one before it that had one.

    `own`: whether it is its own.
    """

    number: int
    text: str
    at: float | None
    own: bool


def parse_lines(text: str, now: float, utc_offset_s: int = 0) -> Iterator[Line]:
    """The lines of `text`.

    Times without a zone are `utc_offset_s` east of UTC; without a year, in the year before `now`.
    """
    last: float | None = None
    for number, raw in enumerate(re.split(r"\r\n|\n|\r", text), start=1):
        line = _ANSI.sub("", raw[:LINE_LIMIT]).rstrip()
        if not line or _CONTAINER.fullmatch(line):
            continue
        at, line = _time(line, now, utc_offset_s)
        last = at if at is not None else last
        yield Line(number, line, last, at is not None)


def _time(line: str, now: float, offset: int) -> tuple[float | None, str]:
    head = line[:200]
    for kind, pattern in _STAMPS:
        match = pattern.search(head)
        if not match:
            continue
        if kind == "unix":
            return values.decimal_number(match.group(1)), line[match.end() :]
        try:
            parts = [values.number_in_name(part) for part in match.groups()]
            if kind == "no_year":
                return _in_the_past(parts, now, offset), line
            if kind == "month_first":
                parts = [parts[2], *parts[:2], *parts[3:]]
            return _epoch(parts, offset), line
        except ValueError:  # 31 February, hour 25: no time
            return None, line
    return None, line


def _epoch(parts: list[int], offset: int) -> float:
    return datetime.datetime(*parts, tzinfo=datetime.timezone.utc).timestamp() - offset  # type: ignore[arg-type,misc]


def _in_the_past(parts: list[int], now: float, offset: int) -> float:
    year = datetime.datetime.fromtimestamp(now, datetime.timezone.utc).year
    at = _epoch([year, *parts], offset)
    return at if at <= now + 86400 else _epoch([year - 1, *parts], offset)
