"""Which checks run, and what their results say of the host as a whole."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from .check_files import Check, suggest_name
from .engine import ERROR, FAIL, PASS, SKIP, STATUSES, UNKNOWN

BAD = (FAIL, UNKNOWN, ERROR)


def choose_checks(
    every: Sequence[Check],
    *,
    tags: Sequence[str] = (),
    skip_tags: Sequence[str] = (),
    only: Sequence[str] = (),
    exclude: Sequence[str] = (),
    run_tags: Sequence[str] = (),
    run_skip_tags: Sequence[str] = (),
) -> tuple[list[Check], list[str]]:
    """(the checks to run, a sentence for each name that is unknown).

    `run_tags` and `run_skip_tags` are those of ansible-playbook, which has other tags too: only those of checks count.
    """
    known_tags = {tag for check in every for tag in check.tags}
    known_ids = {check.id for check in every}
    problems = list(_unknown("tag", (*tags, *skip_tags), known_tags)) + list(
        _unknown("check", (*only, *exclude), known_ids)
    )
    wanted = set(tags) | (set(run_tags) & known_tags)
    unwanted = set(skip_tags) | (set(run_skip_tags) & known_tags)
    chosen = [
        check
        for check in every
        if (not wanted or wanted & set(check.tags))
        and not unwanted & set(check.tags)
        and (not only or check.id in only)
        and check.id not in exclude
    ]
    return chosen, problems


def _unknown(kind: str, names: Iterable[str], known: set[str]) -> Iterable[str]:
    return (
        "there is no %s '%s'%s" % (kind, name, suggest_name(name, known))
        for name in dict.fromkeys(names)
        if name not in known
    )


def summarise_verdict(results: list[dict[str, Any]], problems: Sequence[str] = ()) -> dict[str, Any]:
    """The task result for one host: {changed, failed, msg, checks, problems, summary}.

    Failed: a check of severity error failed, is unknown or broke; a waiver or a selection names nothing; or no check
    ran.
    """
    problems = list(problems)
    if not results:
        problems.append("no check was selected, so nothing was validated")
    elif all(result["status"] == SKIP for result in results):
        problems.append("none of the %d selected checks applies to this host, so nothing was validated" % len(results))
    counts = {status: sum(result["status"] == status for result in results) for status in STATUSES}
    bad = [result for result in results if result["status"] in BAD and result["severity"] == "error"]
    summary = {
        **counts,
        "total": len(results),
        "ready": not bad and not problems,
        "not_ready_because": [result["id"] for result in bad],
        "warnings": [result["id"] for result in results if result["status"] in BAD and result["severity"] != "error"],
    }
    return {
        "changed": False,
        "failed": not summary["ready"],
        "msg": _message(summary, bad, problems),
        "checks": [shorten_result(result) for result in results],
        "problems": problems,
        "summary": summary,
    }


def shorten_result(result: dict[str, Any]) -> dict[str, Any]:
    """`result`, cut to what there is to say where nothing is wrong.

    Ansible copies every value of a result for every callback.
    """
    if result["status"] not in (PASS, SKIP):
        return result
    return {key: result[key] for key in ("id", "severity", "tags", "status", "reason")}


def _message(summary: dict[str, Any], bad: list[dict[str, Any]], problems: list[str]) -> str:
    parts = list(problems)
    for status, word in ((FAIL, "failed"), (UNKNOWN, "unknown"), (ERROR, "broken")):
        of_status = [result for result in bad if result["status"] == status]
        names = sorted(of_status, key=lambda result: not result["root_cause"])
        if names:
            shown = ", ".join(result["id"] for result in names[:3]) + (", …" if len(names) > 3 else "")
            parts.append("%d %s: %s" % (len(names), word, shown))
    if not parts:
        ran = summary["total"] - summary[SKIP]
        parts.append(
            "ready: %d checks%s" % (ran, ", %d warnings" % len(summary["warnings"]) if summary["warnings"] else "")
        )
    return "; ".join(parts)
