"""The runs put together: for every host what each run found of it, and what changed from one to the next.

Of 500 hosts and 30 runs little may be kept: texts and lists that are the same from run to run are kept once.
"""

from __future__ import annotations

from array import array
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..collector import NOT_READY, NOT_VALIDATED, READY, natural_key
from .record import NOT_RUN

_BAD, _UNKNOWN = "fe", "u"
_FINE = {"p", "s", NOT_RUN}


@dataclass(frozen=True)
class Run:
    """One run. `place`: its number in the timeline, from 0, the oldest."""

    place: int
    file: str
    started_at: str
    playbook: str
    complete: bool
    totals: dict[str, int]
    checks: tuple[str, ...]

    @property
    def when(self) -> str:
        """'2026-11-30 21:51' (UTC)."""
        return self.started_at[:16].replace("T", " ")


@dataclass(frozen=True)
class Change:
    """What is otherwise than when the host was last looked at: checks by their ids, and the machine in sentences."""

    state: bool = False
    new: tuple[str, ...] = ()
    unknown: tuple[str, ...] = ()
    mended: tuple[str, ...] = ()
    machine: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.state or self.new or self.unknown or self.mended or self.machine)


NO_CHANGE = Change()


@dataclass(frozen=True)
class Look:
    """What one run found of one host."""

    run: Run
    state: str
    message: str
    unreachable: bool
    recorded: bool
    statuses: str
    figures: dict[str, int]  # name -> place in `values`; shared by all looks with the same figures
    values: array[float]
    change: Change

    def take_figure(self, name: str) -> float | None:
        place = self.figures.get(name)
        return None if place is None else self.values[place]


@dataclass
class Timeline:
    """All that is kept: `runs` and each host's `looks` the oldest first; `left_out`: (file, why) of what is damaged."""

    runs: list[Run] = field(default_factory=list)
    hosts: dict[str, list[Look]] = field(default_factory=dict)
    titles: dict[str, str] = field(default_factory=dict)
    left_out: list[tuple[str, str]] = field(default_factory=list)


class _Known:
    """What was last known of a host."""

    def __init__(self) -> None:
        self.state = ""
        self.checks: tuple[str, ...] = ()
        self.statuses = ""
        self.letters: dict[str, str] = {}
        self.overview: dict[str, str] = {}

    def compare(self, host: dict[str, Any], checks: tuple[str, ...]) -> Change:
        """What changed, and keep what is now."""
        first, changed = not self.state, self.state != host["state"]
        self.state = host["state"]
        new, unknown, mended = self._compare_checks(checks, host["statuses"])
        machine = []
        for name, value in host["overview"].items():
            before = self.overview.get(name)
            if before is not None and before != value:
                machine.append("%s: %s → %s" % (name, before, value))
            self.overview[name] = value
        return NO_CHANGE if first else Change(changed, tuple(new), tuple(unknown), tuple(mended), tuple(machine))

    def _compare_checks(self, checks: tuple[str, ...], statuses: str) -> tuple[list[str], list[str], list[str]]:
        new: list[str] = []
        unknown: list[str] = []
        mended: list[str] = []
        if not statuses or (checks is self.checks and statuses == self.statuses):
            return new, unknown, mended
        self.checks, self.statuses = checks, statuses
        for check, letter in zip(checks, statuses):
            before = self.letters.get(check)
            if letter in (before, NOT_RUN):
                continue
            self.letters[check] = letter
            if before is None:
                continue
            if letter in _BAD and before not in _BAD:
                new.append(check)
            elif letter == _UNKNOWN:
                unknown.append(check)
            elif letter not in _BAD and before in _BAD + _UNKNOWN:
                mended.append(check)
        return new, unknown, mended


class TimelineBuilder:
    """Fed with one summary (record.py) after the other, the oldest first."""

    def __init__(self) -> None:
        self._made = Timeline()
        self._known: dict[str, _Known] = {}
        self._same: dict[Any, Any] = {}

    def _share(self, value: Any) -> Any:
        return self._same.setdefault(value, value)

    def add(self, file: str, summary: dict[str, Any]) -> None:
        made, about = self._made, summary["run"]
        checks = self._share(tuple(check for check, _title in summary["checks"]))
        made.titles.update(summary["checks"])
        run = Run(
            len(made.runs),
            file,
            about["started_at"],
            str(about.get("playbook") or ""),
            about.get("complete") is not False,
            summary["totals"],
            checks,
        )
        made.runs.append(run)
        for name, host in summary["hosts"].items():
            change = self._known.setdefault(name, _Known()).compare(host, checks)
            names = tuple(host["figures"])
            figures = self._same.setdefault(("figures", names), {one: place for place, one in enumerate(names)})
            made.hosts.setdefault(name, []).append(
                Look(
                    run,
                    self._share(host["state"]),
                    self._share(host["message"]),
                    host["unreachable"],
                    host["recorded"],
                    self._share(host["statuses"]),
                    figures,
                    array("d", host["figures"].values()),
                    change,
                )
            )

    def leave_out(self, file: str, why: str) -> None:
        self._made.left_out.append((file, why))

    def finish(self) -> Timeline:
        made = self._made
        made.hosts = {name: made.hosts[name] for name in sorted(made.hosts, key=natural_key)}
        return made


@dataclass
class RunChanges:
    """What one run found otherwise than the looks before it, host by host."""

    run: Run
    worse: list[str] = field(default_factory=list)  # was ready
    better: list[str] = field(default_factory=list)  # is ready again
    lost: list[str] = field(default_factory=list)  # no verdict, and had one
    other: list[str] = field(default_factory=list)  # in the same state, with other findings or another machine
    first: list[str] = field(default_factory=list)


def list_run_changes(timeline: Timeline) -> list[RunChanges]:
    """Of every run, the newest first."""
    found = [RunChanges(run) for run in timeline.runs]
    for name, looks in timeline.hosts.items():
        for before, look in zip([None, *looks], looks):
            one = found[look.run.place]
            if before is None:
                one.first.append(name)
            elif look.state != before.state:
                kind = {READY: one.better, NOT_READY: one.worse, NOT_VALIDATED: one.lost}[look.state]
                kind.append(name)
            elif look.change:
                one.other.append(name)
    return found[::-1]


def count_ready(looks: Iterable[Look]) -> int:
    return sum(look.state == READY for look in looks)


def list_troubled_checks(looks: list[Look]) -> list[tuple[str, dict[int, str]]]:
    """(check, place of the run -> letter) of the checks that did not pass in some run, those that fail now first."""
    distinct = {(look.run.checks, look.statuses) for look in looks if not set(look.statuses) <= _FINE}
    troubled = {
        check for checks, statuses in distinct for check, letter in zip(checks, statuses) if letter not in _FINE
    }
    places: dict[tuple[str, ...], list[tuple[int, str]]] = {}
    rows: dict[str, dict[int, str]] = {}
    for look in looks:
        if look.run.checks not in places:
            places[look.run.checks] = [(at, check) for at, check in enumerate(look.run.checks) if check in troubled]
        for at, check in places[look.run.checks] if look.statuses else ():
            if look.statuses[at] != NOT_RUN:
                rows.setdefault(check, {})[look.run.place] = look.statuses[at]

    def weigh(row: tuple[str, dict[int, str]]) -> tuple[int, int, str]:
        last = row[1][max(row[1])]
        return ("feuw".find(last) % 10, -sum(letter in _BAD for letter in row[1].values()), row[0])

    return sorted(rows.items(), key=weigh)
