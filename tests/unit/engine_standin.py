"""Runs the stand-in engine of tests/fixtures/engine for a test, and looks at it with the real readers."""

from __future__ import annotations

import contextlib
import os
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import inference_server_facts
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server.watching import Verdict, Watch, judge_answers

ENGINE = Path(__file__).resolve().parents[1] / "fixtures" / "engine"


def hub(home: Path) -> Path:
    """A hub's cache in which the stand-in's model lies, for HF_HOME."""
    snapshot = home / "hub" / "models--lukealonso--GLM-5-NVFP4" / "snapshots" / "0123456"
    snapshot.mkdir(parents=True)
    (snapshot / "tokenizer_config.json").write_text("{}")
    return home


def free_port() -> int:
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        return int(sock.getsockname()[1])


class Server:
    """A running stand-in. `home` holds its log, its caches and what its nvidia-smi shows."""

    def __init__(self, home: Path, port: int, process: subprocess.Popen[bytes]) -> None:
        self.home, self.port, self.process = home, port, process
        self.log = home / "server.log"

    def facts(self, **params: Any) -> dict[str, Any]:
        result = inference_server_facts.facts(LiveEvidence(), {"port": self.port, "log": str(self.log), **params})
        found: dict[str, Any] = result["ansible_facts"]["inference_server"]
        return found

    def listens(self, limit: float = 60.0) -> None:
        """Until something accepts on the port."""
        until = time.monotonic() + limit
        while time.monotonic() < until:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1):
                return
            time.sleep(0.05)
        raise AssertionError(self.log.read_text(errors="replace")[-2000:])

    def wait(self, scale: float, limit: float = 60.0, **answers: Any) -> tuple[Verdict, Watch]:
        """Waits as the action inference_server_ready does."""
        watch = Watch(scale=scale)
        until = time.monotonic() + limit
        while time.monotonic() < until:
            verdict = watch.look(self.facts(light=True, generate="never", patience_scale=scale), time.monotonic())
            if verdict.state == "ready":
                return judge_answers(
                    self.facts(light=True, generate="always"), answers.get("model"), answers.get("context")
                ), watch
            if verdict.state != "waiting":
                return verdict, watch
            time.sleep(0.1)
        raise AssertionError(
            "no verdict within %g s: %s\n%s" % (limit, watch.history, self.log.read_text(errors="replace")[-2000:])
        )


@contextlib.contextmanager
def running(
    home: Path, scenario: str, speed: float = 20.0, words: tuple[str, ...] = (), ranks: int = 2, **environment: str
) -> Iterator[Server]:
    """The stand-in with this scenario, ended afterwards with everything that it started.

    PATH is this process's while it runs.
    """
    port = free_port()
    before = dict(os.environ)
    os.environ.update(STANDIN_STATE=str(home), PATH="%s:%s" % (ENGINE / "bin", before["PATH"]))
    settings = dict(
        os.environ,
        PYTHONPATH=str(ENGINE),
        STANDIN_SCENARIO=scenario,
        STANDIN_SPEED=str(speed),
        HOME=str(home),
        **environment,
    )
    command = [
        sys.executable,
        "-m",
        "sglang.launch_server",
        "--model",
        "lukealonso/GLM-5-NVFP4",
        "--served-model-name",
        "glm-5",
    ]
    command += ["--tp", str(ranks), "--host", "127.0.0.1", "--port", str(port), "--enable-metrics", *words]
    with open(home / "server.log", "ab") as log:
        process = subprocess.Popen(command, stdout=log, stderr=log, env=settings, cwd=home, start_new_session=True)
    try:
        yield Server(home, port, process)
    finally:
        os.environ.clear()
        os.environ.update(before)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, 9)
        process.wait()
