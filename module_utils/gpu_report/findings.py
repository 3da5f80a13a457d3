"""The report regrouped for people.

One finding for all hosts that have it, root causes first, each with what it explains.

Shared by the terminal and by every other report for people, so that they never disagree.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

SEVERITIES = ("error", "warning", "info")


@dataclass
class Explained:
    """Symptoms that show in the same way on the same hosts. `differs`: `text` is what one of the hosts shows."""

    symptoms: list[str]
    text: str
    hosts: list[str]
    differs: bool


@dataclass
class Finding:
    """One failing (or broken, or waived) check with one remedy, on every host that shows it."""

    check: str
    title: str
    severity: str
    status: str
    why: str
    remedy: dict[str, Any] | None
    docs: str
    waiver: dict[str, Any] | None
    found: dict[str, list[str]] = field(default_factory=dict)  # what was seen -> hosts
    explains: dict[str, dict[str, list[str]]] = field(default_factory=dict)  # symptom -> what was seen there -> hosts
    caused_by: list[str] = field(default_factory=list)  # only causes that are waived

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(name for names in self.found.values() for name in names))

    @property
    def explained(self) -> list[Explained]:
        """What it explains, the symptoms of which the same is to be said together."""
        groups: dict[tuple[str, tuple[str, ...], bool], list[str]] = {}
        for symptom, seen in self.explains.items():
            hosts = tuple(dict.fromkeys(name for names in seen.values() for name in names))
            groups.setdefault((" ".join(next(iter(seen)).split()), hosts, len(seen) > 1), []).append(symptom)
        return [Explained(symptoms, text, list(hosts), differs) for (text, hosts, differs), symptoms in groups.items()]


@dataclass
class Folded:
    """One check that fails on many hosts, whatever differs in its remedies. `first`: the finding of the most hosts;
    `others`: those with another remedy or waiver; `places`: the hosts by their numbers in the report, '3-17,20'."""

    first: Finding
    others: list[Finding]
    places: str = ""

    @property
    def hosts(self) -> list[str]:
        return list(dict.fromkeys(name for one in (self.first, *self.others) for name in one.hosts))


@dataclass
class Unknown:
    """Checks that could not be decided for one reason. `needs_root`: the reason is that the user was not root."""

    reason: str
    needs_root: bool
    blocking: bool  # one of them is of severity error
    checks: list[str] = field(default_factory=list)
    hosts: list[str] = field(default_factory=list)


@dataclass
class Findings:
    """What a report has to say, in the order in which to say it."""

    causes: list[Finding] = field(default_factory=list)  # severity error, not explained by another
    broken: list[Finding] = field(default_factory=list)  # checks with a fault of their own
    unknown: list[Unknown] = field(default_factory=list)
    warnings: list[Finding] = field(default_factory=list)  # severity warning and info
    waived: list[Finding] = field(default_factory=list)
    symptoms: int = 0  # failing or unknown checks that a cause explains, over all hosts


def group_findings(report: dict[str, Any]) -> Findings:
    """The findings of a report (collector.py)."""
    grouped = _Grouped(report)
    for name, host in report["hosts"].items():
        grouped.add(name, {result["id"]: result for result in host["results"]})
    return grouped.result()


def fold_findings(found: Iterable[Finding]) -> list[Folded]:
    """The findings of a fleet by their check, those first of which the most results depend: hosts times symptoms."""
    by_check: dict[tuple[str, str], list[Finding]] = {}
    for finding in found:
        by_check.setdefault((finding.check, finding.status), []).append(finding)
    folded = []
    for group in by_check.values():
        first, *others = sorted(group, key=lambda finding: -len(finding.hosts))
        folded.append((sum(len(one.hosts) * (1 + len(one.explains)) for one in group), Folded(first, others)))
    order = {severity: place for place, severity in enumerate(SEVERITIES)}
    return [one for _weight, one in sorted(folded, key=lambda pair: (order[pair[1].first.severity], -pair[0]))]


def group_unproven(report: dict[str, Any]) -> list[tuple[str, list[str]]]:
    """(what was not proven, on which hosts), the same sentence once."""
    found: dict[str, list[str]] = {}
    for name, host in report["hosts"].items():
        for text in host.get("unproven") or ():
            found.setdefault(text, []).append(name)
    return list(found.items())


class _Grouped:
    def __init__(self, report: dict[str, Any]) -> None:
        self._checks = report["checks"]
        self._order = {check: number for number, check in enumerate(self._checks)}
        self._findings: dict[Any, Finding] = {}
        self._unknown: dict[Any, Unknown] = {}
        self._symptoms = 0

    def add(self, host: str, results: dict[str, dict[str, Any]]) -> None:
        own: dict[str, Finding] = {}  # the finding of each cause on this host
        explained: list[tuple[dict[str, Any], set[str]]] = []
        for result in results.values():
            if result["status"] in ("pass", "skip"):
                continue
            roots = set(_roots(result, results))
            unwaived = {root for root in roots if results[root]["status"] != "waived"}
            if roots and result["status"] != "waived" and unwaived:
                explained.append((result, roots))
            elif result["status"] == "unknown":
                self._add_unknown(host, result)
            else:
                own[result["id"]] = self._finding(host, result, sorted(roots))
        for result, roots in explained:
            self._symptoms += 1
            for root in sorted(roots & set(own), key=self._order.__getitem__):
                own[root].explains.setdefault(result["id"], {}).setdefault(_seen(result), []).append(host)

    def _finding(self, host: str, result: dict[str, Any], waived_roots: list[str]) -> Finding:
        check = self._checks[result["id"]]
        remedy = result.get("remedy")
        waiver = result.get("waiver")
        key = (
            result["id"],
            result["status"],
            repr(_for_hosts(remedy, host, ["HOST"])),
            repr(waiver),
            tuple(waived_roots),
        )
        finding = self._findings.get(key)
        if finding is None:
            finding = Finding(
                check=result["id"],
                title=check["title"],
                severity=check["severity"],
                status=result["status"],
                why=result.get("why", ""),
                remedy=remedy,
                docs=check["docs"],
                waiver=waiver,
                caused_by=waived_roots if result["status"] != "waived" else [],
            )
            self._findings[key] = finding
        finding.found.setdefault(_seen(result), []).append(host)
        return finding

    def _add_unknown(self, host: str, result: dict[str, Any]) -> None:
        needs_root = bool(result.get("needs_root"))
        reason = "" if needs_root else result.get("reason", "")
        waiver = result.get("waiver")  # an expired one
        key = (needs_root, reason, repr(waiver))
        unknown = self._unknown.setdefault(key, Unknown(reason, needs_root, False))
        unknown.blocking = unknown.blocking or self._checks[result["id"]]["severity"] == "error"
        if result["id"] not in unknown.checks:
            unknown.checks.append(result["id"])
        if host not in unknown.hosts:
            unknown.hosts.append(host)

    def result(self) -> Findings:
        found = Findings(symptoms=self._symptoms)
        for finding in self._findings.values():
            finding.remedy = _for_hosts(finding.remedy, finding.hosts[0], finding.hosts)
        for finding in sorted(
            self._findings.values(), key=lambda finding: (SEVERITIES.index(finding.severity), -len(finding.explains))
        ):
            if finding.status == "waived":
                found.waived.append(finding)
            elif finding.status == "error":
                found.broken.append(finding)
            elif finding.severity == "error" or any(
                self._checks[name]["severity"] == "error" for name in finding.explains
            ):
                found.causes.append(finding)
            else:
                found.warnings.append(finding)
        found.unknown = sorted(
            self._unknown.values(),
            key=lambda unknown: (not unknown.blocking, not unknown.needs_root, -len(unknown.checks)),
        )
        return found


def _for_hosts(remedy: dict[str, Any] | None, host: str, hosts: list[str]) -> dict[str, Any] | None:
    """The remedy of `host` with `-l HOST` of its commands naming all of `hosts`.

    What differs in nothing else is one finding.
    """
    if remedy is None:
        return None
    limit = re.compile(r"(?<= -l )%s(?=\s|$)" % re.escape(host))

    def renamed(command: str) -> str:
        return limit.sub(lambda _match: ",".join(hosts), command)

    return {
        **remedy,
        "commands": [renamed(command) for command in remedy.get("commands", ())],
        "verify": renamed(remedy.get("verify", "")),
    }


def _seen(result: dict[str, Any]) -> str:
    return result.get("found") or result.get("reason") or ""


def _roots(result: dict[str, Any], results: dict[str, dict[str, Any]]) -> Iterator[str]:
    """The ids at the far end of the chain of causes."""
    for cause in result.get("caused_by", ()):
        deeper = list(_roots(results[cause], results)) if cause in results else []
        yield from deeper or [cause]
