#!/usr/bin/env python3
"""A real SGLang on real GPUs, led through what an operator meets: starts that succeed and starts that fail, each looked
at, validated and captured. Exits 1 if an expectation failed.

    python3 tests/hardware/sglang_on_gpu.py OUTPUT_DIRECTORY MODEL_DIRECTORY [--only STEP,STEP] [--seconds 500]

Needs a Python that can import sglang and torch (the one that runs this file, with its PYTHONPATH), a model directory,
and ansible-playbook on PATH. OUTPUT_DIRECTORY/report.json holds, for each step, what was expected and what came; the
server's logs and a bundle lie beside it. Steps that need two GPUs are skipped by name on a machine with one.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import threading
import time
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Callable

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import probe as benchmark_of_the_probe  # type: ignore[import-not-found]

benchmark_of_the_probe.importable()
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server.gather import gather
from ansible.module_utils.gpu_server.watching import Watch

# What keeps the engine to what every installation of it has; NVLink multicast stays off.
COMMON = {
    "attention-backend": "triton",
    "sampling-backend": "pytorch",
    "grammar-backend": "none",
    "context-length": "4096",
    "mem-fraction-static": "0.3",
    "max-running-requests": "32",
}
ENVIRONMENT = {
    "HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false", "PYTHONUNBUFFERED": "1",
    "NCCL_NVLS_ENABLE": "0", "TORCH_SYMM_MEM_DISABLE_MULTICAST": "1", "NVSHMEM_DISABLE_NVLS": "1", "NCCL_DEBUG": "INFO",
}  # fmt: skip
LOADS = [
    {"concurrency": 1, "requests": 4, "prompt_tokens": 64, "output_tokens": 64},
    {"concurrency": 8, "requests": 32, "prompt_tokens": 64, "output_tokens": 64},
]
START_LIMIT_S = 150.0
SHOWN = (
    "state", "why", "engine", "model", "fault", "faults", "process", "ranks", "gpu", "api", "generation", "packages",
    "busy", "busy_because", "nccl", "decode", "log", "model_type", "settings", "arguments", "environment",
)  # fmt: skip


class Run:
    """Where one run writes, and what it has seen so far."""

    def __init__(self, directory: Path, model: str, seconds: float) -> None:
        self.directory, self.model = directory, model
        self.deadline = time.monotonic() + seconds
        self.gpus = len(
            subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines()
        )
        self.seen: dict[str, Any] = {"gpus": self.gpus, "steps": {}}

    def write(self) -> None:
        text = json.dumps(self.seen, indent=1, default=str)
        (self.directory / "report.json").write_text(text)


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


@contextlib.contextmanager
def started(run: Run, name: str, port: int, more: dict[str, Any], environment: dict[str, str]) -> Iterator[Any]:
    """The server of one step, ended with all its processes afterwards. Yields (process, path of its log)."""
    log = run.directory / (name + ".log")
    words = {**COMMON, "tp": str(run.gpus), "host": "127.0.0.1", "port": str(port), **more}
    command = [sys.executable, "-m", "sglang.launch_server", "--model-path", run.model, "--served-model-name", "tiny"]
    command += ["--enable-metrics", "--enforce-disable-flashinfer-allreduce-fusion"]
    for key, value in words.items():
        command += ["--" + key] if value is True else ["--" + key, str(value)]
    with open(log, "wb") as out:
        server = subprocess.Popen(
            command, stdout=out, stderr=out, env={**os.environ, **ENVIRONMENT, **environment}, start_new_session=True
        )
    try:
        yield server, str(log)
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(server.pid, signal.SIGKILL)
        server.wait()
        subprocess.run(["pkill", "-9", "-f", "sglang::"], check=False)
        time.sleep(2)


def facts_of(port: int, log: str, **more: Any) -> dict[str, Any]:
    errors = Errors("server")
    found = gather(LiveEvidence(), {"port": port, "log": log, **more}, errors) or {}
    return {**{name: found.get(name) for name in SHOWN}, "errors": errors.entries, "whole": found}


def watched(port: int, log: str) -> tuple[str, list[str]]:
    """Look after look until the server is ready, has failed or is stuck: the state, and the timeline."""
    watch, began, lines = Watch(scale=1.0, limit_s=START_LIMIT_S), time.monotonic(), []
    while True:
        errors = Errors("server")
        found = gather(LiveEvidence(), {"port": port, "log": log, "light": True, "generate": "never"}, errors)
        verdict = watch.look(found, time.monotonic())  # type: ignore[arg-type]
        line = "%6.1f s  %s: %s" % (time.monotonic() - began, verdict.state, verdict.message)
        if not lines or lines[-1][10:] != line[10:]:
            lines.append(line + (" | " + verdict.advice if verdict.advice else ""))
        if verdict.state != "waiting":
            return verdict.state, lines
        time.sleep(1.0)


def play(run: Run, playbook: str, log: str, *arguments: str, **variables: Any) -> dict[str, Any]:
    given = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "host_validation_server": "true",
        "host_validation_server_log": log, "host_validation_probe": "auto", "benchmark_directory": str(run.directory),
        **variables,
    }  # fmt: skip
    command = ["ansible-playbook", playbook, "-i", "localhost,", "-e", json.dumps(given), *arguments]
    environment = {**os.environ, "GPU_HOST_REPORTS_DIR": str(run.directory / "reports"), "ANSIBLE_NOCOLOR": "1"}
    began = time.monotonic()
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    output = (done.stdout + done.stderr)[-9000:].splitlines()
    return {"rc": done.returncode, "seconds": round(time.monotonic() - began, 1), "output": output}


def ask(port: int, tokens: int, timeout: float = 60.0) -> str:
    body = {"model": "tiny", "prompt": "The capital of France is", "max_tokens": tokens, "ignore_eos": True}
    request = urllib.request.Request(
        "http://127.0.0.1:%d/v1/completions" % port, json.dumps(body).encode(), {"Content-Type": "application/json"}
    )
    with urllib.request.urlopen(request, timeout=timeout) as answer:
        return str(json.loads(answer.read())["choices"][0]["text"])


def step_arguments(run: Run) -> dict[str, Any]:
    """The arguments check against the installed engine: what is right, and one that is unknown."""
    seen: dict[str, Any] = {}
    for name, more in (("right", {}), ("unknown", {"no-such-flag": 1})):
        given = {
            "engine": "sglang", "command": [sys.executable, "-m", "sglang.launch_server"], "model": run.model,
            "environment": {**ENVIRONMENT, "PYTHONPATH": os.environ.get("PYTHONPATH", "")},
            "arguments": {**COMMON, "tp": run.gpus, "port": 30000, **more},
        }  # fmt: skip
        command = ["ansible", "localhost", "-c", "local", "-m", "inference_server_arguments", "-a", json.dumps(given)]
        command += ["-e", "ansible_python_interpreter=" + sys.executable]
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
        seen[name] = {"rc": done.returncode, "output": (done.stdout + done.stderr)[-3000:].splitlines()}
    seen["expectations"] = {
        "what is right is accepted": seen["right"]["rc"] == 0,
        "an unknown flag is named": seen["unknown"]["rc"] != 0
        and "no-such-flag" in "\n".join(seen["unknown"]["output"]),
    }
    return seen


def step_serving(run: Run, name: str = "serving", more: Any = None, environment: Any = None) -> dict[str, Any]:
    """A start that succeeds, requests, validation, benchmark, capture and the verdict from the bundle; then SIGTERM
    during a generation."""
    port, seen = free_port(), {}
    with started(run, name, port, more or {}, environment or {}) as (server, log):
        state, seen["timeline"] = watched(port, log)
        for _ in range(3):
            ask(port, 200)
        seen["facts"] = facts_of(port, log, generate="always")
        seen["validate"] = play(run, "validate.yml", log)
        seen["benchmark"] = play(
            run, "benchmark.yml", log, benchmark_loads=LOADS, inference_server_port=port, benchmark_keep=False
        )
        seen["capture"] = play(run, "capture.yml", log, capture_dir=str(run.directory))
        bundle = run.directory / "localhost.jsonl.gz"
        seen["replayed"] = play(run, "validate.yml", log, gpu_host_bundle=str(bundle))
        answers: list[str] = []

        def generate() -> None:
            try:
                answers.append("answered: %d characters" % len(ask(port, 3000)))
            except OSError as error:
                answers.append("%s: %s" % (type(error).__name__, error))

        asking = threading.Thread(target=generate)
        asking.start()
        time.sleep(2)
        os.kill(server.pid, signal.SIGTERM)
        time.sleep(3)
        seen["during_stop"] = facts_of(port, log, light=True, generate="never")
        asking.join(60)
        seen["generation_at_stop"] = answers
        time.sleep(3)
        seen["after_stop"] = facts_of(port, log, light=True, generate="never")
    first = [line for line in seen["validate"]["output"] if line.strip()][:1]
    facts = seen["facts"]
    seen["expectations"] = {
        "the start ends ready": state == "ready",
        "the facts say so": facts["state"] == "ready" and facts["engine"] == "sglang",
        "a generation is answered": bool(facts["generation"] and facts["generation"]["answered"]),
        "every rank is seen": len(facts["ranks"] or ()) == run.gpus,
        "the host is validated": seen["validate"]["rc"] == 0,
        "the benchmark ends well": seen["benchmark"]["rc"] == 0,
        "the bundle has the same verdict": seen["replayed"]["rc"] == seen["validate"]["rc"],
        "a stopped server is not called ready": seen["after_stop"]["state"] != "ready",
    }
    seen["first_line"] = first
    return seen


def failing(
    run: Run, name: str, more: dict[str, Any], says: str, before: Callable[[int], Any] | None = None
) -> dict[str, Any]:
    """A start that cannot succeed: the verdict must be `failed`, and its words must hold `says`."""
    port, seen = free_port(), {}
    held = before(port) if before else None
    try:
        with started(run, name, port, more, {}) as (_server, log):
            state, seen["timeline"] = watched(port, log)
            seen["facts"] = facts_of(port, log, generate="never")
            seen["validate"] = play(run, "validate.yml", log, "--tags", "server")
    finally:
        if held is not None:
            held.close()
    told = " ".join([*seen["timeline"], *seen["validate"]["output"]])
    seen["expectations"] = {
        "the start is said to have failed": state == "failed",
        "its cause is named (%s)" % says: says.lower() in told.lower(),
        "the host is not ready": seen["validate"]["rc"] != 0,
    }
    return seen


def step_wrong_flag(run: Run) -> dict[str, Any]:
    return failing(run, "wrong_flag", {"no-such-flag": "1"}, "no-such-flag")


def step_port_in_use(run: Run) -> dict[str, Any]:
    def take(port: int) -> socket.socket:
        sock = socket.socket()
        sock.bind(("127.0.0.1", port))
        sock.listen()
        return sock

    return failing(run, "port_in_use", {}, "port", take)


class Holder:
    """Another process that holds nearly all memory of every GPU."""

    CODE = (
        "import torch\nheld = []\nfor i in range(torch.cuda.device_count()):\n"
        "    free, _ = torch.cuda.mem_get_info(i)\n"
        "    held.append(torch.empty(free - 3 * 2**30, dtype=torch.uint8, device='cuda:%d' % i))\n"
        "print('holding', flush=True)\ninput()\n"
    )

    def __init__(self) -> None:
        self._child = subprocess.Popen(
            [sys.executable, "-c", self.CODE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        assert self._child.stdout is not None
        self._child.stdout.readline()

    def close(self) -> None:
        self._child.kill()
        self._child.wait()


def step_memory_held_by_another(run: Run) -> dict[str, Any]:
    """It starts all the same, with a small KV cache: a validation names the other process."""
    port, seen = free_port(), {}
    held = Holder()
    try:
        with started(run, "memory_held_by_another", port, {}, {}) as (_server, log):
            state, seen["timeline"] = watched(port, log)
            seen["facts"] = facts_of(port, log, generate="never")
            seen["validate"] = play(run, "validate.yml", log, "--tags", "server")
    finally:
        held.close()
    seen["expectations"] = {
        "the start ends ready": state == "ready",
        "the other process is named": "server_gpus_not_shared" in "\n".join(seen["validate"]["output"]),
    }
    return seen


def step_does_not_fit(run: Run) -> dict[str, Any]:
    return failing(run, "does_not_fit", {"mem-fraction-static": "0.0005"}, "mem-fraction-static")


def step_rank_killed(run: Run) -> dict[str, Any]:
    """CUDA graphs on; then one rank is killed with SIGKILL."""
    port, seen = free_port(), {}
    with started(run, "rank_killed", port, {"cuda-graph-max-bs": "4"}, {}) as (_server, log):
        state, seen["timeline"] = watched(port, log)
        ask(port, 32)
        before = facts_of(port, log, generate="never")
        os.kill(before["ranks"][-1]["pid"], signal.SIGKILL)
        time.sleep(4)
        seen["facts"] = facts_of(port, log, generate="never")
        seen["validate"] = play(run, "validate.yml", log, "--tags", "server")
    seen["expectations"] = {
        "the start ends ready": state == "ready",
        "a killed rank is seen": seen["facts"]["state"] not in ("ready", "starting"),
        "the host is not ready": seen["validate"]["rc"] != 0,
    }
    return seen


def ask_ras(port: int = 28028) -> str:
    """What NCCL's RAS service of a running job answers to `VERBOSE STATUS` (its text protocol, by hand)."""
    said = b""
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.settimeout(20)
            for line in (b"CLIENT PROTOCOL 2\n", b"TIMEOUT 10\n"):
                sock.sendall(line)
                said += sock.recv(4096)
            sock.sendall(b"VERBOSE STATUS\n")
            while part := sock.recv(65536):
                said += part
    except OSError as error:
        said += ("\n[%s: %s]" % (type(error).__name__, error)).encode()
    return said.decode("utf-8", "replace")


def step_rank_stopped(run: Run) -> dict[str, Any]:
    """One rank is stopped in the start, and goes on; then once more in a generation."""
    port, seen = free_port(), {}
    with started(run, "rank_stopped", port, {"disable-cuda-graph": True}, {}) as (_server, log):
        deadline = time.monotonic() + 90
        rank: dict[str, Any] = {}
        while not rank and time.monotonic() < deadline:
            ranks = facts_of(port, log, light=True, generate="never")["ranks"] or []
            rank = ranks[-1] if len(ranks) == run.gpus else {}
            time.sleep(0.3)
        os.kill(rank["pid"], signal.SIGSTOP)
        at_start, seen["timeline"] = watched(port, log)
        os.kill(rank["pid"], signal.SIGCONT)
        state, more = watched(port, log)
        seen["timeline"] += ["goes on", *more]
        ask(port, 64)
        seen["ras_healthy"] = ask_ras()
        asking = threading.Thread(target=ask_quietly, args=(port, 3500))
        asking.start()
        time.sleep(2)
        os.kill(rank["pid"], signal.SIGSTOP)
        time.sleep(8)
        seen["facts"] = facts_of(port, log, generate="never")
        seen["ras_stopped"] = ask_ras()
        seen["validate"] = play(run, "validate.yml", log, "--tags", "server")
        os.kill(rank["pid"], signal.SIGCONT)
        time.sleep(3)
        seen["after"] = facts_of(port, log, generate="always")
        asking.join(30)
    said = "\n".join(seen["validate"]["output"])
    seen["expectations"] = {
        "the start is said to be stuck": at_start == "stalled",
        "the stopped rank is named": "is stopped by a signal" in " ".join(seen["timeline"]),
        "it goes on and ends ready": state == "ready",
        "a rank that is stopped while it serves is seen": seen["facts"]["state"] == "unhealthy",
        "the command that lets it go on is printed": "kill -CONT %d" % rank["pid"] in said,
        "the host is not ready": seen["validate"]["rc"] != 0,
        "afterwards it serves again": seen["after"]["state"] == "ready",
    }
    return seen


def ask_quietly(port: int, tokens: int) -> None:
    with contextlib.suppress(OSError):
        ask(port, tokens)


def step_two_nodes(run: Run) -> dict[str, Any]:
    """`--nnodes 2`, a GPU for each node, both on this machine: the first waits for the second, serves with it, and
    loses it."""
    port, other, rendezvous, seen = free_port(), free_port(), free_port(), {}
    nodes = {"nnodes": "2", "dist-init-addr": "127.0.0.1:%d" % rendezvous, "disable-cuda-graph": True}
    first = started(run, "node_0", port, {**nodes, "node-rank": "0"}, {"CUDA_VISIBLE_DEVICES": "0"})
    second = started(run, "node_1", other, {**nodes, "node-rank": "1"}, {"CUDA_VISIBLE_DEVICES": "1"})
    with first as (_zero, log):
        time.sleep(50)
        seen["alone"] = facts_of(port, log, generate="never")
        with second as (one, other_log):
            state, seen["timeline"] = watched(port, log)
            seen["facts"] = facts_of(port, log, generate="always")
            seen["other"] = facts_of(other, other_log, generate="always")
            seen["validate"] = play(run, "validate.yml", log, "--tags", "server")
            os.killpg(one.pid, signal.SIGKILL)
            time.sleep(6)
            seen["second_killed"] = facts_of(port, log, generate="always")
    seen["expectations"] = {
        "the first one alone is not ready": seen["alone"]["state"] == "starting",
        "the start ends ready": state == "ready",
        "a generation is answered": bool(seen["facts"]["generation"]["answered"]),
        "without the second it is not ready": seen["second_killed"]["state"] != "ready",
    }
    return seen


def step_without_p2p(run: Run) -> dict[str, Any]:
    return step_serving(run, "without_p2p", {}, {"NCCL_P2P_DISABLE": "1"})


def step_without_custom_all_reduce(run: Run) -> dict[str, Any]:
    return step_serving(run, "without_custom_all_reduce", {"disable-custom-all-reduce": True})


STEPS: dict[str, tuple[int, Callable[[Run], dict[str, Any]]]] = {
    "arguments": (1, step_arguments),
    "serving": (1, step_serving),
    "wrong_flag": (1, step_wrong_flag),
    "rank_killed": (1, step_rank_killed),
    "port_in_use": (1, step_port_in_use),
    "without_p2p": (2, step_without_p2p),
    "without_custom_all_reduce": (2, step_without_custom_all_reduce),
    "rank_stopped": (2, step_rank_stopped),
    "two_nodes": (2, step_two_nodes),
    "memory_held_by_another": (1, step_memory_held_by_another),
    "does_not_fit": (1, step_does_not_fit),
}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("directory", type=Path)
    parser.add_argument("model")
    parser.add_argument("--only", default=",".join(STEPS))
    parser.add_argument("--seconds", type=float, default=500.0)
    options = parser.parse_args()
    options.directory.mkdir(parents=True, exist_ok=True)
    run = Run(options.directory, options.model, options.seconds)
    good = True
    for name in options.only.split(","):
        needs, step = STEPS[name]
        if needs > run.gpus:
            run.seen["steps"][name] = {"skipped": "needs %d GPUs, this machine has %d" % (needs, run.gpus)}
        elif time.monotonic() > run.deadline:
            run.seen["steps"][name] = {"skipped": "out of time"}
        else:
            began = time.monotonic()
            try:
                seen = step(run)
            except Exception as error:
                seen = {"expectations": {"the step runs to its end": False}, "error": repr(error)}
            seen["seconds"] = round(time.monotonic() - began, 1)
            run.seen["steps"][name] = seen
        seen = run.seen["steps"][name]
        print("%s: %s" % (name, seen.get("skipped") or "%.0f s" % seen["seconds"]), flush=True)
        for line in seen.get("timeline") or ():
            print("    " + line, flush=True)
        for expectation, held in (seen.get("expectations") or {}).items():
            print("  %s  %s" % ("ok  " if held else "FAIL", expectation), flush=True)
            good = good and bool(held)
        if seen.get("error"):
            print("  " + seen["error"], flush=True)
        run.write()
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
