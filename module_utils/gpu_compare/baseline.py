"""The known good state of a host: what a baseline holds, whether it may be saved, and whether it is of this machine.

A baseline is a dictionary: ``{schema, host, saved_at (UTC, ISO 8601), taken_at (of the evidence, or null), state, msg,
identity: {product_uuid, board_serial, cards}, checks: {status: [ids]}, facts}``. `facts` are those that are compared
(fact_table.py) and no others, so it stays small.
"""

from __future__ import annotations

import datetime
import json
import urllib.parse
from collections.abc import Iterable
from typing import Any

from ..gpu_host.evidence import secrets
from ..gpu_host.evidence.values import parse_mapping
from . import cards, differences, fact_table
from .rules import keep_compared

SCHEMA = 1
LARGEST = 4 * 1024 * 1024  # bytes; a host with eight GPUs and a server takes 150 KiB
AUTO, SAVE, FORCE, DIFF, OFF = "auto", "save", "force", "diff", "off"
MODES = (AUTO, SAVE, FORCE, DIFF, OFF)
# What boards say that have no id of their own.
_NO_ID = frozenset({"", "0", "none", "n/a", "not specified", "default string", "to be filled by o.e.m.", "system uuid"})
_SHARED_UUID = "03000200-0400-0500-0006-000700080009"  # in the firmware of many boards of several makers


class BaselineError(ValueError):
    """What is read is no baseline, or what is to be written is none; the message says why."""


def name_file(host: str) -> str:
    """The name of the file for a host of the inventory, whatever stands in its name."""
    quoted = urllib.parse.quote(host, safe=":@+")
    return ("%2E" + quoted[1:] if quoted.startswith(".") else quoted) + ".json"


def name_previous(path: str) -> str:
    """Where the baseline before the last one is kept."""
    return path + ".previous"


def make_baseline(
    name: str, host: dict[str, Any], results: Iterable[dict[str, Any]], verdict: dict[str, Any], now: str
) -> dict[str, Any]:
    """The baseline of the host `name`. `verdict`: the result of verdict.summarise_verdict; `now`: UTC, ISO 8601."""
    checks: dict[str, list[str]] = {}
    for result in results:
        checks.setdefault(str(result["status"]), []).append(str(result["id"]))
    evidence = parse_mapping(host.get("evidence"))
    return {
        "schema": SCHEMA,
        "host": name,
        "saved_at": now,
        "taken_at": _moment(evidence.get("taken_at")) if evidence.get("recorded") else None,
        "state": "ready" if verdict["summary"]["ready"] else "not_ready",
        "msg": verdict["msg"],
        "identity": describe_identity(host),
        "checks": checks,
        "facts": keep_compared(host, fact_table.TREE),
    }


def _moment(seconds: Any) -> str | None:
    try:
        return datetime.datetime.fromtimestamp(float(seconds), datetime.timezone.utc).isoformat(timespec="seconds")
    except (TypeError, ValueError, OverflowError, OSError):
        return None


def describe_identity(host: dict[str, Any]) -> dict[str, Any]:
    """What tells this machine from another: ``{product_uuid, board_serial, cards}``, each None where unknown."""
    found = parse_mapping(parse_mapping(host.get("virtualization")).get("identity"))
    return {
        "product_uuid": _own_id(found.get("product_uuid")),
        "board_serial": _own_id(found.get("board_serial")),
        "cards": cards.describe_cards(host),
    }


def _own_id(value: Any) -> str | None:
    if not isinstance(value, str) or cards.is_stand_in(value):
        return None
    text = value.strip().lower()
    shared = text in _NO_ID or text == _SHARED_UUID or len(set(text.replace("-", ""))) < 2
    return None if shared else text


def encode_baseline(baseline: dict[str, Any]) -> bytes:
    """The bytes of a baseline, secrets masked as in bundles. BaselineError where there are too many."""
    text = json.dumps(secrets.redact_strings(baseline), indent=1, ensure_ascii=False, default=str)
    data = (text + "\n").encode("utf-8", "replace")
    if len(data) > LARGEST:
        raise BaselineError("its facts take %d MiB, more than %d" % (len(data) >> 20, LARGEST >> 20))
    return data


def decode_baseline(data: bytes) -> dict[str, Any]:
    """The baseline in `data`. BaselineError says what is wrong with it."""
    if len(data) > LARGEST:
        raise BaselineError("it is larger than %d MiB" % (LARGEST >> 20))
    try:
        found = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise BaselineError("it is no JSON (%s)" % error) from None
    if not isinstance(found, dict) or not isinstance(found.get("facts"), dict):
        raise BaselineError("it holds no facts")
    if not isinstance(found.get("schema"), int) or found["schema"] > SCHEMA:
        raise BaselineError("a newer version of this project wrote it")
    for name, kind in (("identity", dict), ("checks", dict), ("saved_at", str)):
        if not isinstance(found.get(name), kind):
            raise BaselineError("its '%s' is missing" % name)
    return found


def is_same_state(before: dict[str, Any], now: dict[str, Any]) -> bool:
    """Whether two decoded baselines hold the same settings: measured values differ each time."""
    both = [
        differences.compare_facts(one["facts"], other["facts"], fact_table.TREE)
        for one, other in ((before, now), (now, before))
    ]
    same = all(before.get(name) == now.get(name) for name in ("identity", "checks", "state"))
    return same and not any(one.found or one.lost for one in both)


def list_statuses(baseline: dict[str, Any]) -> dict[str, str]:
    """Check id -> its status at the baseline."""
    return {
        str(name): str(status)
        for status, names in parse_mapping(baseline.get("checks")).items()
        if isinstance(names, list)
        for name in names
    }


def explain_other_machine(baseline: dict[str, Any], identity: dict[str, Any]) -> str:
    """Why the baseline is of another machine than the one with `identity`, "" where it is not, or where nothing tells.

    An id of the board that differs says so, unless most cards are the same (the board was replaced). Where no id of
    the board is known on both sides, cards of which none is the same say so.
    """
    before = parse_mapping(baseline.get("identity"))
    common, had, has = cards.count_common(*(_cards_of(side) for side in (before, identity)))
    told = [
        (words, before.get(name), identity.get(name))
        for name, words in (("product_uuid", "DMI UUID"), ("board_serial", "serial number of the board"))
        if before.get(name) and identity.get(name)
    ]
    differing = ["%s %s, was %s" % (words, now, then) for words, then, now in told if now != then]
    if differing and not (common and common * 2 > max(had, has)):
        return "its %s" % " and its ".join(differing)
    if not told and had and has and not common:
        return "none of its %d GPUs was in it" % has
    return ""


def _cards_of(identity: dict[str, Any]) -> list[cards.Card]:
    described = identity.get("cards")
    return cards.list_cards(described) if isinstance(described, list) else []


def compare_identity(baseline: dict[str, Any], identity: dict[str, Any]) -> cards.Paired:
    """The cards of the baseline and of now, paired; empty where one side is unknown."""
    before = parse_mapping(baseline.get("identity"))
    if not isinstance(before.get("cards"), list) or not isinstance(identity.get("cards"), list):
        return cards.Paired()
    return cards.pair_cards(_cards_of(before), _cards_of(identity))
