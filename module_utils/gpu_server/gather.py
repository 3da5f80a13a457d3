"""All facts of the inference server of a host.

What was started, what it says, what it answers, and what that adds up to.
"""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host import topology
from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, Evidence
from ..gpu_host.evidence.offenders import any_of
from ..gpu_host.evidence.sides import find_pieces, is_only_pieces
from ..gpu_host.pcie import gpu_addresses
from . import (
    api,
    engines,
    gpu_load,
    installed,
    nccl,
    nccl_faults,
    nccl_job,
    nodes,
    other_servers,
    ports,
    processes,
    ray_nodes,
    server_choice,
    server_state,
    settings,
    stall,
    units,
)
from .containers import container_log, container_reader
from .containers.inside import InsideEvidence
from .engines import Engine
from .log import log_reader, log_source

ZONE_COMMAND = ("date", "+%z")
LOOSE_LOG, LOOSE_PORT = "/loose/server.log", 8000  # as gpu_host/loose/of_servers.py names them
COMMANDS = (
    (gpu_load.GPUS_COMMAND, gpu_load.SECONDS),
    (gpu_load.APPS_COMMAND, gpu_load.SECONDS),
    (units.LIST_COMMAND, units.SECONDS),
)


FACTS = (
    "engine",
    "engines_found",
    "not_looked_at",
    "in_container",
    "container",
    "process",
    "environment",
    "ranks",
    "ranks_expected",
    "ranks_missing",
    "node",
    "compilers",
    "locks",
    "p2p_caches",
    "packages",
    "unit",
    "units_found",
    "unit_current",
    "gpu",
    "log",
    "port",
    "api",
    "model",
    "key_set",
    "exposed",
    "busy",
    "busy_because",
    "stall",
    "fault",
    "state",
    "why",
    "moving",
    "generation",
    "differences",
    "p2p_cache_denies",
    "rank_outliers",
    "nccl",
    "nccl_job",
    "nccl_known_faults",
)


def gather(evidence: Evidence, params: dict[str, Any], errors: Errors) -> dict[str, Any] | None:
    """As ``_gather``; after a fault of ours every fact is unknown, and its check says why."""
    try:
        return _gather(evidence, params, errors)
    except Exception as error:  # as in gpu_host/gather.py: it must not hide what other readers found
        evidence.abandon()
        what = "a fault in the reader of the server: %s: %s; please report it" % (type(error).__name__, error)
        errors.add("module_utils/gpu_server", what)
        return {**dict.fromkeys(FACTS), "why": what}


def _gather(evidence: Evidence, params: dict[str, Any], errors: Errors) -> dict[str, Any] | None:
    """Facts of the inference server; None where a bundle holds nothing of one, and with `only_if_found` where neither a
    process nor a unit says that there is one.

    `state`: absent, stopped, failed, starting, stalled, ready, unhealthy; `why`: the sentence for it. `engine`,
    `engines_found`, `not_looked_at` (other_servers.py). `in_container`, and `container`
    (containers/container_reader.py; with `reach`, `parts`, `parts_share_ipc`, `gpus_needed`, `may_register`,
    `weights_mib`), None for a server in none. `unit` (units.py). `process`: `{pid, command, arguments, settings,
    started_at, age_s, user_id, rss_mib, unit, memlock_kib, open_files, python}`. `environment`: allowed names of the
    live process. `ranks`: `[{rank, pid, name, state, cpu_s, threads, wait_channel, read_bytes, gpu}]`, `ranks_expected`
    (of this host), `node` (nodes.py: the part that this host has of a server over several), `compilers`, `locks`,
    `p2p_caches`. `gpu` (gpu_load.py), `port` (ports.py), `api` and `generation` (api.py; `ran` is None where the server
    could not be asked). `model`: the name by which requests ask for it, listed or else of the command line. `log`
    (log_reader.py, with `kind`, `path`, `age_s`, and the commands `show` and `show_end`), `nccl` (nccl.py), `nccl_job`
    (nccl_job.py), `packages`, `differences` (settings.py), `stall` (stall.py, in the state stalled and where a process
    is stopped), `busy` (whether requests run) and `busy_because`, `moving`. What the checks ask beyond that: `exposed`,
    `key_set`, `p2p_cache_denies`, `rank_outliers`, `fault`, `nccl_known_faults` (nccl_faults.py).
    """
    for argv, limit in COMMANDS:
        evidence.start(argv, limit)
    table = processes.read_processes(evidence, errors)
    pieces = find_pieces(evidence).get("server") or {}
    if table is None and not pieces and not _was_looked_at(evidence):
        evidence.abandon()
        return None
    if table is None:
        params = {**params, **_of_pieces(pieces, evidence)}
    facts = _process_facts(evidence, params, table or processes.Table(), errors)
    unread = table is None or bool(table.unread)
    if params.get("only_if_found") and not (facts["process"] or facts["silent"] or facts["unit"]):
        evidence.abandon()
        return None
    engine = engines.ENGINES.get(facts["engine"] or "")
    below, silent = facts.pop("pids"), facts.pop("silent")
    facts["gpu"] = gpu_load.read_gpu_load(
        evidence, errors, {facts["process"]["pid"], *below} if facts["process"] else set()
    )
    _place_ranks(facts)
    _read_log(evidence, params, facts, engine, errors)
    engine = engine or engines.ENGINES.get(facts["log"]["engine"] or pieces.get("engine") or "")
    facts["engine"] = engine.name if engine else None
    _read_api(evidence, params, facts, engine, errors)
    server_state.name_first_phase(facts)
    server_state.judge_busy(facts)
    server_state.judge_state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
    units_known = facts["units_found"] == [] or facts["unit"] is not None
    if facts["state"] in ("absent", "stopped") and (unread or not units_known):
        facts["state"] = None
        what = "processes" if unread else "systemd's units"
        facts["why"] = "whether a server runs is not known: %s could not be read" % what
    if pieces and table is None:
        facts["state"], facts["why"] = server_state.judge_pieces(facts)
    if silent:  # "absent" would be a guess
        told = ", ".join("%d (%s, state %s)" % (one.pid, one.name, one.state) for one in silent)
        facts["state"] = "unhealthy"
        facts["why"] = (
            "whether a server runs is not known: the kernel does not give the command line of process %s" % told
        )
    facts["moving"] = stall.select_moving(facts)
    _generate(evidence, params, facts, errors)
    asked = facts["generation"]
    if asked["ran"] and not (asked["answered"] and asked["sane"] and asked["finite"] is not False):
        _read_log(evidence, params, facts, engine, errors)  # what went wrong just now stands there
        server_state.judge_state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
    elif asked["ran"] and facts["state"] == "unhealthy":
        facts["log"]["requests"]["answered_now"] = True
        server_state.judge_state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
    _host_side(evidence, params, facts, errors)
    _name_unknown(facts, unread)
    evidence.abandon()
    return facts


def _was_looked_at(evidence: Evidence) -> bool:
    """Whether a bundle was made with this module: then what it lacks of /proc was lost."""
    if is_only_pieces(evidence):
        return False
    asked = [evidence.run(command).status for command, _limit in (*COMMANDS, (units.FORMER_LIST_COMMAND, 0.0))]
    return evidence.list("/proc").status != NOT_CAPTURED or any(status != NOT_CAPTURED for status in asked)


def _name_unknown(facts: dict[str, Any], unread: bool) -> None:
    """What is not known for certain because a process could not be read: ranks that are missing may be among those."""
    ranks, expected = facts["ranks"], facts["ranks_expected"]
    unread = facts.pop("titles_unread") or unread
    engine = engines.ENGINES.get(facts["engine"] or "")
    untold = expected is None or engine is None or engine.rank is None
    facts["ranks_missing"] = None if untold else max(0, expected - len(ranks))
    if facts["ranks_missing"] and unread:
        facts["ranks_missing"] = None
    if not ranks and unread:
        facts["ranks"] = None
    reload, unit = (facts["unit"] or {}).get("needs_reload"), facts["unit"]
    facts["unit_current"] = None if reload is None else not reload
    if unit is None and facts["units_found"] == []:
        facts["unit_current"] = "n/a"
    log = facts["log"]
    asked = facts["generation"]
    if (
        facts["state"] == "ready"
        and asked["ran"] is not False
        and not asked["answered"]
        and not (log["available"] and not log["gap"])
    ):
        # /health may answer before a dead scheduler; neither an answer nor the log says that it is not so here
        facts["state"], facts["why"] = (
            None,
            "/health answers 200, and neither its log nor an answer to a request is known",
        )
    if facts["state"] == "ready" and facts["ranks_missing"] is None and unread and not asked["answered"]:
        facts["state"] = None
        facts["why"] = "/health answers 200, and a process that could not be read may be a rank that is stopped"
    log["without_fault"] = False if log["fatal"] else (True if log["available"] and not log["gap"] else None)


def _of_pieces(pieces: dict[str, Any], evidence: Evidence) -> dict[str, Any]:
    """The parameters that point at what was handed in of a server: its log, its answers."""
    log = {"log": LOOSE_LOG} if pieces.get("log") and LOOSE_LOG in evidence.paths() else {}
    return {**log, **({"port": LOOSE_PORT} if pieces.get("api") else {})}


def _process_facts(
    evidence: Evidence, params: dict[str, Any], table: dict[int, processes.Process], errors: Errors
) -> dict[str, Any]:
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
        by_ray = follows or ray_nodes.uses_ray(engine, live)
        node = ray_nodes.choose_node(evidence, top.pid, table, errors) if by_ray else None
        below = processes.find_descendants(top.pid, table)
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
        status = processes.read_status(evidence, top.pid, errors)
        limits = processes.read_limits(evidence, top.pid, errors)
        facts["process"] = {
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


def _place_ranks(facts: dict[str, Any]) -> None:
    for address, gpu in (facts["gpu"]["gpus"] or {}).items():
        for rank in facts["ranks"]:
            if rank["pid"] in gpu["pids"]:
                rank["gpu"] = address


def _read_log(
    evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], engine: Engine | None, errors: Errors
) -> None:
    source, known = _find_log_source(evidence, params, facts, engine, errors)
    zone = re.match(r"([+-])([0-9]{2})([0-9]{2})", evidence.run(ZONE_COMMAND, 5).text)
    hours, minutes = [values.number_in_name(part) for part in zone.groups()[1:]] if zone else (0, 0)
    offset = (hours * 3600 + minutes * 60) * (-1 if zone and zone[1] == "-" else 1)
    since = _started_at(evidence, facts, errors) if zone else None
    log = log_reader.read_log(source["text"] or "", evidence.now(), offset, engine, since)
    written = log["last_line_at"] if log["ends_with_request"] or source["modified"] is None else source["modified"]
    log.update(
        kind=source["kind"],
        path=source["path"],
        available=_is_available(source, known),
        gap=source["gap"],
        rotated=source["rotated"],
        age_s=round(max(0.0, evidence.now() - written), 1) if written is not None else None,
        **log_source.name_commands(source, facts["container"]),
    )
    facts["log"] = log


def _find_log_source(
    evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], engine: Engine | None, errors: Errors
) -> tuple[dict[str, Any], bool]:
    """(the log as log_source gives it, whether it is known that there is no other)."""
    process, container, unit = facts["process"], facts["container"], facts["unit"]
    path, known = params.get("log"), True
    if facts["node"] and facts["node"]["ray"] and facts["node"]["follower"] and facts["ranks"]:
        path = "/proc/%d/fd/1" % facts["ranks"][0]["pid"]  # what the unit writes is Ray's alone
    if not path and process and not (unit and unit["output"] and ":" in unit["output"]):
        path, known = processes.find_output(evidence, process["pid"], errors)
        path = _find_open_file(evidence, process["pid"], path) if container and path else path
    elif path and process:
        processes.find_output(evidence, process["pid"], Errors("server"))  # a bundle is read without this parameter
    if container and not path and not (unit and unit["loaded"]):
        place = container_log.find_log(evidence, container)
        return log_source.read_container_source(evidence, place, engine, errors), known
    return log_source.read_log_source(evidence, unit, path, engine, errors), known


def _find_open_file(evidence: Evidence, pid: int, target: str) -> str:
    """The name by which the host opens a file that a process in a container has open as `target`."""
    entries = evidence.list("/proc/%d/fd" % pid).entries
    number = next(name for name in ("2", "1") if name in entries and entries[name].target == target)
    return "/proc/%d/fd/%s" % (pid, number)


def _is_available(source: dict[str, Any], known: bool) -> bool | None:
    """Whether there is a log, read to its end; None where there may be one, or more of it, that could not be read."""
    if source["text"] is None:
        return None if source["kind"] or not known else False
    return None if source["cut"] else True


def _started_at(evidence: Evidence, facts: dict[str, Any], errors: Errors) -> float | None:
    """When the process started, or the unit's last one that has ended; what an older one wrote is of no interest."""
    if facts["process"]:
        started: float | None = facts["process"]["started_at"]
        return started
    after, boot = (facts["unit"] or {}).get("started_after_boot_s"), processes.read_boot_time(evidence, errors)
    return boot + after if after and boot is not None else None


def _address_to_ask(host: Any) -> str:
    """Where a server that listens on `host`, the first of several with commas between, answers from the host itself."""
    host = host.partition(",")[0].strip() if isinstance(host, str) else host
    if not isinstance(host, str) or host in ("0.0.0.0", "::", "*", "localhost"):  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return "[%s]" % host if ":" in host else host


def _read_api(
    evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], engine: Engine | None, errors: Errors
) -> None:
    live = (facts["process"] or {}).get("settings") or {}
    port = params.get("port") or (server_choice.find_port(engine, live) if engine and facts["process"] else None)
    given = engines.find_value(live, engine.port_names) if engine else None
    if port is None and given is not None:
        errors.odd("the command line of the server", "--port is no port", given)
    address, port = _find_place(evidence, facts, engine, port, errors)
    follower = server_state.is_follower(facts)
    if port is None or address is None or (follower and not (engine and engine.follower_answers)):
        facts["api"] = dict.fromkeys(api.FACTS)
    else:
        scheme = "https" if engine and engines.find_value(live, engine.tls_names) else "http"
        base = "%s://%s:%d" % (scheme, address, port)
        facts["api"] = api.read_api(
            evidence, base, engine, errors, key=params.get("api_key"), light=bool(params.get("light")),
            starts=_is_before_ready(facts["log"]), only_health=follower,
        )  # fmt: skip
    facts["model"] = facts["api"]["model"] or engines.find_served_name(
        facts["engine"], (facts["process"] or {}).get("arguments") or ()
    )
    environment = facts["environment"]
    facts["key_set"] = (
        None
        if facts["process"] is None
        else bool((engine and engines.find_value(live, engine.key_names)) or facts["api"]["needs_key"])
    )
    facts["exposed"] = None
    if follower:
        facts["exposed"] = False  # it answers /health, and nothing else
    elif facts["port"]["beyond_this_host"] is not None and facts["key_set"] is not None:
        # A key may also stand in the environment, under a name that never leaves the host: what the API answers without
        # one decides.
        answered = facts["api"]["models"] is not None and not params.get("api_key")
        facts["exposed"] = (
            facts["port"]["beyond_this_host"] and not facts["key_set"] and (answered or environment is not None)
        )


def _find_place(
    evidence: Evidence, facts: dict[str, Any], engine: Engine | None, port: int | None, errors: Errors
) -> tuple[str | None, int | None]:
    """(the address, the port) where the server is asked, and what is known of the port, `facts["port"]`."""
    process, container = facts["process"], facts["container"]
    live = (process or {}).get("settings") or {}
    proxied = facts.pop("proxied")
    if not container or container["network"] == "host" or port is None:
        facts["port"] = ports.read_port(evidence, port)
        return _address_to_ask(engines.find_value(live, engine.host_names) if engine else None), port
    own = server_choice.find_port(engine, live) if engine else None
    bindings = container_reader.list_bindings(container, proxied)
    if own is None or any(one["port"] == port for one in bindings):
        own = port  # of the parameters, as the server in the container knows it
    listens = ports.find_listening(evidence, own, process["pid"])
    way = container_reader.find_way(container, own, bindings, listens)
    container["reach"] = way
    facts["port"] = {**ports.read_port(evidence, own, process["pid"]), "port": way["port"]}
    if facts["port"]["listening"]:
        facts["port"]["beyond_this_host"] = way["beyond_this_host"]
    if way["address"] is None:
        errors.add("the container of the server", "no address or published port is known, where port %d answers" % own)
    return way["address"], way["port"]


def _is_before_ready(log: dict[str, Any]) -> bool:
    """Whether the log, read to its end, shows a start that is not ready: what listens on the port may be another
    process, and an engine that listens already says at once that it is not ready."""
    known = log["available"] and not log["gap"] and log["phase"] is not None
    return bool(known and not log["ready"])


def _generate(evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], errors: Errors) -> None:
    ran, reason = _whether_to_ask(params, facts)
    facts["generation"] = {"ran": ran, "skipped_reason": reason, **dict.fromkeys(api.GENERATION_FIELDS)}
    if ran is None:
        told = Errors("server")
        told.add("the server", "could not be asked for an answer: %s" % reason)
        errors.entries[:0] = told.entries  # first: a check shows a few, and this one says what to do
    if reason is None:
        pattern = params.get("expected_text") or (params.get("expected") or {}).get("text")
        asked = api.generate_answer(
            evidence, facts["api"]["base"], facts["model"], errors, key=params.get("api_key"), pattern=pattern
        )
        facts["generation"] = {"skipped_reason": None, **asked}


def _whether_to_ask(params: dict[str, Any], facts: dict[str, Any]) -> tuple[bool | None, str | None]:
    """Whether the server is asked for an answer, and why not.

    (False with the reason where there is nothing to ask, or it is not wanted; None with the reason where it cannot be;
    True, None).
    """
    wanted = params.get("generate") or "idle"
    if wanted == "never":
        return False, "not asked for"
    if server_state.is_follower(facts):
        rank = facts["node"]["rank"]
        runs = "ranks of the server of another host" if rank is None else "rank %s" % rank
        return False, "this host runs %s, which serves no API" % runs
    if facts["state"] is None:
        return None, facts["why"]
    if facts["state"] not in ("ready", "unhealthy"):
        return False, "the server is not ready"
    if (facts["api"]["health"] or {}).get("answered") is False:
        return False, "/health does not answer"
    if wanted == "idle" and facts["busy"]:
        return False, "the server works on requests: %s" % facts["busy_because"]
    if facts["api"]["base"] is None:
        return None, "the port on which it listens is not known"
    if facts["api"]["needs_key"]:
        return None, "it wants an API key, give it as api_key (host_validation_server_api_key)"
    if wanted == "idle" and facts["busy"] is None:
        return (
            None,
            "whether it is idle is not known; generate=always (host_validation_server_generate) asks all the same",
        )
    if not facts["model"]:
        return None, facts["api"]["models_problem"] or "neither the API nor the command line names a model"
    return True, None


def _nccl_version(facts: dict[str, Any]) -> str | None:
    """The version that the log names, else that of the package beside the server's Python."""
    named = ((facts["log"] or {}).get("nccl") or {}).get("version")
    packages = facts["packages"] or {}
    return named or next((version for name, version in packages.items() if name.startswith("nvidia-nccl-")), None)


def _gpu_ids(evidence: Evidence) -> set[int] | None:
    """None where a device on the bus could not be told: it may be a GPU."""
    devices = gpu_addresses.read_devices(evidence)
    if devices is None or set(evidence.list(gpu_addresses.DEVICES).entries) - set(devices):
        return None
    return {device.device for device in devices.values() if device.is_gpu}


def _measure_weights(evidence: Evidence, facts: dict[str, Any], errors: Errors) -> None:
    """Into the container's facts, where something limits its memory."""
    container, process = facts["container"], facts["process"]
    if container is not None and container["limits"]["memory_max_mib"] not in (None, "unlimited"):
        model = engines.find_model_path(facts["engine"], process["arguments"])
        container["weights_mib"] = container_reader.measure_model(evidence, process["pid"], model, facts["environment"])
        if container["weights_mib"] is None:
            errors.add(
                "the weights of %s" % (model or "the model"), "were not found where the container would have them"
            )


def _host_side(evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], errors: Errors) -> None:
    """What of the host bears on the server.

    NCCL's settings against the topology, caches, versions, what the inventory means.
    """
    process, environment = facts["process"], facts["environment"]
    home = (environment or {}).get("HOME")
    facts["differences"] = None
    facts["p2p_cache_denies"] = []
    facts["nccl_known_faults"] = None
    facts["nccl_job"] = {"asked": False, "answered": False, "reason": "no server runs", "stuck": None, "errors": None}
    facts["rank_outliers"] = facts["gpu"]["outliers"]
    if params.get("light") or not process:
        facts["nccl"] = nccl.read_nccl(evidence, None, None, None, 1)
        return
    engine = engines.ENGINES.get(facts["engine"] or "")
    expected = dict(params.get("expected") or {})
    if facts["node"]["ray"] and facts["node"]["follower"]:
        expected["arguments"] = {}  # those of the engine, which runs on another host
    facts["differences"] = settings.compare_settings(expected, process["settings"], environment, engine)
    inside = InsideEvidence(evidence, process["pid"]) if facts["container"] else evidence
    environment = None if facts["in_container"] is None else environment  # whose files they are is not known
    facts["packages"] = (
        None if environment is None else installed.find_packages(inside, process["arguments"], environment)
    )
    if facts["container"] and facts["container"]["network"] != "host":
        facts["nccl_job"]["reason"] = "its container has a network of its own"
    elif process["pid"]:
        version = _nccl_version(facts)
        facts["nccl_job"] = nccl_job.read_nccl_job(evidence, environment, version, facts["ranks_expected"], errors)
    faults = nccl_faults.find_known_faults(_nccl_version(facts), _gpu_ids(evidence))
    read = facts["log"]["available"] is not None and not facts["log"]["gap"]
    facts["nccl_known_faults"] = faults if read else faults or None  # the rest of the log may name another release
    facts["p2p_caches"] = None if environment is None else installed.find_p2p_caches(inside, home, errors)
    _measure_weights(evidence, facts, errors)
    facts["p2p_cache_denies"] = installed.name_denying_caches(facts["p2p_caches"])
    nodes = process["settings"].get("nnodes", "1")
    vendor = re.search(r"^vendor_id\s*: (\S+)", evidence.read("/proc/cpuinfo", 8192).text, re.MULTILINE)
    amd = vendor[1] == "AuthenticAMD" if vendor else None
    many = (facts["ranks_expected"] or 2) > 1 and len(facts["gpu"]["gpus"] or {}) > 1
    links = topology.gather(evidence, errors) if many else None
    facts["nccl"] = nccl.read_nccl(inside, environment, links, amd, values.whole_number(nodes) or 1, errors=errors)
