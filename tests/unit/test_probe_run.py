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
from hypothesis import given, settings
from hypothesis import strategies as st
from probe_library import AB, BA, IDLE, Host, compiled, run_probe

ROOT = Path(__file__).resolve().parents[2]


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
    errors = replayed.pop("errors")
    assert replayed == json.loads(json.dumps(live)) and replayed["undelivered_pairs"] == [AB]
    assert errors == []


def test_a_bundle_without_a_probe_says_so() -> None:
    found = p2p_facts.facts(bundle.BundleEvidence({}, ()), {})["ansible_facts"]["p2p_probe"]
    assert (found["ran"], found["cuda"], found["pairs"]) == (False, None, {})
    assert found["skipped_reason"]


KEYS = [*p2p_probe._empty(), AB, "claims", "peer", "link", "arms"]
JUNK = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(KEYS), inner, max_size=4),
    max_leaves=12,
)


@given(
    raw=st.dictionaries(
        st.sampled_from(["cuda", "devices", "pairs", "events", "many_to_one", "all_at_once", "options", "stages"]), JUNK
    )
)
@settings(max_examples=300, deadline=None)
def test_any_record_gives_facts_of_the_same_shape(raw: dict[str, Any]) -> None:
    records = [
        {"run": list(name), "status": "ok", "rc": 0, "stdout": json.dumps(raw)}
        for name in (worker_run.PROBE_COMMAND, ("p2p_collective",))
    ]
    found = p2p_facts.facts(bundle.BundleEvidence({}, records), {})["ansible_facts"]["p2p_probe"]
    assert set(found) == {*p2p_probe._empty(), "errors"}
    assert all(isinstance(found[name], list) for name in p2p_probe.LISTS)
    assert found["verdicts"] is None or found["verdicts"].get("ok", 0) == 0


@pytest.mark.parametrize(
    "text", ["", "[]", "{", '{"pairs": {"x": {}}}', '{"pairs": null, "events": null, "cuda": null}', "\ufffd"]
)
def test_a_damaged_record_is_an_error_not_a_traceback(text: str) -> None:
    evidence = bundle.BundleEvidence(
        {}, [{"run": list(worker_run.PROBE_COMMAND), "status": "ok", "rc": 0, "stdout": text}]
    )
    found = p2p_facts.facts(evidence, {})["ansible_facts"]["p2p_probe"]
    assert found["ran"] is False and found["skipped_reason"]


def test_bad_arguments_are_refused() -> None:
    params = {"buffer_mib": 0, "time_limit": 60, "init_limit": 60, "loopback": False, "python": None, "environment": {}}
    with pytest.raises(ValueError, match="buffer_mib must be at least 1"):
        p2p_facts.live(params)


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
    host.commands[all_reduce.COLLECTIVE_COMMAND] = all_reduce.make_command("/nonexistent/python", {})
    assert "/nonexistent/python does not run" in host.facts(collective="auto")["collective"]["reason"]
