"""Logs of servers: the recorded ones, public samples as their notes read them, and hostile text."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_server import engines, server_state
from ansible.module_utils.gpu_server.log import log_reader
from ansible.module_utils.gpu_server.log.log_lines import parse_lines

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "recordings" / "server_log"
NOW = 1795970000.0  # 2026-11-29


def read(path: Path) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return log_reader.read_log(data.decode("utf-8", "replace"), NOW)


def test_a_worker_that_dies_of_sigill_at_the_first_request() -> None:
    log = read(RECORDINGS / "vllm-0.32-cpu-worker-sigill.log.gz")
    assert log["engine"] == "vllm"
    assert log["ready"] is True
    assert (log["fatal"]["kind"], log["fatal"]["phase"]) == ("worker_died", "serving")
    assert "exit code: -4" in log["fatal"]["line"]
    assert log["requests"]["failed"] >= 2
    assert log["requests"]["ok"] == 0


def test_an_engine_that_dies_of_an_exception_behind_a_healthy_api() -> None:
    log = read(RECORDINGS / "vllm-0.32-cpu-engine-dead.log.gz")
    names = ["arguments", "engine", "distributed", "weights", "kv_cache", "engine_ready", "listening", "ready"]
    assert [phase["name"] for phase in log["phases"]] == names
    assert log["fatal"]["kind"] == "scheduler_exception"
    assert "Error" in log["fatal"]["exception"]
    assert log["kv_tokens"] == 2097152


def test_a_transformers_server_that_serves() -> None:
    log = read(RECORDINGS / "transformers-5.24-served.log.gz")
    assert (log["engine"], log["ready"], log["fatal"]) == ("transformers", True, None)
    assert [phase["name"] for phase in log["phases"]] == [
        "listening",
        "ready",
    ]  # started by hand: it cannot be told where its lines begin
    assert log["requests"]["ok"] == 2 and log["requests"]["failed"] == 0


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [
        ("broken", "weights_unreadable", "SafetensorError: Error while deserializing header"),
        ("missing", "model_not_found", "'/srv/none'"),
        ("cuda", "no_cuda", "Torch not compiled with CUDA enabled"),
        ("extras", "dependency_missing", "Missing dependencies for serving"),
        ("port", "port_in_use", "address already in use"),
    ],
)
def test_transformers_servers_that_fail(name: str, kind: str, said: str) -> None:
    log = read(RECORDINGS / ("transformers-5.24-%s.log.gz" % name))
    assert (log["engine"], log["ready"], log["fatal"]["kind"]) == ("transformers", False, kind)
    assert said in (log["fatal"]["exception"] or log["fatal"]["line"])


def test_what_an_earlier_start_left_in_an_engines_log_without_times_is_not_of_this_one() -> None:
    mark = "[2026-11-29 19:00:%02d] systemd starts inference-server.service\n"
    broken = gzip.decompress((RECORDINGS / "transformers-5.24-broken.log.gz").read_bytes()).decode()
    served = gzip.decompress((RECORDINGS / "transformers-5.24-served.log.gz").read_bytes()).decode()
    silent = log_reader.read_log(
        mark % 1 + served + mark % 30 + broken + mark % 50, NOW, 0, engines.ENGINES["transformers"]
    )
    assert (silent["ready"], silent["fatal"], silent["phase"], silent["lines"]) == (False, None, None, 1)
    again = log_reader.read_log(mark % 1 + broken + mark % 30 + served, NOW, 0, engines.ENGINES["transformers"])
    assert (again["ready"], again["fatal"]) == (True, None)
    assert [phase["name"] for phase in again["phases"]] == ["weights", "listening", "ready"]


def test_the_number_of_a_container_that_was_removed_is_no_line_of_its_engine() -> None:
    log = log_reader.read_log("[2026-11-29 19:00:01] it ended\n" + "8543e883" * 8 + "\n", NOW)
    assert (log["last_line"], log["lines"]) == ("[2026-11-29 19:00:01] it ended", 1)


def test_host_memory_as_transport_is_not_p2p() -> None:
    text = (
        "host:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\nhost:1:1 [0] NCCL INFO Channel 01 "
        ": 1[1] -> 2[2] via P2P/IPC\n"
    )
    assert log_reader.read_log(text, NOW)["nccl"]["p2p_used"] is False


def test_a_year_is_not_taken_from_the_future() -> None:
    [line] = parse_lines("INFO 12-31 23:59:58 [utils.py:1] x", NOW)
    assert line.at is not None
    assert line.at < NOW


@pytest.mark.parametrize("stamp", ["[2026-02-31 01:25:37]", "[2026-13-01 25:00:00]", "INFO 02-30 99:99:99"])
def test_impossible_dates_are_no_time(stamp: str) -> None:
    [line] = parse_lines(stamp + " text", NOW)
    assert line.at is None


def test_any_bytes_give_the_same_keys_and_no_exception() -> None:
    source = gzip.decompress((RECORDINGS / "vllm-0.32-cpu-engine-dead.log.gz").read_bytes())
    keys = set(log_reader.read_log("", NOW))
    generator = random.Random(7)
    for _round in range(60):
        data = bytearray(source[: generator.randrange(len(source))])
        for _change in range(generator.randrange(1, 40)):
            if data:
                data[generator.randrange(len(data))] = generator.randrange(256)
        assert set(log_reader.read_log(bytes(data).decode("utf-8", "replace"), NOW)) == keys


def test_a_line_of_megabytes_costs_little_and_hides_nothing() -> None:
    text = (
        "server_args=ServerArgs(x)\n"
        + "Decode batch, #running-req: 1, "
        + "a, " * 1_000_000
        + "\nThe server is fired up and ready to roll!\n"
    )
    assert log_reader.read_log(text, NOW)["ready"] is True


def test_flags_of_a_command_line() -> None:
    line = (
        "python3 -m sglang.launch_server --tp 8 --host=0.0.0.0 --trust-remote-code --api-key ******** --disable_radix "
        "--lora-paths a b"
    )
    words = line.split()
    assert engines.parse_flags(words) == {
        "tp": "8", "host": "0.0.0.0", "trust-remote-code": True, "api-key": "********", "disable-radix": True,
        "lora-paths": ["a", "b"],
    }  # fmt: skip


@pytest.mark.parametrize(
    ("command", "engine"),
    [
        ("python3 -m sglang.launch_server --model x", "sglang"),
        ("/opt/sglang/bin/python /opt/sglang/bin/sglang serve --model-path x", "sglang"),
        ("/opt/vllm/bin/python /opt/vllm/bin/vllm serve x", "vllm"),
        ("python -m vllm.entrypoints.openai.api_server", "vllm"),
        ("/opt/t/bin/python /opt/t/bin/transformers serve", "transformers"),
        ("python train.py --model sglang", None),
        ("vim sglang.launch_server.txt", None),
    ],
)
def test_engines_are_known_by_their_command(command: str, engine: str | None) -> None:
    found = engines.find_engine_of_command(command.split())
    assert (found.name if found else None) == engine


def _read_sglang(text: str) -> dict[str, Any]:
    return log_reader.read_log(text, NOW_OF_ORDER, 0, engines.ENGINES["sglang"])


NOW_OF_ORDER = 1775900000.0
START = "[2026-04-10 00:00:00] server_args=ServerArgs(model_path='/m')\n"
READY = "[2026-04-10 00:00:01] The server is fired up and ready to roll!\n"
ANSWERED = '[2026-04-10 00:00:02] INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
CRASHED = "[2026-04-10 00:00:03 TP1] Scheduler hit an exception: Traceback (most recent call last):\n"


def test_an_exception_over_several_lines_is_one() -> None:
    crash = CRASHED + (
        '  File "torch/distributed/distributed_c10d.py", line 1, in all_gather\n    work.wait()\n'
        "RuntimeError: [/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:538]\n"
        "    Read error [192.0.2.1]:63667: Connection reset by peer\nFatal Python error: Aborted\n"
    )
    found = _read_sglang(START + READY + crash)
    assert found["fatal"]["exception"].endswith("Read error [192.0.2.1]:63667: Connection reset by peer")
    told = next(fault for fault in found["faults"] if fault["kind"] == "peer_gone")
    assert "another rank" in told["meaning"] and "Aborted" not in told["exception"]
    assert found["fatal"] is told


@pytest.mark.parametrize(
    ("other", "meaning"),
    [
        (
            "Process 12 has 522.00 MiB memory in use.\nProcess 77 has 49.48 GiB memory in use.\n",
            "process 77 holds 49.48 GiB of GPU 4",
        ),
        ("Process 12 has 522.00 MiB memory in use.\n", "in which phase"),
    ],
)
def test_out_of_memory_names_who_holds_it(other: str, meaning: str) -> None:
    said = (
        "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 1.02 GiB.\nGPU 4 has a total capacity of "
        "79.18 GiB\n"
    )
    found = _read_sglang(CRASHED + said + other)
    assert found["fatal"]["kind"] == "out_of_memory" and meaning in found["fatal"]["meaning"]
    assert found["fatal"]["direction"] is None


@pytest.mark.parametrize("between", [",", ".", " [124],"])
def test_spellings_of_the_decode_line(between: str) -> None:
    line = "[2026-04-10 00:00:05] Decode batch%s #running-req: 18, #token: 16384, token usage: 0.71, "
    line += "cuda graph: True, gen throughput (token/s): 2520.18, #queue-req: 3\n"
    decode = _read_sglang(START + READY + line % between)["decode"]
    assert (decode["running"], decode["tokens_per_s"], decode["queue"]) == (18, 2520.18, 3)
    assert decode["median_tokens_per_s"] is None, "one line is no throughput"
    assert _read_sglang(START + READY + line % between * 5)["decode"]["median_tokens_per_s"] == 2520.18


@pytest.mark.parametrize(("lines", "later"), [(ANSWERED + CRASHED, True), (CRASHED + ANSWERED, False), (CRASHED, True)])
def test_a_fault_is_before_or_after_the_last_answer(lines: str, later: bool) -> None:
    found = _read_sglang(START + READY + lines)
    assert server_state.not_served_since(found) is later


def test_a_real_sglang_starts_serves_and_is_stopped() -> None:
    """SGLang 0.5.17 with --tp 1 on one H200: its start with CUDA graphs, requests, and SIGTERM during a generation."""
    log = read(RECORDINGS / "sglang-0.5.17-serving.log.gz")
    assert log["engine"] == "sglang" and log["ready"] is True
    names = [phase["name"] for phase in log["phases"]]
    assert names[0] == "arguments" and names[-1] == "ready"
    assert [name for name in names if name in ("distributed", "weights", "graphs")] == [
        "distributed",
        "weights",
        "graphs",
    ]
    assert log["fatal"] is None
    assert 600 < log["decode"]["tokens_per_s"] < 800


@pytest.mark.parametrize(
    ("name", "kind", "word"),
    [
        ("wrong_flag", "unrecognized_arguments", "--no-such-flag"),
        ("port_in_use", "port_in_use", "address already in use"),
        ("tp2-port_in_use", "port_in_use", "address already in use"),
        ("nodes2-first_waits", "worker_died", "Rank 0 scheduler died during initialization (exit code: -9)"),
    ],
)
def test_a_real_sglang_that_cannot_start(name: str, kind: str, word: str) -> None:
    log = read(RECORDINGS / ("sglang-0.5.17-%s.log.gz" % name))
    assert log["engine"] == "sglang" and log["fatal"]["kind"] == kind
    assert word in log["fatal"]["line"]


# SGLang 0.5.17 with --tp 2 on two H200, NCCL_DEBUG=INFO.
@pytest.mark.parametrize(
    ("name", "transports"),
    [
        ("tp2-serving", {"P2P": ["0->1", "1->0"]}),
        ("tp2-rank_killed", {"P2P": ["0->1", "1->0"]}),
        ("tp2-rank_stopped", {"P2P": ["0->1", "1->0"]}),
        ("tp2-without_p2p", {"SHM": ["0->1", "1->0"]}),
    ],
)
def test_two_ranks_say_how_they_talk(name: str, transports: dict[str, list[str]]) -> None:
    log = read(RECORDINGS / ("sglang-0.5.17-%s.log.gz" % name))
    assert log["engine"] == "sglang" and log["ready"] is True
    assert log["nccl"]["transports"] == transports
    assert log["nccl"]["version"] == "2.28.9"


def test_two_nodes_each_tell_their_own_part() -> None:
    """SGLang 0.5.17 with --nnodes 2; the second node was killed while the first served."""
    first, second = (read(RECORDINGS / ("sglang-0.5.17-nodes2-%s.log.gz" % name)) for name in ("first", "second"))
    assert first["ready"] is True and first["fatal"]["kind"] == "peer_gone"
    assert second["ready"] is False and second["fatal"] is None and second["phase"] in server_state.LOADED


def test_a_server_that_was_told_to_stop_says_so() -> None:
    assert "SIGTERM received" in read(RECORDINGS / "sglang-0.5.17-tp2-serving.log.gz")["stopping"]
    assert read(RECORDINGS / "sglang-0.5.17-tp2-rank_killed.log.gz")["stopping"] is None


def test_the_rank_that_is_left_loses_its_connection_to_the_one_that_was_killed() -> None:
    log = read(RECORDINGS / "sglang-0.5.17-tp2-rank_killed.log.gz")
    assert (log["fatal"]["kind"], log["fatal"]["phase"]) == ("peer_gone", "serving")
    assert "Connection reset by peer" in log["fatal"]["exception"]


def test_a_memory_share_below_the_weights_is_said_in_the_engine_s_words() -> None:
    log = read(RECORDINGS / "sglang-0.5.17-tp2-does_not_fit.log.gz")
    assert "Raise --mem-fraction-static" in log["fatal"]["exception"]


def test_memory_that_another_process_holds_makes_a_small_cache_not_a_fault() -> None:
    log = read(RECORDINGS / "sglang-0.5.17-tp2-memory_held.log.gz")
    assert (log["ready"], log["fatal"], log["kv_tokens"]) == (True, None, 12456)
    assert read(RECORDINGS / "sglang-0.5.17-tp2-serving.log.gz")["kv_tokens"] == 2702022


VIA = "host:1:1 [0] NCCL INFO Channel 00/0 : 0[0] -> 8[0] [send] via NET/%s\n"


@pytest.mark.parametrize(
    ("text", "used", "through"),
    [
        ("", None, []),
        ("NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 0 'mlx5_0'\n", None, []),  # one host: nobody needs it
        (VIA % "IB/0/GDRDMA", True, []),
        (VIA % "IB/0/GDRDMA/Shared", True, []),
        (VIA % "NCCL RDMA Plugin v9/3/GDRDMA", True, []),
        (VIA % "IB/0", False, ["IB"]),
        (VIA % "Socket/1", False, ["Socket"]),
        (VIA % "IB/0/GDRDMA" + VIA % "IB/1" + VIA % "IB/2", False, ["IB"]),
    ],
)
def test_whether_channels_over_the_network_use_gpudirect_rdma(text: str, used: bool | None, through: list[str]) -> None:
    found = log_reader.read_log(text, NOW)["nccl"]["gdr"]
    assert (found["used"], found["through"]) == (used, through)
    assert found["channels"] == text.count("via NET/") and found["without"] == (
        0 if used is None else found["channels"] - text.count("GDRDMA")
    )


def test_for_which_cards_nccl_has_gpudirect_rdma() -> None:
    text = (
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA (nvidia-peermem) enabled for HCA 0 'mlx5_0\n"
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA (DMABUF) enabled for HCA 1 'mlx5_1'\n"
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Enabled for HCA 2 : mlx5_2\n"
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for HCA 3 'bnxt_re0' (no module)\n"
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 2 / HCA 0 (distance 7 >= 5)\n"
        "h:1:1 [0] NCCL INFO NET/IB : GPU Direct RDMA Disabled for GPU 2 / HCA 0 (distance 7 >= 5)\n"
    )
    found = log_reader.read_log(text, NOW)["nccl"]["gdr"]
    assert found["enabled"] == {"mlx5_0": "nvidia-peermem", "mlx5_1": "DMABUF", "mlx5_2": "enabled"}
    assert found["disabled"] == ["bnxt_re0"]
    assert found["too_far"] == ["GPU 2 and card 0 (distance 7 >= 5)"]
