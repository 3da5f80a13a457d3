"""Values as they stand in a text, read in one place: what is no such value is None (unknown), and nothing raises.

``int()`` and ``float()`` take more than the kernel and the tools print (``①`` is a digit to ``str.isdigit``, ``inf``
and ``1e999`` are floats, a number of 4,300 digits raises), and a JSON answer may hold a text where a mapping belongs.
"""

from __future__ import annotations

import datetime
import json
import math
import re
from typing import Any

_WHOLE = re.compile(r"[+-]?[0-9]{1,18}", re.ASCII)
_HEXADECIMAL = re.compile(r"(?:0[xX])?[0-9A-Fa-f]{1,16}", re.ASCII)
_DECIMAL = re.compile(r"[+-]?(?:[0-9]{1,18}(?:\.[0-9]{0,18})?|\.[0-9]{1,18})(?:[eE][+-]?[0-9]{1,2})?", re.ASCII)
_SHOWN = 60
JSON_DEPTH_TOO_DEEP = "nested too deeply"


def whole_number(text: Any) -> int | None:
    """The whole number that is all of `text`, between spaces; at most 18 digits. A whole number is taken as it is."""
    if isinstance(text, int) and not isinstance(text, bool):
        return text if abs(text) < 10**18 else None
    if not isinstance(text, str) or _WHOLE.fullmatch(text.strip()) is None:
        return None
    return int(text)


def hexadecimal_number(text: Any) -> int | None:
    """The number that `text` is in base 16, with or without 0x; at most 64 bits."""
    if not isinstance(text, str) or _HEXADECIMAL.fullmatch(text.strip()) is None:
        return None
    return int(text, 16)


def decimal_number(text: Any) -> float | None:
    """The finite number that is all of `text`, between spaces. A number is taken as it is."""
    if isinstance(text, (int, float)) and not isinstance(text, bool):
        return float(text) if abs(text) < 1e100 else None  # false for nan too
    if not isinstance(text, str) or _DECIMAL.fullmatch(text.strip()) is None:
        return None
    return float(text)


def is_digits(text: Any) -> bool:
    """Whether `text` is a whole number without a sign, as ``str.isdigit`` does not ask: 0 to 9 only, at most 18 of
    them."""
    return isinstance(text, str) and text[:1] not in ("+", "-") and _WHOLE.fullmatch(text) is not None


def number_in_name(text: str) -> int:
    """The number in a name such as ``hostpci3``, by which such names are sorted; one of too many digits comes last."""
    number = whole_number(text)
    return 10**18 if number is None else number


def parse_mapping(value: Any) -> dict[str, Any]:
    """`value` if it is a mapping, else an empty one."""
    return value if isinstance(value, dict) else {}


def parse_sequence(value: Any) -> list[Any]:
    """`value` if it is a list, else an empty one."""
    return value if isinstance(value, list) else []


def parse_moment(seconds: Any) -> datetime.datetime | None:
    """Seconds since the epoch as a time in UTC; None where no calendar reaches so far."""
    number = decimal_number(seconds)
    try:
        return None if number is None else datetime.datetime.fromtimestamp(number, datetime.timezone.utc)
    except (OverflowError, OSError, ValueError):
        return None


def json_value(text: str) -> Any:
    """The value of a JSON text, every number in it finite and of at most 18 digits, else None in its place.

    ValueError says what is wrong with a text that is no JSON.
    """
    try:
        return json.loads(text, parse_int=whole_number, parse_float=_finite, parse_constant=lambda _word: None)
    except RecursionError:
        raise ValueError(JSON_DEPTH_TOO_DEEP) from None


def format_value(value: Any) -> str:
    """`value` as a message names it: in quotes, its middle left out where it is long."""
    text = repr(value)
    return text if len(text) <= _SHOWN else "%s…%s" % (text[: _SHOWN - 10], text[-8:])


def _finite(text: str) -> float | None:
    number = float(text)
    return number if math.isfinite(number) else None
