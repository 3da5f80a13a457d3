"""The child process that holds the GPUs.

It runs the stages of the probe and says on standard output what it does and finds.

Standard input: one line of JSON with the options, then kept open; when it ends, the parent is gone and the child ends
too. Standard output: JSON lines, of these kinds::

    {"begin": "delivered", "about": ["0000:01:00.0->0000:11:00.0"], "limit_s": 20}     # the parent kills us if this
    lasts longer
    {"put": ["pairs", "0000:01:00.0->0000:11:00.0", "delivered"], "value": {…}}
    {"lost": {"function": …, "code": 719, …}}                                          # a fault that ends this
    process's use of CUDA

Options: ``buffer_mib``; ``skip`` (pairs and GPUs not to touch: a former child hung there); ``done`` (what a former
child has already put, as "section key part"); ``only_initialise`` (cuInit and what the driver says of each pair, no
context); ``one_by_one`` (no two pairs at once);
``loopback`` (each GPU with itself, even where there are several); ``init_limit_s``; ``pair_limit_s`` (for
a stage about pairs or GPUs); ``budget_s`` (for all phases together; without it, by the number of GPUs, `plan.py`);
``sysfs`` (where /sys is, in tests); ``parent`` (its pid).

A line of a fourth kind says which phase begins: ``{"phase": "latency", "number": 3, "of": 6, "budget_s": 2.9}``.
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

from . import deliver, host_links, load, measure, places, plan
from .counters import Counters
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
PAIR_LIMIT_S = 10.0
RETEST_BELOW = 0.85  # of the best pair: a pair that was slow beside others is measured again alone
RETESTS_AT_MOST = 12
# Seconds of one sample of a bandwidth by the most GPUs that it holds for: 56 and 240 pairs have to fit into the budget.
SAMPLE_SECONDS = ((4, measure.SAMPLE_SECONDS), (8, measure.SAMPLE_SECONDS / 2), (1 << 30, 0.008))
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
        self._root = str(options.get("sysfs") or "/sys")
        self._places: dict[str, dict[str, Any]] = {}
        self._atomics: set[tuple[str, str]] = set()  # pairs that can do atomic operations on each other's memory
        self._counters: Counters | None = None
        self._phases: list[str] = []
        self._budgets: dict[str, float] = {}
        self._began = self._deadline = time.monotonic()  # of the phases; when the current one is out of its budget
        self._enabled: list[tuple[Gpu, Gpu]] | None = None
        self._left: list[str] = []  # pairs and GPUs for which the current phase had no time

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
            self._run_phases()
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
                    claims = self._claims(source, target)
                    if claims["atomics"]:
                        self._atomics.add((source.address, target.address))
                    self._put(claims, "pairs", _key(source, target), "claims")

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

    def _run_phases(self) -> None:
        """Each phase within its budget, with what the links counted meanwhile."""
        self._begin("read counters", CONTEXT_LIMIT_S)
        for gpu in self._gpus:
            self._places[gpu.address] = places.read_place(gpu.address, self._root)
            self._put(self._places[gpu.address], "devices", gpu.address, "place")
        paths = {address: place["path"] or [] for address, place in self._places.items()}
        self._counters = Counters([gpu.address for gpu in self._gpus], paths, self._root)
        self._put(self._counters.describe_sources(), "counter_sources")
        several = len(self._gpus) > 1
        work: dict[str, Callable[[], None]] = {
            "control": self._control,
            "delivered": self._delivered,
            "latency": self._latency,
            "bandwidth": self._bandwidth,
            "under_load": self._under_load,
            "host_links": self._host_links,
        }
        self._phases = [name for name in plan.PHASES if several or name == "host_links"]
        total = float(self._options.get("budget_s") or plan.choose_budget(len(self._gpus)))
        self._budgets = plan.split_budget(total)
        # Known before the first of them: what a phase that never came would have measured is unknown.
        for name in self._phases:
            self._put({"budget_s": self._budgets[name]}, "phases", name)
        self._began = self._deadline = time.monotonic()
        for number, name in enumerate(self._phases, 1):
            self._deadline += self._budgets[name]
            self._left = []
            _say({"phase": name, "number": number, "of": len(self._phases), "budget_s": self._budgets[name]})
            began = time.monotonic()
            work[name]()
            seconds = time.monotonic() - began
            self._begin("read counters", CONTEXT_LIMIT_S)
            done = {"seconds": round(seconds, 3), "left": sorted(set(self._left)), "counters": self._counters.compare()}
            self._put(done, "phases", name)

    def _late(self, names: Sequence[str]) -> bool:
        """Whether the current phase is out of its budget; then `names` are noted as left out."""
        late = time.monotonic() > self._deadline
        if late:
            self._left += names
        return late

    def _planned_pairs(self) -> list[tuple[Gpu, Gpu]]:
        """Every directed pair that is not to be left alone."""
        return [
            (one, other)
            for one, other in plan.order_directed_pairs(self._gpus)
            if not {_key(one, other), _key(other, one)} & self._skip
        ]

    def _links(self, source: Gpu, target: Gpu) -> frozenset[Any]:
        ends = (source.address, target.address)
        # Atomic operations between GPUs go over NVLink; where NVML sees none, they do not.
        nvlink = ends in self._atomics and self._counters is not None and self._counters.have_nvlink(ends)
        return plan.list_links(self._places.get(ends[0]), self._places.get(ends[1]), ends, nvlink)

    def _directed_rounds(self) -> list[list[tuple[Gpu, Gpu]]]:
        """Directed pairs that share neither a GPU nor a link, so that one does not slow another down."""
        pairs = self._planned_pairs()
        if self._one_by_one:
            return [[pair] for pair in pairs]
        return plan.plan_rounds(pairs, {pair: self._links(*pair) for pair in pairs})

    def _rounds(self) -> list[list[tuple[Gpu, Gpu]]]:
        """Unordered pairs whose traffic of both directions shares neither a GPU nor a link."""
        kept = set(self._planned_pairs())
        pairs = [pair for pair in plan.order_pairs(self._gpus) if pair in kept]
        if self._one_by_one:
            return [[pair] for pair in pairs]
        links = {(one, other): self._links(one, other) | self._links(other, one) for one, other in pairs}
        return plan.plan_rounds(pairs, links)

    def _usable(self) -> list[tuple[Gpu, Gpu]]:
        """The pairs whose peer access could be enabled, which is tried once."""
        if self._enabled is None:
            self._enabled = self._enable()
        return self._enabled

    def _control(self) -> None:
        """Every pair with peer access off: the driver stages the copy through host memory.

        It must be slow, and right.
        """
        assert self._cuda and self._host
        for source, target in self._planned_pairs():
            if not self._wanted("pairs", _key(source, target), "control_latency_us"):
                continue
            if self._late([_key(source, target)]):
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
        for turn in self._directed_rounds():
            self._together(turn, "copy_engine", "control_copy", control=True)

    def _enable(self) -> list[tuple[Gpu, Gpu]]:
        usable = []
        for source, target in self._planned_pairs():
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

    def _delivered(self) -> None:
        assert self._host
        usable = self._usable()
        open_pairs = set(usable)
        for source, target in usable:
            key = _key(source, target)
            for method in deliver.METHODS:
                # A load is done by the target, through its own grant on the source.
                if (method == "sm_load" and (target, source) not in open_pairs) or not self._wanted(
                    "pairs", key, "delivered " + method
                ):
                    continue
                if self._late([key]):
                    continue
                self._begin("deliver by " + method, PAIR_LIMIT_S, [key])
                with _Recorded(self, source, target, "delivered"):
                    (target.enable(source) if method == "sm_load" else source.enable(target))
                    self._put(
                        deliver.check_delivery(source, target, method, self._host), "pairs", key, "delivered", method
                    )

    def _latency(self) -> None:
        assert self._cuda and self._host
        usable = self._usable()
        open_pairs = set(usable)
        for source, target in usable:
            key = _key(source, target)
            if not self._wanted("pairs", key, "latency_us") or self._late([key]):
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

    def _bandwidth(self) -> None:
        usable = self._usable()
        open_pairs = set(usable)
        best: dict[str, float] = {}
        for turn in self._directed_rounds():
            pairs = [pair for pair in turn if pair in open_pairs]
            best.update(self._together(pairs, "copy_engine", "copy"))
            self._together([pair for pair in pairs if pair[0].functions], "sm_store", "sm_store")
            self._together(
                [pair for pair in pairs if (pair[1], pair[0]) in open_pairs and pair[1].functions], "sm_load", "sm_load"
            )
        for turn in self._rounds():
            self._both_ways([(one, other) for one, other in turn if {(one, other), (other, one)} <= open_pairs])
        for gpu in self._gpus:
            self._put_link(gpu)  # now, while it has just worked: idle links slow down
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
        if not pairs or self._late([_key(*pair) for pair in pairs]):
            return {}
        self._begin("bandwidth " + name, PAIR_LIMIT_S, [_key(*pair) for pair in pairs])
        with _Recorded(self, *pairs[0], "bandwidth " + name):
            if not control:
                for source, target in pairs:
                    (target.enable(source) if method == "sm_load" else source.enable(target))
            size = min(min(source.size, target.size) for source, target in pairs)
            flows = [measure.Flow(source, target, method, size) for source, target in pairs]
            seconds = next(seconds for most, seconds in SAMPLE_SECONDS if len(self._gpus) <= most)
            budget = (3, measure.CONTROL_SAMPLE_SECONDS) if control else (measure.SAMPLES, seconds)
            figures = measure.measure_flows(self._cuda, flows, *budget)
            for pair, value in zip(pairs, figures):
                self._put(value, "pairs", _key(*pair), "bandwidth_gb_s", name)
            return {_key(*pair): value["median"] for pair, value in zip(pairs, figures)}
        return {}

    def _both_ways(self, pairs: Sequence[tuple[Gpu, Gpu]]) -> None:
        assert self._cuda
        pairs = [pair for pair in pairs if self._wanted("pairs", _key(*pair), "bandwidth_gb_s both_ways")]
        if not pairs or self._late([_key(*pair) for pair in pairs]):
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

    def _host_links(self) -> None:
        """Each GPU and the host's memory: alone, near and far, then all GPUs at once with memory near each."""
        assert self._cuda
        self._begin("allocate page-locked memory", CONTEXT_LIMIT_S)
        nodes = places.read_nodes(self._root)
        near = [(self._places.get(gpu.address) or {}).get("numa_node") for gpu in self._gpus]
        buffers = host_links.HostBuffers(self._cuda, self._gpus, near, nodes)
        self._put(buffers.facts, "host_memory")
        chosen = {gpu: buffers.list_nodes(gpu) for gpu in self._gpus}
        count = len(self._gpus)
        for gpu in self._gpus:
            if not self._wanted("host_links", gpu.address, "alone") or self._late([gpu.address]):
                continue
            self._begin("host link", PAIR_LIMIT_S, [gpu.address])
            alone: dict[str, Any] = {}
            for direction in host_links.DIRECTIONS:
                flows = {node: buffers.flow(gpu, direction, node) for node in chosen[gpu]}
                alone[direction] = {
                    node: host_links.measure_host_flows(self._cuda, [flow], count)[0] for node, flow in flows.items()
                }
            self._put_link(gpu)
            self._put(alone, "host_links", gpu.address, "alone")
        together = [gpu for gpu in self._gpus if chosen[gpu]]
        wanted = any(self._wanted("host_links", gpu.address, "at_once") for gpu in together)
        names = [gpu.address for gpu in together]
        if count > 1 and wanted and not self._late([name + " at once" for name in names]):
            self._begin("host links, all at once", PAIR_LIMIT_S, names)
            for direction in host_links.DIRECTIONS:
                flows_of_all = [buffers.flow(gpu, direction, chosen[gpu][0]) for gpu in together]
                figures = host_links.measure_host_flows(self._cuda, flows_of_all, count)
                for name, figure in zip(names, figures):
                    self._put({direction: figure}, "host_links", name, "at_once")
        buffers.close()

    def _put_link(self, gpu: Gpu) -> None:
        self._put(places.read_link(gpu.address, self._root), "devices", gpu.address, "link")

    def _under_load(self) -> None:
        """Only where all pairs are usable: a mixture of staged and direct transfers would measure neither."""
        assert self._cuda and self._host
        usable = self._usable()
        complete = len(usable) == len(self._gpus) * (len(self._gpus) - 1)
        if not complete:
            return
        for source, target in usable:
            source.enable(target)
        if any(len(gpu.peers) < len(self._gpus) - 1 for gpu in self._gpus):
            return  # more GPUs than the driver allows peers
        every = [_key(*pair) for pair in usable]
        if self._wanted("all_at_once", "", "") and not self._late(["all pairs at once"]):
            self._begin("all pairs at once", PAIR_LIMIT_S, every)
            self._put(load.load_every_pair(self._cuda, self._gpus, self._host), "all_at_once")
        if len(self._gpus) < 3:
            return
        for gpu in self._gpus:
            if self._wanted("many_to_one", gpu.address, "") and not self._late(["all to " + gpu.address]):
                self._begin("all write to one", PAIR_LIMIT_S, [key for key in every if key.endswith(gpu.address)])
                found = load.load_one_target(self._cuda, self._gpus, gpu, self._host)
                self._put(found, "many_to_one", gpu.address)
        for gpu in self._gpus:
            if self._wanted("one_to_many", gpu.address, "") and not self._late([gpu.address + " to all"]):
                self._begin("one writes to all", PAIR_LIMIT_S, [key for key in every if key.startswith(gpu.address)])
                found = load.load_one_source(self._cuda, self._gpus, gpu, self._host)
                self._put(found, "one_to_many", gpu.address)

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


def read_options() -> dict[str, Any]:
    """The line of JSON that the parent writes first, and not a byte behind it."""
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(3)
        line += piece
    found: dict[str, Any] = json.loads(line)
    return found


def main() -> None:
    options = read_options()
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
