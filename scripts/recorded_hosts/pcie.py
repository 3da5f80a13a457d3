"""PCI devices of a model: sysfs directories and configuration space bytes.

They are written as the specification lays them out.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass, field

from .tree import HostModel

GT_S = {1: "2.5 GT/s PCIe", 2: "5.0 GT/s PCIe", 3: "8.0 GT/s PCIe", 4: "16.0 GT/s PCIe", 5: "32.0 GT/s PCIe"}
ROOT_PORT, UPSTREAM, DOWNSTREAM, ENDPOINT, LEGACY_ENDPOINT = 4, 5, 6, 0, 1
# Documentation/ABI/testing/sysfs-bus-pci-devices-aer_stats
_UNCORRECTED = (
    "Undefined", "DLP", "SDES", "TLP", "FCP", "CmpltTO", "CmpltAbrt", "UnxCmplt", "RxOF", "MalfTLP", "ECRC", "UnsupReq",
    "ACSViol", "UncorrIntErr", "BlockedTLP", "AtomicOpBlocked", "TLPBlockedErr", "PoisonTLPBlocked",
)  # fmt: skip
AER = {
    "aer_dev_correctable": (
        "RxErr", "BadTLP", "BadDLLP", "Rollover", "Timeout", "NonFatalErr", "CorrIntErr", "HeaderOF", "TOTAL_ERR_COR",
    ),
    "aer_dev_nonfatal": (*_UNCORRECTED, "TOTAL_ERR_NONFATAL"),
    "aer_dev_fatal": (*_UNCORRECTED, "TOTAL_ERR_FATAL"),
}  # fmt: skip
ACS_CAPABLE = 0x005F  # SV TB RR CR UF DT
ACS_NO_REDIRECT = 0x0011  # SV UF
ACS_REDIRECT = 0x001D  # SV RR CR UF, what Linux sets when it isolates


@dataclass
class Device:
    """One PCI function. `path` are the bridges above it, root port first; `root` is its root complex, `pci0000:00`."""

    address: str
    vendor: int
    device: int
    pci_class: int
    subsystem: tuple[int, int] = (0, 0)
    root: str = "pci0000:00"
    path: tuple[str, ...] = ()
    driver: str | None = None
    numa_node: int = -1
    iommu_group: int | None = None
    port_type: int | None = None  # None: no PCI Express capability (conventional PCI)
    speed: int = 5  # generation now
    max_speed: int = 5
    width: int = 16
    max_width: int = 16
    acs_control: int | None = None  # None: no ACS capability
    buses: tuple[int, int, int] | None = None  # a bridge: primary, secondary, subordinate
    # Index -> (start, size, 64-bit prefetchable)
    bars: dict[int, tuple[int, int, bool]] = field(default_factory=dict)
    revision: int = 0xA1
    irq: int = 0


def config_space(device: Device) -> bytes:
    """4096 bytes (256 for conventional PCI) of configuration space that decode to what `device` says."""
    space = bytearray(4096 if device.port_type is not None else 256)
    bridge = device.buses is not None
    struct.pack_into(
        "<HHHHBBHBBBB",
        space,
        0,
        device.vendor,
        device.device,
        0x0406,
        0x0010,
        device.revision,
        device.pci_class & 0xFF,
        device.pci_class >> 8,
        0x10,
        0,
        1 if bridge else 0,
        0,
    )
    if device.buses is not None:
        space[0x18:0x1B] = bytes(device.buses)
    else:
        for index, (start, _size, wide) in device.bars.items():
            struct.pack_into("<I", space, 0x10 + 4 * index, (start & 0xFFFFFFF0) | (0xC if wide else 0))
            if wide:
                struct.pack_into("<I", space, 0x14 + 4 * index, start >> 32)
        struct.pack_into("<HH", space, 0x2C, *device.subsystem)
    if device.port_type is None:
        struct.pack_into("<H", space, 6, 0x0000)  # status without the capability list bit
        return bytes(space)
    # Power management at 0x40, then PCI Express at 0x60.
    space[0x34] = 0x40
    struct.pack_into("<BBHI", space, 0x40, 0x01, 0x60, 0x0003, 0x00000008)
    slot = 0x0100 if device.port_type in (ROOT_PORT, DOWNSTREAM) else 0
    struct.pack_into(
        "<BBHIHHIHH",
        space,
        0x60,
        0x10,
        0x00,
        0x0002 | device.port_type << 4 | slot,
        0x00008FC1 | (0x10000000 if not bridge else 0),
        0x2910,
        0x0000,
        0x00400000 | device.max_width << 4 | device.max_speed,
        0x0040,
        0x1000 | 0x2000 * bridge | device.width << 4 | device.speed,
    )
    struct.pack_into("<I", space, 0x60 + 0x2C, (1 << (device.max_speed + 1)) - 2)
    struct.pack_into("<H", space, 0x60 + 0x30, device.max_speed)
    # Extended capabilities: Advanced Error Reporting at 0x100, then Access Control Services at 0x2a0 where there is
    # one.
    acs = device.acs_control is not None
    struct.pack_into("<I", space, 0x100, 0x0001 | 2 << 16 | (0x2A0 << 20 if acs else 0))
    if device.acs_control is not None:
        struct.pack_into("<IHH", space, 0x2A0, 0x000D | 1 << 16, ACS_CAPABLE, device.acs_control)
    return bytes(space)


def _resource(device: Device) -> str:
    lines = []
    for index in range(13 if device.buses is None else 17):
        if index in device.bars and device.bars[index][0]:
            start, size, wide = device.bars[index]
            lines.append("0x%016x 0x%016x 0x%016x" % (start, start + size - 1, 0x14220C if wide else 0x40200))
        elif index in device.bars:  # a BAR that got no room
            lines.append("0x%016x 0x%016x 0x%016x" % (0, device.bars[index][1] - 1, 0x20000000 | 0x14220C))
        else:
            lines.append("0x%016x 0x%016x 0x%016x" % (0, 0, 0))
    return "\n".join(lines) + "\n"


def add(model: HostModel, device: Device, visible_bytes: int = 4096) -> None:
    """Put the sysfs directory of `device` into `model`; `visible_bytes` is 64 for an ordinary user."""
    base = "/sys/devices/%s/%s" % (device.root, "/".join((*device.path, device.address)))
    subsystem = device.subsystem if device.subsystem != (0, 0) else (device.vendor, device.device)
    uevent = "DRIVER=%s\n" % device.driver if device.driver else ""
    uevent += "PCI_CLASS=%X\nPCI_ID=%04X:%04X\nPCI_SUBSYS_ID=%04X:%04X\nPCI_SLOT_NAME=%s\n" % (
        device.pci_class,
        device.vendor,
        device.device,
        *subsystem,
        device.address,
    )
    uevent += "MODALIAS=pci:v%08Xd%08Xsv%08Xsd%08Xbc%02Xsc%02Xi%02X\n" % (
        device.vendor,
        device.device,
        *subsystem,
        device.pci_class >> 16,
        device.pci_class >> 8 & 0xFF,
        device.pci_class & 0xFF,
    )
    simple = {
        "vendor": "0x%04x" % device.vendor,
        "device": "0x%04x" % device.device,
        "class": "0x%06x" % device.pci_class,
        "subsystem_vendor": "0x%04x" % subsystem[0],
        "subsystem_device": "0x%04x" % subsystem[1],
        "revision": "0x%02x" % device.revision,
        "numa_node": str(device.numa_node),
        "enable": "1" if device.driver else "0",
        "irq": str(device.irq),
        "broken_parity_status": "0",
        "power_state": "D0",
        "d3cold_allowed": "1",
    }
    if device.port_type is not None:
        simple.update(
            {
                "current_link_speed": GT_S[device.speed],
                "max_link_speed": GT_S[device.max_speed],
                "current_link_width": str(device.width),
                "max_link_width": str(device.max_width),
            }
        )
        if visible_bytes != 256:  # drivers/pci/pcie/aer.c shows its counters to everybody
            for name, kinds in AER.items():
                model.file("%s/%s" % (base, name), "".join("%s 0\n" % kind for kind in kinds))
    if device.port_type in (ENDPOINT, LEGACY_ENDPOINT) and device.vendor == 0x10DE:
        simple.update({"reset_method": "flr bus"})
    if device.buses is not None:
        simple.update({"secondary_bus_number": str(device.buses[1]), "subordinate_bus_number": str(device.buses[2])})
    for name, value in simple.items():
        model.file("%s/%s" % (base, name), value + "\n")
    model.file(base + "/uevent", uevent)
    model.file(base + "/resource", _resource(device))
    space = config_space(device)
    model.file(base + "/config", space[:visible_bytes], size=len(space))
    up = "../" * (len(device.path) + 3)
    model.link(base + "/subsystem", up + "../bus/pci")
    if device.driver:
        model.link(base + "/driver", up + "bus/pci/drivers/" + device.driver)
        model.link("/sys/bus/pci/drivers/%s/%s" % (device.driver, device.address), "../../../.." + base[4:])
    if device.iommu_group is not None:
        model.link(base + "/iommu_group", up + "kernel/iommu_groups/%d" % device.iommu_group)
        model.link(
            "/sys/kernel/iommu_groups/%d/devices/%s" % (device.iommu_group, device.address), "../../../.." + base[4:]
        )
    model.link("/sys/bus/pci/devices/" + device.address, "../../.." + base[4:])
