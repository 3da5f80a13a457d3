"""Samples of the host as a whole and of its checks."""

from __future__ import annotations

from typing import Any

from .exposition import Samples, parse_number

Facts = dict[str, Any]
STATUSES = ("pass", "fail", "unknown", "skip", "waived", "error")
BAD = ("fail", "unknown", "error")


def add_run_samples(samples: Samples, run: Facts, ended_at: float | None, host: Facts) -> None:
    """When the run was, and whether it reached the host and gave a verdict. These are there for every host of a run,
    also one that could not be reached."""
    judged = host["state"] != "not_validated"
    samples.add_value("last_run_timestamp_seconds", ended_at)
    samples.add_value("run_complete", run.get("complete") is not False)
    samples.add_value("reachable", not host["unreachable"])
    samples.add_value("validated", judged)
    samples.add_value("problems", len(host.get("problems") or ()))
    part = bool(host.get("part"))
    if judged:
        samples.add_value("partial_validation", part)
    if host["state"] == "not_ready":
        samples.add_value("ready", 0)
    else:  # a part of a host that is ready does not make a host that is
        samples.add_value("ready", 1 if judged and not part else None)


def add_verdict_samples(samples: Samples, report: Facts, host: Facts) -> None:
    """What the host is, and what its checks said."""
    facts, results = host["facts"], host["results"]
    place, driver, gpus, evidence = (_part(facts, name) for name in ("virtualization", "driver", "gpus", "evidence"))
    models = gpus.get("models")
    samples.add_info(
        "info",
        placement=place.get("placement"),
        driver=driver.get("version"),
        gpu_model=", ".join(map(str, models)) if isinstance(models, list) else None,
        recorded=evidence.get("recorded"),
        schema=report.get("schema"),
    )
    if evidence.get("recorded"):
        samples.add_value("evidence_timestamp_seconds", evidence.get("taken_at"))
    samples.add_value("unproven", len(host.get("unproven") or ()))
    drift = host.get("drift") or {}
    if "changes" in drift:  # there is a baseline of this machine
        samples.add_value("baseline_changes", sum(int(parse_number(one.get("count")) or 1) for one in drift["changes"]))
    checks = report["checks"]
    causes = [result for result in results if result["status"] in BAD and not result.get("caused_by")]
    samples.add_value("unready_causes", sum(checks[result["id"]]["severity"] == "error" for result in causes))
    counts = dict.fromkeys(STATUSES, 0)
    for result in results:
        status = result["status"]
        counts[status] = counts.get(status, 0) + 1
        _add_check(samples, result, status, checks[result["id"]]["severity"])
    for status in STATUSES:
        samples.add_value("checks", counts[status], status=status)


def _add_check(samples: Samples, result: Facts, status: str, severity: str) -> None:
    if status in ("pass", "fail"):
        samples.add_value("check_passed", status == "pass", check=result["id"])
    elif status in BAD:
        samples.count_unknown("check_passed")
    if status not in ("pass", "skip"):
        cause = not result.get("caused_by")  # nothing else explains it
        samples.add_info("finding_info", check=result["id"], severity=severity, status=status, root_cause=cause)


def _part(facts: Facts, name: str) -> Facts:
    found = facts.get(name)
    return found if isinstance(found, dict) else {}
