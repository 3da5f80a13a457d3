"""One report of several runs: of the workers that a large inventory was spread over, of several clusters or control
nodes.

Nothing is judged anew: a verdict is that of the run which looked. What is of the fleet as a whole is made again: the
counts, whether all are ready, and how hosts of one kind differ. A part that gave no report is named, and its hosts are
not validated.
"""

from __future__ import annotations

import datetime
import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from . import collector

# Exit statuses of ansible-playbook.
READY, NOT_WRITTEN, NOT_READY, UNREACHABLE = 0, 1, 2, 4


class MergeError(ValueError):
    """Reports that cannot be one; the message says why and what to do."""


@dataclass(frozen=True)
class Part:
    """What one run gave: its report, or None and the `problem` that left it without one.

    `hosts`: those that it was to look at, where that is known. `prefix` is put before the names of its hosts.
    """

    name: str
    report: dict[str, Any] | None = None
    problem: str = ""
    hosts: Sequence[str] = ()
    prefix: str = ""


def merge_reports(parts: Sequence[Part]) -> dict[str, Any]:
    """The report that one run over all hosts would have given, with `parts` in its `run`."""
    hosts: dict[str, dict[str, Any]] = {}
    checks: dict[str, dict[str, Any]] = {}
    owners: dict[str, str] = {}
    for part in parts:
        for name, host in {**_miss_hosts(part), **(part.report or {"hosts": {}})["hosts"]}.items():
            shown = part.prefix + name
            if shown in owners:
                raise MergeError(
                    "The host %s is in the reports of %s and of %s. If they are two machines, give the reports names: "
                    "NAME=PATH puts NAME before the names of its hosts." % (shown, owners[shown], part.name)
                )
            owners[shown], hosts[shown] = part.name, host
        for name, check in (part.report or {"checks": {}})["checks"].items():
            checks.setdefault(name, check)
    ordered = {name: hosts[name] for name in sorted(hosts, key=collector.natural_key)}
    return collector.summarise_hosts(_describe_run(parts), checks, ordered)


def _miss_hosts(part: Part) -> dict[str, dict[str, Any]]:
    """A record for every host that the run was to look at: it stands where the report has none."""
    said = part.problem or "its run ended before it was looked at"
    record = {"state": collector.NOT_VALIDATED, "message": "not looked at: %s: %s" % (part.name, said)}
    nothing: dict[str, Any] = {"unreachable": False, "problems": [], "unproven": [], "results": [], "facts": {}}
    return {name: {**record, **nothing} for name in part.hosts}


def _describe_run(parts: Sequence[Part]) -> dict[str, Any]:
    runs = [part.report["run"] for part in parts if part.report]
    began = min((run["started_at"] for run in runs), default="")
    return {
        "playbook": ", ".join(dict.fromkeys(run["playbook"] for run in runs)),
        "started_at": began,
        "seconds": _measure_seconds(runs),
        "ansible_core": ", ".join(sorted({run["ansible_core"] for run in runs})),
        "complete": bool(runs) and not any(part.problem for part in parts) and all(
            run.get("complete") is not False for run in runs
        ),
        "parts": [_describe_part(part) for part in parts],
    }  # fmt: skip


def _describe_part(part: Part) -> dict[str, Any]:
    run = part.report["run"] if part.report else {}
    own = {name: run[name] for name in ("started_at", "seconds", "complete") if name in run}
    hosts = {*part.hosts, *(part.report["hosts"] if part.report else ())}
    return {"name": part.name, "hosts": len(hosts), "problem": part.problem, **own}


def _measure_seconds(runs: Sequence[dict[str, Any]]) -> float:
    """From the first start to the last end."""
    try:
        starts = [datetime.datetime.fromisoformat(run["started_at"]) for run in runs]
        ends = [start + datetime.timedelta(seconds=run["seconds"]) for start, run in zip(starts, runs)]
        return round((max(ends) - min(starts)).total_seconds(), 1) if runs else 0.0
    except (TypeError, ValueError, OverflowError):  # moments of another form
        return round(sum(run["seconds"] for run in runs), 1)


def find_exit_status(report: dict[str, Any]) -> int:
    """As ansible-playbook ends: 4 where a host could not be reached, 2 where one is not ready, 1 where no host was
    validated or a part gave no report."""
    if not report["hosts"]:
        return NOT_WRITTEN
    if any(host["unreachable"] for host in report["hosts"].values()):
        return UNREACHABLE
    if any(host["state"] != collector.READY for host in report["hosts"].values()):
        return NOT_READY
    return READY if report["ready"] else NOT_WRITTEN


def read_report(text: str | bytes) -> dict[str, Any]:
    """A report.json. MergeError says why it is none that can be merged."""
    try:
        report = json.loads(text)
    except ValueError as error:
        raise MergeError("it is no whole JSON (%s)" % error) from error
    if not isinstance(report, dict) or "schema" not in report:
        raise MergeError("it is no report.json")
    if report["schema"] != collector.SCHEMA:
        raise MergeError("its schema is %s, and %d is known here" % (report["schema"], collector.SCHEMA))
    fault = _find_fault(report)
    if fault:
        raise MergeError("it is no whole report.json: %s" % fault)
    return report


def _find_fault(report: dict[str, Any]) -> str:
    """What the writers rely on and `report` has not; docs/report.schema.json."""
    run, checks, hosts = (report.get(name) for name in ("run", "checks", "hosts"))
    if not isinstance(run, dict) or not isinstance(checks, dict) or not isinstance(hosts, dict):
        return "run, checks or hosts is missing"
    for name, kind in (("playbook", str), ("started_at", str), ("seconds", (int, float)), ("ansible_core", str)):
        if not isinstance(run.get(name), kind):
            return "run.%s is missing" % name
    for name, host in hosts.items():
        if not isinstance(host, dict) or host.get("state") not in (
            collector.READY,
            collector.NOT_READY,
            collector.NOT_VALIDATED,
        ):
            return "the host %s has no state" % name
        kinds = {"message": str, "unreachable": bool, "problems": list, "results": list, "facts": dict}
        missing = [key for key, kind in kinds.items() if not isinstance(host.get(key), kind)]
        if missing:
            return "the host %s has no %s" % (name, " and no ".join(missing))
        for result in [*host["results"], *(host.get("before") or {}).get("results", ())]:
            if not isinstance(result, dict) or result.get("id") not in checks or "status" not in result:
                return "a result of the host %s is of no check" % name
    return ""
