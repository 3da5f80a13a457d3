"""The words that nvidia-smi prints in place of a value, and how each is read.

Three answers are kept apart everywhere: a value; ``"n/a"`` (the tool says that the field does not apply to this GPU);
and
``None`` (unknown: the tool could not tell, or printed something that is no value). Words as seen in drivers 470 to 610.
"""

from __future__ import annotations

import re
from typing import Union

from ..evidence import values

NOT_APPLICABLE = "n/a"
Number = Union[int, float, str, None]

_NOT_APPLICABLE_WORDS = {
    "n/a",
    "not supported",
    "requested functionality has been deprecated",
    "not available in wddm driver model",
}
# Anything that NVML answers with an error string: the value is unknown, and a lost GPU says so in nearly every field.
_ERROR_WORDS = re.compile(
    r"(?i)err!|unknown|unknown error|gpu is lost|gpu requires reset|reset required|insufficient "
    r"permissions|insufficient resources"
    r"|no permission|not found|timeout|in use|error|failed|internal error|invalid argument|memory error|irq "
    r"issue|function not found"
)
_NUMBER = re.compile(r"([+-]?\d{1,15}(?:\.\d{1,9})?) ?([A-Za-z%/()]{0,8})")
_ADDRESS = re.compile(r"(?i)(?:0x)?([0-9a-f]{4,8}):([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])")
_ANSI = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# The same codes after a paste that lost the ESC byte: only where they touch a label, so that no real text is eaten.
_BARE_ANSI = re.compile(r"\[[04]m(?=\s|$|GPU)|\[4m")

TRUE_WORDS = {"yes", "enabled", "on", "active"}
FALSE_WORDS = {"no", "disabled", "off", "not active"}


def strip_codes(text: str) -> str:
    """`text` without terminal codes and carriage returns."""
    return _BARE_ANSI.sub("", _ANSI.sub("", text)).replace("\r", "")


def _bare(text: str | None) -> str:
    text = (text or "").strip()
    if text.startswith("[") and text.endswith("]"):
        text = text[1:-1].strip()
    return text


def is_not_applicable(text: str | None) -> bool:
    return _bare(text).lower() in _NOT_APPLICABLE_WORDS


def is_error(text: str) -> bool:
    """Whether `text` is one of NVML's error strings in place of a value."""
    return bool(text) and not values.is_digits(text[:1]) and bool(_ERROR_WORDS.fullmatch(_bare(text)))


def parse_word(text: str | None) -> str | None:
    """A word such as ``Default`` or ``Hopper``; ``"n/a"``; None for an error string, an empty or a missing field."""
    bare = _bare(text)
    if bare.lower() in _NOT_APPLICABLE_WORDS:
        return NOT_APPLICABLE
    if not bare or is_error(bare):
        return None
    return " ".join(bare.split())[:200]


def parse_number(text: str | None, unit: str = "") -> Number:
    """The number in ``97887 MiB`` if it has exactly `unit`; ``"n/a"``.

    None for anything else (``ERR!``, another unit).
    """
    bare = _bare(text)
    if bare.lower() in _NOT_APPLICABLE_WORDS:
        return NOT_APPLICABLE
    match = _NUMBER.fullmatch(bare)
    if match is None or match.group(2) != unit:
        return None
    number = match.group(1)
    return values.decimal_number(number) if "." in number else values.whole_number(number)


def parse_whole(text: str | None) -> int | None:
    """A plain whole number, or None."""
    value = parse_number(text)
    return value if isinstance(value, int) else None


def parse_boolean(text: str | None) -> bool | str | None:
    """True, False, ``"n/a"`` or None."""
    bare = _bare(text).lower()
    if bare in TRUE_WORDS:
        return True
    if bare in FALSE_WORDS:
        return False
    return NOT_APPLICABLE if bare in _NOT_APPLICABLE_WORDS else None


def parse_address(text: str | None) -> str | None:
    """A PCI address in the kernel's form: lower case, domain of four digits (more only where it needs them)."""
    match = _ADDRESS.fullmatch(_bare(text))
    if match is None:
        return None
    domain, bus, device, function = match.groups()
    return "%04x:%s:%s.%s" % (values.hexadecimal_number(domain) or 0, bus.lower(), device.lower(), function)


def parse_version(text: str | None) -> str | None:
    """The dotted number at the front: driver 610 adds ``[Deprecated; will be removed …]`` behind it."""
    match = re.match(r"\s*(\d{1,5}(?:\.\d{1,5}){1,4})(?![\w.])", text or "")
    return match.group(1) if match else None


def device_id(text: str | None) -> str | None:
    """``10de:2bb5`` from the ``2BB510DE`` or ``0x2BB510DE`` that nvidia-smi prints."""
    match = re.fullmatch(r"(?i)(?:0x)?([0-9a-f]{4})([0-9a-f]{4})", _bare(text))
    return "%s:%s" % (match.group(2).lower(), match.group(1).lower()) if match else None
