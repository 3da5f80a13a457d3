"""How fast each GPU exchanges data with the host's memory: alone, and all GPUs at once.

With page-locked memory on the NUMA node near the GPU and on the one farthest from it. Every figure is as `measure.py`
gives it.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import numa, places
from .driver import HANDLE, Cuda, CudaError
from .gpu import GUARD, MIB, Gpu
from .measure import SAMPLES, measure_flows

DIRECTIONS = ("to_gpu", "from_gpu")
ANY_NODE = "any"  # the kernel shows no nodes
MOST_MIB_AT_ONCE = 1024  # page-locked, on all nodes together
MOST_NODES_OF_ONE = 4  # tried for a GPU whose own node is not known
MOST_MIB = 64  # of one GPU
SHARE_OF_FREE = 8  # of the free memory of a node, this part at most
MANY_GPUS = 4  # with more, each sample is shorter
SECONDS, SHORT_SECONDS = 0.02, 0.008  # of one sample

_CALLS = {"to_gpu": "cuMemcpyHtoDAsync_v2", "from_gpu": "cuMemcpyDtoHAsync_v2"}


class HostFlow:
    """A stream of copies between host memory at `address` and the buffers of one GPU, as `measure_flows` takes it."""

    def __init__(self, gpu: Gpu, direction: str, address: int, size: int) -> None:
        self.runner, self.size, self.transfers = gpu, size, 1
        self.method = "copy_engine, page-locked memory"
        self._call = _CALLS[direction]
        to_gpu = direction == "to_gpu"
        self._ends = (gpu.target + GUARD, address) if to_gpu else (address, gpu.source + GUARD)

    def queue(self, stream: HANDLE | None = None) -> None:
        self.runner.use()
        self.runner.cuda.call(self._call, *self._ends, self.size, stream or self.runner.stream)


class HostBuffers:
    """Page-locked memory on each node that a GPU is to be measured with, cut into one part for each GPU. Give it back
    by `close`.

    `near`: the NUMA node of each GPU, None where it is not known. ``facts``: by node (its number, or `ANY_NODE`)
    ``{mib, placed_by, node_found, error}``.
    """

    def __init__(
        self, cuda: Cuda, gpus: Sequence[Gpu], near: Sequence[int | None], nodes: dict[int, dict[str, Any]]
    ) -> None:
        self._cuda, self._gpus, self._nodes = cuda, list(gpus), nodes
        self._chosen = [choose_nodes(node, nodes) for node in near]
        wanted = sorted({node for chosen in self._chosen for node in chosen})
        self.facts: dict[str, dict[str, Any]] = {}
        self._addresses: dict[str, int] = {}
        parts = [MOST_MIB, MOST_MIB_AT_ONCE // max(1, len(wanted)) // len(gpus), *(gpu.size // MIB for gpu in gpus)]
        free = [nodes[node]["free_mib"] for node in wanted if nodes[node]["free_mib"] is not None]
        self.part = max(1, min(*parts, *(mib // SHARE_OF_FREE // len(gpus) for mib in free))) * MIB
        gpus[0].use()
        numbers: list[int | None] = [*wanted] or [None]
        for number in numbers:
            self._take(number)

    def _take(self, node: int | None) -> None:
        key, size = ANY_NODE if node is None else str(node), self.part * len(self._gpus)
        facts: dict[str, Any] = {"mib": size // MIB, "placed_by": None, "node_found": None, "error": None}
        with numa.Placement(node, [] if node is None else self._nodes[node]["cpus"]) as placement:
            facts["placed_by"] = placement.how
            try:
                self._addresses[key] = self._cuda.allocate_host(size)
                facts["node_found"] = numa.find_node_of(self._addresses[key])
            except CudaError as error:
                if error.sticky:
                    raise
                facts["error"] = error.as_fact()
        self.facts[key] = facts

    def list_nodes(self, gpu: Gpu) -> list[str]:
        """The nodes to measure this GPU with, its own first, as far as memory could be had there."""
        wanted = [str(node) for node in self._chosen[self._gpus.index(gpu)]] or [ANY_NODE]
        return [key for key in wanted if key in self._addresses]

    def flow(self, gpu: Gpu, direction: str, node: str) -> HostFlow:
        return HostFlow(gpu, direction, self._addresses[node] + self._gpus.index(gpu) * self.part, self.part)

    def close(self) -> None:
        self._gpus[0].use()
        for address in self._addresses.values():
            self._cuda.call("cuMemFreeHost", address)
        self._addresses = {}


def choose_nodes(near: int | None, nodes: dict[int, dict[str, Any]]) -> list[int]:
    """A GPU's own node and the farthest from it; where its own is not known, some of them all."""
    if near not in nodes or near is None:
        return sorted(nodes)[:MOST_NODES_OF_ONE]
    far = places.choose_far_node(near, nodes)
    return [near] if far is None else [near, far]


def measure_host_flows(cuda: Cuda, flows: Sequence[HostFlow], gpus: int) -> list[dict[str, Any]]:
    """The bandwidth of each flow, all at once. `gpus`: how many the host has, which says how long a sample may be."""
    return measure_flows(cuda, flows, SAMPLES, SECONDS if gpus <= MANY_GPUS else SHORT_SECONDS)
