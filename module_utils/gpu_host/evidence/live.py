"""The evidence of the host that this process runs on."""

from __future__ import annotations

import contextlib
import os
import stat
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace

from . import bounded_reads, commands, contained, fetching, secrets
from .interface import (
    FAILED,
    HUNG,
    OK,
    READ_LIMIT_BYTES,
    TIMEOUT,
    Entry,
    Evidence,
    Fetched,
    Listing,
    Outcome,
    Reading,
    Request,
    status_of,
)


class LiveEvidence(Evidence):
    """The host that this process runs on. ``root`` prefixes every path (a mounted file system, a test tree).

    A program that hung or ran out of its time once is not asked again: each further command would cost its whole time
    as well. ``unanswered`` are those of which another module of the same run knows that already.
    """

    def __init__(self, root: str = "/", unanswered: Mapping[str, str] | None = None) -> None:
        self._root = root.rstrip("/")
        self._unanswered: dict[str, str] = dict(unanswered or {})
        self._running: dict[tuple[str, ...], commands.Command | Outcome] = {}
        self._bounded = bounded_reads.BoundedReader()

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        bounded = bounded_reads.NEEDED.match(path)
        if bounded:
            return self._read_bounded(path, limit, bounded["pid"])
        try:
            descriptor = self._open(path)
        except (OSError, ValueError) as error:
            return self._unread(path, error)
        try:
            data, truncated = _read_limited(descriptor, limit)
        except OSError as error:
            return self._unread(path, error)
        finally:
            os.close(descriptor)
        return Reading(path, OK, secrets.redact_file(path, data), truncated)

    def _open(self, path: str) -> int:
        of_container = contained.ROOT.fullmatch(path)
        if of_container:
            with contained.ContainedPath(self._root + of_container["root"], of_container["inside"]) as place:
                return place.open_file()
        # O_NONBLOCK: a FIFO or a tty in a strange place must not stop us.
        return os.open(self._root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)

    def _read_bounded(self, path: str, limit: int, pid: str | None) -> Reading:
        try:
            data = self._bounded.read(self._root + path, limit)
        except bounded_reads.ReadTimeout as error:
            whose = ": process %s %s" % (pid, commands.describe_stuck(int(pid))) if pid else ""
            return Reading(path, TIMEOUT, reason="%s%s" % (error, whose))
        except OSError as error:
            return self._unread(path, error)
        return Reading(path, OK, secrets.redact_file(path, data[:limit]), len(data) > limit)

    @staticmethod
    def _unread(path: str, error: OSError | ValueError) -> Reading:
        if isinstance(error, ValueError):
            return Reading(path, FAILED, reason=str(error))
        return Reading(path, status_of(error), reason=error.strerror or str(error))

    def list(self, path: str) -> Listing:
        of_container = contained.ROOT.fullmatch(path)
        if of_container:
            return self._list_contained(path, of_container["root"], of_container["inside"])
        full = self._root + path
        try:
            names = sorted(os.listdir(full))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            status = status_of(error) if isinstance(error, OSError) else FAILED
            return Listing(path, status, reason=getattr(error, "strerror", None) or str(error))
        entries = {}
        for name in names:
            try:
                entries[name] = _entry(os.path.join(full, name))
            except OSError:
                continue  # it went away between the two calls, as in /proc
        return Listing(path, OK, entries)

    def _list_contained(self, path: str, root: str, inside: str) -> Listing:
        entries = {}
        try:
            with contained.ContainedPath(self._root + root, inside) as place:
                directory = place.open_directory()
            try:
                for name in sorted(os.listdir(directory)):
                    with contextlib.suppress(OSError):
                        entries[name] = _entry(name, directory)
            finally:
                os.close(directory)
        except (OSError, ValueError) as error:
            status = status_of(error) if isinstance(error, OSError) else FAILED
            return Listing(path, status, reason=getattr(error, "strerror", None) or str(error))
        return Listing(path, OK, entries)

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        key = tuple(argv)
        if key not in self._running and commands.name_program(key) not in self._unanswered:
            self._running[key] = commands.Command.begin(key, timeout)

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        key = tuple(argv)
        program = commands.name_program(key)
        before = self._unanswered.get(program)
        self.start(key, timeout)
        child = self._running.pop(key, None)
        if child is None:
            return Outcome(key, TIMEOUT, reason="not asked again: %s" % before)
        if isinstance(child, Outcome):
            return child
        outcome = child.finish(patient=before is None)
        if outcome.status not in (TIMEOUT, HUNG):
            return outcome
        if before is not None:
            return replace(outcome, reason="not waited for: %s" % before)
        self._unanswered[program] = "%s: %s" % (" ".join(key), outcome.reason)
        return outcome

    def unanswered(self) -> dict[str, str]:
        return dict(self._unanswered)

    def abandon(self) -> None:
        for key, child in self._running.items():
            if isinstance(child, commands.Command):
                child.end(patient=commands.name_program(key) not in self._unanswered)
        self._running.clear()
        self._bounded.close()

    def answer_request(self, request: Request) -> Fetched:
        return fetching.fetch_answer(request)

    def now(self) -> float:
        return time.time()


def _read_limited(descriptor: int, limit: int) -> tuple[bytes, bool]:
    chunks: list[bytes] = []
    left = limit + 1
    while left > 0:
        chunk = os.read(descriptor, min(left, 1 << 20))
        if not chunk:
            break
        chunks.append(chunk)
        left -= len(chunk)
    data = b"".join(chunks)
    return data[:limit], len(data) > limit


def _entry(path: str, directory: int | None = None) -> Entry:
    """The entry at `path`, of the open `directory` where it has none of its own."""
    info = os.stat(path, dir_fd=directory, follow_symlinks=False)
    kinds = (
        (stat.S_ISLNK, "link"),
        (stat.S_ISDIR, "dir"),
        (stat.S_ISREG, "file"),
        (stat.S_ISCHR, "char"),
        (stat.S_ISBLK, "block"),
    )
    kind = next((name for test, name in kinds if test(info.st_mode)), "other")
    device = kind in ("char", "block")
    return Entry(
        kind=kind,
        target=secrets.redact_strings(os.readlink(path, dir_fd=directory)) if kind == "link" else None,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        major=os.major(info.st_rdev) if device else None,
        minor=os.minor(info.st_rdev) if device else None,
        size=info.st_size if kind == "file" else None,
        modified=info.st_mtime,
    )
