"""Hosts of one kind compared with one another, in sentences: for the terminal, the HTML and the Markdown report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..gpu_compare.alike import OTHERWISE
from .phrases import cut_text, join_names

_DIFFERENCES = 6  # of one group of hosts
_VALUES = 4  # of one fact
_LONGEST = 70  # characters of one value


@dataclass(frozen=True)
class Said:
    """One thing to say of a kind: a sentence, and what to do about it."""

    text: str
    do: str


def list_said(report: dict[str, Any], differences: int = _DIFFERENCES) -> list[Said]:
    """Everything in which hosts of one kind differ, the kinds of most hosts first. Empty where all are alike."""
    alike = report.get("alike") or {}
    found: list[Said] = []
    for entry in alike.get("alone") or ():
        found.append(
            Said(
                "%s has %s" % (entry["host"], entry["text"]),
                "Look for a card that it does not see, or that is not the one that was ordered.",
            )
        )
    for kind in alike.get("kinds") or ():
        found += _say_kind(kind, differences)
    return found


def _say_kind(kind: dict[str, Any], differences: int) -> list[Said]:
    found = []
    for group in kind["odd"]:
        hosts, entries = group["hosts"], group["differs"]
        alike = max(entry["alike"] for entry in entries)
        told = [
            "%s %s (others %s)" % (_cut(entry["what"]), _cut(entry["value"]), _cut(entry["others"]))
            for entry in entries
        ]
        verb = "differs" if len(hosts) == 1 else "differ"
        text = "%s %s from %d alike: %s" % (join_names(hosts), verb, alike, _join_told(told, differences))
        found.append(Said(text, group["do"]))
    if kind["split"]:
        two = len(kind["hosts"]) == 2
        told = [_say_split(entry, kind["hosts"] if two else None) for entry in kind["split"]]
        subject = (
            "the two differ (%s, %s)" % tuple(kind["hosts"])
            if two
            else "no value has most of %d hosts" % len(kind["hosts"])
        )
        found.append(Said("%s: %s" % (subject, _join_told(told, differences)), OTHERWISE))
    return found


def _say_split(entry: dict[str, Any], two: list[str] | None) -> str:
    if two:
        by_host = {host: value["value"] for value in entry["values"] for host in value["hosts"]}
        return "%s %s / %s" % (entry["what"], *(_cut(by_host.get(host, "unknown")) for host in two))
    told = ["%d %s" % (len(value["hosts"]), _cut(value["value"])) for value in entry["values"][:_VALUES]]
    more = len(entry["values"]) - _VALUES
    return "%s %s%s" % (entry["what"], ", ".join(told), " and %d more values" % more if more > 0 else "")


def _join_told(told: list[str], shown: int) -> str:
    more = len(told) - shown
    return "; ".join(told) if more <= 1 else "%s; and %d more" % ("; ".join(told[:shown]), more)


def _cut(text: str) -> str:
    return cut_text(text, _LONGEST)
