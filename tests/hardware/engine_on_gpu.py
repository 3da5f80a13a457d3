#!/usr/bin/env python3
"""A real engine on a real GPU: `transformers serve` with a tiny model, looked at, validated and benchmarked.

Exits 1 if an expectation failed.

    python3 tests/hardware/engine_on_gpu.py OUTPUT_FILE

Needs PyTorch, transformers with what its server imports (fastapi, uvicorn, openai), and ansible-playbook on PATH.
"""

from __future__ import annotations

import json
import os
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "benchmarks"))
import probe as benchmark_of_the_probe  # type: ignore[import-not-found]

benchmark_of_the_probe.importable()
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server.gather import gather
from ansible.module_utils.gpu_server.watching import Watch

MODEL = ROOT / "molecule/inference_server_real/make_model.py"
LOADS = [
    {"concurrency": 1, "requests": 4, "prompt_tokens": 32, "output_tokens": 32},
    {"concurrency": 8, "requests": 32, "prompt_tokens": 32, "output_tokens": 32},
]


def main() -> int:
    seen: dict[str, Any] = {"expectations": {}}
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    with tempfile.TemporaryDirectory() as scratch:
        log = os.path.join(scratch, "server.log")
        transformers = shutil.which("transformers") or str(Path(sys.executable).parent / "transformers")
        command = [
            sys.executable,
            transformers,
            "serve",
            hub(Path(scratch)),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--device",
            "cuda",
        ]
        settings = {"HF_HUB_CACHE": scratch + "/hub", "HF_HUB_OFFLINE": "1", "PYTHONUNBUFFERED": "1"}
        with open(log, "wb") as out:
            server = subprocess.Popen(command, stdout=out, stderr=out, env={**os.environ, **settings})
        try:
            look(seen, port, log)
            seen["validate"] = play("validate.yml", scratch, log, "--tags", "server")
            seen["benchmark"] = play(
                "benchmark.yml", scratch, log, benchmark_loads=LOADS, inference_server_port=port, benchmark_keep=False
            )
            seen["capture"] = play("capture.yml", scratch, log, capture_dir=str(Path(sys.argv[1]).resolve().parent))
            reports = sorted(Path(scratch).glob("benchmark-*.json"))
            seen["cells"] = json.loads(reports[0].read_text())["cells"] if reports else []
        finally:
            server.kill()
            server.wait()
            seen["log"] = Path(log).read_text(errors="replace")[-6000:]
    expect(seen)
    text = json.dumps(seen, indent=1)
    Path(sys.argv[1]).write_text(text)
    print(text)
    return 0 if all(seen["expectations"].values()) else 1


def hub(scratch: Path) -> str:
    """A cache of the hub that holds the model; its name.

    (transformers serve 5.17 lists only what such a cache holds.)
    """
    revision = "0" * 40
    model = scratch / "hub/models--tiny--known"
    subprocess.run([sys.executable, str(MODEL), str(model / "snapshots" / revision)], check=True)
    (model / "refs").mkdir()
    (model / "refs/main").write_text(revision)
    return "tiny/known"


def look(seen: dict[str, Any], port: int, log: str) -> None:
    def facts(**more: Any) -> dict[str, Any]:
        errors = Errors("server")
        found = gather(LiveEvidence(), {"port": port, "log": log, **more}, errors)
        assert found is not None
        return {**found, "errors": errors.entries}

    watch, verdict = Watch(scale=1.0, limit_s=240), None
    while verdict is None or verdict.state == "waiting":
        verdict = watch.look(facts(light=True, generate="never"), time.monotonic())
        time.sleep(1)
    seen["waited"] = watch.history
    found = facts(generate="always", expected_text="Paris")
    seen["errors"] = found["errors"]
    seen["facts"] = {
        name: found[name]
        for name in ("state", "why", "engine", "process", "ranks", "gpu", "api", "generation", "packages", "busy")
    }


def play(playbook: str, scratch: str, log: str, *arguments: str, **variables: Any) -> dict[str, Any]:
    given = {
        "ansible_connection": "local", "ansible_python_interpreter": sys.executable, "host_validation_server": "true",
        "host_validation_server_log": log, "host_validation_probe": "false", "benchmark_directory": scratch,
        **variables,
    }  # fmt: skip
    command = ["ansible-playbook", playbook, "-i", "localhost,", "-e", json.dumps(given), *arguments]
    environment = {**os.environ, "GPU_HOST_REPORTS_DIR": scratch, "ANSIBLE_NOCOLOR": "1"}
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    return {"rc": done.returncode, "output": (done.stdout + done.stderr)[-5000:].splitlines()}


def expect(seen: dict[str, Any]) -> None:
    facts, cells = seen["facts"], seen["cells"]
    asked = facts["generation"]
    held = [gpu["memory_used_mib"] for gpu in (facts["gpu"]["gpus"] or {}).values()]
    seen["expectations"] = {
        "the server is ready": facts["state"] == "ready" and facts["engine"] == "transformers",
        "it answers what the model knows, twice": asked["answered"] and asked["sane"] and asked["repeatable"] is True,
        "a GPU holds its memory": any(value > 0 for value in held),
        "the checks of the server pass": seen["validate"]["rc"] == 0,
        "the load is measured": len(cells) == len(LOADS)
        and all(cell["completed"] == load["requests"] for cell, load in zip(cells, LOADS)),
        "power and PCIe traffic are sampled": bool(cells) and all(cell.get("gpus") for cell in cells),
        "the benchmark ends well": seen["benchmark"]["rc"] == 0,
    }


if __name__ == "__main__":
    sys.exit(main())
