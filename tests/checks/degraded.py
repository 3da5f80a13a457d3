"""Evidence that could not be read, or not to its end, and the verdict on a host that has some of it.

A host is judged thousands of times with one record changed. So a reader is asked again only where an answer that it was
given is another one, and a check only where a fact that it reads is. Readers, checks and the verdict are the real ones.
"""

from __future__ import annotations

import contextlib
import fnmatch
import functools
import hashlib
import json
import pickle
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Union
from unittest import mock

import harness
from ansible.module_utils.gpu_checks import engine, expressions, verdict
from ansible.module_utils.gpu_checks.check_files import Check
from ansible.module_utils.gpu_checks.evaluator import EvaluationError, Evaluator
from ansible.module_utils.gpu_host import gather as gathering
from ansible.module_utils.gpu_host import p2p_probe
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
from ansible.module_utils.gpu_host.probe import result_shape
from ansible.module_utils.gpu_host.smi import log_xml

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
    "run p2p_between_hosts",
    "read /sys/bus/pci/devices/*/resource",
    "read /sys/bus/pci/devices/*/config",
    "fetch *",
)


REMEMBERED = 12  # values of one condition
PATHS: tuple[str, Any] = ("paths", "")  # the question which files there are


def key_of(answer: Answer) -> Key:
    if isinstance(answer, Outcome):
        return "run", answer.argv
    return CALLS[type(answer)], answer.name if isinstance(answer, Fetched) else answer.path


def shown(key: Key) -> str:
    """A record in one line, as a fixture names it."""
    return "%s %s" % (key[0], " ".join(key[1]) if key[0] == "run" else key[1])


def answer_of(evidence: Evidence, key: Key) -> Any:
    call, name = key
    if key == PATHS:
        return evidence.paths()
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
    """Evidence that notes what was asked."""

    def __init__(self, source: Any) -> None:
        self.source = source
        self.manifest = source.manifest
        self.asked: dict[Key, None] = {}  # in the order of the questions

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        self.asked["read", path] = None
        return self.source.read(path, limit)

    def list(self, path: str) -> Listing:
        self.asked["list", path] = None
        return self.source.list(path)

    def paths(self) -> Sequence[str]:
        self.asked[PATHS] = None
        return self.source.paths()

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        self.asked["run", tuple(argv)] = None
        return self.source.run(argv)

    def answer_request(self, request: Request) -> Fetched:
        answer = self.source.answer_request(request)
        self.asked["fetch", answer.name] = None
        return answer

    def now(self) -> float:
        return self.source.now()


class _Differences:
    """The questions to which two hosts answer differently; remembered, as each reader of a host wants to know."""

    _FEW = 200

    def __init__(self) -> None:
        self._known: dict[tuple[int, int], tuple[bundle.BundleEvidence, bundle.BundleEvidence, set[Key]]] = {}

    def between(self, one: bundle.BundleEvidence, other: bundle.BundleEvidence) -> set[Key]:
        key = (id(one), id(other))  # what is remembered is not freed, so that no other host gets its id
        if key not in self._known:
            if len(self._known) >= self._FEW:
                self._known.clear()
            self._known[key] = (one, other, self._find(one, other))
        return self._known[key][2]

    @staticmethod
    def _find(one: bundle.BundleEvidence, other: bundle.BundleEvidence) -> set[Key]:
        found: set[Key] = {PATHS} if one.paths() != other.paths() else set()
        for call, attribute in (("read", "_reads"), ("list", "_lists"), ("run", "_runs"), ("fetch", "_fetches")):
            left, right = getattr(one, attribute), getattr(other, attribute)
            found.update((call, name) for name in left.keys() | right.keys() if left.get(name) != right.get(name))
        return found


DIFFERENCES = _Differences()


def _recorded(evidence: Any) -> bundle.BundleEvidence:
    """The recorded host behind those that note what is asked of it."""
    while not isinstance(evidence, bundle.BundleEvidence):
        evidence = evidence.source
    return evidence


# One run of a reader: the evidence it was given, what it asked of it, and what it made of the answers.
Run = tuple[bundle.BundleEvidence, dict[Key, None], Any]


@dataclass
class Memory:
    """What each reader answered to which evidence. Looked for here, then in `parent`; kept here only."""

    parent: Memory | None = None
    known: dict[str, list[Run]] = field(default_factory=dict)
    keep: bool = True

    def ask(self, name: str, reader: Callable[[Any], Any], evidence: Any) -> Any:
        source = _recorded(evidence)
        memory: Memory | None = self
        while memory is not None:
            for seen, asked, result in memory.known.get(name, ()):
                if DIFFERENCES.between(seen, source).isdisjoint(asked):
                    if evidence is not source:  # whoever notes what is asked notes the same
                        for key in asked:
                            answer_of(evidence, key)
                    return result
            memory = memory.parent
        traced = Traced(evidence)
        result = reader(traced)
        if self.keep:
            self.known.setdefault(name, []).append((source, traced.asked, result))
        return result

    def readers_of(self, key: Key) -> list[str]:
        """The readers that were given the answer of `key`."""
        found = self.parent.readers_of(key) if self.parent else []
        for name, runs in self.known.items():
            if any(key in asked for _seen, asked, _result in runs):
                found.append(name.split(" ")[0])
        return sorted(set(found))

    def asked(self) -> set[Key]:
        """Every record that a reader was given here."""
        found = set().union(*(asked for runs in self.known.values() for _seen, asked, _result in runs))
        return (found | (self.parent.asked() if self.parent else set())) - {PATHS}


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


class Silent:
    """Decides conditions, once for the same values; fills in no text."""

    known: dict[str, list[tuple[tuple[Any, ...], Any]]] = {}

    def __init__(self, variables: dict[str, Any]) -> None:
        self._evaluator = harness.evaluator(variables)
        self._variables = variables

    def condition(self, expression: Any) -> bool:
        text = str(expression)
        values = tuple(expressions.look_up_path(self._variables, path) for path in expressions.find_reads(text).paths)
        runs = self.known.setdefault(text, [])
        result = next((result for seen, result in runs if seen == values), None)
        if result is None:
            try:
                result = self._evaluator.condition(expression)
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
_gather_context, _decode_result = p2p_probe.gather_context, p2p_probe.decode_result
_parse_log_xml = functools.lru_cache(maxsize=16)(log_xml.parse_log_xml)


@contextlib.contextmanager
def remembering_readers(memory: Memory) -> Iterator[None]:
    """The readers of gpu_facts, and the slow parts of the probe's, each asked once for the same answers."""
    readers = {name: Remembering(name, reader, memory) for name, reader in READERS.items()}

    def gather_context(evidence: Any) -> Any:
        return memory.ask("what the probe's verdicts need", _gather_context, evidence)

    with (
        mock.patch.dict(gathering.SUBJECTS, readers),
        mock.patch.object(p2p_probe, "gather_context", gather_context),
        mock.patch.object(p2p_probe, "decode_result", decode_result),
        mock.patch.object(log_xml, "parse_log_xml", _parse_log_xml),
    ):
        yield


def decode_result(answer: Outcome, shape: Any, problems: list[Any], errors: Errors) -> Any:
    """What p2p_probe's makes of `answer`, from memory; its caller may change it."""
    found, odd, entries = pickle.loads(_decode_once(answer, id(shape)))
    problems.extend(odd)
    errors.entries.extend(entries)
    return found


SHAPES = {
    id(shape): shape
    for shape in (
        result_shape.PROBE,
        result_shape.COLLECTIVE,
        result_shape.ENGINE_ALL_REDUCE,
        result_shape.BETWEEN_HOSTS,
    )
}


@functools.lru_cache(maxsize=64)
def _decode_once(answer: Outcome, shape: int) -> bytes:
    problems: list[Any] = []
    errors = Errors("probe")
    found = _decode_result(answer, SHAPES[shape], problems, errors)
    return pickle.dumps((found, problems, errors.entries))


def judge(
    place: Place,
    host: Host,
    memory: Memory,
    before: Judged | None = None,
    evaluator: Callable[[dict[str, Any]], Evaluator] = Silent,
) -> Judged:
    """The verdict on `host`; a check whose facts are those of `before` has its result from there."""
    hypervisor = None
    if host.hypervisor is not None:
        seen = memory.ask("hypervisor", harness.facts_of_hypervisor, host.hypervisor)
        hypervisor = {"facts": seen, "vmid": place.vmid}
    with remembering_readers(memory):
        facts = harness.facts_of_host(
            host.evidence, place.expected, place.facts, hypervisor, place.proxmox, ask=memory.ask
        )
    if before is not None:
        facts = _shared(facts, before.host)
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


def _shared(new: Any, old: Any) -> Any:
    """`new`, with the parts of `old` in the place of equal ones: what is the same object need not be compared again."""
    if new is old or type(new) is not type(old):
        return new
    if isinstance(new, dict):
        same = len(new) == len(old)
        for key, value in new.items():
            if key not in old:
                same = False
                continue
            new[key] = _shared(value, old[key])
            same = same and new[key] is old[key]
        return old if same else new
    if isinstance(new, list):
        if len(new) != len(old):
            return new
        new[:] = [_shared(one, other) for one, other in zip(new, old)]
        return old if all(one is other for one, other in zip(new, old)) else new
    return old if new == old else new


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
