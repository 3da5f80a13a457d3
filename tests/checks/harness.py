"""Judges recorded hosts, healthy or with one piece of evidence changed, by the real readers and the real engine."""

from __future__ import annotations

import difflib
import fnmatch
import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import inference_server_facts
import p2p_facts
import yaml
from ansible.module_utils.gpu_checks import check_files, engine, guest_cards, subject
from ansible.module_utils.gpu_checks.evaluator import TemplarEvaluator
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.interface import (
    ABSENT,
    DENIED,
    FAILED,
    HUNG,
    NOT_CAPTURED,
    OK,
    TIMEOUT,
    Entry,
    Fetched,
    Listing,
    Outcome,
    Reading,
)
from ansible.module_utils.gpu_host.gather import gather
from ansible.module_utils.gpu_host.probe.worker_run import was_to_run
from ansible.module_utils.gpu_host.proxmox import gather_host, may_be_proxmox
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
BROKEN = Path(__file__).resolve().parent / "broken"
BASES: dict[str, dict[str, Any]] = yaml.safe_load((Path(__file__).resolve().parent / "bases.yml").read_text())
STATUSES = {
    "absent": ABSENT,
    "denied": DENIED,
    "failed": FAILED,
    "not_captured": NOT_CAPTURED,
    "timeout": TIMEOUT,
    "hung": HUNG,
}


class OverlayError(Exception):
    """A broken fixture that does not do what it says; the message names the file."""


@dataclass(frozen=True)
class Overlay:
    """One file of tests/checks/broken/; CONTRIBUTING.md describes the format."""

    path: Path
    base: str
    change: list[dict[str, Any]]
    expected: dict[str, Any] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)
    hypervisor: list[dict[str, Any]] = field(default_factory=list)  # changes of the hypervisor's evidence
    also: list[str] = field(default_factory=list)
    status: str = "fail"
    remedy: dict[str, Any] = field(default_factory=dict)  # on, says: [words], not: [words] of the remedy that is chosen
    found: list[str] = field(default_factory=list)  # words of what was found

    @property
    def check(self) -> str:
        """`uvm_loaded.yml` and `uvm_loaded.in_lxc.yml` both break uvm_loaded."""
        return self.path.name.split(".")[0]


def overlay(path: Path) -> Overlay:
    content = yaml.safe_load(path.read_text()) or {}
    known = {"base", "change", "expected", "facts", "hypervisor", "also", "status", "remedy", "found"}
    if set(content) - known or not isinstance(content.get("base"), str):
        raise OverlayError(
            "%s: keys are base (needed) and %s; found %s"
            % (path.name, ", ".join(sorted(known - {"base"})), sorted(content))
        )
    return Overlay(
        path,
        content["base"],
        content.get("change") or [],
        content.get("expected") or {},
        content.get("facts") or {},
        content.get("hypervisor") or [],
        content.get("also") or [],
        content.get("status", "fail"),
        {"on" if key is True else key: value for key, value in (content.get("remedy") or {}).items()},
        content.get("found") or [],
    )


def overlays() -> list[Path]:
    return sorted(BROKEN.glob("*.yml"))


@functools.cache
def base(name: str) -> bundle.BundleEvidence:
    """The recorded host of a base: the file of the same name, or the one that its `recording` names."""
    return bundle.load_bundle(str(HOSTS / (BASES.get(name, {}).get("recording", name) + ".jsonl.gz")))


@functools.cache
def loaded_checks(strict: bool = False) -> tuple[check_files.Check, ...]:
    """The project's checks.

    A fault in one of them is an error; with `strict`, so is a name in `explains` that is no check.
    """
    directory = ROOT / "checks"
    if not list(directory.glob("*.yml")):
        return ()
    loader = DataLoader()
    return tuple(
        check_files.load_checks(
            str(directory), lambda path: loader.load_from_file(path, trusted_as_template=True), strict=strict
        )
    )


def merged(left: dict[str, Any], right: dict[str, Any]) -> dict[str, Any]:
    """`right` over `left`, dictionaries merged at every level."""
    out = dict(left)
    for key, value in right.items():
        both = isinstance(value, dict) and isinstance(out.get(key), dict)
        out[key] = merged(out[key], value) if both else value
    return out


def judge(
    evidence: bundle.BundleEvidence,
    expected: dict[str, Any],
    facts: dict[str, Any] | None = None,
    hypervisor: dict[str, Any] | None = None,
    proxmox: bool = False,
) -> dict[str, dict[str, Any]]:
    """The result of every check on a host, by id.

    `facts` are laid over those from the evidence (probe, server, …); `hypervisor` are the facts of its Proxmox host and
    its number there (hypervisor_of). With `proxmox` the inventory has it in the group proxmox_hosts.
    """
    host = facts_of_host(evidence, expected, facts, hypervisor, proxmox)
    variables = engine.make_variables(host, expected, "host")
    return {result["id"]: result for result in engine.evaluate_checks(loaded_checks(), variables, evaluator(variables))}


def evaluator(variables: dict[str, Any]) -> TemplarEvaluator:
    shared = shared_evaluator()
    shared.use(variables)
    return shared


@functools.cache
def shared_evaluator() -> TemplarEvaluator:
    """One for all hosts, which makes what Jinja compiled ready once."""
    return TemplarEvaluator(Templar(loader=DataLoader()), {})


def facts_of_host(
    evidence: bundle.BundleEvidence,
    expected: dict[str, Any],
    facts: dict[str, Any] | None = None,
    hypervisor: dict[str, Any] | None = None,
    proxmox: bool = False,
    *,
    ask: Callable[[str, Callable[[Any], Any], Any], Any] = lambda _name, reader, evidence: reader(evidence),
) -> dict[str, Any]:
    """`host` of a check. `ask(name, reader, evidence)` calls a reader, or knows its answer already."""
    host = {
        **gather(evidence),
        **ask("probe", probed, evidence),
        **ask("server %s" % expected.get("server"), lambda seen: served(seen, expected), evidence),
    }
    if proxmox or may_be_proxmox(host):
        host["proxmox"] = ask("proxmox", gather_host, evidence)
    subject.describe_place(host, ["proxmox_hosts"] if proxmox else ["gpu_hosts"])
    if hypervisor is not None:
        host["hypervisor"] = subject.describe_hypervisor(host, hypervisor["facts"], "pve1", hypervisor["vmid"])
        add_findings_on_cards(host["hypervisor"], hypervisor["facts"])
        host["inventory"]["proxmox_host"] = "pve1"
    host["inventory"] = {"proxmox_host": "", "hypervisor_fault": "", "hypervisor_unseen": "", **host["inventory"]}
    subject.name_guest(host)
    host = merged(host, facts or {})
    subject.compare_measurements(host)
    return host


def add_findings_on_cards(view: dict[str, Any], hypervisor_facts: dict[str, Any]) -> None:
    seen = subject.make_host(hypervisor_facts)
    subject.describe_place(seen, ["proxmox_hosts"])
    guest_cards.add_findings(view, loaded_checks(), seen, evaluator)


def probed(evidence: bundle.BundleEvidence) -> dict[str, Any]:
    """`host.probe`, where a probe is recorded, or was to be."""
    return {"probe": p2p_facts.facts(evidence, {})["ansible_facts"]["p2p_probe"]} if was_to_run(evidence) else {}


def served(evidence: bundle.BundleEvidence, expected: dict[str, Any]) -> dict[str, Any]:
    """`host.server`, where an inference server is recorded."""
    found = inference_server_facts.facts(evidence, {"expected": expected.get("server") or {}})["ansible_facts"][
        "inference_server"
    ]
    return {} if found is None else {"server": found}


def hypervisor_of(
    settings: dict[str, Any], changes: list[dict[str, Any]] | None = None, name: str = ""
) -> dict[str, Any] | None:
    """{facts, vmid} of the Proxmox host of a base with `hypervisor: {recording, vmid}`, its evidence changed."""
    place = settings.get("hypervisor")
    if place is None:
        if changes:
            raise OverlayError("%s: this base has no hypervisor to change" % name)
        return None
    evidence = base(place["recording"])
    facts = (
        facts_of_hypervisor(evidence_with(evidence, changes, name))
        if changes
        else healthy_hypervisor(place["recording"])
    )
    return {"facts": facts, "vmid": place["vmid"]}


@functools.cache
def healthy_hypervisor(recording: str) -> dict[str, Any]:
    return facts_of_hypervisor(base(recording))


def facts_of_hypervisor(evidence: bundle.BundleEvidence) -> dict[str, Any]:
    """What the facts modules give for a Proxmox host."""
    return {"gpu_host": gather(evidence), "proxmox": gather_host(evidence)}


@functools.cache
def judged_base(name: str) -> dict[str, dict[str, Any]]:
    settings = BASES.get(name, {})
    return judge(
        base(name),
        settings.get("expected", {}),
        settings.get("facts"),
        hypervisor_of(settings),
        bool(settings.get("proxmox")),
    )


def judge_overlay(broken: Overlay) -> dict[str, dict[str, Any]]:
    settings = BASES.get(broken.base)
    if settings is None:
        raise OverlayError("%s: no base %r; there are %s" % (broken.path.name, broken.base, ", ".join(BASES)))
    hypervisor = hypervisor_of(settings, broken.hypervisor, broken.path.name)
    facts = merged(settings.get("facts") or {}, broken.facts)
    expected = merged(settings.get("expected", {}), broken.expected)
    return judge(changed(broken), expected, facts, hypervisor, bool(settings.get("proxmox")))


def changed(broken: Overlay) -> bundle.BundleEvidence:
    """The base with the overlay's changes made. OverlayError where a change changes nothing."""
    return evidence_with(base(broken.base), broken.change, broken.path.name)


def unrecorded_files(broken: Overlay) -> list[str]:
    """A sentence for each file of the overlay of which its base has no record: perhaps its path is misspelt."""
    known = base(broken.base).paths()
    changed_files = [change["read"] for change in broken.change if "*" not in str(change.get("read", "*"))]
    return [
        "%s: %s has no record of %s%s" % (broken.path.name, broken.base, path, near_name(path, known))
        for path in changed_files
        if path not in known
    ]


def near_name(name: str, known: Sequence[str]) -> str:
    near = difflib.get_close_matches(name, known, 1)
    return "; the nearest that it has is %s" % near[0] if near else ""


def evidence_with(original: bundle.BundleEvidence, changes: list[dict[str, Any]], name: str) -> bundle.BundleEvidence:
    """`original` with the changes of a fixture made; OverlayError names the fixture."""
    evidence = original.copy()
    for change in changes:
        kind = next((key for key in ("read", "list", "run", "fetch") if key in change), None)
        if kind is None:
            raise OverlayError("%s: a change needs one of read, list, run, fetch: %s" % (name, change))
        try:
            {"read": _change_files, "list": _change_directory, "run": _change_command, "fetch": _change_answer}[kind](
                evidence, dict(change)
            )
        except OverlayError as error:
            raise OverlayError("%s: %s" % (name, error)) from None
    return evidence


def _change_files(evidence: bundle.BundleEvidence, change: dict[str, Any]) -> None:
    pattern = change.pop("read")
    paths = [path for path in evidence.paths() if fnmatch.fnmatchcase(path, pattern)] if "*" in pattern else [pattern]
    if not paths:
        raise OverlayError("no file of the base matches %s%s" % (pattern, near_name(pattern, evidence.paths())))
    for path in paths:
        old = evidence.read(path)
        if old.status == NOT_CAPTURED and set(change) & {"replace", "append", "bytes"}:
            raise OverlayError("the base has no record of %s%s" % (path, near_name(path, evidence.paths())))
        new = _changed_file(old, dict(change))
        if new == old:
            raise OverlayError("%s: the change changes nothing" % path)
        evidence.add(bundle.encode_reading(new))


def _changed_file(old: Reading, change: dict[str, Any]) -> Reading:
    status = _status(change)
    if status:
        return Reading(old.path, status, reason=str(change.pop("reason", "")))
    if "text" in change:
        return Reading(old.path, OK, str(change.pop("text")).encode(), bool(change.pop("truncated", False)))
    if "replace" in change:
        return replace(old, data=_replaced(_data(old), change.pop("replace"), old.path))
    if "append" in change:
        return replace(old, data=_data(old) + str(change.pop("append")).encode())
    if "bytes" in change:  # offset -> hexadecimal bytes, for configuration space
        data = bytearray(_data(old))
        for offset, value in change.pop("bytes").items():
            new = bytes.fromhex(str(value))
            if int(offset) + len(new) > len(data):
                raise OverlayError("%s has %d bytes, none at %d" % (old.path, len(data), int(offset)))
            data[int(offset) : int(offset) + len(new)] = new
        return replace(old, data=bytes(data))
    raise OverlayError(
        "%s: what to change? (text, replace, append, bytes, absent, denied, failed, not_captured)" % old.path
    )


def _data(reading: Reading) -> bytes:
    if reading.data is None:
        raise OverlayError(
            "%s is %s in the base, so there is nothing to change in it; give it a text" % (reading.path, reading.status)
        )
    return reading.data


def _replaced(data: bytes, table: dict[str, Any], where: str) -> bytes:
    for old, new in table.items():
        if str(old).encode() not in data:
            raise OverlayError("%s: %r does not occur in it" % (where, old))
        data = data.replace(str(old).encode(), str(new).encode())
    return data


def _status(change: dict[str, Any]) -> str | None:
    for word, status in STATUSES.items():
        if change.get(word) is True or change.get("status") == word:
            return status
    return None


def _change_directory(evidence: bundle.BundleEvidence, change: dict[str, Any]) -> None:
    path = change.pop("list")
    old = evidence.list(path)
    status = _status(change)
    if status:
        new = Listing(path, status)
    else:
        entries = dict(old.entries)
        for name in change.get("remove", ()):
            if name not in entries:
                raise OverlayError("%s holds no %s to remove" % (path, name))
            del entries[name]
        entries.update({name: Entry(**entry) for name, entry in change.get("add", {}).items()})
        for name, entry in change.get("set", {}).items():
            if name not in entries:
                raise OverlayError("%s holds no %s to change" % (path, name))
            entries[name] = replace(entries[name], **entry)
        new = Listing(path, OK, entries)
    if new == old:
        raise OverlayError("%s: the change changes nothing" % path)
    evidence.add(bundle.encode_listing(new))


def _change_command(evidence: bundle.BundleEvidence, change: dict[str, Any]) -> None:
    words = change.pop("run")
    argv = tuple(words.split() if isinstance(words, str) else [str(word) for word in words])
    old = evidence.run(argv)
    status = _status(change)
    if status:
        new = Outcome(
            argv, status, reason=str(change.get("reason", "no answer within 30 s" if status in (TIMEOUT, HUNG) else ""))
        )
    else:
        new = Outcome(argv, OK, rc=0) if not old.ok else old
        if "replace" in change:
            if not old.ok:
                raise OverlayError(
                    "%s is %s in the base, so there is nothing to replace in it" % (" ".join(argv), old.status)
                )
            new = replace(new, stdout=_replaced(old.stdout, change["replace"], " ".join(argv)))
        for name in ("stdout", "stderr"):
            if name in change:
                new = replace(new, **{name: str(change[name]).encode()})
        if "append" in change:
            new = replace(new, stdout=new.stdout + str(change["append"]).encode())
        if "rc" in change:
            new = replace(new, rc=int(change["rc"]))
    if new == old:
        raise OverlayError("%s: the change changes nothing" % " ".join(argv))
    evidence.add(bundle.encode_outcome(new))


def _change_answer(evidence: bundle.BundleEvidence, change: dict[str, Any]) -> None:
    """`fetch: POST http://127.0.0.1:8000/v1/completions generation 1` with code, text, replace, or a status."""
    method, url, label = [*str(change.pop("fetch")).split(" ", 2), ""][:3]
    old = evidence.fetch(method, url, label=label)
    status = _status(change)
    if status:
        new = Fetched(
            method,
            url,
            status,
            label=label,
            reason=str(change.get("reason", "no answer within 25 s" if status == TIMEOUT else "")),
        )
    else:
        new = replace(old, status=OK)
        if "replace" in change:
            new = replace(new, data=_replaced(old.data, change["replace"], old.name))
        if "text" in change:
            new = replace(new, data=str(change["text"]).encode())
        if "code" in change:
            new = replace(new, code=int(change["code"]))
    if new == old:
        raise OverlayError("%s: the change changes nothing" % old.name)
    evidence.add(bundle.encode_fetched(new))
