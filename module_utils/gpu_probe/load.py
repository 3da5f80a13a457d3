"""Many transfers at once: a switch or a host bridge can collapse only then.

For example when several sources write across one switch.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .driver import Cuda
from .gpu import GUARD, MIB, Gpu, HostMemory
from .measure import SAMPLES, Flow, summarise_samples

LOAD_SECONDS = 0.04  # how long one sample should take
MANY_GPUS, SHORT_SECONDS = 8, 0.015  # with more, each is shorter: there are twice as many loads, of more flows
MOST_TURNS = 32


def load_one_target(cuda: Cuda, gpus: Sequence[Gpu], target: Gpu, host: HostMemory) -> dict[str, Any]:
    """Every other GPU writes to `target` at once: ``{bandwidth_gb_s, corrupt_pairs}``; the bandwidth is the sum."""
    return _run(cuda, [(source, target) for source in gpus if source is not target], gpus, host)


def load_one_source(cuda: Cuda, gpus: Sequence[Gpu], source: Gpu, host: HostMemory) -> dict[str, Any]:
    """`source` writes to every other GPU at once, as `load_one_target` the other way round."""
    return _run(cuda, [(source, target) for target in gpus if source is not target], gpus, host)


def load_every_pair(cuda: Cuda, gpus: Sequence[Gpu], host: HostMemory) -> dict[str, Any]:
    """Every GPU writes to every other at once.

    Source i begins with target i+1, so that no target is everybody's first.
    """
    count = len(gpus)
    pairs = [(gpus[at], gpus[(at + step) % count]) for at in range(count) for step in range(1, count)]
    return _run(cuda, pairs, gpus, host)


def _run(cuda: Cuda, pairs: Sequence[tuple[Gpu, Gpu]], gpus: Sequence[Gpu], host: HostMemory) -> dict[str, Any]:
    # Each target is divided among the sources, so that what each wrote can be verified afterwards.
    share = min(host.size, *(gpu.size for gpu in gpus)) // len(gpus) // 4096 * 4096
    place = {gpu.address: at * share for at, gpu in enumerate(gpus)}
    sources = {source.address: source for source, _ in pairs}
    expected = {}
    for address, source in sources.items():
        expected[address] = host.fresh()
        source.upload(source.source + GUARD, expected[address], share)
    for target in {target.address: target for _, target in pairs}.values():
        target.fill(target.target, 0xA5, target.size)
    flows = [Flow(source, target, "copy_engine", share, place[source.address]) for source, target in pairs]
    seconds = LOAD_SECONDS if len(gpus) <= MANY_GPUS else SHORT_SECONDS
    turns = max(1, min(MOST_TURNS, int(seconds / max(_timed(cuda, flows, 1), 1e-6))))
    samples = [turns * share * len(flows) / max(_timed(cuda, flows, turns), 1e-9) / 1e9 for _ in range(SAMPLES)]
    corrupt = []
    for source, target in pairs:
        target.download(host.readback, target.target + GUARD + place[source.address], share)
        if not host.same(host.readback, expected[source.address], share):
            corrupt.append("%s->%s" % (source.address, target.address))
    how = {
        "size_mib": round(share / MIB, 2),
        "transfers": turns * len(flows),
        "concurrent": len(flows),
        "method": "copy_engine, events",
    }
    return {"bandwidth_gb_s": summarise_samples(samples, **how), "corrupt_pairs": corrupt}


def _timed(cuda: Cuda, flows: Sequence[Flow], turns: int) -> float:
    """Seconds from the first copy to the end of the last, by the GPU that takes longest."""
    runners = list({flow.runner.address: flow.runner for flow in flows}.values())
    for gpu in runners:
        gpu.use()
        cuda.call("cuEventRecord", gpu.start, gpu.stream)
        cuda.call("cuStreamWaitEvent", gpu.second_stream, gpu.start, 0)
    for _ in range(turns):
        for number, flow in enumerate(flows):
            flow.queue(flow.runner.second_stream if number % 2 else flow.runner.stream)
    for gpu in runners:
        gpu.use()
        cuda.call("cuEventRecord", gpu.joined, gpu.second_stream)
        cuda.call("cuStreamWaitEvent", gpu.stream, gpu.joined, 0)
        cuda.call("cuEventRecord", gpu.end, gpu.stream)
    for gpu in runners:
        gpu.wait()
    return max(cuda.elapsed_s(gpu.start, gpu.end) for gpu in runners)
