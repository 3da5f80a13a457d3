"""Cause before symptom: which failing check explains which."""

from __future__ import annotations

from typing import Any

# A waived failure is still a failure of the host, so it still is a cause.
_CAUSES = ("fail", "waived")
_SYMPTOMS = ("fail", "unknown", "error")


def fill_in_causes(results: list[dict[str, Any]]) -> None:
    """Sets `caused_by` and `root_cause` in every result, from `explains` and the statuses."""
    by_id = {result["id"]: result for result in results}
    explained_by: dict[str, list[str]] = {}
    for result in results:
        for symptom in result["explains"]:
            explained_by.setdefault(symptom, []).append(result["id"])
    for result in results:
        result["caused_by"] = _nearest(result["id"], explained_by, by_id) if result["status"] in _SYMPTOMS else []
        result["root_cause"] = result["status"] == "fail" and not result["caused_by"]


def _nearest(symptom: str, explained_by: dict[str, list[str]], by_id: dict[str, dict[str, Any]]) -> list[str]:
    """The nearest failing causes of `symptom`. What passed ends the search: beyond it the chain is broken."""
    found: list[str] = []
    seen = {symptom}
    queue = list(explained_by.get(symptom, ()))
    while queue:
        name = queue.pop(0)
        if name in seen:
            continue
        seen.add(name)
        status = by_id[name]["status"]
        if status in _CAUSES and _failed(by_id[name]):
            found.append(name)
        elif status != "pass":
            queue.extend(explained_by.get(name, ()))
    return found


def _failed(result: dict[str, Any]) -> bool:
    return result["status"] == "fail" or (result.get("waiver") or {}).get("status") == "fail"
