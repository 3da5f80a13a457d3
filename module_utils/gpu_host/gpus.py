"""The GPUs as the driver shows them, from nvidia-smi.

The facts come from ``nvidia-smi -q -x``; where that gives nothing whole, from ``nvidia-smi -q``, the table, or the CSV
query (bundles and public captures often hold only one of them). What each driver calls a field stands in log_fields.py.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, HUNG, NOT_CAPTURED, OK, TIMEOUT, Evidence, Outcome
from .nvidia.stuck_processes import find_stuck
from .smi import gpu_findings, log_fields, log_text, log_xml, plain_table, query_csv, smi_values
from .smi.log_tree import Log, find_unreachable

XML: tuple[str, ...] = ("nvidia-smi", "-q", "-x")
TEXT: tuple[str, ...] = ("nvidia-smi", "-q")
TABLE = ("nvidia-smi",)
# The one output that pairs NVML's index with a PCI address: the blocks of -q carry no index.
INDEX = (
    "nvidia-smi",
    "--query-gpu=index,pci.bus_id,uuid,name,driver_version,memory.total,memory.used,utilization.gpu",
    "--format=csv",
)
LIMIT_SECONDS = 30.0
COMMANDS = [(XML, LIMIT_SECONDS), (INDEX, LIMIT_SECONDS)]

# `man nvidia-smi`, RETURN VALUE, and nvmlReturn_t for those that it leaves out.
EXIT_MEANINGS = {
    2: "invalid argument",
    3: "not available on this device",
    4: "no permission",
    6: "no device found",
    8: "a GPU's external power cable is not attached",
    9: "the NVIDIA driver is not loaded",
    10: "the driver sees an interrupt issue with a GPU",
    12: "libnvidia-ml is not found",
    13: "libnvidia-ml lacks a function",
    14: "infoROM is corrupted",
    15: "a GPU has fallen off the bus",
    17: "the operating system or its cgroups block the GPU's device node",
    18: "library and kernel module are of different versions",
    255: "other error",
}
# What nvidia-smi says when it fails, in one line -> the kind of its failure. [nvmlErrorString; man nvidia-smi]
_FAILURES = (
    ("mismatch", "version mismatch"),
    ("lost", "gpu is lost"),
    ("lost", "fallen off the bus"),
    ("reset", "requires reset"),
    ("lost", "unable to determine the device handle"),
    ("no_driver", "communicate with the nvidia driver"),
    ("no_driver", "driver not loaded"),
    ("no_library", "couldn't find libnvidia-ml"),
    ("no_library", "library not found"),
    ("no_permission", "insufficient permissions"),
    ("no_permission", "blocked by the operating system"),
    ("power_cable", "power cable"),
    ("power_cable", "insufficient external power"),
    ("inforom", "inforom"),
    ("no_devices", "no devices were found"),
    ("unknown_error", "unknown error"),
)
_FAILURES_BY_CODE = {
    4: "no_permission", 6: "no_devices", 8: "power_cable", 9: "no_driver", 10: "interrupt", 12: "no_library",
    13: "mismatch", 14: "inforom", 15: "lost", 17: "no_permission", 18: "mismatch",
}  # fmt: skip


@dataclass
class _Found:
    """What one host's nvidia-smi gave: a log with its GPUs by address, from the command `source`.

    All None if it gave nothing.
    """

    log: Log | None = None
    devices: dict[str, Any] | None = None
    source: str | None = None
    complaints: list[dict[str, object]] = field(default_factory=list)
    cut: bool = False  # the output was longer than is kept


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts ``gpus``.

    ``installed``, ``answered``, ``hung``, ``exit_code``, ``exit_meaning``, ``message``: how nvidia-smi ended;
    ``failure``: the kind of its failure by its own words or its exit code (mismatch, no_driver, no_library,
    no_permission, lost, reset, power_cable, interrupt, inforom, no_devices, unknown_error), "" for none that is known.
    ``stuck``: where it hung, the processes that wait in the kernel (None: unknown); else empty.
    ``source``: the command read. ``attached`` (what the driver says), ``parsed`` (GPUs read), ``count`` (GPUs that
    answer; None unless the driver's own count agrees), ``complete`` (every GPU was read to its end). ``devices``: facts
    by PCI address (log_fields.py).
    ``lost``: ``[{address, index, label, reason}]``, those that nvidia-smi could not open among them; None while there
    is none and not every GPU was read. And the lists of gpu_findings.py.
    """
    first = evidence.run(XML, LIMIT_SECONDS)
    found = _read(evidence, first, errors)
    lost: list[dict[str, Any]] | None = _lost(found.devices or {}, found.complaints)
    state = {**_ending(first), **_amounts(found, lost or [])}
    _name_answer(state, first, found, errors)
    state["failure"] = name_failure(first.rc, state["message"])
    _mark_resets(evidence, found)
    if not lost and (not found.devices or state["count"] is None):
        lost = None
    for index, where in choose_indices(evidence, found).items():
        if found.devices and where in found.devices:
            found.devices[where]["index"] = index
    for entry in lost or ():
        entry["index"] = (found.devices or {}).get(entry["address"], entry)["index"]
        entry["label"] = gpu_findings.label_gpu(entry["address"], entry["index"])
    # A field that is not there is one that the driver does not have only where the block of the GPU is whole.
    every_field = found.log is not None and (
        found.log.form == "xml" or (found.log.form == "text" and state["complete"])
    )
    computed = gpu_findings.find_offenders(found.devices, state["count"] is not None, every_field)
    absent = {
        "recovery_needed": "recovery_reported",
        "fabric_not_ready": "fabric_present",
        "fabric_split": "fabric_present",
        "width_reduced": "link_reported",
    }
    unsure = [
        name
        for name in (*gpu_findings.LISTS, *gpu_findings.DIFFERENCES)
        if computed[name] is None and computed.get(absent.get(name, ""), True) is not False
    ]
    if found.devices and unsure and state["count"] is not None:
        errors.add(
            found.source or " ".join(XML),
            "does not show, for every GPU, what tells: " + ", ".join(unsure).replace("_", " "),
        )
    state["stuck"] = find_stuck(evidence) if state["hung"] else []
    return {**state, "source": found.source, "devices": found.devices, "lost": lost, **computed}


def read_indices(evidence: Evidence) -> dict[int, str]:
    """NVML index -> PCI address of the GPUs of this host; empty if unknown."""
    return choose_indices(evidence, None)


def choose_indices(evidence: Evidence, found: _Found | None) -> dict[int, str]:
    """As ``indices``. Without the query: the order of the GPUs in a whole log, which NVML's index follows."""
    answer = evidence.run(INDEX, LIMIT_SECONDS)
    asked = query_csv.parse_indices(answer.stdout) if answer.status == OK and answer.rc == 0 else {}
    if asked:
        return asked
    if found is None:
        whole = evidence.run(XML, LIMIT_SECONDS)
        order = log_xml.read_order(whole.stdout) if whole.ok and not _complaints(whole) else None
        if order is not None:
            return dict(enumerate(order))
        found = _read(evidence, evidence.run(XML, LIMIT_SECONDS), Errors("gpus"))
    if found.devices is None or found.log is None:
        return {}
    shown = {facts["index"]: where for where, facts in found.devices.items() if facts["index"] is not None}
    if shown or not found.log.whole or found.complaints:
        return shown  # the table and the CSV print the index themselves
    return dict(enumerate(found.devices))


def _complaints(outcome: Outcome) -> list[dict[str, object]]:
    """Complaints beside a log: what stands before it and on stderr (the log itself is large and holds none)."""
    return find_unreachable(outcome.stdout[:4096].decode("utf-8", "replace") + "\n" + outcome.error_text)


def name_failure(code: int | None, message: str | None) -> str:
    """The kind of a failure, from what nvidia-smi said before its exit code: words tell more than numbers."""
    if code in (None, 0):
        return ""
    said = (message or "").lower()
    named = next((kind for kind, words in _FAILURES if words in said), None)
    return named if named not in (None, "unknown_error") else _FAILURES_BY_CODE.get(code or 0) or named or ""


def _mark_resets(evidence: Evidence, found: _Found) -> None:
    """A GPU of which the query prints `[GPU requires reset]` where the log shows a value."""
    answer = evidence.run(INDEX, LIMIT_SECONDS)
    if not answer.ok or not found.devices:
        return
    for where, facts in query_csv.parse_devices(answer.stdout).items():
        if facts["reset_required"] is True and where in found.devices:
            found.devices[where]["reset_required"] = True


def _ending(outcome: Outcome) -> dict[str, Any]:
    seen = outcome.status != NOT_CAPTURED
    return {
        "installed": outcome.status != ABSENT if seen else None,
        "answered": None,
        "hung": outcome.status in (HUNG, TIMEOUT) if seen else None,
        "exit_code": outcome.rc,
        "exit_meaning": EXIT_MEANINGS.get(outcome.rc or 0),
        "message": None,
        "seconds": outcome.seconds if seen else None,
    }


def _name_answer(state: dict[str, Any], first: Outcome, found: _Found, errors: Errors) -> None:
    """Whether nvidia-smi answered at all, and with which words it did not."""
    state["message"] = _message(first)
    if found.devices is not None:
        # One that ended before its log did may have died, or hang: what it printed is no answer.
        cut = found.log is not None and (found.cut or not found.log.closed)
        state["answered"] = None if cut and not first.rc else True
        if first.status == NOT_CAPTURED:
            state["installed"] = True
        if not found.devices:
            errors.add(found.source or " ".join(XML), "%s: no GPU was read" % (state["message"] or "no output"))
    elif first.status == OK:
        state["answered"] = False
        errors.add(" ".join(XML), "%s: %s" % (first.ending, state["message"] or "no output that can be read"))
    elif first.status == NOT_CAPTURED:
        errors.unanswered(first)
    else:
        state["answered"] = False
        state["message"] = first.reason or "is not installed"
        errors.unanswered(first)


def _message(outcome: Outcome) -> str | None:
    """The first line that is neither a log nor a table: what nvidia-smi had to say."""
    for raw in (outcome.stdout[:4096].decode("utf-8", "replace") + "\n" + outcome.error_text[:4096]).split("\n"):
        line = smi_values.strip_codes(raw).strip()
        if line.startswith(("<", "=", "+")):
            break
        if line and line.isprintable():
            return line[:300]
    return None


def _read(evidence: Evidence, first: Outcome, errors: Errors) -> _Found:
    """The best log that the host has. `first` is the answer to ``nvidia-smi -q -x``."""
    if first.status in (ABSENT, HUNG, TIMEOUT):
        return _Found()  # nothing else of nvidia-smi would fare better, and a hang costs its whole time limit again
    best = log_xml.parse_log_xml(first.stdout) if first.status == OK else None
    source, complaints = XML, _complaints(first)
    if first.status == OK and best is None and (first.rc != 0 or _no_devices(first)):
        return _Found(devices={} if _no_devices(first) else None, complaints=complaints)
    if best is None or not best.whole:
        answer = evidence.run(TEXT, LIMIT_SECONDS)
        log = log_text.parse_log_text(answer.stdout) if answer.status == OK else None
        if log is not None and (best is None or (log.whole, len(log.gpus)) > (best.whole, len(best.gpus))):
            best, source, complaints = log, TEXT, _complaints(answer)
    if best is None:
        return _read_poor(evidence, first, errors)
    devices, unreadable = _devices(best)
    for problem in best.problems + unreadable:
        errors.add(" ".join(source), problem, needs_root="Insufficient Permissions" in problem)
    if best.attached is not None and best.attached != len(best.gpus):
        errors.add(" ".join(source), "%d GPUs attached, %d parsed" % (best.attached, len(best.gpus)))
    answer = evidence.run(source, LIMIT_SECONDS)
    if answer.truncated:
        errors.add(" ".join(source), "is cut off: its output was longer than is kept")
    return _Found(best, devices, " ".join(source), complaints, answer.truncated)


def _no_devices(answer: Outcome) -> bool:
    return "no devices were found" in (answer.stdout[:4096] + answer.stderr[:4096]).decode("utf-8", "replace").lower()


def _read_poor(evidence: Evidence, first: Outcome, errors: Errors) -> _Found:
    """From the table or the CSV query: fewer facts, and nothing that says how many GPUs there ought to be."""
    answer = evidence.run(TABLE, LIMIT_SECONDS)
    table = plain_table.parse_plain_table(answer.stdout) if answer.status == OK else None
    if table is not None:
        log = Log("table", driver_version=table.driver_version, cuda_version=table.cuda_version, closed=table.closed)
        return _Found(log, table.devices, " ".join(TABLE), _complaints(answer), answer.truncated)
    if answer.status == OK and _no_devices(answer):
        return _Found(devices={}, source=" ".join(TABLE))
    answer = evidence.run(INDEX, LIMIT_SECONDS)
    devices = query_csv.parse_devices(answer.stdout) if answer.status == OK and answer.rc == 0 else {}
    if devices:
        log = Log("csv", driver_version=query_csv.driver_version(answer.stdout), closed=True)
        return _Found(log, devices, "nvidia-smi --query-gpu", [], answer.truncated)
    if first.status == OK:
        errors.add(" ".join(XML), "printed no log that can be read")
    return _Found()


def _devices(log: Log) -> tuple[dict[str, Any], list[str]]:
    """GPUs of a log by address, and what is unreadable in them, said once for all GPUs that share it."""
    devices: dict[str, Any] = {}
    seen: dict[tuple[str, str], int] = {}
    problems = []
    for position, gpu in enumerate(log.gpus):
        where = log_fields.read_location(gpu, log.form)
        if where is None:
            problems.append("block %d of a GPU has no PCI address" % (position + 1))
            continue
        if where in devices:
            problems.append("%s appears twice" % where)
        devices[where] = log_fields.read_device(gpu, log.form)
        if devices[where]["lost"]:
            problems.append("%s is lost: its values cannot be read" % where)
            continue
        for key in log_fields.list_unreadable(gpu, log.form):
            seen[key] = seen.get(key, 0) + 1
    by_word: dict[str, list[str]] = {}
    for (name, value), count in sorted(seen.items()):
        by_word.setdefault(value, []).append("%s (%d GPUs)" % (name, count) if len(log.gpus) > 1 else name)
    problems += ["reads %r in place of a value: %s" % (value, ", ".join(names[:6])) for value, names in by_word.items()]
    return devices, problems


def _amounts(found: _Found, lost: list[dict[str, Any]]) -> dict[str, Any]:
    if found.devices is None:
        return dict.fromkeys(("driver_version", "cuda_version", "attached", "parsed", "count", "complete"))
    log, parsed = found.log, len(found.devices)
    if log is None:  # "No devices were found"
        return {"driver_version": None, "cuda_version": None, "attached": 0, "parsed": 0, "count": 0, "complete": True}
    # Blocks without an address and double ones are GPUs that the log lists and we could not tell apart.
    listed = len(log.gpus) if log.gpus else parsed
    unopened = sum(1 for entry in lost if entry["address"] not in found.devices)
    agrees = listed == parsed and (
        log.attached in (parsed, parsed + unopened) if log.attached is not None else log.closed and not found.cut
    )
    return {
        "driver_version": log.driver_version,
        "cuda_version": log.cuda_version,
        "attached": log.attached,
        "parsed": parsed,
        "count": parsed - (len(lost) - unopened) if agrees else None,
        "complete": bool(agrees and log.closed and not found.cut),
    }


def _lost(devices: dict[str, Any], complaints: list[dict[str, object]]) -> list[dict[str, Any]]:
    """GPUs that read "GPU is lost", and those that nvidia-smi could not open."""
    found = [
        {"address": where, "index": facts["index"], "reason": "GPU is lost"}
        for where, facts in devices.items()
        if facts["lost"]
    ]
    known = {entry["address"] for entry in found}
    return found + [dict(entry) for entry in complaints if entry["address"] not in known]
