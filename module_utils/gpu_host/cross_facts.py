"""Facts that need two subjects, such as cards on the PCI bus that the driver does not show."""

from __future__ import annotations

from typing import Any

from .evidence.errors import Errors
from .smi.gpu_findings import label_gpu
from .smi.smi_values import NOT_APPLICABLE

Facts = dict[str, Any]

# Which subjects' errors say why a fact is unknown.
SOURCES: dict[str, tuple[str, ...]] = {
    "gpu_found": ("gpus", "pci"),
    "gpu_count": ("gpus", "pci"),
    "driver_expected": ("gpus", "pci"),
    "missing_from_driver": ("gpus", "pci"),
    "given_to_guests": ("pci",),
    "nvlink_present": ("gpus", "topology"),
    "nvlinks_down": ("gpus", "topology"),
    "nvlink_active_fewest": ("gpus", "topology"),
    "numa_node_count": ("system",),
    "gpus_without_numa_node": ("topology", "system"),
    "p2p_gpus_differ": ("gpus", "p2p"),
    "pcie_p2p": ("gpus", "p2p"),
    "taken_at_boot": ("modules", "pci"),
    "driver_kept_off": ("modules", "driver"),
}


def join_facts(facts: Facts, errors: Errors) -> Facts:
    """Computed from the facts of the subjects; each value is None where a subject that it needs is unknown.

    - ``gpu_found``: False only if nvidia-smi shows no GPU and the PCI bus, where it was read, shows none either
    - ``gpu_count``: as nvidia-smi shows them, and 0 where there is no GPU and so no nvidia-smi either
    - ``driver_expected``: False if there is no GPU for this system's driver to show: none found, or every one given to
      a guest
    - ``missing_from_driver``: ``[{address, name, driver}]`` on the PCI bus, but not shown by nvidia-smi; cards given to
      vfio-pci stand in
      ``given_to_guests`` instead
    - ``nvlink_present``: False only where every GPU was seen to use none; ``nvlinks_down``: ``[{address, index, label,
      active, expected, inactive}]``; ``nvlink_active_fewest``
    - ``gpus_without_numa_node``: addresses for which nvidia-smi names no node, on a host with several;
      ``numa_node_count``
    - ``p2p_gpus_differ``: whether the P2P matrix shows another number of GPUs than nvidia-smi; ``pcie_p2p``: more than
      one GPU, not all joined by NVLink, so that P2P has to cross PCI Express
    - ``taken_at_boot``: ``{addresses, places, blacklists}`` where vfio-pci is to take, at the next boot, cards that the
      nvidia driver has today; empty where it takes none
    - ``driver_kept_off``: the places that keep the nvidia driver from being loaded at the next boot; empty where
      nothing does, and where only a blacklist does that nvidia-persistenced, or a file that names the module, goes past
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
        **_nvlinks(gpus, topology, errors),
        "numa_node_count": None if nodes is None else len(nodes),
        "gpus_without_numa_node": _without_numa_node(topology.get("gpus_without_numa_node"), nodes),
        "p2p_gpus_differ": _differ(p2p.get("gpu_count"), gpus.get("parsed") if gpus.get("count") is not None else None),
        "pcie_p2p": _pcie_p2p(gpus, p2p),
        "taken_at_boot": _taken_at_boot(facts.get("modules") or {}, on_bus),
        "driver_kept_off": _driver_kept_off(facts.get("modules") or {}, facts.get("driver") or {}),
    }


def _driver_kept_off(modules: Facts, driver: Facts) -> list[str] | None:
    found = modules.get("driver_kept_off")
    if not found:
        return None
    if found["always"]:
        return list(found["always"])
    if found["always"] is None or found["for_devices"] is None:
        return None
    enabled = (driver.get("persistenced") or {}).get("enabled")
    if not found["for_devices"] or found["loaded_by"] or enabled:
        return []
    return None if found["loaded_by"] is None or enabled is None else list(found["for_devices"])


def _gpu_found(gpus: Facts, on_bus: Facts | None) -> bool | None:
    if on_bus or gpus.get("devices") or gpus.get("lost"):
        return True
    if on_bus is None:
        # Without the bus, only a driver that answers can say that there is no GPU.
        return False if gpus.get("count") == 0 else None
    failed = gpus.get("answered") is False and not gpus.get("hung")
    return False if gpus.get("installed") is False or gpus.get("count") == 0 or failed else None


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
    lost = {entry["address"] for entry in gpus.get("lost") or ()}
    missing: list[Facts] | None = None
    if shown is not None:
        missing = [
            {"address": where, "name": card.get("name"), "driver": card.get("driver")}
            for where, card in sorted(on_bus.items())
            if where not in shown and where not in given and where not in lost
        ]
        if missing and shown and gpus.get("count") is None:
            missing = None  # nvidia-smi's log was not read to its end: they may stand in the rest
    return {"missing_from_driver": missing, "given_to_guests": given}


def _nvlinks(gpus: Facts, topology: Facts, errors: Errors) -> Facts:
    """A link is down if its GPU has fewer active ones than its like in this host has, or if an NVSwitch fabric leaves
    one inactive.

    On PCI Express cards inactive links are normal: a bridge uses some of them, and without a bridge there are none. A
    GPU whose links were not seen makes the list unknown, as does one of a fabric that shows none at all.
    """
    devices, nvlink = gpus.get("devices"), topology.get("nvlink")
    active = [links["active"] for links in (nvlink or {}).values()]
    used = any(active) or gpus.get("fabric_present") is True
    used = used or any(pair["class"] == "NV" for pair in topology.get("pairs") or ())
    facts: Facts = {"nvlink_present": True if used else None, "nvlinks_down": None, "nvlink_active_fewest": None}
    if nvlink is None or not devices:
        return facts
    most: dict[Any, int] = {}
    for where, links in nvlink.items():
        name = (devices.get(where) or {}).get("name")
        most[name] = max(most.get(name, 0), links["active"])
    down, unseen, fewest = [], [], []
    for where, card in devices.items():
        state = _link_state(card, nvlink.get(where), topology.get("nvlink_whole") is True, most.get(card["name"], 0))
        if state is None:
            unseen.append(where)
            continue
        fewest.append(state["active"])
        if state["expected"] == "all" or state["active"] < state["expected"]:
            down.append({"address": where, "index": card["index"], "label": label_gpu(where, card["index"]), **state})
    if unseen:
        errors.add("nvidia-smi nvlink -s", "does not show the links of %s" % ", ".join(unseen[:8]))
    every = not unseen and gpus.get("count") is not None
    if not used and every and gpus.get("fabric_present") is False:
        facts["nvlink_present"] = False
    return {
        **facts,
        "nvlinks_down": down if down or every else None,
        "nvlink_active_fewest": min(fewest, default=0) if every else None,
    }


def _link_state(card: Facts, links: Facts | None, whole: bool, most: int) -> Facts | None:
    """``{active, expected, inactive}`` of one GPU, `expected` "all" where only that is known; None where its links
    were not seen."""
    none = {"active": 0, "expected": 0, "inactive": []}
    if card["lost"]:
        return none  # gpu_not_lost says so
    in_fabric = card["fabric_state"] not in (None, NOT_APPLICABLE)
    if links is None:
        # A whole answer leaves out a GPU without an active link; on one that should have some, that was not seen.
        return none if whole and not in_fabric and not most and "fabric_state" not in card["unreadable"] else None
    if links["mig"] and card["mig"] is True and links["unknown"] == 1:
        return none  # NVLink is not for a GPU in MIG mode
    expected: int | str = max(links["links"], most) if in_fabric else most
    if links["inactive"] and (in_fabric or links["active"] < most):
        return {"active": links["active"], "expected": expected, "inactive": links["inactive"]}
    if links["active"] < most and not links["unknown"]:
        return {"active": links["active"], "expected": expected, "inactive": links["inactive"]}
    if links["unknown"] or "fabric_state" in card["unreadable"]:
        return None
    if in_fabric and not expected:
        return {**none, "expected": "all"} if links["all_inactive"] else None
    return {"active": links["active"], "expected": expected, "inactive": links["inactive"]}


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
