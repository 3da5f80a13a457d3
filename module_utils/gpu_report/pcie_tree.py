"""The way of each GPU over PCI Express, from the root complex down, with links and Access Control Services (ACS)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import tables

_KINDS = {
    "root_port": "root port",
    "upstream": "switch, upstream port",
    "downstream": "switch, downstream port",
    "pci_bridge": "PCI bridge",
}


@dataclass
class Node:
    """One root complex, port or GPU. `marks`: (text, whether it is a fault)."""

    name: str
    address: str = ""
    marks: list[tuple[str, bool]] = field(default_factory=list)
    children: list[Node] = field(default_factory=list)


def build_pcie_trees(facts: dict[str, Any]) -> list[Node]:
    """One tree for each root complex with a GPU below it; empty where nothing is known of the bus."""
    pci = facts.get("pci") or {}
    devices = (facts.get("gpus") or {}).get("devices") or {}
    narrow = {entry.get("address") for entry in pci.get("width_reduced") or ()}
    redirecting = {
        entry.get("address")
        for name in ("redirecting_switch_ports", "redirecting_root_ports")
        for entry in pci.get(name) or ()
    }
    roots: dict[str, Node] = {}
    ports: dict[tuple[str, ...], Node] = {}
    for address, gpu in sorted((pci.get("gpus") or {}).items()):
        root = str(gpu.get("root_complex") or tables.UNKNOWN)
        node = roots.setdefault(root, Node("root complex %s" % root))
        path = gpu.get("path")
        if path is None:
            node = _child(ports, (root, "?"), node, Node("path unknown"))
        for depth, port in enumerate(path or ()):
            made = _port(port, (pci.get("bridges") or {}).get(port) or {}, port in narrow, port in redirecting)
            node = _child(ports, (root, *path[: depth + 1]), node, made)
        index = (devices.get(address) or {}).get("index")
        leaf = Node("GPU %s" % ("?" if index is None else index), address)
        if index is None:  # in no other table
            leaf.marks.append((str(gpu.get("name") or "name unknown"), False))
        leaf.marks.append((tables.describe_link(gpu.get("link")), address in narrow))
        if gpu.get("numa_node") is not None:
            leaf.marks.append(("NUMA node %s" % gpu["numa_node"], False))
        if gpu.get("bound") is False:
            leaf.marks.append(("no driver bound", True))
        node.children.append(leaf)
    return list(roots.values())


def _child(ports: dict[tuple[str, ...], Node], key: tuple[str, ...], parent: Node, made: Node) -> Node:
    if key not in ports:
        ports[key] = made
        parent.children.append(made)
    return ports[key]


def _port(address: str, bridge: dict[str, Any], narrow: bool, redirecting: bool) -> Node:
    node = Node(_KINDS.get(str(bridge.get("kind")), "port"), address)
    if bridge.get("link"):
        node.marks.append((tables.describe_link(bridge["link"]), narrow))
    node.marks.append((_acs(bridge.get("acs") or {}), redirecting))
    return node


def _acs(acs: dict[str, Any]) -> str:
    if acs.get("present") is False:
        return "no ACS"
    if acs.get("redirects") is None:
        return "ACS unknown"
    raw = " (ACSCtl 0x%s)" % acs["control_raw"] if acs.get("control_raw") else ""
    return ("ACS redirects P2P" if acs["redirects"] else "ACS redirect off") + raw
