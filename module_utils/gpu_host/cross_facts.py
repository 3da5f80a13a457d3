"""Facts that need two subjects, such as cards on the PCI bus that the driver does not show."""

from __future__ import annotations

from typing import Any

from .evidence.errors import Errors
from .evidence.offenders import Offenders
from .linux.versions import is_at_least
from .pcie.aer import MOST_REPLAYS_PER_MINUTE, average_per_minute
from .smi.gpu_findings import known_number, label_gpu
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
    "blocked_between_models": ("gpus", "p2p"),
    "width_by_design": ("gpus", "virtualization"),
    "taken_at_boot": ("modules", "pci"),
    "link_replays_high": ("gpus", "system"),
    "rdma_nics": ("topology",),
    "gpudirect_rdma": ("modules", "driver", "kernel"),
    "gpus_without_near_nic": ("topology",),
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
    - ``width_by_design``: in a cloud's instance, whether every GPU has the same link, narrower than the card's: the
      provider has wired it so
    - ``blocked_between_models``: whether every pair that the driver grants no P2P joins two different models
    - ``taken_at_boot``: ``{addresses, places, blacklists}`` where vfio-pci is to take, at the next boot, cards that the
      nvidia driver has today; empty where it takes none
    - ``link_replays_high``: ``[{address, index, label, replays, per_minute}]``, GPUs whose link sent more packets again
      since the boot, on average, than the driver recommends; the counter begins anew with the driver, so the true rate
      is no lower
    - ``rdma_nics``: names of the RDMA devices that nvidia-smi shows (mlx5_0); ``gpudirect_rdma``: how such a card can
      reach the memory of a GPU: "nvidia_peermem", "dma-buf" (open kernel modules on Linux 5.12 or later) or "none"
    - ``gpus_without_near_nic``: ``[{gpu, nearest}]``, GPUs with no RDMA device below a common PCI Express switch (PIX,
      PXB) on a host where others have one
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
        "width_by_design": _width_by_design(gpus, facts.get("virtualization") or {}),
        "blocked_between_models": _blocked_between_models(devices, p2p),
        "taken_at_boot": _taken_at_boot(facts.get("modules") or {}, on_bus),
        "rdma_nics": None if topology.get("nics") is None else sorted(topology["nics"].values()),
        "gpudirect_rdma": _gpudirect_rdma(facts),
        "gpus_without_near_nic": _without_near_nic(topology, errors),
        "link_replays_high": _link_replays_high(gpus, (facts.get("system") or {}).get("uptime_s")),
        "driver_kept_off": _driver_kept_off(facts.get("modules") or {}, facts.get("driver") or {}),
    }


# What dma-buf needs: NVIDIA's GPU Operator documentation, "GPUDirect RDMA and GPUDirect Storage", prerequisites.
_KERNEL_WITH_DMA_BUF = "5.12"
_NEAR = ("PIX", "PXB")


def _gpudirect_rdma(facts: Facts) -> str | None:
    peermem = ((facts.get("modules") or {}).get("nvidia_peermem") or {}).get("loaded")
    flavor = (facts.get("driver") or {}).get("flavor")
    recent = is_at_least((facts.get("kernel") or {}).get("release"), _KERNEL_WITH_DMA_BUF)
    if peermem:
        return "nvidia_peermem"
    if flavor == "open" and recent:
        return "dma-buf"
    without_dma_buf = flavor == "proprietary" or recent is False
    return "none" if peermem is False and without_dma_buf else None


def _without_near_nic(topology: Facts, errors: Errors) -> list[Facts] | None:
    """Where no GPU has one near, the cards are meant for something else, or this is a virtual machine, whose PCI tree
    is QEMU's."""
    nics, links = topology.get("nics"), topology.get("links")
    if nics is None or links is None:
        return None
    if not nics:
        return []
    order = ("PIX", "PXB", "PHB", "NODE", "SYS")
    found = Offenders()
    near, unsure = 0, False
    for gpu in topology.get("gpus") or {}:
        classes = [links.get(gpu, {}).get(nic) for nic in nics]
        known = sorted((word for word in classes if word in order), key=order.index)
        is_near = bool(known) and known[0] in _NEAR
        near += is_near
        far = None if not is_near and (None in classes or not known) else not is_near
        unsure = unsure or far is None
        found.judge(far, {"gpu": gpu, "nearest": known[0] if known else None})
    if unsure:
        errors.add("nvidia-smi topo -m", "does not show how far every GPU is from the network cards")
    return found.listed() if near else None if unsure else []


def _link_replays_high(gpus: Facts, uptime_s: Any) -> list[Facts] | None:
    devices = gpus.get("devices")
    if not devices:
        return None
    found = Offenders(unknown=gpus.get("count") is None)
    for where, card in devices.items():
        replays = card["link_replays"]
        if card["lost"] or replays in (0, NOT_APPLICABLE):
            continue
        rate = average_per_minute(replays, uptime_s) if known_number(replays) else None
        entry = {"address": where, "index": card["index"], "label": label_gpu(where, card["index"])}
        found.judge(
            None if rate is None else rate > MOST_REPLAYS_PER_MINUTE,
            {**entry, "replays": replays, "per_minute": round(rate or 0.0, 1)},
        )
    return found.listed()


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


def _width_by_design(gpus: Facts, virtualization: Facts) -> bool | None:
    """False too where the cloud is not known: then a narrow link is a finding."""
    if gpus.get("width_reduced") is None:
        return None
    reduced, widths = gpus.get("width_reduced"), {entry["width"] for entry in gpus.get("width_reduced") or ()}
    every = bool(reduced) and gpus.get("count") == len(reduced or ())
    return virtualization.get("cloud") is True and every and len(widths) == 1


def _blocked_between_models(devices: Facts | None, p2p: Facts) -> bool | None:
    blocked = p2p.get("blocked_pairs")
    if blocked is None or devices is None:
        return None
    ends = [[(devices.get(pair[end]) or {}).get("name") for end in ("source", "destination")] for pair in blocked]
    if any(left and left == right for left, right in ends):
        return False
    return bool(ends) if all(left and right for left, right in ends) else None


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
