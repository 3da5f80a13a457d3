"""Logs of servers: the recorded ones, public samples as their notes read them, and hostile text."""

from __future__ import annotations

import gzip
import random
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_server import engines
from ansible.module_utils.gpu_server.log import log_reader
from ansible.module_utils.gpu_server.log.log_lines import lines_of

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "recordings" / "server_log"
NOW = 1795970000.0  # 2026-11-29


def read(path: Path) -> dict[str, Any]:
    data = gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()
    return log_reader.read(data.decode("utf-8", "replace"), NOW)


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
    silent = log_reader.read(mark % 1 + served + mark % 30 + broken + mark % 50, NOW, 0, engines.TRANSFORMERS)
    assert (silent["ready"], silent["fatal"], silent["phase"], silent["lines"]) == (False, None, None, 1)
    again = log_reader.read(mark % 1 + broken + mark % 30 + served, NOW, 0, engines.TRANSFORMERS)
    assert (again["ready"], again["fatal"]) == (True, None)
    assert [phase["name"] for phase in again["phases"]] == ["weights", "listening", "ready"]


def test_host_memory_as_transport_is_not_p2p() -> None:
    text = (
        "host:1:1 [0] NCCL INFO Channel 00 : 0[0] -> 1[1] via SHM/direct/direct\nhost:1:1 [0] NCCL INFO Channel 01 "
        ": 1[1] -> 2[2] via P2P/IPC\n"
    )
    assert log_reader.read(text, NOW)["nccl"]["p2p_used"] is False


def test_a_year_is_not_taken_from_the_future() -> None:
    [line] = lines_of("INFO 12-31 23:59:58 [utils.py:1] x", NOW)
    assert line.at is not None
    assert line.at < NOW


@pytest.mark.parametrize("stamp", ["[2026-02-31 01:25:37]", "[2026-13-01 25:00:00]", "INFO 02-30 99:99:99"])
def test_impossible_dates_are_no_time(stamp: str) -> None:
    [line] = lines_of(stamp + " text", NOW)
    assert line.at is None


def test_any_bytes_give_the_same_keys_and_no_exception() -> None:
    source = gzip.decompress((RECORDINGS / "vllm-0.32-cpu-engine-dead.log.gz").read_bytes())
    keys = set(log_reader.read("", NOW))
    generator = random.Random(7)
    for _round in range(60):
        data = bytearray(source[: generator.randrange(len(source))])
        for _change in range(generator.randrange(1, 40)):
            if data:
                data[generator.randrange(len(data))] = generator.randrange(256)
        assert set(log_reader.read(bytes(data).decode("utf-8", "replace"), NOW)) == keys


def test_a_line_of_megabytes_costs_little_and_hides_nothing() -> None:
    text = (
        "server_args=ServerArgs(x)\n"
        + "Decode batch, #running-req: 1, "
        + "a, " * 1_000_000
        + "\nThe server is fired up and ready to roll!\n"
    )
    assert log_reader.read(text, NOW)["ready"] is True


def test_flags_of_a_command_line() -> None:
    words = "python3 -m sglang.launch_server --tp 8 --host=0.0.0.0 --trust-remote-code --api-key ******** --disable_radix --lora-paths a b".split()  # noqa: SIM905
    assert engines.flags(words) == {
        "tp": "8", "host": "0.0.0.0", "trust-remote-code": True, "api-key": "********", "disable-radix": True, "lora-paths": ["a", "b"],
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
    found = engines.of_command(command.split())
    assert (found.name if found else None) == engine
