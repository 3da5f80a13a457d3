"""No host is called ready, and no check passes, because something could not be read ("Ready" is a promise, DESIGN.md).

For every broken host and every record that its change touches, in every way in which a record may not be read: the
check that failed fails or is unknown, and a host that was not ready is not ready. The same with another record
degraded, alone or beside it (sampled). On the healthy host a check does not pass without a record that is proven to
break it.

`make test` tries every fourth fixture, with one of the ways in which there is no answer at all, another one for each
fixture; `make test-all` tries all of them. `pytest --degrade-all` tries every record that a reader asks for instead of
a sample; it takes about an hour of one core. `--write-known` writes anew the list of what is known to be violated; it
must only shrink.
"""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import degraded
import harness
import pytest
import yaml
from degraded import Host, Judged, Key, Memory, Place

HERE = Path(__file__).resolve().parent
KNOWN_FILE = HERE / "degraded_known.json"
FILES = harness.overlays()
ALONE_OF_A_PATTERN = 3  # of the files that a pattern changes, so many are degraded one by one
OTHERS = 2  # records that the change does not touch, degraded alone
PAIRS = 2
# In the first tier, of the ways in which there is no answer, of those records, and of the pairs.
FEW = 1
# On the healthy host one of each kind of answer: no answer, a part of one, an empty one.
OF_THE_HEALTHY = ("failed", "not_captured", "truncated", "half", "rc 1", "code 500")
NOT_GOOD = ("fail", "unknown")


@functools.cache
def exceptions() -> dict[str, str]:
    """`fixture: record: degradation` -> the reason why the check may pass all the same."""
    return {
        str(one["degradation"]): str(one["reason"])
        for one in yaml.safe_load((HERE / "degraded_exceptions.yml").read_text()) or []
    }


@functools.cache
def known() -> set[str]:
    found = yaml.safe_load(KNOWN_FILE.read_text()) if KNOWN_FILE.exists() else {}
    return {line for lines in (found or {}).values() for line in lines}


class Tried:
    """Degrades the records of one fixture and collects what must not be."""

    def __init__(self, broken: harness.Overlay, every_way: bool) -> None:
        self.every_way = every_way
        self.name = broken.path.name[: -len(".yml")]
        self.check = broken.check
        self.place: Place = degraded.place_of(broken.base, broken.expected, broken.facts)
        self.base_memory: Memory = degraded.base_memory(broken.base)
        self.healthy_host = degraded.base_host(broken.base)
        self.healthy = degraded.judge(
            self.place, self.healthy_host, self.base_memory, degraded.judged_base(broken.base)
        )
        self.memory = Memory(self.base_memory)
        changes = list(degraded.sides(broken))
        self.host = degraded.changed_host(broken, changes)
        self.judged = degraded.judge(self.place, self.host, self.memory, self.healthy)
        self.touched = {
            side: list(dict.fromkeys(key for other, change in changes if other == side for key in
                                     degraded.touched(self.healthy_host.side(side), change)))
            for side in ("host", "hypervisor")
        }  # fmt: skip
        self.counts: collections.Counter[str] = collections.Counter()
        self.violations: dict[str, str] = {}

    def many(self, count: int) -> int:
        return count if self.every_way else FEW

    def records(self) -> list[tuple[str, Key]]:
        return [(side, key) for side, keys in self.touched.items() for key in keys]

    def others(self) -> list[tuple[str, Key]]:
        """What the readers were given of the host itself, beside what was changed."""
        asked = self.memory.asked() - set(self.touched["host"]) - set(self.touched["hypervisor"])
        return [
            ("host", key)
            for key in sorted(asked, key=str)
            if degraded.answer_of(self.host.evidence, key).status != "not_captured"
        ]

    def degraded_answers(self, host: Host, side: str, key: Key) -> dict[str, Any]:
        found = degraded.degradations(degraded.answer_of(host.side(side), key))
        if self.every_way:
            return found
        silent = sorted(set(found) & set(degraded.REASONS))
        tried = degraded.sampled(silent, FEW, self.name)
        return {kind: answer for kind, answer in found.items() if kind in tried or kind not in silent}

    def judge(self, host: Host, before: Judged, changes: list[tuple[str, Any]]) -> Judged:
        return degraded.judge(self.place, host.with_answers(changes), Memory(self.memory, keep=False), before)

    def hold_broken(self, what: str, changes: list[tuple[str, Any]]) -> None:
        """The broken host with some answers degraded."""
        now = self.judge(self.host, self.judged, changes)
        problems = [] if now.status(self.check) in NOT_GOOD else ["%s is %s" % (self.check, now.status(self.check))]
        if now.ready and not self.judged.ready:
            problems.append("the host is ready")
        self._count(what, now, problems)

    def hold_healthy(self, what: str, changes: list[tuple[str, Any]]) -> None:
        """The healthy host without what is proven to decide its check."""
        now = self.judge(self.healthy_host, self.healthy, changes)
        self._count(
            what, now, [] if now.status(self.check) in NOT_GOOD else ["%s is %s" % (self.check, now.status(self.check))]
        )

    def _count(self, what: str, now: Judged, problems: list[str]) -> None:
        self.counts["tried"] += 1
        self.counts[now.status(self.check)] += 1
        problems = problems + now.faults
        for result in now.results.values():
            if result["status"] == "error":
                problems.append("%s broke: %s" % (result["id"], result["reason"]))
            if result["status"] == "unknown" and "gave no reason" in result["reason"]:
                problems.append("%s: %s" % (result["id"], result["reason"]))
        if problems and exceptions().get("%s: %s" % (self.name, what)):
            self.counts["exceptions"] += 1
        elif problems:
            self.violations["%s: %s" % (self.name, what)] = "; ".join(problems)

    def decides(self, side: str, key: Key) -> bool:
        """Whether the check passes on the healthy host, and this record of the broken one alone breaks it."""
        if self.healthy.status(self.check) != "pass" or key not in self.memory.asked():
            return False
        broken = degraded.answer_of(self.host.side(side), key)
        return self.judge(self.healthy_host, self.healthy, [(side, broken)]).status(self.check) == self.judged.status(
            self.check
        )

    def run(self, everything: bool) -> None:
        records = self.records()
        few = (
            degraded.sampled(records, ALONE_OF_A_PATTERN, self.name) if len(records) > 8 and not everything else records
        )
        for side, key in few:
            for kind, answer in self.degraded_answers(self.host, side, key).items():
                self.hold_broken("broken: %s: %s" % (degraded.shown(key)[:120], kind), [(side, answer)])
            if self.decides(side, key):
                for kind, answer in self.degraded_answers(self.healthy_host, side, key).items():
                    if kind not in OF_THE_HEALTHY and not everything:
                        continue
                    self.hold_healthy("healthy: %s: %s" % (degraded.shown(key)[:120], kind), [(side, answer)])
        if len(records) > 1:
            for kind, changes in self.together(records).items():
                self.hold_broken("broken: all that is changed: %s" % kind, changes)
        for side, key, kind, answer in self.sample(self.others(), self.many(OTHERS), everything):
            self.hold_broken("other: %s: %s" % (degraded.shown(key)[:120], kind), [(side, answer)])
        for first, second in self.pairs():
            self.hold_broken(
                "pair: %s"
                % " + ".join(
                    "%s: %s" % (degraded.shown(key)[:80], kind) for _side, key, kind, _answer in (first, second)
                ),
                [(first[0], first[3]), (second[0], second[3])],
            )

    def together(self, records: list[tuple[str, Key]]) -> dict[str, list[tuple[str, Any]]]:
        found: dict[str, list[tuple[str, Any]]] = {}
        for side, key in records:
            for kind, answer in self.degraded_answers(self.host, side, key).items():
                found.setdefault(kind, []).append((side, answer))
        return found

    def sample(
        self, records: list[tuple[str, Key]], count: int, everything: bool = False
    ) -> Iterator[tuple[str, Key, str, Any]]:
        for side, key in records if everything else degraded.sampled(records, count, self.name):
            answers = self.degraded_answers(self.host, side, key)
            for kind in answers if everything else degraded.sampled(sorted(answers), 1, self.name + str(key)):
                yield side, key, kind, answers[kind]

    def pairs(self) -> Iterator[tuple[tuple[str, Key, str, Any], tuple[str, Key, str, Any]]]:
        every = self.others()
        for number in range(self.many(PAIRS) if self.records() else 0):
            seed = "%s %d" % (self.name, number)
            first, second = degraded.sampled(self.records(), 1, seed)[0], degraded.sampled(every, 1, seed)[0]
            (one,), (two,) = (
                [(side, key, kind, self.degraded_answers(self.host, side, key)[kind])
                 for kind in degraded.sampled(sorted(self.degraded_answers(self.host, side, key)), 1, seed)]
                for side, key in (first, second)
            )  # fmt: skip
            yield one, two


def reader_of(tried: Tried, violation: str) -> str:
    """Whose reader it is: the subjects that the check reads."""
    check = next(check for check in tried.place.checks if check.id == tried.check)
    return "+".join(sorted({path[1] for path in degraded.paths(check) if path[0] == "host"}))


# Continuous integration leaves the half with the mark `long` to make test-all.
MARKS: dict[int, list[pytest.MarkDecorator]] = {
    0: [],
    1: [pytest.mark.slow],
    2: [pytest.mark.slow, pytest.mark.long],
    3: [pytest.mark.slow, pytest.mark.long],
}


@pytest.mark.parametrize(
    "path",
    [pytest.param(path, id=path.name[:-4], marks=MARKS[number % 4]) for number, path in enumerate(FILES)],
)
def test_what_could_not_be_read_is_never_good(path: Path, request: pytest.FixtureRequest, record_property: Any) -> None:
    everything = request.config.getoption("--degrade-all")
    few = request.config.getoption("--few-ways") or request.config.getoption("--tier") == "fast"
    tried = Tried(harness.overlay(path), everything or not few)
    assert tried.judged.status(tried.check) == harness.overlay(path).status
    tried.run(everything)
    new = {what: why for what, why in tried.violations.items() if what not in known()}
    record_property("degradations", {**tried.counts, "known": len(tried.violations) - len(new)})
    record_property("violations", {reader_of(tried, what): sorted(tried.violations) for what in tried.violations})
    assert new == {}, "\n".join("%s: %s" % item for item in new.items())


def test_every_exception_has_its_reason() -> None:
    assert all(len(reason.split()) > 5 for reason in exceptions().values())
    names = {path.name[: -len(".yml")] for path in FILES}
    assert {what.split(":")[0] for what in (*exceptions(), *known())} <= names
