"""The benchmark: figures of a load on the stand-in, samples of the GPUs, targets and the run before."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_server.load import benchmark, request_load
from engine_standin import ENGINE, hub, running

ROOT = Path(__file__).resolve().parents[2]
DMON = """# gpu    pwr  gtemp  mtemp     sm    mem    enc    dec    jpg    ofa  rxpci  txpci
# Idx      W      C      C      %      %      %      %      %      %   MB/s   MB/s
    0    300     61      -     90     40      0      0      0      0   8000   7000
    1      -     60      -      -     40      0      0      0      0      -      -
    0    340     61      -    100     40      0      0      0      0   9000   7200
"""


def cell(**other: Any) -> dict[str, Any]:
    made = {
        "concurrency": 1, "prompt_tokens_asked": 512, "output_tokens_asked": 256, "requests": 4, "failed": 0,
        "problems": [],
        "seconds": 11.4,
        "output_tokens_per_s": 90.0, "total_tokens_per_s": 270.0, "per_stream_tokens_per_s": 95.0,
        "first_token_s": {"median": 0.2, "p95": 0.3},
    }  # fmt: skip
    return {**made, **other}


def test_samples_are_read_by_the_names_of_their_columns() -> None:
    found = benchmark.parse_samples(DMON)
    assert found is not None
    assert found["0"] == {
        "power_w": {"mean": 320.0, "max": 340.0}, "utilization_percent": {"mean": 95.0, "max": 100.0},
        "pcie_rx_mb_s": {"mean": 8500.0, "max": 9000.0}, "pcie_tx_mb_s": {"mean": 7100.0, "max": 7200.0},
    }  # fmt: skip
    assert "1" not in found  # dashes are no samples
    assert benchmark.parse_samples("") is None
    assert benchmark.parse_samples("# gpu sm\n 0 1 2 3\nNVML: Driver/library version mismatch\n") is None


@pytest.mark.parametrize(
    ("targets", "text"),
    [
        ({"single_stream_tokens_per_s": 100}, "a single stream: 95.0 tokens/s at best, the target is 100.0"),
        ({"total_tokens_per_s": 1000}, "total tokens: 270.0 tokens/s at best, the target is 1000.0"),
        ({"single_stream_tokens_per_s": 90, "total_tokens_per_s": 200}, None),
    ],
)
def test_targets(targets: dict[str, float], text: str | None) -> None:
    assert [finding["text"] for finding in benchmark.find_shortfalls([cell()], targets, None)] == (
        [text] if text else []
    )


def test_a_target_that_nothing_measured_is_not_reached() -> None:
    [finding] = benchmark.find_shortfalls([cell(concurrency=8)], {"single_stream_tokens_per_s": 1}, None)
    assert "no cell with one request at a time" in finding["text"]


def test_slower_than_the_run_before_and_only_the_same_load_counts() -> None:
    before = {"cells": [cell(output_tokens_per_s=110.0), cell(concurrency=64, output_tokens_per_s=900.0)]}
    [finding] = benchmark.find_shortfalls([cell()], {}, before)
    assert "18 % slower than the baseline" in finding["text"]
    assert benchmark.find_shortfalls([cell(output_tokens_per_s=100.0)], {}, before) == []
    assert "-18 %" in benchmark.render_table([cell()], before)[1]


def test_a_load_on_the_stand_in(tmp_path: Path) -> None:
    with running(tmp_path, "healthy", speed=60, STANDIN_TOKEN_S="0.01") as server:
        server.listens()
        base = "http://127.0.0.1:%d" % server.port
        one = request_load.Load(base, "glm-5", None).run(1, 2, 32, 20, 60.0)
        four = request_load.Load(base, "glm-5", None).run(4, 8, 32, 20, 60.0)
    assert (one["completed"], one["failed"], one["output_tokens"], one["prompt_tokens"]) == (2, 0, 40, 64)
    assert four["completed"] == 8
    assert four["output_tokens_per_s"] > 1.5 * one["output_tokens_per_s"]  # four at a time
    assert 20 < one["per_stream_tokens_per_s"] <= 105  # a token every 10 ms, or later on a busy machine
    assert one["token_gap_ms"]["median"] >= 9


def test_requests_that_fail_are_counted_and_their_reason_is_kept(tmp_path: Path) -> None:
    with running(tmp_path, "no_generation", speed=60) as server:
        server.listens()
        found = request_load.Load("http://127.0.0.1:%d" % server.port, "glm-5", None).run(2, 4, 8, 8, 30.0)
    assert (found["completed"], found["failed"], found["output_tokens_per_s"]) == (0, 4, None)
    assert "HTTP 500" in found["problems"][0]
    [finding] = benchmark.find_shortfalls([found], {}, None)
    assert "4 of 4 requests failed" in finding["text"]


def test_a_load_without_figures_is_a_finding_of_its_own() -> None:
    [finding] = benchmark.find_shortfalls(
        [cell(seconds=None, failed=4, problems=["sglang ended with 1; its last lines: no tokenizer"])], {}, None
    )
    assert (
        finding["text"] == "1 at once, 512 in, 256 out: no figures: sglang ended with 1; its last lines: no tokenizer"
    )


@pytest.mark.parametrize(
    ("then", "kept", "note"),
    [
        ({"name": "sglang", "version": "0.5.23"}, True, None),
        (
            {"name": "sglang", "version": "0.5.12"},
            True,
            "the baseline was measured with version 0.5.12 of sglang, this run with version 0.5.23",
        ),
        (
            {"name": "guidellm", "version": "0.8.1"},
            False,
            "the baseline was measured with guidellm, this run with sglang: they are not compared",
        ),
        (None, False, "the baseline was measured with builtin, this run with sglang: they are not compared"),
    ],
)
def test_a_baseline_of_another_generator_is_not_compared(
    then: dict[str, Any] | None, kept: bool, note: str | None
) -> None:
    before = {"cells": [cell()], **({"generator": then} if then else {})}
    found, notes = benchmark.choose_baseline(before, {"name": "sglang", "version": "0.5.23"})
    assert (found == before, notes) == (kept, [note] if note else [])
    assert benchmark.choose_baseline(None, {"name": "sglang", "version": None}) == (None, [])


@pytest.mark.parametrize("content", [[], {}, {"cells": None}, {"cells": [1]}, {"cells": [{"concurrency": "1"}]}])
def test_what_is_no_report_is_no_baseline(content: Any) -> None:
    assert not benchmark.is_report(content)
    assert benchmark.is_report({"cells": [cell()]})


class Strict(BaseHTTPRequestHandler):
    """Refuses what OpenAI's API does not have, as `transformers serve` does."""

    def log_message(self, *_args: Any) -> None:
        pass

    def do_POST(self) -> None:
        request = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        unknown = {name for name in ("ignore_eos", "min_tokens") if name in request}
        if unknown:
            text = json.dumps({"detail": "Unexpected fields in the request: %s" % unknown}).encode()
            self.send_response(422)
            self.send_header("Content-Length", str(len(text)))
            self.end_headers()
            self.wfile.write(text)
            return
        self.send_response(200)
        self.end_headers()
        self.wfile.write(
            b'data: {"choices": [{"text": "a"}]}\n\ndata: {"choices": [], "usage": {"prompt_tokens": 3, '
            b'"completion_tokens": 2}}\n\n'
        )


def test_fields_that_a_server_refuses_are_left_out() -> None:
    with ThreadingHTTPServer(("127.0.0.1", 0), Strict) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        found = request_load.Load("http://127.0.0.1:%d" % server.server_port, "tiny", None).run(2, 6, 3, 2, 30.0)
        server.shutdown()
    assert (found["completed"], found["failed"], found["output_tokens"], found["problems"]) == (6, 0, 12, [])


@pytest.mark.slow
def test_the_playbook_measures_compares_and_keeps(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """benchmark.yml on this machine.

    The first run becomes the baseline, a target that is out of reach fails the second.
    """
    loads = [{"concurrency": 1, "requests": 12, "prompt_tokens": 16, "output_tokens": 16}]
    with running(tmp_path, "healthy", speed=60, HF_HOME=str(hub(tmp_path / "huggingface"))) as server:
        server.listens()
        variables = {
            "ansible_connection": "local", "ansible_python_interpreter": sys.executable,
            "inference_server_port": server.port,
            "benchmark_loads": loads, "benchmark_directory": str(tmp_path / "reports"), "benchmark_beside_work": True,
            "benchmark_baseline": str(tmp_path / "baselines" / "b.json"),
            "ansible_remote_tmp": str(tmp_path / "ansible"),
        }  # fmt: skip
        monkeypatch.setenv("TMPDIR", str(tmp_path))
        first = play(variables)
        kept = json.loads((tmp_path / "baselines" / "b.json").read_text())
        second = play({**variables, "benchmark_targets": {"total_tokens_per_s": 1e9}, "benchmark_generator": "builtin"})
    assert first.returncode == 0, first.stdout + first.stderr
    assert kept["cells"][0]["completed"] == 12
    assert kept["cells"][0]["gpus"]["0"]["power_w"]["max"] == 331.0
    assert (kept["generator"]["name"], kept["generator"]["version"]) == ("sglang", "0.5.23")
    assert kept["generator"]["command"][1:3] == ["-m", "sglang.bench_serving"]
    assert "load 1 of 1" in first.stdout
    assert "load generator: sglang 0.5.23 (%s -m sglang.bench_serving)" % sys.executable in first.stdout
    assert second.returncode == 2, second.stdout
    assert "the target is 1000000000.0" in second.stdout
    assert "the baseline was measured with sglang, this run with builtin: they are not compared" in second.stdout
    assert not list(tmp_path.glob("benchmark-*"))  # on the host nothing is left


def play(variables: dict[str, Any]) -> subprocess.CompletedProcess[str]:
    command = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        "localhost,",
        "benchmark.yml",
        "-e",
        json.dumps(variables),
    ]
    path = "%s:%s" % (ENGINE / "bin", os.environ["PATH"])
    environment = dict(os.environ, PATH=path, ANSIBLE_CALLBACKS_ENABLED="quiet", ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8")
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=240)
