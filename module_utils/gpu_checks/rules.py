"""What an item of checks/*.yml may hold: one table that finds faults and writes the JSON Schema.

`make docs` writes checks/check.schema.json from it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Callable

SEVERITIES = ("error", "warning", "info")
MACHINES = ("host", "hypervisor", "guest", "firmware", "controller")
# What the commands of a remedy stop: the strongest of these, which come in this order.
DISRUPTIONS = ("reboot", "guest", "server", "gpus", "nothing")
ROLES = ("nvidia_module_options", "nvidia_driver", "cuda_toolkit", "proxmox_passthrough", "pci_acs", "inference_server")

# (path inside the item, what is wrong with it)
Fault = tuple[tuple[Any, ...], str]


@dataclass(frozen=True)
class _Kind:
    """What a value may be.

    `schema` says it to editors, `find_faults` to people; `name` where the schema defines it once.
    """

    schema: Mapping[str, Any]
    find_faults: Callable[[Any], Iterator[Fault]]
    name: str = ""

    @property
    def reference(self) -> dict[str, Any]:
        return {"$ref": "#/$defs/" + self.name} if self.name else dict(self.schema)


@dataclass(frozen=True)
class _Field:
    """One key of a mapping."""

    kind: _Kind
    description: str = ""
    required: bool = False


def _describe_kind(value: Any) -> str:
    return {dict: "a mapping", list: "a list", str: "a text", bool: "true or false", type(None): "nothing"}.get(
        type(value), type(value).__name__
    )


def _text_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, str) or not value.strip():
        yield (), "must be a text, not %s" % ("an empty one" if isinstance(value, str) else _describe_kind(value))


_TEMPLATE = r"\{\{|\{%"


def _condition_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, (str, bool)) or value == "":
        yield (), "must be a condition, not %s" % _describe_kind(value)
    elif isinstance(value, str) and re.search(_TEMPLATE, value):
        yield (), "is a condition already: write it without {{ }}"


def _word(pattern: str, message: str, name: str = "") -> _Kind:
    """A text that `pattern` matches whole; `message` names the value as %(value)s."""

    def faults(value: Any) -> Iterator[Fault]:
        if not isinstance(value, str) or not re.fullmatch(pattern, value):
            yield (), message % {"value": value}

    return _Kind({"type": "string", "pattern": "^%s$" % pattern}, faults, name)


def _one_of(values: tuple[str, ...]) -> _Kind:
    def faults(value: Any) -> Iterator[Fault]:
        if value not in values:
            yield (), "must be one of %s, not %r" % (", ".join(values), value)

    return _Kind({"enum": list(values)}, faults)


def _list_of(kind: _Kind, noun: str, least: int = 1, name: str = "") -> _Kind:
    """A list of `kind`, which messages call `noun`."""

    def faults(value: Any) -> Iterator[Fault]:
        if not isinstance(value, list) or len(value) < least:
            yield (), "must be a list of %s" % noun + (", at least one" if least else "")
            return
        for index, entry in enumerate(value):
            for path, problem in kind.find_faults(entry):
                yield (index, *path), "(entry %d) %s" % (index + 1, problem)

    return _Kind({"type": "array", **({"minItems": least} if least else {}), "items": kind.reference}, faults, name)


def _mapping(fields: Mapping[str, _Field], noun: str, name: str, needs: Mapping[str, str]) -> _Kind:
    """A mapping with these keys; `needs` names for a key the other one without which it may not stand."""
    required = [key for key, field in fields.items() if field.required]

    def faults(value: Any) -> Iterator[Fault]:
        if not isinstance(value, dict):
            yield (), "%s is a mapping with the keys %s, not %s" % (noun, ", ".join(required), _describe_kind(value))
            return
        for key in required:
            if key not in value:
                yield (), "the key '%s' is missing" % key
        for key, entry in value.items():
            if key not in fields:
                yield (key,), "unknown key '%s'; known are: %s" % (key, ", ".join(fields))
                continue
            for path, problem in fields[key].kind.find_faults(entry):
                yield (key, *path), "'%s' %s" % (key, problem)
        for key, other in needs.items():
            if key in value and other not in value:
                yield (key,), "'%s' gives the reason of a false '%s', and there is no '%s'" % (key, other, other)

    properties = {
        key: {**field.kind.reference, **({"description": field.description} if field.description else {})}
        for key, field in fields.items()
    }
    schema: dict[str, Any] = {"type": "object", "additionalProperties": False, "required": required}
    if needs:
        schema["dependentRequired"] = {key: [other] for key, other in needs.items()}
    return _Kind({**schema, "properties": properties}, faults, name)


def _dictionary_faults(value: Any) -> Iterator[Fault]:
    if not isinstance(value, dict):
        yield (), "must be a mapping, not %s" % _describe_kind(value)


def _when_faults(value: Any) -> Iterator[Fault]:
    return (_CONDITIONS if isinstance(value, list) else _CONDITION).find_faults(value)


def _remedies_faults(value: Any) -> Iterator[Fault]:
    yield from _list_of(_REMEDY, "remedies").find_faults(value)
    for index, entry in enumerate(value[:-1] if isinstance(value, list) else ()):
        if isinstance(entry, dict) and "when" not in entry:
            yield (index,), "(entry %d) has no 'when', so no later remedy can be reached" % (index + 1)


_TEXT = _Kind({"type": "string", "pattern": r"\S"}, _text_faults, "text")
_CONDITION = _Kind(
    {"oneOf": [{"type": "boolean"}, {"type": "string", "minLength": 1, "not": {"pattern": _TEMPLATE}}]},
    _condition_faults,
    "condition",
)
_CONDITIONS = _list_of(_CONDITION, "conditions", name="conditions")
_WHEN = _Kind({"oneOf": [_CONDITION.reference, _CONDITIONS.reference]}, _when_faults, "when")
_WORDS = "[a-z][a-z0-9]*(_[a-z0-9]+)*"
_ID = _word(_WORDS, "must be lower-case words joined by _, such as acs_redirect_off, not '%(value)s'", "id")
_TAG = _word("[a-z][a-z0-9_]*", "must look like driver or p2p, not '%(value)s'")
_DICTIONARY = _Kind({"type": "object"}, _dictionary_faults)
_PATH = _word(r"(host|expected)(\.[A-Za-z_][A-Za-z0-9_]*)+", "must look like host.modules.nvidia_uvm, not '%(value)s'")
_REMEDY = _mapping(
    {
        "when": _Field(_WHEN),
        "on": _Field(_one_of(MACHINES), "The machine on which it is done.", required=True),
        "text": _Field(_TEXT, required=True),
        "commands": _Field(_list_of(_TEXT, "texts", 0)),
        "risk": _Field(_TEXT),
        "verify": _Field(_TEXT),
        "disrupts": _Field(
            _one_of(DISRUPTIONS), "The strongest that the commands stop. Without it, the commands only look."
        ),
        "role": _Field(_one_of(ROLES), "The role that does the same."),
        "settings": _Field(_DICTIONARY, "Variables with which the role does it; without them the inventory says how."),
        "by_hand": _Field(_TEXT, "Why remedy.yml does not run the commands, as the end of a sentence."),
        "tried": _Field(
            _word("(?:host|proxmox|none: .+)", "must be host, proxmox or 'none: REASON', not '%(value)s'"),
            "Where a test has run the commands: on a systemd host, against the rules of Proxmox VE, or nowhere: why.",
        ),
    },
    "a remedy",
    "remedy",
    {},
)
_EXPLAINED = _mapping(
    {
        "check": _Field(_ID, required=True),
        "when": _Field(_WHEN, "What must hold beside this check's failure.", required=True),
    },
    "what a check explains under a condition",
    "explained",
    {},
)
_SYMPTOM = _Kind(
    {"oneOf": [_ID.reference, _EXPLAINED.reference]},
    lambda value: (_EXPLAINED if isinstance(value, dict) else _ID).find_faults(value),
)
_REMEDIES = _Kind(_list_of(_REMEDY, "remedies").schema, _remedies_faults)
_CHECK = _mapping(
    {
        "id": _Field(_ID, "Unique, never reused.", required=True),
        "title": _Field(_TEXT, "What holds when the check passes.", required=True),
        "why": _Field(_TEXT, "The background, with the source of the claim.", required=True),
        "severity": _Field(_one_of(SEVERITIES), required=True),
        "tags": _Field(_list_of(_TAG, "tags"), required=True),
        "needs": _Field(_list_of(_PATH, "facts", 0), "Facts without which the status is unknown."),
        "when": _Field(_WHEN, "Where false, the check is skipped."),
        "skip": _Field(_TEXT, "The reason to give for that."),
        "that": _Field(_CONDITIONS, required=True),
        "found": _Field(_TEXT, "What was seen, with units.", required=True),
        "remedy": _Field(_REMEDIES, "The first whose `when` holds; only the last may lack one.", required=True),
        "explains": _Field(
            _list_of(_SYMPTOM, "the ids of checks", 0),
            "The checks whose failure follows from this one's; {check, when} where it does so only under a condition.",
        ),
        "docs": _Field(_TEXT),
    },
    "a check",
    "check",
    {"skip": "when"},
)


def find_item_faults(item: Any) -> Iterator[Fault]:
    """Every way in which one item departs from the form of a check."""
    return _CHECK.find_faults(item)


def render_schema() -> str:
    """checks/check.schema.json: what editors know of the form of a file of checks."""
    named = (_TEXT, _CONDITION, _CONDITIONS, _WHEN, _ID, _REMEDY, _EXPLAINED, _CHECK)
    schema = {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$id": "check.schema.json",
        "title": "A file of checks",
        "description": "checks/*.yml. CONTRIBUTING.md explains the keys. YAML 1.1 readers see the key `on` of a remedy "
        "as true; our loader gives it its name back. Written by `make docs` from module_utils/gpu_checks/rules.py.",
        **_list_of(_CHECK, "checks", 0).schema,
        "$defs": {kind.name: kind.schema for kind in named},
    }
    return json.dumps(schema, indent=2) + "\n"
