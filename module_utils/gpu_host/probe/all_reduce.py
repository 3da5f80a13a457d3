"""A checked all-reduce over all GPUs by NCCL's own library, in three arms.

``configured``: one process per GPU, as engines run it, with P2P as configured. ``p2p_disabled``: the same with
NCCL_P2P_DISABLE=1, the control. ``one_process``: all GPUs in one process, where NCCL takes another way to the peers.
A wrong value, a hang and a transport that NCCL did not take through P2P are all found here and nowhere else.
"""

from __future__ import annotations

import glob
import os
import re
import socket
import sys
import time
from collections.abc import Sequence
from typing import Any

from ..evidence import values
from ..nvidia import nccl_log
from . import rank_processes
from .nccl_library import find_library
from .rank_processes import KEPT_LINES, START_LIMIT_S, read_messages, read_text
from .worker_run import PACKAGES, read_signature

COLLECTIVE_COMMAND = ("p2p_collective",)  # the name under which a bundle holds the result
SIZES = (12 * 1024, 512 * 1024, 64 << 20, 256 << 20)  # 512 KiB: nccl#2418 fails from there on and passes below
ARM_LIMIT_S = 90.0  # of one arm, its start not counted
STEP_LIMIT_S = 15.0  # of one all-reduce and its repeats
JOIN_LIMIT_S = 40.0  # until all ranks have made their communicator
AT_ONCE = 8  # GPUs: with more, so many processes start that they are in one another's way
ARMS: dict[str, dict[str, str]] = {"configured": {}, "p2p_disabled": {"NCCL_P2P_DISABLE": "1"}, "one_process": {}}
ONE_PROCESS = "one_process"
RANKS = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_probe.collective import main; main()"
# Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (P2P/direct pointer|\S+)")
BUILT_WITH = re.compile(r"NCCL version (\d{1,3}\.\d{1,3}\.\d{1,3})[^+\s]{0,16}\+cuda(\d{1,3}\.\d{1,3})")
# Failures that say nothing about the host's P2P: no all-reduce could be begun.
NOT_BEGUN = frozenset({"library", "symbol", "memory", "taken"})


def make_command(library: str | None, python: str | None, environment: dict[str, str]) -> Any:
    """What `ProbeEvidence.commands` runs for COLLECTIVE_COMMAND.

    A function that returns `run_all_reduce`'s result, or ``{"reason": why not}``.
    """

    def measure() -> dict[str, Any]:
        gpus = [row["pci_address"] for row in read_signature()]
        if len(gpus) < 2:
            return {"reason": "nvidia-smi shows %d GPUs" % len(gpus)}
        found = find_library(library, python)
        if found["path"] is None:
            return {"reason": found["reason"]}
        return {**run_all_reduce(found["path"], gpus, environment, owner=found["owner"]), "source": found["source"]}

    return measure


def run_all_reduce(
    library: str,
    addresses: Sequence[str],
    environment: dict[str, str],
    sizes: Sequence[int] = SIZES,
    owner: int | None = None,
) -> dict[str, Any]:
    """All arms over the GPUs at `addresses`: ``{library, gpus, seconds, arms: {name: see `_Arm.run`}}``.

    All start at the same time, because most of an arm's time is the start of CUDA and NCCL, and measure one after
    another. One that failed before it was ready is tried again alone: the others may have been in its way (a GPU in
    exclusive mode, memory).
    """
    began = time.monotonic()
    make = {
        name: (library, addresses, {**environment, **more}, sizes, owner, name == ONE_PROCESS)
        for name, more in ARMS.items()
    }
    at_once = len(addresses) <= AT_ONCE
    arms = {name: _Arm(*given) for name, given in make.items()} if at_once else {}
    found: dict[str, Any] = {}
    try:
        for arm in arms.values():
            arm.start()
        for name, given in make.items():
            if not at_once:
                arms[name] = _Arm(*given)
            found[name] = arms[name].run()
            if not at_once or found[name]["state"] != "finished":
                arms[name].end()
    finally:
        for arm in arms.values():
            arm.release()
        for arm in arms.values():
            arm.end()
    for name, given in make.items():
        if at_once and found[name]["state"] == "failed" and not found[name]["ready"]:
            alone = _Arm(*given)
            try:
                found[name] = alone.run()
            finally:
                alone.end()
    return {
        "library": library,
        "gpus": len(addresses),
        "seconds": round(time.monotonic() - began, 1),
        "arms": found,
    }


def summarise_all_reduce(raw: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """What `run_all_reduce` returned, as facts, or why there is nothing.

    ``{ran, reason, verdict, explanation, python, library, source, nccl, gpus, seconds, arms, failure, wrong,
    late_ranks, pairs_without_p2p, diagnostics}``.

    verdict: ok | wrong_values | hangs | fails (each with P2P as configured and not without it) | inconclusive (the
    control fails too) | None (no size, or one that does not say whether its values are right).
    ``ran``: None where no arm could begin (no memory, a library that does not load): that says nothing about P2P.
    ``failure``: what the first failing arm told (`_Arm.run`). ``python``: of the versions that used PyTorch's NCCL.
    ``pairs_without_p2p``: None where NCCL's log names no transport. ``diagnostics``: lines of NCCL's own
    (NCCL_RUN_DIAGNOSTICS, 2.31 and newer) that report something; None where it was not asked for.
    """
    names = ("verdict", "explanation", "python", "library", "source", "nccl", "gpus", "seconds", "failure")
    result: dict[str, Any] = {"ran": raw is not None, "reason": reason, **dict.fromkeys((*names, "diagnostics"))}
    result.update(arms={}, wrong=[], late_ranks=[], pairs_without_p2p=[])
    if raw is None:
        return result
    if not isinstance(raw.get("arms"), dict) or not all(isinstance(arm, dict) for arm in raw["arms"].values()):
        return {**result, "ran": False, "reason": "its result has another shape than this version writes"}
    result.update({name: raw.get(name) for name in ("python", "library", "source", "gpus", "seconds")})
    result.update(reason=None, arms=raw.get("arms") or {})
    configured, control, together = (result["arms"].get(name) or {} for name in ARMS)
    tried = {"configured": configured, **({ONE_PROCESS: together} if together else {})}
    result["nccl"] = configured.get("nccl") or together.get("nccl")
    result["wrong"] = [
        _describe_wrong(name, size, found)
        for name, arm in tried.items()
        for size, found in (arm.get("sizes") or {}).items()
        if (found or {}).get("wrong")
    ]
    result["pairs_without_p2p"] = _pairs_without_p2p(configured)
    told = [line for arm in tried.values() for line in arm.get("diagnostics") or ()]
    if any(arm.get("diagnostics") is not None for arm in tried.values()):
        result["diagnostics"] = told
    bad = [arm for arm in tried.values() if arm.get("state") != "finished"]
    result["failure"] = next((arm["failure"] for arm in (*bad, control) if arm.get("failure")), None)
    result["late_ranks"] = sorted({rank for arm in bad for rank in (arm.get("ras") or {}).get("late_ranks") or ()})
    kinds = {(arm.get("failure") or {}).get("kind") for arm in (*tried.values(), control) if arm}
    if bad and kinds and kinds <= NOT_BEGUN:
        return {**result, "ran": None, "reason": configured.get("detail") or "no arm of it could begin"}
    sizes = [found for arm in tried.values() for found in (arm.get("sizes") or {}).values()]
    proven = all(
        arm.get("sizes") and all((found or {}).get("wrong") is not None for found in arm["sizes"].values())
        for arm in tried.values()
    )
    control_bad = control.get("state") != "finished" or any(
        (found or {}).get("wrong") for found in (control.get("sizes") or {}).values()
    )
    if (bad or result["wrong"]) and control_bad:
        result["verdict"] = "inconclusive"
    elif result["wrong"]:
        result["verdict"] = "wrong_values"
    elif bad:
        hung = any(arm.get("state") in ("hung", "left_behind") for arm in bad)
        result["verdict"] = "hangs" if hung else "fails"
    elif sizes and proven:
        result["verdict"] = "ok"
    if bad or result["wrong"]:
        said = [
            part
            for arm in bad
            for part in (arm.get("detail"), *(arm.get("warnings") or [])[:1], *(arm.get("errors") or [])[:1])
        ]
        result["explanation"] = "; ".join([*result["wrong"], *filter(None, said)])
    return result


def _describe_wrong(arm: str, size: str, found: dict[str, Any]) -> str:
    where = " in one process" if arm == ONE_PROCESS else ""
    gpus = " on %s" % ", ".join(found["wrong_gpus"]) if found.get("wrong_gpus") else ""
    first = (
        ", the first at %s: %s in place of %s" % (found["first_wrong"], found["got"], found["wanted"])
        if found.get("got") is not None
        else ""
    )
    return "%s bytes%s: %d wrong elements%s%s" % (size, where, found["wrong"], gpus, first)


def _pairs_without_p2p(arm: dict[str, Any]) -> list[str] | None:
    transports = {pair: [way for way in ways or () if way] for pair, ways in (arm.get("transports") or {}).items()}
    found = [
        "%s via %s" % (pair, ", ".join(ways))
        for pair, ways in transports.items()
        if not any("P2P" in way for way in ways)
    ]
    return (found or None) if not all(transports.values()) or not transports else found


class _Arm(rank_processes.RankProcesses):
    """One arm: its processes, from their start to their end."""

    def __init__(
        self,
        library: str,
        addresses: Sequence[str],
        environment: dict[str, str],
        sizes: Sequence[int],
        owner: int | None,
        one_process: bool,
    ) -> None:
        everyone = list(range(len(addresses)))
        ranks = [everyone] if one_process else [[rank] for rank in everyone]
        self._port = _free_port()
        super().__init__(ranks, addresses, owner, self._port)
        self._library, self._environment, self._sizes = library, environment, list(sizes)

    def launch(self, number: int) -> tuple[list[str], dict[str, str], dict[str, Any], dict[str, Any]]:
        environment = {**os.environ, **self._environment}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update(
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,ENV,P2P,SHM,NET",
            NCCL_DEBUG_FILE=os.path.join(self.directory, "nccl.%p"),
            NCCL_RAS_ADDR="127.0.0.1:%d" % self._port,
        )
        options = {
            "library": self._library,
            "ranks": self.ranks[number],
            "addresses": self.addresses,
            "sizes": self._sizes,
            "store": self.directory,
            "step_limit_s": STEP_LIMIT_S,
            "init_limit_s": START_LIMIT_S,
            "join_limit_s": JOIN_LIMIT_S,
            "owner": self.owner,
        }
        return [sys.executable, "-I", "-c", RANKS, PACKAGES], environment, options, {}

    def run(self) -> dict[str, Any]:
        """Start what is not started, let the ranks begin, and wait until they are done; the caller ends them.

        What `RankProcesses.wait` gives, and ``{ready, seconds, start_seconds, nccl, cuda, sizes, transports, warnings,
        diagnostics, errors}``.
        """
        if not self.processes:
            self.start()
        self.begin()
        result = self.wait(time.monotonic() + ARM_LIMIT_S)
        result["seconds"] = round(time.monotonic() - self.began, 1)
        return {**self._measured(), **result}

    def _measured(self) -> dict[str, Any]:
        """What the ranks wrote and what NCCL logged."""
        result: dict[str, Any] = {"ready": True, "start_seconds": None, "nccl": None, "cuda": None, "sizes": {}}
        for number in range(len(self.ranks)):
            ready = False
            for message in read_messages(self.path_of("out", number)):
                if message.get("ready"):
                    ready, result["nccl"] = True, message["nccl"]
                    result["start_seconds"] = max(result["start_seconds"] or 0.0, round(message["at"] - self.began, 2))
                elif "size_bytes" in message:
                    _merge(result["sizes"], message, self.addresses)
            result["ready"] = result["ready"] and ready
        logs = "\n".join(read_text(path) for path in sorted(glob.glob(os.path.join(self.directory, "nccl.*"))))
        version = BUILT_WITH.search(logs)
        if version:
            result["nccl"], result["cuda"] = result["nccl"] or version[1], version[2]
        result["transports"] = parse_transports(logs, dict(enumerate(self.addresses)))
        result["warnings"] = sorted(
            {line.partition("NCCL WARN ")[2].strip()[:300] for line in logs.splitlines() if "NCCL WARN " in line}
        )[:KEPT_LINES]
        told = "\n".join(read_text(self.path_of("out", number)) for number in range(len(self.ranks)))
        result["diagnostics"] = nccl_log.find_diagnostics(logs + "\n" + told)
        errors = [read_text(self.path_of("err", number)).strip().splitlines()[-1:] for number in range(len(self.ranks))]
        result["errors"] = sorted({line[0][:300] for line in errors if line})[:KEPT_LINES]
        return result


def parse_transports(log: str, ranks: dict[int, str]) -> dict[str, list[str]]:
    """What NCCL says it uses for each directed pair, by PCI address:

    ``{"0000:01:00.0->0000:11:00.0": ["P2P/CUMEM"]}``.
    """
    found: dict[str, set[str]] = {}
    for source, target, way in CHANNEL.findall(log):
        name = "%s->%s" % tuple(ranks.get(values.number_in_name(rank), rank) for rank in (source, target))
        found.setdefault(name, set()).add(way.strip())
    return {name: sorted(ways) for name, ways in sorted(found.items())}


def _merge(sizes: dict[str, Any], message: dict[str, Any], addresses: Sequence[str]) -> None:
    """The slowest rank's times count; one rank's wrong values are wrong.

    ``{wrong, first_wrong, got, wanted, checked, wrong_gpus, seconds, latency_us, algorithm_bandwidth_gb_s,
    bus_bandwidth_gb_s, iterations, rounds}``: `wrong` counts elements over all ranks; `checked` says after which
    all-reduce.
    """
    entry = sizes.setdefault(
        str(message["size_bytes"]),
        {"wrong": 0, "wrong_gpus": [], "seconds": [], **dict.fromkeys(("first_wrong", "got", "wanted", "checked"))},
    )
    if message["wrong"]:
        if not entry["wrong"]:
            entry.update({key: message.get(key) for key in ("first_wrong", "got", "wanted", "checked")})
        entry["wrong_gpus"].append(addresses[message["rank"]])
    entry["wrong"] += message["wrong"]
    if sum(message["seconds"]) >= sum(entry["seconds"]):
        entry["seconds"] = message["seconds"]
    seconds = sorted(entry["seconds"])
    if seconds:
        middle = max(seconds[len(seconds) // 2], 1e-9)
        share = 2 * (len(addresses) - 1) / len(addresses)  # bus bandwidth as nccl-tests reckons it
        entry["latency_us"] = {
            "median": round(middle * 1e6, 2),
            "min": round(seconds[0] * 1e6, 2),
            "max": round(seconds[-1] * 1e6, 2),
        }
        entry["algorithm_bandwidth_gb_s"] = round(message["size_bytes"] / middle / 1e9, 2)
        entry["bus_bandwidth_gb_s"] = round(share * message["size_bytes"] / middle / 1e9, 2)
        entry["iterations"], entry["rounds"] = len(seconds), message.get("rounds")


def _free_port() -> int:
    """A port of this machine that nobody listens on: NCCL's own, 28028, may be a server's."""
    with socket.socket() as one:
        one.bind(("127.0.0.1", 0))
        port: int = one.getsockname()[1]
        return port
