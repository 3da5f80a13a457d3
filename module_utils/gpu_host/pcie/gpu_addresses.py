"""Which PCI addresses belong to NVIDIA GPUs: a short look for readers that must tell a GPU from another device.

The full description of the bus is in `pci.py`; this one reads the same files, and no more than `uevent`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from ..evidence import values
from ..evidence.interface import Evidence

DEVICES = "/sys/bus/pci/devices"
NVIDIA = 0x10DE
_ADDRESS = re.compile(r"[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]")


@dataclass(frozen=True)
class PciDevice:
    """One function on the bus. `path` holds the bridges above it, root port first."""

    address: str
    vendor: int
    device: int
    pci_class: int  # 0x030200: base class, subclass, programming interface
    driver: str | None
    path: tuple[str, ...]

    @property
    def is_gpu(self) -> bool:
        return self.vendor == NVIDIA and self.pci_class >> 8 in (0x0300, 0x0302)

    @property
    def is_nvswitch(self) -> bool:
        return self.vendor == NVIDIA and self.pci_class >> 8 == 0x0680


def devices(evidence: Evidence) -> dict[str, PciDevice] | None:
    """Every device on the bus by address; None when sysfs does not show the bus. A device whose `uevent` is unreadable or
    says nothing is left out: what concerns it is unknown."""
    listing = evidence.list(DEVICES)
    if not listing.ok:
        return None
    found = {}
    for address, entry in listing.entries.items():
        uevent = evidence.read("%s/%s/uevent" % (DEVICES, address))
        fields = dict(line.partition("=")[::2] for line in uevent.text.splitlines()) if uevent.ok else {}
        maker, _colon, product = fields.get("PCI_ID", "").partition(":")
        vendor, device = values.hexadecimal_number(maker), values.hexadecimal_number(product)
        pci_class = values.hexadecimal_number(fields.get("PCI_CLASS"))
        if vendor is None or device is None or pci_class is None:
            continue
        above = tuple(part for part in (entry.target or "").split("/")[:-1] if _ADDRESS.fullmatch(part))
        found[address] = PciDevice(address, vendor, device, pci_class, fields.get("DRIVER") or None, above)
    return found


def gpu_related(found: dict[str, PciDevice]) -> set[str]:
    """Addresses whose faults concern a GPU: GPUs, NVSwitches, the other functions of their slots, every bridge above
    them."""
    related: set[str] = set()
    slots = set()
    for device in found.values():
        if device.is_gpu or device.is_nvswitch:
            related |= {device.address, *device.path}
            slots.add(device.address.rpartition(".")[0])
    return related | {address for address in found if address.rpartition(".")[0] in slots}


def normal_form(text: str) -> str | None:
    """The kernel's form of an address as a log spells it, None for anything else.

    '0000:9b:00', '0000:91:00.0', '00000000:01:00.0' and '07:00.0' are clear. The driver of 2009 wrote
    bus:device.function with a padded bus and no domain: '0002:00.0' is 0000:02:00.0.
    """
    text = text.lower().rstrip(":.")
    match = re.fullmatch(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?", text)
    if match:
        domain, bus, slot, function = match.groups()
        return "%04x:%s:%s.%s" % (int(domain or "0", 16), bus, slot, function or "0")
    match = re.fullmatch(r"00([0-9a-f]{2}):([0-9a-f]{2})\.([0-7])", text)
    return "0000:%s:%s.%s" % match.groups() if match else None
