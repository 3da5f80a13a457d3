"""Version numbers of drivers, toolkits and kernels, compared as numbers: 440.100 is newer than 440.95.01."""

from __future__ import annotations

import re

_NUMBERS = re.compile(r"\d+")
# A driver version: two or three dotted numbers, 580.95.05 or 440.100.
DRIVER_VERSION = re.compile(r"\b(\d{3}\.\d{1,3}(?:\.\d{1,2})?)\b")


def split_numbers(version: str | None) -> tuple[int, ...] | None:
    """The numeric parts of `version` in order, None when there are none: '6.17.0-20-generic' -> (6, 17, 0, 20)."""
    found = tuple(int(part[:18]) for part in _NUMBERS.findall(version or "")[:8])
    return found or None


def is_at_least(version: str | None, minimum: str | None) -> bool | None:
    """Whether `version` is `minimum` or newer; None when either is unknown. Missing parts count as 0."""
    left, right = split_numbers(version), split_numbers(minimum)
    if left is None or right is None:
        return None
    length = max(len(left), len(right))
    return _padded(left, length) >= _padded(right, length)


def is_same_version(left: str | None, right: str | None) -> bool | None:
    """Whether both name the same version (580.95.05 and 580.95.5 do); None when either is unknown."""
    forward, backward = is_at_least(left, right), is_at_least(right, left)
    return None if forward is None or backward is None else forward and backward


def parse_major(version: str | None) -> int | None:
    """The first number: the branch of a driver (580), the major release of CUDA (13)."""
    parts = split_numbers(version)
    return parts[0] if parts else None


def _padded(parts: tuple[int, ...], length: int) -> tuple[int, ...]:
    return parts + (0,) * (length - len(parts))
