"""Single values as Proxmox checks them: names, volumes, addresses, sizes. Each function raises Refused or returns.

Source: PVE::JSONSchema (register_format), PVE::Storage (parse_volume_id), PVE::CpuSet.
"""

from __future__ import annotations

import ipaddress
import re
from collections.abc import Callable

from ..evidence import values
from .property_string import BLANK, Refused

CONFIG_ID = "[a-zA-Z][a-zA-Z0-9_-]+"
_LABEL = "[a-zA-Z0-9](?:[a-zA-Z0-9\\-]*[a-zA-Z0-9])?"


def make_match(pattern: str, message: str) -> Callable[[str], None]:
    """A check by one pattern over the whole value; `%s` in `message` stands for the value."""
    compiled = re.compile(pattern)

    def check(value: str) -> None:
        if not compiled.fullmatch(value):
            raise Refused(message % value if "%s" in message else message)

    return check


def split_list(value: str) -> list[str]:
    """A list in one value, separated by comma, semicolon or white space."""
    return [word for word in re.split("(?:%s|[,;])+" % BLANK, value) if word]


def make_each(check: Callable[[str], None]) -> Callable[[str], None]:
    def check_all(value: str) -> None:
        for word in split_list(value):
            check(word)

    return check_all


config_id = make_match(CONFIG_ID, "invalid configuration ID '%s'")
dns_name = make_match(r"(?:%s\.)*%s" % (_LABEL, _LABEL), "value does not look like a valid DNS name")
volume_id = make_match(r"[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]:.+", "unable to parse volume ID '%s'")
storage_id = make_match(r"[a-zA-Z][a-zA-Z0-9\-_.]*[a-zA-Z0-9]", "storage ID '%s' contains illegal characters")
bridge_id = make_match(r"[-_.\w]+", "invalid bridge ID '%s'")
mac_address = make_match(
    r"(?i)[a-f0-9][02468ace](?::[a-f0-9]{2}){5}", "value does not look like a valid unicast MAC address"
)
url_encoded = make_match(r"[-%a-zA-Z0-9_.!~*'()]*", "invalid urlencoded string: %s")
disk_size = make_match(r"\d+(?:\.\d+)?(?:[KMGT](?:iB)?)?", "value does not look like a valid disk size: %s")
tag = make_match(r"[a-zA-Z0-9_][a-zA-Z0-9_\-+.]*", "invalid characters in tag")
time_zone = make_match(r"[A-Za-z0-9_+\-]+(?:/[A-Za-z0-9_+\-]+)*", "invalid time zone '%s'")


def volume_or_path(value: str) -> None:
    if value not in ("none", "cdrom") and not value.startswith("/"):
        volume_id(value)


def ip_address(value: str, version: int | None = None) -> None:
    try:
        found = ipaddress.ip_address(value)
    except ValueError as error:
        raise Refused("value does not look like a valid IP address") from error
    if version is not None and found.version != version:
        raise Refused("value does not look like a valid IPv%d address" % version)


def check_ipv4(value: str) -> None:
    ip_address(value, 4)


def check_ipv6(value: str) -> None:
    ip_address(value, 6)


def _config(value: str, version: int, words: tuple[str, ...]) -> None:
    if value in words:
        return
    place, _slash, bits = value.partition("/")
    if not (re.fullmatch("[0-9]{1,3}", bits) and 7 < values.number_in_name(bits) <= (32 if version == 4 else 128)):
        raise Refused("value does not look like a valid ipv%d network configuration" % version)
    ip_address(place, version)


def ipv4_config(value: str) -> None:
    _config(value, 4, ("dhcp", "manual"))


def ipv6_config(value: str) -> None:
    _config(value, 6, ("auto", "dhcp", "manual"))


def check_address(value: str) -> None:
    try:
        ip_address(value)
    except Refused:
        try:
            dns_name(value)
        except Refused as error:
            raise Refused("value does not look like a valid address: %s" % value) from error


def container_ip(value: str) -> None:
    """An address, or a link-local one with its interface (`fe80::1%eth0`)."""
    link_local = re.fullmatch(r"(fe80:[^%]+)%(.*)", value)
    ip_address(link_local.group(1) if link_local else value)


def startup_order(value: str) -> None:
    for part in value.split(","):
        if part.strip() and not re.fullmatch(r"(?:order=)?\d+|up=\d+|down=\d+", part):
            raise Refused("unable to parse startup options")


def cpu_set(value: str) -> None:
    for part in value.split(","):
        match = re.fullmatch(r"\s*([0-9]+)(?:-([0-9]+))?\s*", part)
        ends = [values.number_in_name(end) for end in match.groups() if end] if match else []
        if not ends or ends[-1] < ends[0]:
            raise Refused("unable to parse cpuset option")


def check_hotplug(value: str) -> None:
    for word in [] if value in ("0", "1") else split_list(value):
        if word not in ("network", "disk", "cpu", "memory", "usb", "cloudinit"):
            raise Refused("invalid hotplug feature '%s'" % word)


def phys_bits(value: str) -> None:
    if value != "host" and not (re.fullmatch(r"[0-9]{1,2}", value) and 8 <= values.number_in_name(value) <= 64):
        raise Refused("value must be an integer between 8 and 64 or 'host'")


def device_path(value: str) -> None:
    """A container's devN path: below /dev/, without `.` and `..`."""
    if not value.startswith("/dev/") or re.search(r"/\.\.?(?:/|$)", value):
        raise Refused("%s is not a valid device path" % value)


def mount_source(value: str) -> None:
    if re.search(r"/\.\.?/|/\.\.?$|^\.\./", value):
        raise Refused("%s contains illegal character sequences" % value)
