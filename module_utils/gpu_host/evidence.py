"""Evidence: what a host shows, asked for in four ways: ``read`` a file, ``list`` a directory, ``run`` a command, ``fetch`` from a server on it.

A live host and a recorded one (``bundle.py``) answer the same calls with the same types, so a reader cannot tell
them apart. No call ever raises for what it finds: the status of the answer says what happened.
"""
from __future__ import annotations

import contextlib
import os
import resource
import shutil
import signal
import stat
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import IO

from . import bounded_reads, secrets

# Statuses that every answer shares.
OK = "ok"
ABSENT = "absent"  # the file, directory or program is not there
DENIED = "denied"  # it is there and this user may not have it
FAILED = "failed"  # the kernel refused for another reason; `reason` says which
NOT_CAPTURED = "not_captured"  # a bundle does not hold it: neither there nor absent
TIMEOUT = "timeout"  # a command that was ended by us after its time limit, a file of a process that the kernel did not give in time
# Status of a command only.
HUNG = "hung"  # could not even be killed (uninterruptible sleep in the kernel); left behind

READ_LIMIT_BYTES = 4 * 1024 * 1024
OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
# A child that writes more than this is stopped by the kernel (SIGXFSZ) instead of filling the disk.
CHILD_FILE_LIMIT_BYTES = 64 * 1024 * 1024
KILL_GRACE_SECONDS = 2.0
# Programs that administrators expect although an ordinary user's PATH lacks their directory.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"


@dataclass(frozen=True)
class Reading:
    """The bytes of one file. ``data`` is None unless ``status`` is ``ok``; ``truncated`` if the file was longer."""

    path: str
    status: str
    data: bytes | None = None
    truncated: bool = False
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def text(self) -> str:
        """The content as UTF-8, junk bytes replaced; the empty string when there is none."""
        return (self.data or b"").decode("utf-8", "replace")


@dataclass(frozen=True)
class Entry:
    """One directory entry as lstat() shows it. ``target`` of a link as readlink() gives it; major/minor of a device."""

    kind: str  # file, dir, link, char, block, other
    target: str | None = None
    mode: int | None = None  # permission bits, 0o666
    uid: int | None = None
    gid: int | None = None
    major: int | None = None
    minor: int | None = None
    size: int | None = None
    modified: float | None = None  # seconds since the epoch


@dataclass(frozen=True)
class Listing:
    """The entries of one directory, by name; empty unless ``status`` is ``ok``."""

    path: str
    status: str
    entries: dict[str, Entry] = field(default_factory=dict)
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status == OK


@dataclass(frozen=True)
class Outcome:
    """One finished (or abandoned) command. ``ok`` means that it ran to its end, whatever its exit code ``rc``."""

    argv: tuple[str, ...]
    status: str
    rc: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    truncated: bool = False
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True)
class Fetched:
    """One HTTP answer. ``ok`` means that there was a whole answer, of any `code`; ``absent`` that nothing listens there.

    `label` tells repeated requests to one address apart. `first_byte_s`: seconds until the first byte of the body.
    """

    method: str
    url: str
    status: str
    code: int | None = None
    data: bytes = b""
    content_type: str = ""
    seconds: float = 0.0
    first_byte_s: float | None = None
    truncated: bool = False
    label: str = ""
    reason: str = ""

    @property
    def ok(self) -> bool:
        return self.status == OK

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")

    @property
    def name(self) -> str:
        """What was asked, as one line: the key in a bundle."""
        return " ".join(word for word in (self.method, self.url, self.label) if word)


class Evidence:
    """The interface. ``start`` only hints that a ``run`` with the same argv will follow, so that commands overlap."""

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        raise NotImplementedError

    def list(self, path: str) -> Listing:
        raise NotImplementedError

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        """Begin a command whose result a later ``run`` with the same argv collects."""

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        raise NotImplementedError

    def abandon(self) -> None:
        """End every command that was started and whose result nobody collected."""

    def fetch(
        self, method: str, url: str, body: bytes | None = None, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0, label: str = ""
    ) -> Fetched:
        """One HTTP request. `headers` may hold a key: they are never recorded."""
        raise NotImplementedError

    def now(self) -> float:
        """Seconds since the epoch, on the host, when the evidence was taken."""
        raise NotImplementedError


def _status_of(error: OSError) -> str:
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ABSENT
    if isinstance(error, PermissionError):
        return DENIED
    return FAILED


class LiveEvidence(Evidence):
    """The host that this process runs on. ``root`` prefixes every path (a mounted file system, a test tree)."""

    def __init__(self, root: str = "/") -> None:
        self._root = root.rstrip("/")
        self._running: dict[tuple[str, ...], _Child | Outcome] = {}
        self._bounded = bounded_reads.BoundedReader()

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        process = bounded_reads.NEEDED.match(path)
        if process:
            return self._read_of_process(path, limit, int(process[1]))
        try:
            # O_NONBLOCK: a FIFO or a tty in a strange place must not stop us.
            descriptor = os.open(self._root + path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        except (OSError, ValueError) as error:
            return self._unread(path, error)
        try:
            data, truncated = _read_limited(descriptor, limit)
        except OSError as error:
            return self._unread(path, error)
        finally:
            os.close(descriptor)
        return Reading(path, OK, secrets.redact_file(path, data), truncated)

    def _read_of_process(self, path: str, limit: int, pid: int) -> Reading:
        try:
            data = self._bounded.read(self._root + path, limit)
        except bounded_reads.ReadTimeout as error:
            return Reading(path, TIMEOUT, reason="%s: process %d %s" % (error, pid, describe_stuck(pid)))
        except OSError as error:
            return self._unread(path, error)
        return Reading(path, OK, secrets.redact_file(path, data[:limit]), len(data) > limit)

    @staticmethod
    def _unread(path: str, error: OSError | ValueError) -> Reading:
        if isinstance(error, ValueError):
            return Reading(path, FAILED, reason=str(error))
        return Reading(path, _status_of(error), reason=error.strerror or str(error))

    def list(self, path: str) -> Listing:
        full = self._root + path
        try:
            names = sorted(os.listdir(full))
        except (OSError, ValueError) as error:  # ValueError: a NUL in the path
            status = _status_of(error) if isinstance(error, OSError) else FAILED
            return Listing(path, status, reason=getattr(error, "strerror", None) or str(error))
        entries = {}
        for name in names:
            try:
                entries[name] = _entry(os.path.join(full, name))
            except OSError:
                continue  # it went away between the two calls, as in /proc
        return Listing(path, OK, entries)

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        key = tuple(argv)
        if key not in self._running:
            self._running[key] = _Child.begin(key, timeout)

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        key = tuple(argv)
        self.start(key, timeout)
        child = self._running.pop(key)
        return child if isinstance(child, Outcome) else child.finish()

    def abandon(self) -> None:
        for child in self._running.values():
            if isinstance(child, _Child):
                child.end()
        self._running.clear()
        self._bounded.close()

    def fetch(
        self, method: str, url: str, body: bytes | None = None, *, headers: Mapping[str, str] | None = None, timeout: float = 10.0, label: str = ""
    ) -> Fetched:
        from . import fetching  # it needs the names above  # noqa: PLC0415

        return fetching.fetch(method, url, body, headers=headers or {}, timeout=timeout, label=label)

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


def _entry(path: str) -> Entry:
    info = os.lstat(path)
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
        target=os.readlink(path) if kind == "link" else None,
        mode=stat.S_IMODE(info.st_mode),
        uid=info.st_uid,
        gid=info.st_gid,
        major=os.major(info.st_rdev) if device else None,
        minor=os.minor(info.st_rdev) if device else None,
        size=info.st_size if kind == "file" else None,
        modified=info.st_mtime,
    )


class _Child:
    """A command under a time limit. Output goes to files, not pipes: a pipe held open by an unkillable grandchild
    would hang us as surely as the driver hung it."""

    def __init__(self, argv: tuple[str, ...], process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes], timeout: float) -> None:
        self._argv = argv
        self._process = process
        self._out = out
        self._err = err
        self._timeout = timeout
        self._began = time.monotonic()

    @classmethod
    def begin(cls, argv: tuple[str, ...], timeout: float) -> _Child | Outcome:
        """The running child, or the outcome that there is none."""
        path = _search_path()
        program = shutil.which(argv[0], path=path)
        if program is None:
            return Outcome(argv, ABSENT, reason="no program %s on the search path" % argv[0])
        out, err = tempfile.TemporaryFile(), tempfile.TemporaryFile()  # noqa: SIM115 finish() or end() closes them
        environment = dict(os.environ, LC_ALL="C", LANGUAGE="", PATH=path)
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=_limit_file_size,  # noqa: PLW1509 one system call, and no thread of ours holds a lock
            )
        except (OSError, ValueError, subprocess.SubprocessError) as error:  # not for this processor, too long, no more processes
            out.close()
            err.close()
            status = _status_of(error) if isinstance(error, OSError) else FAILED
            reason = "%s cannot be run: %s" % (program, getattr(error, "strerror", None) or error)
            return Outcome(argv, DENIED if status == DENIED else FAILED, reason=reason)
        return cls(argv, process, out, err, timeout)

    def finish(self) -> Outcome:
        status, reason = OK, ""
        try:
            self._process.wait(max(0.0, self._timeout - (time.monotonic() - self._began)))
        except subprocess.TimeoutExpired:
            status, reason = self._kill()
        stdout, cut_out = _file_content(self._out)
        stderr, cut_err = _file_content(self._err)
        return Outcome(
            self._argv,
            status,
            rc=self._process.returncode,
            stdout=secrets.redact_text(stdout),
            stderr=secrets.redact_text(stderr),
            seconds=round(time.monotonic() - self._began, 3),
            truncated=cut_out or cut_err,
            reason=reason,
        )

    def end(self) -> None:
        """Kill the child and forget its output."""
        self._kill()
        self._out.close()
        self._err.close()

    def _kill(self) -> tuple[str, str]:
        pid = self._process.pid
        with contextlib.suppress(OSError):  # gone already, or another user's by setuid
            os.killpg(pid, signal.SIGKILL)
        try:
            self._process.wait(KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return HUNG, "pid %d ignores SIGKILL after %g s; %s" % (pid, self._timeout, describe_stuck(pid))
        return TIMEOUT, "no answer within %g s" % self._timeout


def _search_path() -> str:
    """PATH and where administrators' programs are. Nothing relative: the working directory must not decide what runs."""
    named = [directory for directory in os.environ.get("PATH", "").split(":") if directory.startswith("/")]
    return ":".join([*named, SYSTEM_PATH])


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHILD_FILE_LIMIT_BYTES, CHILD_FILE_LIMIT_BYTES))


def _file_content(handle: IO[bytes]) -> tuple[bytes, bool]:
    with handle:
        handle.seek(0)
        data = handle.read(OUTPUT_LIMIT_BYTES + 1)
    return data[:OUTPUT_LIMIT_BYTES], len(data) > OUTPUT_LIMIT_BYTES


def describe_stuck(pid: int) -> str:
    """Where in the kernel a process waits, in one line, from /proc/PID/{stat,wchan,stack}."""
    live = LiveEvidence()
    after_name = live.read("/proc/%d/stat" % pid).text.rpartition(")")[2].split()
    state = after_name[0] if after_name else "?"
    wait_channel = live.read("/proc/%d/wchan" % pid).text.strip() or "unknown"
    stack = [line.split()[-1] for line in live.read("/proc/%d/stack" % pid).text.splitlines() if line.split()]
    where = " <- ".join(stack[:6])
    return "state %s, waits in %s%s" % (state, wait_channel, ": " + where if where else "")
