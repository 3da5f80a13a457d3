"""TCP sockets of a port, from /proc/net/tcp and tcp6: who may reach it, and whether anybody is connected."""

from __future__ import annotations

import ipaddress
import re
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.interface import Evidence, Reading

_ESTABLISHED, _LISTEN, _TIME_WAIT = "01", "0A", "06"
_ADDRESS = re.compile(r"[0-9A-Fa-f]{8}|[0-9A-Fa-f]{32}")
LOOPBACK = ("0100007F", "00000000000000000000000001000000", "0000000000000000FFFF00000100007F")


def read_port(evidence: Evidence, port: int | None, pid: int | None = None) -> dict[str, Any]:
    """``{port, listening, beyond_this_host, connections}`` of a port; None where it cannot be read.

    `connections`: how many clients have one open; None where nothing listens here, since it may do so in a network
    namespace of its own. `pid`: a process whose network namespace is meant, in the place of ours.
    """
    result: dict[str, Any] = {"port": port, "listening": None, "beyond_this_host": None, "connections": None}
    sockets = _find_sockets(evidence, port, pid)
    if sockets is None:
        return result
    addresses = [address for address, state in sockets if state == _LISTEN]
    result["listening"] = bool(addresses)
    result["beyond_this_host"] = any(address not in LOOPBACK for address in addresses) if addresses else None
    if addresses:
        result["connections"] = sum(state not in (_LISTEN, _TIME_WAIT) for _address, state in sockets)
    return result


def find_clients(evidence: Evidence, port: int, pid: int | None = None) -> list[str] | None:
    """The addresses of other hosts that have a connection to a port of this one; None where the table cannot be read.

    A host's own address is the local one of the connection. `pid`: a process whose network namespace is meant.
    """
    tables = _read_tables(evidence, pid)
    if not tables[0].ok:
        return None
    found = set()
    for line in [line for table in tables for line in table.text.splitlines()[1:]]:
        fields = line.split()
        if len(fields) > 3 and fields[3] == _ESTABLISHED:
            local, _colon, number = fields[1].partition(":")
            remote = fields[2].partition(":")[0]
            if values.hexadecimal_number(number) == port and len(number) == 4 and remote != local:
                found.add(_address(remote))
    return sorted(found)


def _address(text: str) -> str:
    """An address of /proc/net/tcp (four bytes, the last first) or tcp6 (four such words) as people write it."""
    if not _ADDRESS.fullmatch(text):
        return text
    data = b"".join(bytes.fromhex(text[at : at + 8])[::-1] for at in range(0, len(text), 8))
    if len(data) == 16 and data[:12] == bytes(10) + b"\xff\xff":
        data = data[12:]
    return str(ipaddress.ip_address(data))


def find_listening(evidence: Evidence, port: int, pid: int) -> list[str]:
    """The addresses, in the kernel's form, that are listened on at `port` in the network namespace of `pid`."""
    return [address for address, state in _find_sockets(evidence, port, pid) or () if state == _LISTEN]


def _read_tables(evidence: Evidence, pid: int | None) -> list[Reading]:
    base = "/proc/net/" if pid is None else "/proc/%d/net/" % pid
    return [evidence.read(base + name) for name in ("tcp", "tcp6")]


def _find_sockets(evidence: Evidence, port: int | None, pid: int | None) -> list[tuple[str, str]] | None:
    """``[(local address, state)]`` of `port`; None where the table cannot be read."""
    tables = _read_tables(evidence, pid)
    if port is None or not tables[0].ok:
        return None
    return [(address, state) for table in tables for address, number, state in _sockets(table.text) if number == port]


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
