"""The running QEMU process of a VM, which shows what is in force whatever the configuration has become since."""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from .guest_config import parse_properties
from .vm_config import args_facts, chipset_of

_DEVICE_ID = re.compile(r"hostpci(\d+)(?:\.\d+)?$")


def parse_process(cmdline: bytes, vmid: str) -> dict[str, Any] | None:
    """Facts of a NUL-separated command line, None if it is not the QEMU of this VM (a stale pid file, a reused pid).

    {machine_type, chipset, devices {id: {address, slot, bus, pcie}}, cliques, hides_hypervisor, address_window_mib,
    cpu}
    """
    words = [word.decode("utf-8", "replace") for word in cmdline.split(b"\0")]
    options = list(zip(words, words[1:]))
    if ("-id", vmid) not in options:
        return None
    machine_type = cpu = None
    devices: dict[str, dict[str, Any]] = {}
    for option, value in options:
        if option in ("-machine", "-M"):
            machine_type = parse_properties(value, "type").get("type", machine_type)
        elif option == "-cpu":
            cpu = value.partition(",")[0]
        elif option == "-device":
            device = _device(value)
            match = _DEVICE_ID.match(device.get("id", ""))
            if match and device.get("driver", "").startswith("vfio-pci"):
                bus = device.get("bus", "")
                devices[device["id"]] = {
                    "address": device.get("host"),
                    "slot": values.number_in_name(match.group(1)),
                    "bus": bus,
                    # On Q35 a PCI Express device sits on a root port (or on pcie.0); pci.N is a conventional bus.
                    "pcie": bus.startswith("ich9-pcie-port") or bus.startswith("pcie."),
                }
    extra = args_facts(words)
    return {
        "machine_type": machine_type,
        "chipset": chipset_of(machine_type) if machine_type else None,
        "devices": devices,
        "cliques": extra["cliques"],
        "clique_of_all": extra["clique_of_all"],
        "hides_hypervisor": extra["hides_hypervisor"]
        or any("kvm=off" in value.split(",") for option, value in options if option == "-cpu"),
        "address_window_mib": extra["address_window_mib"],
        "cpu": cpu,
    }


def _device(value: str) -> dict[str, str]:
    if value.startswith("{"):
        try:
            decoded = values.json_value(value)
        except ValueError:
            return {}
        return {key: str(item) for key, item in decoded.items()} if isinstance(decoded, dict) else {}
    return parse_properties(value, "driver")


def find_differences(vm: dict[str, Any], running: dict[str, Any]) -> list[str]:
    """What of the configuration (facts of vm_config.py) the running process does not show yet.

    Each needs a stop and a start.
    """
    found = []
    wanted = vm["machine"]["chipset"]
    if wanted and running["chipset"] and wanted != running["chipset"]:
        found.append("machine: configured %s, running %s (%s)" % (wanted, running["chipset"], running["machine_type"]))
    running_slots: dict[int, list[dict[str, Any]]] = {}
    for device in running["devices"].values():
        running_slots.setdefault(device["slot"], []).append(device)
    for entry in vm["hostpci"]:
        attached = running_slots.pop(entry["slot"], None)
        if attached is None:
            found.append("%s: configured (%s), not attached to the running VM" % (entry["key"], entry["value"]))
            continue
        if entry["mapping"] is None and entry["mdev"] is None and not _same_slots(entry, attached):
            addresses = ", ".join(str(device["address"]) for device in attached)
            found.append("%s: configured %s, running with %s" % (entry["key"], entry["value"], addresses))
        if bool(entry["pcie"]) != all(device["pcie"] for device in attached):
            found.append(
                "%s: configured pcie=%d, running on bus %s" % (entry["key"], bool(entry["pcie"]), attached[0]["bus"])
            )
    found += [
        "hostpci%d: still attached to the running VM, no longer configured" % slot for slot in sorted(running_slots)
    ]
    for device in sorted(set(vm["cliques"]) | set(running["cliques"])):
        configured, live = vm["cliques"].get(device), running["cliques"].get(device)
        if configured != live:
            found.append("%s: x-nv-gpudirect-clique configured %s, running %s" % (device, configured, live))
    if vm["clique_of_all"] != running["clique_of_all"]:
        text = "x-nv-gpudirect-clique of all devices configured %s, running %s"
        found.append(text % (vm["clique_of_all"], running["clique_of_all"]))
    return found


def _same_slots(entry: dict[str, Any], attached: list[dict[str, Any]]) -> bool:
    wanted = {device["slot"] for device in entry["devices"]}
    return wanted == {str(device["address"]).lower().rpartition(".")[0] for device in attached}
