"""What the probe is compared with on a machine with GPUs: a plain loop in C, and NVIDIA's tools where they are.

nvbandwidth, p2pBandwidthLatencyTest and all_reduce_perf are looked for on PATH and in GPU_HOST_TOOLS (directories, by
colon). Their outputs are read by the project's own readers. Nothing here is imported by what runs on a host.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

HERE = Path(__file__).resolve().parent
SECONDS = 300
OF_PAIRS = ("p2pBandwidthLatencyTest", "all_reduce_perf")
HOST_WAYS = {"from_host": "to_gpu", "to_host": "from_gpu"}  # the readers' kinds, and the probe's directions
MIB = 1 << 20


def measure_in_c(size_mib: int = 256) -> dict[str, float] | None:
    """GB/s by pair ("0->1") of benchmarks/plain_loop.c; None where no C compiler is here or it does not run."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        program = directory + "/plain_loop"
        command = [compiler, "-O2", "-o", program, str(HERE / "plain_loop.c"), "-ldl"]
        built = subprocess.run(command, capture_output=True, text=True, check=False)
        if built.returncode:
            print("plain_loop.c was not compiled: %s" % built.stderr.strip()[-300:], file=sys.stderr)
            return None
        environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        done = subprocess.run(
            [program, str(size_mib)], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
        )
    if done.returncode:
        print("plain_loop failed: %s" % done.stderr.strip()[-300:], file=sys.stderr)
        return None
    rates: dict[str, float] = json.loads(done.stdout)
    return rates


def find_tool(name: str) -> str | None:
    return shutil.which(name) or shutil.which(name, path=os.environ.get("GPU_HOST_TOOLS", ""))


def run_tools(gpus: int) -> dict[str, Any]:
    """The `Output` of each of NVIDIA's tools that is here, by its name, and a sentence for each that is not."""
    commands = {
        "nvbandwidth": [
            "-t",
            "device_to_device_memcpy_write_ce",
            "host_to_device_memcpy_ce",
            "device_to_host_memcpy_ce",
        ],
        "p2pBandwidthLatencyTest": [],
        "all_reduce_perf": ["-b", "256M", "-e", "256M", "-f", "2", "-g", str(gpus)],
    }
    found: dict[str, Any] = {}
    for name, arguments in commands.items():
        if gpus < 2 and name in OF_PAIRS:
            found[name] = "%s measures between GPUs, and one is here" % name
            continue
        program = find_tool(name)
        if program is None:
            found[name] = "%s is not here (PATH, GPU_HOST_TOOLS)" % name
            continue
        environment = {**os.environ, "CUDA_DEVICE_ORDER": "PCI_BUS_ID"}
        try:
            done = subprocess.run(
                [program, *arguments], capture_output=True, text=True, timeout=SECONDS, check=False, env=environment
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            found[name] = "%s: %s" % (name, error)
            continue
        found[name] = read_tool(name, "%s\n%s" % (name, done.stdout))
        if done.returncode and isinstance(found[name], str):
            found[name] += ", exit status %d: %s" % (done.returncode, (done.stderr or done.stdout).strip()[-200:])
    return found


def read_tool(name: str, text: str) -> Any:
    from ansible.module_utils.gpu_host.measured import tools  # noqa: PLC0415  importable() comes first

    reader = tools.READERS["nccl-tests" if name == "all_reduce_perf" else name]
    output = reader(text)
    return output if output.figures else "%s printed no figure that is known" % name


def compare_tools(
    outputs: dict[str, Any], raw: dict[str, Any], collective: dict[str, Any] | None
) -> list[dict[str, Any]]:
    """One record per figure that both have: ``{target, measured, wanted, met}``; `measured` is probe / tool.

    The tools disagree with one another by some per cent (p2pBandwidthLatencyTest copies 40 MB), so that these records
    are told and not judged: `met` is None.
    """
    order = sorted(raw["devices"], key=lambda address: raw["devices"][address]["cuda_index"])
    records = []
    for name, output in outputs.items():
        if isinstance(output, str):
            records.append({"target": output, "measured": None, "wanted": "", "met": None})
            continue
        for figures in output.figures:
            for (one, other), rate in sorted(figures.pairs.items()):
                ours = _of_pair(raw, order, (one, other), figures)
                if ours and rate:
                    what = "%s, %s, %d->%d: probe %s, tool %s GB/s" % (name, figures.method, one, other, ours, rate)
                    records.append(_record(what, ours / rate))
            if figures.kind in HOST_WAYS and figures.value:
                way = HOST_WAYS[figures.kind]
                ours = _lowest_of_host(raw, way)
                if ours:
                    what = "%s, %s, host link %s, lowest of all GPUs: probe %s, tool %s GB/s" % (
                        name, figures.method, way, ours, figures.value,
                    )  # fmt: skip
                    records.append(_record(what, ours / figures.value))
            if figures.kind == "collective" and collective and figures.value:
                sizes = ((collective.get("arms") or {}).get("one_process") or {}).get("sizes") or {}
                ours = (sizes.get(str(figures.size_bytes)) or {}).get("bus_bandwidth_gb_s")
                if ours:
                    what = "%s of %d MiB: probe %s, tool %s GB/s" % (
                        name, (figures.size_bytes or 0) // MIB, ours, figures.value,
                    )  # fmt: skip
                    records.append(_record(what, ours / figures.value))
    return records


def _of_pair(raw: dict[str, Any], order: list[str], pair: tuple[int, int], figures: Any) -> float | None:
    """The probe's bandwidth of the same kind, with peer access or without as the tool had it."""
    if figures.kind not in ("bandwidth", "both_ways") or max(pair) >= len(order):
        return None
    one, other = (order[end] for end in pair)
    part = raw["loopback"].get(one) if one == other else raw["pairs"].get("%s->%s" % (one, other))
    rates = (part or {}).get("bandwidth_gb_s") or {}
    names = ["control_copy"] if figures.peer is False else ["copy_alone", "copy"]
    if figures.kind == "both_ways":
        names = [] if figures.peer is False else ["both_ways"]
    found = next((rates[name] for name in names if name in rates), None)
    return (found or {}).get("median")


def _lowest_of_host(raw: dict[str, Any], way: str) -> float | None:
    """The slowest GPU's link to the host, alone, of several nodes the best: None where a GPU has no figure."""
    links = [((raw.get("host_links") or {}).get(address) or {}).get("alone") or {} for address in raw["devices"]]
    best = [max((figure["median"] for figure in (link.get(way) or {}).values()), default=None) for link in links]
    return None if None in best else min((rate for rate in best if rate is not None), default=None)


def _record(target: str, ratio: float) -> dict[str, Any]:
    return {"target": target, "measured": round(ratio, 4), "wanted": "", "met": None}
