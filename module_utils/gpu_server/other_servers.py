"""Several servers on one host: which one is looked at, which others run, and which are parts of the same model."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import engines
from .containers import container_reader, namespaces
from .engines import Engine
from .processes import Process

Found = tuple[Process, list[str], Engine]
# Where the ranks of one model meet, by the engines' own names for it.
_RENDEZVOUS = ("dist-init-addr", "nccl-init-addr", "master-addr")


def describe_servers(evidence: Evidence, found: list[Found], chosen: Found | None) -> list[dict[str, Any]]:
    """``[{engine, pid, model, container, looked_at, part}]`` of every server that runs here, oldest first.

    `container`: the first digits of its container's id; "" for one in none, None where that is not known. `part`:
    whether it is a part of the model of the one that is looked at.
    """
    together = [one[0].pid for one in find_parts(found, chosen)]
    return [
        {
            "engine": engine.name,
            "pid": top.pid,
            "model": engines.find_model_path(engine.name, words),
            "container": _name_container(evidence, top.pid),
            "looked_at": bool(chosen) and chosen is not None and top.pid == chosen[0].pid,
            "part": top.pid in together,
        }
        for top, words, engine in found
    ]


def select_others(servers: list[dict[str, Any]], complete: bool) -> list[dict[str, Any]] | None:
    """Those of describe_servers() that are neither looked at nor a part of what is; None where there may be more.

    `complete`: every process of the host could be read.
    """
    found = [one for one in servers if not one["looked_at"] and not one["part"]]
    return found or ([] if complete else None)


def _name_container(evidence: Evidence, pid: int) -> str | None:
    membership = container_reader.find_membership(evidence, pid)
    return None if membership is None else (membership.id or "")[:12]


def find_parts(found: list[Found], chosen: Found | None) -> list[Found]:
    """The servers that serve one model together with the chosen one, itself among them; [] where it is alone."""
    if chosen is None:
        return []
    key = _rendezvous(chosen)
    together = [one for one in found if key is not None and _rendezvous(one) == key]
    return together if len(together) > 1 else []


def _rendezvous(one: Found) -> tuple[str, str | None, str] | None:
    _top, words, engine = one
    live = engines.find_settings(engine, words)
    nodes = live.get("nnodes")
    if (values.whole_number(nodes) if isinstance(nodes, str) else None) in (None, 1):
        return None
    place = next((live[name] for name in _RENDEZVOUS if isinstance(live.get(name), str)), None)
    return (engine.name, engines.find_model_path(engine.name, words), str(place)) if place else None


def share_ipc(evidence: Evidence, parts: list[Found], errors: Errors) -> bool | None:
    """Whether the parts have one IPC namespace, as CUDA's handles and NCCL's shared memory between them need."""
    seen = [(namespaces.read_namespaces(evidence, top.pid, errors) or {}).get("ipc") for top, _words, _engine in parts]
    known = {one for one in seen if one}
    return False if len(known) > 1 else None if None in seen else True
