"""A healthy recorded host passes or skips every check: no noise."""

from __future__ import annotations

from typing import Any

import harness
import inference_server_facts
import pytest

# What a recording lacks, and the checks that are unknown for that. h200-x1-engine was captured on a real host whose
# server writes its log to a file, before capture.yml asked /proc/PID/fd which one: its log is not in the bundle.
# None of the real hosts was asked for error counters (sysfs, nvidia-smi nvlink -e): their captures are older.
_COUNTERS = {"pcie_uncorrected_errors_none", "pcie_replays_few"}
_LOG = {"server_log_without_fault", "p2p_engaged", "server_not_saturated", "server_gdr_engaged"}
RECORDED_WITHOUT = {
    "h200-x1": _COUNTERS,
    "h200-x1-engine": _COUNTERS | _LOG,
}
SHOWN = ("status", "severity", "found", "reason", "failed_condition")


def listed(results: dict[str, dict[str, Any]], statuses: tuple[str, ...]) -> dict[str, dict[str, Any]]:
    return {
        name: {key: result[key] for key in SHOWN if result[key]}
        for name, result in results.items()
        if result["status"] in statuses
    }


@pytest.mark.parametrize("host", sorted(harness.BASES))
def test_no_check_fails_on_a_healthy_host(host: str) -> None:
    assert listed(harness.judged_base(host), ("fail", "error")) == {}


@pytest.mark.parametrize("host", sorted(harness.BASES))
def test_nothing_that_decides_is_unknown_on_a_healthy_host(host: str) -> None:
    unknown = listed(harness.judged_base(host), ("unknown",))
    deciding = {name: result for name, result in unknown.items() if result["severity"] == "error"}
    assert deciding == {}
    assert set(unknown) == RECORDED_WITHOUT.get(host, set()), unknown


def test_an_ordinary_user_sees_unknown_not_wrong() -> None:
    """The bare-metal host, seen without root.

    What needs root says so, nothing fails, and what needs no root still passes.
    """
    results = harness.judge(harness.base("unprivileged"), harness.BASES["bare-metal"]["expected"])
    assert listed(results, ("fail", "error")) == {}
    unknown = {name: result for name, result in results.items() if result["status"] == "unknown"}
    assert {name for name, result in unknown.items() if not result["needs_root"]} == set(), listed(
        results, ("unknown",)
    )
    assert unknown, "configuration space and the kernel log cannot be read without root"
    passed = {name for name, result in results.items() if result["status"] == "pass"}
    assert {"p2p_granted", "gpu_bars_assigned", "driver_versions_agree"} <= passed


def test_the_kvm_guest_of_the_story_fails_because_of_its_chipset() -> None:
    results = harness.judge(harness.base("kvm-story"), {"gpus": {"count": 8}})
    bad = {
        name: result
        for name, result in results.items()
        if result["status"] in ("fail", "error", "unknown") and result["severity"] == "error"
    }
    assert set(bad) == {"chipset_supports_p2p", "p2p_granted"}, listed(results, ("fail", "error", "unknown"))
    assert bad["chipset_supports_p2p"]["root_cause"] is True
    assert bad["p2p_granted"]["caused_by"] == ["chipset_supports_p2p"]
    assert "i440" in bad["chipset_supports_p2p"]["found"]
    assert "q35" in str(bad["chipset_supports_p2p"]["remedy"]).lower()
    assert "56 of 56" in bad["p2p_granted"]["found"]


def test_a_host_without_gpus_says_little() -> None:
    results = harness.judged_base("no-gpu")
    assert sum(result["status"] == "skip" for result in results.values()) > len(results) // 2


def test_a_real_sglang_on_two_gpus_with_p2p_switched_off() -> None:
    """SGLang 0.5.17, --tp 2, NCCL_P2P_DISABLE=1: it serves, and the one finding is that P2P is off where the driver
    grants it."""
    evidence = harness.base("h200-x2-engine")
    given = {"log": "/tmp/out/without_p2p.log", "expected": {"model": "tiny"}}
    server = inference_server_facts.facts(evidence, given)["ansible_facts"]["inference_server"]
    assert [rank["gpu"] for rank in server["ranks"]] == ["0000:00:06.0", "0000:00:07.0"]
    assert server["log"]["nccl"]["transports"] == {"SHM": ["0->1", "1->0"]} and server["gpu"]["shared"] == []
    results = harness.judge(evidence, {"gpus": {"count": 2}, "server": {"model": "tiny"}}, {"server": server})
    assert set(listed(results, ("fail", "error"))) == {"nccl_p2p_not_disabled", "p2p_engaged"}
    deciding = {name for name, one in results.items() if one["status"] == "unknown" and one["severity"] == "error"}
    assert deciding == set()
