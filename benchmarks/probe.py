"""How close the probe comes to its plan, on a machine with GPUs.

Prints one line for each target and exits 1 where one is missed.

    python3 benchmarks/probe.py [--json FILE]

Targets: copy-engine bandwidth within 3 % of a plain cuMemcpyPeerAsync loop over 256 MiB (plain_loop.c where a compiler
is here, else the same in Python), and between host and GPU within 3 % of a plain loop with page-locked memory; wall
time of the probe at most 5 s for two GPUs, 30 s for eight and 60 s for sixteen, control and verification included, and
of the probe with the checked all-reduce at most 8 s for two. With one GPU the loop copies within the GPU, as the
probe's loopback does. Where nvbandwidth, p2pBandwidthLatencyTest or all_reduce_perf are on PATH or in GPU_HOST_TOOLS,
they run too, and the ratios to them are printed.

The loop and the probe take turns: three of each, always all three. A ratio is made of two turns that are neighbours in
time, and the median of the three ratios is judged, so that one slow turn of either decides nothing. The figures and the
ratios of all turns are printed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import time
import types
from pathlib import Path
from typing import Any

import anchors  # type: ignore[import-not-found]
import turns  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parents[1]
MIB = 1 << 20
SIZE_MIB = 256
LOOPS = 20
REPEATS = 3  # of one turn, beside one that warms up; plain_loop.c has the same
TURNS = 3
PLAIN_LIMIT_S = 300


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


def plain_loop(size: int) -> dict[str, float]:
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
        gpus.append((context, stream, start, end, cuda.allocate(size), cuda.allocate(size)))
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
                cuda.call("cuMemcpyPeerAsync", target, peer, source, context, size, stream)
            cuda.call("cuEventRecord", end, stream)
            cuda.call("cuStreamSynchronize", stream)
            samples.append(LOOPS * size / cuda.elapsed_s(start, end) / 1e9)
        rates["%d->%d" % (one, other)] = round(statistics.median(samples[1:]), 2)
    return rates


def plain_host_loop(size: int) -> dict[str, dict[str, float]]:
    """Median GB/s of a plain loop of copies between page-locked host memory and each GPU, by its PCI address:
    ``{to_gpu, from_gpu}``.

    The process runs on the CPUs near the GPU while it allocates, so that the kernel takes the memory from their node.
    """
    sys.path.insert(0, str(ROOT / "module_utils"))
    from gpu_probe.driver import Cuda  # noqa: PLC0415
    from gpu_probe.gpu import normal_address  # noqa: PLC0415

    cuda = Cuda()
    cuda.call("cuInit", 0)
    allowed = os.sched_getaffinity(0)
    rates: dict[str, dict[str, float]] = {}
    for ordinal in range(cuda.integer("cuDeviceGetCount")):
        device = cuda.integer("cuDeviceGet", ordinal)
        cuda.call("cuCtxSetCurrent", cuda.handle("cuDevicePrimaryCtxRetain", device))
        stream, start, end = (
            cuda.handle("cuStreamCreate", 1),
            cuda.handle("cuEventCreate", 0),
            cuda.handle("cuEventCreate", 0),
        )
        address = normal_address(cuda.text("cuDeviceGetPCIBusId", device))
        os.sched_setaffinity(0, near_cpus(address) & allowed or allowed)
        there, here = cuda.allocate(size), cuda.allocate_host(size)
        found = rates.setdefault(address, {})
        copies = {"to_gpu": ("cuMemcpyHtoDAsync_v2", there, here), "from_gpu": ("cuMemcpyDtoHAsync_v2", here, there)}
        for way, (function, target, source) in copies.items():
            samples = []
            for _ in range(REPEATS + 1):
                cuda.call("cuEventRecord", start, stream)
                for _ in range(LOOPS // 2):
                    cuda.call(function, target, source, size, stream)
                cuda.call("cuEventRecord", end, stream)
                cuda.call("cuStreamSynchronize", stream)
                samples.append(LOOPS // 2 * size / cuda.elapsed_s(start, end) / 1e9)
            found[way] = round(statistics.median(samples[1:]), 2)
        cuda.call("cuMemFreeHost", here)
        cuda.call("cuMemFree_v2", there)
        cuda.call("cuDevicePrimaryCtxRelease_v2", device)
    return rates


def near_cpus(address: str, sysfs: str = "/sys") -> set[int]:
    """The CPUs that the kernel calls near to a GPU; empty where it does not say."""
    try:
        text = Path(sysfs, "bus/pci/devices", address, "local_cpulist").read_text().strip()
        ends = [[int(end) for end in part.split("-")] for part in text.split(",") if part]
    except (OSError, ValueError):
        return set()
    return {cpu for part in ends for cpu in range(part[0], part[-1] + 1)}


def probe(size_mib: int = SIZE_MIB) -> dict[str, Any]:
    importable()
    from ansible.module_utils.gpu_host.probe.worker_run import Probe  # noqa: PLC0415

    return Probe({"buffer_mib": size_mib}, 180).run()


def measure_plain(size_mib: int) -> dict[str, Any]:
    """One turn of the plain loops: ``{pairs, host, language}``."""
    in_c = anchors.measure_in_c(size_mib)
    parts = ["--mib", str(size_mib), "--plain", "host" if in_c else "all"]
    # In processes of their own: two holders of contexts at once would measure each other.
    answer = subprocess.run(
        [sys.executable, __file__, *parts], stdout=subprocess.PIPE, timeout=PLAIN_LIMIT_S, check=True
    )
    found: dict[str, Any] = json.loads(answer.stdout)
    return {**found, "pairs": in_c or found["pairs"], "language": "C" if in_c else "Python: no C compiler"}


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


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", help="write the records to this file too")
    parser.add_argument("--plain", choices=("all", "host"), help="only the plain loops, as JSON")
    parser.add_argument("--mib", type=int, default=SIZE_MIB, help="the size of one copy (default: %(default)s)")
    options = parser.parse_args()
    if options.plain:
        size = options.mib * MIB
        pairs = plain_loop(size) if options.plain == "all" else None
        print(json.dumps({"pairs": pairs, "host": plain_host_loop(size)}))
        return 0
    if not Path("/proc/driver/nvidia/version").exists() and shutil.which("nvidia-smi") is None:
        print("skipped  the probe against a plain loop and NVIDIA's tools: no NVIDIA driver here")
        return 0
    began = time.monotonic()
    plain, raws = turns.take_turns(TURNS, lambda: measure_plain(options.mib), lambda: probe(options.mib))
    print("the plain loop between GPUs is in %s; %d turns of it and of the probe" % (plain[0]["language"], TURNS))
    raw = raws[-1]
    reduced = collective(raw)
    records = turns.compare_pairs(plain, raws) + turns.compare_host_links(plain, raws)
    records += turns.compare_time(raws, reduced)
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
