"""What the facts of a server add up to: its state, in a word and a sentence, and whether it works on requests.

Pure functions of facts that were read; they write ``state``, ``why``, ``stall``, ``fault``, ``busy`` and
``busy_because``.
"""

from __future__ import annotations

from typing import Any

from . import engines, ray_nodes, stall
from .engines.engine import IMPORTS

LOADED = ("compile", "kv_cache", "autotune", "graphs", "engine_ready", "listening", "ready")  # phases after the weights
FRESH_SECONDS = 60.0  # a decode line this young says what happens now


def is_follower(facts: dict[str, Any]) -> bool:
    """Whether this host runs another rank than 0 of a server over several hosts, which serves no API."""
    return bool((facts["node"] or {}).get("follower"))


def name_first_phase(facts: dict[str, Any]) -> None:
    """Name what comes before the first phase.

    A process whose log is whole, names no phase yet and shows no work, and whose port does not answer, imports: an
    engine does that for up to some minutes, and says at most a warning meanwhile.
    """
    log = facts["log"]
    worked = log["decode"] or log["requests"]["ok"] or log["requests"]["failed"] or log["ready"]
    answers = facts["api"]["reachable"]
    if facts["process"] and log["available"] and not log["gap"] and log["phase"] is None and not worked and not answers:
        log["phase"] = IMPORTS


def judge_busy(facts: dict[str, Any]) -> None:
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


def judge_state(facts: dict[str, Any], scale: float) -> None:
    facts["stall"] = None
    facts["fault"] = facts["log"]["fatal"]
    # One that just answered was stopped for a moment only, as py-spy does it.
    stopped = [] if facts["log"]["requests"].get("answered_now") else stall.find_stopped(facts)
    facts["state"], facts["why"] = _named_state(facts, scale, stopped)
    if facts["state"] == "stalled" or (facts["state"] == "unhealthy" and stopped):
        log = facts["log"]
        facts["stall"] = {
            **stall.find_cause(facts), "phase": log["phase"], "since_s": log["age_s"],
            "stopped": [one["pid"] for one in stopped],
        }  # fmt: skip
    if facts["state"] == "stalled":
        facts["why"] = "%s; %s" % (facts["why"], facts["stall"]["what"])


def _named_state(facts: dict[str, Any], scale: float, stopped: list[dict[str, Any]]) -> tuple[str | None, str]:
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
    if stopped and (log["ready"] or health.get("answered") or (is_follower(facts) and log["phase"] in LOADED)):
        return "unhealthy", stall.describe_stopped(stopped)
    if is_follower(facts):
        return _state_of_follower(facts, said, scale)
    if health.get("code") == 200 and health["answered"]:
        return (
            ("unhealthy", said)
            if fault and fault["phase"] == "serving" and not_served_since(log)
            else ("ready", "/health answers 200")
        )
    if log["ready"] and not fault and not health:
        why = "its /health was not captured" if facts["api"]["base"] else "where its port can be asked is not known"
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
    if stopped:
        return "stalled", "phase %s" % (phase or "unknown")
    if not facts["compilers"] and quiet is not None and quiet > stall.find_patience(phase, scale):
        return "stalled", "phase %s, no new line for %.0f s" % (phase or "unknown", quiet)
    return "starting", "phase %s" % (phase or "unknown")


def _state_of_follower(facts: dict[str, Any], said: str, scale: float) -> tuple[str | None, str]:
    """The state of a rank that serves no API: by its processes, its log, and its /health where it has one."""
    node, log, health = facts["node"], facts["log"], facts["api"]["health"] or {}
    engine = engines.ENGINES.get(facts["engine"] or "")
    told = (
        "its ranks are those of the server on %s, by Ray" % (node["address"] or "rank 0")
        if node["ray"]
        else "rank %s of %s hosts; requests go to rank 0 at %s" % (node["rank"], node["nodes"], node["address"])
    )
    if said:
        return ("unhealthy" if log["fatal"]["phase"] == "serving" else "failed"), said
    if engine and engine.follower_answers:
        if health.get("code") == 200 and health["answered"]:
            return "ready", "%s; its ranks are ready, /health answers 200" % told
    elif ray_nodes.waits_for_server(facts):
        return "starting", "%s; it has started none here yet" % told
    elif node["ray"] and facts["ranks_expected"] is None:
        return None, "%s; %d run here, and how many belong here is not known" % (told, len(facts["ranks"] or ()))
    elif facts["ranks"] and len(facts["ranks"]) >= (facts["ranks_expected"] or 1) and log["phase"] in LOADED:
        return "ready", "%s; its %d ranks run, and have loaded the model" % (told, len(facts["ranks"]))
    quiet = log["age_s"]
    if not facts["compilers"] and quiet is not None and quiet > stall.find_patience(log["phase"], scale):
        return "stalled", "%s; phase %s, no new line for %.0f s" % (told, log["phase"] or "unknown", quiet)
    return "starting", "%s; phase %s" % (told, log["phase"] or "unknown")


def not_served_since(log: dict[str, Any]) -> bool:
    """Whether no request was answered after the fault, by the order of the log and by what was asked just now."""
    requests = log["requests"]
    if requests.get("answered_now"):
        return False
    answered = requests["last_ok_number"]
    return answered is None or (bool(log["fatal"]) and log["fatal"]["last_number"] > answered)


def judge_pieces(facts: dict[str, Any]) -> tuple[str | None, str]:
    """The state that a log alone shows, without a process or an answer: how it ended, or nothing that holds now."""
    fault = facts["log"]["fatal"]
    if fault:
        return "failed", "%s: %s" % (fault["kind"].replace("_", " "), fault["exception"] or fault["line"])
    phase = facts["log"]["phase"]
    told = (
        "its log was ready" if facts["log"]["ready"] else "its log ends in the phase %s" % phase if phase else "no log"
    )
    return None, "%s; whether a server runs now was not captured" % told
