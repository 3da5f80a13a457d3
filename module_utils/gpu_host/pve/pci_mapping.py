"""PCI resource mappings of a Proxmox cluster, /etc/pve/mapping/pci.cfg.

Which device a name stands for on which node.
"""

from __future__ import annotations

from typing import Any

from .guest_config import parse_properties
from .vm_config import parse_address


def parse_mappings(text: str) -> dict[str, list[dict[str, Any]]]:
    """Name -> its maps, [{node, devices [{slot, function, address}], id, subsystem_id, iommu_group}].

    Several maps of one node are alternatives: Proxmox takes the first that is free. What is not a map is ignored.
    """
    result: dict[str, list[dict[str, Any]]] = {}
    name = None
    for line in text.splitlines():
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        if not line[0].isspace():
            name = line.partition(":")[2].strip() or line.strip().rstrip(":")
            result.setdefault(name, [])
            continue
        key, _space, value = line.strip().partition(" ")
        if key == "map" and name is not None:
            result[name].append(_map(value))
    return result


def _map(value: str) -> dict[str, Any]:
    options = parse_properties(value, "path")
    devices = []
    for part in options.get("path", "").split(";"):
        found = parse_address(part)
        if found:
            place, function = found
            devices.append(
                {
                    "slot": place,
                    "function": function,
                    "address": None if function is None else "%s.%d" % (place, function),
                }
            )
    return {
        "node": options.get("node"),
        "devices": devices,
        "id": options.get("id"),
        "subsystem_id": options.get("subsystem-id"),
        "iommu_group": options.get("iommugroup"),
    }
