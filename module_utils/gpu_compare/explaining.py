"""Which changes explain which findings: by what the check reads, not by a table of causes.

A check that fails now and did not at the baseline is explained by the changed facts that it reads: those of its `needs`
and `that`, else those of its `when`, else those that its `found` shows. A fact that is computed from others stands for
these (`of` in fact_table.py).
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from typing import Any, Protocol

from ..gpu_checks import expressions
from . import fact_table
from .rules import DERIVED, Path, is_covered_by

_FAILS = ("fail", "error")
_HELD = ("pass", "skip")


class CheckLike(Protocol):
    """What is needed of a check (gpu_checks/check_files.py)."""

    @property
    def id(self) -> str: ...
    @property
    def needs(self) -> Sequence[tuple[str, ...]]: ...
    @property
    def when(self) -> Sequence[Any]: ...
    @property
    def that(self) -> Sequence[Any]: ...
    @property
    def found(self) -> str: ...


def list_new_findings(before: dict[str, str], results: Iterable[dict[str, Any]]) -> list[str]:
    """The checks that fail now and did not at the baseline, root causes first. A check that the baseline does not know
    is none: it may be new itself."""
    new = [result for result in results if result["status"] in _FAILS and before.get(result["id"]) in _HELD]
    return [result["id"] for result in sorted(new, key=lambda result: bool(result.get("caused_by")))]


def list_mended(before: dict[str, str], results: Iterable[dict[str, Any]]) -> list[str]:
    """The checks that failed at the baseline and pass now."""
    return [result["id"] for result in results if result["status"] == "pass" and before.get(result["id"]) in _FAILS]


def find_explaining(check: CheckLike, changed: Sequence[Path]) -> list[Path]:
    """Of the paths `changed` (Difference.path), those that `check` reads, in their order."""
    for reads in read_by_check(check):
        found = [path for path in changed if any(is_covered_by(read, path) for read in reads)]
        if found:
            return found
    return []


def read_by_check(check: CheckLike) -> tuple[tuple[Path, ...], ...]:
    """The compared facts that a check reads, by where it does: needs and that, when, found."""
    return _read_by_check(
        tuple(check.needs), tuple(map(str, check.that)), tuple(map(str, check.when)), str(check.found)
    )


@functools.cache
def _read_by_check(
    needs: tuple[Path, ...], that: tuple[str, ...], when: tuple[str, ...], found: str
) -> tuple[tuple[Path, ...], ...]:
    first = [*needs, *(path for text in that for path in expressions.find_reads(text).paths)]
    second = [path for text in when for path in expressions.find_reads(text).paths]
    third = list(expressions.find_reads_of_text(found).paths)
    return tuple(tuple(dict.fromkeys(_follow_reads(_drop_wholes(paths)))) for paths in (first, second, third))


def _drop_wholes(paths: Sequence[Path]) -> list[Path]:
    """`paths` without those of which another one names a part: a check that needs a module reads one option of it."""
    return [path for path in paths if not any(len(other) > len(path) == len(_shared(path, other)) for other in paths)]


def _shared(path: Path, other: Path) -> Path:
    return path if other[: len(path)] == path else ()


def _follow_reads(paths: Iterable[Path]) -> Iterable[Path]:
    for path in paths:
        if path[0] == "host" and len(path) > 2:
            yield from _follow_derived(path[1:], set())


def _follow_derived(read: Path, seen: set[Path]) -> Iterable[Path]:
    """`read`, and what the derived facts that it covers are computed from."""
    if read in seen:
        return
    seen.add(read)
    yield read
    for rule in fact_table.RULES:
        if rule.how == DERIVED and len(rule.path) <= len(read) and is_covered_by(rule.path, read):
            for source in rule.of:
                yield from _follow_derived(source, seen)
