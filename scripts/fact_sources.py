"""Which file, directory, command or request each fact is read from: found by asking the readers themselves.

Every reader runs over the recorded hosts of tests/fixtures/hosts, with evidence that notes what it is asked for. Then
it runs again for each thing that it asked for, which is now denied: the facts that come out different are read from it.
(A fact that evidence could have changed is null where that evidence is denied, so few dependencies stay hidden.) A fact
that no single denial changes has several sources, each good enough: then as many are denied as it takes. And a fact
that is the same on all healthy hosts may differ on a broken one of tests/checks/broken, which says what was changed.
Nothing is written by hand, so nothing can be out of date.
"""

from __future__ import annotations

import functools
import json
import re
import sys
from collections import defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ansible.module_utils.gpu_host import cross_facts, p2p_probe, proxmox
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import (
    DENIED,
    READ_LIMIT_BYTES,
    Evidence,
    Fetched,
    Listing,
    Outcome,
    Reading,
    Request,
)
from ansible.module_utils.gpu_host.gather import SUBJECTS
from ansible.module_utils.gpu_server import gather as server

ROOT = Path(__file__).resolve().parents[1]
for folder in ("library", "tests/checks"):
    sys.path.insert(0, str(ROOT / folder))

import harness  # type: ignore[import-not-found]

HOSTS = ROOT / "tests" / "fixtures" / "hosts"
# What stands for the part of a path, command or fact that differs between hosts.
GENERAL = [
    (re.compile(pattern), word)
    for pattern, word in (
        (r"\b[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]\b", "ADDRESS"),
        (r"\bpci[0-9a-f]{4}:[0-9a-f]{2}\b", "pciDOMAIN:BUS"),
        (r"^/sys/fs/cgroup/.*(?=/)", "/sys/fs/cgroup/CGROUP"),
        (r"/var/log/pods/[^/]+/[^/]+", "/var/log/pods/POD/CONTAINER"),
        (r"(?:sha256:)?\b[0-9a-f]{64}\b", "ID"),
        (r"(?<=/proc/)\d+(?=/|$)", "PID"),
        (r"(?<=/lib/modules/)[^/ ]+", "KERNEL"),
        (r"\b\d+\.\d+\.\d+-[\w.-]+", "KERNEL"),
        (r"(?<=iommu_groups/)\d+", "GROUP"),
        (r"(?<=/cpu)\d+", "N"),
        (r"(?<=/node)\d+", "N"),
        (r"(?<=/nvidia)\d+", "N"),
        (r"(?<=/cuda-)[\d.]+", "VERSION"),
        (r"(?<=modprobe\.d/)[^/ ]+", "FILE"),
        (r"(?<=/modules-load\.d/)[^/ ]+", "FILE"),
        (r"(?<=/)\d+(?=\.(conf|pid)\b)", "VMID"),
        (r"^/root/[^/]+\.log$", "LOG"),
        (r"(?<=//)(?!127\.)\d+(?:\.\d+){3}(?=:)", "CONTAINER"),
        (r"(?<=127\.0\.0\.1:)\d+|(?<=//CONTAINER:)\d+", "PORT"),
    )
]
Key = tuple[str, str]  # (how it is asked for, what, generalised): ("read", "/sys/bus/pci/devices/ADDRESS/config")
Reader = Callable[[Evidence], Any]
Gathered = dict[str, set[str]]  # fact -> its values, as text, on one host
SERVER = {"generate": "idle", "expected": {}, "patience_scale": 1.0, "light": False}
PROBE = {"when_busy": "skip", "buffer_mib": 256, "collective": "auto"}
DENIALS = 6  # hosts on which one thing is denied: more cost time and show nothing new
NO_FACTS = {"seconds", "errors", "evidence", ""}


@functools.lru_cache(maxsize=65536)
def generalise(text: str) -> str:
    """`text` with the word that stands for what differs between hosts in the place of that."""
    for pattern, word in GENERAL:
        text = pattern.sub(word, text)
    return text


class Traced(Evidence):
    """Evidence that notes what it is asked for, and denies what is in `denied`."""

    def __init__(self, source: bundle.BundleEvidence, denied: Iterable[Key] = ()) -> None:
        self._source, self._denied = source, frozenset(denied)
        self.manifest = source.manifest
        self.asked: dict[Key, bool] = {}  # in the order of asking -> whether there was an answer

    def _is_denied(self, kind: str, name: str, answered: bool) -> bool:
        key = (kind, generalise(name))
        self.asked[key] = self.asked.get(key, False) or answered
        return key in self._denied

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        found = self._source.read(path, limit)
        return Reading(path, DENIED) if self._is_denied("read", path, found.ok) else found

    def list(self, path: str) -> Listing:
        found = self._source.list(path)
        return Listing(path, DENIED) if self._is_denied("list", path, found.ok) else found

    def start(self, argv: Sequence[str], timeout: float = 30.0) -> None:
        """A recorded host has nothing to begin."""

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        found = self._source.run(argv, timeout)
        return Outcome(tuple(argv), DENIED) if self._is_denied("run", " ".join(argv), found.ok) else found

    def abandon(self) -> None:
        """Nothing was begun."""

    def answer_request(self, request: Request) -> Fetched:
        found = self._source.answer_request(request)
        denied = self._is_denied("fetch", "%s %s" % (request.method, request.url), found.ok)
        return Fetched(request.method, request.url, DENIED, label=request.label) if denied else found

    def now(self) -> float:
        return self._source.now()


@dataclass
class Sources:
    """What the facts of one subject are read from.

    `all_of`: fact -> what it depends on, each by itself. `any_of`: fact -> sources of which one is enough. `instead`:
    source -> what is asked only where that gives nothing. `constant`: facts that are the same on every recorded host,
    whatever is denied; `asked`: all that the reader ever asks for, from which they follow.
    """

    all_of: dict[str, set[Key]] = field(default_factory=lambda: defaultdict(set))
    any_of: dict[str, set[Key]] = field(default_factory=dict)
    instead: dict[Key, list[Key]] = field(default_factory=dict)
    constant: set[str] = field(default_factory=set)
    asked: set[Key] = field(default_factory=set)


def find_sources(subject: str) -> Sources:
    """The sources of the facts of one subject: a name of gather.SUBJECTS, `server`, `probe` or `proxmox`."""
    read_facts = READERS[subject]
    found, seen, everything = Sources(), [], set()
    times: dict[tuple[Key, bool], int] = defaultdict(int)
    denials: list[tuple[bundle.BundleEvidence, Gathered, list[Key]]] = []
    for path in sorted(HOSTS.glob("*.jsonl.gz")):
        host = bundle.load_bundle(str(path))
        traced = Traced(host)
        facts = facts_by_name(read_facts(traced))
        if not facts or traced.asked in seen:  # no host of the kind, or one that shows the same as another
            continue
        seen.append(dict(traced.asked))
        everything |= set(facts)
        denials.append((host, facts, list(traced.asked)))
        for key, answered in traced.asked.items():
            times[key, answered] += 1
            if times[key, answered] > DENIALS:
                continue
            without = Traced(host, [key])
            for name in changed_facts(facts, facts_by_name(read_facts(without))):
                found.all_of[name].add(key)
            later = [other for other in without.asked if other not in traced.asked]
            if later and traced.asked[key]:
                found.instead.setdefault(key, [])
                found.instead[key] += [one for one in later if one not in found.instead[key]]
    asked_anyway = {key for asked in seen for key in asked}
    found.instead = {key: [one for one in others if one not in asked_anyway] for key, others in found.instead.items()}
    for host, facts, keys in denials:
        denial = Denial(read_facts, host, facts)
        for name in facts:
            rest = tuple(key for key in keys if key not in found.all_of.get(name, ()))
            if name not in found.any_of and name in denial.changed(rest):
                found.any_of[name] = denial.smallest(name, rest)
    found.asked = asked_anyway.union(*found.instead.values())
    known = {*found.all_of, *found.any_of}
    for name, changed_keys in sources_in_broken_hosts(subject, found.asked, known).items():
        found.all_of[name] |= changed_keys
        everything.add(name)
    known = {*found.all_of, *found.any_of}
    found.constant = {name for name in everything - known if not any(one.startswith(name + ".") for one in known)}
    return found


def sources_in_broken_hosts(subject: str, asked: set[Key], known: set[str]) -> dict[str, set[Key]]:
    """What the broken hosts of tests/checks add: fact -> what was changed there, for facts that are not `known`."""
    found: dict[str, set[Key]] = defaultdict(set)
    healthy: dict[str, Gathered] = {}
    for broken in broken_hosts():
        place = (harness.BASES[broken.base].get("hypervisor") or {}).get("recording")
        for name, changes in ((broken.base, broken.change), (str(place), broken.hypervisor)):
            changed_keys = {changed_key(change) for change in changes} & asked
            if not changed_keys:
                continue
            if name not in healthy:
                healthy[name] = facts_by_name(READERS[subject](harness.base(name)))
            evidence = harness.evidence_with(harness.base(name), changes, broken.path.name)
            after = facts_by_name(READERS[subject](evidence))
            for fact in changed_facts(healthy[name], after) | (set(after) - set(healthy[name])):
                if fact not in known:
                    found[fact] |= changed_keys
    return found


@functools.cache
def broken_hosts() -> list[Any]:
    return [harness.overlay(path) for path in harness.overlays()]


def changed_key(change: Mapping[str, Any]) -> Key:
    """What a change of a broken fixture changes."""
    kind = next(name for name in ("read", "list", "run", "fetch") if name in change)
    name = change[kind]
    text = name if isinstance(name, str) else " ".join(str(word) for word in name)
    if kind == "fetch":
        text = " ".join(text.split(" ")[:2])
    return kind, generalise(text.replace("/*/", "/0000:01:00.0/"))


class Denial:
    """What becomes of the facts of one host where several things are denied at once."""

    def __init__(self, read_facts: Reader, host: bundle.BundleEvidence, facts: Gathered) -> None:
        self._read_facts, self._host, self._facts = read_facts, host, facts
        self._known: dict[tuple[Key, ...], set[str]] = {}

    def changed(self, denied: tuple[Key, ...]) -> set[str]:
        """The facts that are others then."""
        if denied not in self._known:
            after = facts_by_name(self._read_facts(Traced(self._host, denied)))
            self._known[denied] = changed_facts(self._facts, after)
        return self._known[denied]

    def smallest(self, name: str, keys: tuple[Key, ...]) -> set[Key]:
        """Those of `keys` of which none may be left out if denying them is to change the fact `name`."""
        step = max(1, len(keys) // 2)
        while step:
            place = 0
            while place < len(keys):
                fewer = keys[:place] + keys[place + step :]
                if name in self.changed(fewer):
                    keys = fewer
                else:
                    place += step
            step //= 2
        return set(keys)


def facts_by_name(value: Any) -> Gathered:
    """The facts of one host by name; those of all its GPUs, guests and ports under one name."""
    found: Gathered = defaultdict(set)
    for name, text in walk_facts(value):
        if name.split(".")[0] not in NO_FACTS:
            found[name].add(text)
    return dict(found)


def walk_facts(value: Any, name: str = "", depth: int = 2) -> Iterable[tuple[str, str]]:
    """(fact, value as text). Dictionaries are followed `depth` levels down."""
    if isinstance(value, dict) and value and depth >= 0:
        for key, inner in value.items():
            yield from walk_facts(inner, "%s.%s" % (name, generalise(str(key))) if name else str(key), depth - 1)
    else:
        yield name, json.dumps(value, sort_keys=True, default=str)


def changed_facts(before: Gathered, after: Gathered) -> set[str]:
    """The facts of `before` that are others in `after`, or not there any more."""
    return {name for name, values in before.items() if after.get(name) != values}


def group_facts(found: Sources) -> list[tuple[list[str], list[Key], list[Key]]]:
    """(facts, what they all need, that of which one is enough): facts with the same sources together, and where that is
    so of everything below a name, the name alone."""
    both = {
        name: (frozenset(found.all_of.get(name, ())), frozenset(found.any_of.get(name, ())))
        for name in {*found.all_of, *found.any_of}
    }
    # A dictionary that is empty on one host has entries on another: those say more.
    both = {name: keys for name, keys in both.items() if not any(other.startswith(name + ".") for other in both)}
    grouped: dict[tuple[frozenset[Key], frozenset[Key]], set[str]] = defaultdict(set)
    for name, keys in both.items():
        parts = name.split(".")
        prefixes = [".".join(parts[:length]) for length in range(1, len(parts) + 1)]
        grouped[keys].add(
            next(
                prefix
                for prefix in prefixes
                if {both[other] for other in both if (other + ".").startswith(prefix + ".")} == {keys}
            )
        )
    return sorted((sorted(names), sorted(needed), sorted(one_of)) for (needed, one_of), names in grouped.items())


def read_subject(name: str) -> Reader:
    return lambda evidence: SUBJECTS[name].gather(evidence, Errors(name))


READERS: dict[str, Reader] = {
    **{name: read_subject(name) for name in SUBJECTS},
    "server": lambda evidence: server.gather(evidence, SERVER, Errors("server")),
    "probe": lambda evidence: p2p_probe.gather(evidence, PROBE, Errors("probe")),
    "proxmox": lambda evidence: proxmox.gather(evidence, Errors("proxmox")),
}


def find_sources_of_joined() -> dict[str, set[str]]:
    """Fact of `host.joined` -> the facts that it is computed from, as `host.SUBJECT.FACT`."""
    found: dict[str, set[str]] = defaultdict(set)
    for path in sorted(HOSTS.glob("*.jsonl.gz")):
        host = bundle.load_bundle(str(path))
        facts = {name: READERS[name](host) for name in SUBJECTS}
        before = facts_by_name(cross_facts.join_facts(facts, Errors("joined")))
        for name in before:
            found[name] |= set()
        for subject, values in facts.items():
            for key in values:
                without = {**facts, subject: {**values, key: None}}
                for name in changed_facts(before, facts_by_name(cross_facts.join_facts(without, Errors("joined")))):
                    found[name].add("host.%s.%s" % (subject, key))
    return dict(found)
