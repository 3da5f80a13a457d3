"""The networks of a host as NCCL may choose among them: addresses, speeds of links, RDMA ports, the way to rank 0.

Read in the host's own network namespace by what every Linux has: ioctl, /proc/net and /sys/class.
"""

from __future__ import annotations

import errno
import fcntl
import ipaddress
import os
import re
import socket
import struct
from typing import Any

from ..evidence import values

SIOCGIFADDR, SIOCGIFNETMASK = 0x8915, 0x891B
NOT_TOLD = "n/a"  # the kernel says that the link has no speed of its own: a bridge, a virtual card
CONNECT_SECONDS = 4.0
GREETING_BYTES = 4096
# What connects nothing but a host with its own guests and containers.
OWN_BRIDGES = ("lo", "docker", "virbr", "br-", "cni", "flannel", "cali", "veth", "lxc", "lxdbr", "tailscale")
_RATE = re.compile(r"^\s*(\d{1,6}(?:\.\d{1,3})?) Gb/sec")


def list_interfaces() -> list[str]:
    """The network interfaces of the host, by name."""
    return sorted(name for _number, name in socket.if_nameindex())


def list_addresses() -> list[dict[str, str]]:
    """``[{interface, address, network}]`` of every interface that has an address; loopback and link-local left out."""
    kept = [
        (name, entry) for name, entry in _read_addresses() if not entry.ip.is_loopback and not entry.ip.is_link_local
    ]
    return [{"interface": name, "address": str(entry.ip), "network": str(entry.network)} for name, entry in kept]


def find_interface(address: str) -> str | None:
    """The name of the interface that has this address of the host, loopback too; None where none has."""
    wanted = ipaddress.ip_address(address.partition("%")[0])
    return next((name for name, entry in _read_addresses() if entry.ip == wanted), None)


def _read_addresses() -> list[tuple[str, ipaddress.IPv4Interface | ipaddress.IPv6Interface]]:
    found = []
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as sock:
        for _number, name in socket.if_nameindex():
            asked = struct.pack("256s", name.encode()[:15])
            try:
                address, mask = (
                    socket.inet_ntoa(fcntl.ioctl(sock.fileno(), request, asked)[20:24])
                    for request in (SIOCGIFADDR, SIOCGIFNETMASK)
                )
            except OSError:  # an interface without an IPv4 address
                continue
            found.append((name, "%s/%s" % (address, mask)))
    for line in _read("/proc/net/if_inet6").splitlines():
        cells = line.split()
        if len(cells) == 6 and len(cells[0]) == 32:
            address = ":".join(cells[0][at : at + 4] for at in range(0, 32, 4))
            found.append((cells[5], "%s/%s" % (address, values.hexadecimal_number(cells[2]))))
    rows = []
    for name, text in found:
        try:
            rows.append((name, ipaddress.ip_interface(text)))
        except ValueError:
            continue
    return rows


def read_link_speeds() -> dict[str, float | str | None]:
    """Megabits/s by interface, as the kernel has it of the card (/sys/class/net/*/speed); NOT_TOLD where the kernel
    says that it has none, None where it cannot be read."""
    found: dict[str, float | str | None] = {}
    for _number, name in socket.if_nameindex():
        try:
            with open("/sys/class/net/%s/speed" % name, encoding="ascii") as handle:
                text = handle.read().strip()
        except OSError as error:  # EINVAL: a card that has none, or one that is down
            found[name] = NOT_TOLD if error.errno in (errno.EINVAL, errno.EOPNOTSUPP) else None
            continue
        found[name] = NOT_TOLD if text in ("-1", "0") else values.whole_number(text)
    return found


def read_rdma_ports() -> list[dict[str, Any]]:
    """``[{device, port, active, gigabits_s, layer}]`` of /sys/class/infiniband; values None where they are not read."""
    rows = []
    root = "/sys/class/infiniband"
    try:
        devices = sorted(os.listdir(root))
    except OSError:
        return []
    for device in devices:
        try:
            ports = sorted(os.listdir("%s/%s/ports" % (root, device)))
        except OSError:
            continue
        for port in ports:
            place = "%s/%s/ports/%s/" % (root, device, port)
            state, rate = _read(place + "state"), _RATE.match(_read(place + "rate"))
            rows.append(
                {
                    "device": device,
                    "port": values.whole_number(port),
                    "active": "ACTIVE" in state if state else None,
                    "gigabits_s": values.decimal_number(rate[1]) if rate else None,
                    "layer": _read(place + "link_layer").strip() or None,
                }
            )
    return rows


def find_way(address: str) -> dict[str, Any]:
    """How this host reaches `address` (a name or an address): ``{address, source, interface, problem}``."""
    way: dict[str, Any] = dict.fromkeys(("address", "source", "interface", "problem"))
    try:
        family, _kind, _protocol, _name, target = socket.getaddrinfo(address, 9, type=socket.SOCK_DGRAM)[0]
    except (OSError, UnicodeError) as error:
        return {**way, "problem": "the name %s is not known here: %s" % (address, getattr(error, "strerror", error))}
    way["address"] = target[0]
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as sock:
            sock.connect(target)
            way["source"] = sock.getsockname()[0]
    except OSError as error:
        return {**way, "problem": "there is no route to %s: %s" % (target[0], error.strerror or error)}
    rows = list_addresses()
    way["interface"] = next((row["interface"] for row in rows if row["address"] == way["source"]), None)
    return way


def parse_meeting_place(identifier: bytes) -> tuple[str, int] | None:
    """Where rank 0 waits for the others, from its ncclUniqueId; None where it has another form.

    Since NCCL 2.10 that is ``{uint64 magic; union {sockaddr_in; sockaddr_in6}}`` (src/include/bootstrap.h), before it
    the address alone.
    """
    for begin in (8, 0):
        part = identifier[begin : begin + 28]
        if len(part) < 28:
            continue
        family = struct.unpack_from("=H", part)[0]
        port = struct.unpack_from("!H", part, 2)[0]
        if family == socket.AF_INET and port:
            return socket.inet_ntoa(part[4:8]), port
        if family == socket.AF_INET6 and port:
            return socket.inet_ntop(socket.AF_INET6, part[8:24]), port
    return None


def explain_connect_error(error: OSError, where: str) -> str:
    """Why no connection came about, in words that say what to look at."""
    if isinstance(error, ConnectionRefusedError):
        return (
            "%s refused the connection: another machine or interface has that address here, or a firewall rejects"
            % where
        )
    if isinstance(error, (socket.timeout, TimeoutError)):
        return "%s did not answer within %g s: a firewall drops it, or nothing has that address" % (
            where,
            CONNECT_SECONDS,
        )
    if error.errno in (errno.ENETUNREACH, errno.EHOSTUNREACH, errno.ENONET):
        return "there is no route to %s: %s" % (where, error.strerror)
    return "%s cannot be reached: %s" % (where, error.strerror or error)


def name_place(address: str, port: int) -> str:
    return "[%s]:%d" % (address, port) if ":" in address else "%s:%d" % (address, port)


def is_own_bridge(interface: str) -> bool:
    """Whether an interface joins a host only with what runs on it."""
    return interface.startswith(OWN_BRIDGES)


def _read(path: str) -> str:
    try:
        with open(path, encoding="ascii", errors="replace") as handle:
            return handle.read(1 << 16)
    except OSError:
        return ""
