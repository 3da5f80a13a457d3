"""Evidence: what a host shows, asked for in four ways:

``read`` a file, ``list`` a directory, ``run`` a command, ``fetch`` from a server on it.

A live host (``live.py``) and a recorded one (``bundle.py``) answer the same calls with the same types, so a reader
cannot tell them apart. No call ever raises for what it finds: the status of the answer says what happened.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

# Statuses that every answer shares.
OK = "ok"
ABSENT = "absent"  # the file, directory or program is not there
DENIED = "denied"  # it is there and this user may not have it
FAILED = "failed"  # the kernel refused for another reason; `reason` says which
NOT_CAPTURED = "not_captured"  # a bundle does not hold it: neither there nor absent
# a command that was ended by us after its time limit, a file of a process that the kernel did not give in time
TIMEOUT = "timeout"
# Status of a command only.
HUNG = "hung"  # could not even be killed (uninterruptible sleep in the kernel); left behind

READ_LIMIT_BYTES = 4 * 1024 * 1024


class _Answer:
    """What every answer has: ``status``, and ``ok`` where it is a whole one.

    What was cut off says nothing of what is missing, so an answer that is ``truncated`` is not ``ok``.
    """

    truncated: bool = False

    status: str

    @property
    def ok(self) -> bool:
        return self.status == OK and not self.truncated


class _Content(_Answer):
    """An answer with content: the bytes in ``data``, None or none where there are none."""

    data: bytes | None

    @property
    def text(self) -> str:
        """The content as UTF-8, junk bytes replaced; the empty string where there is none."""
        return (self.data or b"").decode("utf-8", "replace")


@dataclass(frozen=True)
class Reading(_Content):
    """The bytes of one file. ``data`` is None unless ``status`` is ``ok``; ``truncated`` if the file was longer."""

    path: str
    status: str
    data: bytes | None = None
    truncated: bool = False
    reason: str = ""


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
class Listing(_Answer):
    """The entries of one directory, by name; empty unless ``status`` is ``ok``."""

    path: str
    status: str
    entries: dict[str, Entry] = field(default_factory=dict)
    reason: str = ""


@dataclass(frozen=True)
class Outcome(_Answer):
    """One finished (or abandoned) command.

    ``ok`` means that it ran to its end and all that it wrote is here, whatever its exit code ``rc``; ``succeeded`` that
    the code is 0, too.
    """

    argv: tuple[str, ...]
    status: str
    rc: int | None = None
    stdout: bytes = b""
    stderr: bytes = b""
    seconds: float = 0.0
    truncated: bool = False
    reason: str = ""

    @property
    def succeeded(self) -> bool:
        return self.ok and self.rc == 0

    @property
    def ending(self) -> str:
        """ "exit code 9"; a pasted output has none."""
        return "an unknown exit code" if self.rc is None else "exit code %s" % self.rc

    @property
    def text(self) -> str:
        return self.stdout.decode("utf-8", "replace")

    @property
    def error_text(self) -> str:
        return self.stderr.decode("utf-8", "replace")


@dataclass(frozen=True)
class Request:
    """One HTTP request. `headers` may hold a key: they are never recorded. `label` tells repeated requests apart."""

    method: str
    url: str
    body: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    timeout: float = 10.0
    label: str = ""

    def answered(self, status: str, **more: Any) -> Fetched:
        """The answer to this request, with the fields in `more`."""
        return Fetched(self.method, self.url, status, label=self.label, **more)


@dataclass(frozen=True)
class Fetched(_Content):
    """One HTTP answer.

    ``ok`` means that there was a whole answer, of any `code`; ``absent`` that nothing listens there.

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

    def unanswered(self) -> dict[str, str]:
        """Programs that hung or ran out of time once and are therefore not asked again -> what happened then."""
        return {}

    def fetch(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        label: str = "",
    ) -> Fetched:
        """One HTTP request, as Request describes it. A kind of evidence answers in answer_request()."""
        return self.answer_request(Request(method, url, body, headers or {}, timeout, label))

    def answer_request(self, request: Request) -> Fetched:
        raise NotImplementedError

    def paths(self) -> Sequence[str]:
        """Every file that a recording has an answer for; none of a live host."""
        return ()

    def now(self) -> float:
        """Seconds since the epoch, on the host, when the evidence was taken."""
        raise NotImplementedError


def status_of(error: OSError) -> str:
    """The status of an answer that ended in `error`."""
    if isinstance(error, (FileNotFoundError, NotADirectoryError)):
        return ABSENT
    if isinstance(error, PermissionError):
        return DENIED
    return FAILED
