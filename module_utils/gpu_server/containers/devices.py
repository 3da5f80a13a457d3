"""Which GPUs a container was given, by the device nodes in its /dev, and whether they lead where the driver is now."""

from __future__ import annotations

import re
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import ABSENT, Entry, Evidence
from ...gpu_host.evidence.offenders import Offenders

_GPU = re.compile(r"nvidia([0-9]{1,3})")
_CONTROL = ("nvidiactl", "nvidia-uvm")
_MAJOR_OF = {"nvidiactl": ("nvidia-frontend", "nvidia", "nvidiactl"), "nvidia-uvm": ("nvidia-uvm",)}
_GPU_MAJORS = ("nvidia-frontend", "nvidia")


def read_devices(evidence: Evidence, pid: int, errors: Errors) -> dict[str, Any]:
    """``{gpus, host_gpus, hidden, missing, stale, rdma}``.

    `gpus`: numbers of the nodes /dev/nvidiaN in the container; `host_gpus`: those of the host; `hidden`: those that
    the container does not have. `missing`: control nodes that every CUDA process opens and the container lacks.
    `stale`: nodes whose major number is not the one that the driver has now, ``[{name, major, wanted}]``. `rdma`:
    whether it has a device of InfiniBand or RoCE. None where one of the directories could not be read.
    """
    own = evidence.list("/proc/%d/root/dev" % pid)
    errors.unanswered(own)
    host = evidence.list("/dev")
    errors.unanswered(host)
    gpus = _numbers(own.entries) if own.ok else None
    host_gpus = _numbers(host.entries) if host.ok else None
    return {
        "gpus": gpus,
        "host_gpus": host_gpus,
        "hidden": None if gpus is None or host_gpus is None else [one for one in host_gpus if one not in gpus],
        "missing": [name for name in _CONTROL if name not in own.entries] if own.ok else None,
        "stale": _stale(evidence, own.entries, errors) if own.ok else None,
        "rdma": _has_rdma(evidence, pid, own.entries, errors) if own.ok else None,
    }


def _numbers(entries: dict[str, Entry]) -> list[int]:
    found = [values.whole_number(match[1]) for match in map(_GPU.fullmatch, entries) if match]
    return sorted(number for number in found if number is not None)


def _stale(evidence: Evidence, entries: dict[str, Entry], errors: Errors) -> list[dict[str, Any]] | None:
    reading = evidence.read("/proc/devices")
    errors.unanswered(reading)
    if not reading.ok:
        return None
    rows = re.findall(r"^\s*([0-9]+) (\S+)$", reading.text.partition("Block devices:")[0], re.MULTILINE)
    majors = {name: values.whole_number(number) for number, name in rows}
    found = Offenders()
    for name, entry in sorted(entries.items()):
        names = _MAJOR_OF.get(name) or (_GPU_MAJORS if _GPU.fullmatch(name) else ())
        if names and entry.kind == "char":
            wanted = next((majors[one] for one in names if one in majors), None)
            known = wanted is not None and entry.major is not None
            found.judge(
                entry.major != wanted if known else None, {"name": name, "major": entry.major, "wanted": wanted}
            )
    return found.listed()


def _has_rdma(evidence: Evidence, pid: int, entries: dict[str, Entry], errors: Errors) -> bool | None:
    if "infiniband" not in entries:
        return False
    listing = evidence.list("/proc/%d/root/dev/infiniband" % pid)
    errors.unanswered(listing)
    if not listing.ok:
        return False if listing.status == ABSENT else None
    return any(name.startswith("uverbs") for name in listing.entries)
