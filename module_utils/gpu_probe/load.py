"""Many transfers at once: a switch or a host bridge can collapse only then.

For example when several sources write across one switch.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import Any

from .driver import Cuda
from .gpu import GUARD, MIB, Gpu, HostMemory
from .measure import SAMPLES, Flow, summarise_samples

LOAD_SECONDS = 0.04  # how long one sample should take
MOST_TURNS = 32


def load_one_target(cuda: Cuda, gpus: Sequence[Gpu], target: Gpu, host: HostMemory) -> dict[str, Any]:
    """Every other GPU writes to `target` at once: ``{bandwidth_gb_s, corrupt_sources}``; the bandwidth is the sum."""
    return _run(cuda, [(source, target) for source in gpus if source is not target], gpus, host)


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
    turns = max(1, min(MOST_TURNS, int(LOAD_SECONDS / max(_timed(flows, 1), 1e-6))))
    samples = [turns * share * len(flows) / _timed(flows, turns) / 1e9 for _ in range(SAMPLES)]
    corrupt = []
    for source, target in pairs:
        target.download(host.readback, target.target + GUARD + place[source.address], share)
        if not host.same(host.readback, expected[source.address], share):
            corrupt.append("%s->%s" % (source.address, target.address))
    how = {
        "size_mib": round(share / MIB, 2),
        "transfers": turns * len(flows),
        "concurrent": len(flows),
        "method": "copy_engine, host clock",
    }
    return {"bandwidth_gb_s": summarise_samples(samples, **how), "corrupt_pairs": corrupt}


def _timed(flows: Sequence[Flow], turns: int) -> float:
    runners = {flow.runner.address: flow.runner for flow in flows}.values()
    began = time.perf_counter()
    for _ in range(turns):
        for number, flow in enumerate(flows):
            flow.queue(flow.runner.second_stream if number % 2 else flow.runner.stream)
    for gpu in runners:
        gpu.wait()
    return time.perf_counter() - began


def make_rounds(
    gpus: Sequence[Gpu], wanted: Callable[[Gpu, Gpu], bool], one_by_one: bool = False
) -> list[list[tuple[Gpu, Gpu]]]:
    """Unordered pairs in rounds of disjoint ones (the circle method of a tournament).

    That is n-1 rounds for n GPUs, n rounds if odd.
    """
    seats: list[Gpu | None] = list(gpus)
    if len(seats) % 2:
        seats.append(None)
    table = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        couples = zip(seats[:half], reversed(seats[half:]))
        table.append(
            [(one, other) for one, other in couples if one is not None and other is not None and wanted(one, other)]
        )
        seats = [seats[0], seats[-1], *seats[1:-1]]
    if one_by_one:
        return [[pair] for turn in table for pair in turn]
    return [turn for turn in table if turn]
