"""The host_facts action: which modules run on a host, and what becomes of their answers."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import host_facts
import pytest
from ansible.errors import AnsibleActionFail
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.gpu_host.evidence import bundle as bundles
from ansible.module_utils.gpu_host.probe.wanted import wants_probe
from ansible.module_utils.gpu_server.detection import sees_server

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
    assert wants_probe(facts, mode) is probed


def on_gpu(*processes: dict[str, Any], used: int | None = 4) -> dict[str, Any]:
    """Facts of a host whose GPU is held by these processes, and of one more that is idle."""
    idle = {"processes": [], "memory_used_mib": 4}
    held = {"processes": list(processes), "memory_used_mib": used}
    return {"gpus": {"count": 2, "devices": {"0000:01:00.0": idle, "0000:02:00.0": held}}}


def process(name: str | None, kind: str = "C") -> dict[str, Any]:
    return {"pid": 7, "type": kind, "name": name, "memory_mib": 4096}


@pytest.mark.parametrize(
    ("facts", "seen"),
    [
        (BUSY, "yes"),
        (on_gpu(process("VLLM::Worker_TP0")), "yes"),
        (on_gpu(process("VllmWorker-1")), "yes"),
        (on_gpu(process("/opt/venv/bin/transformers")), "yes"),
        (on_gpu(process("sglang::scheduler_TP0"), process("/usr/bin/Xorg", "G")), "yes"),
        # Their names say nothing: /proc or a unit has to.
        (on_gpu(process("python3")), "if_found"),
        (on_gpu(process("/opt/venv/bin/python3.12")), "if_found"),
        (on_gpu(process("/opt/sglang/bin/python3")), "if_found"),
        (on_gpu(process("pt_main_thread")), "if_found"),
        (on_gpu(process("ray::RayWorkerWrapper")), "if_found"),
        (on_gpu(process(None)), "if_found"),
        (on_gpu(process("[Not Found]")), "if_found"),
        (on_gpu(used=90000), "if_found"),  # in a container: the memory is in use, and the process is hidden
        # No process of an engine holds a GPU: nothing more is run.
        (on_gpu(), "no"),
        (on_gpu(used=None), "no"),
        (on_gpu(process("/usr/bin/Xorg", "G")), "no"),
        (on_gpu(process("/usr/bin/python3", "G")), "no"),  # a desktop's
        (on_gpu(process("./nbody")), "no"),
        ({"gpus": {"devices": {"0000:01:00.0": {"processes": None}}}}, "no"),
        ({"gpus": None}, "no"),
        (RECORDED, "yes"),
    ],
)
def test_when_the_server_is_looked_at(facts: dict[str, Any], seen: str) -> None:
    assert sees_server(facts, "auto") == seen
    assert sees_server(facts, "auto", named=True) == "yes", "the inventory names one"
    assert sees_server(facts, "true") == "yes"
    assert sees_server(facts, "false") == "no"


def gather(
    monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any]], check_mode: bool = False, **args: Any
) -> tuple[dict[str, Any], dict[str, dict[str, Any]]]:
    """(the result, the kinds of facts that were gathered with their arguments) of a live host that gives `answers`.

    Those that were gathered by a module of their own have the key ``apart``.
    """
    asked: dict[str, dict[str, Any]] = {}

    def ask(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
        asked[name] = arguments
        return dict(answers[name])

    def execute(_self: Any, module_name: str, module_args: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        if module_name != "host_facts":
            return ask(module_name, {**module_args, "apart": True})
        assert "server_api_key" not in module_args
        validation = ArgumentSpecValidator(host_facts.ARGUMENT_SPEC).validate(module_args)
        assert validation.error_messages == []
        return host_facts.gather_host(validation.validated_parameters, ask)

    monkeypatch.setattr(action("host_facts").ActionModule, "_execute_module", execute)
    return run("host_facts", args, {"inventory_hostname": "gpu1"}, check_mode), asked


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
        "probe_nccl": "/opt/libnccl.so.2",
        "probe_environment": {"NCCL_DEBUG": "INFO"},
    }
    hung = {"nvidia-smi": "nvidia-smi -q -x: no answer within 30 s"}
    answers = {**ALL, "gpu_facts": fact("gpu_host", {**BUSY, "evidence": {"unanswered": hung}})}
    result, asked = gather(monkeypatch, answers, **args, server_unit="sglang.service", server_expected={"model": "glm"})
    assert sorted(result["ansible_facts"]) == ["gpu_host", "inference_server", "p2p_probe", "proxmox"]
    assert list(asked) == ["gpu_facts", "proxmox_facts", "p2p_facts", "inference_server_facts"]
    assert asked["p2p_facts"] == {
        "when_busy": "force",
        "python": "/opt/python3",
        "nccl_library": "/opt/libnccl.so.2",
        "environment": {"NCCL_DEBUG": "INFO"},
        "unanswered": hung,
    }
    assert asked["inference_server_facts"] == {
        "unit": "sglang.service",
        "generate": "idle",
        "expected": {"model": "glm"},
        "unanswered": hung,
    }
    assert asked["proxmox_facts"]["unanswered"] == hung


def test_a_probe_that_takes_long_says_so_and_runs_by_itself(monkeypatch: pytest.MonkeyPatch) -> None:
    for count, more, apart in ((2, {}, False), (3, {}, True), (2, {"probe_engine_all_reduce": True}, True)):
        answers = {**ALL, "gpu_facts": fact("gpu_host", {**BUSY, "gpus": {**BUSY["gpus"], "count": count}})}
        result, asked = gather(monkeypatch, answers, **more)
        assert sorted(result["ansible_facts"]) == ["gpu_host", "inference_server", "p2p_probe"]
        assert ("apart" in asked["p2p_facts"]) == apart
        assert "apart" not in asked["gpu_facts"] and "apart" not in asked["inference_server_facts"]


def test_the_key_of_a_server_is_given_to_nothing_else(monkeypatch: pytest.MonkeyPatch) -> None:
    """The module that is given a key blots it out of everything that it says: `a` would be in no fact any more."""
    result, asked = gather(monkeypatch, ALL, server_api_key="a")
    assert {name: "apart" in arguments for name, arguments in asked.items()} == {
        "gpu_facts": False,
        "p2p_facts": False,
        "inference_server_facts": True,
    }
    assert asked["inference_server_facts"]["api_key"] == "a"
    assert sorted(result["ansible_facts"]) == ["gpu_host", "inference_server", "p2p_probe"]


def test_the_module_answers_for_this_host_as_the_single_modules_do() -> None:
    found = host_facts.ask_host("gpu_facts", {"gather_subset": ["system"]})
    assert found["ansible_facts"]["gpu_host"]["system"]
    found = host_facts.ask_host("gpu_facts", {"gather_subset": ["no such subject"]})
    assert found["failed"] and "no such subject" in found["msg"]
    found = host_facts.ask_host("p2p_facts", {"buffer_mib": 0})
    assert found == {"failed": True, "msg": "buffer_mib must be at least 1, it is 0"}
    found = host_facts.ask_host("inference_server_facts", {"generate": "perhaps"})
    assert found["failed"] and "generate" in found["msg"]


def test_what_is_not_wanted_does_not_run(monkeypatch: pytest.MonkeyPatch) -> None:
    _result, asked = gather(monkeypatch, ALL, probe="false", server="false")
    assert asked == {"gpu_facts": {"gather_subset": ["all"]}}


def test_a_process_whose_name_says_nothing_is_looked_up_on_the_host(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {**ALL, "gpu_facts": fact("gpu_host", on_gpu(process("python3")))}
    _result, asked = gather(monkeypatch, answers, probe="false")
    assert asked["inference_server_facts"] == {
        "generate": "idle",
        "expected": {},
        "only_if_found": True,
        "unanswered": {},
    }


def test_a_proxmox_host_is_asked_for_a_server_of_its_own(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its evidence decides, as elsewhere; the servers of its containers, whose processes it sees, are not its own."""
    shown = {**on_gpu(process("sglang::scheduler")), "virtualization": {"hypervisor_is_proxmox": True}}
    _result, asked = gather(monkeypatch, {**ALL, "gpu_facts": fact("gpu_host", shown)}, probe="false")
    assert list(asked) == ["gpu_facts", "proxmox_facts", "inference_server_facts"]
    server = asked["inference_server_facts"]
    assert server["outside_containers"] is True and server["only_if_found"] is True
    idle = {**on_gpu(), "virtualization": {"hypervisor_is_proxmox": True}}
    _result, asked = gather(monkeypatch, {**ALL, "gpu_facts": fact("gpu_host", idle)}, probe="false")
    assert list(asked) == ["gpu_facts", "proxmox_facts"]


def test_a_host_whose_gpus_are_free_is_asked_nothing_more(monkeypatch: pytest.MonkeyPatch) -> None:
    answers = {**ALL, "gpu_facts": fact("gpu_host", on_gpu())}
    _result, asked = gather(monkeypatch, answers, probe="false")
    assert list(asked) == ["gpu_facts"]


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


MANIFEST = {"host": "gpu-17", "captured_at": 1.0, "uid": 0}
SHORT = {"read": "/proc/version", "status": "ok", "text": "Lin", "truncated": True}
LONG = {"read": "/proc/version", "status": "ok", "text": "Linux on gpu-17"}
SMI = {"run": ["nvidia-smi", "-L"], "status": "ok", "stdout": "GPU 0", "rc": 0, "seconds": 0.1}


def recorded(key: str, value: Any, *records: dict[str, Any]) -> dict[str, Any]:
    return {**fact(key, value), "bundle_text": bundles.dump_bundle(MANIFEST, records)}


CAPTURED = {
    "gpu_facts": recorded("gpu_host", BUSY, SHORT, SMI),
    "p2p_facts": recorded("p2p_probe", {"ran": True}, {**SMI, "stdout": "GPU 0, later"}),
    "inference_server_facts": recorded("inference_server", None, LONG),
}


def test_one_bundle_holds_every_answer_once(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "new/gpu1.jsonl.gz"
    result, asked = gather(monkeypatch, CAPTURED, capture_dest=str(target))
    assert all(arguments["capture"] is True for arguments in asked.values()) and len(asked) == 3
    assert (result["dest"], result["records"], result["changed"]) == (str(target), 2, True)
    assert "Linux" not in json.dumps(result), "what a bundle holds is in no result"
    assert target.stat().st_mode & 0o777 == 0o600
    written = bundles.load_bundle(str(target))
    assert written.manifest["host"] == "gpu-17"
    assert written.read("/proc/version").text == "Linux on gpu-17", "the longer reading serves both modules"
    assert written.run(["nvidia-smi", "-L"]).text == "GPU 0", "the first answer, which the facts were made of"
    again, _asked = gather(monkeypatch, CAPTURED, capture_dest=str(target))
    assert again["changed"] is False


def test_an_anonymous_bundle_does_not_name_the_host(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "gpu1.jsonl.gz"
    gather(monkeypatch, CAPTURED, capture_dest=str(target), capture_anonymous=True)
    assert bundles.load_bundle(str(target)).manifest["host"] == "host"
    assert bundles.load_bundle(str(target)).read("/proc/version").text == "Linux on host"


def test_check_mode_writes_no_bundle(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    target = tmp_path / "gpu1.jsonl.gz"
    result, _asked = gather(monkeypatch, CAPTURED, check_mode=True, capture_dest=str(target))
    assert result["changed"] is True and not target.exists()


def test_without_a_bundle_nothing_is_recorded(monkeypatch: pytest.MonkeyPatch) -> None:
    result, asked = gather(monkeypatch, ALL)
    assert "dest" not in result and not any("capture" in arguments for arguments in asked.values())


@pytest.mark.parametrize("text", ["junk", ""])
def test_what_is_no_bundle_is_not_written(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, text: str) -> None:
    answers = {**CAPTURED, "p2p_facts": {**CAPTURED["p2p_facts"], "bundle_text": text}}
    with pytest.raises(AnsibleActionFail, match="no bundle"):
        gather(monkeypatch, answers, capture_dest=str(tmp_path / "x"))
    assert list(tmp_path.iterdir()) == []


def test_a_module_that_fails_leaves_the_bundle_alone(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    answers = {**CAPTURED, "p2p_facts": {"failed": True, "msg": "no Python", "bundle_text": "half"}}
    result, _asked = gather(monkeypatch, answers, capture_dest=str(tmp_path / "x"))
    assert result["msg"] == "no Python" and "bundle_text" not in result
    assert list(tmp_path.iterdir()) == []


def test_a_bundle_that_cannot_be_written_is_said(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(AnsibleActionFail, match="cannot be written"):
        gather(monkeypatch, CAPTURED, capture_dest=str(tmp_path / "file/gpu1.jsonl.gz"))


def test_a_recorded_host_captured_again_keeps_its_manifest(tmp_path: Path) -> None:
    source = tmp_path / "one.jsonl"
    source.write_text(bundles.dump_bundle({**MANIFEST, "anonymous": True}, [LONG]))
    modules = SimpleNamespace(find_plugin=lambda name, mod_type: str(ROOT / "library" / (name + mod_type)))
    target = tmp_path / "two.jsonl.gz"
    run("host_facts", {"bundle": str(source), "capture_dest": str(target)}, {}, module_loader=modules)
    assert bundles.load_bundle(str(target)).manifest == {"bundle": 1, **MANIFEST, "anonymous": True}
