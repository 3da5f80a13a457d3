"""Listening TCP sockets of a host, from /proc/net/tcp and tcp6."""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host.evidence import Evidence

_LISTEN = "0A"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def read(evidence: Evidence, port: int | None) -> dict[str, Any]:
    """``{port, listening, beyond_this_host}`` of a port; None where it cannot be read."""
    result: dict[str, Any] = {"port": port, "listening": None, "beyond_this_host": None}
    tables = [evidence.read("/proc/net/" + name) for name in ("tcp", "tcp6")]
    if port is None or not tables[0].ok:
        return result
    addresses = [address for table in tables for address, number in _sockets(table.text) if number == port]
    result["listening"] = bool(addresses)
    result["beyond_this_host"] = any(address not in _LOOPBACK for address in addresses) if addresses else None
    return result


def _sockets(text: str) -> list[tuple[str, int]]:
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _LISTEN:
            address, _colon, number = fields[1].partition(":")
            if re.fullmatch(r"[0-9A-F]{4}", number):
                found.append((address, int(number, 16)))
    return found
