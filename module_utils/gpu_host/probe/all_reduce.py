"""A checked all-reduce over all GPUs through NCCL: with P2P as configured, and with NCCL_P2P_DISABLE=1 as the control.

A wrong value, a hang and a transport that NCCL did not take through P2P are all found here and nowhere else.
"""

from __future__ import annotations

import glob
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from typing import Any

from ..evidence import values
from ..evidence.commands import KILL_GRACE_SECONDS, describe_stuck
from .worker_run import PACKAGES, read_signature

COLLECTIVE_COMMAND = ("p2p_collective",)  # the name under which a bundle holds the result
SIZES = (12 * 1024, 512 * 1024, 64 << 20, 256 << 20)  # 512 KiB: nccl#2418 fails from there on and passes below
ARM_LIMIT_S = 90.0
ARMS = {"configured": {}, "p2p_disabled": {"NCCL_P2P_DISABLE": "1"}}
RANK = "import sys; sys.path.insert(0, sys.argv[1]); from gpu_probe.collective import main; main()"
HAS_TORCH = "import importlib.util, sys; sys.exit(importlib.util.find_spec('torch') is None)"
# Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
CHANNEL = re.compile(r"Channel \d+(?:/\d+)? : (\d+)\[\w+\] -> (\d+)\[\w+\](?: \[\w+\])? via (P2P/direct pointer|\S+)")
KEPT_LINES = 12


def find_python(named: str | None) -> tuple[str | None, str]:
    """A Python that has PyTorch: the one that is named, else this one or `python3`. (path or None, why not)."""
    candidates = [named] if named else [sys.executable, shutil.which("python3") or ""]
    for path in filter(None, candidates):
        try:
            found = subprocess.run(
                [path, "-c", HAS_TORCH], capture_output=True, timeout=20, check=False, stdin=subprocess.DEVNULL
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            if named:
                return None, "%s does not run: %s" % (path, error)
            continue
        if found.returncode == 0:
            return path, ""
    return (
        None,
        "%s has no PyTorch" % named if named else "no Python with PyTorch was found; name the inference server's",
    )


def make_command(named_python: str | None, environment: dict[str, str]) -> Any:
    """What `ProbeEvidence.commands` runs for COLLECTIVE_COMMAND.

    A function that returns `run_all_reduce`'s result, or ``{"reason": why not}``.
    """

    def measure() -> dict[str, Any]:
        python, reason = find_python(named_python)
        gpus = len(read_signature())
        if python is None or gpus < 2:
            return {"reason": reason or "nvidia-smi shows %d GPUs" % gpus}
        return run_all_reduce(python, gpus, environment)

    return measure


def run_all_reduce(python: str, gpus: int, environment: dict[str, str], sizes: Sequence[int] = SIZES) -> dict[str, Any]:
    """Both arms: ``{python, gpus, arms: {configured: {...}, p2p_disabled: {...}}}``; see `_Arm.result`."""
    return {
        "python": python,
        "gpus": gpus,
        "arms": {name: _Arm(python, gpus, {**environment, **more}, sizes).run() for name, more in ARMS.items()},
    }


def summarise_all_reduce(raw: dict[str, Any] | None, reason: str | None) -> dict[str, Any]:
    """What `run_all_reduce` returned, as facts, or why there is nothing.

    ``{ran, reason, verdict, explanation, python, gpus, arms, wrong, pairs_without_p2p}``.

    verdict: ok | wrong_values | hangs | fails (each with P2P as configured and not without it) | inconclusive (the
    control fails too) | None (no size, or one that does not say whether its values are right).
    ``pairs_without_p2p``: None where NCCL's log names no transport.
    """
    result: dict[str, Any] = {
        "ran": raw is not None,
        "reason": reason,
        "verdict": None,
        "explanation": None,
        "python": None,
        "gpus": None,
    }
    result.update(arms={}, wrong=[], pairs_without_p2p=[])
    if raw is None:
        return result
    if not isinstance(raw.get("arms"), dict) or not all(isinstance(arm, dict) for arm in raw["arms"].values()):
        return {**result, "ran": False, "reason": "its result has another shape than this version writes"}
    result.update(reason=None, python=raw.get("python"), gpus=raw.get("gpus"), arms=raw.get("arms") or {})
    configured, control = (result["arms"].get(name) or {} for name in ARMS)
    wrong = {
        name: [size for size, found in (arm.get("sizes") or {}).items() if (found or {}).get("wrong")]
        for name, arm in result["arms"].items()
    }
    result["wrong"] = [
        "%s bytes: %d wrong elements" % (size, configured["sizes"][size]["wrong"])
        for size in wrong.get("configured") or ()
    ]
    transports = {
        pair: [way for way in ways or () if way] for pair, ways in (configured.get("transports") or {}).items()
    }
    result["pairs_without_p2p"] = [
        "%s via %s" % (pair, ", ".join(ways))
        for pair, ways in transports.items()
        if not any("P2P" in way for way in ways)
    ]
    if not all(transports.values()) or not transports:
        result["pairs_without_p2p"] = result["pairs_without_p2p"] or None
    sizes = list((configured.get("sizes") or {}).values())
    proven = bool(sizes) and all((found or {}).get("wrong") is not None for found in sizes)
    bad = bool(result["wrong"]) or configured.get("state") != "finished"
    control_bad = bool(wrong.get("p2p_disabled")) or control.get("state") != "finished"
    if bad and control_bad:
        result["verdict"] = "inconclusive"
    elif result["wrong"]:
        result["verdict"] = "wrong_values"
    elif bad:
        result["verdict"] = "hangs" if configured.get("state") in ("hung", "left_behind") else "fails"
    elif proven:
        result["verdict"] = "ok"
    said = [configured.get("detail"), *(configured.get("warnings") or [])[:1], *(configured.get("errors") or [])[:1]]
    result["explanation"] = "; ".join([*result["wrong"], *filter(None, said)]) if bad else None
    return result


class _Arm:
    def __init__(self, python: str, gpus: int, environment: dict[str, str], sizes: Sequence[int]) -> None:
        self._python, self._gpus, self._environment, self._sizes = python, gpus, environment, sizes
        self._processes: list[subprocess.Popen[bytes]] = []

    def run(self) -> dict[str, Any]:
        directory = tempfile.mkdtemp(prefix="gpu-host-collective-")
        began = time.monotonic()
        try:
            for rank in range(self._gpus):
                self._processes.append(self._start(rank, directory))
            state, detail, gpus = self._wait(began + ARM_LIMIT_S)
            seconds = round(time.monotonic() - began, 1)
            result = self._result(directory, failed=state != "finished")
            return {**result, "state": state, "detail": detail, "hang_signature": gpus, "seconds": seconds}
        finally:
            self._end()
            shutil.rmtree(directory, ignore_errors=True)

    def _start(self, rank: int, directory: str) -> subprocess.Popen[bytes]:
        environment = {**os.environ, **self._environment}
        environment.pop("CUDA_VISIBLE_DEVICES", None)
        environment.update(
            RANK=str(rank),
            WORLD_SIZE=str(self._gpus),
            CUDA_DEVICE_ORDER="PCI_BUS_ID",
            PROBE_STORE=os.path.join(directory, "store"),
            PROBE_PARENT=str(os.getpid()),
            PROBE_SIZES=",".join(map(str, self._sizes)),
            NCCL_DEBUG="INFO",
            NCCL_DEBUG_SUBSYS="INIT,ENV,P2P,SHM,NET",
            NCCL_DEBUG_FILE=os.path.join(directory, "nccl.%p"),
            PYTHONUNBUFFERED="1",
        )
        with (
            open(os.path.join(directory, "out.%d" % rank), "wb") as out,
            open(os.path.join(directory, "err.%d" % rank), "wb") as err,
        ):
            return subprocess.Popen(
                [self._python, "-c", RANK, PACKAGES],
                stdin=subprocess.PIPE,
                stdout=out,
                stderr=err,
                env=environment,
                cwd=directory,
                start_new_session=True,
            )

    def _wait(self, deadline: float) -> tuple[str, str | None, list[dict[str, Any]] | None]:
        """(finished | failed | hung | left_behind, detail, utilisation and power of the GPUs during a hang)."""
        while time.monotonic() < deadline:
            codes = [process.poll() for process in self._processes]
            failed = [(rank, code) for rank, code in enumerate(codes) if code]
            if failed:
                return "failed", "rank %d ended with %s" % (failed[0][0], _ending(failed[0][1])), None
            if all(code == 0 for code in codes):
                return "finished", None, None
            time.sleep(0.1)
        seen = read_signature()
        stuck = [rank for rank, process in enumerate(self._processes) if process.poll() is None]
        where = describe_stuck(self._processes[stuck[0]].pid) if stuck else ""
        state = "hung" if self._end() else "left_behind"
        return (
            state,
            "no end within %g s; ranks %s; rank %d: %s" % (ARM_LIMIT_S, stuck, stuck[0] if stuck else 0, where),
            seen,
        )

    def _end(self) -> bool:
        for process in self._processes:
            if process.poll() is None:
                try:
                    os.killpg(process.pid, signal.SIGKILL)
                except OSError:
                    process.kill()
        gone = True
        for process in self._processes:
            if process.stdin:
                process.stdin.close()
            try:
                process.wait(KILL_GRACE_SECONDS)
            except subprocess.TimeoutExpired:
                gone = False
        return gone

    def _result(self, directory: str, failed: bool) -> dict[str, Any]:
        """What one arm measured.

        ``{torch, nccl, sizes: {bytes: {wrong, first_wrong, latency_us, bus_bandwidth_gb_s, iterations}}, transports,
        errors}``.
        """
        ranks: dict[int, str] = {}
        result: dict[str, Any] = {"torch": None, "nccl": None, "sizes": {}}
        for rank in range(self._gpus):
            for message in _json_lines(os.path.join(directory, "out.%d" % rank)):
                if "rank" in message:
                    ranks[rank] = message["pci_address"]
                    result["torch"], result["nccl"] = message["torch"], message["nccl"]
                else:
                    _merge(result["sizes"], message, self._gpus)
        logs = "\n".join(_text(path) for path in sorted(glob.glob(os.path.join(directory, "nccl.*"))))
        result["transports"] = parse_transports(logs, ranks)
        result["warnings"] = sorted(
            {line.partition("NCCL WARN ")[2].strip() for line in logs.splitlines() if "NCCL WARN " in line}
        )[:KEPT_LINES]
        errors = [
            _text(os.path.join(directory, "err.%d" % rank)).strip().splitlines()[-1:] for rank in range(self._gpus)
        ]
        result["errors"] = sorted({line[0][:300] for line in errors if line})[:KEPT_LINES] if failed else []
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


def _merge(sizes: dict[str, Any], message: dict[str, Any], gpus: int) -> None:
    """The slowest rank's times count; one rank's wrong values are wrong."""
    entry = sizes.setdefault(str(message["size_bytes"]), {"wrong": 0, "first_wrong": None, "seconds": []})
    entry["wrong"] += message["wrong"]
    if entry["first_wrong"] is None:
        entry["first_wrong"] = message["first_wrong"]
    if sum(message["seconds"]) >= sum(entry["seconds"]):
        entry["seconds"] = message["seconds"]
    seconds = sorted(entry["seconds"])
    if seconds:
        middle = seconds[len(seconds) // 2]
        share = 2 * (gpus - 1) / gpus  # bus bandwidth as nccl-tests reckons it
        entry["latency_us"] = {
            "median": round(middle * 1e6, 2),
            "min": round(seconds[0] * 1e6, 2),
            "max": round(seconds[-1] * 1e6, 2),
        }
        entry["bus_bandwidth_gb_s"] = round(share * message["size_bytes"] / middle / 1e9, 2)
        entry["iterations"], entry["rounds"] = len(seconds), message.get("rounds")


def _json_lines(path: str) -> list[dict[str, Any]]:
    messages = []
    for line in _text(path).splitlines():
        try:
            message = values.json_value(line)
        except ValueError:
            continue  # what a library prints on standard output
        if isinstance(message, dict) and ("rank" in message or "size_bytes" in message):
            messages.append(message)
    return messages


def _text(path: str) -> str:
    try:
        with open(path, "rb") as handle:
            return handle.read(1 << 23).decode("utf-8", "replace")
    except OSError:
        return ""


def _ending(code: int | None) -> str:
    return "signal %d" % -code if code is not None and code < 0 else "exit status %s" % code
