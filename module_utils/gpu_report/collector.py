"""Gathers what the hosts of one run gave into the one report that every writer takes. docs/report.schema.json is its
form.

A host is `ready` only where its checks ran and said so. Every other end (unreachable, a task before the checks failed,
no result at all) leaves it `not_validated`, with the message of what ended it.
"""

from __future__ import annotations

import json
import re
from typing import Any, Callable

from ..gpu_checks import loaded

SCHEMA = 1
READY, NOT_READY, NOT_VALIDATED = "ready", "not_ready", "not_validated"


class Collector:
    """Fed by the callback while a run goes on; holds one small record per host."""

    def __init__(self, definitions: Callable[[str], dict[str, dict[str, Any]]] = loaded.definitions) -> None:
        """`definitions` gives what the checks of a directory say of themselves: ``{id: {title, severity, tags, docs,
        explains}}``."""
        self._definitions = definitions
        self.hosts: dict[str, dict[str, Any]] = {}
        self.checks: dict[str, dict[str, Any]] = {}

    def seen(self, name: str) -> dict[str, Any]:
        """The record of the host, made where it is new."""
        return self.hosts.setdefault(
            name,
            {
                "state": NOT_VALIDATED,
                "message": "no check ran on this host",
                "unreachable": False,
                "problems": [],
                "results": {},
                "facts": "{}",
            },
        )

    def results(self, name: str, result: dict[str, Any]) -> None:
        """What run_checks returned. A second call for a host (a part, later) adds to the first."""
        host = self.seen(name)
        if not isinstance(result.get("checks"), list) or not isinstance(result.get("summary"), dict):
            self.failed(name, str(result.get("msg") or "run_checks gave no results"))
            return
        self._define(result)
        for check in result["checks"]:
            said = {key: value for key, value in check.items() if key not in loaded.OF_THE_CHECK}
            host["results"][check["id"]] = {
                key: value for key, value in said.items() if value not in ("", None, False, [])
            }
        host["facts"] = result.get("report_facts") or host["facts"]
        host["problems"] = list(dict.fromkeys([*host["problems"], *(result.get("problems") or ())]))
        was_good = host["state"] == READY or not host.get("judged")
        host["judged"] = True
        if host["message"] == "no check ran on this host" or host["state"] != NOT_VALIDATED:
            host["state"] = (
                READY if was_good and result["summary"].get("ready") is True and not result.get("failed") else NOT_READY
            )
            host["message"] = str(result.get("msg") or "")

    def _define(self, result: dict[str, Any]) -> None:
        """Keep what the checks of `result` are, once for all hosts."""
        new = [check["id"] for check in result["checks"] if check["id"] not in self.checks]
        if new:
            known = self._definitions(result["checks_dir"])
            self.checks.update((name, known[name]) for name in new)

    def failed(self, name: str, message: str, unreachable: bool = False) -> None:
        """A task failed, or the host could not be reached: what was not judged before stays unjudged."""
        host = self.seen(name)
        host.update(state=NOT_VALIDATED, message=message or "a task failed without a message", unreachable=unreachable)

    def report(self, run: dict[str, Any]) -> dict[str, Any]:
        """The report. `run` says when, with what and how it was asked for."""
        hosts = {name: self._host(self.hosts[name]) for name in sorted(self.hosts, key=natural)}
        states = [host["state"] for host in hosts.values()]
        counted = [result["status"] for host in hosts.values() for result in host["results"]]
        return {
            "schema": SCHEMA,
            "run": run,
            "ready": bool(states) and all(state == READY for state in states),
            "totals": {
                "hosts": {
                    "total": len(states),
                    **{state: states.count(state) for state in (READY, NOT_READY, NOT_VALIDATED)},
                },
                "checks": {
                    "total": len(counted),
                    **{
                        status: counted.count(status)
                        for status in ("pass", "fail", "unknown", "skip", "waived", "error")
                    },
                },
            },
            "checks": self.checks,
            "hosts": hosts,
        }

    @staticmethod
    def _host(record: dict[str, Any]) -> dict[str, Any]:
        return {
            **{key: record[key] for key in ("state", "message", "unreachable", "problems")},
            "results": list(record["results"].values()),
            "facts": json.loads(
                record["facts"]
            ),  # kept as text until now: the controller's memory is copied for every task of every host
        }


def natural(name: str) -> list[Any]:
    """A sort key that puts gpu2 before gpu10."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", name) if part]
