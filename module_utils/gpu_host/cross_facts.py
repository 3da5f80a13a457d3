"""Facts that need two subjects, such as cards on the PCI bus that the driver does not show."""

from __future__ import annotations

from typing import Any

from .evidence.errors import Errors
from .smi.gpu_findings import known_number, label
from .smi.smi_values import NOT_APPLICABLE

Facts = dict[str, Any]

# Which subjects' errors say why a fact is unknown.
SOURCES: dict[str, tuple[str, ...]] = {
    "gpu_found": ("gpus", "pci"),
    "gpu_count": ("gpus", "pci"),
    "driver_expected": ("gpus", "pci"),
    "missing_from_driver": ("gpus", "pci"),
    "given_to_guests": ("pci",),
    "minors_without_node": ("gpus", "device_nodes"),
    "width_disagreements": ("gpus", "pci"),
    "nvlink_present": ("gpus", "topology"),
    "nvlinks_down": ("gpus", "topology"),
    "nvlink_active_fewest": ("gpus", "topology"),
    "numa_node_count": ("system",),
    "gpus_without_numa_node": ("topology", "system"),
    "p2p_gpus_differ": ("gpus", "p2p"),
    "pcie_p2p": ("gpus", "p2p"),
    "taken_at_boot": ("modules", "pci"),
}


def join(facts: Facts, errors: Errors) -> Facts:
    """Computed from the facts of the subjects; each value is None where a subject that it needs is unknown.

    - ``gpu_found``: False only if nvidia-smi shows no GPU and the PCI bus, where it was read, shows none either
    - ``gpu_count``: as nvidia-smi shows them, and 0 where there is no GPU and so no nvidia-smi either
    - ``driver_expected``: False if there is no GPU for this system's driver to show: none found, or every one given to
      a guest
    - ``missing_from_driver``: ``[{address, name, driver}]`` on the PCI bus, but not shown by nvidia-smi; cards given to
      vfio-pci stand in
      ``given_to_guests`` instead
    - ``minors_without_node``: ``[{address, index, minor}]`` without a /dev/nvidiaN
    - ``width_disagreements``: ``[{address, smi, pci}]`` where nvidia-smi and the kernel differ on a link's width
    - ``nvlink_present``; ``nvlinks_down``: ``[{address, index, label, active, expected, inactive}]``;
      ``nvlink_active_fewest``
    - ``gpus_without_numa_node``: addresses for which nvidia-smi names no node, on a host with several;
      ``numa_node_count``
    - ``p2p_gpus_differ``: whether the P2P matrix shows another number of GPUs than nvidia-smi; ``pcie_p2p``: more than
      one GPU, not all joined by NVLink, so that P2P has to cross PCI Express
    - ``taken_at_boot``: ``{addresses, places, blacklists}`` where vfio-pci is to take, at the next boot, cards that the
      nvidia driver has today; empty where it takes none
    """
    gpus, pci = facts.get("gpus") or {}, facts.get("pci") or {}
    devices, on_bus = gpus.get("devices"), pci.get("gpus")
    p2p, topology = facts.get("p2p") or {}, facts.get("topology") or {}
    nodes = (facts.get("system") or {}).get("numa_nodes")
    return {
        "gpu_found": _gpu_found(gpus, on_bus),
        "gpu_count": 0 if _gpu_found(gpus, on_bus) is False else gpus.get("count"),
        "driver_expected": _driver_expected(gpus, on_bus),
        **_on_bus(devices, on_bus, gpus),
        "minors_without_node": _minors_without_node(devices, facts.get("device_nodes")),
        "width_disagreements": _width_disagreements(devices, on_bus),
        **_nvlinks(gpus, topology.get("nvlink")),
        "numa_node_count": None if nodes is None else len(nodes),
        "gpus_without_numa_node": _without_numa_node(topology.get("gpus_without_numa_node"), nodes),
        "p2p_gpus_differ": _differ(p2p.get("gpu_count"), gpus.get("parsed") if gpus.get("count") is not None else None),
        "pcie_p2p": _pcie_p2p(gpus, p2p),
        "taken_at_boot": _taken_at_boot(facts.get("modules") or {}, on_bus),
    }


def _gpu_found(gpus: Facts, on_bus: Facts | None) -> bool | None:
    if on_bus or gpus.get("devices") or gpus.get("lost"):
        return True
    if on_bus is None:
        # Without the bus, only a driver that answers can say that there is no GPU.
        return False if gpus.get("count") == 0 else None
    return False if gpus.get("installed") is False or gpus.get("count") == 0 or gpus.get("answered") is False else None


def _driver_expected(gpus: Facts, on_bus: Facts | None) -> bool | None:
    if on_bus and not gpus.get("devices") and all(card.get("driver") == "vfio-pci" for card in on_bus.values()):
        return False
    return _gpu_found(gpus, on_bus)


def _taken_at_boot(modules: Facts, on_bus: Facts | None) -> Facts | None:
    """The cards bound to nvidia whose id stands in an `ids=` of vfio-pci, with the files (and lines) that say so."""
    vfio, configuration = modules.get("vfio_pci"), modules.get("configuration") or {}
    if vfio is None or on_bus is None:
        return None
    option = (vfio.get("options") or {}).get("ids") or {}
    text = "%s,%s" % (option.get("configured") or "", option.get("cmdline") or "")
    ids = {":".join(word.lower().split(":")[:2]) for word in text.split(",") if ":" in word}
    taken = sorted(
        where
        for where, card in on_bus.items()
        if card.get("driver") == "nvidia" and "%s:%s" % (card.get("vendor_id"), card.get("device_id")) in ids
    )
    if not taken and configuration.get("complete") is not True:
        return None
    places = [option.get("source")] if option.get("configured") and option.get("source") else []
    places += ["/proc/cmdline"] if option.get("cmdline") else []
    blacklists = (modules.get("nvidia") or {}).get("blacklisted") or []
    return {"addresses": taken, "places": places if taken else [], "blacklists": list(blacklists) if taken else []}


def _on_bus(devices: Facts | None, on_bus: Facts | None, gpus: Facts) -> Facts:
    if on_bus is None:
        return {"missing_from_driver": None, "given_to_guests": None}
    given = sorted(where for where, card in on_bus.items() if card.get("driver") == "vfio-pci")
    # Without nvidia-smi no card is shown; with one that failed, nothing is known about any of them.
    shown = {} if gpus.get("installed") is False else devices
    missing: list[Facts] | None = None
    if shown is not None:
        missing = [
            {"address": where, "name": card.get("name"), "driver": card.get("driver")}
            for where, card in sorted(on_bus.items())
            if where not in shown and where not in given
        ]
    return {"missing_from_driver": missing, "given_to_guests": given}


def _minors_without_node(devices: Facts | None, device_nodes: Facts | None) -> list[Facts] | None:
    nodes = (device_nodes or {}).get("nodes")
    if devices is None or nodes is None:
        return None
    names = {str(name).rpartition("/")[2] for name in nodes}
    found = [
        {"address": where, "index": facts["index"], "minor": facts["minor"]}
        for where, facts in devices.items()
        if isinstance(facts["minor"], int) and "nvidia%d" % facts["minor"] not in names
    ]
    return found if found or all(facts["minor"] is not None for facts in devices.values()) else None


def _width_disagreements(devices: Facts | None, on_bus: Facts | None) -> list[Facts] | None:
    if devices is None or on_bus is None:
        return None
    found = []
    for where, facts in devices.items():
        width = ((on_bus.get(where) or {}).get("link") or {}).get("width")
        if known_number(width) and known_number(facts["link_width"]) and width != facts["link_width"]:
            found.append({"address": where, "smi": facts["link_width"], "pci": width})
    return found


def _nvlinks(gpus: Facts, nvlink: Facts | None) -> Facts:
    """A link is down if its GPU has fewer active ones than its like in this host has, or if an NVSwitch fabric leaves
    one inactive.

    On PCI Express cards inactive links are normal: a bridge uses some of them, and without a bridge there are none.
    """
    devices = gpus.get("devices")
    if nvlink is None or not devices:
        return {"nvlink_present": None, "nvlinks_down": None, "nvlink_active_fewest": None}
    most: dict[Any, int] = {}
    for where, links in nvlink.items():
        name = (devices.get(where) or {}).get("name")
        most[name] = max(most.get(name, 0), links["active"])
    down, unsure = [], False
    for where, facts in devices.items():
        links = nvlink.get(where)
        in_fabric = facts["fabric_state"] not in (None, NOT_APPLICABLE)
        if not nvlink and not in_fabric:
            continue  # no GPU has an active link
        if links is None or links["unknown"]:
            unsure = unsure or not facts["lost"]
            continue
        expected = links["links"] if in_fabric else most.get(facts["name"], 0)
        if links["active"] < expected:
            named = {"address": where, "index": facts["index"], "label": label(where, facts["index"])}
            down.append({**named, "active": links["active"], "expected": expected, "inactive": links["inactive"]})
    active = [links["active"] for links in nvlink.values()]
    present = any(active) or bool(gpus.get("fabric_present"))
    return {
        "nvlink_present": present,
        "nvlinks_down": down if down or not unsure else None,
        "nvlink_active_fewest": min(active, default=0),
    }


def _without_numa_node(nodeless: list[str] | None, nodes: Facts | None) -> list[str] | None:
    if nodes is not None and len(nodes) < 2:
        return []
    return nodeless if nodes is not None else None


def _differ(first: int | None, second: int | None) -> bool | None:
    return None if first is None or second is None else first != second


def _pcie_p2p(gpus: Facts, p2p: Facts) -> bool | None:
    count = gpus.get("count") if gpus.get("count") is not None else p2p.get("gpu_count")
    if count is None:
        return None
    return count > 1 and p2p.get("all_nvlink") is not True
