"""The shape of what the probe and its all-reduce write, held where the result is read.

A recorded result may come from another version or another hand. A value of another kind than the worker writes becomes
None, and a problem names it with its place, so that nothing behind this file meets a text where a mapping belongs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..evidence import values

# A shape is the name of a kind of value, a mapping of keys to shapes, ("each", shape) for a mapping whose keys are
# data, or ("list", shape). A key without a shape is read by nobody: it stays if it holds a single value.
Shape = Any
NUMBER, TEXT, FLAG, SCALAR = "a number", "a text", "true or false", "a single value"
_ERROR = {
    "name": TEXT,
    "kind": TEXT,
    "stage": TEXT,
    "code": NUMBER,
    "function": TEXT,
    "seconds": NUMBER,
    "detail": TEXT,
}
_FIGURE = {
    "median": NUMBER,
    "min": NUMBER,
    "max": NUMBER,
    "iterations": NUMBER,
    "transfers": NUMBER,
    "size_mib": NUMBER,
    "size_bytes": NUMBER,
    "concurrent": NUMBER,
    "method": TEXT,
    "no_answer": FLAG,
    "reason": TEXT,
}
_DELIVERY = {
    "status": TEXT,
    "found": TEXT,
    "error": SCALAR,
    "writer_sees_it": FLAG,
    "bad_size": NUMBER,
    "first_bad_offset": NUMBER,
    "bad_blocks_4k": NUMBER,
    "sizes": ("list", NUMBER),
}
_PAIR = {
    "claims": {"can_access": FLAG, "access_supported": FLAG, "atomics": FLAG, "performance_rank": NUMBER},
    "peer": {"enabled": FLAG, "error": _ERROR},
    "delivered": ("each", _DELIVERY),
    "control_delivered": _DELIVERY,
    "bandwidth_gb_s": ("each", _FIGURE),
    "latency_us": ("each", _FIGURE),
    "control_latency_us": ("each", _FIGURE),
    "error": _ERROR,
}
_DEVICE = {
    "name": TEXT,
    "cuda_index": NUMBER,
    "compute_capability": TEXT,
    "compute_mode": TEXT,
    "multiprocessors": NUMBER,
    "opened": {"kernels_error": _ERROR},
    "link": {"speed_gt_s": NUMBER, "width": NUMBER, "max_speed_gt_s": NUMBER, "max_width": NUMBER},
    "place": {"path": ("list", TEXT), "root_complex": TEXT, "numa_node": NUMBER},
    "error": _ERROR,
    "mig": FLAG,
}
_TOGETHER = {"bandwidth_gb_s": _FIGURE, "corrupt_pairs": ("list", TEXT)}
_HOST_LINK = {
    "alone": {"to_gpu": ("each", _FIGURE), "from_gpu": ("each", _FIGURE)},
    "at_once": {"to_gpu": _FIGURE, "from_gpu": _FIGURE},
}
_COUNTED = {
    "replays": NUMBER,
    "generation": NUMBER,
    "brakes": ("list", TEXT),
    "nvlink": ("each", NUMBER),
    "nvlink_counters": NUMBER,
}
_PHASE = {
    "budget_s": NUMBER,
    "seconds": NUMBER,
    "left": ("list", TEXT),
    "counters": {"gpus": ("each", _COUNTED), "aer": ("each", ("each", NUMBER)), "log": ("list", TEXT)},
}
PROBE: Shape = {
    "cuda": {
        "initialised": FLAG,
        "library": TEXT,
        "library_error": TEXT,
        "seconds": NUMBER,
        "driver_version": TEXT,
        "error": _ERROR,
    },
    "devices": ("each", _DEVICE),
    "pairs": ("each", _PAIR),
    "loopback": ("each", _PAIR),
    "many_to_one": ("each", _TOGETHER),
    "one_to_many": ("each", _TOGETHER),
    "host_links": ("each", _HOST_LINK),
    "host_memory": ("each", {"mib": NUMBER, "placed_by": TEXT, "node_found": NUMBER, "error": _ERROR}),
    "counter_sources": ("each", TEXT),
    "phases": ("each", _PHASE),
    "all_at_once": _TOGETHER,
    "events": (
        "list",
        {
            "stage": TEXT,
            "about": ("list", TEXT),
            "kind": TEXT,
            "seconds": NUMBER,
            "detail": TEXT,
            "error": _ERROR,
            "gpus": ("list", ("each", SCALAR)),
        },
    ),
    "stages": ("each", NUMBER),
    "seconds": NUMBER,
    "options": ("each", SCALAR),
}
_SIZE = {
    "wrong": NUMBER,
    "first_wrong": SCALAR,
    "latency_us": _FIGURE,
    "algorithm_bandwidth_gb_s": NUMBER,
    "bus_bandwidth_gb_s": NUMBER,
    "got": SCALAR,
    "wanted": SCALAR,
    "checked": TEXT,
    "wrong_gpus": ("list", TEXT),
    "iterations": NUMBER,
    "rounds": NUMBER,
    "seconds": ("list", NUMBER),
}
_FAILURE = {
    "kind": TEXT,
    "stage": TEXT,
    "rank": NUMBER,
    "pci_address": TEXT,
    "function": TEXT,
    "code": NUMBER,
    "name": TEXT,
    "text": TEXT,
}
_RAS = {
    "answered": FLAG,
    "reason": TEXT,
    "nccl": TEXT,
    "communicators": NUMBER,
    "ranks": NUMBER,
    "late_ranks": ("list", NUMBER),
    "late": ("list", TEXT),
    "missing_ranks": ("list", NUMBER),
    "missing": ("list", TEXT),
    "errors": ("list", TEXT),
}
_CALLS = {
    "wrong": NUMBER,
    "wrong_calls": NUMBER,
    "calls": NUMBER,
    "first_wrong": NUMBER,
    "got": SCALAR,
    "wanted": SCALAR,
    "wrong_gpus": ("list", TEXT),
    "latency_us": NUMBER,
    "skipped": TEXT,
}
ENGINE_ALL_REDUCE: Shape = {
    "reason": TEXT,
    "engine": TEXT,
    "python": TEXT,
    "seconds": NUMBER,
    "runs": (
        "list",
        {
            "gpus": NUMBER,
            "state": TEXT,
            "detail": TEXT,
            "failure": _FAILURE,
            "waiting": ("list", TEXT),
            "hang_signature": ("list", ("each", SCALAR)),
            "seconds": NUMBER,
            "version": TEXT,
            "kind": TEXT,
            "used": FLAG,
            "why_not": TEXT,
            "largest_bytes": NUMBER,
            "sizes": ("each", ("each", _CALLS)),
            "errors": ("list", TEXT),
        },
    ),
}
_RANK_SIZE = {
    "rank": NUMBER,
    "size_bytes": NUMBER,
    "wrong": NUMBER,
    "first_wrong": SCALAR,
    "got": SCALAR,
    "wanted": SCALAR,
    "checked": TEXT,
    "seconds": ("list", NUMBER),
    "rounds": NUMBER,
}
_NETWORK = {
    "kind": TEXT,
    "devices": ("list", {"index": TEXT, "name": TEXT, "layer": TEXT}),
    "channels": NUMBER,
    "gdr_channels": NUMBER,
    "disabled": ("list", TEXT),
}
_LOOK = {
    "nccl": {"version": TEXT, "path": TEXT},
    "way": {"address": TEXT, "source": TEXT, "interface": TEXT, "problem": TEXT},
    "speeds": ("each", SCALAR),
    "rdma": ("list", {"device": TEXT, "port": NUMBER, "active": FLAG, "gigabits_s": NUMBER, "layer": TEXT}),
}
_HOST_ARM = {
    "state": TEXT,
    "detail": TEXT,
    "failure": _FAILURE,
    "waiting": ("list", TEXT),
    "ready": FLAG,
    "nccl": TEXT,
    "sizes": ("list", _RANK_SIZE),
    "network": _NETWORK,
    "warnings": ("list", TEXT),
    "errors": ("list", TEXT),
}
BETWEEN_HOSTS: Shape = {
    "group": TEXT,
    "host": TEXT,
    "not_run": TEXT,
    "problems": ("list", TEXT),
    "arms": ("list", TEXT),
    "sizes": ("list", NUMBER),
    "hosts": (
        "list",
        {
            "host": TEXT,
            "ranks": ("list", NUMBER),
            "gpus": ("list", TEXT),
            "why": TEXT,
            "look": _LOOK,
            "result": {"arms": ("each", _HOST_ARM), "stopped": TEXT, "problem": TEXT, "seconds": NUMBER},
        },
    ),
}
COLLECTIVE: Shape = {
    "reason": TEXT,
    "python": TEXT,
    "library": TEXT,
    "source": TEXT,
    "gpus": NUMBER,
    "seconds": NUMBER,
    "arms": (
        "each",
        {
            "state": TEXT,
            "detail": TEXT,
            "torch": TEXT,
            "nccl": TEXT,
            "cuda": TEXT,
            "ready": FLAG,
            "seconds": NUMBER,
            "start_seconds": NUMBER,
            "failure": _FAILURE,
            "waiting": ("list", TEXT),
            "ras": _RAS,
            "diagnostics": ("list", TEXT),
            "sizes": ("each", _SIZE),
            "transports": ("each", ("list", TEXT)),
            "warnings": ("list", TEXT),
            "errors": ("list", TEXT),
            "hang_signature": ("list", ("each", SCALAR)),
        },
    ),
}


def conform_result(
    value: Any, shape: Shape, problems: list[tuple[tuple[str, ...], str]], place: tuple[str, ...] = ()
) -> Any:
    """`value` with everything of another kind than `shape` says replaced by None; each is added to `problems` as (its
    place, what it is). None itself is of every kind."""
    if value is None:
        return None
    if isinstance(shape, dict):
        if isinstance(value, dict):
            return {
                key: conform_result(entry, shape.get(key, SCALAR), problems, (*place, str(key)))
                for key, entry in value.items()
                if key in shape or not isinstance(entry, (dict, list))
            }
    elif isinstance(shape, tuple):
        kind, inner = shape
        if kind == "each" and isinstance(value, dict):
            return {
                str(key): conform_result(entry, inner, problems, (*place, str(key))) for key, entry in value.items()
            }
        if kind == "list" and isinstance(value, list):
            return [conform_result(entry, inner, problems, (*place, str(at))) for at, entry in enumerate(value)]
    else:
        fits, read = _scalar(value, shape)
        if fits:
            return read
    problems.append((place, "is %s, where %s belongs" % (values.format_value(value), _in_words(shape))))
    return None


def _scalar(value: Any, kind: str) -> tuple[bool, Any]:
    if kind == FLAG:
        return isinstance(value, bool), value
    if kind == TEXT:
        return isinstance(value, str), value
    if kind == NUMBER:
        return values.decimal_number(value) is not None and not isinstance(value, str), value
    return isinstance(value, (bool, str)) or values.decimal_number(value) is not None, value


def _in_words(shape: Shape) -> str:
    if isinstance(shape, tuple):
        return "a list" if shape[0] == "list" else "a mapping"
    return "a mapping" if isinstance(shape, dict) else str(shape)


def describe_oddities(problems: Sequence[tuple[tuple[str, ...], str]], most: int = 6) -> list[str]:
    """One sentence for each problem, at most `most` and one that says how many more there are."""
    found = ["%s %s" % (".".join(place) or "the result", what) for place, what in problems[:most]]
    return found + (["%d more values are of another kind" % (len(problems) - most)] if len(problems) > most else [])
