"""One rank of the engine's own all-reduce (SGLang's and vLLM's custom all-reduce), against the exact sum.

A program of its own: it is copied to the host and run by the engine's Python, with PyTorch and the engine and without
the rest of this package. It makes the object as the engine does, by the engine's own rules, so that what the engine
would not use is not judged. Read in SGLang 0.5.17 (srt/distributed/device_communicators/custom_all_reduce*.py) and vLLM
0.28 (distributed/device_communicators/custom_all_reduce.py).

Standard input: one line of JSON, then kept open: ``engine`` (sglang | vllm), ``rank``, ``world``, ``store`` (a file for
the rendezvous), ``sizes`` and ``most_bytes`` (to try), ``calls`` and ``replays`` (of each size), ``step_limit_s``,
``start_limit_s``, ``parent``. Standard output, JSON lines::

    {"stage": "import sglang", "at": 12.5, "limit_s": 120}
    {"found": {"engine": "sglang", "version": "0.5.17", "kind": "CustomAllReduceV2", "used": true, "why_not": null,
               "largest_bytes": 16777216}}
    {"rank": 0, "size_bytes": 4096, "how": "eager", "wrong": 0, "first_wrong": null, "got": null, "wanted": null,
     "calls": 48, "wrong_calls": 0, "seconds": null}
    {"failed": {"kind": "engine", "name": "ImportError", "text": "…"}}
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import inspect
import io
import json
import logging
import os
import re
import signal
import sys
import threading
import time
from typing import Any

CALL_BYTES = 64 << 20  # in a row of calls at most
GRAPH_CALLS = 4
TIMED_REPLAYS = 25
PERIOD = 8191
EXIT_FAILED = 4
MODULES = {
    "sglang": ("sglang.srt.distributed.parallel_state", "sglang.srt.distributed.device_communicators"),
    "vllm": ("vllm.distributed.parallel_state", "vllm.distributed.device_communicators"),
}


class Said(logging.Handler):
    """Keeps what the engine says of its all-reduce: why it does not use it."""

    def __init__(self) -> None:
        super().__init__(logging.WARNING)
        self.lines: list[str] = []

    def emit(self, record: logging.LogRecord) -> None:
        with contextlib.suppress(Exception):
            self.lines.append(record.getMessage())

    def reason(self) -> str | None:
        told = [line for line in self.lines if re.search(r"all.?reduce|p2p", line, re.IGNORECASE)]
        return told[-1][:300] if told else None


class Rank:
    def __init__(self, options: dict[str, Any]) -> None:
        self._options = options
        self._rank, self._world = int(options["rank"]), int(options["world"])
        self._limit_s = float(options["step_limit_s"])
        self._start_limit_s = float(options["start_limit_s"])
        self._said = Said()

    def run(self) -> None:
        engine = self._options["engine"]
        begin_stage("import torch", self._start_limit_s)
        self._torch = importlib.import_module("torch")
        self._torch.cuda.set_device(self._rank)
        begin_stage("import %s" % engine, self._start_limit_s)
        package = importlib.import_module(engine)
        state = importlib.import_module(MODULES[engine][0])
        logging.getLogger().addHandler(self._said)
        logging.getLogger(engine).addHandler(self._said)
        begin_stage("join the other ranks", self._start_limit_s)
        with self._engine_settings(engine):
            state.init_distributed_environment(
                world_size=self._world,
                rank=self._rank,
                distributed_init_method="file://" + self._options["store"],
                local_rank=self._rank,
                backend="nccl",
            )
            begin_stage("make the engine's all-reduce", self._start_limit_s)
            try:
                self._own = self._make(state.get_world_group(), MODULES[engine][1])
            except Exception as error:  # the engine, too, goes on with NCCL then
                self._own = None
                self._said.lines.append("its all-reduce cannot be made: %s: %s" % (type(error).__name__, error))
        used = self._own is not None and not getattr(self._own, "disabled", True)
        found = {
            "engine": engine,
            "version": str(getattr(package, "__version__", None)),
            "kind": type(self._own).__name__ if self._own is not None else None,
            "used": used,
            "why_not": None if used else self._said.reason() or "it switched itself off",
            "largest_bytes": self._find_largest() if used else None,
        }
        say_message({"rank": self._rank, "found": found})
        if used:
            largest = found["largest_bytes"] or 0
            wanted = {*self._options["sizes"], largest // 32 * 16, largest}
            for size in sorted(size for size in wanted if 0 < size <= largest):
                self._eager(size)
                self._graph(size)
        begin_stage("end", 30)

    @contextlib.contextmanager
    def _engine_settings(self, engine: str) -> Any:
        """vLLM wants its configuration around what makes its groups."""
        with contextlib.ExitStack() as stack:
            if engine == "vllm":
                with contextlib.suppress(Exception):
                    config = importlib.import_module("vllm.config")
                    stack.enter_context(config.set_current_vllm_config(config.VllmConfig()))
            yield

    def _make(self, world: Any, package: str) -> Any:
        module = importlib.import_module(package + ".custom_all_reduce")
        device = self._torch.device("cuda", self._rank)
        dispatch = getattr(module, "dispatch_custom_allreduce", None)
        if dispatch is None:
            chosen = module.CustomAllreduce
        elif inspect.signature(dispatch).parameters:
            chosen = dispatch(group=world.cpu_group, device=device)
        else:
            chosen = dispatch()
        made = chosen(group=world.cpu_group, device=device)
        if hasattr(made, "finalize_p2p"):
            made.finalize_p2p()
        return made

    def _find_largest(self) -> int:
        """Bytes up to which the engine takes its own way and not NCCL's; it asks the tensor alone."""
        most = int(self._options["most_bytes"])
        whole = self._torch.empty(most // 2, dtype=self._torch.bfloat16, device="cuda")
        taken, refused = 0, most // 16 + 1  # in units of 16 bytes
        while refused - taken > 1:
            middle = (taken + refused) // 2
            # A copy: some engines ask whether the tensor fills its storage.
            if self._own.should_custom_ar(whole[: middle * 8].clone()):
                taken = middle
            else:
                refused = middle
        return taken * 16

    def _values(self, size: int, salt: int) -> tuple[Any, Any]:
        """(what this rank gives, the sum): whole numbers below 257, exact in bfloat16 in any order."""
        torch = self._torch
        ramp = torch.arange(size // 2, device="cuda") % PERIOD
        most = 256 // self._world
        given = [(ramp * (2 * rank + 1) + salt * 7 + rank * 3) % most for rank in range(self._world)]
        return given[self._rank].to(torch.bfloat16), sum(given).to(torch.bfloat16)

    def _eager(self, size: int) -> None:
        """Many calls in a row with other values each, and only then a look: what is read too early shows."""
        calls = max(4, min(int(self._options["calls"]), CALL_BYTES // size))
        begin_stage("the engine's all-reduce of %d bytes" % size, self._limit_s + 5)
        pairs = [self._values(size, call) for call in range(calls)]
        self._torch.cuda.synchronize()
        got = [self._own.custom_all_reduce(given) for given, _ in pairs]
        self._wait(size)
        self._tell(size, "eager", [wanted for _, wanted in pairs], got, None)

    def _time(self, size: int, graph: Any) -> float:
        """Seconds of one call in replays of a graph: from Python a call takes longer to launch than to do."""
        start, end = (self._torch.cuda.Event(enable_timing=True) for _ in range(2))
        graph.replay()
        start.record()
        for _ in range(TIMED_REPLAYS):
            graph.replay()
        end.record()
        self._wait(size)
        return float(start.elapsed_time(end)) / 1e3 / TIMED_REPLAYS / GRAPH_CALLS

    def _graph(self, size: int) -> None:
        """As in a captured decode step: some calls in one graph, replayed with other values each time."""
        if size > 1 << 20 or not hasattr(self._own, "capture"):
            return
        torch = self._torch
        begin_stage("the engine's all-reduce of %d bytes in a CUDA graph" % size, self._start_limit_s)
        inputs = [torch.zeros(size // 2, dtype=torch.bfloat16, device="cuda") for _ in range(GRAPH_CALLS)]
        graph = torch.cuda.CUDAGraph()
        try:
            with self._own.capture(), torch.cuda.graph(graph):
                outputs = [self._own.custom_all_reduce(one) for one in inputs]
        except Exception as error:  # an engine whose capture needs more than this
            say_message(
                {"rank": self._rank, "size_bytes": size, "how": "graph", "skipped": describe_error(error)["text"]}
            )
            return
        begin_stage("replays of a CUDA graph with the engine's all-reduce of %d bytes" % size, self._limit_s + 5)
        wrong: list[tuple[Any, Any]] = []
        right = 0
        for replay in range(int(self._options["replays"])):
            pairs = [self._values(size, 1000 + replay * GRAPH_CALLS + at) for at in range(GRAPH_CALLS)]
            for one, (given, _) in zip(inputs, pairs):
                one.copy_(given)
            graph.replay()
            self._wait(size)
            for out, (_, wanted) in zip(outputs, pairs):
                if torch.equal(out, wanted):
                    right += 1
                else:
                    wrong.append((wanted, out.clone()))
        seconds = self._time(size, graph)
        self._tell(size, "graph", [one for one, _ in wrong], [one for _, one in wrong], seconds, right)

    def _tell(
        self, size: int, how: str, wanted: list[Any], got: list[Any], seconds: float | None, right: int = 0
    ) -> None:
        message: dict[str, Any] = {"rank": self._rank, "size_bytes": size, "how": how, "seconds": seconds}
        message.update(wrong=0, wrong_calls=0, calls=right + len(got), first_wrong=None, got=None, wanted=None)
        for want, have in zip(wanted, got):
            places = (want != have).nonzero()
            count = int(places.numel())
            if count and not message["wrong"]:
                place = int(places[0].item())
                message.update(
                    first_wrong=place, got=make_plain(have[place].item()), wanted=make_plain(want[place].item())
                )
            message["wrong"] += count
            message["wrong_calls"] += bool(count)
        say_message(message)

    def _wait(self, size: int) -> None:
        ends = time.monotonic() + self._limit_s
        event = self._torch.cuda.Event()
        event.record()
        while not event.query():
            if time.monotonic() > ends:
                say_message({"overdue": "rank %d waits in the engine's all-reduce of %d bytes" % (self._rank, size)})
                threading.Event().wait()  # the parent describes it and ends us
            time.sleep(0.0005)


def make_plain(value: float) -> float | str:
    return value if abs(value) < 1e38 else str(value)


def describe_error(error: BaseException) -> dict[str, Any]:
    text = " ".join(str(error).split())[:400]
    memory = "out of memory" in text.lower()
    return {"kind": "memory" if memory else "engine", "function": None, "code": None, "name": type(error).__name__,
            "text": text or None}  # fmt: skip


def begin_stage(stage: str, limit_s: float) -> None:
    say_message({"stage": stage, "at": time.monotonic(), "limit_s": limit_s})


def say_message(message: dict[str, Any]) -> None:
    os.write(OUT[0], json.dumps(message).encode("ascii") + b"\n")


OUT = [1]  # the descriptor for what the parent hears


def watch_standard_input() -> None:
    while os.read(0, 4096):
        pass
    os._exit(3)


def main() -> None:
    line = b""
    while not line.endswith(b"\n"):
        piece = os.read(0, 1)
        if not piece:
            os._exit(3)
        line += piece
    options = json.loads(line)
    ctypes.CDLL(None).prctl(1, signal.SIGKILL, 0, 0, 0)  # PR_SET_PDEATHSIG
    if os.getppid() != int(options["parent"]):
        os._exit(3)
    threading.Thread(target=watch_standard_input, daemon=True).start()
    sys.stdin = io.StringIO()
    OUT[0] = os.dup(1)
    os.dup2(2, 1)  # what the engine and its libraries print goes elsewhere
    try:
        Rank(options).run()
    except Exception as error:  # whatever the engine raises: it is told, with the stage that was begun last
        say_message({"failed": describe_error(error)})
        os._exit(EXIT_FAILED)
    os._exit(0)


if __name__ == "__main__":
    main()
