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
from ..gpu_host.evidence.sides import find_pieces, is_only_pieces
from ..gpu_host.pcie import gpu_addresses
from . import api, engines, gpu_load, installed, nccl, nccl_faults, nccl_job, ports, processes, settings, stall, units
from .engines import Engine
from .engines.engine import IMPORTS
from .log import log_reader, log_source

ZONE_COMMAND = ("date", "+%z")
LOOSE_LOG, LOOSE_PORT = "/loose/server.log", 8000  # as gpu_host/loose/of_servers.py names them
FRESH_SECONDS = 60.0  # a decode line this young says what happens now
COMMANDS = (
    (gpu_load.GPUS_COMMAND, gpu_load.SECONDS),
    (gpu_load.APPS_COMMAND, gpu_load.SECONDS),
    (units.LIST_COMMAND, units.SECONDS),
)


FACTS = (
    "engine",
    "engines_found",
    "process",
    "environment",
    "ranks",
    "ranks_expected",
    "ranks_missing",
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
    `engines_found`. `unit` (units.py). `process`: `{pid, command, arguments, settings, started_at, age_s, user_id,
    rss_mib, unit, memlock_kib, open_files, python}`. `environment`: allowed names of the live process. `ranks`:
    `[{rank, pid, name, state, cpu_s, threads, wait_channel, read_bytes, gpu}]`, `ranks_expected`, `compilers`, `locks`,
    `p2p_caches`. `gpu` (gpu_load.py), `port` (ports.py), `api` and `generation` (api.py; `ran` is None where the server
    could not be asked). `model`: the name by which requests ask for it, listed or else of the command line. `log`
    (log_reader.py, with `kind`, `path`, `age_s`), `nccl` (nccl.py), `nccl_job` (nccl_job.py), `packages`, `differences`
    (settings.py), `stall` (stall.py, only in the state stalled), `busy` (whether requests run) and `busy_because`,
    `moving`. What the checks ask beyond that: `exposed`, `key_set`, `p2p_cache_denies`, `rank_outliers`, `fault`,
    `nccl_known_faults` (nccl_faults.py).
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
    _name_first_phase(facts)
    _judge_busy(facts)
    _state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
    units_known = facts["units_found"] == [] or facts["unit"] is not None
    if facts["state"] in ("absent", "stopped") and (unread or not units_known):
        facts["state"] = None
        what = "processes" if unread else "systemd's units"
        facts["why"] = "whether a server runs is not known: %s could not be read" % what
    if pieces and table is None:
        facts["state"], facts["why"] = _state_of_pieces(facts)
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
        _state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
    elif asked["ran"] and facts["state"] == "unhealthy":
        facts["log"]["requests"]["answered_now"] = True
        _state(facts, values.decimal_number(params.get("patience_scale")) or 1.0)
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
    log["without_fault"] = False if log["fatal"] else (True if log["available"] and not log["gap"] else None)


def _of_pieces(pieces: dict[str, Any], evidence: Evidence) -> dict[str, Any]:
    """The parameters that point at what was handed in of a server: its log, its answers."""
    log = {"log": LOOSE_LOG} if pieces.get("log") and LOOSE_LOG in evidence.paths() else {}
    return {**log, **({"port": LOOSE_PORT} if pieces.get("api") else {})}


def _state_of_pieces(facts: dict[str, Any]) -> tuple[str | None, str]:
    """The state that a log alone shows, without a process or an answer: how it ended, or nothing that holds now."""
    fault = facts["log"]["fatal"]
    if fault:
        return "failed", "%s: %s" % (fault["kind"].replace("_", " "), fault["exception"] or fault["line"])
    phase = facts["log"]["phase"]
    told = (
        "its log was ready" if facts["log"]["ready"] else "its log ends in the phase %s" % phase if phase else "no log"
    )
    return None, "%s; whether a server runs now was not captured" % told


def _process_facts(
    evidence: Evidence, params: dict[str, Any], table: dict[int, processes.Process], errors: Errors
) -> dict[str, Any]:
    found, silent = processes.find_servers(evidence, table, errors)
    if params.get("outside_containers"):
        found = [one for one in found if not processes.is_in_container(evidence, one[0].pid)]
        silent = [one for one in silent if not processes.is_in_container(evidence, one.pid)]
    chosen = _choose(evidence, found, params, errors)
    facts: dict[str, Any] = {
        "engine": None,
        "engines_found": [{"engine": one.name, "pid": top.pid} for top, _words, one in found],
        "process": None,
        "environment": None,
        "ranks": [],
        "ranks_expected": None,
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
    if not chosen:
        facts["silent"] = [
            one for one in silent if not name or processes.find_unit(evidence, one.pid) in (None, _service(name))
        ]
    else:
        top, words, engine = chosen
        facts["environment"] = processes.read_environment(evidence, top.pid, errors)
        live = engines.find_settings(engine, words, facts["environment"])
        below = processes.find_descendants(top.pid, table)
        facts["pids"] = {process.pid for process in below}
        facts["engine"] = engine.name
        facts["locks"] = installed.find_locks(evidence, (facts["environment"] or {}).get("HOME"))
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
            "unit": processes.find_unit(evidence, top.pid),
            "python": words[0],
            **limits,
        }
        facts["ranks_expected"] = engines.find_tensor_parallel(engine, live)
        if facts["ranks_expected"] is None:
            given = [live[name] for name in engine.tensor_parallel if name in live]
            errors.odd("the command line of the server", "the number of tensor-parallel ranks is no number", given)
        facts["ranks"], facts["titles_unread"] = _ranks(evidence, engine, below, errors)
        facts["compilers"] = [
            {"pid": process.pid, "name": process.name, "cpu_s": process.cpu_s}
            for process in below
            if process.name in processes.COMPILERS
        ]
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


def _choose(
    evidence: Evidence, found: list[tuple[processes.Process, list[str], Engine]], params: dict[str, Any], errors: Errors
) -> Any:
    """The server that the parameters name (by unit, else by port); the oldest where they name none."""
    if params.get("unit"):
        return next(
            (one for one in found if processes.find_unit(evidence, one[0].pid) == _service(params["unit"])), None
        )
    if params.get("port"):
        for top, words, engine in found:
            environment = processes.read_environment(evidence, top.pid, errors) if engine.settings_prefix else None
            if _port_of(engine, engines.find_settings(engine, words, environment)) == params["port"]:
                return top, words, engine
        return None
    return found[0] if found else None


def _service(name: str) -> str:
    return name if name.endswith(".service") else name + ".service"


def _port_of(engine: Engine, live: dict[str, Any]) -> int | None:
    given = engines.find_value(live, engine.port_names)
    value = str(engine.default_port) if given is None else given
    port = values.whole_number(value) if values.is_digits(value) else None
    return port if port is not None and port < 65536 else None


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
    process = facts["process"]
    path, known = params.get("log"), True
    if not path and process and not (facts["unit"] and facts["unit"]["output"] and ":" in facts["unit"]["output"]):
        path, known = processes.find_output(evidence, process["pid"], errors)
    elif path and process:
        processes.find_output(evidence, process["pid"], Errors("server"))  # a bundle is read without this parameter
    source = log_source.read_log_source(evidence, facts["unit"], path, engine, errors)
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
    )
    facts["log"] = log


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
    port = params.get("port") or (_port_of(engine, live) if engine and facts["process"] else None)
    given = engines.find_value(live, engine.port_names) if engine else None
    if port is None and given is not None:
        errors.odd("the command line of the server", "--port is no port", given)
    facts["port"] = ports.read_port(evidence, port)
    address = _address_to_ask(engines.find_value(live, engine.host_names) if engine else None)
    if port is None:
        facts["api"] = dict.fromkeys(api.FACTS)
    else:
        scheme = "https" if engine and engines.find_value(live, engine.tls_names) else "http"
        base = "%s://%s:%d" % (scheme, address, port)
        facts["api"] = api.read_api(
            evidence, base, engine, errors, key=params.get("api_key"), light=bool(params.get("light")),
            starts=_is_before_listening(facts["log"]),
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
    if facts["port"]["beyond_this_host"] is not None and facts["key_set"] is not None:
        # A key may also stand in the environment, under a name that never leaves the host: what the API answers without
        # one decides.
        answered = facts["api"]["models"] is not None and not params.get("api_key")
        facts["exposed"] = (
            facts["port"]["beyond_this_host"] and not facts["key_set"] and (answered or environment is not None)
        )


def _is_before_listening(log: dict[str, Any]) -> bool:
    """Whether the log, read to its end, shows a start that has not come as far as its own port: whatever listens there
    is another process."""
    reached = {phase["name"] for phase in log["phases"]}
    known = log["available"] and not log["gap"] and log["phase"] is not None
    return bool(known and not log["ready"] and not reached & {"listening", "ready"})


def _name_first_phase(facts: dict[str, Any]) -> None:
    """Name what comes before the first phase.

    A process whose log is whole, names no phase yet and shows no work, and whose port does not answer, imports: an
    engine does that for up to some minutes, and says at most a warning meanwhile.
    """
    log = facts["log"]
    worked = log["decode"] or log["requests"]["ok"] or log["requests"]["failed"] or log["ready"]
    answers = facts["api"]["reachable"]
    if facts["process"] and log["available"] and not log["gap"] and log["phase"] is None and not worked and not answers:
        log["phase"] = IMPORTS


def _judge_busy(facts: dict[str, Any]) -> None:
    """Whether requests run now; None where nothing young enough says so.

    Every request holds a connection: with none open, what a log line of some seconds ago counted has been answered,
    as our own question whether the server is ready.
    """
    metrics, decode = facts["api"]["metrics"] or {}, facts["log"]["decode"]
    running, queue = metrics.get("running"), metrics.get("queue")
    facts["busy"], facts["busy_because"] = None, None
    if running is not None:
        facts["busy"] = bool(running or queue)
        facts["busy_because"] = "%d requests run, %d wait" % (running, queue or 0)
    elif (
        decode
        and decode["age_s"] is not None
        and decode["age_s"] <= FRESH_SECONDS
        and (decode["running"] or decode["queue"])
        and facts["port"]["connections"] != 0
    ):
        facts["busy"] = True
        facts["busy_because"] = "%d requests ran %d s ago" % (decode["running"], decode["age_s"])
    elif facts["gpu"]["busy"] is not None:
        facts["busy"] = facts["gpu"]["busy"]
        facts["busy_because"] = "GPU utilisation is %s %%" % ", ".join(
            "%d" % value for value in facts["gpu"]["utilization"]
        )
    elif (
        facts["port"]["connections"] == 0 and not facts["gpu"]["unread"]
    ):  # an open one may be kept alive for later, and says nothing
        facts["busy"], facts["busy_because"] = False, "no client is connected to port %s" % facts["port"]["port"]


def _state(facts: dict[str, Any], scale: float) -> None:
    facts["stall"] = None
    facts["fault"] = facts["log"]["fatal"]
    facts["state"], facts["why"] = _named_state(facts, scale)
    if facts["state"] == "stalled":
        facts["stall"] = {**stall.find_cause(facts), "phase": facts["log"]["phase"], "since_s": facts["log"]["age_s"]}
        facts["why"] = "%s; %s" % (facts["why"], facts["stall"]["what"])


def _named_state(facts: dict[str, Any], scale: float) -> tuple[str | None, str]:
    process, unit, log, health = facts["process"], facts["unit"], facts["log"], facts["api"]["health"] or {}
    fault = log["fatal"]
    said = "%s: %s" % (fault["kind"].replace("_", " "), fault["exception"] or fault["line"]) if fault else ""
    if process is None:
        if unit and unit["active"] in ("failed", "activating"):
            ended = "%s is %s, exit status %s, %s restarts" % (
                unit["name"],
                unit["sub"],
                unit["exit_status"],
                unit["restarts"],
            )
            return "failed", "%s; %s" % (ended, said or log["last_line"] or "no log line")
        if unit and unit["loaded"]:
            return ("failed", said) if fault else ("stopped", "%s is %s" % (unit["name"], unit["active"]))
        return ("failed", said) if fault else ("absent", "no process of a known engine, and no unit of one")
    if health.get("code") == 200 and health["answered"]:
        return (
            ("unhealthy", said)
            if fault and fault["phase"] == "serving" and _not_served_since(log)
            else ("ready", "/health answers 200")
        )
    if log["ready"] and not fault and not health:
        why = "its /health was not captured" if facts["api"]["base"] else "the port on which it listens is not known"
        return None, "it was ready, and whether it answers now is not known: %s" % why
    if log["ready"] and (health.get("answered") or not health.get("code")):
        now = "answers %s" % health["code"] if health.get("code") else "does not answer: %s" % health.get("problem")
        if log["stopping"]:
            return "unhealthy", "it was told to stop, and /health now %s: %s" % (now, log["stopping"])
        return "unhealthy", said or "it was ready, and /health now " + now
    if fault:
        return "failed", said
    phase, quiet = log["phase"], log["age_s"]
    if health.get("code") and not health["answered"]:
        return None, "whether it is ready is not known: the answer of /health has no end: %s" % health["problem"]
    if facts["api"]["models"] and phase is None:
        if not health.get("answered") or log["available"] is None:
            return None, "/v1/models answers, and neither /health nor its log says whether it is ready"
        return "ready", "/v1/models answers, /health with %s, and there is no log of a start" % health.get("code")
    if not facts["compilers"] and quiet is not None and quiet > stall.find_patience(phase, scale):
        return "stalled", "phase %s, no new line for %.0f s" % (phase or "unknown", quiet)
    return "starting", "phase %s" % (phase or "unknown")


def _not_served_since(log: dict[str, Any]) -> bool:
    """Whether no request was answered after the fault, by the order of the log and by what was asked just now."""
    requests = log["requests"]
    if requests.get("answered_now"):
        return False
    answered = requests["last_ok_number"]
    return answered is None or (bool(log["fatal"]) and log["fatal"]["last_number"] > answered)


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
    facts["differences"] = settings.compare_settings(
        params.get("expected") or {}, process["settings"], environment, engine
    )
    facts["packages"] = installed.find_packages(evidence, process["arguments"], environment)
    if process["pid"]:
        version = _nccl_version(facts)
        facts["nccl_job"] = nccl_job.read_nccl_job(evidence, environment, version, facts["ranks_expected"], errors)
    faults = nccl_faults.find_known_faults(_nccl_version(facts), _gpu_ids(evidence))
    read = facts["log"]["available"] is not None and not facts["log"]["gap"]
    facts["nccl_known_faults"] = faults if read else faults or None  # the rest of the log may name another release
    facts["p2p_caches"] = None if environment is None else installed.find_p2p_caches(evidence, home, errors)
    facts["p2p_cache_denies"] = installed.name_denying_caches(facts["p2p_caches"])
    nodes = process["settings"].get("nnodes", "1")
    vendor = re.search(r"^vendor_id\s*: (\S+)", evidence.read("/proc/cpuinfo", 8192).text, re.MULTILINE)
    amd = vendor[1] == "AuthenticAMD" if vendor else None
    many = (facts["ranks_expected"] or 2) > 1 and len(facts["gpu"]["gpus"] or {}) > 1
    links = topology.gather(evidence, errors) if many else None
    facts["nccl"] = nccl.read_nccl(evidence, environment, links, amd, values.whole_number(nodes) or 1, errors=errors)
