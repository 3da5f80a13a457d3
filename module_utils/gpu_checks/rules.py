"""What an item of checks/*.yml may hold. checks/check.schema.json says the same to editors; a test keeps both in step."""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

SEVERITIES = ("error", "warning", "info")
MACHINES = ("host", "hypervisor", "guest", "firmware", "controller")
ID = re.compile(r"[a-z][a-z0-9]*(_[a-z0-9]+)*")
TAG = re.compile(r"[a-z][a-z0-9_]*")
PATH = re.compile(r"(host|expected)(\.[A-Za-z_][A-Za-z0-9_]*)+")

# (path inside the item, what is wrong with it)
Fault = tuple[tuple[Any, ...], str]

REQUIRED = ("id", "title", "why", "severity", "tags", "that", "found", "remedy")
_REMEDY_TEXTS = ("text", "risk", "verify")


def faults_of_item(item: Any) -> Iterator[Fault]:
    """Every way in which one item departs from the form of a check."""
    if not isinstance(item, dict):
        yield (), "a check is a mapping with the keys %s, not %s" % (", ".join(REQUIRED), _kind(item))
        return
    for key in REQUIRED:
        if key not in item:
            yield (), "the key '%s' is missing" % key
    for key, value in item.items():
        rule = _FIELDS.get(key)
        if rule is None:
            yield (key,), "unknown key '%s'; known are: %s" % (key, ", ".join(_FIELDS))
        else:
            for path, problem in rule(value):
                yield (key, *path), "'%s' %s" % (key, problem)
    if "skip" in item and "when" not in item:
        yield ("skip",), "'skip' gives the reason of a false 'when', and there is no 'when'"


def _kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}.get(
        type(value), type(value).__name__
    )


def _text(value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or not value.strip():
        yield (), "must be a text, not %s" % ("an empty one" if isinstance(value, str) else _kind(value))


def _texts(value: Any, least: int = 1) -> Iterator[Fault]:
    if not isinstance(value, list) or len(value) < least:
        yield (), "must be a list of texts" + (", at least one" if least else "")
        return
    for index, entry in enumerate(value):
        for path, problem in _text(entry):
            yield (index, *path), "(entry %d) %s" % (index + 1, problem)


def _matching(pattern: re.Pattern[str], example: str, least: int) -> Any:
    def rule(value: Any) -> Iterator[Fault]:
        yield from _texts(value, least)
        for index, entry in enumerate(value if isinstance(value, list) else ()):
            if isinstance(entry, str) and entry.strip() and not pattern.fullmatch(entry):
                yield (index,), "(entry %d) must look like %s, not '%s'" % (index + 1, example, entry)

    return rule


def _id(value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or not ID.fullmatch(value):
        yield (), "must be lower-case words joined by _, such as acs_redirect_off"


def _severity(value: Any) -> Iterator[Fault]:
    if value not in SEVERITIES:
        yield (), "must be one of %s, not %r" % (", ".join(SEVERITIES), value)


def _condition(value: Any) -> Iterator[Fault]:
    if not isinstance(value, (str, bool)) or value == "":
        yield (), "must be a condition, not %s" % _kind(value)
    elif isinstance(value, str) and ("{{" in value or "{%" in value):
        yield (), "is a condition already: write it without {{ }}"


def _conditions(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list) or not value:
        yield (), "must be a list of conditions, at least one"
        return
    for index, entry in enumerate(value):
        for path, problem in _condition(entry):
            yield (index, *path), "(entry %d) %s" % (index + 1, problem)


def _when(value: Any) -> Iterator[Fault]:
    return _conditions(value) if isinstance(value, list) else _condition(value)


def _remedies(value: Any) -> Iterator[Fault]:
    if not isinstance(value, list) or not value:
        yield (), "must be a list of remedies, at least one"
        return
    for index, entry in enumerate(value):
        for path, problem in _remedy(entry):
            yield (index, *path), "(entry %d) %s" % (index + 1, problem)
    for index, entry in enumerate(value[:-1]):
        if isinstance(entry, dict) and "when" not in entry:
            yield (index,), "(entry %d) has no 'when', so no later remedy can be reached" % (index + 1)


def _remedy(value: Any) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield (), "must be a mapping with on and text"
        return
    for key in ("on", "text"):
        if key not in value:
            yield (), "lacks '%s'" % key
    for key, entry in value.items():
        if key == "on":
            if entry not in MACHINES:
                yield (key,), "'on' must be one of %s, not %r" % (", ".join(MACHINES), entry)
            continue
        rule = {"when": _when, "commands": lambda texts: _texts(texts, 0)}.get(key) or (
            _text if key in _REMEDY_TEXTS else None
        )
        if rule is None:
            yield (key,), "unknown key '%s'; known are: when, on, text, commands, risk, verify" % key
            continue
        for path, problem in rule(entry):
            yield (key, *path), "'%s' %s" % (key, problem)


_FIELDS = {
    "id": _id,
    "title": _text,
    "why": _text,
    "severity": _severity,
    "tags": _matching(TAG, "driver or p2p", 1),
    "needs": _matching(PATH, "host.modules.nvidia_uvm", 0),
    "when": _when,
    "skip": _text,
    "that": _conditions,
    "found": _text,
    "remedy": _remedies,
    "explains": _matching(ID, "the id of a check", 0),
    "docs": _text,
}
