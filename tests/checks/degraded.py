"""Evidence that could not be read, or not to its end, and the verdict on a host that has some of it.

A host is judged thousands of times with one record changed. So a reader is asked again only where an answer that it was
given is another one, and a check only where a fact that it reads is. Readers, checks and the verdict are the real ones.
"""

from __future__ import annotations

import fnmatch
import functools
import hashlib
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union
from unittest import mock

import harness
from ansible.module_utils.gpu_checks import engine, expressions, verdict
from ansible.module_utils.gpu_checks.check_files import Check
from ansible.module_utils.gpu_checks.evaluator import EvaluationError
from ansible.module_utils.gpu_host import gather as gathering
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import (
    DENIED,
    FAILED,
    HUNG,
    NOT_CAPTURED,
    READ_LIMIT_BYTES,
    TIMEOUT,
    Evidence,
    Fetched,
    Listing,
    Outcome,
    Reading,
    Request,
)

Key = tuple[str, Any]  # ("read", path), ("list", path), ("run", argv), ("fetch", its name)
Answer = Union[Reading, Listing, Outcome, Fetched]
CALLS = {Reading: "read", Listing: "list", Outcome: "run", Fetched: "fetch"}
REASONS = {
    DENIED: "Permission denied",
    FAILED: "Input/output error",
    TIMEOUT: "no answer within 30 s",
    HUNG: "pid 4711 ignores SIGKILL after 30 s; state D, waits in rwsem_down_write_slowpath",
    NOT_CAPTURED: "the bundle does not hold it",
}
STATUSES = {
    "read": (DENIED, FAILED, TIMEOUT, NOT_CAPTURED),
    "list": (DENIED, FAILED, TIMEOUT, NOT_CAPTURED),
    "run": (DENIED, FAILED, TIMEOUT, HUNG, NOT_CAPTURED),
    "fetch": (FAILED, TIMEOUT, NOT_CAPTURED),
}
# What shows by itself that its end is missing: half of it gone without a flag must not be taken for all of it.
SHOWS_ITS_END = (
    "run nvidia-smi -q",
    "run nvidia-smi -q -x",
    "run nvidia-smi topo *",
    "run p2p_probe",
    "run p2p_collective",
    "read /sys/bus/pci/devices/*/resource",
    "read /sys/bus/pci/devices/*/config",
    "fetch *",
)


REMEMBERED = 12  # values of one condition


def key_of(answer: Answer) -> Key:
    if isinstance(answer, Outcome):
        return "run", answer.argv
    return CALLS[type(answer)], answer.name if isinstance(answer, Fetched) else answer.path


def shown(key: Key) -> str:
    """A record in one line, as a fixture names it."""
    return "%s %s" % (key[0], " ".join(key[1]) if key[0] == "run" else key[1])


def answer_of(evidence: Evidence, key: Key) -> Answer:
    call, name = key
    if call == "fetch":
        method, url, label = [*name.split(" ", 2), ""][:3]
        return evidence.fetch(method, url, label=label)
    answer: Answer = {"read": evidence.read, "list": evidence.list, "run": evidence.run}[call](name)
    return answer


def with_answers(evidence: bundle.BundleEvidence, answers: Iterable[Answer]) -> bundle.BundleEvidence:
    twin = evidence.copy()
    for answer in answers:
        twin.put(answer)
    return twin


def degradations(answer: Answer) -> dict[str, Answer]:
    """Every way in which `answer` may not have been read to its end, by its name.

    One that changes nothing is left out.
    """
    call = CALLS[type(answer)]
    found: dict[str, Answer] = {status: _without_answer(answer, status) for status in STATUSES[call]}
    if isinstance(answer, Reading) and answer.data is not None:
        found["truncated"] = replace(answer, data=_first_third(answer.data), truncated=True)
    elif isinstance(answer, Outcome) and answer.ok:
        third = _first_third(answer.stdout)
        found["truncated"] = replace(answer, stdout=third, truncated=True)
        found["timeout after a third"] = replace(answer, status=TIMEOUT, stdout=third, rc=-9, reason=REASONS[TIMEOUT])
        found["rc 1"] = replace(answer, rc=1, stdout=b"", stderr=b"")
    elif isinstance(answer, Fetched) and answer.ok:
        found["truncated"] = replace(answer, data=_first_third(answer.data), truncated=True)
        found["code 500"] = replace(answer, code=500, data=b"")
    if any(fnmatch.fnmatchcase(shown(key_of(answer)), pattern) for pattern in SHOWS_ITS_END):
        if isinstance(answer, Outcome) and answer.ok and answer.stdout.strip():
            found["half"] = replace(answer, stdout=_first_half(_without_legend(answer)))
        elif isinstance(answer, (Reading, Fetched)) and answer.data and answer.data.strip():
            found["half"] = replace(answer, data=_first_half(answer.data))
    return {name: changed for name, changed in found.items() if changed != answer}


def _without_answer(answer: Answer, status: str) -> Answer:
    reason = REASONS[status]
    if isinstance(answer, Outcome):
        return Outcome(answer.argv, status, reason=reason)
    if isinstance(answer, Fetched):
        return Fetched(answer.method, answer.url, status, label=answer.label, reason=reason)
    return type(answer)(answer.path, status, reason=reason)


def _first_third(data: bytes) -> bytes:
    return data[: len(data) // 3]


def _first_half(data: bytes) -> bytes:
    lines = data.splitlines(keepends=True)
    return b"".join(lines[: len(lines) // 2]) if len(lines) > 1 else data[: len(data) // 2]


def _without_legend(answer: Outcome) -> bytes:
    """What tells of the host: the legend below a matrix of nvidia-smi is the same everywhere, and half of a matrix with
    it would be all rows."""
    return answer.stdout.partition(b"\nLegend:")[0] if "topo" in answer.argv else answer.stdout


class Traced(Evidence):
    """Evidence that keeps what was asked and answered."""

    def __init__(self, source: bundle.BundleEvidence) -> None:
        self.source = source
        self.manifest = source.manifest
        self.asked: dict[tuple[Any, ...], Answer] = {}

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        return self._kept(("read", path, limit), self.source.read(path, limit))

    def list(self, path: str) -> Listing:
        return self._kept(("list", path), self.source.list(path))

    def paths(self) -> Sequence[str]:
        return self._kept(("paths",), self.source.paths())

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        return self._kept(("run", tuple(argv)), self.source.run(argv))

    def answer_request(self, request: Request) -> Fetched:
        answer = self.source.answer_request(request)
        return self._kept(("fetch", request.method, request.url, request.label), answer)

    def now(self) -> float:
        return self.source.now()

    def _kept(self, key: tuple[Any, ...], answer: Any) -> Any:
        self.asked[key] = answer
        return answer


def _ask_again(evidence: bundle.BundleEvidence, key: tuple[Any, ...]) -> Answer:
    if key[0] == "fetch":
        return evidence.fetch(key[1], key[2], label=key[3])
    answer: Answer = getattr(evidence, key[0])(*key[1:])
    return answer


@dataclass
class Memory:
    """What each reader answered to which evidence. Looked for here, then in `parent`; kept here only."""

    parent: Memory | None = None
    known: dict[str, list[tuple[dict[tuple[Any, ...], Answer], Any]]] = field(default_factory=dict)
    keep: bool = True

    def ask(self, name: str, reader: Callable[[Any], Any], evidence: Any) -> Any:
        source = evidence.source if isinstance(evidence, Traced) else evidence  # one that notes is asked again, too
        memory: Memory | None = self
        while memory is not None:
            for asked, result in memory.known.get(name, ()):
                if all(_same(_ask_again(source, key), answer) for key, answer in asked.items()):
                    return result
            memory = memory.parent
        traced = Traced(source)
        result = reader(traced)
        if self.keep:
            self.known.setdefault(name, []).append((traced.asked, result))
        return result

    def readers_of(self, key: Key) -> list[str]:
        """The readers that were given the answer of `key`."""
        found = self.parent.readers_of(key) if self.parent else []
        for name, runs in self.known.items():
            if any(_key(asked) == key for trace, _result in runs for asked in trace if len(asked) > 1):
                found.append(name.split(" ")[0])
        return sorted(set(found))

    def asked(self) -> set[Key]:
        """Every record that a reader was given here."""
        traces = [trace for runs in self.known.values() for trace, _result in runs]
        found = {_key(asked) for trace in traces for asked in trace if len(asked) > 1}  # `paths` names no record
        return found | (self.parent.asked() if self.parent else set())


def _key(asked: tuple[Any, ...]) -> Key:
    if asked[0] == "fetch":
        return "fetch", " ".join(word for word in asked[1:] if word)
    return asked[0], asked[1]


def _same(left: Any, right: Any) -> bool:
    return left is right or left == right


@dataclass(frozen=True)
class Place:
    """One host and what is known of it, without its evidence."""

    expected: dict[str, Any]
    facts: dict[str, Any]
    vmid: int | None  # on the hypervisor, where that is judged with it
    proxmox: bool

    @functools.cached_property
    def checks(self) -> list[Check]:
        return list(harness.loaded_checks())


@dataclass(frozen=True)
class Host:
    """A host's evidence and, where it has one, its hypervisor's."""

    evidence: bundle.BundleEvidence
    hypervisor: bundle.BundleEvidence | None = None

    def side(self, name: str) -> bundle.BundleEvidence:
        found = self.evidence if name == "host" else self.hypervisor
        assert found is not None
        return found

    def with_answers(self, changes: Iterable[tuple[str, Answer]]) -> Host:
        changes = list(changes)
        own = [answer for side, answer in changes if side == "host"]
        other = [answer for side, answer in changes if side != "host"]
        return Host(
            with_answers(self.evidence, own) if own else self.evidence,
            with_answers(self.side("hypervisor"), other) if other else self.hypervisor,
        )


class Silent(harness.OneByOne):
    """Decides conditions, once for the same values; fills in no text."""

    known: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    def __init__(self, variables: dict[str, Any]) -> None:
        templar = harness.shared_templar()
        templar.available_variables = variables
        super().__init__(templar)
        self._variables = variables

    def condition(self, expression: Any) -> bool:
        text = str(expression)
        values = tuple(expressions.look_up_path(self._variables, path) for path in expressions.find_reads(text).paths)
        runs = self.known.setdefault(text, [])
        result = next((result for seen, result in runs if seen == values), None)
        if result is None:
            try:
                result = super().condition(expression)
            except EvaluationError as error:
                result = error
            runs.append((values, result))
            del runs[:-REMEMBERED]
        if isinstance(result, EvaluationError):
            raise result
        return bool(result)

    def text(self, template: str) -> str:
        return ""


@dataclass
class Judged:
    """The results of a host, and what each check read."""

    results: dict[str, dict[str, Any]]
    read: dict[str, tuple[Any, ...]]
    faults: list[str]  # readers that raised
    host: dict[str, Any]  # its facts

    @property
    def ready(self) -> bool:
        return bool(verdict.summarise_verdict(list(self.results.values()))["summary"]["ready"])

    def status(self, check: str) -> str:
        return str(self.results[check]["status"])


class Remembering:
    """A reader as gather() calls it, which knows its answer to evidence that it saw."""

    def __init__(self, name: str, reader: Any, memory: Memory) -> None:
        self._name, self._reader, self._memory = name, reader, memory

    def gather(self, evidence: Any, errors: Errors) -> Any:
        def with_errors(seen: Any) -> tuple[Any, list[dict[str, Any]]]:
            own = Errors(self._name)
            return self._reader.gather(seen, own), own.entries

        result, entries = self._memory.ask(self._name, with_errors, evidence)
        errors.entries.extend(entries)
        return result


READERS = dict(gathering.SUBJECTS)


def judge(
    place: Place,
    host: Host,
    memory: Memory,
    before: Judged | None = None,
    evaluator: Callable[[dict[str, Any]], harness.OneByOne] = Silent,
) -> Judged:
    """The verdict on `host`; a check whose facts are those of `before` has its result from there."""
    remembering = {name: Remembering(name, reader, memory) for name, reader in READERS.items()}
    hypervisor = None
    if host.hypervisor is not None:
        seen = memory.ask("hypervisor", harness.facts_of_hypervisor, host.hypervisor)
        hypervisor = {"facts": seen, "vmid": place.vmid}
    with mock.patch.dict(gathering.SUBJECTS, remembering):
        facts = harness.facts_of_host(
            host.evidence, place.expected, place.facts, hypervisor, place.proxmox, ask=memory.ask
        )
    variables = engine.make_variables(facts, place.expected, "host")
    read = {
        check.id: tuple(expressions.look_up_path(variables, path) for path in paths(check)) for check in place.checks
    }
    again = [check for check in place.checks if before is None or read[check.id] != before.read[check.id]]
    new = {result["id"]: result for result in engine.evaluate_checks(again, variables, evaluator(variables))}
    old = before.results if before else {}
    told = [*facts["errors"]]
    for other in ("proxmox", "hypervisor", "probe", "server"):
        told += (facts.get(other) or {}).get("errors") or []
    faults = [entry["problem"] for entry in told if "a fault in the reader" in entry["problem"]]
    return Judged({check.id: new.get(check.id) or old[check.id] for check in place.checks}, read, faults, facts)


_PATHS: dict[str, tuple[tuple[str, ...], ...]] = {}


def paths(check: Check) -> tuple[tuple[str, ...], ...]:
    """Every fact that decides a check's status."""
    if check.id not in _PATHS:
        found = dict.fromkeys(check.needs)
        for condition in (*check.when, *check.that):
            found.update(dict.fromkeys(expressions.find_reads(str(condition)).paths))
        _PATHS[check.id] = tuple(found)
    return _PATHS[check.id]


@functools.cache
def base_memory(name: str) -> Memory:
    """What the readers say of a healthy base; kept for all its fixtures."""
    return Memory()


def place_of(base: str, expected: dict[str, Any] | None = None, facts: dict[str, Any] | None = None) -> Place:
    settings = harness.BASES[base]
    return Place(
        harness.merged(settings.get("expected", {}), expected or {}),
        harness.merged(settings.get("facts") or {}, facts or {}),
        (settings.get("hypervisor") or {}).get("vmid"),
        bool(settings.get("proxmox")),
    )


@functools.cache
def judged_base(name: str) -> Judged:
    return judge(place_of(name), base_host(name), base_memory(name))


def judge_broken(broken: harness.Overlay) -> Judged:
    """The result of every check on the host of a fixture, with the texts of those whose facts the fixture changes."""
    place = place_of(broken.base, broken.expected, broken.facts)
    memory = Memory(base_memory(broken.base), keep=False)
    host = changed_host(broken, list(sides(broken)))
    return judge(place, host, memory, judged_base(broken.base), harness.evaluator)


def base_host(name: str) -> Host:
    place = harness.BASES[name].get("hypervisor")
    return Host(harness.base(name), harness.base(place["recording"]) if place else None)


def sides(broken: harness.Overlay) -> Iterator[tuple[str, dict[str, Any]]]:
    for change in broken.change:
        yield "host", change
    for change in broken.hypervisor:
        yield "hypervisor", change


def changed_host(broken: harness.Overlay, changes: Iterable[tuple[str, dict[str, Any]]]) -> Host:
    """The base of `broken` with some of its changes made."""
    host = base_host(broken.base)
    own = [change for side, change in changes if side == "host"]
    other = [change for side, change in changes if side != "host"]
    name = broken.path.name
    return Host(
        harness.evidence_with(host.evidence, own, name) if own else host.evidence,
        harness.evidence_with(host.side("hypervisor"), other, name) if other else host.hypervisor,
    )


def touched(before: bundle.BundleEvidence, change: dict[str, Any]) -> list[Key]:
    """The records that a change of a fixture changes."""
    call = next(name for name in ("read", "list", "run", "fetch") if name in change)
    name = change[call]
    if call == "run":
        return [("run", tuple(name.split() if isinstance(name, str) else [str(word) for word in name]))]
    if call == "read" and "*" in name:
        return [("read", path) for path in before.paths() if fnmatch.fnmatchcase(path, name)]
    return [(call, name)]


def sampled(items: Sequence[Any], count: int, seed: str) -> list[Any]:
    """`count` of `items`, the same ones in every run."""

    def rank(item: Any) -> bytes:
        return hashlib.sha256((seed + json.dumps(item, default=str)).encode()).digest()

    return sorted(items, key=rank)[:count]
