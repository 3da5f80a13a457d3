"""Evidence that notes what a reader asked for and did not get: the reason of last resort why a fact of it is unknown.

A reader says itself, in its errors, what a user should know. What it tried beside that, such as a second source where
the first answered, is no error; but where a fact is unknown and its reader gave no reason, this is it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .errors import Errors
from .interface import ABSENT, READ_LIMIT_BYTES, Evidence, Fetched, Listing, Outcome, Reading, Request

NOTED_LIMIT = 12


class NotingEvidence(Evidence):
    """The same answers; ``unread`` are entries of ``Errors`` about those that are not whole, the first few of them."""

    def __init__(self, source: Evidence, subject: str) -> None:
        self.source = source
        self._noted = Errors(subject)

    @property
    def unread(self) -> list[dict[str, Any]]:
        return self._noted.entries

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        answer = self.source.read(path, limit)
        if not answer.ok and answer.status != ABSENT and self._has_room():
            self._noted.unanswered(answer)
        return answer

    def list(self, path: str) -> Listing:
        answer = self.source.list(path)
        if not answer.ok and answer.status != ABSENT and self._has_room():
            self._noted.unanswered(answer)
        return answer

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        self.source.start(argv, timeout)

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        answer = self.source.run(argv, timeout)
        if not answer.succeeded and answer.status != ABSENT and self._has_room():
            self._noted.unsuccessful(answer)
        return answer

    def abandon(self) -> None:
        self.source.abandon()

    def answer_request(self, request: Request) -> Fetched:
        answer = self.source.answer_request(request)
        if (not answer.ok or answer.code is None or answer.code >= 400) and self._has_room():
            problem = "answered with code %s" % answer.code if answer.ok else answer.reason or answer.status
            self._noted.add(answer.name, problem)
        return answer

    def unanswered(self) -> dict[str, str]:
        return self.source.unanswered()

    def paths(self) -> Sequence[str]:
        return self.source.paths()

    def now(self) -> float:
        return self.source.now()

    def _has_room(self) -> bool:
        return len(self._noted.entries) < NOTED_LIMIT

    def __getattr__(self, name: str) -> Any:
        return getattr(self.source, name)  # `manifest` of a bundle
