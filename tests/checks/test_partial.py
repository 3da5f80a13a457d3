"""What people paste: one command's output, and nothing else of the host.

No pass from what is not there, and no word that is not true.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome

MATRIX = "\tGPU0\tGPU1\nGPU0\tX\t{0}\nGPU1\t{0}\tX\n"


def judged(command: str, text: str) -> dict[str, dict[str, Any]]:
    argv = tuple(command.split())
    records = [bundle.encode_outcome(Outcome(argv, OK, rc=0, stdout=text.encode()))]
    return harness.judge(bundle.BundleEvidence({"captured_at": 1775600000.0}, records), {})


def failed(results: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, result in results.items() if result["status"] in ("fail", "error")}


def passed(results: dict[str, dict[str, Any]]) -> set[str]:
    return {name for name, result in results.items() if result["status"] == "pass"}


def test_a_bundle_without_anything_passes_nothing() -> None:
    results = harness.judge(bundle.BundleEvidence({"captured_at": 1775600000.0}, ()), {})
    assert passed(results) == failed(results) == set()
    unreasoned = {
        name
        for name, result in results.items()
        if result["status"] == "unknown" and "gave no reason" in result["reason"]
    }
    assert unreasoned == set()


def test_reads_alone_grant_nothing_and_accuse_nobody() -> None:
    results = judged("nvidia-smi topo -p2p r", MATRIX.format("OK"))
    assert passed(results) == failed(results) == set()
    assert "topo -p2p w not captured" in results["p2p_granted"]["reason"]
    assert "topo -p2p w not captured" in results["p2p_status_complete"]["reason"]


def test_reads_alone_are_enough_to_see_a_refusal() -> None:
    results = judged("nvidia-smi topo -p2p r", MATRIX.format("CNS"))
    assert failed(results) == {"p2p_granted"}
    assert "systemd-detect-virt" in results["p2p_granted"]["remedy"]["commands"], (
        "nobody knows yet whether it is a virtual machine"
    )


def test_a_damaged_matrix_is_a_failure() -> None:
    results = judged("nvidia-smi topo -p2p r", MATRIX.format("OK").replace("GPU1\tOK\tX\n", ""))
    assert failed(results) == {"p2p_status_complete"} and "(read)" in results["p2p_status_complete"]["found"]


def test_no_devices_says_nothing_of_the_bus() -> None:
    results = judged("nvidia-smi", "No devices were found\n")
    assert failed(results) == {"gpus_found"} and passed(results) == set()
    assert results["gpus_found"]["found"] == "nvidia-smi shows no GPU; whether the PCI bus shows one is not known"
    assert any("NVRM" in command for command in results["gpus_found"]["remedy"]["commands"])


@pytest.mark.parametrize("attached", [1, 4])
def test_one_gpu_read_is_never_called_all(attached: int) -> None:
    answer = harness.base("bare-metal").run(("nvidia-smi", "-q", "-x")).text
    first = answer[: answer.index("</gpu>")] + "</gpu>\n</nvidia_smi_log>\n"
    first = first.replace("<attached_gpus>8<", "<attached_gpus>%d<" % attached).replace(
        "<current_mig>Disabled", "<current_mig>Enabled"
    )
    results = judged("nvidia-smi -q -x", first)
    assert results["gpu_mig_disabled"]["status"] == "fail" and "all" not in results["gpu_mig_disabled"]["found"].split()
    assert results["gpu_mig_disabled"]["found"].endswith(
        "GPU 0 (0000:01:00.0)" if attached == 1 else "GPU at 0000:01:00.0"
    )


@pytest.mark.parametrize(
    "name",
    [
        "p2p_granted.geforce",
        "iommu_not_translating",
        "acs_redirect_off",
        "acs_root_port_redirect_off",
        "chipset_supports_p2p",
        "gpu_bar1_covers_memory",
    ],
)
def test_a_host_that_needs_no_p2p_is_left_in_peace(name: str) -> None:
    """GeForce cards on an ordinary system have none, and what only matters to P2P is then no fault."""
    broken = harness.overlay(harness.BROKEN / (name + ".yml"))
    quiet = harness.judge_overlay(dataclasses.replace(broken, expected={**broken.expected, "p2p": {"required": False}}))
    assert failed(harness.judge_overlay(broken)) >= {broken.check}
    assert quiet[broken.check]["status"] == "skip" and "p2p.required" in quiet[broken.check]["reason"]
