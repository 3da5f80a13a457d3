"""What changed since the baselines, regrouped for people: hosts with the same changes once.

Shared by the terminal, the HTML and the Markdown report.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..gpu_compare import drift
from .phrases import cut_text, join_names

_SHOWN = 6  # changes of one group in a short report
_LONGEST = 240  # characters of one change
_CHECKS = 4  # checks named in one line


@dataclass
class Drift:
    """Hosts on which the same changed since baselines of the same day. `whole`: all of it was asked for."""

    hosts: list[str]
    state: str
    since: str  # YYYY-MM-DD, "" without a baseline
    changes: list[dict[str, Any]] = field(default_factory=list)
    unknown_now: list[str] = field(default_factory=list)
    unexplained: list[str] = field(default_factory=list)
    mended: list[str] = field(default_factory=list)
    messages: list[str] = field(default_factory=list)
    whole: bool = False

    @property
    def title(self) -> str:
        """'gpu1, gpu2: changed since 2026-11-12'."""
        names = join_names(self.hosts)
        if self.state == drift.CHANGED:
            return "%s: changed since %s" % (names, self.since)
        if self.state == drift.SAME:
            return "%s: nothing changed since %s" % (names, self.since)
        return "%s: %s" % (names, "; ".join(self.messages) or "there was no baseline")

    def list_lines(self, shown: int = _SHOWN) -> list[str]:
        """What there is to say below the title, one line each."""
        kept = self.changes if self.whole else self.changes[:shown]
        lines = [describe_change(change) for change in kept]
        more = len(self.changes) - len(kept)
        if more:
            lines.append("and %d more, in report.json; -e gpu_host_baseline=diff shows all" % more)
        if self.unexplained:
            lines.append("new, and no setting changed that it reads: %s" % _name_checks(self.unexplained))
        if self.mended:
            lines.append("mended since: %s" % _name_checks(self.mended))
        if self.unknown_now:
            listed = self.unknown_now if self.whole else [join_names(self.unknown_now, 4)]
            lines.append("known then and not now: %s" % ", ".join(listed))
        return lines + (self.messages if self.state in (drift.CHANGED, drift.SAME) else [])


def describe_change(change: dict[str, Any]) -> str:
    """'driver: 580.82 -> 580.159; explains driver_libraries_match'."""
    explains = change.get("explains") or []
    return cut_text(change["text"], _LONGEST) + ("; explains %s" % _name_checks(explains) if explains else "")


def _name_checks(checks: Sequence[str]) -> str:
    return join_names(checks, _CHECKS)


def group_drift(report: dict[str, Any]) -> list[Drift]:
    """The drift of all hosts of a report: those that explain a finding first, those without a change last."""
    groups: dict[tuple[Any, ...], Drift] = {}
    for name, host in report["hosts"].items():
        record = host.get("drift")
        if not record:
            continue
        made = _read_drift(name, record)
        key = (made.state, made.since, made.whole, *made.list_lines(10_000), *made.messages)
        found = groups.setdefault(key, made)
        if found is not made:
            found.hosts.append(name)
    order = [drift.CHANGED, drift.OTHER, drift.UNREADABLE, drift.NONE, drift.SAME]
    return sorted(
        groups.values(),
        key=lambda found: (order.index(found.state), not any(change["explains"] for change in found.changes)),
    )


def _read_drift(name: str, record: dict[str, Any]) -> Drift:
    messages = [text for text in (record.get("message"), record.get("saving")) if text]
    return Drift(
        hosts=[name],
        state=record["state"],
        since=str(record.get("saved_at") or "")[:10],
        changes=list(record.get("changes") or ()),
        unknown_now=list(record.get("unknown_now") or ()),
        unexplained=list(record.get("unexplained") or ()),
        mended=list(record.get("mended") or ()),
        messages=messages,
        whole=record.get("mode") == "diff",
    )


def find_changes_behind(report: dict[str, Any], check: str, hosts: Iterable[str]) -> list[str]:
    """The changes since the baselines that explain a finding, each with its day, once for all hosts."""
    found: dict[str, None] = {}
    for name in hosts:
        record = report["hosts"][name].get("drift") or {}
        for change in record.get("changes") or ():
            if check in (change.get("explains") or ()):
                found["%s (since %s)" % (change["text"], str(record.get("saved_at"))[:10])] = None
    return list(found)
