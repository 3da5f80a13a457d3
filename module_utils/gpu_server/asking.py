"""Where a server is asked, what its API answers, and whether it is asked for a generation (api.py asks)."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from . import api, engines, ports, server_choice, server_state
from .containers import container_reader
from .engines import Engine


def _address_to_ask(host: Any) -> str:
    """Where a server that listens on `host`, the first of several with commas between, answers from the host itself."""
    host = host.partition(",")[0].strip() if isinstance(host, str) else host
    if not isinstance(host, str) or host in ("0.0.0.0", "::", "*", "localhost"):  # noqa: S104  compared, not bound
        return "127.0.0.1"
    return "[%s]" % host if ":" in host else host


def read_api(
    evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], engine: Engine | None, errors: Errors
) -> None:
    """Into `facts`: `port`, `api`, `model`, `key_set` and `exposed`."""
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


def ask_for_answer(evidence: Evidence, params: dict[str, Any], facts: dict[str, Any], errors: Errors) -> None:
    """Into `facts`: `generation`, asked for where that is wanted and disturbs nobody."""
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
