"""All facts of the inference server of a host.

What was started, what it says, what it answers, and what that adds up to.
"""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host import topology
from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import NOT_CAPTURED, Evidence
from ..gpu_host.evidence.sides import find_pieces, is_only_pieces
from ..gpu_host.pcie import gpu_addresses
from . import (
    asking,
    engines,
    gpu_load,
    installed,
    nccl,
    nccl_faults,
    nccl_job,
    processes,
    server_processes,
    server_state,
    settings,
    stall,
    units,
)
from .containers import container_log, container_reader
from .containers.inside import InsideEvidence
from .engines import Engine
from .log import log_reader, log_source

OWN_LINES_WITHIN_S = 60.0  # a server that writes a log has written a line by then
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
    facts = server_processes.read_server_processes(evidence, params, table or processes.Table(), errors)
    unread = table is None or bool(table.unread)
    hidden = bool(table and table.hidden)
    if params.get("only_if_found") and not (facts["process"] or facts["silent"] or facts["unit"] or hidden):
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
    asking.read_api(evidence, params, facts, engine, errors)
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
    asking.ask_for_answer(evidence, params, facts, errors)
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
        gap=source["gap"] or _is_all_older(source, log, facts["process"], errors),
        rotated=source["rotated"],
        age_s=_measure_silence(evidence.now(), written, facts["process"]),
        **log_source.name_commands(source, facts["container"]),
    )
    facts["log"] = log


def _measure_silence(now: float, written: float | None, process: dict[str, Any] | None) -> float | None:
    """Seconds since the last line; None where it is of the future, as after the clock was set back.

    Not longer than the process runs, which is known by the uptime: a clock that was set forward makes lines old.
    """
    age = log_reader.measure_age(now, written)
    runs_for = (process or {}).get("age_s")
    return age if age is None or runs_for is None else round(min(age, max(0.0, runs_for)), 1)


def _is_all_older(source: dict[str, Any], log: dict[str, Any], process: dict[str, Any] | None, errors: Errors) -> bool:
    """Whether no line is of this start of a server that has run for a while."""
    runs_for = (process or {}).get("age_s") or 0.0
    if log["lines"] or not (source["text"] or "").strip() or runs_for < OWN_LINES_WITHIN_S:
        return False
    why = "every line is older than the start of the server: it is another's, or the clock was changed since"
    errors.add(source["path"] or source["kind"] or "the log", why)
    return True


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
