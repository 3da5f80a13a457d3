"""The ranks of the checked all-reduce by NCCL's own library: one GPU in one of several processes, or all in this one.

Standard input: one line of JSON with the options, then any byte when the ranks may begin (so that all arms can start up
at the same time and measure one after another); when it ends, the parent is gone and this process ends too. Options:
``library`` (path of libnccl.so.2), ``ranks`` (those of this process), ``addresses`` (PCI addresses, by rank),
``sizes`` (bytes), ``store`` (a directory for the identifier), ``owner`` (a user id to take before the library is
loaded, or null), ``step_limit_s``, ``init_limit_s``, ``join_limit_s``, ``parent`` (pid).

Standard output, JSON lines::

    {"stage": "ncclCommInitRank", "at": 12.5, "limit_s": 40}    # monotonic seconds; the parent kills us after the limit
    {"nccl": "2.28.9", "ready": true}
    {"rank": 0, "size_bytes": 12288, "wrong": 0, "first_wrong": null, "got": null, "wanted": null, "checked": "...",
     "seconds": [...], "rounds": 50}
    {"done": true}    # and waits for the end of standard input
    {"failed": {"kind": "nccl", "function": "ncclAllReduce", "code": 2, "name": "ncclSystemError", "text": "…"}}

Small whole numbers are summed, so that float32 sums are exact in any order. Each element, rank and size has its own
value, with a period that is prime: what lands in another place is seen.
"""

from __future__ import annotations

import array
import ctypes
import json
import operator
import os
import pwd
import threading
import time
from typing import Any

from . import measure
from .driver import Cuda, CudaError, LibraryError
from .gpu import Gpu, normal_address
from .nccl import Nccl, NcclError, NcclLibraryError
from .worker import FREE_TO_START_WITH, die_with_parent, read_options

PERIOD = 8191  # elements
CHECKED_PERIODS = 512  # compared at once: 16 MiB
BLOCK = 4096
SAMPLES = measure.SAMPLES
SAMPLE_BYTES = 512 << 20  # how much one sample moves, for the large sizes
# The host needs some 10 us to launch an all-reduce, as much as a small one takes. So the small ones wait behind a delay
# until all are queued.
SMALL_BYTES = 1 << 20
DELAY_NS, LAUNCH_NS = 300_000, 15_000
INIT_LIMIT_S = 60.0
JOIN_LIMIT_S = 40.0
STEP_LIMIT_S = 15.0
WAIT_LIMIT_S = 600.0  # for the other arms, which have limits of their own
EXIT_FAILED = 4
OUT_OF_MEMORY, NO_KERNEL_IMAGE, NOT_READY = 2, 209, 600
DRIVER_TOO_OLD = (35, 803, 804)
TAKEN = (46, 201)
# What stands in NCCL's own text where the reason is another than NCCL.
_SAID = (
    ("out of memory", "memory"),
    ("driver version is insufficient", "driver_too_old"),
    ("no kernel image", "nccl_too_old"),
    ("all CUDA-capable devices are busy", "taken"),
)


class Overdue(Exception):
    """An all-reduce did not end in time; the message says which ranks of this process wait for it."""


class Ranks:
    """The ranks of this process, each with its GPU and its communicator."""

    def __init__(self, options: dict[str, Any], go: threading.Event) -> None:
        self._options, self._go = options, go
        self._ranks: list[int] = options["ranks"]
        self._world = len(options["addresses"])
        self._step_limit_s = float(options.get("step_limit_s") or STEP_LIMIT_S)
        self._join_limit_s = float(options.get("join_limit_s") or JOIN_LIMIT_S)
        self._gpus: list[Gpu] = []
        self._communicators: list[Any] = []
        self._libc = ctypes.CDLL(None)
        self._libc.memcmp.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)

    def run(self) -> None:
        _begin("load libnccl", 60)
        self._nccl = Nccl(self._options["library"])
        version = self._nccl.version()
        _begin("cuInit", float(self._options.get("init_limit_s") or INIT_LIMIT_S))
        self._cuda = Cuda()
        self._cuda.call("cuInit", 0)
        self._open()
        self._join()
        _say({"nccl": version, "ready": True, "at": time.monotonic()})
        _begin("wait for the other arms", WAIT_LIMIT_S)
        self._go.wait()
        for size in self._options["sizes"]:
            self._one_size(size)
        # The next arm begins, and this one's end would disturb it: everything is given back by the end of the process.
        _say({"done": True})
        threading.Event().wait()

    def _open(self) -> None:
        """The GPUs by their addresses: CUDA may number them otherwise than nvidia-smi, and show fewer."""
        _begin("open a context", 30)
        shown = {}
        for ordinal in range(self._cuda.integer("cuDeviceGetCount")):
            device = self._cuda.integer("cuDeviceGet", ordinal)
            shown[normal_address(self._cuda.text("cuDeviceGetPCIBusId", device))] = device
        largest = max(self._options["sizes"])
        for rank in self._ranks:
            address = self._options["addresses"][rank]
            if address not in shown:
                raise CudaError("cuDeviceGetCount", None, "CUDA does not show GPU %s" % address)
            gpu = Gpu(self._cuda, shown[address])
            free = gpu.open(largest)["memory_free_mib"]
            self._gpus.append(gpu)
            if gpu.size < largest:
                text = "two buffers of %d MiB do not fit on %s, %d MiB are free" % (largest >> 20, address, free)
                raise CudaError("cuMemAlloc_v2", OUT_OF_MEMORY, "CUDA_ERROR_OUT_OF_MEMORY: " + text)
        size = min(4 * PERIOD * CHECKED_PERIODS, (largest // (4 * PERIOD) + 1) * 4 * PERIOD)
        self._wanted, self._readback = self._cuda.allocate_host(size), self._cuda.allocate_host(size)
        self._chunk = size

    def _join(self) -> None:
        if len(self._ranks) > 1 or self._world == 1:
            _begin("ncclCommInitAll", self._join_limit_s)
            self._communicators = self._nccl.join_all([gpu.device for gpu in self._gpus])
        else:
            self._gpus[0].use()
            _begin("ncclGetUniqueId", self._join_limit_s)
            identifier = self._share_id()
            self._gpus[0].use()
            _begin("ncclCommInitRank", self._join_limit_s)
            self._communicators = [self._nccl.join(self._world, identifier, self._ranks[0])]
        if self._nccl.has("ncclCommCuDevice"):
            for gpu, communicator in zip(self._gpus, self._communicators):
                taken = self._nccl.device_of(communicator)
                if taken != gpu.device:
                    raise NcclError("ncclCommCuDevice", None, "NCCL took device %d, not %d" % (taken, gpu.device))

    def _share_id(self) -> bytes:
        """Rank 0 makes it and leaves it in the store, whole or not at all."""
        path = os.path.join(self._options["store"], "identifier")
        if self._ranks[0] == 0:
            identifier = self._nccl.make_id()
            with open(path + ".new", "wb") as handle:
                handle.write(identifier)
            os.rename(path + ".new", path)
            return identifier
        _begin("wait for rank 0", self._join_limit_s)
        while not os.path.exists(path):
            time.sleep(0.005)
        with open(path, "rb") as handle:
            return handle.read()

    # -- one size
    # ----------------------------------------------------------------------------------------------------------

    def _one_size(self, size: int) -> None:
        salt = size % 97 + 1
        for rank, gpu in zip(self._ranks, self._gpus):
            values = array.array("f", (at * (rank + 1) + salt * rank for at in range(PERIOD)))
            self._repeat(gpu, gpu.source, values, size)
            gpu.copy_to(gpu, size, gpu.target, gpu.source)
            gpu.wait()
        world = self._world
        self._expect(salt * (world * (world - 1) // 2), world * (world + 1) // 2)
        # As an engine does it first: the sum takes the place of what was summed.
        self._stage(size, "in place")
        self._sum_up(size, in_place=True)
        self._wait(size)
        found = [self._check(gpu, size) for gpu in self._gpus]
        for gpu in self._gpus:
            gpu.fill(gpu.target, 0xFF, size)
        rounds = max(4, min(50, SAMPLE_BYTES // size // 4))
        self._stage(size, "timed")
        seconds = self._time(size, rounds)
        for rank, gpu, first, took in zip(self._ranks, self._gpus, found, seconds):
            last = self._check(gpu, size)
            checked = "in place" if first["wrong"] or not last["wrong"] else "after %d repeats" % (rounds * SAMPLES)
            worse = first if first["wrong"] or not last["wrong"] else last
            _say({"rank": rank, "size_bytes": size, **worse, "checked": checked, "seconds": took, "rounds": rounds})

    def _stage(self, size: int, how: str) -> None:
        _begin("all-reduce of %d bytes, %s" % (size, how), self._step_limit_s + 5)

    def _sum_up(self, size: int, in_place: bool = False) -> None:
        """Queue one all-reduce on every GPU of this process."""
        grouped = len(self._gpus) > 1
        if grouped:
            self._nccl.call("ncclGroupStart")
        for gpu, communicator in zip(self._gpus, self._communicators):
            gpu.use()
            source = gpu.target if in_place else gpu.source
            self._nccl.sum_across(source, gpu.target, size // 4, communicator, gpu.stream)
        if grouped:
            self._nccl.call("ncclGroupEnd", communicator=self._communicators[0])

    def _time(self, size: int, rounds: int) -> list[list[float]]:
        """Seconds of one all-reduce, by GPU of this process and sample; the first sample warms up."""
        seconds: list[list[float]] = [[] for _ in self._gpus]
        for number in range(SAMPLES + 1):
            if size <= SMALL_BYTES:
                for gpu in self._gpus:
                    gpu.run_delay(DELAY_NS + (rounds + 1) * len(self._gpus) * LAUNCH_NS)
            self._sum_up(size)  # all ranks leave it at the same time
            self._record("start")
            for _ in range(rounds):
                self._sum_up(size)
            self._record("end")
            self._wait(size)
            if number:
                for kept, gpu in zip(seconds, self._gpus):
                    kept.append(self._cuda.elapsed_s(gpu.start, gpu.end) / rounds)
        return seconds

    def _record(self, name: str) -> None:
        for gpu in self._gpus:
            gpu.use()
            self._cuda.call("cuEventRecord", getattr(gpu, name), gpu.stream)

    def _wait(self, size: int) -> None:
        """Until all streams of this process are done. What NCCL reports in the meantime is raised; Overdue after the
        limit."""
        ends = time.monotonic() + self._step_limit_s
        turn = 0
        while True:
            waiting = [rank for rank, gpu in zip(self._ranks, self._gpus) if not self._done(gpu)]
            if not waiting:
                break
            turn += 1
            if turn % 64 == 0:
                for communicator in self._communicators:
                    self._nccl.raise_later_error(communicator)
                if time.monotonic() > ends:
                    raise Overdue("ranks %s wait in an all-reduce of %d bytes" % (waiting, size))
            time.sleep(0 if turn < 2000 else 0.001)
        for communicator in self._communicators:
            self._nccl.raise_later_error(communicator)

    def _done(self, gpu: Gpu) -> bool:
        gpu.use()
        try:
            self._cuda.call("cuStreamQuery", gpu.stream)
        except CudaError as error:
            if error.code != NOT_READY:
                raise
            return False
        return True

    # -- values
    # ------------------------------------------------------------------------------------------------------------

    def _repeat(self, gpu: Gpu, place: int, values: array.array[float], size: int) -> None:
        """`values` again and again from `place` on, by copies on the GPU that double what is there."""
        have = min(size, 4 * len(values))
        gpu.upload(place, values.buffer_info()[0], have)
        while have < size:
            more = min(have, size - have)
            gpu.copy_to(gpu, more, place + have, place)
            have += more

    def _expect(self, offset: int, factor: int) -> None:
        """The sums, in the host's memory: as many periods as are compared at once."""
        period = array.array("f", (at * factor + offset for at in range(PERIOD))).tobytes()
        data = period * (self._chunk // len(period))
        ctypes.memmove(self._wanted, data, len(data))

    def _check(self, gpu: Gpu, size: int) -> dict[str, Any]:
        """Every element of the GPU's result against the sum: ``{wrong, first_wrong, got, wanted}``."""
        wrong, first, got, wanted = 0, None, None, None
        for begin in range(0, size, self._chunk):
            length = min(self._chunk, size - begin)
            gpu.download(self._readback, gpu.target + begin, length)
            if self._libc.memcmp(self._readback, self._wanted, length) == 0:
                continue
            for at in range(0, length, BLOCK):
                count = min(BLOCK, length - at)
                if self._libc.memcmp(self._readback + at, self._wanted + at, count) == 0:
                    continue
                have, want = (_floats(address + at, count // 4) for address in (self._readback, self._wanted))
                differs = list(map(operator.ne, have, want))
                wrong += sum(differs)
                if first is None and any(differs):
                    place = differs.index(True)
                    first, got, wanted = (begin + at) // 4 + place, have[place], want[place]
        return {"wrong": wrong, "first_wrong": first, "got": _plain(got), "wanted": _plain(wanted)}


def _floats(address: int, count: int) -> list[float]:
    return list((ctypes.c_float * count).from_address(address))


def _plain(value: float | None) -> float | str | None:
    """JSON has no NaN."""
    return value if value is None or abs(value) < 1e38 else str(value)


def name_kind(error: Exception) -> str:
    """library | symbol | memory | taken | driver_too_old | nccl_too_old | cuda | nccl: whose fault it is."""
    if isinstance(error, (NcclLibraryError, LibraryError)):
        return "library"
    if isinstance(error, CudaError):
        code = error.code
        named = {OUT_OF_MEMORY: "memory", NO_KERNEL_IMAGE: "nccl_too_old"}
        named.update(dict.fromkeys(TAKEN, "taken"))
        named.update(dict.fromkeys(DRIVER_TOO_OLD, "driver_too_old"))
        return named.get(code or 0, "cuda")
    if isinstance(error, NcclError):
        if error.code is None and error.function != "ncclCommCuDevice":
            return "symbol"
        return next((kind for words, kind in _SAID if words in error.text), "nccl")
    return "other"


def _describe(error: Exception) -> dict[str, Any]:
    return {
        "kind": name_kind(error),
        "function": getattr(error, "function", None),
        "code": getattr(error, "code", None),
        "name": getattr(error, "name", None) or str(error),
        "text": getattr(error, "text", None) or None,
    }


def _become(user: int) -> None:
    """Give up root for the user to whom the library belongs, before any of its code runs."""
    try:
        entry = pwd.getpwuid(user)
        groups = os.getgrouplist(entry.pw_name, entry.pw_gid)
        group = entry.pw_gid
    except KeyError:
        groups, group = [], user
    os.setgroups(groups)
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)


def _begin(stage: str, limit_s: float) -> None:
    _say({"stage": stage, "at": time.monotonic(), "limit_s": limit_s})


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode("ascii") + b"\n")


def main() -> None:
    options = read_options()
    go = threading.Event()
    if options.get("owner") is not None:
        _become(int(options["owner"]))
    die_with_parent(int(options["parent"]), go.set)
    for name in FREE_TO_START_WITH:
        os.environ.pop(name, None)
    os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_CACHE_DISABLE="1")
    try:
        Ranks(options, go).run()
    except Overdue as error:
        _say({"overdue": str(error)})
        threading.Event().wait()  # the parent looks at the GPUs and asks NCCL, then ends us
    except (CudaError, LibraryError, NcclError, NcclLibraryError) as error:
        _say({"failed": _describe(error)})
        os._exit(EXIT_FAILED)
    os._exit(0)
