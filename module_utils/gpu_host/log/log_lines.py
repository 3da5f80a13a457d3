"""Lines of a kernel log in every form that dmesg, the journal, syslog and /dev/kmsg write: the time stamp off, the text
kept."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from ..evidence import values

LINE_LIMIT = 2048  # bytes; what follows in a longer line is of no use to anyone

_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
_CONTROLS = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
# What may stand before the text, tried in turn. Each is anchored and without nested repeats: time grows with the length
# only.
_PRIORITY = re.compile(r"<\d{1,3}>|[a-z]{2,8} {0,4}:[a-z]{2,6} {0,4}: ")  # dmesg -r, dmesg -x
_KMSG = re.compile(
    r"\d{1,4},\d+,(?P<usec>\d+),[^;]{0,80};"
)  # /dev/kmsg: priority, sequence, microseconds since boot, flags
_UNIX = re.compile(r"(?P<epoch>\d{9,11}\.\d{6}) ")  # journalctl -o short-unix
_ISO = re.compile(r"(?P<text>\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d(?:[.,]\d+)?(?:Z|[+-]\d\d:?\d\d)?) ")
_SYSLOG = re.compile(r"(?P<text>[A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d) ")
_SENDER = re.compile(r"\S{1,255} kernel: ?")
_BOOT = re.compile(r"\[ {0,8}(?P<seconds>\d{1,10}\.\d{1,9})(?: <[ \d.]{1,20}>)?\](?:\[ {0,8}[TC]\d+\])? ?")
_CTIME = re.compile(r"\[(?P<text>[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} \d\d:\d\d:\d\d \d{4})\] ?")
_HUMAN = re.compile(r"\[(?P<text>[A-Z][a-z]{2} ?\d{1,2} \d\d:\d\d)\] ?")  # dmesg -H, the first line of a minute
_DELTA = re.compile(
    r"\[ {0,8}\+ {0,8}\d{1,10}\.\d{1,9}\] ?|\[<[ \d.]{1,20}>\] ?"
)  # dmesg -H and -d, since the line before


@dataclass(frozen=True)
class Line:
    """One line: `text` without stamp and controls; `when` the stamp as it stands, or as UTC where that can be computed."""

    text: str
    when: str | None


def utc(epoch: float) -> str:
    """Seconds since 1970 as 2026-06-20T13:18:18Z; the number itself when it is no time of this age."""
    found = values.moment(epoch)
    return "%.0f" % epoch if found is None else found.strftime("%Y-%m-%dT%H:%M:%SZ")


def lines(data: bytes, hint: re.Pattern[bytes], boot_time: float | None) -> Iterator[Line]:
    """The lines of `data` that `hint` finds, in order. `boot_time` (seconds since 1970) turns stamps since boot into
    UTC.

    A line without a stamp (a continuation) has the stamp of the line before it.
    """
    when: str | None = None
    start, size = 0, len(data)
    while start < size:
        end = data.find(b"\n", start)
        end = size if end < 0 else end
        raw = data[start : min(end, start + LINE_LIMIT)]
        start = end + 1
        if hint.search(raw):
            line = parse(raw.decode("utf-8", "replace"), boot_time, when)
            when = line.when
            yield line


def parse(raw: str, boot_time: float | None = None, before: str | None = None) -> Line:
    """One line of a log. `before` is the stamp that a line without one inherits."""
    text = raw if raw.isprintable() else _CONTROLS.sub(" ", _COLOURS.sub("", raw))
    boot = _BOOT.match(text)  # by far the most frequent form, tried first
    if boot:
        return Line(text[boot.end() :].strip(), _since_boot(float(boot["seconds"]), boot_time))
    when: str | None = None
    rest = _skip(_PRIORITY, text)
    kmsg = _KMSG.match(rest)
    if kmsg:
        return Line(rest[kmsg.end() :].strip(), _since_boot(int(kmsg["usec"][:18]) / 1e6, boot_time))
    unix = _UNIX.match(rest)
    clock = unix or _ISO.match(rest) or _SYSLOG.match(rest)
    if clock:
        when = utc(float(unix["epoch"])) if unix else clock["text"]
        rest = _skip(_SENDER, rest[clock.end() :])
    boot = _BOOT.match(rest)
    if boot:
        return Line(rest[boot.end() :].strip(), when or _since_boot(float(boot["seconds"]), boot_time))
    absolute = _CTIME.match(rest) or _HUMAN.match(rest)
    if absolute:
        return Line(rest[absolute.end() :].strip(), absolute["text"])
    return Line(_skip(_DELTA, rest).strip(), when or before)


def _skip(pattern: re.Pattern[str], text: str) -> str:
    match = pattern.match(text)
    return text[match.end() :] if match else text


def _since_boot(seconds: float, boot_time: float | None) -> str:
    return "%.0f s after boot" % seconds if boot_time is None else utc(boot_time + seconds)
