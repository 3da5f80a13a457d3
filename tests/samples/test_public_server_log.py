"""Public logs of servers, read as the note beside each says."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from captures import SAMPLES  # type: ignore[import-not-found]
from test_server_log import read  # type: ignore[import-not-found]


def test_decode_lines_with_ray_prefix_and_several_parallel_groups() -> None:
    decode = read(SAMPLES / "server_log" / "sglang-decode-ray-prefix-dp-ep.txt")["decode"]
    assert decode["lines"] == 3
    assert (decode["running"], decode["queue"], decode["usage"], decode["saturated"]) == (251, 655, 1.0, True)


def test_lines_after_the_version_of_nccl_are_no_stall_and_no_fault() -> None:
    log = read(SAMPLES / "server_log" / "sglang-gloo-multinode-custom-ar-disabled.txt")
    assert (log["nccl"]["version"], log["faults"], log["last_line_at"] - log["started_at"]) == ("2.27.5", [], 2.0)


def test_503_during_the_warm_up_is_normal() -> None:
    log = read(SAMPLES / "server_log" / "sglang-healthy-launch-503-before-ready.txt")
    assert (log["ready"], log["requests"]["health_not_ready"], log["faults"]) == (True, 2, [])


def test_the_memory_hint_that_means_raise() -> None:
    fatal = read(SAMPLES / "server_log" / "sglang-oom-not-enough-memory-inverted-hint.txt")["fatal"]
    assert (fatal["kind"], fatal["direction"]) == ("memory_pool", "increase")


def test_the_version_of_nccl_as_the_last_line() -> None:
    log = read(SAMPLES / "server_log" / "sglang-stalled-nccl-conf-spin.txt")
    assert (log["phase"], log["fatal"], log["last_line"]) == ("distributed", None, "sglang is using nccl==2.30.7")


def test_a_watchdog_blames_the_configuration() -> None:
    fatal = read(SAMPLES / "server_log" / "sglang-watchdog-hicache-deadlock.txt")["fatal"]
    assert (fatal["kind"], fatal["count"]) == ("watchdog", 2)
    assert "configuration" in fatal["meaning"]


def test_a_full_start_on_eight_gpus() -> None:
    log = read(SAMPLES / "server_log" / "vllm-0.20-8gpu-glm51-full-start.txt")
    assert (log["engine"], log["ready"], log["fatal"], log["nccl"]["version"], log["context_length"]) == (
        "vllm",
        True,
        None,
        "2.30.3",
        202752,
    )
    assert log["faults"] == []


def test_transport_of_nccl_is_p2p() -> None:
    log = read(SAMPLES / "server_log" / "vllm-0.23-2gpu-p2p-cumem-start.txt")
    assert log["nccl"]["transports"] == {"P2P": ["0->1", "1->0"]}
    assert (log["nccl"]["p2p_used"], log["ready"], log["kv_tokens"], log["fatal"]) == (True, True, 96447, None)
