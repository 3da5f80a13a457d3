"""What could not be read or understood, kept beside the facts: the reason why a fact is unknown."""

from __future__ import annotations

from typing import Any, Callable, TypeVar

from . import values
from .interface import ABSENT, DENIED, HUNG, NOT_CAPTURED, OK, TIMEOUT, Listing, Outcome, Reading

_Number = TypeVar("_Number", int, float)


class Errors:
    """Collects entries ``{subject, source, problem, needs_root}`` for one subject.

    `source` is the file or command as an administrator would type it, `problem` what went wrong in one sentence.
    A check that finds a fact unknown shows these entries of its subject.
    """

    def __init__(self, subject: str) -> None:
        self._subject = subject
        self.entries: list[dict[str, Any]] = []

    def add(self, source: str, problem: str, needs_root: bool = False) -> None:
        entry = {"subject": self._subject, "source": source, "problem": problem, "needs_root": needs_root}
        if entry not in self.entries:
            self.entries.append(entry)

    def unanswered(self, answer: Reading | Listing | Outcome, absent_is_fine: bool = False) -> None:
        """Record why `answer` is not whole. With `absent_is_fine`, a missing file is an answer, not an error."""
        source = _source(answer)
        if answer.ok or (absent_is_fine and answer.status == ABSENT):
            return
        problem = {
            ABSENT: "is not there",
            DENIED: "needs root",
            NOT_CAPTURED: "not captured in this bundle",
            TIMEOUT: answer.reason,
            HUNG: "hung in the kernel: " + answer.reason,
            OK: "was cut off: there is more of it than is read",
        }.get(answer.status, answer.reason or answer.status)
        self.add(source, problem, needs_root=answer.status == DENIED)

    def unsuccessful(self, outcome: Outcome, absent_is_fine: bool = False) -> None:
        """Record why a command gave no answer, its exit code included."""
        if outcome.ok and outcome.rc != 0:
            said = " ".join(outcome.error_text.split())[:200]
            problem = "ended with %s%s" % (outcome.ending, ": " + said if said else " and said nothing")
            self.add(_source(outcome), problem, needs_root="ermission" in said or "not permitted" in said)
        else:
            self.unanswered(outcome, absent_is_fine)

    def odd(self, source: str, what: str, value: Any) -> None:
        """Record that a value is not of the form that it should have, and name it."""
        self.add(source, "%s: %s" % (what, values.format_value(value)))

    def read_whole(self, source: str, what: str, text: Any) -> int | None:
        """The whole number that `text` is; where it is none, None, and an entry that names it (none for None)."""
        return self._read(values.whole_number, source, what, text)

    def read_decimal(self, source: str, what: str, text: Any) -> float | None:
        """As read_whole; the finite number that `text` is."""
        return self._read(values.decimal_number, source, what, text)

    def _read(self, parse: Callable[[Any], _Number | None], source: str, what: str, text: Any) -> _Number | None:
        number = None if text is None else parse(text)
        if number is None and text is not None:
            self.odd(source, "%s is no number" % what, text)
        return number


def _source(answer: Reading | Listing | Outcome) -> str:
    return " ".join(answer.argv) if isinstance(answer, Outcome) else answer.path
