"""The files of a container, as its processes see them: the host's evidence with every path below /proc/PID/root.

How such a path is followed without leaving the container stands in gpu_host/evidence/contained.py.
"""

from __future__ import annotations

from collections.abc import Sequence

from ...gpu_host.evidence.interface import READ_LIMIT_BYTES, Evidence, Fetched, Listing, Outcome, Reading, Request


class InsideEvidence(Evidence):
    """`evidence`, with the file system of process `pid`. Its answers name the path as the host has it."""

    def __init__(self, evidence: Evidence, pid: int) -> None:
        self._evidence, self.root = evidence, "/proc/%d/root" % pid

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        return self._evidence.read(self.root + path, limit)

    def list(self, path: str) -> Listing:
        return self._evidence.list((self.root + path).rstrip("/"))

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        return self._evidence.run(argv, timeout)

    def answer_request(self, request: Request) -> Fetched:
        return self._evidence.answer_request(request)

    def unanswered(self) -> dict[str, str]:
        return self._evidence.unanswered()

    def paths(self) -> Sequence[str]:
        return self._evidence.paths()

    def now(self) -> float:
        return self._evidence.now()
