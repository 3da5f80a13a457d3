"""The power state of a PCI device, and how the kernel can reset it.

Source: Documentation/ABI/testing/sysfs-bus-pci (power_state, d3cold_allowed, reset, reset_method). The methods are
named since Linux 5.15; a device that the kernel cannot reset has neither file. None of these reads wakes a device.
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from . import pci_devices

_STATES = ("D0", "D1", "D2", "D3hot", "D3cold", "unknown", "error")
_METHOD = re.compile(r"[a-z_]+")
UNNAMED = "unnamed"


def read_power(evidence: Evidence, address: str, errors: Errors) -> dict[str, Any]:
    """{power_state: D0 | D1 | D2 | D3hot | D3cold | unknown | error, d3cold_allowed: bool, reset_methods: ["flr",
    "bus"] in the order in which they are tried, ["unnamed"] on a kernel that names none, [] where there is none}; each
    None where it could not be read."""
    base = "%s/%s" % (pci_devices.DEVICES, address)
    state = evidence.read(base + "/power_state")
    errors.unanswered(state, absent_is_fine=True)
    word = state.text.strip() if state.ok else ""
    allowed = evidence.read(base + "/d3cold_allowed")
    errors.unanswered(allowed, absent_is_fine=True)
    if state.ok and word not in _STATES:
        errors.odd(state.path, "is no power state", word)
    flag = {"1": True, "0": False}.get(allowed.text.strip()) if allowed.ok else None
    if allowed.ok and flag is None:
        errors.odd(allowed.path, "is neither 0 nor 1", allowed.text.strip())
    return {
        "power_state": word if word in _STATES else None,
        "d3cold_allowed": flag,
        "reset_methods": _reset_methods(evidence, base, errors),
    }


def _reset_methods(evidence: Evidence, base: str, errors: Errors) -> list[str] | None:
    methods = evidence.read(base + "/reset_method")
    errors.unanswered(methods, absent_is_fine=True)
    if methods.ok:
        words = methods.text.split()
        odd = [word for word in words if not _METHOD.fullmatch(word)]
        if odd:
            errors.odd(methods.path, "is no reset method", odd[0])
        return None if odd else words
    if methods.status != ABSENT:
        return None
    files = evidence.list(base)
    errors.unanswered(files)
    return None if not files.ok else [UNNAMED] if "reset" in files.entries else []
