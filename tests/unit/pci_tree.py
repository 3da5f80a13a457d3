"""A host's PCI bus and IOMMU groups in sysfs, as the records of a bundle.

And configuration space bytes to put into it.
"""

from __future__ import annotations

import base64
import struct
from typing import Any

from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence

GPU = "10de:2bb5"
NO_REDIRECT, REDIRECT = 0x0011, 0x001D
AER_FILES = {"aer_dev_correctable": "COR", "aer_dev_nonfatal": "NONFATAL", "aer_dev_fatal": "FATAL"}
MEM64 = 0x14220C
ROOT_PORT, UPSTREAM, DOWNSTREAM, ENDPOINT = 4, 5, 6, 0


def config(
    kind: int = ENDPOINT,
    acs: int | None = None,
    *,
    speed: int = 5,
    width: int = 16,
    max_width: int = 16,
    secondary: int | None = None,
) -> bytes:
    """4096 bytes of a PCI Express function with the express capability at 0x60 and ACS, if any, at 0x2a0."""
    space = bytearray(4096)
    struct.pack_into("<HHHH", space, 0, 0x10DE, 0x2BB5, 6, 0x10)
    space[0x0B], space[0x0A] = (0x06, 0x04) if secondary is not None else (0x03, 0x02)
    if secondary is not None:
        space[0x0E], space[0x19] = 1, secondary
    space[0x34] = 0x60
    struct.pack_into("<BBH", space, 0x60, 0x10, 0, 2 | kind << 4)
    struct.pack_into("<I", space, 0x6C, max_width << 4 | 5)
    struct.pack_into("<H", space, 0x72, width << 4 | speed)
    struct.pack_into("<I", space, 0x100, 0x1 | 2 << 16 | (0x2A0 << 20 if acs is not None else 0))
    if acs is not None:
        struct.pack_into("<IHH", space, 0x2A0, 0xD | 1 << 16, 0x5F, acs)
    return bytes(space)


class Tree:
    """Add devices, then ask for `evidence()`."""

    def __init__(self) -> None:
        self.records: dict[tuple[str, str], dict[str, Any]] = {}
        self.links: dict[str, dict[str, Any]] = {}
        self.groups: dict[str, list[str]] = {}
        self.group_types: dict[str, str] = {}

    def file(self, path: str, text: str | bytes) -> Tree:
        if isinstance(text, bytes):
            self.records["read", path] = {"read": path, "status": "ok", "base64": base64.b64encode(text).decode()}
        else:
            self.records["read", path] = {"read": path, "status": "ok", "text": text}
        return self

    def directory(self, path: str, names: dict[str, str | None] | None = None, status: str = "ok") -> Tree:
        """A directory; a name with a target is a link."""
        entries = {
            name: {"kind": "link", "target": target} if target else {"kind": "dir"}
            for name, target in (names or {}).items()
        }
        self.records["list", path] = {"list": path, "status": status, "entries": entries}
        return self

    def command(self, argv: list[str], stdout: str, rc: int = 0) -> Tree:
        self.records["run", " ".join(argv)] = {"run": argv, "status": "ok", "rc": rc, "stdout": stdout}
        return self

    def device(
        self,
        address: str,
        path: tuple[str, ...] = (),
        *,
        root: str = "pci0000:00",
        ids: str = GPU,
        device_class: str = "30200",
        driver: str | None = "nvidia",
        space: bytes | None = None,
        group: str | None = None,
        group_type: str = "identity",
        resource: str | None = None,
        node: int = 0,
        width: str | None = "16",
        max_width: str = "16",
    ) -> Tree:
        base = "/sys/bus/pci/devices/" + address
        self.links[address] = {"kind": "link", "target": "../../../devices/%s/%s" % (root, "/".join((*path, address)))}
        bound = "DRIVER=%s\n" % driver if driver else ""
        uevent = "PCI_CLASS=%s\nPCI_ID=%s\nPCI_SUBSYS_ID=10DE:204E\nPCI_SLOT_NAME=%s\n" % (
            device_class,
            ids.upper(),
            address,
        )
        self.file(base + "/uevent", bound + uevent)
        names: dict[str, str | None] = {}
        if group is not None:
            names["iommu_group"] = "../../../kernel/iommu_groups/" + group
            self.groups.setdefault(group, []).append(address)
            self.group_types[group] = group_type
        self.directory(base, names)
        self.file(base + "/config", config() if space is None else space)
        self.file(base + "/resource", resource or bars())
        self.file(base + "/numa_node", "%d\n" % node)
        for name, value in (
            ("current_link_width", width),
            ("max_link_width", max_width),
            ("current_link_speed", "2.5 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
        ):
            if width is None:
                self.records["read", base + "/" + name] = {"read": base + "/" + name, "status": "absent"}
            else:
                self.file(base + "/" + name, str(value) + "\n")
        self.file("/proc/uptime", "180000.00 1.00\n")
        for name, total in AER_FILES.items():
            self.file("%s/%s" % (base, name), "RxErr 0\nBadTLP 0\nCmpltTO 0\nUnsupReq 2\nTOTAL_ERR_%s 2\n" % total)
        return self

    def bridge(
        self,
        address: str,
        path: tuple[str, ...] = (),
        *,
        kind: int = ROOT_PORT,
        acs: int | None = NO_REDIRECT,
        root: str = "pci0000:00",
        secondary: int = 1,
        space: bytes | None = None,
        group: str | None = None,
        group_type: str = "identity",
        width: str = "16",
        max_width: str = "16",
    ) -> Tree:
        return self.device(
            address,
            path,
            root=root,
            ids="1022:153e",
            device_class="60400",
            driver="pcieport",
            group=group,
            group_type=group_type,
            space=config(kind, acs, secondary=secondary) if space is None else space,
            width=width,
            max_width=max_width,
        )

    def evidence(self) -> BundleEvidence:
        records = list(self.records.values())
        records.append({"list": "/sys/bus/pci/devices", "status": "ok", "entries": self.links})
        records.append(
            {
                "list": "/sys/kernel/iommu_groups",
                "status": "ok",
                "entries": {name: {"kind": "dir"} for name in self.groups},
            }
        )
        for group, members in self.groups.items():
            records.append(
                {
                    "read": "/sys/kernel/iommu_groups/%s/type" % group,
                    "status": "ok",
                    "text": self.group_types[group] + "\n",
                }
            )
            entries = {member: {"kind": "link", "target": "x"} for member in members}
            records.append({"list": "/sys/kernel/iommu_groups/%s/devices" % group, "status": "ok", "entries": entries})
        return BundleEvidence({"bundle": 1, "captured_at": 1.0}, records)


def bars(bar2: tuple[int, int, int] = (0x20000000000, 0x21FFFFFFFFF, MEM64)) -> str:
    rows = [
        (0x22000000000, 0x22003FFFFFF, MEM64),
        (0, 0, 0),
        bar2,
        (0, 0, 0),
        (0x22010000000, 0x22011FFFFFF, MEM64),
    ] + [(0, 0, 0)] * 8
    return "".join("0x%016x 0x%016x 0x%016x\n" % row for row in rows)
