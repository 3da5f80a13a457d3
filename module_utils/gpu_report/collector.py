"""Gathers what the hosts of one run gave into the one report that every writer takes.

docs/report.schema.json is its form.

A host is `ready` only where its checks ran and said so. Every other end (unreachable, a task before the checks failed,
no result at all) leaves it `not_validated`, with the message of what ended it. A verdict is of now: where the run ended
at a task after the checks, what they had said is kept as `before` and is no verdict any more.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from ..gpu_checks import check_cache
from ..gpu_compare import alike

SCHEMA = 1
_SHOWN = 12
READY, NOT_READY, NOT_VALIDATED = "ready", "not_ready", "not_validated"


class Collector:
    """Fed by the callback while a run goes on; holds one small record per host."""

    def __init__(self, definitions: Callable[[str], dict[str, dict[str, Any]]] = check_cache.load_definitions) -> None:
        """`definitions` gives what the checks of a directory say of themselves:

        ``{id: {title, severity, tags, docs, explains}}``.
        """
        self._definitions = definitions
        self.hosts: dict[str, dict[str, Any]] = {}
        self.checks: dict[str, dict[str, Any]] = {}

    def seen(self, name: str) -> dict[str, Any]:
        """The record of the host, made where it is new."""
        new: dict[str, Any] = {"looks": [], "results": {}, "facts": "{}", "ended": None, "unreachable": False}
        later: dict[str, Any] = {"changed": "", "changes": [], "drift": None, "features": "null"}
        return self.hosts.setdefault(name, {**new, **later})

    def results(self, name: str, result: dict[str, Any]) -> None:
        """What run_checks returned. A later look at the same checks takes the place of an earlier one; one at other
        checks
        (a part) is added to it."""
        host = self.seen(name)
        if not isinstance(result.get("checks"), list) or not isinstance(result.get("summary"), dict):
            self.failed(name, str(result.get("msg") or "run_checks gave no results"))
            return
        self._define(result)
        ids = {check["id"] for check in result["checks"]}
        host["looks"] = [look for look in host["looks"] if not look["ids"] <= ids]
        if not host["looks"]:  # a task that failed before it was rescued, or the playbook would have ended
            host.update(ended=None, unreachable=False, results={})
        host["looks"].append({
            "ids": ids,
            "ready": result["summary"].get("ready") is True and not result.get("failed"),
            "message": str(result.get("msg") or ""),
            "problems": list(result.get("problems") or ()),
            "unproven": list(result.get("unproven") or ()),
            "part": str(result.get("part") or ""),
        })  # fmt: skip
        host["changed"] = ""
        for check in result["checks"]:
            said = {key: value for key, value in check.items() if key not in check_cache.OF_THE_CHECK}
            host["results"][check["id"]] = {
                key: value for key, value in said.items() if value not in ("", None, False, [])
            }
        host["facts"] = result.get("report_facts") or host["facts"]
        host["features"] = result.get("report_features") or host["features"]
        host["drift"] = result.get("report_drift") or host["drift"]

    def _define(self, result: dict[str, Any]) -> None:
        """Keep what the checks of `result` are, once for all hosts."""
        new = [check["id"] for check in result["checks"] if check["id"] not in self.checks]
        if new:
            known = self._definitions(result["checks_dir"])
            self.checks.update((name, known[name]) for name in new)

    def changed(self, name: str, task: str, where: str = "") -> None:
        """A task changed the host after it was looked at; `where`: another machine that it changed in its stead."""
        if name in self.hosts and self.hosts[name]["looks"]:
            record = self.hosts[name]
            record["changed"] = record["changed"] if where else task
            record["changes"].append("'%s'%s" % (task, " on " + where if where else ""))

    def failed(self, name: str, message: str, unreachable: bool = False, step: str = "") -> None:
        """A task (`step`) failed, or the host could not be reached: what was judged before is no verdict of now."""
        ended = {"step": step, "message": message or "a task failed without a message"}
        self.seen(name).update(ended=ended, unreachable=unreachable)

    def judged(self, name: str) -> bool:
        """Whether a verdict of the host is known."""
        return name in self.hosts and bool(self.hosts[name]["looks"])

    def report(self, run: dict[str, Any]) -> dict[str, Any]:
        """The report. `run` says when, with what and how it was asked for, and whether it is `complete`."""
        interrupted = run.get("complete") is False
        cut = interrupted or any(record["ended"] for record in self.hosts.values())
        without = "the run was interrupted before its checks" if interrupted else "no check ran on this host"
        hosts = {name: _describe(self.hosts[name], cut, without) for name in sorted(self.hosts, key=natural_key)}
        return summarise_hosts(run, self.checks, hosts)


def summarise_hosts(
    run: dict[str, Any], checks: dict[str, dict[str, Any]], hosts: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """The report of `hosts` as they are told in it: whether all are ready, the counts, and how they differ."""
    states = [host["state"] for host in hosts.values()]
    counted = [result["status"] for host in hosts.values() for result in host["results"]]
    return {
        "schema": SCHEMA,
        "run": run,
        "ready": bool(states) and all(state == READY for state in states) and run.get("complete") is not False,
        "totals": {
            "hosts": {
                "total": len(states),
                **{state: states.count(state) for state in (READY, NOT_READY, NOT_VALIDATED)},
            },
            "checks": {
                "total": len(counted),
                **{status: counted.count(status) for status in ("pass", "fail", "unknown", "skip", "waived", "error")},
            },
        },
        "checks": checks,
        **_compare_hosts({name: host.get("features") for name, host in hosts.items()}),
        "hosts": hosts,
    }


def _compare_hosts(features: dict[str, Any]) -> dict[str, Any]:
    """``{alike}`` where there are hosts of one kind."""
    found = alike.compare_alike(features)
    return {"alike": found} if found["kinds"] or found["alone"] else {}


def _describe(record: dict[str, Any], cut: bool, without: str) -> dict[str, Any]:
    """What the report says of one host. `cut`: the run did not come to its end, on this host or on another; `without`:
    why there is no result where nothing else is known."""
    looks = record["looks"]
    bad = [look for look in looks if not look["ready"]]
    state = NOT_VALIDATED if not looks else NOT_READY if bad else READY
    host = {
        "state": state,
        "message": (bad or looks or [{"message": without}])[-1]["message"],
        "unreachable": record["unreachable"],
        "problems": list(dict.fromkeys(problem for look in looks for problem in look["problems"])),
        "unproven": list(dict.fromkeys(text for look in looks for text in look["unproven"])),
        "results": list(record["results"].values()),
        # Kept as text until now: the controller's memory is copied for every task of every host.
        "facts": json.loads(record["facts"]),
    }
    parts = [look["part"] for look in looks if look["part"]]
    if parts and len(parts) == len(looks):
        host["part"] = parts[-1]
    why = _why_no_verdict(record, cut)
    if why:
        before = {"before": {name: host[name] for name in ("state", "message", "results")}} if looks else {}
        host.update(state=NOT_VALIDATED, message=why, unproven=[], results=[], **before)
        return host
    if record["drift"]:
        host["drift"] = json.loads(record["drift"])
    features = json.loads(record["features"])
    if features is not None:
        host["features"] = features
    if record["changed"]:
        host["unproven"].append("that this still holds: '%s' changed something after the last look" % record["changed"])
    return host


def _why_no_verdict(record: dict[str, Any], cut: bool) -> str:
    ended, looks = record["ended"], record["looks"]
    changes = list(dict.fromkeys(record["changes"]))
    if ended and not looks:
        return "%s: %s" % (ended["step"], ended["message"]) if ended["step"] else str(ended["message"])
    if ended:
        said = "the run ended at '%s': %s" % (ended["step"] or "a task", ended["message"])
        if not changes:
            return said
        more = ", and %d before those" % (len(changes) - _SHOWN) if len(changes) > _SHOWN else ""
        end = "" if said.endswith((".", "!", "?")) else "."
        return "%s%s Changed by then: %s%s." % (said, end, ", ".join(changes[-_SHOWN:]), more)
    if cut and looks and record["changed"]:
        return "the run ended after '%s' changed something, and before the host was looked at again" % record["changed"]
    return ""


def natural_key(name: str) -> list[Any]:
    """A sort key that puts gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
