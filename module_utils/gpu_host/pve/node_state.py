"""What a guest's start meets on its node (start_rules.NodeState), from evidence."""

from __future__ import annotations

import posixpath
from collections.abc import Iterable, Mapping
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from ..pcie import config_space, pci_devices
from . import pci_mapping

_LINKS_AT_MOST = 8


def read_mapping(evidence: Evidence, errors: Errors) -> dict[str, Any] | None:
    """The cluster's PCI mappings, {} without a file, None if it cannot be read."""
    reading = evidence.read(pci_mapping.FILE)
    if reading.ok:
        return pci_mapping.parse_mappings(reading.text)
    errors.unanswered(reading, absent_is_fine=True)
    return {} if reading.status == ABSENT else None


def add_start_facts(
    evidence: Evidence, devices: dict[str, dict[str, Any]], addresses: Iterable[str], errors: Errors
) -> None:
    """Read into each of these devices what a start looks at: `iommu_group`, `vgpu` ("" none, "mdev", "nvidia") and
    `answers` (False: its configuration space reads as all ones). None where it cannot be told."""
    for address in addresses:
        device = devices.get(address)
        if device is None or "answers" in device:
            continue
        base = "%s/%s" % (pci_devices.DEVICES, address)
        listing = evidence.list(base)
        errors.unanswered(listing)
        device["vgpu"] = None
        if listing.ok:
            # PVE::SysFSTools: NVIDIA's vGPU driver makes a folder `nvidia` since kernel 6.8, mdev's before that.
            names = listing.entries
            device["vgpu"] = "mdev" if "mdev_supported_types" in names else "nvidia" if "nvidia" in names else ""
            group = names.get("iommu_group")
            device["iommu_group"] = posixpath.basename(group.target or "") or None if group else ""
        config = evidence.read(base + "/config", config_space.EXTENDED_BYTES)
        errors.unanswered(config)
        data = config.data or b""
        whole = config.ok and len(data) in config_space.SIZES
        if config.ok and not whole:
            errors.add(config.path, "is cut off after %d bytes" % len(data))
        device["answers"] = data[:4] != b"\xff\xff\xff\xff" if whole else None


def device_nodes(evidence: Evidence, paths: Iterable[str], errors: Errors) -> dict[str, str]:
    """What stands at each path below /dev: "device", "other", or "" for nothing; a path of which the evidence says
    nothing is missing."""
    found = {}
    for path in paths:
        what = _kind(evidence, path, errors)
        if what is not None:
            found[path] = what
    return found


def _kind(evidence: Evidence, path: str, errors: Errors) -> str | None:
    for _step in range(_LINKS_AT_MOST):
        directory, name = posixpath.split(path)
        listing = evidence.list(directory)
        if not listing.ok:
            if listing.status == ABSENT:
                return ""
            errors.unanswered(listing)
            return None
        entry = listing.entries.get(name)
        if entry is None:
            return ""
        if entry.kind != "link":
            return "device" if entry.kind in ("char", "block") else "other"
        path = posixpath.normpath(posixpath.join(directory, entry.target or ""))
    return None


def cards_in_use(vms: Mapping[str, Mapping[str, Any]]) -> dict[str, str]:
    """Address -> the VM whose running QEMU has it; mediated devices are no claim on the card."""
    return {
        str(device["address"]).lower(): vmid
        for vmid, vm in vms.items()
        for device in ((vm.get("qemu") or {}).get("devices") or {}).values()
        if device["address"]
    }
