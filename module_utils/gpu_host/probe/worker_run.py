"""Runs the probe's worker in a child process and survives everything that CUDA can do to it.

The parent never loads libcuda. Each stage that the child announces has a time limit; a child that overstays is killed,
and one that cannot be killed is left behind and described. What it was about is then left out, and a new child does the
rest.
"""

from __future__ import annotations

import json
import os
import selectors
import signal
import subprocess
import sys
import time
from typing import Any, Callable

from ..evidence.commands import KILL_GRACE_SECONDS, describe_stuck, open_output
from ..evidence.interface import FAILED, NOT_CAPTURED, Evidence, Outcome
from ..evidence.live import LiveEvidence
from ..evidence.sides import is_only_pieces
from . import cuda_results

PROBE_COMMAND = ("p2p_probe",)  # the name under which a bundle holds the probe's result
# What the probe asks before it touches a GPU, and nothing else does: where a bundle holds one of them, it was to run.
APPS_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,process_name,used_memory", "--format=csv,noheader,nounits")
GPUS_COMMAND = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,memory.used,utilization.gpu,mig.mode.current",
    "--format=csv,noheader,nounits",
)
# The directory above the child's package: a real one, or one inside the zip file in which Ansible sends a module.
PACKAGES = os.path.dirname(os.path.dirname(os.path.dirname(os.path.abspath(__file__))))
WORKER = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_probe.worker import main; main()"
RESTARTS_AT_MOST = 5
LEAST_SHARE_AFTER_A_HANG = 0.5  # of the budget, for what is left after a child that hung
STDERR_BYTES = 2000
# Nothing that follows can work when one of these fails.
FIRST_STAGES = ("start", "load libcuda.so.1", "cuInit", "list devices", "allocate host memory")
SIGNATURE_COMMAND = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,utilization.gpu,power.draw,memory.used",
    "--format=csv,noheader,nounits",
)


def was_to_run(evidence: Evidence) -> bool:
    """Whether a bundle was made with the probe, so that a result that it lacks is one that was lost."""
    if is_only_pieces(evidence):
        return evidence.run(PROBE_COMMAND).ok
    return any(evidence.run(argv).status != NOT_CAPTURED for argv in (PROBE_COMMAND, APPS_COMMAND, GPUS_COMMAND))


class ProbeEvidence(LiveEvidence):
    """The live host, on which the command `p2p_probe` runs the probe.

    A bundle holds its answer like that of any other command.
    """

    def __init__(
        self,
        options: dict[str, Any],
        limit_s: float,
        python: str = sys.executable,
        unanswered: dict[str, str] | None = None,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        super().__init__(unanswered=unanswered)
        self._options, self._limit_s, self._python, self._progress = options, limit_s, python, progress
        self.taken: str | None = None  # why the GPUs are left alone, whatever nvidia-smi shows
        # argv -> a function that returns what the command would print as JSON
        self.commands: dict[tuple[str, ...], Any] = {PROBE_COMMAND: self._probe}

    def only_initialise(self, why: str = "") -> None:
        """Make no context: something else works on the GPUs. `why` is recorded where nvidia-smi would not say it."""
        self._options["only_initialise"] = True
        if why:
            self._options["left_alone"] = why

    def run(self, argv: Any, timeout: float = 30.0) -> Outcome:
        own = self.commands.get(tuple(argv))
        if own is None:
            return super().run(argv, timeout)
        began = time.monotonic()
        try:
            text = json.dumps(own(), sort_keys=True)
        except OSError as error:  # no directory for its files, no process for it
            reason = "%s cannot be run: %s" % (argv[0], error.strerror or error)
            return Outcome(tuple(argv), FAILED, reason=reason)
        return Outcome(tuple(argv), "ok", rc=0, stdout=text.encode("ascii"), seconds=round(time.monotonic() - began, 3))

    def _probe(self) -> dict[str, Any]:
        return Probe(self._options, self._limit_s, self._python, self._progress).run()


class Probe:
    """One run of the probe: its raw result as a dictionary (see `probe.py`), from as many children as it takes.

    `progress` is told in a sentence when a phase begins, with its budget, and when a stage hung or broke.
    """

    def __init__(
        self,
        options: dict[str, Any],
        limit_s: float,
        python: str = sys.executable,
        progress: Callable[[str], None] | None = None,
    ) -> None:
        self._progress = progress or (lambda _text: None)
        self._options = dict(options)
        self._deadline = time.monotonic() + limit_s
        self._python = python
        self._blamed: list[str] = []
        self._seconds_before: dict[str, float] = {}
        self.raw: dict[str, Any] = {
            "cuda": None,
            "devices": {},
            "pairs": {},
            "loopback": {},
            "many_to_one": {},
            "one_to_many": {},
            "all_at_once": None,
            "host_links": {},
            "phases": {},
        }
        self.raw.update(events=[], stages={}, options={key: value for key, value in options.items() if key != "parent"})

    def run(self) -> dict[str, Any]:
        began = time.monotonic()
        skip: set[str] = set()
        done: set[str] = set()
        one_by_one = False
        for _ in range(RESTARTS_AT_MOST + 1):
            options = {**self._options, "skip": sorted(skip), "done": sorted(done | self._have())}
            options["one_by_one"] = one_by_one
            self._seconds_before = {name: phase.get("seconds") or 0.0 for name, phase in self.raw["phases"].items()}
            planned = sum(phase.get("budget_s") or 0.0 for phase in self.raw["phases"].values())
            if planned:  # a former child has used a part of it
                options["budget_s"] = max(LEAST_SHARE_AFTER_A_HANG * planned, planned - (time.monotonic() - began))
            child = _Child(self._python, options)
            event = child.watch(self._take, self._deadline, self.raw["stages"], self._tell)
            if event is None:
                break
            self._progress("the probe's stage '%s' %s" % (event["stage"], event["kind"].replace("_", " ")))
            self.raw["events"].append(event)
            stage, about = event["stage"], event["about"]
            if stage in FIRST_STAGES or event["kind"] in ("left_behind", "out_of_time"):
                break
            if stage == "clean up":
                break
            if len(about) == 1:
                skip |= self._blame(about[0], event)
            elif one_by_one or not stage.startswith("bandwidth"):
                done |= {"all_at_once  "}
                for address in self.raw["devices"]:
                    done |= {"many_to_one %s " % address, "one_to_many %s " % address}
                    done |= {"host_links %s at_once" % address} if stage.startswith("host links") else set()
            one_by_one = one_by_one or len(about) > 1
        self.raw["seconds"] = round(time.monotonic() - began, 2)
        return self.raw

    def _tell(self, phase: dict[str, Any]) -> None:
        self._progress(
            "phase %d of %d of the probe: %s, for which it has %.3g s"
            % (phase["number"], phase["of"], phase["phase"].replace("_", " "), phase["budget_s"])
        )

    def _blame(self, name: str, event: dict[str, Any]) -> set[str]:
        """Note the fault where it belongs; what to leave alone from now on.

        A GPU that two pairs failed with is left out itself.
        """
        fault = {**(event.get("error") or {}), "stage": event["stage"], "kind": event["kind"]}
        if "->" not in name:
            self.raw["devices"].get(name, {})["error"] = fault
            return {name}
        self.raw["pairs"].get(name, {})["error"] = fault
        ends = {address: sum(1 for key in self._blamed if address in key) for address in name.split("->")}
        self._blamed.append(name)
        # Both directions of one pair failing says nothing about which end it is; a third GPU does.
        others = {address for key in self._blamed for address in key.split("->")}
        worst = max(ends, key=lambda address: ends[address])
        if ends[worst] and len(others) > 2:
            self.raw["devices"].get(worst, {})["error"] = fault
            return {name, worst}
        return {name}

    def _take(self, path: list[str], value: Any) -> None:
        if path[0] == "phases":
            before = self._seconds_before.get(path[1])
            if before and "seconds" in value:
                value = {**value, "seconds": round(before + value["seconds"], 3)}
            if before is not None and "budget_s" in value:
                return  # what was planned for the first child stands
        place = self.raw
        for name in path[:-1]:
            place = place.setdefault(name, {})
        if isinstance(value, dict) and isinstance(place.get(path[-1]), dict):
            place[path[-1]].update(value)
        else:
            place[path[-1]] = value

    def _have(self) -> set[str]:
        """What need not be measured again, as the worker's option `done` wants it."""
        have = {"%s %s " % (load, address) for load in ("many_to_one", "one_to_many") for address in self.raw[load]}
        have |= {"host_links %s %s" % (name, part) for name, parts in self.raw["host_links"].items() for part in parts}
        if self.raw["all_at_once"]:
            have.add("all_at_once  ")
        for section in ("pairs", "loopback"):
            for key, parts in self.raw[section].items():
                have |= {"%s %s %s" % (section, key, part) for part in parts if part.endswith("latency_us")}
                for group in ("delivered", "bandwidth_gb_s"):
                    have |= {"%s %s %s %s" % (section, key, group, part) for part in parts.get(group) or ()}
        return have


class _Child:
    """One worker. `watch` returns None when it came to its end, else the event that stopped it::

        {stage, about, kind, seconds, detail, error, gpus}

    kind: hung (killed after its limit) | left_behind (it could not be killed) | crashed | lost (a CUDA fault that ends
    the process) | out_of_time.
    """

    def __init__(self, python: str, options: dict[str, Any]) -> None:
        self._errors = open_output()  # closed by watch()
        self._stage = "start"
        self._about: list[str] = []
        self._limit = 30.0
        self._began = time.monotonic()
        self._lost: dict[str, Any] | None = None
        self._ended = False
        self._process = subprocess.Popen(
            [python, "-I", "-c", WORKER, PACKAGES],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            cwd="/",
            start_new_session=True,
        )
        assert self._process.stdin
        line = json.dumps({**options, "parent": os.getpid()}) + "\n"
        try:
            self._process.stdin.write(line.encode("ascii"))
            self._process.stdin.flush()
        except BrokenPipeError:
            pass  # it ended at once; watch() says why

    def watch(
        self, take: Any, deadline: float, stages: dict[str, float], tell: Callable[[dict[str, Any]], None]
    ) -> dict[str, Any] | None:
        assert self._process.stdout and self._process.stdin
        descriptor = self._process.stdout.fileno()
        os.set_blocking(descriptor, False)
        rest = b""
        try:
            with selectors.DefaultSelector() as selector:
                selector.register(descriptor, selectors.EVENT_READ)
                while True:
                    stage_ends = self._began + self._limit
                    left = min(stage_ends, deadline) - time.monotonic()
                    if left <= 0:
                        return self._overdue("hung" if stage_ends <= deadline else "out_of_time")
                    if not selector.select(left):
                        continue
                    data = os.read(descriptor, 1 << 16)
                    if not data:
                        return self._finished()
                    *lines, rest = (rest + data).split(b"\n")
                    for line in lines:
                        self._hear(json.loads(line), take, stages, tell)
        finally:
            self._process.stdin.close()
            self._process.stdout.close()
            self._errors.close()

    def _hear(self, message: dict[str, Any], take: Any, stages: dict[str, float], tell: Any) -> None:
        if "put" in message:
            take(message["put"], message["value"])
        elif "phase" in message:
            tell(message)
        elif "lost" in message:
            self._lost = message["lost"]
        elif "begin" in message:
            now = time.monotonic()
            stages[self._stage] = round(stages.get(self._stage, 0.0) + now - self._began, 3)
            self._stage, self._about, self._limit, self._began = (
                message["begin"],
                message["about"],
                message["limit_s"],
                now,
            )

    def _event(self, kind: str, detail: str) -> dict[str, Any]:
        return {
            "stage": self._stage,
            "about": self._about,
            "kind": kind,
            "seconds": round(time.monotonic() - self._began, 1),
            "detail": detail,
            "error": self._lost,
            "gpus": None,
        }

    def _finished(self) -> dict[str, Any] | None:
        try:
            code = self._process.wait(KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            return self._overdue("hung")  # it closed its output and still exists: stuck on its way out
        if code == 0:
            return None
        if self._lost:
            return self._event("lost", "%s returned %s" % (self._lost["function"], self._lost["name"]))
        self._errors.seek(0)
        said = self._errors.read()[-STDERR_BYTES:].decode("utf-8", "replace").strip()
        ending = "signal %s" % signal.Signals(-code).name if code < 0 else "exit status %d" % code
        return self._event("crashed", "%s%s" % (ending, ": " + said if said else ""))

    def _overdue(self, kind: str) -> dict[str, Any]:
        pid = self._process.pid
        where = describe_stuck(pid)
        event = self._event(kind, "pid %d, %s" % (pid, where))
        if self._stage not in FIRST_STAGES:
            event["gpus"] = read_signature()
        try:
            os.killpg(pid, signal.SIGKILL)
        except OSError:
            self._process.kill()
        try:
            self._process.wait(KILL_GRACE_SECONDS)
        except subprocess.TimeoutExpired:
            event["kind"] = "left_behind"
            event["detail"] = "pid %d ignores SIGKILL and is left behind; %s" % (pid, describe_stuck(pid))
        return event


def read_signature() -> list[dict[str, Any]]:
    """What tells a spinning GPU from a waiting host, now:

    ``[{pci_address, utilization_percent, power_w, memory_used_mib}]``.
    """
    answer = LiveEvidence().run(SIGNATURE_COMMAND, 10.0)
    rows = [[cell.strip() for cell in line.split(",")] for line in answer.text.splitlines()] if answer.ok else []
    names = ("utilization_percent", "power_w", "memory_used_mib")
    return [
        {
            "pci_address": cuda_results.normalise_address(row[0]),
            **{name: cuda_results.parse_number(cell) for name, cell in zip(names, row[1:])},
        }
        for row in rows
        if len(row) == 4
    ]
