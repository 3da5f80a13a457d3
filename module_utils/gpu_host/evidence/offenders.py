"""Lists of what is wrong, which cannot forget what could not be read."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Callable

from .interface import ABSENT, Fetched, Listing, Outcome, Reading


class Offenders:
    """Takes the members of a group one by one; ``listed()`` is None where none offends and one of them is unknown.

    An offender that was found stays one whatever else could not be read: then the list is of those that are known.
    """

    def __init__(self, unknown: bool = False) -> None:
        self._found: list[Any] = []
        self._unknown = unknown

    def judge(self, offends: bool | None, item: Any) -> None:
        """`item` offends, does not, or nobody knows (None)."""
        if offends:
            self._found.append(item)
        self._unknown = self._unknown or offends is None

    def need(self, answer: Reading | Listing | Outcome | Fetched | None, absent_is_fine: bool = False) -> None:
        """Without this answer, some of the group is unknown."""
        fine = answer is not None and (answer.ok or (absent_is_fine and answer.status == ABSENT))
        self._unknown = self._unknown or not fine

    def unread(self) -> None:
        """Some of the group could not be read."""
        self._unknown = True

    def listed(self) -> list[Any] | None:
        return self._found or (None if self._unknown else [])


def offenders(
    members: Iterable[Any], offends: Callable[[Any], bool | None], item: Callable[[Any], Any] = lambda member: member
) -> list[Any] | None:
    """`item` of each member that offends; None where none does and of one it is unknown."""
    found = Offenders()
    for member in members:
        found.judge(offends(member), item(member))
    return found.listed()


def any_of(values: Iterable[bool | None]) -> bool | None:
    """Whether one of `values` is true; None where none is and one is unknown."""
    known = list(values)
    return True if True in known else (None if None in known else False)


def all_of(values: Iterable[bool | None]) -> bool | None:
    """Whether all of `values` are true; False as soon as one is false."""
    known = list(values)
    return False if False in known else (None if None in known else True)
