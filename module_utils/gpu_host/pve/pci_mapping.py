"""PCI resource mappings of a Proxmox cluster, /etc/pve/mapping/pci.cfg: which device a name stands for on which node.

Source: PVE::Mapping::PCI and PVE::SectionConfig (parse_config): a section ends at an empty line; a line at the left
margin before that is ignored, and what follows still belongs to the section. An entry that the format refuses is
dropped.
"""

from __future__ import annotations

import re
from typing import Any

from .property_string import Property, Refused, parse_boolean, parse_property_string
from .value_checks import CONFIG_ID
from .vm_config import parse_address

FILE = "/etc/pve/mapping/pci.cfg"
_PLACE = "[a-f0-9]{4,}:[a-f0-9]{2}:[a-f0-9]{2}(?:\\.[a-f0-9])?"
_ID = "[0-9A-Fa-f]{4}:[0-9A-Fa-f]{4}"
MAP = {
    "node": Property(optional=False, pattern="[a-zA-Z0-9](?:[a-zA-Z0-9\\-]*[a-zA-Z0-9])?"),
    "id": Property(optional=False, pattern=_ID),
    "subsystem-id": Property(pattern=_ID),
    "path": Property(optional=False, pattern="(?:%s;)*%s" % (_PLACE, _PLACE)),
    "iommugroup": Property("integer"),
    "description": Property(max_length=4096),
}
_HEADER = re.compile(r"(\S+)\s*")
_LINE = re.compile(r"\s+(\S+)(?:\s+(.*\S))?\s*")


def parse_mappings(text: str) -> dict[str, dict[str, Any]]:
    """Name -> {mdev, maps [{node, path, devices [{slot, function, address}], id, subsystem_id, iommu_group}]}. Several
    maps of one node are alternatives: Proxmox takes the first that is free."""
    result: dict[str, dict[str, Any]] = {}
    section: dict[str, Any] | None = None
    inside = False
    for line in text.split("\n"):
        if re.match(r"\s*#", line):
            continue
        if line in ("", "0"):
            inside = False
            continue
        if not inside:
            header = _HEADER.fullmatch(line)
            section = None
            if header:
                inside = True
                if re.fullmatch(CONFIG_ID, header.group(1)):
                    section = result[header.group(1)] = {"mdev": False, "maps": []}
            continue
        setting = _LINE.fullmatch(line)
        if section is None or setting is None:
            continue
        key, value = setting.group(1), setting.group(2) or ""
        if key == "map":
            found = _map(value)
            if found is not None:
                section["maps"].append(found)
        elif key == "mdev":
            section["mdev"] = parse_boolean(value) == "1"
    return result


def _map(value: str) -> dict[str, Any] | None:
    try:
        options = parse_property_string(MAP, value)
    except Refused:
        return None
    devices = []
    for part in options["path"].split(";"):
        found = parse_address(part)
        if found:
            place, function = found
            devices.append(
                {
                    "slot": place,
                    "function": function,
                    "address": None if function is None else "%s.%x" % (place, function),
                }
            )
    return {
        "node": options["node"],
        "path": options["path"],
        "devices": devices,
        "id": options["id"],
        "subsystem_id": options.get("subsystem-id"),
        "iommu_group": options.get("iommugroup"),
    }
