"""PCI devices from sysfs: a cheap line for each, everything for those that decide how GPUs reach one another.

The one shape of a device, which lspci.py produces too::

    {"address": "0000:01:00.0", "vendor": "10de", "device": "2bb5", "class": "030200", "subsystem": "10de:204e",
     "driver": "nvidia",          # None if unknown; "" if no driver is bound
     "path": ["0000:00:01.1"],    # bridges from the root port down to the device; None if unknown
     "root_complex": "pci0000:00",
     # in detail only:
     "config": {...} | None, "config_bytes": 4096, "bars": [...] | None, "numa_node": 0 | None, "numa_stated": True,
     "iommu_group": "15" | "" (none) | None, "link": {...}}
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence, Reading
from . import config_space

DEVICES = "/sys/bus/pci/devices"
ADDRESS = re.compile(r"^[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]$")
ROOT = re.compile(r"^pci[0-9a-f]{4,8}:[0-9a-f]{2}$")
UNKNOWN_WIDTH = 255  # PCIE_LNK_WIDTH_UNKNOWN of the kernel

# include/linux/ioport.h
IORESOURCE_IO = 0x00000100
IORESOURCE_MEM = 0x00000200
IORESOURCE_PREFETCH = 0x00002000
IORESOURCE_MEM_64 = 0x00100000
IORESOURCE_UNSET = 0x20000000


def read_inventory(evidence: Evidence, errors: Errors) -> dict[str, dict[str, Any]] | None:
    """All PCI devices by address with vendor, device, class, driver and path; None if sysfs does not say.

    A kernel without PCI (the directory is absent) has none: the empty dictionary.
    """
    listing = evidence.list(DEVICES)
    if not listing.ok:
        errors.unanswered(listing, absent_is_fine=True)
        return {} if listing.status == ABSENT else None
    devices = {}
    for address, entry in sorted(listing.entries.items()):
        if not ADDRESS.match(address):
            continue
        device = identify_device(evidence, address, errors)
        device["path"], device["root_complex"] = path_of(entry.target, address)
        devices[address] = device
    return devices


def identify_device(evidence: Evidence, address: str, errors: Errors) -> dict[str, Any]:
    """Identifiers and driver of one device from its uevent, or from vendor, device and class where there is none."""
    device: dict[str, Any] = dict.fromkeys(("vendor", "device", "class", "subsystem", "driver"))
    device["address"] = address
    base = "%s/%s" % (DEVICES, address)
    uevent = evidence.read(base + "/uevent")
    errors.unanswered(uevent, absent_is_fine=True)
    fields = dict(line.split("=", 1) for line in uevent.text.splitlines() if "=" in line) if uevent.ok else {}
    vendor, _, identifier = fields.get("PCI_ID", "").lower().partition(":")
    if identifier:
        device["identified"] = True
        device["vendor"], device["device"] = vendor, identifier
        device["class"] = fields.get("PCI_CLASS", "").lower().rjust(6, "0")
        device["subsystem"] = fields.get("PCI_SUBSYS_ID", "").lower() or None
        device["driver"] = fields.get("DRIVER", "")
        return device
    for name, width in (("vendor", 4), ("device", 4), ("class", 6)):
        reading = evidence.read("%s/%s" % (base, name))
        number = values.hexadecimal_number(reading.text) if reading.ok else None
        if not reading.ok:
            errors.unanswered(reading)
        elif number is None:
            errors.odd(reading.path, "it is no number in base 16", reading.text)
        else:
            device[name] = "%0*x" % (width, number)
    device["identified"] = device["vendor"] is not None and device["class"] is not None
    return device


def find_unidentified(devices: dict[str, dict[str, Any]]) -> list[str]:
    """Addresses of devices of which nobody knows what they are: each may be a GPU."""
    return [address for address, device in devices.items() if device.get("identified") is False]


def path_of(target: str | None, address: str) -> tuple[list[str] | None, str | None]:
    """(bridges from the root port down, root complex) from the target of a device's link.

    (None, None) if it says neither.
    """
    parts = [part for part in (target or "").split("/") if ADDRESS.match(part) or ROOT.match(part)]
    roots = [index for index, part in enumerate(parts) if ROOT.match(part)]
    if not roots or parts[-1] != address:
        return None, None
    # The last root: below a VMD or Hyper-V bridge a PCI domain of its own begins.
    return parts[roots[-1] + 1 : -1], parts[roots[-1]]


def add_detail(evidence: Evidence, device: dict[str, Any], errors: Errors) -> None:
    """Read everything of one device into it: configuration space, BARs, NUMA node, IOMMU group, driver, link."""
    base = "%s/%s" % (DEVICES, device["address"])
    listing = evidence.list(base)
    errors.unanswered(listing)
    if listing.ok:
        group = listing.entries.get("iommu_group")
        device["iommu_group"] = (group.target or "").rsplit("/", 1)[-1] or None if group else ""
        driver = listing.entries.get("driver")
        if device.get("driver") is None:
            device["driver"] = (driver.target or "").rsplit("/", 1)[-1] or None if driver else ""
    else:
        device["iommu_group"] = None
    config = evidence.read(base + "/config", config_space.EXTENDED_BYTES)
    errors.unanswered(config)
    # The kernel gives 64 bytes (without root), 256 (a conventional device) or 4096; anything else is a part of them.
    data = config.data or b""
    if not config.ok or len(data) not in config_space.SIZES:
        data = data[: config_space.HEADER_BYTES]
    device["config_bytes"] = len(data)
    device["config"] = config_space.parse_config_space(data)
    if config.ok and device["config"] is None:
        errors.add(config.path, "the device does not answer: configuration space reads as all ones or is cut off")
    resource = evidence.read(base + "/resource")
    device["bars"] = _read_bars(resource, device["config"], errors)
    device["bars_unread"] = device["bars"] is None and resource.status != ABSENT
    node = evidence.read(base + "/numa_node")
    errors.unanswered(node)
    number = _number(node, errors)
    # -1: the firmware names no node for this device.
    device["numa_stated"] = None if number is None else number >= 0
    device["numa_node"] = number if number is not None and number >= 0 else None
    device["link"] = _link(evidence, base, device["config"], errors)


_RESOURCE = re.compile(r"0x[0-9a-fA-F]{1,16} 0x[0-9a-fA-F]{1,16} 0x[0-9a-fA-F]{1,16}")


def _read_bars(reading: Reading, config: dict[str, Any] | None, errors: Errors) -> list[dict[str, Any]] | None:
    errors.unanswered(reading)
    bars = parse_resource(reading.text, config) if reading.ok else None
    if reading.ok and bars is None:
        odd = next((row for row in reading.text.splitlines()[:6] if not _RESOURCE.fullmatch(row.strip())), reading.text)
        errors.odd(reading.path, "is not a list of resources", odd)
    return bars


def parse_resource(text: str, config: dict[str, Any] | None) -> list[dict[str, Any]] | None:
    """BARs 0 to 5 from a `resource` file: [{index, kind, start, size_mib, assigned, prefetchable, bits}].

    None if it is no such file.

    The expansion ROM and the virtual functions' BARs (lines 7 and on) are left out. When the kernel finds no room it
    may clear start, end and flags of the BAR alike (`reset_resource` in drivers/pci/setup-bus.c); then only the type
    bits in the configuration space's register show that the BAR exists: ``size_mib`` is None and ``assigned`` False.
    """
    rows = [line.split() for line in text.splitlines()[:6]]
    raw = (config or {}).get("bars") or []
    bars = []
    if len(rows) < 6:
        return None
    upper_half = False
    for index, row in enumerate(rows):
        numbers = [values.hexadecimal_number(word) for word in row]
        if len(numbers) != 3 or any(number is None for number in numbers):
            return None
        start, end, flags = (number or 0 for number in numbers)
        register = raw[index] if index < len(raw) else 0
        was_upper_half, upper_half = upper_half, False
        if flags & (IORESOURCE_MEM | IORESOURCE_IO):
            upper_half = bool(flags & IORESOURCE_MEM_64)
            bars.append(
                {
                    "index": index,
                    "kind": "memory" if flags & IORESOURCE_MEM else "io",
                    "start": start,
                    "size_mib": _mib(end - start + 1) if end >= start else None,
                    "assigned": bool(start) and not flags & IORESOURCE_UNSET,
                    "prefetchable": bool(flags & IORESOURCE_PREFETCH),
                    "bits": 64 if flags & IORESOURCE_MEM_64 else 32,
                }
            )
        elif not was_upper_half and _is_cleared_memory_bar(index, register, config):
            upper_half = (register & 0x6) == 0x4
            bars.append(
                {
                    "index": index,
                    "kind": "memory",
                    "start": 0,
                    "size_mib": None,
                    "assigned": False,
                    "prefetchable": bool(register & 0x8),
                    "bits": 64 if (register & 0x6) == 0x4 else 32,
                }
            )
    return bars


def _is_cleared_memory_bar(index: int, register: int, config: dict[str, Any] | None) -> bool:
    if config is None or register & 1:  # bit 0: I/O space
        return False
    # A 32-bit non-prefetchable BAR has no type bits; BAR 0, the registers, exists on every NVIDIA GPU.
    return bool(register & 0xE) or (index == 0 and config["vendor"] == "10de" and config["class"].startswith("03"))


def _link(evidence: Evidence, base: str, config: dict[str, Any] | None, errors: Errors) -> dict[str, Any]:
    """{express, kind, speed_gt_s, width, max_speed_gt_s, max_width}.

    Sysfs first, configuration space where it lacks.
    """
    express = (config or {}).get("express")
    link: dict[str, Any] = {
        "express": None if express is None else bool(express),
        "kind": express["kind"] if express else None,
    }
    for name, source in (
        ("speed_gt_s", "current_link_speed"),
        ("width", "current_link_width"),
        ("max_speed_gt_s", "max_link_speed"),
        ("max_width", "max_link_width"),
    ):
        reading = evidence.read("%s/%s" % (base, source))
        errors.unanswered(reading, absent_is_fine=True)
        link[name] = _speed(reading, errors) if "speed" in name else _width(reading, errors)
        if name == "max_width":
            # A port whose capability names no width, as the downstream ports of QEMU's switch; a current width of 0 is
            # a link that is down.
            link[name] = link[name] or None
        if link[name] is None and express and (reading.ok or reading.status == ABSENT):
            link[name] = express[name]  # this kernel does not show it; one that could not be read is unknown
    if link["express"] is None and link["max_width"] is not None:
        link["express"] = True
    return link


def _speed(reading: Reading, errors: Errors) -> float | None:
    if not reading.ok or reading.text.strip().startswith("Unknown"):  # what the kernel prints for a link that is down
        return None
    return errors.read_decimal(reading.path, "the speed", reading.text.partition(" GT/s")[0])


def _width(reading: Reading, errors: Errors) -> int | None:
    number = _number(reading, errors)
    return None if number is None or number == UNKNOWN_WIDTH or number < 0 else number


def _number(reading: Reading, errors: Errors) -> int | None:
    return errors.read_whole(reading.path, "it", reading.text) if reading.ok else None


def _mib(size: int) -> float | int:
    return size // 1048576 if size % 1048576 == 0 else size / 1048576
