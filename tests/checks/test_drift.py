"""What changed since a baseline, and what that explains: the recorded hosts, and the same with one thing broken."""

from __future__ import annotations

import functools
import json
from pathlib import Path
from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_checks import engine, verdict
from ansible.module_utils.gpu_compare import baseline, drift
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.anonymise import anonymise_bundle

Look = tuple[dict[str, Any], list[dict[str, Any]]]
SAVED_AT = "2026-11-12T08:00:00+00:00"


def look_at(evidence: bundle.BundleEvidence, base: str) -> Look:
    settings = harness.BASES[base]
    expected = settings.get("expected", {})
    hypervisor, proxmox = harness.hypervisor_of(settings), bool(settings.get("proxmox"))
    host = harness.facts_of_host(evidence, expected, settings.get("facts"), hypervisor, proxmox)
    variables = engine.make_variables(host, expected, "host")
    return host, engine.evaluate_checks(harness.loaded_checks(), variables, harness.evaluator(variables))


def saved(look: Look) -> dict[str, Any]:
    host, results = look
    made = baseline.make_baseline("gpu1", host, results, verdict.summarise_verdict(results), SAVED_AT)
    return baseline.decode_baseline(baseline.encode_baseline(made))


@functools.cache
def healthy(base: str) -> Look:
    return look_at(harness.base(base), base)


@functools.cache
def baseline_of(base: str) -> dict[str, Any]:
    return saved(healthy(base))


def drift_of(base: str, look: Look) -> dict[str, Any]:
    found = drift.describe_drift(baseline_of(base), *look, harness.loaded_checks())
    json.dumps(found)
    return found


def broken(name: str) -> dict[str, Any]:
    overlay = harness.overlay(harness.BROKEN / (name + ".yml"))
    return drift_of(overlay.base, look_at(harness.changed(overlay), overlay.base))


def explained(found: dict[str, Any]) -> dict[str, list[str]]:
    return {change["text"]: change["explains"] for change in found["changes"]}


@pytest.mark.parametrize("base", sorted(harness.BASES))
def test_a_host_differs_in_nothing_from_itself(base: str) -> None:
    found = drift_of(base, healthy(base))
    assert (found["state"], found["changes"], found["unknown_now"]) == ("same", [], [])
    assert (found["new_findings"], found["unexplained"], found["mended"]) == ([], [], [])


@pytest.mark.parametrize("base", sorted(harness.BASES))
def test_a_baseline_is_small_and_holds_no_noise(base: str) -> None:
    made = baseline_of(base)
    assert len(baseline.encode_baseline(made)) < 400_000
    facts = made["facts"]
    assert "kernel_log" not in facts and "evidence" not in facts and "uptime_s" not in facts.get("system", {})
    for card in (facts["gpus"]["devices"] or {}).values():
        assert "temperature_c" not in card and "power_draw_w" not in card and "vbios_version" in card


@pytest.mark.parametrize(
    ("name", "text", "check"),
    [
        ("gpu_vbios_uniform", "VBIOS of GPU 7 (0000:f1:00.0): 98.02.67.00.0A -> 98.02.55.00.0A", "gpu_vbios_uniform"),
        ("driver_built_for_kernel.older_than_the_kernel", "kernel: 6.8.0-64-generic -> 6.14.8-2-pve", ""),
        ("gpu_link_width_full", "link width of all 8 GPUs: 16 -> 8", "gpu_link_width_full"),
        ("uvm_hmm_disabled", "option uvm_disable_hmm of nvidia_uvm: yes -> no", "uvm_hmm_off_where_risky"),
        ("p2p_granted", "P2P read of 56 pairs (GPU 0->GPU 1, GPU 0->GPU 2 and 54 more): OK -> CNS", "p2p_granted"),
        ("acs_redirect_off", "ACS request_redirect of 0000:60:01.1: no -> yes", "acs_redirect_off"),
        (
            "p2p_fast",
            "P2P bandwidth of 24 pairs (GPU 0->GPU 1, GPU 0->GPU 2 and 22 more): 55.4 -> 32.5 GB/s (-41 % at most)",
            "p2p_fast",
        ),
    ],
)
def test_a_change_is_told_and_explains_what_reads_it(name: str, text: str, check: str) -> None:
    found = broken(name)
    wanted = check or name.partition(".")[0]
    assert wanted in explained(found)[text]
    assert wanted in found["new_findings"] and wanted not in found["unexplained"]
    assert wanted in found["changes"][0]["explains"], "what explains a finding comes first"


def test_one_option_explains_nothing_that_reads_another() -> None:
    changes = explained(broken("uvm_hmm_disabled"))
    assert changes["options of nvidia_uvm in the files: without uvm_disable_hmm"] == []


def changed_host(base: str, changes: list[dict[str, Any]]) -> dict[str, Any]:
    return drift_of(base, look_at(harness.evidence_with(harness.base(base), changes, "test"), base))


SMI = ["nvidia-smi", "-q", "-x"]


def test_noise_is_not_told() -> None:
    found = changed_host(
        "bare-metal",
        [
            {"run": SMI, "replace": {"27 C</gpu_temp>": "61 C</gpu_temp>", "<fb_memory_usage>": "<fb_memory_usage>"}},
            {"read": "/proc/uptime", "text": "12.00 24.00\n"},
        ],
    )
    assert found["changes"] == []


def test_unknown_is_no_change_and_is_told_apart() -> None:
    found = changed_host(
        "bare-metal", [{"run": SMI, "status": "timeout"}, {"run": ["nvidia-smi", "-q"], "status": "timeout"}]
    )
    assert "VBIOS" not in " ".join(explained(found))
    assert "GPU model" in found["unknown_now"]


def test_what_another_version_of_the_project_did_not_know_is_not_compared() -> None:
    host, results = healthy("bare-metal")
    old = json.loads(json.dumps(baseline_of("bare-metal")))
    del old["facts"]["driver"]["version"], old["facts"]["iommu"], old["checks"]["pass"]
    for card in old["facts"]["gpus"]["devices"].values():
        card["of_a_later_version"] = 1
        del card["vbios_version"]
    found = drift.describe_drift(old, host, results, harness.loaded_checks())
    assert (found["state"], found["unknown_now"], found["new_findings"]) == ("same", [], [])


def test_what_is_mended_is_told() -> None:
    overlay = harness.overlay(harness.BROKEN / "gpu_link_width_full.yml")
    before = saved(look_at(harness.changed(overlay), overlay.base))
    found = drift.describe_drift(before, *healthy("bare-metal"), harness.loaded_checks())
    assert found["mended"] == ["gpu_link_width_full"] and found["new_findings"] == []
    assert "link width of all 8 GPUs: 8 -> 16" in explained(found)


def test_an_anonymous_bundle_is_compared_by_the_places_of_its_cards() -> None:
    original = harness.base("bare-metal")
    text = anonymise_bundle(bundle.dump_bundle(original.manifest, original.records()))
    found = drift_of("bare-metal", look_at(bundle.parse_bundle(text.encode()), "bare-metal"))
    assert found["state"] in ("same", "changed")
    assert [change for change in found["changes"] if change["fact"].startswith(("gpus", "p2p", "pci"))] == []


def test_another_machine_is_told_and_not_compared() -> None:
    found = drift_of("bare-metal", healthy("rdma"))
    assert found["state"] == "other_machine" and found["changes"] == []
    assert found["message"].startswith("the baseline is of another machine (its DMI UUID ")


@pytest.mark.long
@pytest.mark.slow
def test_every_broken_host_is_compared_without_a_fault() -> None:
    for path in sorted(Path(harness.BROKEN).glob("*.yml"))[::12]:
        overlay = harness.overlay(path)
        if not overlay.hypervisor and not overlay.facts:
            drift_of(overlay.base, look_at(harness.changed(overlay), overlay.base))
