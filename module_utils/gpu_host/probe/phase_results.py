"""What the phases of the probe left in its result: the host's links, the counters, and what there was no time for."""

from __future__ import annotations

from typing import Any

from . import host_link_verdict, phase_counters


def find_phase_without_time(phases: dict[str, Any], name: str) -> str | None:
    """A sentence where a phase ran out of its budget before this pair."""
    for phase, facts in phases.items():
        if name in (facts.get("left") or ()):
            words = phase.replace("_", " ")
            return "not measured: the phase '%s' was out of its %.3g s" % (words, facts.get("budget_s") or 0.0)
    return None


def judge_phases(raw: dict[str, Any], result: dict[str, Any], restricted: bool, damaged: dict[str, list[str]]) -> None:
    """What came with the phases: the host's links, the counters, and what no phase had time for.

    A result of before there were phases has none of it, and nothing is asked of it. Where the phases are known and a
    part is not there, that part is unknown.
    """
    phases = result["phases"]
    result["phases_measured"] = None if "phases" in damaged and not phases else bool(phases)
    result["unfinished_phases"] = [
        "the phase '%s' was out of its %.3g s before it came to %d of its parts, first %s"
        % (name.replace("_", " "), facts.get("budget_s") or 0.0, len(facts["left"]), facts["left"][0])
        for name, facts in phases.items()
        if facts.get("left")
    ]
    if phases:
        result.update(phase_counters.summarise_counters(phases))
    links = {address: found or {} for address, found in (raw.get("host_links") or {}).items()}
    planned = "host_links" in phases or bool(links)
    result["host_links_measured"] = None if "host_links" in damaged and not planned else planned
    if not planned or restricted:
        return
    for address, device in result["devices"].items():
        if not device.get("mig") and not device.get("error"):
            links.setdefault(address, {})
    judged = host_link_verdict.judge_host_links(links, result["devices"])
    explanations = judged.pop("explanations")
    result["explanations"].update(explanations)
    result["host_links"], result["shared_uplinks"] = judged.pop("links"), judged.pop("shared_uplinks")
    result.update(judged)
    for event in result["events"]:
        if event["stage"] == "host links, all at once":
            sentence = "%s: %s after %s s" % (event["stage"], event["kind"], event["seconds"])
            result["collapsed_host_links"].append(sentence)
            explanations["collapsed_host_links"].append(sentence)
    unknown = not links or any(link["verdict"] == "unknown" for link in result["host_links"].values())
    beside = len(links) > 1 and any(None in link["at_once_gb_s"].values() for link in result["host_links"].values())
    for name in host_link_verdict.LISTS:
        if not result[name] and (unknown or (beside and name == "collapsed_host_links")):
            result[name] = None
