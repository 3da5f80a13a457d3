"""One GPU in the probe's hands: its context, two streams, its buffers and kernels.

And the page-locked memory that all share.
"""

from __future__ import annotations

import ctypes
import os
import random
from ctypes import c_uint, c_uint64
from typing import Any

from . import kernels
from .driver import (
    ALREADY_ENABLED,
    COMPUTE_CAPABILITY_MAJOR,
    COMPUTE_CAPABILITY_MINOR,
    COMPUTE_MODE,
    HANDLE,
    MULTIPROCESSOR_COUNT,
    NOT_ENABLED,
    STREAM_NON_BLOCKING,
    TOO_MANY_PEERS,
    Cuda,
    CudaError,
)

MIB = 1 << 20
SMALLEST_BUFFER = MIB
GUARD = 256  # bytes before and after every checked region that must stay as they were
RESERVE = 128 * MIB  # left to whoever else uses the GPU
THREADS = 512
COMPUTE_MODES = {0: "default", 1: "exclusive_thread", 2: "prohibited", 3: "exclusive_process"}


def normal_address(text: str) -> str:
    """cuDeviceGetPCIBusId's `0000:01:00.0`, in the kernel's lower case with a domain of four digits at least."""
    domain, _, rest = text.strip().lower().partition(":")
    return "%s:%s" % (domain[-4:] if len(domain) > 4 and int(domain[:-4], 16) == 0 else domain.zfill(4), rest)


class Gpu:
    """`device` is CUDA's ordinal in this process, `address` the PCI address by which the facts name it."""

    def __init__(self, cuda: Cuda, device: int) -> None:
        self.cuda = cuda
        self.device = device
        self.address = normal_address(cuda.text("cuDeviceGetPCIBusId", device))
        self.name = cuda.text("cuDeviceGetName", device)
        self.processors = self._attribute(MULTIPROCESSOR_COUNT)
        self.capability = "%d.%d" % (
            self._attribute(COMPUTE_CAPABILITY_MAJOR),
            self._attribute(COMPUTE_CAPABILITY_MINOR),
        )
        self.compute_mode = COMPUTE_MODES.get(self._attribute(COMPUTE_MODE), "unknown")
        self.context: HANDLE | None = None
        self.stream = self.second_stream = HANDLE()
        self.start = self.end = self.joined = HANDLE()
        self.source = self.target = self.flags = 0  # device addresses
        self.size = 0  # bytes of `source` and of `target`, guards not counted
        self.functions: dict[str, HANDLE] = {}
        self.peers: list[Gpu] = []  # whose memory this GPU may address, oldest first
        self._held: list[tuple[str, Any]] = []  # how to give back what was taken

    def _attribute(self, number: int) -> int:
        return self.cuda.integer("cuDeviceGetAttribute", number, self.device)

    def open(self, wanted: int) -> dict[str, Any]:
        """Take the primary context, streams, events and two buffers of at most `wanted` bytes; what was found as facts.

        CudaError if there is not even room for the smallest buffers.
        """
        self.context = self.cuda.handle("cuDevicePrimaryCtxRetain", self.device)
        self.use()
        free, total = self.cuda.memory()
        self.stream, self.second_stream = (
            self._take("cuStreamDestroy_v2", "cuStreamCreate", STREAM_NON_BLOCKING) for _ in range(2)
        )
        self.start, self.end, self.joined = (self._take("cuEventDestroy_v2", "cuEventCreate", 0) for _ in range(3))
        self.flags = self._allocate(4096)
        self.size = wanted
        while self.size > SMALLEST_BUFFER and 2 * self.size + RESERVE > free:
            self.size //= 2
        while not self.source:
            try:
                self.source = self._allocate(self.size + 2 * GUARD)
                self.target = self._allocate(self.size + 2 * GUARD)
            except CudaError as error:
                if error.code != 2 or self.size <= SMALLEST_BUFFER:
                    raise
                if self.source:
                    self._held.pop()
                    self.cuda.call("cuMemFree_v2", self.source)
                    self.source = 0
                self.size //= 2
        facts = {"memory_free_mib": free // MIB, "memory_total_mib": total // MIB, "buffer_mib": self.size // MIB}
        return {**facts, "kernels_error": self._load_kernels()}

    def _take(self, release: str, create: str, *arguments: Any) -> HANDLE:
        handle = self.cuda.handle(create, *arguments)
        self._held.append((release, handle))
        return handle

    def _allocate(self, size: int) -> int:
        address = self.cuda.allocate(size)
        self._held.append(("cuMemFree_v2", address))
        return address

    def _load_kernels(self) -> dict[str, Any] | None:
        try:
            module = self.cuda.handle("cuModuleLoadData", kernels.PTX.encode("ascii"))
            self._held.append(("cuModuleUnload", module))
            self.functions = {
                name: self.cuda.handle("cuModuleGetFunction", module, name.encode("ascii")) for name in kernels.NAMES
            }
        except CudaError as error:
            if error.sticky:
                raise
            return error.as_fact()
        return None

    def close(self) -> None:
        """Give everything back; goes on past errors, because a lost GPU refuses all of it."""
        if self.context is None:
            return
        steps = [
            ("cuCtxSetCurrent", self.context),
            *reversed(self._held),
            ("cuDevicePrimaryCtxRelease_v2", self.device),
        ]
        for function, argument in steps:
            try:
                self.cuda.call(function, argument)
            except CudaError:
                continue
        self.context, self._held = None, []

    def use(self) -> None:
        self.cuda.call("cuCtxSetCurrent", self.context)

    def wait(self) -> None:
        """Until both streams have finished."""
        self.use()
        self.cuda.call("cuStreamSynchronize", self.stream)
        self.cuda.call("cuStreamSynchronize", self.second_stream)

    # -- peers
    # -------------------------------------------------------------------------------------------------------------

    def enable(self, peer: Gpu) -> None:
        """Let this GPU address `peer`'s memory. With TOO_MANY_PEERS the oldest grants are taken back first."""
        if peer is self or peer in self.peers:
            return
        self.use()
        try:
            self.cuda.call("cuCtxEnablePeerAccess", peer.context, 0)
        except CudaError as error:
            if error.code == TOO_MANY_PEERS and self.peers:
                self.disable(self.peers[0])
                self.enable(peer)
                return
            if error.code != ALREADY_ENABLED:
                raise
        self.peers.append(peer)

    def disable(self, peer: Gpu) -> None:
        self.use()
        try:
            self.cuda.call("cuCtxDisablePeerAccess", peer.context)
        except CudaError as error:
            if error.code != NOT_ENABLED:
                raise
        self.peers = [other for other in self.peers if other is not peer]

    # -- work, queued on a stream
    # ------------------------------------------------------------------------------------------

    def copy_to(self, other: Gpu, size: int, target: int = 0, source: int = 0, stream: HANDLE | None = None) -> None:
        """This GPU's copy engine writes `size` bytes from its `source` buffer into the `target` buffer of `other`."""
        self.use()
        self.cuda.call(
            "cuMemcpyPeerAsync",
            target or other.target,
            other.context,
            source or self.source,
            self.context,
            size,
            stream or self.stream,
        )

    def run_copy(self, target: int, source: int, size: int, stream: HANDLE | None = None) -> None:
        """This GPU's multiprocessors copy `size` bytes: 16 at a time where both addresses allow it."""
        self.use()
        wide = 0 if (target | source) % 16 else size // 16
        if wide:
            self._copy("copy16", target, source, wide, stream)
        rest = size - 16 * wide
        if rest:
            self._copy("copy1", target + 16 * wide, source + 16 * wide, rest, stream)

    def _copy(self, kernel: str, target: int, source: int, count: int, stream: HANDLE | None) -> None:
        blocks = max(1, min(8 * self.processors, (count + THREADS - 1) // THREADS))
        self.cuda.launch(
            self.functions[kernel],
            blocks,
            THREADS,
            stream or self.stream,
            c_uint64(target),
            c_uint64(source),
            c_uint64(count),
        )

    def run_ping(
        self, flags: tuple[int, int], serves: bool, trips: tuple[int, int, int], out: int, stream: HANDLE
    ) -> None:
        """One end of the flag round trip. `flags` are (mine, theirs), `trips` (warm, timed, limit in ns)."""
        self.use()
        (mine, theirs), (warm, count, limit_ns) = flags, trips
        self.cuda.launch(
            self.functions["ping"], 1, 1, stream,
            c_uint64(mine), c_uint64(theirs), c_uint(int(serves)), c_uint(warm), c_uint(count), c_uint64(limit_ns),
            c_uint64(out),
        )  # fmt: skip

    def run_delay(self, ns: int) -> None:
        if "delay" in self.functions:
            self.use()
            self.cuda.launch(self.functions["delay"], 1, 1, self.stream, c_uint64(ns))

    def fill(self, address: int, value: int, size: int) -> None:
        self.use()
        self.cuda.call("cuMemsetD8Async", address, value, size, self.stream)
        self.cuda.call("cuStreamSynchronize", self.stream)

    def upload(self, address: int, host: int, size: int) -> None:
        self.use()
        self.cuda.call("cuMemcpyHtoDAsync_v2", address, host, size, self.stream)
        self.cuda.call("cuStreamSynchronize", self.stream)

    def download(self, host: int, address: int, size: int) -> None:
        self.use()
        self.cuda.call("cuMemcpyDtoHAsync_v2", host, address, size, self.stream)
        self.cuda.call("cuStreamSynchronize", self.stream)


class HostMemory:
    """Page-locked host memory.

    Fresh random bytes, a buffer to read back into, and flags for the control of the flag round trip.
    """

    SLACK = MIB

    def __init__(self, cuda: Cuda, gpu: Gpu, size: int) -> None:
        gpu.use()
        self._cuda = cuda
        self.size = size
        self.random = cuda.allocate_host(size + self.SLACK)
        self.readback = cuda.allocate_host(size + 2 * GUARD)
        self.flags = cuda.allocate_host(4096)
        for begin in range(0, size + self.SLACK, MIB):
            ctypes.memmove(self.random + begin, os.urandom(MIB), MIB)
        self._libc = ctypes.CDLL(None)
        self._libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def fresh(self) -> int:
        """Address of `size` random bytes that begin at another place each time.

        So no two transfers carry the same data.
        """
        return self.random + random.SystemRandom().randrange(0, self.SLACK)

    def same(self, one: int, other: int, size: int) -> bool:
        return self._libc.memcmp(one, other, size) == 0

    @staticmethod
    def byte(address: int) -> int:
        return ctypes.c_ubyte.from_address(address).value

    def close(self) -> None:
        for address in (self.random, self.readback, self.flags):
            self._cuda.call("cuMemFreeHost", address)
