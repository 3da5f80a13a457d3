"""PCI: the NVIDIA GPUs on the bus, the bridges above them, and how each pair is connected.

From sysfs and configuration space.

The PCI bus shows GPUs whether or not a driver is loaded, so these facts hold where nvidia-smi has no answer. In a
container, and so in an LXC guest, they are the host's.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import Evidence
from .evidence.offenders import Offenders
from .pcie import acs, aer, config_space, lspci, pci_devices, pci_names

NVIDIA_DRIVER = "nvidia"
VFIO_DRIVER = "vfio-pci"
KEYS = (
    "gpus",
    "bridges",
    "pairs",
    "nvswitches",
    "host_bridge",
    "source",
    "unassigned_bars",
    "unbound_gpus",
    "vfio_gpus",
    "foreign_driver_gpus",
    "gpus_without_numa_node",
    "width_reduced",
    "acs_unreadable",
    "redirecting_switch_ports",
    "redirecting_root_ports",
    "nics",
    "nic_pairs",
    "redirecting_nic_ports",
    "aer_reported",
    "aer_uncorrected",
    "aer_replays_high",
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """The facts below; every key None if neither sysfs nor an lspci listing is at hand.

    - ``gpus``: None where it is unknown of some device whether it is one; by address {name, vendor_id, device_id,
      subsystem_id, class, driver ("" if unbound), bound, numa_node, numa_stated (False: the firmware names none),
      iommu_group ("" if none), express (False: shown as a conventional PCI device), link {speed_gt_s, width,
      max_speed_gt_s, max_width}, bars [{index, kind, size_mib, assigned, prefetchable, bits}], resizable_bars [{index,
      size_mib, max_size_mib}], path [bridges, root port first], root_complex, audio {address, driver} or None}
    - ``bridges``: by address {kind: root_port | upstream | downstream | pci_bridge, vendor_id, device_id, driver,
      secondary_bus, numa_node, link, acs {present, control {bit: bool}, control_raw, redirects}}
    - ``pairs``: [{gpus: [a, b], relation: same_switch | same_bridge | same_root_complex | different_root_complex,
      common, turn_ports}]
    - ``nvswitches``: [address]; ``host_bridge``: "8086:1237"; ``source``: sysfs | lspci
    - ``unassigned_bars``: [{gpu, index, size_mib}], memory BARs only: the driver does without the I/O BAR
    - ``unbound_gpus``, ``vfio_gpus``, ``gpus_without_numa_node``: [address]; ``foreign_driver_gpus``: [{gpu, driver}]
    - ``width_reduced``: [{address, width, max_width, port, port_max_width, gpus}]: links of GPUs and of switches above
      them that run on fewer lanes than the device has. Speed is left out: an idle GPU lowers it.
    - ``acs_unreadable``: [address] of ports that decide about a pair
    - ``redirecting_switch_ports``, ``redirecting_root_ports``: see acs.find_redirecting
    - ``nics``: by address {vendor_id, device_id, class, driver, path, root_complex}: network cards that hang from a
      switch with a GPU; ``nic_pairs``: as `pairs`, of each GPU with the network cards below its switch;
      ``redirecting_nic_ports``: ports on these ways that redirect, as ``redirecting_switch_ports``
    - ``aer_reported``: whether the kernel counts PCI Express errors for a GPU or a bridge above one;
      ``aer_uncorrected``, ``aer_replays_high``: see aer.summarise_aer

    A list of offenders is None when none was found and a part of the evidence is missing.
    """
    devices = pci_devices.read_inventory(evidence, errors)
    if devices is None:
        found = lspci.read_devices(evidence, errors)
        return dict.fromkeys(KEYS) if found is None else {**assemble_facts(found), "source": "lspci"}
    for address in sorted(choose_devices(devices)):
        pci_devices.add_detail(evidence, devices[address], errors)
    for device in devices.values():
        if _is_gpu(device):
            for address in (*(device["path"] or ()), device["address"]):
                if address in devices and "aer" not in devices[address]:
                    base = "%s/%s" % (pci_devices.DEVICES, address)
                    devices[address]["aer"] = aer.read_aer(evidence, base, errors)
    uptime = evidence.read("/proc/uptime")
    uptime_s = values.decimal_number((uptime.text.split() or [""])[0]) if uptime.ok else None
    facts = {**assemble_facts(devices, uptime_s), "source": "sysfs"}
    if facts["aer_replays_high"] is None or facts["aer_uncorrected"] is None:
        unread = sum(1 for device in devices.values() if device.get("aer", {}) is None)
        errors.unanswered(uptime)
        errors.add(pci_devices.DEVICES + "/*/aer_dev_*", "the error counters of %d devices were not read" % unread)
    cut = sum(
        1
        for device in devices.values()
        if config_space.HEADER_BYTES <= device.get("config_bytes", 0) < config_space.CONVENTIONAL_BYTES
    )
    if cut:
        problem = (
            "only the first 64 bytes of configuration space are readable without root (in a container: without "
            "root on its host)"
        )
        errors.add(
            pci_devices.DEVICES + "/*/config", "%s: link and ACS of %d devices" % (problem, cut), needs_root=True
        )
    return facts


def choose_devices(devices: dict[str, dict[str, Any]]) -> set[str]:
    """Addresses to read in detail: GPUs, their other functions, NVSwitches and every bridge above them."""
    chosen = set()
    for address, device in devices.items():
        if _is_gpu(device) or pci_names.is_nvswitch(device["vendor"], device["class"]):
            functions = [other for other in devices if other[:-1] == address[:-1]]
            chosen.update(functions)
            chosen.update(bridge for bridge in device["path"] or [] if bridge in devices)
    for address in _near_nics(devices):
        chosen.update(bridge for bridge in devices[address]["path"] or [] if bridge in devices)
    return chosen


def _near_nics(devices: dict[str, dict[str, Any]]) -> list[str]:
    """Network cards that share a bridge with a GPU, as on boards where each GPU has its card below one switch."""
    above = {bridge for device in devices.values() if _is_gpu(device) for bridge in device["path"] or []}
    return sorted(
        address
        for address, device in devices.items()
        if (device["class"] or "").startswith(pci_names.BASE_CLASS_NETWORK) and above & set(device["path"] or [])
    )


def assemble_facts(devices: dict[str, dict[str, Any]], uptime_s: float | None = None) -> dict[str, Any]:
    """The facts from devices in the shape of pci_devices.py."""
    gpus = {address: _gpu(device, devices) for address, device in sorted(devices.items()) if _is_gpu(device)}
    nics = {address: _nic(devices[address]) for address in _near_nics(devices)}
    above = {bridge for card in (*gpus.values(), *nics.values()) for bridge in card["path"] or []}
    bridges = {address: _bridge(devices[address]) for address in sorted(above) if address in devices}
    pairs = acs.list_pairs(gpus, bridges)
    bridge = devices.get("0000:00:00.0") or {}
    identified = bool(bridge.get("vendor") and (bridge["class"] or "").startswith(pci_names.CLASS_HOST_BRIDGE))
    turn_ports = sorted({port for pair in pairs for port in pair["turn_ports"]})
    # A device that could not be identified may be a GPU: what is not found among the others is unknown then.
    unknown = bool(pci_devices.find_unidentified(devices))
    nic_pairs = acs.list_pairs_between(gpus, nics, bridges)
    nic_pairs = [pair for pair in nic_pairs if pair["relation"] == acs.SAME_SWITCH]
    counted = {
        address: {
            "aer": devices[address].get("aer"),
            "gpus": [gpu for gpu, card in gpus.items() if address == gpu or address in (card["path"] or [])],
        }
        for address in {*gpus, *(bridge for gpu in gpus.values() for bridge in gpu["path"] or [])}
        if address in devices
    }
    switches = sorted(
        address for address, device in devices.items() if pci_names.is_nvswitch(device["vendor"], device["class"])
    )
    return {
        "gpus": None if unknown else gpus,
        "bridges": bridges,
        "pairs": pairs,
        "nvswitches": switches or (None if unknown else []),
        "host_bridge": "%s:%s" % (bridge["vendor"], bridge["device"]) if identified else None,
        "unassigned_bars": _unassigned(gpus, unknown),
        "unbound_gpus": _listed(gpus, unknown, lambda gpu: None if gpu["bound"] is None else not gpu["bound"]),
        "vfio_gpus": _listed(
            gpus, unknown, lambda gpu: None if gpu["driver"] is None else gpu["driver"] == VFIO_DRIVER
        ),
        "foreign_driver_gpus": _foreign(gpus, unknown),
        "gpus_without_numa_node": _listed(
            gpus, unknown, lambda gpu: None if gpu["numa_stated"] is None else not gpu["numa_stated"]
        ),
        "width_reduced": _width_reduced(gpus, bridges, unknown),
        "acs_unreadable": [
            port
            for port in turn_ports
            if (bridges.get(port) or {"acs": {"redirects": None}})["acs"]["redirects"] is None
        ],
        "redirecting_switch_ports": acs.find_redirecting(pairs, bridges, below_switch=True, unknown=unknown),
        "redirecting_root_ports": acs.find_redirecting(pairs, bridges, below_switch=False, unknown=unknown),
        "nics": None if unknown else nics,
        "nic_pairs": nic_pairs,
        "redirecting_nic_ports": acs.find_redirecting(nic_pairs, bridges, below_switch=True, unknown=unknown),
        **aer.summarise_aer(counted, uptime_s, unknown),
    }


def _nic(device: dict[str, Any]) -> dict[str, Any]:
    return {
        "vendor_id": device["vendor"],
        "device_id": device["device"],
        "class": device["class"],
        "driver": device["driver"],
        "path": device["path"],
        "root_complex": device["root_complex"],
    }


def _is_gpu(device: dict[str, Any]) -> bool:
    return pci_names.is_gpu(device["vendor"], device["class"])


def _gpu(device: dict[str, Any], devices: dict[str, dict[str, Any]]) -> dict[str, Any]:
    config = device.get("config") or {}
    link = device.get("link") or {}
    driver = device["driver"]
    audio = devices.get(device["address"][:-1] + "1")
    has_audio = audio is not None and (audio["class"] or "").startswith(pci_names.CLASS_AUDIO)
    bars = device.get("bars")
    return {
        "name": pci_names.device_name(device["vendor"], device["device"]) or device.get("name"),
        "vendor_id": device["vendor"],
        "device_id": device["device"],
        "subsystem_id": device["subsystem"],
        "class": device["class"],
        "driver": driver,
        "bound": None if driver is None else bool(driver),
        "numa_node": device.get("numa_node"),
        "numa_stated": device.get("numa_stated"),
        "iommu_group": device.get("iommu_group"),
        "express": link.get("express"),
        "link": {name: link.get(name) for name in ("speed_gt_s", "width", "max_speed_gt_s", "max_width")},
        "bars": None
        if bars is None
        else [{name: value for name, value in bar.items() if name != "start"} for bar in bars],
        "bars_unread": bool(device.get("bars_unread")),
        "resizable_bars": config.get("resizable_bars"),
        "path": device["path"],
        "root_complex": device["root_complex"],
        "audio": {"address": audio["address"], "driver": audio["driver"]} if audio is not None and has_audio else None,
    }


def _bridge(device: dict[str, Any]) -> dict[str, Any]:
    config = device.get("config") or {}
    link = device.get("link") or {}
    kind = link.get("kind")
    return {
        # A bridge without a PCI Express capability is a conventional one.
        "kind": kind or ("pci_bridge" if link.get("express") is False else None),
        "vendor_id": device["vendor"],
        "device_id": device["device"],
        "driver": device["driver"],
        "secondary_bus": config.get("secondary_bus"),
        "numa_node": device.get("numa_node"),
        "link": {name: link.get(name) for name in ("speed_gt_s", "width", "max_speed_gt_s", "max_width")},
        "acs": acs.describe_acs(config.get("acs")),
    }


def _listed(
    gpus: dict[str, dict[str, Any]], unknown: bool, offends: Callable[[dict[str, Any]], bool | None]
) -> list[str] | None:
    found = Offenders(unknown)
    for address, gpu in gpus.items():
        found.judge(offends(gpu), address)
    return found.listed()


def _unassigned(gpus: dict[str, dict[str, Any]], unknown: bool) -> list[dict[str, Any]] | None:
    found = Offenders(unknown)
    # A GPU without a single memory BAR is no GPU: its resource file could not be understood. Where BARs cannot be seen,
    # the driver vouches for them: it refuses to bind to a GPU whose BARs have no address ("This PCI I/O region assigned
    # to your NVIDIA device is invalid", nv_pci_validate_bars in open-gpu-kernel-modules/kernel-open/nvidia/nv-pci.c).
    for address, gpu in gpus.items():
        memory = [bar for bar in gpu["bars"] or [] if bar["kind"] == "memory"]
        for bar in memory:
            found.judge(not bar["assigned"], {"gpu": address, "index": bar["index"], "size_mib": bar["size_mib"]})
        if gpu["bars_unread"] or (not memory and gpu["driver"] != NVIDIA_DRIVER):
            found.unread()
    return found.listed()


def _foreign(gpus: dict[str, dict[str, Any]], unknown: bool) -> list[dict[str, str]] | None:
    found = Offenders(unknown)
    for address, gpu in gpus.items():
        foreign = None if gpu["driver"] is None else gpu["driver"] not in (NVIDIA_DRIVER, VFIO_DRIVER, "")
        found.judge(foreign, {"gpu": address, "driver": gpu["driver"]})
    return found.listed()


def _is_upstream(bridge: dict[str, Any] | None, position: int) -> bool:
    """Whether a bridge is a switch's upstream port.

    Without root its kind is unknown, and its place in the path tells.
    """
    if bridge is None:
        return False
    return position % 2 == 1 if bridge["kind"] is None else bridge["kind"] == "upstream"


def _width_reduced(
    gpus: dict[str, dict[str, Any]], bridges: dict[str, dict[str, Any]], unknown: bool
) -> list[dict[str, Any]] | None:
    found: dict[str, dict[str, Any]] = {}
    for address, gpu in gpus.items():
        path = gpu["path"] or []
        unknown = unknown or gpu["path"] is None
        chain = [*path, address]
        for position, at in enumerate(chain):
            if at != address and not _is_upstream(bridges.get(at), position):
                continue  # a root port or downstream port is the other end of a link that is looked at from below
            link = gpu["link"] if at == address else bridges[at]["link"]
            width, widest = link["width"], link["max_width"]
            if width is None or widest is None:
                unknown = unknown or gpu["express"] is not False
                continue
            if width >= widest:
                continue
            port = chain[position - 1] if position else None
            port_widest = bridges[port]["link"]["max_width"] if port in bridges else None
            entry = found.setdefault(
                at,
                {
                    "address": at,
                    "width": width,
                    "max_width": widest,
                    "port": port,
                    "port_max_width": port_widest,
                    "gpus": [],
                },
            )
            entry["gpus"].append(address)
    return list(found.values()) or (None if unknown else [])
