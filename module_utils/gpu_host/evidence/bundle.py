"""Bundles: evidence written down. One file in JSON Lines (optionally gzip), small enough to attach to a ticket.

The first line is the manifest::

    {"bundle": 1, "host": "gpu1", "captured_at": 1790000000.0, "uid": 0, "reconstructed": false, "asks": [],
     "note": ""}

Every further line is one answer of the evidence interface::

    {"read": "/proc/version", "status": "ok", "text": "Linux …"}          # "base64" instead of "text" for other bytes
    {"list": "/dev", "status": "ok", "entries": {"nvidia0": {"kind": "char", "major": 195, "minor": 0, "mode": 438}}}
    {"run": ["nvidia-smi", "-L"], "status": "ok", "rc": 0, "stdout": "…", "stderr": "", "seconds": 0.1}
    {"fetch": "http://127.0.0.1:8000/health", "method": "GET", "status": "ok", "code": 200, "text": "", "seconds": 0.1}

What a bundle does not hold is "not captured", which is never the same as "absent".
"""

from __future__ import annotations

import base64
import gzip
import itertools
import json
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, replace
from typing import Any

from . import fetching, secrets
from .interface import NOT_CAPTURED, OK, READ_LIMIT_BYTES, Entry, Evidence, Fetched, Listing, Outcome, Reading, Request

FORMAT = 1
# What captures ask for that those of former versions did not; a manifest names it, because a bundle that lacks the
# answer is else one that was made before.
ASKS = ("nccl_ras_status",)
# What a bundle may hold. The largest that were captured have some thousand records and 10 MiB; one command's output is
# cut at 16 MiB, which JSON can make six times as long.
SIZE_LIMIT_BYTES = 256 * 1024 * 1024
LINE_LIMIT_BYTES = 112 * 1024 * 1024
RECORD_LIMIT = 100_000  # and so many lines, blank ones too
VALUE_LIMIT = 500_000  # in one record
_PIECE_BYTES = 1024 * 1024
_SEPARATORS = (b",", b"[", b"{")
# To the end of the line where nothing closes it, so that no later quote is tried in vain.
_QUOTED = re.compile(rb'"[^"\\]*(?:\\.[^"\\]*)*(?:"|\\?\Z)', re.DOTALL)


class BundleError(ValueError):
    """A bundle that cannot be read; the message names file, line and what to do."""


class _Records:
    """Records by what was asked.

    Of several answers to the same question the first one is kept, of a file the longest: of two readings with different
    limits, the longer one serves both.
    """

    def __init__(self) -> None:
        self._kept: dict[tuple[str, ...], dict[str, Any]] = {}

    def keep(self, record: dict[str, Any]) -> None:
        key = _question_of(record)
        kept = self._kept.get(key)
        if kept is None or ("read" in record and _length_of(record) > _length_of(kept)):
            self._kept[key] = record

    def all(self) -> list[dict[str, Any]]:
        return list(self._kept.values())


def _question_of(record: dict[str, Any]) -> tuple[str, ...]:
    if "run" in record:
        return ("run", *record["run"])
    if "fetch" in record:
        return ("fetch", str(record.get("method", "GET")), record["fetch"], str(record.get("label", "")))
    kind = "read" if "read" in record else "list"
    return (kind, record[kind])


def _length_of(record: dict[str, Any]) -> int:
    return len(record.get("text") or record.get("base64") or "")


class RecordingEvidence(Evidence):
    """Passes every call on and keeps the answers, in order, as the records of a bundle."""

    def __init__(self, source: Evidence) -> None:
        self._source = source
        self._records = _Records()

    @property
    def records(self) -> Sequence[dict[str, Any]]:
        return self._records.all()

    @property
    def source_manifest(self) -> dict[str, Any]:
        """The manifest of a recording that is recorded anew; {} of a live host."""
        return dict(getattr(self._source, "manifest", None) or {})

    def paths(self) -> Sequence[str]:
        return self._source.paths()

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        reading = self._source.read(path, limit)
        self._records.keep(encode_reading(reading))
        return reading

    def list(self, path: str) -> Listing:
        listing = self._source.list(path)
        self._records.keep(encode_listing(listing))
        return listing

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        self._source.start(argv, timeout)

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        outcome = self._source.run(argv, timeout)
        self._records.keep(encode_outcome(outcome))
        return outcome

    def abandon(self) -> None:
        self._source.abandon()

    def unanswered(self) -> dict[str, str]:
        return self._source.unanswered()

    def answer_request(self, request: Request) -> Fetched:
        fetched = self._source.answer_request(request)
        self._records.keep(encode_fetched(fetched))
        return fetched

    def now(self) -> float:
        return self._source.now()


class BundleEvidence(Evidence):
    """A recorded host."""

    def __init__(self, manifest: dict[str, Any], records: Iterable[dict[str, Any]]) -> None:
        self.manifest = manifest
        self._reads: dict[str, Reading] = {}
        self._lists: dict[str, Listing] = {}
        self._runs: dict[tuple[str, ...], Outcome] = {}
        self._fetches: dict[str, Fetched] = {}
        for record in records:
            self.add(record)

    def add(self, record: dict[str, Any]) -> None:
        """Take one record in; a later one of the same kind and name replaces an earlier one."""
        if "read" in record:
            self.put(_decode_reading(record))
        elif "list" in record:
            self.put(_decode_listing(record))
        elif "run" in record:
            self.put(_decode_outcome(record))
        elif "fetch" in record:
            self.put(_decode_fetched(record))
        else:
            raise BundleError("a record has none of the keys read, list, run, fetch: %s" % sorted(record))

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        found = self._reads.get(path)
        if found is None:
            return Reading(path, NOT_CAPTURED, reason="the bundle does not hold this file")
        if found.data is not None and len(found.data) > limit:
            return Reading(path, found.status, found.data[:limit], True, found.reason)
        return found

    def list(self, path: str) -> Listing:
        return self._lists.get(path) or Listing(path, NOT_CAPTURED, reason="the bundle does not hold this directory")

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        key = tuple(argv)
        return self._runs.get(key) or Outcome(key, NOT_CAPTURED, reason="the bundle does not hold this command")

    def answer_request(self, request: Request) -> Fetched:
        missing = request.answered(NOT_CAPTURED, reason="the bundle does not hold this request")
        return self._fetches.get(missing.name) or missing

    def now(self) -> float:
        return float(self.manifest.get("captured_at") or 0.0)

    def put(self, answer: Reading | Listing | Outcome | Fetched) -> None:
        """Take one answer in; a later one to the same question replaces an earlier one."""
        if isinstance(answer, Reading):
            self._reads[answer.path] = answer
        elif isinstance(answer, Listing):
            self._lists[answer.path] = answer
        elif isinstance(answer, Outcome):
            self._runs[answer.argv] = answer
        else:
            self._fetches[answer.name] = answer

    def copy(self) -> BundleEvidence:
        """The same recorded host; a record added to one of the two does not change the other."""
        twin = BundleEvidence(dict(self.manifest), ())
        twin._reads, twin._lists, twin._runs = dict(self._reads), dict(self._lists), dict(self._runs)
        twin._fetches = dict(self._fetches)
        return twin

    def paths(self) -> Sequence[str]:
        """Every file that the bundle has an answer for."""
        return tuple(self._reads)

    def records(self) -> Sequence[dict[str, Any]]:
        """Every record, as `dump` takes them."""
        reads = [encode_reading(reading) for reading in self._reads.values()]
        lists = [encode_listing(listing) for listing in self._lists.values()]
        runs = [encode_outcome(outcome) for outcome in self._runs.values()]
        return reads + lists + runs + [encode_fetched(fetched) for fetched in self._fetches.values()]


def load_bundle(path: str) -> BundleEvidence:
    """Read the bundle at `path`; BundleError with file and line for anything that is not one."""
    try:
        with open(path, "rb") as handle:
            return _read(iter(lambda: handle.read(_PIECE_BYTES), b""), path)
    except OSError as error:
        raise BundleError("%s: %s. Check the path in gpu_host_bundle." % (path, error.strerror)) from error


def parse_bundle(data: bytes, path: str = "bundle") -> BundleEvidence:
    """The bundle in `data`; `path` is only named in messages."""
    return _read((data[start : start + _PIECE_BYTES] for start in range(0, len(data), _PIECE_BYTES)), path)


def _read(pieces: Iterator[bytes], path: str) -> BundleEvidence:
    """Piece by piece and line by line, so that what is too large is refused before it takes the controller's memory."""
    numbered = enumerate(_lines(_unpacked(pieces, path), path), start=1)
    number, first = next(numbered, (0, b""))
    if not number:
        raise BundleError("%s: the file is empty. Copy or capture it again." % path)
    if not first.startswith(b"{"):
        raise BundleError(
            "%s: not a bundle: neither gzip nor JSON. capture.yml writes one; name that file in gpu_host_bundle." % path
        )
    manifest = secrets.redact_strings(_json_object(first, path, 1))
    if manifest.get("bundle") != FORMAT:
        raise BundleError(
            "%s line 1: not a bundle manifest of format %d (found %r). Capture it again with capture.yml."
            % (path, FORMAT, manifest.get("bundle"))
        )
    if not isinstance(manifest.get("captured_at", 0.0), (int, float)):
        raise BundleError("%s line 1: captured_at is no number of seconds: %r." % (path, manifest["captured_at"]))
    bundle = BundleEvidence(manifest, ())
    for number, line in numbered:
        if not line.strip():
            continue
        record = _json_object(line, path, number)
        try:
            bundle.add(record)
        except (BundleError, KeyError, TypeError, ValueError, AttributeError) as error:
            raise BundleError("%s line %d: not an evidence record (%s)." % (path, number, error)) from error
    return bundle


def was_asked(evidence: Evidence, question: str) -> bool:
    """Whether a bundle is from a capture that asked `question` (of ASKS), so that an answer that it lacks was lost."""
    manifest = getattr(evidence, "manifest", None) or getattr(evidence, "source_manifest", None) or {}
    asks = manifest.get("asks")
    return isinstance(asks, list) and question in asks


def dump_bundle(manifest: dict[str, Any], records: Iterable[dict[str, Any]]) -> str:
    """The text of a bundle file: ASCII, so that file names in any encoding survive."""
    lines = [json.dumps({"bundle": FORMAT, **secrets.redact_strings(manifest)})]
    lines += [json.dumps(record) for record in records]
    return "\n".join(lines) + "\n"


def join_bundles(texts: Iterable[str]) -> tuple[str, int]:
    """One bundle of several of the same host, and how many records it holds.

    It has the manifest of the first, and every answer once. BundleError for a text that is no bundle.
    """
    records = _Records()
    manifest: dict[str, Any] = {}
    for text in texts:
        part = parse_bundle(text.encode("utf-8", "surrogatepass"), "the recorded evidence")
        manifest = manifest or part.manifest
        for record in part.records():
            records.keep(record)
    return dump_bundle(manifest, records.all()), len(records.all())


def _unpacked(pieces: Iterator[bytes], path: str) -> Iterator[bytes]:
    """The pieces as they were before gzip, each of bounded size; BundleError beyond SIZE_LIMIT_BYTES in all."""
    total = 0
    for piece in _decompressed(pieces, path):
        total += len(piece)
        if total > SIZE_LIMIT_BYTES:
            raise BundleError(
                "%s: larger than %s when unpacked; this is no bundle of ours." % (path, _size(SIZE_LIMIT_BYTES))
            )
        yield piece


def _decompressed(pieces: Iterator[bytes], path: str) -> Iterator[bytes]:
    first = next(pieces, b"")
    if first[:2] != b"\x1f\x8b":
        yield first
        yield from pieces
        return
    stream = zlib.decompressobj(wbits=31)
    try:
        for piece in itertools.chain((first,), pieces):
            waiting = piece
            while waiting and not stream.eof:
                yield stream.decompress(waiting, _PIECE_BYTES)
                waiting = stream.unconsumed_tail
        rest = b"" if stream.eof else stream.decompress(b"", _PIECE_BYTES)
        while rest:
            yield rest
            rest = b"" if stream.eof else stream.decompress(b"", _PIECE_BYTES)
    except zlib.error as error:
        raise BundleError("%s: damaged gzip data (%s)." % (path, error)) from error
    if not stream.eof:
        raise BundleError("%s: the gzip data ends early; the file is cut off. Copy or capture it again." % path)


def _lines(pieces: Iterator[bytes], path: str) -> Iterator[bytes]:
    """The lines, the last one too; nothing where there is nothing but blanks. BundleError at one beyond
    LINE_LIMIT_BYTES."""
    waiting: list[bytes] = []
    size, number, blank = 0, 1, True
    for piece in pieces:
        *ended, rest = piece.split(b"\n")
        for line in ended:
            whole = b"".join((*waiting, line)) if waiting else line
            waiting, size, number = [], 0, number + 1
            if number > RECORD_LIMIT:
                raise BundleError("%s: more than %d lines; this is no bundle of ours." % (path, RECORD_LIMIT))
            blank = blank and not whole.strip()
            if not blank:
                yield whole
        waiting.append(rest)
        size += len(rest)
        if size > LINE_LIMIT_BYTES:
            raise BundleError(
                "%s line %d: longer than %s; this is no bundle of ours." % (path, number, _size(LINE_LIMIT_BYTES))
            )
    last = b"".join(waiting)
    if last.strip() or not blank:
        yield last


def _size(limit: int) -> str:
    return "%d MiB" % (limit >> 20) if limit >= 1 << 20 else "%d bytes" % limit


def compress_bundle(text: str) -> bytes:
    """The gzip form of a bundle; the same text always gives the same bytes."""
    return gzip.compress(text.encode("utf-8"), mtime=0)


def _json_object(line: bytes, path: str, number: int) -> dict[str, Any]:
    # A value takes some hundred times the memory of the comma before it. Text does not, so what stands in quotes is not
    # counted; most lines need not be looked at for that.
    if (
        sum(map(line.count, _SEPARATORS)) > VALUE_LIMIT
        and sum(map(_QUOTED.sub(b"", line).count, _SEPARATORS)) > VALUE_LIMIT
    ):
        raise BundleError(
            "%s line %d: a record of more than %d values; this is no bundle of ours." % (path, number, VALUE_LIMIT)
        )
    try:
        value = json.loads(line.decode("utf-8", "replace"))
    except (ValueError, RecursionError) as error:
        raise BundleError("%s line %d: not JSON (%s). Is the file cut off?" % (path, number, error)) from error
    if not isinstance(value, dict):
        raise BundleError("%s line %d: not a JSON object." % (path, number))
    return value


def _encode_bytes(data: bytes, name: str) -> dict[str, str]:
    try:
        return {name: data.decode("utf-8")}
    except UnicodeDecodeError:
        encoded = base64.b64encode(data).decode("ascii")
        return {"base64" if name == "text" else name + "_base64": encoded}


def decode_bytes(record: dict[str, Any], name: str) -> bytes | None:
    encoded = record.get("base64" if name == "text" else name + "_base64")
    if encoded is not None:
        return base64.b64decode(encoded, validate=True)
    text = record.get(name)
    return None if text is None else text.encode("utf-8", "surrogatepass")


def _without_defaults(record: dict[str, Any]) -> dict[str, Any]:
    return {
        key: value
        for key, value in record.items()
        if not (value is None or value is False or value == "") or key in ("text", "stdout")
    }


def encode_reading(reading: Reading) -> dict[str, Any]:
    record: dict[str, Any] = {
        "read": reading.path,
        "status": reading.status,
        "truncated": reading.truncated,
        "reason": secrets.redact_strings(reading.reason),
    }
    if reading.data is not None:
        record.update(_encode_bytes(secrets.redact_file(reading.path, reading.data), "text"))
    return _without_defaults(record)


def _decode_reading(record: dict[str, Any]) -> Reading:
    path, data = str(record["read"]), decode_bytes(record, "text")
    if record["status"] == OK and data is None:
        raise ValueError("status ok without content")
    # Masked when it was captured; a bundle from another hand may not be.
    data = None if data is None else secrets.redact_file(path, data)
    return Reading(
        path,
        str(record["status"]),
        data,
        bool(record.get("truncated")),
        secrets.redact_strings(str(record.get("reason", ""))),
    )


def encode_listing(listing: Listing) -> dict[str, Any]:
    # A link's target may be an address with a password; a name stays, since it is what the next call asks for.
    entries = {
        name: _without_defaults({**asdict(entry), "target": secrets.redact_strings(entry.target)})
        for name, entry in listing.entries.items()
    }
    record = {"list": listing.path, "status": listing.status, "reason": secrets.redact_strings(listing.reason)}
    return {**_without_defaults(record), "entries": entries} if listing.ok else _without_defaults(record)


def _decode_listing(record: dict[str, Any]) -> Listing:
    entries = {name: Entry(**entry) for name, entry in record.get("entries", {}).items()}
    entries = {
        name: replace(entry, target=secrets.redact_strings(entry.target)) if entry.target else entry
        for name, entry in entries.items()
    }
    return Listing(record["list"], record["status"], entries, secrets.redact_strings(record.get("reason", "")))


def encode_outcome(outcome: Outcome) -> dict[str, Any]:
    record: dict[str, Any] = {
        "run": list(outcome.argv),
        "status": outcome.status,
        "reason": secrets.redact_strings(outcome.reason),
        "truncated": outcome.truncated,
    }
    record.update(_encode_bytes(secrets.redact_text(outcome.stdout), "stdout"))
    record.update(_encode_bytes(secrets.redact_text(outcome.stderr), "stderr"))
    return {**_without_defaults(record), "rc": outcome.rc, "seconds": outcome.seconds}


def _decode_outcome(record: dict[str, Any]) -> Outcome:
    return Outcome(
        tuple(record["run"]),
        record["status"],
        rc=record.get("rc"),
        stdout=secrets.redact_text(decode_bytes(record, "stdout") or b""),
        stderr=secrets.redact_text(decode_bytes(record, "stderr") or b""),
        seconds=float(record.get("seconds") or 0.0),
        truncated=bool(record.get("truncated")),
        reason=secrets.redact_strings(record.get("reason", "")),
    )


def encode_fetched(fetched: Fetched) -> dict[str, Any]:
    data = fetching.redact_answer(fetched.method, fetched.data)
    record = {"fetch": fetched.url, **asdict(fetched), **_encode_bytes(data, "text")}
    record["reason"] = secrets.redact_strings(fetched.reason)
    del record["url"], record["data"]
    return _without_defaults(record)


def _decode_fetched(record: dict[str, Any]) -> Fetched:
    method, data = str(record.get("method", "GET")), decode_bytes(record, "text") or b""
    return Fetched(
        method,
        str(record["fetch"]),
        str(record["status"]),
        record.get("code"),
        fetching.redact_answer(method, data),
        str(record.get("content_type", "")),
        float(record.get("seconds") or 0.0),
        record.get("first_byte_s"),
        bool(record.get("truncated")),
        str(record.get("label", "")),
        secrets.redact_strings(str(record.get("reason", ""))),
    )
