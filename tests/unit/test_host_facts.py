"""The host_facts action: which modules run on a host, and what becomes of their answers."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.gpu_report import gathering

from .test_run_checks import ROOT, action, run

BUSY = {
    "gpus": {
        "count": 1,
        "devices": {"0000:01:00.0": {"processes": [{"name": None}, {"name": "sglang::scheduler_TP0"}]}},
    }
}
RECORDED = {"evidence": {"recorded": True, "probe_recorded": False}, "gpus": {"count": 8}}


@pytest.mark.parametrize(
    ("facts", "mode", "probed"),
    [
        (BUSY, "auto", True),
        ({"gpus": {"count": 0}}, "auto", False),
        ({"gpus": {"count": None}}, "auto", False),
        ({"gpus": None}, "auto", False),
        (RECORDED, "auto", False),
        ({**RECORDED, "evidence": {"recorded": True, "probe_recorded": True}}, "auto", True),
        ({"gpus": None}, "true", True),
        (RECORDED, "force", True),
        (BUSY, "false", False),
    ],
)
def test_when_p2p_is_proven(facts: dict[str, Any], mode: str, probed: bool) -> None:
    assert gathering.probes(facts, mode) is probed


@pytest.mark.parametrize(
    ("facts", "mode", "seen"),
    [
        (BUSY, "auto", True),
        ({"gpus": {"devices": {"0000:01:00.0": {"processes": [{"name": "VLLM::Worker"}]}}}}, "auto", True),
        ({"gpus": {"devices": {"0000:01:00.0": {"processes": [{"name": "/usr/bin/Xorg"}]}}}}, "auto", False),
        ({"gpus": {"devices": {"0000:01:00.0": {"processes": None}}}}, "auto", False),
        ({"gpus": None}, "auto", False),
        (RECORDED, "auto", True),
        ({"gpus": None}, "true", True),
        (BUSY, "false", False),
    ],
)
def test_when_the_server_is_looked_at(facts: dict[str, Any], mode: str, seen: bool) -> None:
    assert gathering.sees_server(facts, mode) is seen


def gather(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any]], **args: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(the result, the modules that ran with their arguments) of a live host whose modules give `answers`."""
    asked: dict[str, dict[str, Any]] = {}

    def execute(_self: Any, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        asked[module_name] = module_args
        return answers[module_name]

    monkeypatch.setattr(action("host_facts").ActionModule, "_execute_module", execute)
    return run("host_facts", args, {"inventory_hostname": "gpu1"}), asked


def fact(key: str, value: Any) -> dict[str, Any]:
    return {"changed": False, "ansible_facts": {key: value}}


ALL = {
    "gpu_facts": fact("gpu_host", BUSY),
    "proxmox_facts": fact("proxmox", {"vms": {}}),
    "p2p_facts": fact("p2p_probe", {"ran": True}),
    "inference_server_facts": fact("inference_server", {"state": "ready"}),
}


def test_every_kind_in_one_task(monkeypatch: pytest.MonkeyPatch) -> None:
    args = {
        "proxmox": True,
        "probe": "force",
        "probe_python": "/opt/python3",
        "probe_environment": {"NCCL_DEBUG": "INFO"},
    }
    result, asked = gather(monkeypatch, ALL, **args, server_unit="sglang.service", server_expected={"model": "glm"})
    assert sorted(result["ansible_facts"]) == ["gpu_host", "inference_server", "p2p_probe", "proxmox"]
    assert list(asked) == ["gpu_facts", "proxmox_facts", "p2p_facts", "inference_server_facts"]
    assert asked["p2p_facts"] == {"when_busy": "force", "python": "/opt/python3", "environment": {"NCCL_DEBUG": "INFO"}}
    assert asked["inference_server_facts"] == {
        "unit": "sglang.service",
        "generate": "idle",
        "expected": {"model": "glm"},
    }


def test_what_is_not_wanted_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _result, asked = gather(monkeypatch, ALL, probe="false", server="false")
    assert asked == {"gpu_facts": {"gather_subset": ["all"]}}


@pytest.mark.parametrize("broken", ["gpu_facts", "p2p_facts", "inference_server_facts"])
@pytest.mark.parametrize("fault", [{"failed": True, "msg": "it broke"}, {"unreachable": True, "msg": "gone"}])
def test_the_first_failure_ends_it(monkeypatch: pytest.MonkeyPatch, broken: str, fault: dict[str, Any]) -> None:
    result, asked = gather(monkeypatch, {**ALL, broken: fault})
    assert {**result, **fault} == result
    assert list(asked)[-1] == broken
    assert ("gpu_host" in result["ansible_facts"]) == (broken != "gpu_facts"), "what was gathered before is kept"


def test_a_misspelt_mode() -> None:
    with pytest.raises(AnsibleActionFail, match="probe must be one of"):
        run("host_facts", {"probe": "yes please"}, {})


def test_a_recorded_host_on_the_controller() -> None:
    modules = SimpleNamespace(find_plugin=lambda name, mod_type: str(ROOT / "library" / (name + mod_type)))
    bundle = str(ROOT / "tests/fixtures/hosts/h200-x2.jsonl.gz")
    result = run("host_facts", {"bundle": bundle}, {}, module_loader=modules)
    assert result["ansible_facts"]["p2p_probe"]["ran"] is True
    assert "inference_server" in result["ansible_facts"]
