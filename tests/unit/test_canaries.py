"""No secret leaves: every form of one, planted in every place that is read, is in no bundle, no fact and no report."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import check_cache, engine, verdict
from ansible.module_utils.gpu_host.evidence import bundle, describe_bundle, live, secrets
from ansible.module_utils.gpu_host.evidence.anonymise import anonymise_bundle
from ansible.module_utils.gpu_host.loose import case
from ansible.module_utils.gpu_report import collector, digest, reason, terminal, writers

from . import canaries
from .test_run_checks import action

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
for folder in ("tests/checks", "library", "scripts"):
    sys.path.insert(0, str(ROOT / folder))

import fact_sources
import harness
import loose_cases

NAMES = sorted(path.name.split(".")[0] for path in HOSTS.glob("*.jsonl.gz"))
# Between them: a server, a guest, a container, and Proxmox hosts with VMs and containers.
JUDGED = {
    "serving": False,
    "docker": False,
    "kubernetes": False,
    "kvm-story": False,
    "lxc-story": False,
    "pve-kvm": True,
    "pve-lxc": True,
}
HOSTS_JUDGED = [
    name if name in ("serving", "pve-lxc") else pytest.param(name, marks=pytest.mark.long) for name in JUDGED
]


def test_there_are_enough_forms_and_each_holds_its_secret() -> None:
    forms = canaries.planted()
    assert len(forms) >= 120 and len({text for _value, text in forms}) == len(forms)
    for value, text in forms:
        assert value.lower() in text.lower(), text


def test_a_leak_is_found() -> None:
    assert len(canaries.find_leaks(canaries.lines())) == len(canaries.planted())


@pytest.mark.parametrize(
    "path",
    [
        "/etc/modprobe.d/x.conf",
        "/proc/cmdline",
        "/proc/7/cmdline",
        "/proc/7/environ",
        "/etc/pve/qemu-server/101.conf",
        "/etc/pve/lxc/102.conf",
        "/hypervisor/etc/pve/qemu-server/101.conf",
        "/root/server.log",
        "/sys/module/x/parameters/y",
    ],
)
def test_no_form_comes_through_a_file(path: str) -> None:
    plant = canaries.place_of("read", path)
    assert plant is not None
    seeded = plant("").encode()
    masked = secrets.redact_file(path, seeded)
    assert canaries.find_leaks(masked.decode()) == []
    assert secrets.redact_file(path, masked) == masked, "masking twice is masking once"


def test_no_form_comes_through_a_text_alone() -> None:
    """Also where no line beside it gives it away."""
    leaked = [
        text for value, text in canaries.planted() if canaries.find_leaks(secrets.redact_text(text.encode()).decode())
    ]
    assert leaked == []


def test_no_form_comes_through_json_that_stays_json() -> None:
    seeded = canaries.into_json('{"model": "m"}')
    masked = secrets.redact_text(seeded.encode()).decode()
    assert canaries.find_leaks(masked) == []
    assert json.loads(masked)["model"] == "m"


@pytest.mark.slow
@pytest.mark.parametrize(
    "command", ["docker inspect x", "podman inspect x", "crictl inspect x", "docker image inspect x"]
)
def test_no_form_comes_through_what_a_container_runtime_says(command: str) -> None:
    """By place: an unknown variable, label or option is masked whatever it looks like."""
    seeded = canaries.into_container_json("[]").encode()
    masked = secrets.redact_output(command.split(), seeded)
    assert canaries.find_leaks(masked.decode()) == []
    assert secrets.redact_output(command.split(), masked) == masked, "masking twice is masking once"
    kept = json.loads(masked)[0]
    assert kept["Config"]["Labels"]["io.kubernetes.pod.name"] == "p" and kept["State"]["Health"]["Status"] == "healthy"


def test_a_part_of_what_a_container_runtime_says_is_dropped_whole() -> None:
    seeded = canaries.into_container_json("[]").encode()
    for part in (seeded[: len(seeded) // 2], seeded[5:], b'"%s"' % canaries.value_of(0).encode()):
        assert secrets.redact_output(["docker", "inspect", "x"], part) == secrets.MASK


def bundle_text(manifest: dict[str, Any], records: Iterable[dict[str, Any]]) -> str:
    """Not by dump_bundle, which masks: a bundle of another hand."""
    lines = [json.dumps({"bundle": 1, **manifest, "note": canaries.lines()})]
    return "\n".join([*lines, *map(json.dumps, records)]) + "\n"


@cache
def seeded_host(name: str) -> str:
    path = HOSTS / (name + ".jsonl.gz")
    original = bundle.load_bundle(str(path))
    return bundle_text(original.manifest, canaries.seed_records(original.records()))


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS_JUDGED)
def test_nothing_planted_is_in_a_bundle(name: str) -> None:
    """Joined and written as capture.yml does it, anonymous or not, and shown as text."""
    text, _count = bundle.join_bundles([seeded_host(name)])
    assert canaries.find_leaks(text) == []
    assert text.count(secrets.MASK.decode()) > 1000, "little was planted"
    anonymous = anonymise_bundle(text)
    assert canaries.find_leaks(anonymous) == []
    assert canaries.find_leaks("\n".join(describe_bundle.show_bundle(bundle.parse_bundle(text.encode())))) == []
    assert canaries.find_leaks("\n".join(describe_bundle.summarise_bundle(text))) == []


@pytest.mark.slow
@pytest.mark.parametrize("name", HOSTS_JUDGED)
def test_nothing_planted_is_in_facts_results_and_reports(name: str) -> None:
    recorder = bundle.RecordingEvidence(bundle.parse_bundle(seeded_host(name).encode()))
    evidence: Any = recorder
    evidence.manifest = recorder.source_manifest
    facts = harness.facts_of_host(evidence, {}, proxmox=JUDGED[name])
    assert canaries.find_leaks(json.dumps(facts, default=str)) == []
    assert canaries.find_leaks(bundle.dump_bundle(recorder.source_manifest, recorder.records)) == []
    check_results(facts)


def check_results(facts: dict[str, Any]) -> None:
    variables = engine.make_variables(facts, {}, "host")
    results = engine.evaluate_checks(harness.loaded_checks(), variables, harness.evaluator(variables))
    assert any(result["status"] == "fail" for result in results)
    assert canaries.find_leaks(json.dumps(results, default=str)) == []
    definitions = {result["id"]: {key: result[key] for key in check_cache.OF_THE_CHECK} for result in results}
    found = collector.Collector(lambda _directory: definitions)
    judged = {**verdict.summarise_verdict(results, ()), "checks_dir": check_cache.OWN}
    found.results("host", {**judged, "report_facts": json.dumps(digest.digest_facts(facts))})
    report = found.report(
        {"playbook": "validate.yml", "started_at": "2026-01-02T03:04:05+00:00", "seconds": 1.0, "ansible_core": "2.21"}
    )
    for file, render in writers.WRITERS.items():
        assert canaries.find_leaks(render(report).decode()) == [], file
    assert canaries.find_leaks(reason.render_reasons(report).decode()) == []
    for verbosity in (0, 3):
        lines = terminal.render_terminal(report, 100, verbosity)
        assert canaries.find_leaks("\n".join(str(line) for line in lines)) == []


@cache
def asked_sources() -> frozenset[tuple[str, str]]:
    """(how, what) of everything that a reader asks a recorded host for."""
    found: set[tuple[str, str]] = set()
    for name in NAMES:
        host = bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz")))
        for read_facts in fact_sources.READERS.values():
            traced = fact_sources.Traced(host)
            read_facts(traced)
            found.update(traced.asked)
        found.update((kind, fact_sources.generalise(what)) for kind, what in map(canaries.question_of, host.records()))
    return frozenset(found)


def test_every_source_has_its_canaries() -> None:
    """A reader that asks for something new: say in PLACES how a secret comes into it."""
    assert len(asked_sources()) > 150
    assert sorted(key for key in asked_sources() if canaries.place_of(*key) is None) == []


def test_every_place_is_one_that_is_asked_for() -> None:
    """No row of PLACES is left over from a source that nobody asks for any more."""
    sources = asked_sources()
    used = {
        next(i for i, row in enumerate(canaries.PLACES) if row[0] == kind and canaries.re.fullmatch(row[1], what))
        for kind, what in sources
    }
    unused = [row[1] for index, row in enumerate(canaries.PLACES) if index not in used]
    assert unused == []


def test_a_live_host_is_masked_where_it_is_read(tmp_path: Path) -> None:
    for path, plant in (("etc/x.conf", canaries.into_text), ("etc/pve/qemu-server/1.conf", canaries.into_guest)):
        (tmp_path / path).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / path).write_text(plant(""))
    host = live.LiveEvidence(str(tmp_path))
    for path in ("/etc/x.conf", "/etc/pve/qemu-server/1.conf"):
        reading = host.read(path)
        assert reading.ok and canaries.find_leaks(reading.text) == []
    outcome = live.LiveEvidence().run(["sh", "-c", 'cat "$1"; cat "$1" >&2', "sh", str(tmp_path / "etc/x.conf")])
    assert outcome.rc == 0 and secrets.MASK in outcome.stdout
    assert canaries.find_leaks(outcome.text + outcome.error_text) == []


@pytest.mark.parametrize(
    "name", sorted(path.name for path in loose_cases.LOOSE.iterdir() if path.suffix in (".txt", ".log", ".md"))
)
def test_nothing_planted_comes_through_what_was_handed_in(name: str, tmp_path: Path) -> None:
    """Loose files: in the records, in the names of pieces, and in what is said of the rest."""
    prompts = "".join("root@box:~# %s\n" % text for _value, text in canaries.planted() if "\n" not in text)
    path = tmp_path / name
    path.write_text((loose_cases.LOOSE / name).read_text() + "\n" + prompts + canaries.lines())
    found = case.load_case(str(path))
    assert canaries.find_leaks(bundle.dump_bundle(found.manifest, found.records())) == []
    assert canaries.find_leaks(json.dumps(found.manifest)) == []
    assert canaries.find_leaks(json.dumps(loose_cases.facts_of(path), default=str)) == []


def test_a_configuration_of_a_guest_that_was_handed_in(tmp_path: Path) -> None:
    value = canaries.value_of(1)
    added = "description: %s\n#%s\ncipassword: %s\nsshkeys: ssh-rsa%%20%s\nsmbios1: serial=%s\n"
    added += "args: -object secret,id=s,data=%s\n"
    path = tmp_path / "101.conf"
    path.write_text(
        (loose_cases.LOOSE / "pve" / "101.conf").read_text() + added.replace("%s", value).replace("%%", "%")
    )
    found = case.load_case(str(tmp_path))
    text = bundle.dump_bundle(found.manifest, found.records())
    assert canaries.find_leaks(text) == [] and "cipassword: ***" in text


def test_nothing_recognised_is_said_without_what_stood_there(tmp_path: Path) -> None:
    (tmp_path / "a").write_text("root@box:~# docker login -p %s\nok\n" % canaries.value_of(1))
    (tmp_path / "b").write_text("nothing\n")
    with pytest.raises(bundle.BundleError) as raised:
        case.load_case(str(tmp_path))
    assert canaries.find_leaks(str(raised.value)) == []


@pytest.mark.parametrize("capture", [True, False])
def test_the_connection_prints_no_answer_that_holds_evidence(capture: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    """ssh prints the module's answer from -vvv on, unless the task's context says no_log."""
    plugin = action("gpu_facts").ActionModule
    made = plugin.__new__(plugin)
    context = SimpleNamespace(no_log=False)
    made._connection = SimpleNamespace(_play_context=context, transport="ssh")
    seen: list[bool] = []
    monkeypatch.setattr(
        made, "_execute_module", lambda **_more: seen.append(context.no_log) or {"ok": 1}, raising=False
    )
    assert made.facts_of("gpu_facts", {"capture": capture}, None, {}) == {"ok": 1}
    assert seen == [capture] and context.no_log is False
