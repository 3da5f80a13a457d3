"""The text of lspci (`-vvv`, `-nn`, `-tv`, `-xxxx`), for evidence that lacks sysfs.

It is read into the shape of pci_devices.py.

What the text does not show stays None. Text alone cannot tell a missing line that lspci would have printed from one
that somebody cut out, so "no driver", "no NUMA node" and "no ACS" are only concluded from a whole block (it has its
``Control:`` line).
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import Evidence
from . import config_space, pci_names

# The first that answers is read, and the tree beside it.
LISTINGS = (
    ["lspci", "-D", "-nn", "-vvv", "-xxxx"],
    ["lspci", "-vvvxxxx"],
    ["lspci", "-D", "-nn", "-vvv"],
    ["lspci", "-nnvvv"],
    ["lspci", "-vvv"],
    ["lspci", "-nnk"],
    ["lspci", "-nn"],
    ["lspci"],
)
TREES = (["lspci", "-tv"], ["lspci", "-t"])

ADDRESS = r"(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]"
HEADER = re.compile(r"^(%s)\s+(\S.*)$" % ADDRESS)
NUMERIC_HEADER = re.compile(r"^([0-9a-f]{4}): ([0-9a-f]{4}):([0-9a-f]{4})\b")
HEX_ROW = re.compile(r"^([0-9a-f]{2,3}): ((?:[0-9a-f]{2} ){0,15}[0-9a-f]{2})\s*$")
REGION = re.compile(r"^\s+Region (\d): (Memory|I/O ports) at (\S+)(.*)$")
LINK = re.compile(r"Speed (?:(\d+(?:\.\d+)?)GT/s|unknown).*?, Width x(\d+)")
KINDS = {
    "Root Port": "root_port",
    "Upstream Port": "upstream",
    "Downstream Port": "downstream",
    "Legacy Endpoint": "legacy_endpoint",
    "Endpoint": "endpoint",
    "PCI-Express to PCI/PCI-X Bridge": "express_to_pci_bridge",
    "PCI/PCI-X to PCI-Express Bridge": "pci_to_express_bridge",
    "Root Complex Integrated Endpoint": "root_complex_endpoint",
    "Root Complex Event Collector": "root_complex_event_collector",
}
SIZE_UNITS_MIB = {"": 1 / 1048576, "K": 1 / 1024, "M": 1, "G": 1024, "T": 1048576}
DOMAIN_BUS = re.compile(r"\[([0-9a-f]{4,8}):([0-9a-f]{2})(?:-[0-9a-f]{2})?\]")
TREE_DEVICE = re.compile(r"([0-9a-f]{2}\.[0-7])(?:-\[([0-9a-f]{2})(?:-[0-9a-f]{2})?\])?")


def read_devices(evidence: Evidence, errors: Errors) -> dict[str, dict[str, Any]] | None:
    """All devices in detail, from the first listing that the evidence holds; None if it holds none."""
    found: dict[str, dict[str, Any]] | None = None
    for argv in LISTINGS:
        outcome = evidence.run(argv)
        if outcome.ok and outcome.rc == 0:
            found = parse_lspci(outcome.text)
            break
    if found is None:
        errors.add("lspci", "no output of lspci is at hand either")
        return None
    for argv in TREES:
        outcome = evidence.run(argv)
        if outcome.ok and outcome.rc == 0:
            add_paths(found, parse_tree(outcome.text))
            break
    return found


def parse_lspci(text: str) -> dict[str, dict[str, Any]]:
    """Devices of a listing by full address. Lines before the first device line belong to nobody and are left out."""
    blocks: list[tuple[str, str, list[str]]] = []
    for line in text.splitlines():
        header = HEADER.match(line)
        if header:
            blocks.append((full_address(header.group(1)), header.group(2), []))
        elif blocks:
            blocks[-1][2].append(line)
    found = {address: _device(address, title, lines) for address, title, lines in blocks}
    add_paths(found, paths_from_buses(found))
    return found


def full_address(address: str) -> str:
    """The kernel's form; lspci leaves the domain out when all devices are in domain 0."""
    return address if address.count(":") == 2 else "0000:" + address


def add_paths(found: dict[str, dict[str, Any]], paths: dict[str, tuple[list[str], str]]) -> None:
    for address, (path, root) in paths.items():
        if address in found and found[address]["path"] is None:
            found[address]["path"], found[address]["root_complex"] = path, root


def _device(address: str, title: str, lines: list[str]) -> dict[str, Any]:
    device: dict[str, Any] = {"address": address, "subsystem": None, "path": None, "root_complex": None}
    device.update(_identify(title))
    whole = any(line.strip().startswith("Control:") for line in lines)
    text = "\n".join(lines)
    driver = re.search(r"^\s+Kernel driver in use: (\S+)", text, re.M)
    device["driver"] = driver.group(1) if driver else ("" if whole or "Kernel modules:" in text else None)
    node = re.search(r"^\s+NUMA node: (\d+)", text, re.M)
    device["numa_node"] = values.whole_number(node.group(1)) if node else None
    device["numa_stated"] = True if node else (False if whole else None)
    group = re.search(r"^\s+IOMMU group: (\d+)", text, re.M)
    device["iommu_group"] = group.group(1) if group else None
    data = hex_dump(lines)
    device["config_bytes"] = len(data)
    device["config"] = config_space.parse_config_space(data) or _config_from_text(device, text, whole)
    device["bars"] = _bars(lines) if whole else None
    express = device["config"]["express"] if device["config"] else None
    device["link"] = {"express": None if express is None else bool(express)}
    for name in ("kind", "speed_gt_s", "width", "max_speed_gt_s", "max_width"):
        device["link"][name] = express[name] if express else None
    return device


def _identify(title: str) -> dict[str, Any]:
    numeric = NUMERIC_HEADER.match(title)
    if numeric:
        return {"class": numeric.group(1) + "00", "vendor": numeric.group(2), "device": numeric.group(3), "name": None}
    words, _, product = title.partition(": ")
    numbered = re.search(r"\[([0-9a-f]{4})\]\s*$", words)
    class_words = re.sub(r"(?<!\s)\s*\[[0-9a-f]{4}\]\s*$", "", words)
    device_class = numbered.group(1) if numbered else pci_names.CLASS_WORDS.get(class_words)
    ids = re.search(r"\[([0-9a-f]{4}):([0-9a-f]{4})\]", product)
    vendor = ids.group(1) if ids else (pci_names.NVIDIA if product.startswith("NVIDIA Corporation") else None)
    # "NVIDIA Corporation Device 2bb5": lspci's list was older than the card.
    nameless = re.search(r"\bDevice ([0-9a-f]{4})\b", product)
    marketing = re.search(r"\[([^\[\]:]+)\]", product)
    return {
        "class": device_class + "00" if device_class else None,
        "vendor": vendor,
        "device": ids.group(2) if ids else (nameless.group(1) if nameless else None),
        "name": marketing.group(1) if marketing and vendor == pci_names.NVIDIA else None,
    }


def hex_dump(lines: list[str]) -> bytes:
    """The bytes of a -xxx or -xxxx dump, up to the first gap."""
    data = b""
    for line in lines:
        row = HEX_ROW.match(line)
        if row and int(row.group(1), 16) == len(data):
            data += bytes.fromhex(row.group(2))
    return data


def _config_from_text(device: dict[str, Any], text: str, whole: bool) -> dict[str, Any]:
    known = whole and "<access denied>" not in text
    bus = re.search(r"Bus: primary=[0-9a-f]{2}, secondary=([0-9a-f]{2}), subordinate=([0-9a-f]{2})", text)
    express = re.search(r"Express (?:\(v\d\) )?([^,(]*?)(?: \(Slot[+-]\))?, (?:MSI|IntMsgNum|Int)", text)
    link: Any = False if known else None
    if express:
        link = {"kind": KINDS.get(express.group(1).strip()), "slot": "(Slot+)" in express.group(0)}
        for prefix, label in (("max_", "LnkCap"), ("", "LnkSta")):
            numbers = LINK.search(_first_line(text, label + ":"))
            link[prefix + "speed_gt_s"] = values.decimal_number(numbers.group(1)) if numbers else None
            link[prefix + "width"] = values.whole_number(numbers.group(2)) if numbers else None
        # "Speed unknown, Width x0" in the capability: the port does not say.
        link["max_width"] = link["max_width"] or None
    capabilities, control = _acs_line(text, "ACSCap:"), _acs_line(text, "ACSCtl:")
    acs: Any = False if known and "Access Control Services" not in text else None
    if control is not None:
        acs = {
            "capabilities": capabilities or {},
            "control": config_space.acs_names(control),
            "control_raw": "%04x" % control,
        }
        acs["capabilities"] = config_space.acs_names(capabilities) if capabilities is not None else {}
    return {
        "vendor": device["vendor"],
        "device": device["device"],
        "class": device["class"] or "",
        "secondary_bus": int(bus.group(1), 16) if bus else None,
        "subordinate_bus": int(bus.group(2), 16) if bus else None,
        "express": link,
        "acs": acs,
        "resizable_bars": _resizable_bars(text) if known else None,
    }


def _first_line(text: str, label: str) -> str:
    return next((line for line in text.splitlines() if line.strip().startswith(label)), "")


def _acs_line(text: str, label: str) -> int | None:
    """The register behind an ACSCap or ACSCtl line.

    None unless the line names every bit that the register has in lspci.
    """
    line = _first_line(text, label)
    value = 0
    for bit, (_, name) in config_space.ACS_BITS.items():
        state = re.search(r"\b%s([+-])" % name, line)
        if state is None:
            return None
        value |= bit if state.group(1) == "+" else 0
    return value


def _resizable_bars(text: str) -> list[dict[str, Any]]:
    bars = []
    section = text.partition("Physical Resizable BAR")[2].partition("Capabilities:")[0]
    for match in re.finditer(r"^\s+BAR (\d): current size: (\d+)([KMGT]?)B, supported: (.*)$", section, re.M):
        sizes = [_size_mib(size.rstrip("B")) for size in match.group(4).split()]
        largest = max((size for size in sizes if size), default=None)
        bars.append(
            {
                "index": int(match.group(1)),
                "size_mib": _size_mib(match.group(2) + match.group(3)),
                "max_size_mib": largest,
            }
        )
    return bars


def _bars(lines: list[str]) -> list[dict[str, Any]]:
    bars = []
    for line in lines:
        if line.strip().startswith("Capabilities:"):
            break  # what follows are virtual functions' regions
        match = REGION.match(line)
        if match is None:
            continue
        index, kind, start, rest = match.groups()
        size = re.search(r"\[size=(\d+[KMGT]?)\]", rest)
        address = values.hexadecimal_number(start) or 0
        bars.append(
            {
                "index": int(index),
                "kind": "memory" if kind == "Memory" else "io",
                "start": address,
                "size_mib": _size_mib(size.group(1)) if size else None,
                "assigned": bool(address),
                "prefetchable": "prefetchable" in rest and "non-prefetchable" not in rest,
                "bits": 64 if "64-bit" in rest else 32,
            }
        )
    return bars


def _size_mib(text: str) -> Any:
    match = re.fullmatch(r"(\d+)([KMGT]?)", text)
    if match is None:
        return None
    number = values.whole_number(match.group(1))
    if number is None:
        return None
    size = number * SIZE_UNITS_MIB[match.group(2)]
    return int(size) if size == int(size) else size


def paths_from_buses(found: dict[str, dict[str, Any]]) -> dict[str, tuple[list[str], str]]:
    """{address: (path, root complex)} from the secondary bus numbers of the bridges in a listing.

    A device on a bus that no bridge of the listing leads to is on a root bus, if a root port or host bridge stands
    there or the device is no PCI Express switch port; else the listing is an excerpt and the path unknown.
    """
    above = {}
    for address, device in found.items():
        bus = (device["config"] or {}).get("secondary_bus")
        if bus is not None:
            above[address.split(":")[0], bus] = address
    if not above:
        return {}
    paths = {}
    for address in found:
        path: list[str] = []
        at = address
        while True:
            domain, bus_text, _ = at.split(":")
            parent = above.get((domain, int(bus_text, 16)))
            if parent is None or parent in path or parent == at:
                break
            path.insert(0, parent)
            at = parent
        if _on_root_bus(at, found):
            paths[address] = (path, "pci%s:%s" % tuple(at.split(":")[:2]))
    return paths


def _on_root_bus(address: str, found: dict[str, dict[str, Any]]) -> bool:
    if address.split(":")[1] == "00":
        return True
    kind = found[address]["link"]["kind"]
    return kind in ("root_port", "root_complex_endpoint", "root_complex_event_collector")


def parse_tree(text: str) -> dict[str, tuple[list[str], str]]:
    """{address: (path, root complex)} from `lspci -t` or `-tv`.

    A branch, `+-` or `\\-`, belongs to the bus that was being drawn where the first `+` of its column stands.
    """
    found: dict[str, tuple[list[str], str]] = {}
    branches: dict[int, tuple[str, str, list[str]]] = {}  # column -> (root, bus as "0000:c8", path)
    for line in text.splitlines():
        here: tuple[str, str, list[str]] | None = None
        at = 0
        while at < len(line):
            root = DOMAIN_BUS.match(line, at)
            device = TREE_DEVICE.match(line, at)
            if root:
                bus = "%s:%s" % root.groups()
                here = ("pci" + bus, bus, [])
                at = root.end()
            elif device and here is not None:
                address = "%s:%s" % (here[1], device.group(1))
                found[address] = (here[2], here[0])
                if device.group(2) is None:
                    break  # what follows is the name
                here = (here[0], "%s:%s" % (here[1].split(":")[0], device.group(2)), [*here[2], address])
                at = device.end()
            elif line[at] in "+\\":
                if here is None:
                    here = branches.get(at)
                else:
                    branches[at] = here
                at += 1
            elif line[at] in " |-":
                at += 1
            else:
                break
    return found
