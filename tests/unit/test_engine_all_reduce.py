"""The engine's own all-reduce on stand-ins for PyTorch and SGLang: right, wrong, hung, not used, not there."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.probe import engine_all_reduce
from probe_library import A, B, C

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "hosts" / "h200-x2.jsonl.gz"
PACKAGES = Path(__file__).resolve().parents[1] / "fixtures" / "engine_all_reduce"


@pytest.fixture
def quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine_all_reduce, "SIZES", (64, 256))
    monkeypatch.setattr(engine_all_reduce, "MOST_BYTES", 1024)
    monkeypatch.setattr(engine_all_reduce, "CALLS", 5)
    monkeypatch.setattr(engine_all_reduce, "REPLAYS", 2)
    monkeypatch.setattr(engine_all_reduce, "STEP_LIMIT_S", 1.5)


def run(gpus: tuple[str, ...] = (A, B), **steered: str) -> tuple[dict[str, Any], dict[str, Any]]:
    environment = {"PYTHONPATH": str(PACKAGES), **steered}
    raw = engine_all_reduce.run_engine(sys.executable, "sglang", gpus, environment)
    return raw, engine_all_reduce.summarise_engine(raw, None)


@pytest.mark.usefixtures("quick")
def test_an_engine_that_sums_right_needs_no_flag() -> None:
    _, found = run()
    assert (found["verdict"], found["needed"], found["used"]) == ("ok", False, True)
    assert (found["engine"], found["version"], found["kind"]) == ("sglang", "0.5.17", "CustomAllreduce")
    # It takes all that was tried (1024 bytes): half of that and that are tried, too.
    assert found["largest_bytes"] == 1024 and set(found["sizes"]) == {"64", "256", "512", "1024"}
    for ways in found["sizes"].values():
        assert ways["eager"]["calls"] == 2 * 5 and ways["eager"]["wrong"] == 0
        assert ways["graph"]["calls"] == 2 * 2 * 4 and ways["graph"]["wrong"] == 0 and ways["graph"]["latency_us"] > 0


@pytest.mark.slow
@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize(
    ("steered", "verdict", "said"),
    [
        ({"FAKE_WRONG": "1@256"}, "wrong_values", "256 bytes: 5 of 10 calls give wrong values on %s, the first" % B),
        ({"FAKE_STALE": "1"}, "wrong_values", "64 bytes in a CUDA graph: 8 of 16 calls give wrong values on"),
        ({"FAKE_HANG": "0@256"}, "hangs", "waits in 'the engine's all-reduce of 256 bytes'"),
        ({"FAKE_CRASH": "1@256"}, "fails", "rank 1 (%s) ended with signal SIGABRT in the stage" % B),
    ],
)
def test_an_engine_that_goes_wrong_needs_the_flag(steered: dict[str, str], verdict: str, said: str) -> None:
    _, found = run(**steered)
    assert (found["verdict"], found["needed"]) == (verdict, True)
    assert said in found["explanation"], found["explanation"]


@pytest.mark.usefixtures("quick")
@pytest.mark.parametrize("steered", [{"FAKE_DISABLED": "of PCIe"}, {"FAKE_BROKEN": "of PCIe"}])
def test_what_the_engine_does_not_use_is_not_judged(steered: dict[str, str]) -> None:
    raw, found = run((A, B, C), **steered)
    assert (found["verdict"], found["needed"], found["sizes"]) == ("not_used", False, {})
    assert "of PCIe" in found["why_not"]
    assert [one["gpus"] for one in raw["runs"]] == [3, 2]  # two GPUs have rules of their own


@pytest.mark.usefixtures("quick")
def test_an_engine_that_does_not_start_says_nothing_of_its_all_reduce() -> None:
    _, found = run(FAKE_NO_IMPORT="libcudart.so.13: cannot open shared object file")
    assert (found["ran"], found["verdict"], found["needed"]) == (None, None, None)
    assert "not available: rank " in found["reason"] and "libcudart.so.13" in found["reason"]


def test_the_python_of_an_engine_is_found_or_refused() -> None:
    found = engine_all_reduce.find_engine(sys.executable, {"PYTHONPATH": str(PACKAGES)})
    assert (found["engine"], found["reason"]) == ("sglang", None)
    assert "neither SGLang nor vLLM" in engine_all_reduce.find_engine(sys.executable, {})["reason"]
    assert "does not exist" in engine_all_reduce.find_engine("/nonexistent/python3", {})["reason"]


@pytest.mark.parametrize(
    ("asked", "answer", "ran", "verdict"),
    [
        (False, {"runs": [{"state": "finished", "used": False}]}, False, None),
        (True, {"reason": "no Python with SGLang or vLLM was found"}, False, None),
        (True, {"runs": [{"state": "finished", "used": False, "why_not": "x"}]}, True, "not_used"),
        (True, {"runs": [{"state": "finished", "used": True, "sizes": {}}]}, True, None),
        (True, {"runs": "x"}, None, None),
        (True, {"runs": [{"state": "finished", "used": "yes"}]}, True, None),
    ],
)
def test_it_is_run_only_when_asked_for(
    asked: bool, answer: dict[str, Any], ran: bool | None, verdict: str | None
) -> None:
    evidence = bundle.load_bundle(str(RECORDED)).copy()
    command = list(engine_all_reduce.ENGINE_COMMAND)
    evidence.add({"run": command, "status": "ok", "rc": 0, "stdout": json.dumps(answer)})
    params = {"when_busy": "skip", "collective": "false", "engine_all_reduce": asked}
    found = p2p_probe.gather(evidence, params, Errors("probe"), lambda: None)["engine_all_reduce"]
    assert (found["ran"], found["verdict"]) == (ran, verdict)
    if not asked:
        assert "probe_engine_all_reduce=true" in found["reason"]
        # A bundle is read for what it holds.
        probe = evidence.run(["p2p_probe"]).text.replace('"options": {', '"options": {"engine_all_reduce": true, ')
        evidence.add({"run": ["p2p_probe"], "status": "ok", "rc": 0, "stdout": probe})
        assert p2p_probe.gather(evidence, params, Errors("probe"))["engine_all_reduce"]["ran"] is True
