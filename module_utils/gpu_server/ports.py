"""TCP sockets of a port, from /proc/net/tcp and tcp6: who may reach it, and whether anybody is connected."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.interface import Evidence

_LISTEN, _TIME_WAIT = "0A", "06"
_LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def read_port(evidence: Evidence, port: int | None) -> dict[str, Any]:
    """``{port, listening, beyond_this_host, connections}`` of a port; None where it cannot be read.

    `connections`: how many clients have one open; None where nothing listens here, since it may do so in a network
    namespace of its own.
    """
    result: dict[str, Any] = {"port": port, "listening": None, "beyond_this_host": None, "connections": None}
    tables = [evidence.read("/proc/net/" + name) for name in ("tcp", "tcp6")]
    if port is None or not tables[0].ok:
        return result
    sockets = [
        (address, state) for table in tables for address, number, state in _sockets(table.text) if number == port
    ]
    addresses = [address for address, state in sockets if state == _LISTEN]
    result["listening"] = bool(addresses)
    result["beyond_this_host"] = any(address not in _LOOPBACK for address in addresses) if addresses else None
    if addresses:
        result["connections"] = sum(state not in (_LISTEN, _TIME_WAIT) for _address, state in sockets)
    return result


def _sockets(text: str) -> list[tuple[str, int, str]]:
    """``[(local address, local port, state)]``."""
    found = []
    for line in text.splitlines()[1:]:
        fields = line.split()
        if len(fields) > 3:
            address, _colon, number = fields[1].partition(":")
            port = values.hexadecimal_number(number) if len(number) == 4 else None
            if port is not None:
                found.append((address, port, fields[3]))
    return found
