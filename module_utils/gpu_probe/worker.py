"""The child process that holds the GPUs.

It runs the stages of the probe and says on standard output what it does and finds.

Standard input: one line of JSON with the options, then kept open; when it ends, the parent is gone and the child ends
too. Standard output: JSON lines, of three kinds::

    {"begin": "delivered", "about": ["0000:01:00.0->0000:11:00.0"], "limit_s": 20}     # the parent kills us if this
    lasts longer
    {"put": ["pairs", "0000:01:00.0->0000:11:00.0", "delivered"], "value": {…}}
    {"lost": {"function": …, "code": 719, …}}                                          # a fault that ends this
    process's use of CUDA

Options: ``buffer_mib``; ``skip`` (pairs and GPUs not to touch: a former child hung there); ``done`` (what a former
child has already put, as "section key part"); ``only_initialise`` (cuInit and what the driver says of each pair, no
context); ``one_by_one`` (no two pairs at once);
``loopback`` (each GPU with itself, even where there are several); ``init_limit_s``; ``pair_limit_s`` (for
a stage about pairs or GPUs); ``parent`` (its pid).
"""

from __future__ import annotations

import ctypes
import json
import os
import signal
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from . import deliver, load, measure
from .driver import (
    P2P_ACCESS_SUPPORTED,
    P2P_NATIVE_ATOMIC_SUPPORTED,
    P2P_PERFORMANCE_RANK,
    Cuda,
    CudaError,
    LibraryError,
    library_path,
)
from .gpu import MIB, Gpu, HostMemory

PR_SET_PDEATHSIG = 1
INIT_LIMIT_S = 60.0
CONTEXT_LIMIT_S = 30.0
PAIR_LIMIT_S = 20.0
RETEST_BELOW = 0.85  # of the best pair: a pair that was slow beside others is measured again alone
RETESTS_AT_MOST = 12
FREE_TO_START_WITH = ("CUDA_VISIBLE_DEVICES", "CUDA_LAUNCH_BLOCKING", "CUDA_INJECTION64_PATH")


class Worker:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._skip = set(options.get("skip") or ())
        self._done = set(options.get("done") or ())
        self._gpus: list[Gpu] = []
        self._host: HostMemory | None = None
        self._cuda: Cuda | None = None
        self._one_by_one = bool(options.get("one_by_one"))
        self._began = time.monotonic()

    # -- what the parent hears
    # ----------------------------------------------------------------------------------------------

    def _begin(self, stage: str, limit_s: float, about: Sequence[str] = ()) -> None:
        _say(
            {
                "begin": stage,
                "about": list(about),
                "limit_s": float(self._options.get("pair_limit_s") or limit_s) if about else limit_s,
            }
        )

    def _put(self, value: Any, *path: str) -> None:
        _say({"put": list(path), "value": value})

    def _wanted(self, section: str, key: str, part: str) -> bool:
        return " ".join((section, key, part)) not in self._done

    # -- stages
    # -------------------------------------------------------------------------------------------------------------

    def run(self) -> None:
        if not self._initialise():
            return
        self._devices()
        if self._options.get("only_initialise"):
            return
        self._contexts()
        if self._host is not None:
            if len(self._gpus) == 1 or self._options.get("loopback"):
                self._loopback()
            if len(self._gpus) > 1:
                self._pairs()
            # Not after a fault that ends the process's use of CUDA: then every call fails, and the end of the process
            # frees all.
            self._begin("clean up", CONTEXT_LIMIT_S)
            self._close()
        self._begin("end", 5)

    def _initialise(self) -> bool:
        self._begin("load libcuda.so.1", 20)
        facts: dict[str, Any] = dict.fromkeys(
            ("library", "library_error", "initialised", "error", "seconds", "driver_version")
        )
        try:
            self._cuda = Cuda()
            facts["library"] = library_path()
            self._begin("cuInit", float(self._options.get("init_limit_s") or INIT_LIMIT_S))
            began = time.monotonic()
            try:
                self._cuda.call("cuInit", 0)
            finally:
                facts["seconds"] = round(time.monotonic() - began, 3)
            facts["initialised"] = True
            version = self._cuda.integer("cuDriverGetVersion")
            facts["driver_version"] = "%d.%d" % (version // 1000, version % 1000 // 10)
        except LibraryError as error:
            facts["library_error"] = str(error)
            facts["initialised"] = False
        except CudaError as error:
            facts["error"] = error.as_fact()
            facts["initialised"] = bool(facts["initialised"])
        self._put(facts, "cuda")
        return bool(facts["initialised"])

    def _devices(self) -> None:
        assert self._cuda
        self._begin("list devices", CONTEXT_LIMIT_S)
        for ordinal in range(self._cuda.integer("cuDeviceGetCount")):
            gpu = Gpu(self._cuda, self._cuda.integer("cuDeviceGet", ordinal))
            facts = {
                "name": gpu.name,
                "cuda_index": ordinal,
                "compute_capability": gpu.capability,
                "compute_mode": gpu.compute_mode,
                "multiprocessors": gpu.processors,
            }
            if any(other.address == gpu.address for other in self._gpus) or "MIG" in gpu.name:
                # Instances of a divided GPU share its address and have no peers.
                self._put(True, "devices", gpu.address, "mig")
                self._gpus = [other for other in self._gpus if other.address != gpu.address]
                continue
            self._gpus.append(gpu)
            self._put(facts, "devices", gpu.address)
        for source in self._gpus:
            for target in self._gpus:
                if source is not target:
                    self._put(self._claims(source, target), "pairs", _key(source, target), "claims")

    def _claims(self, source: Gpu, target: Gpu) -> dict[str, Any]:
        """What the driver says of a pair before anything is tried.

        The source is the one that addresses the target's memory.
        """
        assert self._cuda
        facts: dict[str, Any] = dict.fromkeys(("can_access", "access_supported", "atomics", "performance_rank"))
        try:
            facts["can_access"] = bool(self._cuda.integer("cuDeviceCanAccessPeer", source.device, target.device))
            for name, attribute in (
                ("access_supported", P2P_ACCESS_SUPPORTED),
                ("atomics", P2P_NATIVE_ATOMIC_SUPPORTED),
                ("performance_rank", P2P_PERFORMANCE_RANK),
            ):
                value = self._cuda.integer("cuDeviceGetP2PAttribute", attribute, source.device, target.device)
                facts[name] = value if name == "performance_rank" else bool(value)
        except CudaError as error:
            facts["error"] = error.as_fact()
        return facts

    def _contexts(self) -> None:
        opened = []
        for gpu in self._gpus:
            if gpu.address in self._skip:
                continue
            self._begin("open a context", CONTEXT_LIMIT_S, [gpu.address])
            try:
                self._put(gpu.open(int(self._options.get("buffer_mib") or 256) * MIB), "devices", gpu.address, "opened")
                opened.append(gpu)
            except CudaError as error:
                self._put(error.as_fact(), "devices", gpu.address, "error")
                gpu.close()
        self._gpus = opened
        if opened:
            self._begin("allocate host memory", CONTEXT_LIMIT_S)
            size = max(gpu.size for gpu in opened)
            self._host = HostMemory(self._cuda, opened[0], min(size, 64 * MIB)) if self._cuda else None

    def _loopback(self) -> None:
        """Each GPU with itself: the binding, the kernels, the verification and the clocks, where there is no peer."""
        assert self._cuda and self._host
        for gpu in self._gpus:
            if gpu.address in self._skip or not self._wanted("loopback", gpu.address, "latency_us"):
                continue
            self._begin("loopback", 2 * PAIR_LIMIT_S, [gpu.address])
            delivered = {method: deliver.check_delivery(gpu, gpu, method, self._host) for method in deliver.METHODS}
            self._put(delivered, "loopback", gpu.address, "delivered")
            flows = {"copy": "copy_engine", **({"sm_store": "sm_store"} if gpu.functions else {})}
            bandwidth = {
                name: measure.measure_flows(self._cuda, [measure.Flow(gpu, gpu, how, gpu.size)])[0]
                for name, how in flows.items()
            }
            bandwidth["both_ways"] = measure.measure_both_ways(self._cuda, [(gpu, gpu)], gpu.size)[0]
            self._put(bandwidth, "loopback", gpu.address, "bandwidth_gb_s")
            latency = measure.measure_small_copies(self._cuda, gpu, gpu)
            latency["flag_round_trip"] = measure.measure_flag_round_trip(gpu, gpu, self._host, through_host=False)
            latency["control_flag_round_trip"] = measure.measure_flag_round_trip(
                gpu, gpu, self._host, through_host=True
            )
            self._put(latency, "loopback", gpu.address, "latency_us")

    def _pairs(self) -> None:
        self._control()
        usable = self._enable()
        self._delivered(usable)
        self._latency(usable)
        self._bandwidth(usable)
        self._under_load(usable)

    def _rounds(self) -> list[list[tuple[Gpu, Gpu]]]:
        return load.make_rounds(
            self._gpus, lambda one, other: not {_key(one, other), _key(other, one)} & self._skip, self._one_by_one
        )

    def _directed(self) -> list[tuple[Gpu, Gpu]]:
        return [
            direction for turn in self._rounds() for one, other in turn for direction in ((one, other), (other, one))
        ]

    def _control(self) -> None:
        """Every pair with peer access off: the driver stages the copy through host memory.

        It must be slow, and right.
        """
        assert self._cuda and self._host
        for source, target in self._directed():
            if not self._wanted("pairs", _key(source, target), "control_latency_us"):
                continue
            self._begin("control", PAIR_LIMIT_S, [_key(source, target)])
            with _Recorded(self, source, target, "control"):
                self._put(
                    deliver.check_delivery(source, target, "copy_engine", self._host),
                    "pairs",
                    _key(source, target),
                    "control_delivered",
                )
                latency = measure.measure_small_copies(self._cuda, source, target)
                latency["flag_round_trip"] = measure.measure_flag_round_trip(
                    source, target, self._host, through_host=True
                )
                self._put(latency, "pairs", _key(source, target), "control_latency_us")
        for turn in self._rounds():
            for pairs in (turn, [(other, one) for one, other in turn]):
                self._together(pairs, "copy_engine", "control_copy", control=True)

    def _enable(self) -> list[tuple[Gpu, Gpu]]:
        usable = []
        for source, target in self._directed():
            key = _key(source, target)
            self._begin("enable peer access", PAIR_LIMIT_S, [key])
            try:
                source.enable(target)
                self._put({"enabled": True, "error": None}, "pairs", key, "peer")
                usable.append((source, target))
            except CudaError as error:
                self._put({"enabled": False, "error": error.as_fact()}, "pairs", key, "peer")
                if error.sticky:
                    raise
        return usable

    def _delivered(self, usable: Sequence[tuple[Gpu, Gpu]]) -> None:
        assert self._host
        open_pairs = set(usable)
        for source, target in usable:
            key = _key(source, target)
            for method in deliver.METHODS:
                # A load is done by the target, through its own grant on the source.
                if (method == "sm_load" and (target, source) not in open_pairs) or not self._wanted(
                    "pairs", key, "delivered " + method
                ):
                    continue
                self._begin("deliver by " + method, PAIR_LIMIT_S, [key])
                with _Recorded(self, source, target, "delivered"):
                    (target.enable(source) if method == "sm_load" else source.enable(target))
                    self._put(
                        deliver.check_delivery(source, target, method, self._host), "pairs", key, "delivered", method
                    )

    def _latency(self, usable: Sequence[tuple[Gpu, Gpu]]) -> None:
        assert self._cuda and self._host
        open_pairs = set(usable)
        for source, target in usable:
            key = _key(source, target)
            if not self._wanted("pairs", key, "latency_us"):
                continue
            self._begin("latency", PAIR_LIMIT_S, [key])
            with _Recorded(self, source, target, "latency"):
                source.enable(target)
                latency = measure.measure_small_copies(self._cuda, source, target)
                if (target, source) in open_pairs:
                    target.enable(source)
                    latency["flag_round_trip"] = measure.measure_flag_round_trip(
                        source, target, self._host, through_host=False
                    )
                self._put(latency, "pairs", key, "latency_us")

    def _bandwidth(self, usable: Sequence[tuple[Gpu, Gpu]]) -> None:
        open_pairs = set(usable)
        best: dict[str, float] = {}
        for turn in self._rounds():
            for direction in (turn, [(other, one) for one, other in turn]):
                pairs = [pair for pair in direction if pair in open_pairs]
                best.update(self._together(pairs, "copy_engine", "copy"))
                self._together([pair for pair in pairs if pair[0].functions], "sm_store", "sm_store")
                self._together(
                    [pair for pair in pairs if (pair[1], pair[0]) in open_pairs and pair[1].functions],
                    "sm_load",
                    "sm_load",
                )
            both = [(one, other) for one, other in turn if {(one, other), (other, one)} <= open_pairs]
            self._both_ways(both)
        for gpu in self._gpus:
            self._put(
                _link(gpu.address), "devices", gpu.address, "link"
            )  # now, while it has just worked: idle links slow down
        top = max(best.values(), default=0.0)
        slow = sorted((rate, key) for key, rate in best.items() if rate < RETEST_BELOW * top)[:RETESTS_AT_MOST]
        if len(self._gpus) > 2:
            for _, key in slow:
                self._together([pair for pair in usable if _key(*pair) == key], "copy_engine", "copy_alone")

    def _together(
        self, pairs: Sequence[tuple[Gpu, Gpu]], method: str, name: str, control: bool = False
    ) -> dict[str, float]:
        """Put the bandwidth of `pairs`, run at once, under `name`; the medians by pair."""
        assert self._cuda
        pairs = [pair for pair in pairs if self._wanted("pairs", _key(*pair), "bandwidth_gb_s " + name)]
        if not pairs:
            return {}
        self._begin("bandwidth " + name, PAIR_LIMIT_S, [_key(*pair) for pair in pairs])
        with _Recorded(self, *pairs[0], "bandwidth " + name):
            if not control:
                for source, target in pairs:
                    (target.enable(source) if method == "sm_load" else source.enable(target))
            size = min(min(source.size, target.size) for source, target in pairs)
            flows = [measure.Flow(source, target, method, size) for source, target in pairs]
            budget = (3, measure.CONTROL_SAMPLE_SECONDS) if control else (measure.SAMPLES, measure.SAMPLE_SECONDS)
            figures = measure.measure_flows(self._cuda, flows, *budget)
            for pair, value in zip(pairs, figures):
                self._put(value, "pairs", _key(*pair), "bandwidth_gb_s", name)
            return {_key(*pair): value["median"] for pair, value in zip(pairs, figures)}
        return {}

    def _both_ways(self, pairs: Sequence[tuple[Gpu, Gpu]]) -> None:
        assert self._cuda
        pairs = [pair for pair in pairs if self._wanted("pairs", _key(*pair), "bandwidth_gb_s both_ways")]
        if not pairs:
            return
        self._begin("bandwidth both ways", PAIR_LIMIT_S, [_key(*pair) for pair in pairs])
        with _Recorded(self, *pairs[0], "bandwidth both ways"):
            for source, target in pairs:
                source.enable(target)
                target.enable(source)
            size = min(min(source.size, target.size) for source, target in pairs)
            for (source, target), value in zip(pairs, measure.measure_both_ways(self._cuda, pairs, size)):
                self._put(value, "pairs", _key(source, target), "bandwidth_gb_s", "both_ways")
                self._put(value, "pairs", _key(target, source), "bandwidth_gb_s", "both_ways")

    def _under_load(self, usable: Sequence[tuple[Gpu, Gpu]]) -> None:
        """Only where all pairs are usable: a mixture of staged and direct transfers would measure neither."""
        assert self._cuda and self._host
        complete = len(usable) == len(self._gpus) * (len(self._gpus) - 1)
        if not complete:
            return
        for source, target in usable:
            source.enable(target)
        if any(len(gpu.peers) < len(self._gpus) - 1 for gpu in self._gpus):
            return  # more GPUs than the driver allows peers
        every = [_key(*pair) for pair in usable]
        if len(self._gpus) > 2:
            for target in self._gpus:
                if self._wanted("many_to_one", target.address, ""):
                    self._begin(
                        "all write to one", PAIR_LIMIT_S, [key for key in every if key.endswith(target.address)]
                    )
                    self._put(
                        load.load_one_target(self._cuda, self._gpus, target, self._host), "many_to_one", target.address
                    )
        if self._wanted("all_at_once", "", ""):
            self._begin("all pairs at once", PAIR_LIMIT_S, every)
            self._put(load.load_every_pair(self._cuda, self._gpus, self._host), "all_at_once")

    def _close(self) -> None:
        if self._host is not None:
            self._gpus[0].use()
            self._host.close()
        for gpu in self._gpus:
            gpu.close()

    def failed(self, source: Gpu, target: Gpu, stage: str, error: CudaError) -> None:
        self._put({**error.as_fact(), "stage": stage}, "pairs", _key(source, target), "error")


class _Recorded:
    """A CUDA fault inside belongs to this pair; one that ends the context ends the worker too."""

    def __init__(self, worker: Worker, source: Gpu, target: Gpu, stage: str) -> None:
        self._worker, self._source, self._target, self._stage = worker, source, target, stage

    def __enter__(self) -> None:
        pass

    def __exit__(self, kind: Any, error: Any, trace: Any) -> bool:
        if isinstance(error, CudaError):
            if error.sticky:
                return False  # the parent notes whom this stage was about
            self._worker.failed(self._source, self._target, self._stage, error)
            return True
        return False


def _key(source: Gpu, target: Gpu) -> str:
    return "%s->%s" % (source.address, target.address)


def _link(address: str) -> dict[str, Any]:
    """The GPU's PCIe link now, as the kernel reads it: ``{speed_gt_s, width, max_speed_gt_s, max_width}``.

    None where it does not say.
    """
    found: dict[str, Any] = {}
    for key, name in (
        ("speed_gt_s", "current_link_speed"), ("width", "current_link_width"), ("max_speed_gt_s", "max_link_speed"),
        ("max_width", "max_link_width"),
    ):  # fmt: skip
        try:
            with open("/sys/bus/pci/devices/%s/%s" % (address, name), encoding="ascii", errors="replace") as handle:
                number = float(handle.read().split()[0])
        except (OSError, ValueError, IndexError):
            number = 0.0  # "Unknown", or a machine without the file
        found[key] = (int(number) if "width" in key else number) if number > 0 else None
    return found


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode("ascii") + b"\n")


def die_with_parent(parent: int, heard: Callable[[], None] | None = None) -> None:
    """The kernel kills us when the parent ends.

    And so does the end of standard input, which also a lost namespace cannot hide. `heard` is called when something
    comes from there.
    """
    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
    if os.getppid() != parent:
        os._exit(3)
    threading.Thread(target=_watch_standard_input, args=(heard,), daemon=True).start()


def _watch_standard_input(heard: Callable[[], None] | None) -> None:
    while os.read(0, 4096):
        if heard:
            heard()
    os._exit(3)


def main() -> None:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(3)
        line += piece
    options = json.loads(line)
    die_with_parent(int(options["parent"]))
    for name in FREE_TO_START_WITH:
        os.environ.pop(name, None)
    # PCI order makes ordinals those of nvidia-smi; nothing is written into the home directory's kernel cache.
    os.environ.update(CUDA_DEVICE_ORDER="PCI_BUS_ID", CUDA_CACHE_DISABLE="1")
    try:
        Worker(options).run()
    except CudaError as error:
        _say({"lost": error.as_fact()})
        os._exit(4)
    sys.stdout.flush()
    os._exit(0)
