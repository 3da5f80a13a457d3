"""Memory, utilisation and power of each GPU, and which process of the server is on it.

By nvidia-smi's queries, which are quick.
"""

from __future__ import annotations

import statistics
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, Evidence
from ..gpu_host.smi.smi_values import is_error, is_not_applicable, parse_address

GPUS_COMMAND = (
    "nvidia-smi",
    "--query-gpu=pci.bus_id,index,memory.used,memory.total,utilization.gpu,power.draw,power.limit,pstate",
    "--format=csv,noheader,nounits",
)
APPS_COMMAND = ("nvidia-smi", "--query-compute-apps=pid,gpu_bus_id,used_memory", "--format=csv,noheader,nounits")
SECONDS = 20.0
# One rank is out of line when it holds this much more or less than the middle one: more than the buffers of the first
# or last rank.
OUTLIER_MIB, OUTLIER_SHARE = 1024, 0.02
# The share of its limit that a GPU draws at most while it spins in a kernel that computes nothing (85 to 140 of 600 W
# were seen).
SPIN_POWER_SHARE = 0.35
_NUMBERS = (
    "index",
    "memory_used_mib",
    "memory_total_mib",
    "utilization_percent",
    "power_draw_w",
    "power_limit_w",
)


def read_gpu_load(evidence: Evidence, errors: Errors, pids: set[int]) -> dict[str, Any]:
    """``{gpus, lowest_mib, highest_mib, spread_mib, outliers, busy, spinning, utilization}``.

    `gpus`: ``{address: {index, memory_used_mib, memory_total_mib, utilization_percent, power_draw_w, power_limit_w,
    performance_state, pids, others}}`` or None; `pids` are those of `pids` on it, `others` the processes on it that are
    not: ``[{pid, memory_mib}]``, None where nvidia-smi does not say which processes are there. The figures after it are
    of the server's GPUs (all, where processes are hidden). `shared`: for each process beside the server on a GPU of it,
    ``{index, pid, memory_mib}``; None where it is unknown, and where nvidia-smi names no process of the server.
    `unread`: nvidia-smi is there and did not answer. `spinning`: every one at high utilisation and the power of one
    that computes nothing.
    """
    result: dict[str, Any] = dict.fromkeys(
        ("gpus", "lowest_mib", "highest_mib", "spread_mib", "outliers", "busy", "spinning", "utilization", "shared")
    )
    result["unread"] = evidence.run(GPUS_COMMAND, SECONDS).status != ABSENT
    rows = _rows(evidence, GPUS_COMMAND, 8, errors)
    if rows is None:
        return result
    processes = _rows(evidence, APPS_COMMAND, 3, errors)
    gpus: dict[str, dict[str, Any]] = {}
    for row in rows:
        numbers = {name: _number(name, text, errors) for name, text in zip(_NUMBERS, row[1:7])}
        gpus[_address(row[0], GPUS_COMMAND, errors)] = {
            **numbers,
            "performance_state": row[7] or None,
            "pids": [],
            "others": None if processes is None else [],
        }
    for row in processes or []:
        gpu = gpus.get(_address(row[1], APPS_COMMAND, errors))  # type: ignore[assignment]
        pid = errors.read_whole(" ".join(APPS_COMMAND), "the number of a process", row[0])
        if gpu and pid in pids:
            gpu["pids"].append(pid)
        elif gpu:
            gpu["others"].append({"pid": pid, "memory_mib": _number("memory of a process", row[2], errors)})
    result["shared"] = _find_shared(gpus)
    result.update(gpus=gpus, unread=False)
    _summary(result, [gpu for gpu in gpus.values() if gpu["pids"]] or list(gpus.values()))
    return result


def _find_shared(gpus: dict[str, dict[str, Any]]) -> list[dict[str, Any]] | None:
    ours = [gpu for gpu in gpus.values() if gpu["pids"]]
    if not ours:
        return None
    return [{"index": gpu["index"], **other} for gpu in ours for other in gpu["others"]]


def _summary(result: dict[str, Any], gpus: list[dict[str, Any]]) -> None:
    used = [gpu["memory_used_mib"] for gpu in gpus]
    if gpus and None not in used:
        middle = statistics.median(used)
        result.update(lowest_mib=min(used), highest_mib=max(used), spread_mib=max(used) - min(used))
        limit = max(OUTLIER_MIB, middle * OUTLIER_SHARE)
        result["outliers"] = [
            {"index": gpu["index"], "memory_used_mib": gpu["memory_used_mib"], "median_mib": middle}
            for gpu in gpus
            if abs(gpu["memory_used_mib"] - middle) > limit
        ]
    load = [gpu["utilization_percent"] for gpu in gpus]
    if gpus and None not in load:
        result["utilization"] = load
        result["busy"] = any(value > 5 for value in load)
        power = [(gpu["power_draw_w"], gpu["power_limit_w"]) for gpu in gpus]
        if all(draw is not None and limit for draw, limit in power):
            result["spinning"] = min(load) >= 90 and all(draw <= SPIN_POWER_SHARE * limit for draw, limit in power)


def _rows(evidence: Evidence, command: tuple[str, ...], columns: int, errors: Errors) -> list[list[str]] | None:
    outcome = evidence.run(command, SECONDS)
    if not outcome.succeeded:
        if outcome.ok and outcome.text.strip():
            errors.add(" ".join(command), outcome.text.strip()[:200])
        errors.unsuccessful(outcome)
        return None
    rows = [[cell.strip() for cell in line.split(",")] for line in outcome.text.splitlines()]
    return [row for row in rows if len(row) == columns]


def _number(name: str, text: str, errors: Errors) -> float | int | None:
    whole = values.whole_number(text)
    if whole is not None or is_not_applicable(text) or is_error(text):
        return whole
    return errors.read_decimal(" ".join(GPUS_COMMAND), name, text)


def _address(text: str, command: tuple[str, ...], errors: Errors) -> str:
    """00000000:01:00.0 of nvidia-smi as the kernel writes it, 0000:01:00.0."""
    address = parse_address(text)
    if address is None:
        errors.odd(" ".join(command), "is no PCI address", text)
    return address or text.strip().lower()
