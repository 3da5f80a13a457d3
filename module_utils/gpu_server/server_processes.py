"""The processes of the server of a host: which one it is, its container, its ranks and its unit."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, Evidence
from ..gpu_host.evidence.offenders import any_of
from . import engines, installed, nodes, other_servers, processes, ray_nodes, server_choice, units
from .containers import container_reader
from .engines import Engine


def read_server_processes(
    evidence: Evidence, params: dict[str, Any], table: dict[int, processes.Process], errors: Errors
) -> dict[str, Any]:
    """The facts that gather.py names, as far as processes, their container and their unit tell them; and what it takes
    out again: `pids` below the server, `silent` processes without a command line, `titles_unread`, `proxied`."""
    found, silent = processes.find_servers(evidence, table, errors)
    found += ray_nodes.find_followers(evidence, table, found, errors)
    if params.get("outside_containers"):
        found = [one for one in found if not processes.is_in_container(evidence, one[0].pid)]
        silent = [one for one in silent if not processes.is_in_container(evidence, one.pid)]
    chosen = server_choice.choose_server(evidence, found, params, table, errors)
    complete = isinstance(table, processes.Table) and not table.unread and not silent
    servers = other_servers.describe_servers(evidence, found, chosen)
    facts: dict[str, Any] = {
        "proxied": server_choice.list_proxied(evidence, table, errors) if chosen else [],
        "engine": None,
        "engines_found": servers,
        "not_looked_at": other_servers.select_others(servers, complete),
        "in_container": None,
        "container": None,
        "process": None,
        "environment": None,
        "ranks": [],
        "ranks_expected": None,
        "node": None,
        "compilers": [],
        "locks": None,
        "p2p_caches": [],
        "packages": None,
        "unit": None,
        "pids": set(),
        "silent": [],
        "titles_unread": False,
        "units_found": None,
    }
    name = params.get("unit")
    if chosen and name and container_reader.is_named(evidence, chosen[0].pid, name, errors):
        name = None  # of the container, not of a unit
    if not chosen:
        facts["silent"] = [
            one
            for one in silent
            if not name or processes.find_unit(evidence, one.pid) in (None, server_choice.name_service(name))
        ]
    else:
        top, words, engine = chosen
        facts["environment"] = processes.read_environment(evidence, top.pid, errors)
        follows = not engine.command.search(" ".join(words))  # a node of Ray, whose words are not the engine's
        live = {} if follows else engines.find_settings(engine, words, facts["environment"])
        below = processes.find_descendants(top.pid, table)
        by_ray = follows or ray_nodes.uses_ray(engine, live)
        node = ray_nodes.choose_node(evidence, top.pid, table, errors) if by_ray else None
        below += [one for one in processes.find_descendants(node.pid, table) if one not in below] if node else []
        facts["pids"] = {process.pid for process in below}
        facts["engine"] = engine.name
        facts["in_container"], facts["container"] = container_reader.read_container(
            evidence,
            top.pid,
            facts["environment"],
            errors,
            light=bool(params.get("light")),
            monitors=server_choice.list_command_lines(evidence, table, "conmon", errors),
        )
        facts["locks"] = _find_locks(evidence, facts, top.pid)
        facts["process"] = _describe_process(evidence, top, words, live, table, errors)
        if by_ray:
            facts.update(ray_nodes.read_part(evidence, engine, live, node, table, errors, follows=follows))
        else:
            _read_part(evidence, facts, engine, live, below, errors)
        _count_peers(evidence, facts, top.pid)
        facts["compilers"] = [
            {"pid": process.pid, "name": process.name, "cpu_s": process.cpu_s}
            for process in below
            if process.name in processes.COMPILERS
        ]
        _describe_parts(evidence, facts, other_servers.find_parts(found, chosen), complete, errors)
        name = name or facts["process"]["unit"]
    if name:
        facts["units_found"] = [name]
    else:
        facts["units_found"] = units.find_units(evidence, errors)
        name = next(iter(facts["units_found"] or ()), None)
        cgroup = evidence.read("/proc/%d/cgroup" % facts["process"]["pid"]) if facts["process"] else None
        if cgroup is not None and not cgroup.ok:  # the process may belong to a unit of any name
            errors.unanswered(cgroup)
            facts["units_found"] = facts["units_found"] or None
    facts["unit"] = units.read_unit(evidence, name, errors) if name else None
    if name and evidence.run(units.show_command(name), units.SECONDS).status == ABSENT:
        facts["units_found"] = []  # there is no systemd
    return facts


def _describe_process(
    evidence: Evidence,
    top: processes.Process,
    words: list[str],
    live: engines.Settings,
    table: dict[int, processes.Process],
    errors: Errors,
) -> dict[str, Any]:
    status = processes.read_status(evidence, top.pid, errors)
    limits = processes.read_limits(evidence, top.pid, errors)
    return {
        "pid": top.pid,
        "command": " ".join(words),
        "arguments": words,
        "settings": live,
        "started_at": None if top.started_at is None else round(top.started_at, 2),
        "age_s": None if top.started_at is None else round(evidence.now() - top.started_at, 1),
        "user_id": status["uid"],
        "rss_mib": status["rss_mib"],
        "state": top.state,
        "unit": server_choice.find_unit_of_server(evidence, top.pid, table, errors),
        "python": words[0],
        **limits,
    }


def _read_part(
    evidence: Evidence,
    facts: dict[str, Any],
    engine: Engine,
    live: engines.Settings,
    below: list[processes.Process],
    errors: Errors,
) -> None:
    """The part that this host has of a server, and its ranks."""
    facts["node"] = nodes.read_node(engine, live, errors)
    facts["ranks_expected"] = nodes.count_local_ranks(engine, live, facts["node"])
    if facts["ranks_expected"] is None:
        given = [live[name] for name in engine.tensor_parallel if name in live]
        errors.odd("the command line of the server", "the number of tensor-parallel ranks is no number", given)
    facts["ranks"], facts["titles_unread"] = _ranks(evidence, engine, below, errors)


def _find_locks(evidence: Evidence, facts: dict[str, Any], pid: int) -> list[dict[str, Any]] | None:
    home = (facts["environment"] or {}).get("HOME")
    if facts["in_container"] is None or not home:
        return None
    root = "/proc/%d/root" % pid if facts["in_container"] else ""
    return installed.find_locks(evidence, root + home)


def _count_peers(evidence: Evidence, facts: dict[str, Any], pid: int) -> None:
    """The other hosts that are connected, by the sockets of the network that the server has."""
    network = facts["container"]["network"] if facts["container"] else "host"
    if facts["in_container"] is not None and network is not None:
        nodes.count_peers(evidence, facts["node"], pid if network == "own" else None)


def _describe_parts(
    evidence: Evidence, facts: dict[str, Any], parts: list[other_servers.Found], complete: bool, errors: Errors
) -> None:
    """What of the container depends on the engine: the GPUs that its ranks need, and the parts of the model.

    `complete`: every process of the host could be read, so that there are no more parts than `parts`.
    """
    container = facts["container"]
    if container is None:
        return
    container["gpus_needed"] = facts[
        "ranks_expected"
    ]  # a part of a server over several hosts or containers has its own
    described = [{"pid": top.pid, "container": _shorten_id(evidence, top.pid)} for top, _words, _one in parts]
    container["parts"] = described if described or complete else None
    container["weights_mib"] = None
    container["reach"] = {"address": None, "port": None, "published": False, "loopback_only": None}
    memlock = facts["process"]["memlock_kib"]
    unlimited = None if memlock is None else memlock == "unlimited"
    container["may_register"] = any_of([unlimited, container["may_lock_memory"]])
    shared = other_servers.share_ipc(evidence, parts, errors) if parts else True
    container["parts_share_ipc"] = shared if shared is False or complete else None


def _shorten_id(evidence: Evidence, pid: int) -> str | None:
    membership = container_reader.find_membership(evidence, pid)
    return None if membership is None else (membership.id or "")[:12]


def _ranks(
    evidence: Evidence, engine: Engine, below: list[processes.Process], errors: Errors
) -> tuple[list[dict[str, Any]], bool]:
    """(the ranks, whether the title of a process that may be one could not be read)."""
    found, unread = [], False
    for process in below:
        if process.state == "Z":
            continue
        words = processes.read_arguments(evidence, process.pid, errors)
        unread = unread or words is None
        title = " ".join(words or ()) or process.name
        rank = processes.find_rank(engine, title)
        if rank is not None:
            found.append({"rank": rank, **processes.describe_process(evidence, process, errors), "gpu": None})
    return sorted(found, key=lambda one: one["rank"]), unread
