"""Waivers: findings that a person has accepted for a while, with a reason and a date, written in the inventory."""

from __future__ import annotations

import datetime
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from .check_files import suggest_name

_WAIVABLE = ("fail", "unknown", "error")
_KEYS = ("check", "reason", "expires")


@dataclass(frozen=True)
class Waiver:
    """`check` is accepted because of `reason`, up to and including the day `expires` (YYYY-MM-DD)."""

    check: str
    reason: str
    expires: str
    expired: bool


def parse_waivers(items: Any, known: Iterable[str], today: datetime.date) -> tuple[list[Waiver], list[str]]:
    """(the waivers of gpu_host_waivers, a sentence for each item that is none). `known` are the ids of all checks."""
    if not isinstance(items, (list, tuple)):
        return [], ["gpu_host_waivers must be a list of {check, reason, expires}"]
    found: list[Waiver] = []
    problems: list[str] = []
    ids = list(known)
    for number, item in enumerate(items, 1):
        problem = _problem(item, ids)
        if problem:
            problems.append("waiver %d: %s" % (number, problem))
            continue
        day = _day(item["expires"])
        assert day is not None
        found.append(Waiver(str(item["check"]), str(item["reason"]), day.isoformat(), expired=day < today))
    return found, problems


def _problem(item: Any, ids: list[str]) -> str:
    if not isinstance(item, dict):
        return "must be a mapping of check, reason and expires"
    missing = [key for key in _KEYS if item.get(key) in (None, "")]
    if missing:
        return "lacks %s (a waiver needs a check, a reason and the day on which it ends)" % ", ".join(missing)
    strangers = [str(key) for key in item if key not in _KEYS]
    if strangers:
        return "unknown key %s; known are: %s" % (", ".join(strangers), ", ".join(_KEYS))
    if str(item["check"]) not in ids:
        return "there is no check '%s'%s" % (item["check"], suggest_name(item["check"], ids))
    if _day(item["expires"]) is None:
        return "expires must be a day such as 2027-01-31, not '%s'" % item["expires"]
    return ""


def _day(value: Any) -> datetime.date | None:
    if isinstance(value, datetime.datetime):
        return value.date()
    if isinstance(value, datetime.date):  # unquoted in YAML
        return value
    try:
        return datetime.date.fromisoformat(str(value))
    except ValueError:
        return None


def apply_waivers(waivers: Iterable[Waiver], results: list[dict[str, Any]]) -> None:
    """Turns what a waiver covers into `waived`, in place.

    An expired waiver covers nothing, and the result says that it expired.
    """
    by_check: dict[str, Waiver] = {}
    for waiver in waivers:
        earlier = by_check.get(waiver.check)
        if earlier is None or earlier.expires < waiver.expires:
            by_check[waiver.check] = waiver
    for result in results:
        found = by_check.get(result["id"])
        if found is None or result["status"] not in _WAIVABLE:
            continue
        result["waiver"] = {
            "reason": found.reason,
            "expires": found.expires,
            "expired": found.expired,
            "status": result["status"],
        }
        if not found.expired:
            result["status"] = "waived"
