"""Bandwidth and latency between GPUs, by events on the GPUs.

Every figure is ``{median, min, max, iterations, size_mib | size_bytes, …}``.

Bandwidth is decimal GB/s, as NVIDIA's tools print it. An iteration is one sample: several transfers back to back
between two events.
"""

from __future__ import annotations

import ctypes
import time
from collections.abc import Callable, Sequence
from typing import Any

from .driver import HANDLE, Cuda
from .gpu import GUARD, MIB, Gpu, HostMemory

SAMPLES = 5
SAMPLE_SECONDS = 0.02  # how long one sample of a bandwidth should take
CONTROL_SAMPLE_SECONDS = 0.005
MOST_TRANSFERS = 24
SMALL = 12 * 1024  # bytes of the small copy: one token's hidden state of a large model
SMALL_COPIES = 64
SYNCHRONISED_COPIES = 40
DELAY_NS = 600_000
PING_WARM, PING_TRIPS = 50, 500
PING_LIMIT_NS = 200_000_000

Pair = tuple  # (source Gpu, target Gpu)


def summarise_samples(samples: Sequence[float], **more: Any) -> dict[str, Any]:
    ordered = sorted(samples)
    middle = len(ordered) // 2
    median = ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2
    return {
        "median": _rounded(median),
        "min": _rounded(ordered[0]),
        "max": _rounded(ordered[-1]),
        "iterations": len(ordered),
        **more,
    }


def _rounded(value: float) -> float:
    return float("%.4g" % value)


class Flow:
    """One stream of transfers from one GPU to another, and how it is timed."""

    def __init__(self, source: Gpu, target: Gpu, method: str, size: int, slice_of_target: int = 0) -> None:
        self.source, self.target, self.method, self.size = source, target, method, size
        self.runner = target if method == "sm_load" else source  # whose stream does the work
        self.place = target.target + GUARD + slice_of_target
        self.origin = source.source + GUARD
        self.transfers = 1

    def queue(self, stream: HANDLE | None = None) -> None:
        if self.method == "copy_engine":
            self.source.copy_to(self.target, self.size, self.place, self.origin, stream)
        else:
            self.runner.run_copy(self.place, self.origin, self.size, stream)


def measure_flows(
    cuda: Cuda, flows: Sequence[Any], samples: int = SAMPLES, sample_seconds: float = SAMPLE_SECONDS
) -> list[dict[str, Any]]:
    """The bandwidth of each flow (`Flow`, or `HostFlow` of host_links.py), all at once; no two may share a runner."""
    seconds = _timed(cuda, flows)  # warms up too
    for flow, one in zip(flows, seconds):
        flow.transfers = max(1, min(MOST_TRANSFERS, int(sample_seconds / max(one, 1e-9))))
    rates: list[list[float]] = [[] for _ in flows]
    for _ in range(samples):
        for kept, flow, took in zip(rates, flows, _timed(cuda, flows)):
            kept.append(flow.transfers * flow.size / max(took, 1e-9) / 1e9)
    return [
        summarise_samples(
            kept, size_mib=flow.size // MIB, transfers=flow.transfers, concurrent=len(flows), method=flow.method
        )
        for kept, flow in zip(rates, flows)
    ]


def _timed(cuda: Cuda, flows: Sequence[Any]) -> list[float]:
    for flow in flows:
        flow.runner.use()
        cuda.call("cuEventRecord", flow.runner.start, flow.runner.stream)
        for _ in range(flow.transfers):
            flow.queue()
        cuda.call("cuEventRecord", flow.runner.end, flow.runner.stream)
    for flow in flows:
        flow.runner.wait()
    return [cuda.elapsed_s(flow.runner.start, flow.runner.end) for flow in flows]


def measure_both_ways(cuda: Cuda, pairs: Sequence[Pair], size: int, samples: int = SAMPLES) -> list[dict[str, Any]]:
    """The sum of both directions of each pair, all pairs at once.

    Both copies start after one event and end before another, so that one clock times them. Runs on the second stream of
    the target for the way back.
    """
    forward = [Flow(source, target, "copy_engine", size) for source, target in pairs]
    back = [Flow(target, source, "copy_engine", size) for source, target in pairs]
    rates: list[list[float]] = [[] for _ in pairs]
    for number in range(samples + 1):
        for go, come in zip(forward, back):
            go.source.use()
            cuda.call("cuEventRecord", go.source.start, go.source.stream)
            come.source.use()
            cuda.call("cuStreamWaitEvent", come.source.second_stream, go.source.start, 0)
            for _ in range(go.transfers):
                go.queue()
                come.queue(come.source.second_stream)
            come.source.use()
            cuda.call("cuEventRecord", come.source.joined, come.source.second_stream)
            go.source.use()
            cuda.call("cuStreamWaitEvent", go.source.stream, come.source.joined, 0)
            cuda.call("cuEventRecord", go.source.end, go.source.stream)
        for kept, go, come in zip(rates, forward, back):
            go.source.wait()
            come.source.wait()
            took = max(cuda.elapsed_s(go.source.start, go.source.end), 1e-9)
            if number == 0:
                go.transfers = max(1, min(MOST_TRANSFERS, int(SAMPLE_SECONDS / took)))
            else:
                kept.append(2 * go.transfers * size / took / 1e9)
    return [
        summarise_samples(
            kept, size_mib=size // MIB, transfers=go.transfers, concurrent=len(pairs), method="copy_engine"
        )
        for kept, go in zip(rates, forward)
    ]


def measure_small_copies(cuda: Cuda, source: Gpu, target: Gpu) -> dict[str, Any]:
    """Microseconds for a copy of 12 KiB: queued back to back on the GPU, and with the host waiting for each."""
    flow = Flow(source, target, "copy_engine", SMALL)
    queued = []
    for number in range(SAMPLES + 1):
        source.run_delay(DELAY_NS)  # so that the host has queued all of them before the first begins
        source.use()
        cuda.call("cuEventRecord", source.start, source.stream)
        for _ in range(SMALL_COPIES):
            flow.queue()
        cuda.call("cuEventRecord", source.end, source.stream)
        source.wait()
        if number:
            queued.append(cuda.elapsed_s(source.start, source.end) / SMALL_COPIES * 1e6)
    waited = [_host_seconds(lambda: _copy_and_wait(cuda, flow)) * 1e6 for _ in range(SYNCHRONISED_COPIES)]
    return {
        "copy_12k_back_to_back": summarise_samples(
            queued, size_bytes=SMALL, transfers=SMALL_COPIES, method="copy_engine, events"
        ),
        "copy_12k_synchronised": summarise_samples(
            waited, size_bytes=SMALL, transfers=1, method="copy_engine, host clock"
        ),
    }


def _copy_and_wait(cuda: Cuda, flow: Flow) -> None:
    flow.queue()
    cuda.call("cuStreamSynchronize", flow.source.stream)


def _host_seconds(work: Callable[[], None]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def measure_flag_round_trip(source: Gpu, target: Gpu, host: HostMemory, through_host: bool) -> dict[str, Any]:
    """Microseconds for a flag to go to the other GPU and back, timed by the GPU: what a one-shot all-reduce waits for.

    Each kernel polls a flag in its own memory and the other stores there; `through_host` puts both flags into host
    memory instead (the control). ``no_answer`` is true when a store of one GPU never showed in the other's memory.
    """
    if not (source.functions and target.functions):
        return {"median": None, "no_answer": None, "reason": "the driver did not take the probe's kernels"}
    samples = []
    flags = (host.flags, host.flags + 1024) if through_host else (source.flags, target.flags + 1024)
    method = "flags in host memory" if through_host else "flags in the GPUs' memory"
    for _ in range(SAMPLES):
        for gpu in (source, target):
            gpu.fill(gpu.flags, 0, 4096)
        ctypes.memset(host.flags, 0, 4096)
        trips = (PING_WARM, PING_TRIPS, PING_LIMIT_NS)
        source.run_ping((flags[0], flags[1]), True, trips, source.flags + 2048, source.stream)
        target.run_ping((flags[1], flags[0]), False, trips, target.flags + 3072, target.second_stream)
        source.wait()
        target.wait()
        source.download(host.readback, source.flags + 2048, 24)
        state, ns, done = (int.from_bytes(_bytes(host.readback + 8 * at), "little") for at in range(3))
        if state != 1:
            reason = "after %d of %d trips a flag never came back" % (done, PING_WARM + PING_TRIPS)
            return {"median": None, "no_answer": True, "trips": done, "reason": reason}
        samples.append(ns / PING_TRIPS / 1e3)
    return summarise_samples(samples, size_bytes=4, transfers=PING_TRIPS, method=method, no_answer=False)


def _bytes(address: int) -> bytes:
    return bytes(HostMemory.byte(address + at) for at in range(8))
