"""What a bundle holds, for the person who is about to give it away: a summary, and every record as text."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from typing import Any

from . import bundle as bundles
from .secrets import MASK

_WIDTH = 16  # bytes in a line of a record that is no text
_SHOWN_BYTES = 4096


def summarise_bundle(text: str) -> list[str]:
    """Sentences on what the bundle in `text` holds. BundleError where it is none."""
    found = bundles.parse_bundle(text.encode("utf-8", "surrogatepass"))
    records = found.records()
    kinds = Counter(_kind_of(record) for record in records)
    counted = [
        "%d %s" % (kinds[kind], name if kinds[kind] != 1 else one)
        for kind, name, one in (
            ("read", "files", "file"),
            ("list", "directories", "directory"),
            ("run", "commands", "command"),
            ("fetch", "requests to a server", "request to a server"),
        )
        if kinds[kind]
    ]
    folders = Counter("/" + record["read"].split("/")[1] for record in records if _kind_of(record) == "read")
    programs = sorted({str(record["run"][0]).rpartition("/")[2] for record in records if _kind_of(record) == "run"})
    masked = text.count(MASK.decode())
    lines = ["It holds %s." % (", ".join(counted) or "nothing")]
    if folders:
        lines.append("Files: %s." % ", ".join("%s (%d)" % item for item in sorted(folders.items())))
    if programs:
        lines.append("Commands: %s." % ", ".join(programs))
    logs = sorted(
        record["read"] for record in records if _kind_of(record) == "read" and record["read"].endswith(".log")
    )
    if logs:
        lines.append("Logs of a server, of which lines may quote what users sent: %s." % ", ".join(logs))
    lines.append("%d values in it are masked because they stand where a secret stands or look like one." % masked)
    if found.manifest.get("anonymous"):
        lines.append("Names, addresses, serial numbers and ids are replaced. The name of the file is not.")
    else:
        lines.append("Names, addresses, serial numbers and UUIDs stand in it; -e capture_anonymous=true replaces them.")
    return lines


def show_bundle(found: bundles.BundleEvidence) -> Iterator[str]:
    """The lines of every record: what was asked, how it ended, and what came, as text."""
    yield "manifest"
    for key, value in found.manifest.items():
        yield "  %s: %s" % (key, value)
    for record in sorted(found.records(), key=_title_of):
        yield ""
        yield "== %s" % _title_of(record)
        yield from ("  " + _printable(line) for line in _content_of(record))


def _kind_of(record: dict[str, Any]) -> str:
    return next(kind for kind in ("read", "list", "run", "fetch") if kind in record)


def _title_of(record: dict[str, Any]) -> str:
    kind = _kind_of(record)
    asked = " ".join(record[kind]) if kind == "run" else str(record[kind])
    if kind == "fetch":
        asked = "%s %s %s" % (record.get("method", "GET"), asked, record.get("label", ""))
    ended = [record["status"]] + [
        "%s %s" % (key, record[key]) for key in ("rc", "code") if record.get(key) not in (None, 0)
    ]
    ended += ["cut off"] if record.get("truncated") else []
    ended += [record["reason"]] if record.get("reason") else []
    return "%s %s (%s)" % (kind, asked.strip(), ", ".join(map(str, ended)))


def _content_of(record: dict[str, Any]) -> Iterable[str]:
    for name, entry in (record.get("entries") or {}).items():
        yield "%s: %s" % (name, ", ".join("%s %s" % item for item in entry.items()))
    for name, label in (("text", ""), ("stdout", ""), ("stderr", "stderr: ")):
        data = bundles.decode_bytes(record, name)
        if not data:
            continue
        if _is_text(data):
            lines = data.replace(b"\0", b"\n").decode("utf-8", "backslashreplace").splitlines()
            yield from (label + line for line in lines)
        else:
            yield from _dump(data)


def _is_text(data: bytes) -> bool:
    """Whether nearly every byte can be read; a command line has its words between NULs."""
    readable = sum(byte >= 32 or byte in (0, 9, 10, 13, 27) for byte in data[:_SHOWN_BYTES])
    zeros = data[:_SHOWN_BYTES].count(0)
    return readable > 0.9 * len(data[:_SHOWN_BYTES]) and zeros < 0.3 * len(data[:_SHOWN_BYTES])


def _dump(data: bytes) -> Iterator[str]:
    for start in range(0, min(len(data), _SHOWN_BYTES), _WIDTH):
        part = data[start : start + _WIDTH]
        letters = "".join(chr(byte) if 32 <= byte < 127 else "." for byte in part)
        yield "%04x  %-47s  %s" % (start, part.hex(" "), letters)
    if len(data) > _SHOWN_BYTES:
        yield "and %d bytes more" % (len(data) - _SHOWN_BYTES)


def _printable(line: str) -> str:
    """Without the control characters with which a captured text could change the terminal."""
    return "".join(letter if letter.isprintable() or letter == "\t" else "\\x%02x" % ord(letter) for letter in line)
