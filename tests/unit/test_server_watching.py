"""The stand-in engine in every state that a start can take.

What the wait says of it, and that it says so by evidence.
"""

from __future__ import annotations

import os
import signal
import socket
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_server import api, watching
from engine_standin import running

pytestmark = pytest.mark.slow


def test_a_healthy_start_is_shown_phase_by_phase_and_ends_ready(tmp_path: Path) -> None:
    with running(tmp_path, "healthy", speed=6) as server:
        verdict, watch = server.wait(scale=0.02, model="glm-5", context=202752)
    assert verdict.state == "ready", (verdict, watch.history)
    assert "Paris" in verdict.message
    assert any(line.startswith("loads weights ") and "/83" in line and "left" in line for line in watch.history), (
        watch.history
    )


@pytest.mark.parametrize(
    ("scenario", "cause", "advice", "text"),
    [
        ("oom_graphs", "out_of_memory", "Lower --mem-fraction-static", "capture CUDA graphs"),
        ("oom_weights", "out_of_memory", "does not help here", "weights do not fit"),
        ("memory_pool", "memory_pool", "Raise --mem-fraction-static", "KV cache"),
    ],
)
def test_memory_that_runs_out_is_told_apart_by_phase(
    tmp_path: Path, scenario: str, cause: str, advice: str, text: str
) -> None:
    with running(tmp_path, scenario) as server:
        verdict, _watch = server.wait(scale=0.02)
    assert (verdict.state, verdict.cause) == ("failed", cause)
    assert advice in verdict.advice
    assert text in verdict.message


def test_ranks_that_spin_in_a_collective_are_a_stall_of_peer_to_peer(tmp_path: Path) -> None:
    with running(tmp_path, "nccl_hang") as server:
        verdict, _watch = server.wait(scale=0.008)
    assert (verdict.state, verdict.cause, verdict.phase) == ("stalled", "collective", "distributed")
    assert "118 to 118 W" in verdict.message
    assert "nccl==2.28.9" in verdict.message
    assert "/etc/nccl.conf" in verdict.advice


def test_a_lock_that_a_killed_compilation_left_is_named(tmp_path: Path) -> None:
    lock = tmp_path / ".cache/flashinfer/0.6/120a/cached_ops/trtllm_gen/lock"
    lock.parent.mkdir(parents=True)
    lock.touch()
    os.utime(lock, (time.time() - 7200, time.time() - 7200))
    with running(tmp_path, "jit_lock") as server:
        verdict, _watch = server.wait(scale=0.004)
    assert (verdict.state, verdict.cause, verdict.phase) == ("stalled", "stale_lock", "autotune")
    assert "rm -f %s" % lock in verdict.advice


def test_the_same_silence_without_a_lock_is_waiting_ranks(tmp_path: Path) -> None:
    with running(tmp_path, "jit_lock") as server:
        verdict, _watch = server.wait(scale=0.004)
    assert (verdict.state, verdict.cause) == ("stalled", "waiting")
    assert "py-spy" in verdict.advice


def test_compilers_that_run_are_work_however_long_the_log_is_silent(tmp_path: Path) -> None:
    with running(tmp_path, "compiling", speed=10) as server:
        verdict, watch = server.wait(scale=0.004)
    assert verdict.state == "ready", (verdict, watch.history)
    assert any("1 compilers run" in line for line in watch.history), watch.history


def test_a_rank_that_was_killed_is_named_at_once(tmp_path: Path) -> None:
    with running(tmp_path, "killed_rank") as server:
        began = time.monotonic()
        verdict, _watch = server.wait(scale=0.05)
        assert time.monotonic() - began < 14  # the patience for weights would be 15 s
    assert (verdict.state, verdict.cause) == ("stalled", "rank_missing")
    assert "rank 1 is gone" in verdict.message


def test_a_rank_that_is_stopped_is_named_in_the_start_and_while_it_serves(tmp_path: Path) -> None:
    with running(tmp_path, "slow") as server:
        server.listens()
        ranks = server.facts(light=True, generate="never")["ranks"]
        os.kill(ranks[1]["pid"], signal.SIGSTOP)
        verdict, _watch = server.wait(scale=0.02)
        facts = server.facts(generate="never")
    assert (verdict.state, verdict.cause) == ("stalled", "rank_stopped")
    assert "rank 1 (pid %d) is stopped" % ranks[1]["pid"] in verdict.message
    assert "kill -CONT %d" % ranks[1]["pid"] in verdict.advice
    assert facts["stall"]["stopped"] == [ranks[1]["pid"]]


def test_slow_but_moving_is_not_stuck(tmp_path: Path) -> None:
    with running(tmp_path, "slow") as server:
        verdict, watch = server.wait(scale=0.01)  # 3 s of patience for a load of 8 s
    assert verdict.state == "ready", (verdict, watch.history)


def test_listed_and_healthy_but_cannot_generate(tmp_path: Path) -> None:
    with running(tmp_path, "no_generation") as server:
        verdict, _watch = server.wait(scale=0.02)
        facts = server.facts(generate="never")
    assert (verdict.state, verdict.cause) == ("failed", "no_generation")
    assert "HTTP 500" in verdict.message
    assert facts["state"] == "unhealthy"
    assert facts["api"]["health"]["code"] == 200


def test_nan_is_seen_in_the_log_and_in_the_answer(tmp_path: Path) -> None:
    with running(tmp_path, "nan") as server:
        verdict, _watch = server.wait(scale=0.02)
        asked = server.facts(generate="always")["generation"]
    assert (verdict.state, verdict.cause) == ("failed", "nan")
    assert "NaN" in verdict.message
    assert asked["sane"] is False
    assert asked["finite"] is False


def test_the_wrong_model_is_not_ready(tmp_path: Path) -> None:
    with running(tmp_path, "wrong_model") as server:
        verdict, _watch = server.wait(scale=0.02, model="glm-5")
    assert (verdict.state, verdict.cause) == ("failed", "wrong_model")
    assert "glm-4" in verdict.message


def test_a_port_that_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whatever listens there before the server does is not waited for as long as for a health check that generates."""
    monkeypatch.setattr(api, "HEALTH_SECONDS", 600.0)
    monkeypatch.setattr(api, "STRANGER_SECONDS", 0.5)
    with running(tmp_path, "healthy", speed=10) as server, socket.socket() as other:
        other.bind(("127.0.0.1", server.port))
        other.listen()
        verdict, _watch = server.wait(scale=0.02)
    assert (verdict.state, verdict.cause) == ("failed", "port_in_use")


def test_an_argument_that_the_engine_does_not_know(tmp_path: Path) -> None:
    with running(tmp_path, "healthy", words=("--nsa-decode-backend", "trtllm")) as server:
        verdict, _watch = server.wait(scale=0.05)
    assert (verdict.state, verdict.cause) == ("failed", "unrecognized_arguments")
    assert "--nsa-decode-backend" in verdict.message


def test_a_server_that_accepts_and_never_answers_ends_in_bounded_time(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(api, "HEALTH_SECONDS", 1.0)
    monkeypatch.setattr(api, "SECONDS", 1.0)
    with running(tmp_path, "never_answers", speed=50) as server:
        server.listens()
        began = time.monotonic()
        facts = server.facts()
        assert time.monotonic() - began < 15
    health = facts["api"]["health"]
    assert (health["code"], health["answered"], health["problem"]) == (None, False, "no answer within 1 s")
    assert facts["state"] == "unhealthy"
    assert facts["generation"]["ran"] is False


def test_error_pages_are_told_and_are_no_models(tmp_path: Path) -> None:
    with running(tmp_path, "html_errors", speed=50) as server:
        server.listens()
        facts = server.facts()
    assert facts["api"]["models"] is None
    assert any("502 Bad Gateway" in error["problem"] for error in facts["errors"]), facts["errors"]
    assert facts["state"] == "unhealthy"


def test_binary_junk_and_megabyte_lines_hide_nothing(tmp_path: Path) -> None:
    with running(tmp_path, "garbage", speed=50) as server:
        verdict, _watch = server.wait(scale=0.02)
        facts = server.facts()
    assert verdict.state == "ready"
    assert facts["log"]["phase"] == "ready"
    assert all(len(phase["line"]) <= 400 for phase in facts["log"]["phases"])


def test_what_an_earlier_process_wrote_into_the_same_file_does_not_count(tmp_path: Path) -> None:
    stamp = time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(time.time() - 3600))
    (tmp_path / "server.log").write_text(
        "[%s] server_args=ServerArgs(tp_size=2)\n[%s] The server is fired up and ready to roll!\n"
        "[%s] Detected errors during sampling! NaN in the logits.\n" % (stamp, stamp, stamp)
    )
    with running(tmp_path, "jit_lock") as server:
        time.sleep(2.5)
        facts = server.facts()
    assert facts["log"]["ready"] is False
    assert facts["log"]["fatal"] is None
    assert facts["log"]["phase"] == "autotune"


def test_a_server_that_lists_nothing_is_asked_by_the_name_of_its_command_line(tmp_path: Path) -> None:
    with running(tmp_path, "no_list") as server:
        verdict, _watch = server.wait(scale=0.02)
        facts = server.facts()
    assert verdict.state == "ready", verdict
    assert (facts["api"]["models"], facts["model"], facts["generation"]["answered"]) == (None, "glm-5", True)
    assert "answers 500" in facts["api"]["models_problem"]


def test_a_server_that_cannot_be_asked_is_not_taken_for_ready() -> None:
    asked = {"ran": None, "skipped_reason": "it wants an API key"}
    verdict = watching.judge_answers(
        {"api": {"model": None, "context_length": None}, "generation": asked, "fault": None}, None, None
    )
    assert (verdict.state, verdict.cause) == ("failed", "not_asked")
    assert "API key" in verdict.message
