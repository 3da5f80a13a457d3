"""How close the probe comes to its plan, on a machine with GPUs.

Prints one line for each target and exits 1 where one is missed.

    python3 benchmarks/probe.py [--json FILE]

Targets: copy-engine bandwidth within 3 % of a plain cuMemcpyPeerAsync loop over 256 MiB (plain_loop.c where a compiler
is here, else the same in Python); wall time of the probe at most 5 s for two GPUs and 30 s for eight, control and
verification included, and of the probe with the checked all-reduce at most 8 s for two. With one GPU the loop copies
within the GPU, as the probe's loopback does. Where nvbandwidth, p2pBandwidthLatencyTest or all_reduce_perf are on PATH
or in GPU_HOST_TOOLS, they run too, and the ratios to them are printed.
"""

from __future__ import annotations

import argparse
import json
import shutil
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import anchors  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[1]
SIZE = 256 << 20
LOOPS = 20
REPEATS = 5
BANDWIDTH_TOLERANCE = 0.03
WALL_TARGETS_S = {1: 5.0, 2: 5.0, 4: 12.0, 8: 30.0}
WITH_COLLECTIVE_TARGET_S = 8.0  # two GPUs


def importable() -> None:
    """module_utils under the name that Ansible gives it, where Ansible itself is not installed."""
    try:
        import ansible.module_utils as package  # noqa: PLC0415
    except ImportError:
        for name in ("ansible", "ansible.module_utils"):
            module = types.ModuleType(name)
            module.__path__ = []
            sys.modules[name] = module
        package = sys.modules["ansible.module_utils"]
    package.__path__.append(str(ROOT / "module_utils"))


def plain_loop() -> dict[str, float]:
    """Median GB/s of a plain loop for each directed pair ("0->1").

    Each GPU has its own context, peer access is on where the driver grants it.
    """
    sys.path.insert(0, str(ROOT / "module_utils"))
    from gpu_probe.driver import Cuda, CudaError  # noqa: PLC0415

    cuda = Cuda()
    cuda.call("cuInit", 0)
    gpus = []
    for ordinal in range(cuda.integer("cuDeviceGetCount")):
        context = cuda.handle("cuDevicePrimaryCtxRetain", cuda.integer("cuDeviceGet", ordinal))
        cuda.call("cuCtxSetCurrent", context)
        stream, start, end = (
            cuda.handle("cuStreamCreate", 1),
            cuda.handle("cuEventCreate", 0),
            cuda.handle("cuEventCreate", 0),
        )
        gpus.append((context, stream, start, end, cuda.allocate(SIZE), cuda.allocate(SIZE)))
    pairs = [(one, other) for one in range(len(gpus)) for other in range(len(gpus)) if one != other] or [(0, 0)]
    rates = {}
    for one, other in pairs:
        context, stream, start, end, source, _ = gpus[one]
        peer, target = gpus[other][0], gpus[other][5]
        cuda.call("cuCtxSetCurrent", context)
        if one != other:
            try:
                cuda.call("cuCtxEnablePeerAccess", peer, 0)
            except CudaError as error:
                print("%d->%d: %s" % (one, other, error), file=sys.stderr)
        samples = []
        for _ in range(REPEATS + 1):
            cuda.call("cuEventRecord", start, stream)
            for _ in range(LOOPS):
                cuda.call("cuMemcpyPeerAsync", target, peer, source, context, SIZE, stream)
            cuda.call("cuEventRecord", end, stream)
            cuda.call("cuStreamSynchronize", stream)
            samples.append(LOOPS * SIZE / cuda.elapsed_s(start, end) / 1e9)
        rates["%d->%d" % (one, other)] = round(statistics.median(samples[1:]), 2)
    return rates


def probe() -> dict[str, Any]:
    importable()
    from ansible.module_utils.gpu_host.probe.worker_run import Probe  # noqa: PLC0415

    return Probe({"buffer_mib": SIZE >> 20}, 180).run()


def collective(raw: dict[str, Any]) -> dict[str, Any] | None:
    """The checked all-reduce over the GPUs of `raw`; None where there is one GPU or no NCCL."""
    importable()
    from ansible.module_utils.gpu_host.probe import all_reduce, nccl_library  # noqa: PLC0415

    found = nccl_library.find_library(None, None)
    addresses = sorted(raw["devices"], key=lambda address: raw["devices"][address]["cuda_index"])
    if len(addresses) < 2 or found["path"] is None:
        print("skipped the all-reduce: %s" % (found["reason"] or "one GPU"))
        return None
    return all_reduce.run_all_reduce(found["path"], addresses, {}, owner=found["owner"])


def compare_time(raw: dict[str, Any], reduced: dict[str, Any] | None) -> list[dict[str, Any]]:
    if reduced is None or len(raw["devices"]) != 2:
        return []
    seconds = round(raw["seconds"] + reduced["seconds"], 2)
    return [{
        "target": "wall time of the probe with its all-reduce, 2 GPUs",
        "measured": seconds,
        "wanted": "at most %g s" % WITH_COLLECTIVE_TARGET_S,
        "met": seconds <= WITH_COLLECTIVE_TARGET_S,
    }]  # fmt: skip


def compare(plain: dict[str, float], raw: dict[str, Any]) -> list[dict[str, Any]]:
    """One record a target: ``{target, measured, wanted, met}``."""
    order = sorted(raw["devices"], key=lambda address: raw["devices"][address]["cuda_index"])
    found = []
    for name, rate in plain.items():
        one, other = (order[int(end)] for end in name.split("->"))
        part = raw["loopback"].get(one) if one == other else raw["pairs"].get("%s->%s" % (one, other))
        figures = (part or {}).get("bandwidth_gb_s") or {}
        measured = (figures.get("copy_alone") or figures.get("copy") or {}).get("median")
        ratio = measured / rate if measured else None
        found.append({
            "target": "copy bandwidth %s: probe %s, plain loop %s GB/s" % (name, measured, rate),
            "measured": ratio and round(ratio, 4),
            "wanted": "within %g %%" % (100 * BANDWIDTH_TOLERANCE),
            "met": ratio is not None and abs(ratio - 1) <= BANDWIDTH_TOLERANCE,
        })  # fmt: skip
    wanted = next((limit for count, limit in sorted(WALL_TARGETS_S.items()) if count >= len(order)), 30.0)
    wall = {
        "target": "wall time of the probe, %d GPUs" % len(order),
        "measured": raw["seconds"],
        "wanted": "at most %g s" % wanted,
    }
    found.append({**wall, "met": raw["seconds"] <= wanted})
    return found


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the records to this file too")
    parser.add_argument("--plain", action="store_true", help="only the plain loop, as JSON (used by the script itself)")
    options = parser.parse_args()
    if options.plain:
        print(json.dumps(plain_loop()))
        return 0
    # The loop in a process of its own: two holders of contexts at once would measure each other.
    if not Path("/proc/driver/nvidia/version").exists() and shutil.which("nvidia-smi") is None:
        print("skipped  the probe against a plain loop and NVIDIA's tools: no NVIDIA driver here")
        return 0
    began = time.monotonic()
    plain = anchors.measure_in_c()
    print("the plain loop is %s" % ("in C" if plain else "in Python: no C compiler"))
    if plain is None:
        answer = subprocess.run([sys.executable, __file__, "--plain"], stdout=subprocess.PIPE, timeout=120, check=True)
        plain = json.loads(answer.stdout)
    raw = probe()
    reduced = collective(raw)
    records = compare(plain, raw) + compare_time(raw, reduced)
    records += anchors.compare_tools(anchors.run_tools(len(raw["devices"])), raw, reduced)
    for record in records:
        told = {None: "ratio ", True: "ok    ", False: "MISSED"}[record["met"]]
        wanted = " (wanted %s)" % record["wanted"] if record["wanted"] else ""
        measured = ": %s" % record["measured"] if record["measured"] is not None else ""
        print("%s %s%s%s" % (told, record["target"], measured, wanted))
    print("all in %.1f s" % (time.monotonic() - began))
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(record["met"] is not False for record in records) else 1


if __name__ == "__main__":
    sys.exit(main())
