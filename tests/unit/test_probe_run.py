"""The child's life: limits, a parent that dies, a child that cannot be killed; the idle gate; replay."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import p2p_facts
import probe_library
import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.probe import all_reduce, worker_run
from ansible.module_utils.gpu_report import digest
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_library import AB, BA, IDLE, Host, compiled, run_probe

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "fixtures" / "hosts" / "h200-x2.jsonl.gz"
PAIR = "0000:00:06.0->0000:00:07.0"


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("libcuda"))


def children_of(pid: int) -> list[int]:
    text = Path("/proc/%d/task/%d/children" % (pid, pid)).read_text()
    return [int(word) for word in text.split()]


def gone(pid: int) -> bool:
    try:
        return Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0] in "ZX"
    except OSError:
        return True


def wait_until(condition: Any, seconds: float = 10) -> bool:
    end = time.monotonic() + seconds
    while not condition() and time.monotonic() < end:
        time.sleep(0.02)
    return bool(condition())


def test_the_whole_probe_ends_in_time(library: Path) -> None:
    began = time.monotonic()
    raw = run_probe(library, limit_s=1.0, STANDIN_HANG="0>1")
    assert time.monotonic() - began < 6
    assert [event["kind"] for event in raw["events"]] == ["out_of_time"]
    assert raw["pairs"][AB]["claims"]["can_access"] is True  # what was known stays


def test_a_child_that_cannot_be_killed_is_left_behind_and_described(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No test can make an unkillable process.

    Here the signal does not reach it, and the rest of the way is the real one.
    """
    pids: list[int] = []
    monkeypatch.setattr(worker_run.os, "killpg", lambda pid, number: pids.append(pid))
    monkeypatch.setattr(worker_run, "KILL_GRACE_SECONDS", 0.2)
    began = time.monotonic()
    raw = run_probe(library, options={"init_limit_s": 0.3}, STANDIN_INIT="hang")
    monkeypatch.undo()
    assert time.monotonic() - began < 5
    event = raw["events"][0]
    assert event["kind"] == "left_behind" and "ignores SIGKILL" in event["detail"] and "state S" in event["detail"]
    found = p2p_probe._cuda(raw)
    assert found["hung"] is True and any("uvm_disable_hmm" in cause for cause in found["causes"])
    # It was left behind, but its standard input has ended, so it goes by itself.
    assert wait_until(lambda: gone(pids[0]))


@pytest.mark.parametrize("steered", [{}, {"STANDIN_INIT": "hang"}, {"STANDIN_HANG": "0>1"}])
def test_a_killed_parent_leaves_no_child(library: Path, steered: dict[str, str]) -> None:
    script = "import sys; sys.path.insert(0, %r); import probe; probe.importable()\n" % str(ROOT / "benchmarks")
    script += "from ansible.module_utils.gpu_host.probe.worker_run import Probe; Probe({'buffer_mib': 64}, 60).run()"
    parent = subprocess.Popen(
        [sys.executable, "-c", script], env={**os.environ, "LD_LIBRARY_PATH": str(library), **steered}
    )
    assert wait_until(lambda: children_of(parent.pid))
    (child,) = children_of(parent.pid)
    time.sleep(0.3)
    assert not gone(child)
    parent.send_signal(signal.SIGKILL)
    parent.wait()
    assert wait_until(lambda: gone(child)), Path("/proc/%d/status" % child).read_text()


def test_no_child_is_left_after_a_probe(library: Path) -> None:
    before = set(children_of(os.getpid()))
    run_probe(library)
    assert set(children_of(os.getpid())) <= before


@pytest.mark.parametrize(
    ("answers", "reason"),
    [
        (
            {**IDLE, p2p_probe.APPS_COMMAND: "4711, /opt/sglang/bin/python3, weird, 94857\n"},
            "in use by /opt/sglang/bin/python3, weird (pid 4711)",
        ),
        (
            {**IDLE, p2p_probe.GPUS_COMMAND: "00000000:01:00.0, 94857, 0, Disabled\n"},
            "0000:01:00.0 has 94857 MiB in use",
        ),
        ({**IDLE, p2p_probe.GPUS_COMMAND: "00000000:01:00.0, 4, 97, Disabled\n"}, "97 % busy"),
        ({}, "nothing says whether the GPUs are idle"),
    ],
)
def test_working_gpus_are_left_alone(library: Path, answers: dict[tuple[str, ...], str], reason: str) -> None:
    host = Host(library, answers)
    found = host.facts()
    assert found["ran"] is False and reason in found["skipped_reason"]
    # What needs no context is known all the same.
    assert found["cuda"]["initialised"] is True and found["pairs"][AB]["claims"]["can_access"] is True
    assert "opened" not in found["devices"][probe_library.A] and not found["unmeasured_pairs"]
    assert Host(library, answers).facts(when_busy="force")["ran"] is True


def test_junk_of_nvidia_smi_never_reads_as_idle_and_never_raises(library: Path) -> None:
    junk = {p2p_probe.APPS_COMMAND: "\x00,,\n", p2p_probe.GPUS_COMMAND: "[N/A], [N/A]\n\xff"}
    gate = p2p_probe.check_idle(Host(library, junk), Errors("probe"))
    assert gate["busy"] is None and "nothing says whether the GPUs are idle" in gate["reason"]


def test_a_recorded_probe_replays_to_the_same_facts(library: Path) -> None:
    recorder = bundle.RecordingEvidence(Host(library, STANDIN_CORRUPT="0>1"))
    live = p2p_probe.gather(recorder, {"collective": "false"}, Errors("probe"))
    text = bundle.dump_bundle({"captured_at": 1.0}, recorder.records)
    replayed = p2p_facts.facts(bundle.parse_bundle(text.encode()), {"collective": "false"})["ansible_facts"][
        "p2p_probe"
    ]
    errors, unread = replayed.pop("errors"), replayed.pop("unread")
    assert replayed == json.loads(json.dumps(live)) and replayed["undelivered_pairs"] == [AB]
    assert errors == unread == []


def test_a_bundle_without_a_probe_says_so() -> None:
    found = p2p_facts.facts(bundle.BundleEvidence({}, ()), {})["ansible_facts"]["p2p_probe"]
    assert (found["ran"], found["cuda"], found["pairs"]) == (False, None, {})
    assert found["skipped_reason"]


KEYS = [*p2p_probe._empty(), AB, "claims", "peer", "link", "arms", "sizes", "bandwidth_gb_s", "copy", "median", "error"]
ODD = st.sampled_from([float("inf"), float("nan"), 10**400, "①", "9" * 5000, -1, 2**63])
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8) | ODD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


def replayed(probe: str, collective: str = "{}", **more: Any) -> dict[str, Any]:
    """The facts of a bundle that holds these results, and their digest, which must not raise."""
    records = [
        {"run": list(name), "status": "ok", "rc": 0, "stdout": text, **more}
        for name, text in ((worker_run.PROBE_COMMAND, probe), (all_reduce.COLLECTIVE_COMMAND, collective))
    ]
    found: dict[str, Any] = p2p_facts.facts(bundle.BundleEvidence({}, records), {})["ansible_facts"]["p2p_probe"]
    digest.digest_probe(found)
    return found


@given(
    raw=st.dictionaries(
        st.sampled_from(
            ["cuda", "devices", "pairs", "events", "many_to_one", "all_at_once", "options", "stages", "loopback"]
        ),
        JUNK,
    )
)
@settings(max_examples=300, deadline=None)
@pytest.mark.slow
def test_any_record_gives_facts_of_the_same_shape(raw: dict[str, Any]) -> None:
    found = replayed(json.dumps(raw), json.dumps({"arms": raw}))
    assert set(found) == {*p2p_probe._empty(), "errors", "unread"}
    assert all(found[name] is None or isinstance(found[name], list) for name in p2p_probe.LISTS)
    assert found["verdicts"] is None or found["verdicts"].get("ok", 0) == 0
    assert found["all_delivered"] is not True and found["collective"]["verdict"] != "ok"


@pytest.mark.parametrize("text", ["", "[]", "{", "{}", '{"pairs": {"x": {}}}', '{"cuda": null}', "\ufffd", "9" * 5000])
def test_a_damaged_record_is_unknown_not_a_traceback(text: str) -> None:
    found = replayed(text, text)
    assert (found["attempted"], found["ran"], found["collective"]["ran"]) == (True, None, None)
    assert found["skipped_reason"] and found["errors"]


@pytest.mark.parametrize(
    "state", [{"status": "failed"}, {"status": "timeout"}, {"status": "hung"}, {"rc": 1}, {"truncated": True}]
)
def test_a_result_that_did_not_come_is_unknown_not_skipped(state: dict[str, Any]) -> None:
    text = harness_text(worker_run.PROBE_COMMAND)
    found = replayed(text, harness_text(all_reduce.COLLECTIVE_COMMAND), **state)
    assert found["ran"] is found["cuda"] is found["pairs"] is found["all_delivered"] is None
    assert all(found[name] is None for name in p2p_probe.LISTS) and found["collective"]["ran"] is None


def test_a_bundle_that_lost_the_probes_result_says_so() -> None:
    """What the probe asks first is there, so it was to run."""
    records = [{"run": list(p2p_probe.APPS_COMMAND), "status": "ok", "rc": 0, "stdout": ""}]
    found = p2p_facts.facts(bundle.BundleEvidence({}, records), {})["ansible_facts"]["p2p_probe"]
    assert (found["attempted"], found["ran"]) == (True, None)


def harness_text(command: tuple[str, ...]) -> str:
    return bundle.load_bundle(str(RECORDED)).run(command).text


@pytest.mark.parametrize(
    ("place", "value", "unknown"),
    [
        (("loopback",), "x", []),
        (("many_to_one",), "x", ["corrupt_under_load", "collapsed_under_load"]),
        (("all_at_once", "bandwidth_gb_s"), [1], ["corrupt_under_load", "collapsed_under_load"]),
        (("all_at_once",), None, ["corrupt_under_load", "collapsed_under_load"]),
        (("events",), {"x": 1}, ["corrupt_under_load", "collapsed_under_load"]),
        (("devices", "0000:00:06.0", "error"), "x", ["skipped_gpus"]),
        (("pairs", PAIR), "x", ["all_delivered", "all_fast", "all_usable"]),
        (("pairs", PAIR, "error"), "x", ["all_delivered", "all_fast"]),
        (("pairs", PAIR, "control_delivered"), "x", ["all_delivered"]),
        (("pairs", PAIR, "delivered", "sm_load"), "x", ["all_delivered"]),
        (("pairs", PAIR, "delivered", "sm_load", "status"), None, ["all_delivered"]),
        (("pairs", PAIR, "bandwidth_gb_s", "copy", "median"), float("inf"), ["all_fast"]),
        (("pairs", PAIR, "latency_us", "copy_12k_back_to_back", "median"), 10**400, ["all_fast", "high_latency_pairs"]),
        (("cuda", "initialised"), "yes", []),
    ],
)
def test_only_what_an_odd_value_could_have_changed_is_unknown(
    place: tuple[str, ...], value: Any, unknown: list[str]
) -> None:
    raw = json.loads(harness_text(worker_run.PROBE_COMMAND))
    inside = raw
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    evidence = bundle.load_bundle(str(RECORDED)).copy()
    evidence.add({"run": list(worker_run.PROBE_COMMAND), "status": "ok", "rc": 0, "stdout": json.dumps(raw)})
    found = p2p_facts.facts(evidence, {})["ansible_facts"]["p2p_probe"]
    digest.digest_probe(found)
    watched = ("all_usable", "all_delivered", "all_fast", "corrupt_under_load", "collapsed_under_load", "skipped_gpus")
    assert {name for name in (*watched, "high_latency_pairs") if found[name] is None} >= set(unknown)
    if place[0] in ("loopback", "events", "many_to_one"):
        assert found["all_delivered"] is found["all_fast"] is True
    assert found["errors"] or value is None


def test_a_pair_that_the_result_leaves_out_is_unmeasured() -> None:
    raw = json.loads(harness_text(worker_run.PROBE_COMMAND))
    del raw["pairs"][PAIR]
    found = replayed(json.dumps(raw))
    assert found["unmeasured_pairs"] == [PAIR] and found["all_delivered"] is None


@pytest.mark.parametrize(
    ("change", "verdict"),
    [
        ({}, "ok"),
        ({"sizes": {}}, None),
        ({"sizes": {"12288": {"wrong": None}}}, None),
        ({"sizes": {"12288": {"wrong": 0}, "524288": "x"}}, None),
        ({"sizes": {"12288": {"wrong": 1}, "524288": "x"}}, "wrong_values"),
    ],
)
def test_an_all_reduce_is_right_only_where_every_size_says_so(change: dict[str, Any], verdict: str | None) -> None:
    raw = json.loads(harness_text(all_reduce.COLLECTIVE_COMMAND))
    raw["arms"]["configured"].update(change)
    found = replayed(harness_text(worker_run.PROBE_COMMAND), json.dumps(raw))
    assert found["collective"]["verdict"] == verdict
    raw["arms"]["configured"]["transports"] = {}
    found = replayed(harness_text(worker_run.PROBE_COMMAND), json.dumps(raw))
    assert found["collective"]["pairs_without_p2p"] is None


def test_a_gpu_that_shows_no_number_is_not_idle() -> None:
    for row in ("00000000:01:00.0, [Unknown Error], 0, Disabled", "00000000:01:00.0, 4, inf, Disabled"):
        evidence = bundle.BundleEvidence({}, [
            {"run": list(argv), "status": "ok", "rc": 0, "stdout": text}
            for argv, text in ((p2p_probe.APPS_COMMAND, ""), (p2p_probe.GPUS_COMMAND, row))
        ])  # fmt: skip
        assert p2p_probe.check_idle(evidence, Errors("probe"))["busy"] is None


def test_bad_arguments_are_refused() -> None:
    params = {"buffer_mib": 0, "time_limit": 60, "init_limit": 60, "loopback": False, "python": None, "environment": {}}
    with pytest.raises(ValueError, match="buffer_mib must be at least 1"):
        p2p_facts.open_host(params)


@pytest.mark.slow
def test_the_module_runs_as_ansible_sends_it(library: Path, tmp_path: Path) -> None:
    """From a zip file in a temporary directory, in check mode, with the child's package inside."""
    (tmp_path / "nvidia-smi").write_text(
        "#!/bin/sh\ncase $* in *compute-apps*) ;; *) echo '00000000:01:00.0, 4, 0, Disabled';; esac\n"
    )
    (tmp_path / "nvidia-smi").chmod(0o755)
    environment = {
        **os.environ,
        "LD_LIBRARY_PATH": str(library),
        "PATH": "%s:%s" % (tmp_path, os.environ["PATH"]),
        "ANSIBLE_HOME": str(tmp_path),
    }
    command = [
        sys.executable,
        "-m",
        "ansible",
        "adhoc",
        "localhost",
        "-m",
        "p2p_facts",
        "-a",
        "buffer_mib=2 collective=false",
        "--check",
    ]
    command += ["-e", "ansible_python_interpreter=" + sys.executable]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    assert '"verdict": "ok"' in done.stdout and BA in done.stdout


def test_collective_needs_idle_gpus_and_two_of_them(library: Path) -> None:
    assert Host(library, STANDIN_GPUS="1").facts(collective="auto")["collective"]["reason"] == "one GPU"
    busy = Host(library, {**IDLE, p2p_probe.GPUS_COMMAND: "00000000:01:00.0, 9000, 0, Disabled\n"}).facts(
        collective="auto"
    )
    assert "in use" in busy["collective"]["reason"]
    host = Host(library)
    host.commands[all_reduce.COLLECTIVE_COMMAND] = lambda: {"reason": "no libnccl.so.2 was found"}
    assert host.facts(collective="auto")["collective"]["reason"] == "no libnccl.so.2 was found"
