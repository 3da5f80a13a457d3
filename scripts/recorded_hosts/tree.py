"""A host as a model: a small file tree and a table of commands, behind the evidence interface."""

from __future__ import annotations

import posixpath
from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Callable

from ansible.module_utils.gpu_host.evidence.interface import (
    ABSENT,
    DENIED,
    FAILED,
    NOT_CAPTURED,
    OK,
    READ_LIMIT_BYTES,
    Entry,
    Evidence,
    Fetched,
    Listing,
    Outcome,
    Reading,
    Request,
)

# Two moments on every model's clock: the boot, and the recording 50 hours later.
BOOTED_AT = 1775600000.0  # 2026-04-07 22:13:20 UTC
TAKEN_AT = BOOTED_AT + 180000.0
CONFIGURED_AT = BOOTED_AT - 86400.0


@dataclass
class Node:
    entry: Entry
    data: bytes = b""


class HostModel(Evidence):
    """What one host would answer. Everything that is not in the model is absent, except below `unrecorded` prefixes."""

    def __init__(self, name: str, note: str, uid: int = 0) -> None:
        self.name = name
        self.note = note
        self.uid = uid
        self.unrecorded: tuple[str, ...] = ()  # paths of which the source of this model says nothing
        self.denied: set[str] = set()
        self._nodes: dict[str, Node] = {"/": Node(Entry("dir", mode=0o755, uid=0, gid=0, modified=CONFIGURED_AT))}
        self._commands: dict[tuple[str, ...], Outcome] = {}
        self._programs: dict[str, Callable[[tuple[str, ...]], Outcome | None]] = {}
        self._answers: dict[str, Fetched] = {}

    # -- building ---------------------------------------------------------------------------------------------------

    def file(
        self, path: str, data: str | bytes, mode: int = 0o644, modified: float = CONFIGURED_AT, size: int | None = None
    ) -> None:
        content = data.encode() if isinstance(data, str) else data
        if size is None:
            size = 4096 if path.startswith("/sys/") else 0 if path.startswith("/proc/") else len(content)
        self._put(path, Node(Entry("file", mode=mode, uid=0, gid=0, size=size, modified=modified), content))

    def link(self, path: str, target: str) -> None:
        self._put(path, Node(Entry("link", target=target, mode=0o777, uid=0, gid=0, modified=CONFIGURED_AT)))

    def device(self, path: str, major: int, minor: int, mode: int = 0o666) -> None:
        self._put(path, Node(Entry("char", mode=mode, uid=0, gid=0, major=major, minor=minor, modified=BOOTED_AT)))

    def directory(self, path: str, mode: int = 0o755) -> None:
        self._put(path, Node(Entry("dir", mode=mode, uid=0, gid=0, modified=CONFIGURED_AT)))

    def remove(self, path: str) -> None:
        """Take `path` and everything below it away."""
        for known in [known for known in self._nodes if known == path or known.startswith(path + "/")]:
            del self._nodes[known]

    def command(
        self, argv: str | Sequence[str], stdout: str | bytes = "", rc: int = 0, stderr: str = "", seconds: float = 0.02
    ) -> None:
        key = tuple(argv.split() if isinstance(argv, str) else argv)
        content = stdout.encode() if isinstance(stdout, str) else stdout
        self._commands[key] = Outcome(key, OK, rc=rc, stdout=content, stderr=stderr.encode(), seconds=seconds)

    def no_command(self, program: str) -> None:
        """Forget every answer of `program`: it is not installed."""
        for key in [key for key in self._commands if key[0] == program]:
            del self._commands[key]
        self._programs.pop(program, None)

    def program(self, name: str, answer: Callable[[tuple[str, ...]], Outcome | None]) -> None:
        """`answer` is asked for commands of this program that have no fixed answer; None means not captured."""
        self._programs[name] = answer

    def answer(
        self,
        method: str,
        url: str,
        code: int,
        text: str,
        *,
        label: str = "",
        seconds: float = 0.01,
        first_byte_s: float | None = 0.01,
    ) -> None:
        """What a server of this host answers over HTTP."""
        kind = "text/event-stream" if text.startswith("data:") else "application/json" if text[:1] in ("{", "[") else ""
        fetched = Fetched(method, url, OK, code, text.encode(), kind, seconds, first_byte_s, label=label)
        self._answers[fetched.name] = fetched

    def _put(self, path: str, node: Node) -> None:
        parent = posixpath.dirname(path)
        while parent not in self._nodes:
            self._nodes[parent] = Node(Entry("dir", mode=0o755, uid=0, gid=0, modified=CONFIGURED_AT))
            parent = posixpath.dirname(parent)
        self._nodes[path] = node

    # -- the evidence interface -----------------------------------------------------------------------------------

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        real = self._resolve(path)
        if real is None or real not in self._nodes:
            return Reading(
                path,
                self._missing(path),
                reason="" if self._missing(path) == NOT_CAPTURED else "No such file or directory",
            )
        if path in self.denied or real in self.denied or (self.uid and not self._nodes[real].entry.mode & 0o004):
            return Reading(path, DENIED, reason="Permission denied")
        node = self._nodes[real]
        if node.entry.kind != "file":  # the driver's character devices open and have no read()
            return Reading(path, FAILED, reason="Is a directory" if node.entry.kind == "dir" else "Invalid argument")
        return Reading(path, OK, node.data[:limit], len(node.data) > limit)

    def list(self, path: str) -> Listing:
        real = self._resolve(path)
        if real is None or real not in self._nodes:
            return Listing(path, self._missing(path), reason="No such file or directory")
        if path in self.denied or real in self.denied or (self.uid and not self._nodes[real].entry.mode & 0o004):
            return Listing(path, DENIED, reason="Permission denied")
        if self._nodes[real].entry.kind != "dir":
            return Listing(path, ABSENT, reason="Not a directory")
        prefix = real.rstrip("/") + "/"
        names = sorted(
            known[len(prefix) :]
            for known in self._nodes
            if known.startswith(prefix) and known != real and "/" not in known[len(prefix) :]
        )
        return Listing(path, OK, {name: self._nodes[prefix + name].entry for name in names})

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        key = tuple(argv)
        if key in self._commands:
            return self._commands[key]
        answer = self._programs.get(key[0])
        found = answer(key) if answer else None
        if found is not None:
            return replace(found, argv=key)
        known = answer is not None or any(command[0] == key[0] for command in self._commands)
        return Outcome(
            key,
            NOT_CAPTURED if known or self.unrecorded else ABSENT,
            reason="no program %s on the search path" % key[0],
        )

    def answer_request(self, request: Request) -> Fetched:
        refused = request.answered(ABSENT, reason="connection refused: nothing listens there")
        return self._answers.get(refused.name, refused)

    @property
    def serves(self) -> bool:
        return bool(self._answers)

    def now(self) -> float:
        return TAKEN_AT

    # -- for the recorder -------------------------------------------------------------------------------------------

    def all_paths(self) -> Sequence[str]:
        """Every file outside /sys/devices (whose files are reached, and recorded, through links)."""
        return [
            path
            for path, node in sorted(self._nodes.items())
            if node.entry.kind == "file" and not path.startswith("/sys/devices/")
        ]

    def all_commands(self) -> Sequence[tuple[str, ...]]:
        return sorted(self._commands)

    def _missing(self, path: str) -> str:
        return NOT_CAPTURED if path.startswith(self.unrecorded) else ABSENT

    def _resolve(self, path: str) -> str | None:
        """`path` with every link followed; None for a loop."""
        todo = [part for part in path.split("/") if part]
        real = ""
        hops = 0
        while todo:
            part = todo.pop(0)
            if part == "..":
                real = posixpath.dirname(real).rstrip("/")
                continue
            step = real + "/" + part
            node = self._nodes.get(step)
            if node and node.entry.kind == "link" and node.entry.target is not None:
                hops += 1
                if hops > 20:
                    return None
                target = [piece for piece in node.entry.target.split("/") if piece and piece != "."]
                todo = target + todo
                if node.entry.target.startswith("/"):
                    real = ""
                continue
            real = step
        return real or "/"
