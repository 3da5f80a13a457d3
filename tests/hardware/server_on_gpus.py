#!/usr/bin/env python3
"""The server facts on a machine with GPUs: the stand-in engine, whose ranks hold memory of a real GPU each.

Exits 1 if an expectation failed.

    python3 tests/hardware/server_on_gpus.py [OUTPUT_FILE]

Needs Python 3.9 and the NVIDIA driver.
"""

from __future__ import annotations

import json
import os
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
from ansible.module_utils.gpu_server.load import benchmark, request_load

HELD_MIB = 8192


def main() -> int:
    count = len(subprocess.run(["nvidia-smi", "-L"], capture_output=True, text=True, check=True).stdout.splitlines())
    with socket.socket() as sock:
        sock.bind(("127.0.0.1", 0))
        port = sock.getsockname()[1]
    seen: dict[str, Any] = {"gpus": count, "expectations": {}}
    with tempfile.TemporaryDirectory() as scratch:
        log = os.path.join(scratch, "server.log")
        settings = {"PYTHONPATH": str(ROOT / "tests/fixtures/engine"), "STANDIN_STATE": scratch, "STANDIN_SPEED": "40"}
        settings["STANDIN_CUDA_MIB"] = str(HELD_MIB)
        command = [
            sys.executable,
            "-m",
            "sglang.launch_server",
            "--model",
            "x",
            "--tp",
            str(count),
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
        ]
        with open(log, "wb") as out:
            server = subprocess.Popen(
                [*command, "--enable-metrics"], stdout=out, stderr=out, env={**os.environ, **settings}
            )
        try:
            time.sleep(12)  # contexts take seconds
            errors = Errors("server")
            facts = gather(LiveEvidence(), {"port": port, "log": log, "generate": "always"}, errors)
            assert facts is not None
            cell = measured(facts["api"]["base"])
            shown = {name: facts[name] for name in ("state", "why", "ranks", "gpu", "generation", "nccl")}
            seen.update(facts=shown, errors=errors.entries, cell=cell)
            expect(seen, facts, cell, count)
            os.kill(facts["ranks"][-1]["pid"], 9)
            time.sleep(1)
            after = gather(LiveEvidence(), {"port": port, "log": log, "generate": "never", "light": True}, errors)
            seen["after_a_rank_was_killed"] = {
                "state": after["state"] if after else None,
                "why": after["why"] if after else None,
            }
        finally:
            server.kill()
            server.wait()
            seen["log"] = Path(log).read_text(errors="replace")[-1500:]
    text = json.dumps(seen, indent=1)
    if len(sys.argv) > 1:
        Path(sys.argv[1]).write_text(text)
    print(text)
    return 0 if all(seen["expectations"].values()) else 1


def measured(base: str) -> dict[str, Any]:
    """A short load, with the samples of `nvidia-smi dmon` as the module takes them."""
    with tempfile.TemporaryFile() as out:
        sampler = subprocess.Popen(benchmark.DMON_COMMAND, stdout=out, stderr=subprocess.STDOUT)
        cell = request_load.Load(base, "x", None).run(4, 200, 32, 32, 30.0)
        time.sleep(3)
        sampler.kill()
        sampler.wait()
        out.seek(0)
        text = out.read().decode("utf-8", "replace")
    return {**cell, "gpus": benchmark.parse_samples(text), "dmon": text[:1500]}


def expect(seen: dict[str, Any], facts: dict[str, Any], cell: dict[str, Any], count: int) -> None:
    held = [gpu["memory_used_mib"] for gpu in (facts["gpu"]["gpus"] or {}).values()]
    seen["expectations"] = {
        "the server is ready and answers": facts["state"] == "ready" and facts["generation"]["answered"] is True,
        "every rank runs": [rank["rank"] for rank in facts["ranks"]] == list(range(count)),
        "every GPU holds what its rank took": len(held) == count and all(value >= HELD_MIB for value in held),
        "the ranks hold equal memory": facts["gpu"]["outliers"] == [],
        # In a container the driver may not show processes; then no rank has a GPU, and it is not guessed.
        "each rank has a GPU of its own, or none is known": len({rank["gpu"] for rank in facts["ranks"]}) in (1, count),
        "power and PCIe traffic are sampled": bool(cell["gpus"])
        and all({"power_w", "pcie_rx_mb_s"} <= set(one) for one in cell["gpus"].values()),
        "the load is measured": cell["completed"] == 200,
    }


if __name__ == "__main__":
    sys.exit(main())
