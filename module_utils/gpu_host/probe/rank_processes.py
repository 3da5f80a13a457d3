"""The processes of one all-reduce, one for each rank or one for all: started, listened to, and ended in any case.

Each gets one line of JSON on its standard input, writes lines of JSON to its standard output, and says there what it is
about to do and how long that may take. A rank that overstays makes the whole a hang, which is described before it is
ended: which rank waits where, what the GPUs do, and what NCCL itself says of it.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from ..evidence import values
from ..evidence.commands import KILL_GRACE_SECONDS, describe_stuck
from ..nvidia import nccl_ras
from .worker_run import read_signature

START_LIMIT_S = 60.0  # until a process has told its first stage
READY_STAGE = "wait for the other arms"  # as gpu_probe/collective.py tells it
KEPT_LINES = 12
_KEYS = frozenset({"stage", "ready", "size_bytes", "overdue", "failed", "found", "done"})
EXPLAINED = {
    "library": "the library cannot be loaded",
    "symbol": "the library lacks a function, it is too old or no NCCL",
    "memory": "there is too little memory on a GPU",
    "taken": "another process holds a GPU for itself",
    "driver_too_old": "this NCCL was built for a newer CUDA than the driver has",
    "nccl_too_old": "this NCCL has no code for these GPUs, it is too old for them",
}


class RankProcesses:
    """`ranks`: those of each process. A subclass says how a process is started (`launch`)."""

    def __init__(
        self, ranks: list[list[int]], addresses: Sequence[str], owner: int | None, ras_port: int | None
    ) -> None:
        self.ranks, self.addresses, self.owner, self.ras_port = ranks, list(addresses), owner, ras_port
        self.directory = ""
        self.began = 0.0
        self.processes: list[subprocess.Popen[bytes]] = []

    def launch(self, number: int) -> tuple[list[str], dict[str, str], dict[str, Any], dict[str, Any]]:
        """(command, environment, options for its standard input, more arguments of Popen) of one process."""
        raise NotImplementedError

    def start(self) -> None:
        self.directory = tempfile.mkdtemp(prefix="gpu-host-collective-")
        if self.owner is not None:
            os.chown(self.directory, self.owner, -1)
        self.began = time.monotonic()
        for number in range(len(self.ranks)):
            command, environment, options, more = self.launch(number)
            with open(self.path_of("out", number), "wb") as out, open(self.path_of("err", number), "wb") as err:
                process = subprocess.Popen(
                    command,
                    stdin=subprocess.PIPE,
                    stdout=out,
                    stderr=err,
                    env=environment,
                    cwd=self.directory,
                    start_new_session=True,
                    **more,
                )
            self.processes.append(process)
            self._write(process, json.dumps({**options, "parent": os.getpid()}).encode("ascii") + b"\n")

    def path_of(self, name: str, number: int) -> str:
        return os.path.join(self.directory, "%s.%d" % (name, number))

    def begin(self) -> None:
        """Let the ranks do what they are there for."""
        for process in self.processes:
            self._write(process, b"go\n")

    @staticmethod
    def _write(process: subprocess.Popen[bytes], data: bytes) -> None:
        assert process.stdin
        try:
            process.stdin.write(data)
            process.stdin.flush()
        except (BrokenPipeError, ValueError):
            pass  # it has ended; its exit status says why

    def is_ready(self) -> bool:
        """Whether all ranks have joined and wait to begin."""
        return all(self._told(number).get("stage") == READY_STAGE for number in range(len(self.processes)))

    def wait(self, deadline: float) -> dict[str, Any]:
        """``{state: finished | failed | hung | left_behind, detail, failure, waiting, hang_signature, ras}``.

        `failure` ``{kind, stage, rank, pci_address, function, code, name, text}`` is the first that a rank told, or how
        it ended. `waiting`: by rank, where it waited while nothing went on. `ras`: what NCCL itself says of a hang (see
        `nccl_ras.summarise_status`).
        """
        result: dict[str, Any] = {
            "state": "finished", "detail": None, "failure": None, "waiting": [], "hang_signature": None, "ras": None,
        }  # fmt: skip
        while True:
            codes = [process.poll() for process in self.processes]
            told = [self._told(number) for number in range(len(self.processes))]
            failed = [number for number, code in enumerate(codes) if code]
            if failed:
                # The one that said why first: where one rank fails, the others lose their connection to it.
                first = min(failed, key=lambda number: _rank_of_failure(codes[number], told[number]))
                failure = self._failure(first, codes[first], told[first])
                return {**result, "state": "failed", "failure": failure, "detail": describe_failure(failure)}
            if all(code == 0 or said.get("done") for code, said in zip(codes, told)):
                return result
            now = time.monotonic()
            if now > deadline or any(
                said.get("overdue") or now > said.get("at", now) + said.get("limit_s", START_LIMIT_S)
                for said, code in zip(told, codes)
                if code is None
            ):
                return {**result, **self._hang(told, codes)}
            time.sleep(0.02)

    def _told(self, number: int) -> dict[str, Any]:
        """The last stage that a process told, and what it said of its end:

        ``{stage, at, limit_s, overdue, failed, done}``. One that is done waits for the end of its standard input.
        """
        found: dict[str, Any] = {}
        for message in read_messages(self.path_of("out", number)):
            if "stage" in message:
                found.update(message)
            found.update({key: message[key] for key in ("overdue", "failed", "done") if key in message})
        return found

    def _failure(self, number: int, code: int | None, told: dict[str, Any]) -> dict[str, Any]:
        rank = self.ranks[number][0]
        failure: dict[str, Any] = dict.fromkeys(("kind", "function", "code", "name", "text"))
        failure.update(told.get("failed") or {})
        if not told.get("failed"):
            failure.update(kind="signal" if (code or 0) < 0 else "exit", name=_ending(code), text=told.get("stage"))
        failure["stage"] = told.get("stage")
        only = len(self.ranks[number]) == 1
        failure.update(rank=rank if only else None, pci_address=self.addresses[rank] if only else None)
        return failure

    def _hang(self, told: list[dict[str, Any]], codes: list[int | None]) -> dict[str, Any]:
        """What there is to say of ranks that wait; then they are ended."""
        now = time.monotonic()
        waiting = [
            "%s waits in '%s' for %.0f s" % (self._name(number), said.get("stage", "start"), now - said.get("at", now))
            for number, (said, code) in enumerate(zip(told, codes))
            if code is None
        ]
        seen = read_signature()
        answer = nccl_ras.ask_status("127.0.0.1", self.ras_port) if self.ras_port else None
        ras = nccl_ras.summarise_status(answer)
        stuck = next((number for number, code in enumerate(codes) if code is None), 0)
        where = describe_stuck(self.processes[stuck].pid)
        state = "hung" if self.end_processes() else "left_behind"
        late = [*(ras["late"] or ()), *(ras["missing"] or ())]
        said = "; NCCL says: %s" % "; ".join(late[:KEPT_LINES]) if late else ""
        detail = "%s%s (process %d: %s)" % ("; ".join(waiting[:KEPT_LINES]), said, self.processes[stuck].pid, where)
        return {"state": state, "detail": detail, "waiting": waiting, "hang_signature": seen, "ras": ras}

    def _name(self, number: int) -> str:
        ranks = self.ranks[number]
        if len(ranks) > 1:
            return "the process with all ranks"
        return "rank %d (%s)" % (ranks[0], self.addresses[ranks[0]])

    def end_processes(self) -> bool:
        """Whether all are gone."""
        for process in self.processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except OSError:
                    process.kill()
        gone = True
        for process in self.processes:
            if process.stdin and not process.stdin.closed:
                with contextlib.suppress(OSError):  # what was to be written is lost with its reader
                    process.stdin.close()
            try:
                process.wait(KILL_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                gone = False
        return gone

    def release(self) -> None:
        """Let processes that are done give back their GPUs: they end with their standard input."""
        for process in self.processes:
            if process.stdin and not process.stdin.closed:
                with contextlib.suppress(OSError):
                    process.stdin.close()

    def end(self) -> None:
        self.release()
        ends = time.monotonic() + KILL_GRACE_SECONDS
        while any(process.poll() is None for process in self.processes) and time.monotonic() < ends:
            time.sleep(0.01)
        self.end_processes()
        if self.directory:
            shutil.rmtree(self.directory, ignore_errors=True)


def _rank_of_failure(code: int | None, told: dict[str, Any]) -> tuple[bool, bool, float]:
    """What sorts the cause before those that only lost their connection to it."""
    failed = told.get("failed") or {}
    return (code or 0) >= 0, failed.get("name") == "ncclRemoteError" or not failed, told.get("at", 0.0)


def describe_failure(failure: dict[str, Any]) -> str:
    """One sentence: which rank, which call, what it returned, what NCCL said of it, what that means."""
    who = "rank %d (%s)" % (failure["rank"], failure["pci_address"]) if failure["rank"] is not None else "the process"
    kind = str(failure["kind"])
    if kind in ("signal", "exit"):
        where = " in the stage '%s'" % failure["text"] if failure["text"] else ""
        return "%s ended with %s%s" % (who, failure["name"], where)
    call = "%s returned %s" % (failure["function"], failure["name"]) if failure["function"] else str(failure["name"])
    text = ": %s" % failure["text"] if failure["text"] else ""
    means = " (%s)" % EXPLAINED[kind] if kind in EXPLAINED else ""
    return "%s: %s%s%s" % (who, call, text, means)


def read_messages(path: str) -> list[dict[str, Any]]:
    messages = []
    for line in read_text(path).splitlines():
        try:
            message = values.json_value(line)
        except ValueError:
            continue  # what a library prints on standard output
        if isinstance(message, dict) and _KEYS & set(message):
            messages.append(message)
    return messages


def read_text(path: str) -> str:
    try:
        with open(path, "rb") as handle:
            return handle.read(1 << 23).decode("utf-8", "replace")
    except OSError:
        return ""


def _ending(code: int | None) -> str:
    if code is None or code >= 0:
        return "exit status %s" % code
    try:
        return "signal %s" % signal.Signals(-code).name
    except ValueError:
        return "signal %d" % -code
