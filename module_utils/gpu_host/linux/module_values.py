"""Values of module parameters, made comparable: what the running module shows against what a file or the kernel
command line asks for."""

from __future__ import annotations

from typing import Any

from ..evidence import values

# Parameters that are booleans even where no running module shows it.
BOOLEANS = frozenset({"uvm_disable_hmm", "modeset", "fbdev", "disable_idle_d3", "disable_vga"})
_TRUE = frozenset({"1", "y", "Y", "t", "T", "on", "On", "ON", "yes", "Yes"})
_FALSE = frozenset({"0", "n", "N", "f", "F", "off", "Off", "OFF", "no", "No"})


def live(text: str) -> bool | int | str:
    """What /sys/module/M/parameters/P or /proc/driver/nvidia/params shows: Y and N are booleans, digits a number."""
    text = text.strip()
    if text in ("Y", "N"):
        return text == "Y"
    if text.startswith('"') and text.endswith('"') and len(text) > 1:
        return text[1:-1]
    return _number(text, text)


def configured(name: str, text: str | None, shown: Any = None) -> bool | int | str:
    """What an `options` line or the command line asks for, in the type that the running module shows (`shown`) for it.

    A parameter without a value is true, as kstrtobool() and param_set_bool() have it.
    """
    if text is None:
        return True
    if isinstance(shown, bool) or (shown is None and name in BOOLEANS):
        return True if text in _TRUE else False if text in _FALSE else text
    if isinstance(shown, str):
        return text
    number = _number(text, text)
    # The driver prints its signed "-1" (decide yourself) as an unsigned number.
    return (
        number + (1 << 32)
        if isinstance(number, int) and number < 0 and isinstance(shown, int) and shown >= 0
        else number
    )


def _number(text: str, otherwise: str) -> int | str:
    sign = -1 if text.startswith("-") else 1
    number = values.hexadecimal_number(text.lstrip("-")) if "0x" in text.lower() else values.whole_number(text)
    if number is None:
        return otherwise
    return sign * number if "0x" in text.lower() else number


def registry_dwords(text: str) -> dict[str, int | str]:
    """`ForceP2P=0x11;RMForceP2PType=1` -> {'ForceP2P': 17, 'RMForceP2PType': 1}; what is no number stays text."""
    found: dict[str, int | str] = {}
    for part in text.split(";"):
        name, equals, value = part.strip().partition("=")
        if name.strip() and equals:
            found[name.strip()] = _number(value.strip(), value.strip())
    return found
