"""Proxmox's property strings, `0000:01:00.0,pcie=1`: a generic parser over a format that is data.

A format is a mapping of key -> Property. The rules are those of PVE::JSONSchema (parse_property_string, check_prop):
keys are case sensitive and keep their blanks, no key twice (not even with the same value), a part without `=` is the
default key's, empty parts are allowed, `key=` with nothing after it is not. Messages are Proxmox's own, so that they
can be found in its journal.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TypeVar

from ..evidence import values

# Perl's \s on the bytes of a file: str.isspace() and Python's \s know more characters.
BLANK = "[\\t-\\r \\x85\\xa0]"
_BLANK_PART = re.compile(BLANK + "*")
_NUMBER = re.compile(r"[+-]?(\d+\.\d+|\d+\.|\.\d+|\d+)([eE][+-]?\d+)?")
_INTEGER = re.compile(r"[+-]?\d+")
_Rule = TypeVar("_Rule")
TRUE, FALSE = ("1", "on", "yes", "true"), ("0", "off", "no", "false")


class Refused(ValueError):
    """Proxmox's schema refuses the value; the message is Proxmox's."""


@dataclass(frozen=True)
class Property:
    """What one key may hold. `type`: string, boolean, integer or number. `default`: a part without `=` is this key's.
    `pattern` must match the whole value. `check` raises Refused. `alias`: the key stands for another one; `key_alias`
    is the key that then takes this key's name (`virtio=02:…` sets macaddr and model)."""

    type: str = "string"
    default: bool = False
    optional: bool = True
    pattern: str | None = None
    enum: tuple[str, ...] | None = None
    minimum: float | None = None
    maximum: float | None = None
    max_length: int | None = None
    requires: str | None = None
    check: Callable[[str], None] | None = None
    alias: str | None = None
    key_alias: str | None = None


Format = Mapping[str, Property]


def parse_boolean(value: str) -> str | None:
    """ "1" or "0" for a boolean in any of Proxmox's spellings, None for what is none."""
    lower = value.lower()
    return "1" if lower in TRUE else "0" if lower in FALSE else None


_NUMBERED_KEY = re.compile(r"([a-z][a-z_\-]*)(0|[1-9][0-9]*)")


def find_numbered(key: str, numbered: Mapping[str, tuple[int, _Rule]]) -> _Rule | None:
    """The rule of `key` in a table of name -> (how many there may be, rule): `hostpci3`; None where it is not in it."""
    match = _NUMBERED_KEY.fullmatch(key)
    if match is None or match.group(1) not in numbered:
        return None
    count, rule = numbered[match.group(1)]
    return rule if values.number_in_name(match.group(2)) < count else None


def parse_property_string(form: Format, value: str) -> dict[str, str]:
    """The properties of `value`, a boolean as "1" or "0"; Refused where the format does not allow it."""
    result: dict[str, str] = {}
    default_taken = False
    for part in value.split(","):
        if _BLANK_PART.fullmatch(part):
            continue
        name, separator, rest = part.partition("=")
        if separator and name and rest:
            _add(form, result, name, rest)
        elif not separator:
            default = next((key for key, prop in form.items() if prop.default), None)
            if default is None:
                raise Refused("value without key, but schema does not define a default key")
            # Perl's truth: an earlier "0" does not count as set.
            if default_taken or result.get(default, "0") != "0":
                raise Refused("duplicate key in comma-separated list property: %s" % default)
            default_taken = True
            result[default] = _spelled(form[default], part)
        else:
            raise Refused("missing key in comma-separated list property")
    problems = _problems(form, result)
    if problems:
        raise Refused("format error; %s" % "; ".join("%s: %s" % item for item in sorted(problems.items())))
    return result


def _add(form: Format, result: dict[str, str], name: str, value: str) -> None:
    if name in result:
        raise Refused("duplicate key in comma-separated list property: %s" % name)
    prop = form.get(name, Property())
    if prop.alias is not None:
        if prop.key_alias is not None:
            if prop.key_alias in result:
                raise Refused("key alias '%s' is already defined" % prop.key_alias)
            result[prop.key_alias] = name
        name = prop.alias
        prop = form[name]
        if name in result:
            raise Refused("key '%s' is already defined (via alias)" % name)
    result[name] = _spelled(prop, value)


def _spelled(prop: Property, value: str) -> str:
    return (parse_boolean(value) or value) if prop.type == "boolean" else value


def _problems(form: Format, result: Mapping[str, str]) -> dict[str, str]:
    found: dict[str, str] = {}
    for key, prop in form.items():
        if prop.alias is not None:
            continue
        if key not in result:
            if not prop.optional:
                found[key] = "property is missing and it is not optional"
            continue
        try:
            check_value(prop, result[key])
        except Refused as error:
            found[key] = str(error)
    for key in result:
        if key not in form:
            found[key] = "property is not defined in schema and the schema does not allow additional properties"
            continue
        required = form[key].requires
        if required is not None and required not in result:
            found[required] = "missing property required by '%s'" % key
    return found


def check_value(prop: Property, value: str) -> None:
    """Refused where one value does not fit its property."""
    if prop.type == "boolean" and value not in ("0", "1"):
        raise Refused("type check ('boolean') failed - got '%s'" % value)
    if prop.type == "integer" and not _INTEGER.fullmatch(value):
        raise Refused("type check ('integer') failed - got '%s'" % value)
    if prop.type == "number" and not _NUMBER.fullmatch(value):
        raise Refused("type check ('number') failed - got '%s'" % value)
    if prop.check is not None:
        try:
            prop.check(value)
        except Refused as error:
            raise Refused("invalid format - %s" % error) from error
    if prop.pattern is not None and not re.fullmatch(prop.pattern, value):
        raise Refused("value does not match the regex pattern")
    if prop.max_length is not None and len(value) > prop.max_length:
        raise Refused("value may only be %d characters long" % prop.max_length)
    if _NUMBER.fullmatch(value):
        number = values.decimal_number(value)
        if number is None:  # more digits than any bound has
            number = -math.inf if value.startswith("-") else math.inf
        if prop.maximum is not None and number > prop.maximum:
            raise Refused("value must have a maximum value of %d" % prop.maximum)
        if prop.minimum is not None and number < prop.minimum:
            raise Refused("value must have a minimum value of %d" % prop.minimum)
    if prop.enum is not None and value not in prop.enum:
        raise Refused("value '%s' does not have a value in the enumeration '%s'" % (value, ", ".join(prop.enum)))


def edit_property_string(form: Format, value: str, changes: Mapping[str, str | None]) -> str:
    """`value` with these properties set, or taken out where the change is None; what is not named stays as it is and
    where it is. Refused where `value` cannot be read."""
    parse_property_string(form, value)
    default = next((key for key, prop in form.items() if prop.default), None)
    left = dict(changes)
    parts = []
    for part in value.split(","):
        name, separator, _rest = part.partition("=")
        if _BLANK_PART.fullmatch(part):
            continue
        name = name if separator else str(default)
        if name not in changes:
            parts.append(part)
        elif name in left:
            new = left.pop(name)
            if new is not None:
                parts.append("%s=%s" % (name, new) if separator else new)
    first = left.pop(default, None) if default is not None else None
    parts = ([first] if first is not None else []) + parts
    return ",".join(parts + ["%s=%s" % (name, new) for name, new in left.items() if new is not None])
