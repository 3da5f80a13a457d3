"""Facts of a Proxmox VE host: how it boots, its GPUs, and every guest that has one."""

from __future__ import annotations

import re
import time
from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence
from .loose import excerpts
from .pcie import lspci, pci_devices
from .pcie.pci_names import is_gpu
from .pve import card_claims, node_boot, node_driver, node_guests

SCHEMA = 1
COMMANDS = [(["pveversion"], 20.0)]
KEYS = (
    "is_proxmox",
    "node",
    "version",
    "kernel",
    "boot",
    "iommu_on",
    "driver",
    "at_boot",
    "vfio_ids",
    "gpus",
    "vms",
    "containers",
)
COMPUTED = (
    "claimed_twice",
    "driver_conflicts",
    "shared_groups",
    "vms_not_ready_for_p2p",
    "isolation_weakened",
    "faults",
    "needs_nodes_at_boot",
    "needs_iommu",
)
# Parameters that take the isolation away on which passing a card to a VM rests.
_WEAKENS_ISOLATION = re.compile(
    r"pcie_acs_override=|pci=.*(disable_acs_redir|config_acs)|vfio_iommu_type1\.allow_unsafe_interrupts=1"
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of a Proxmox VE host; every key is there always, None for unknown. On another host `is_proxmox` is False
    and the rest None.

    `node`, `version`, `kernel`; `boot`, `driver`, `at_boot`, `gpus`, `vms`, `containers`: see below. `iommu_on`;
    `vfio_ids`: "vendor:device" -> the file that gives it to vfio-pci at boot. Lists of offenders, as sentences:
    `claimed_twice`, `driver_conflicts`, `shared_groups`, `vms_not_ready_for_p2p`, `faults` (of guests' configurations,
    with file and line), `isolation_weakened` (kernel parameters). `needs_nodes_at_boot`: a container with GPUs starts
    at boot; `needs_iommu`: a VM has GPUs. `errors` as everywhere.

    The guests are read from their files, not through `qm config` and `pct config`: those show pending values as if they
    were in force unless asked otherwise, need a second for each guest, and read the same files.
    """
    facts: dict[str, Any] = dict.fromkeys((*KEYS, *COMPUTED))
    cluster = evidence.list("/etc/pve")
    facts["is_proxmox"] = True if cluster.ok or cluster.entries else (False if cluster.status == ABSENT else None)
    if not cluster.ok:
        errors.unanswered(cluster, absent_is_fine=True)
    if not facts["is_proxmox"]:
        return facts
    local = cluster.entries.get("local")
    facts["node"] = (local.target or "").rpartition("/")[2] or None if local else None
    version = evidence.run(COMMANDS[0][0], COMMANDS[0][1])
    errors.unanswered(version)
    match = re.search(r"pve-manager/([^/\s]+)", version.text)
    facts["version"] = match.group(1) if match else None
    facts["kernel"] = evidence.read("/proc/sys/kernel/osrelease").text.strip() or None
    facts["boot"] = node_boot.gather(evidence, errors)
    facts["iommu_on"] = _iommu_on(evidence, errors)
    facts["driver"] = node_driver.driver(evidence, errors)
    facts["at_boot"] = node_driver.at_boot(evidence, errors)
    facts["vfio_ids"] = node_driver.vfio_ids(evidence, facts["boot"]["live"])
    live = facts["boot"]["live"]
    facts["isolation_weakened"] = None if live is None else [word for word in live if _WEAKENS_ISOLATION.match(word)]
    _guests_and_cards(evidence, errors, facts)
    complete = evidence.list(node_guests.VM_DIRECTORY).ok and evidence.list(node_guests.CT_DIRECTORY).ok
    excerpts.narrow_proxmox(facts, complete, errors.entries)
    return facts


def _iommu_on(evidence: Evidence, errors: Errors) -> bool | None:
    listing = evidence.list("/sys/class/iommu")
    errors.unanswered(listing, absent_is_fine=True)
    return bool(listing.entries) if listing.ok else (False if listing.status == ABSENT else None)


def _guests_and_cards(evidence: Evidence, errors: Errors, facts: dict[str, Any]) -> None:
    devices = pci_devices.inventory(evidence, errors)
    listed = devices is None
    if listed:
        devices = lspci.devices(evidence, errors)
        if devices and "0000:00:00.0" not in devices:
            devices = None  # a part of the bus: what a guest gets may be among the rest
    cards = {
        address: device for address, device in (devices or {}).items() if is_gpu(device["vendor"], device["class"])
    }
    for device in () if listed else cards.values():
        pci_devices.add_detail(evidence, device, errors)
    facts["vms"] = node_guests.vms(evidence, errors, facts["node"], devices)
    facts["containers"] = node_guests.containers(evidence, errors, facts["driver"])
    vms, containers = facts["vms"] or {}, facts["containers"] or {}
    if facts["vms"] is not None and facts["containers"] is not None:
        facts["faults"] = [
            fault for guest in (*vms.values(), *containers.values()) for fault in guest.get("faults", [])
        ]
    if facts["vms"] is not None:
        facts["vms_not_ready_for_p2p"] = _not_ready(vms)
        facts["needs_iommu"] = any(vm["gpus"] for vm in vms.values())
    if facts["containers"] is not None:
        facts["needs_nodes_at_boot"] = any(guest["gpus"] and guest["onboot"] for guest in containers.values())
    if devices is None or facts["vms"] is None or facts["containers"] is None:
        return
    facts["gpus"] = card_claims.gpus(evidence, errors, cards, {**vms, **containers}, facts["vfio_ids"])
    facts["claimed_twice"] = card_claims.claimed_twice(facts["gpus"])
    facts["driver_conflicts"] = card_claims.driver_conflicts(facts["gpus"])
    bridges = {address for address, device in devices.items() if (device["class"] or "").startswith("06")}
    facts["shared_groups"] = card_claims.shared_groups(facts["gpus"], bridges)


def _not_ready(vms: dict[str, dict[str, Any]]) -> list[str]:
    """VMs with several GPUs whose configuration keeps them from reaching one another."""
    found = []
    for vmid, vm in vms.items():
        if (vm.get("gpu_count") or 0) < 2 or vm.get("template"):
            continue
        machine = vm["next_start"]["machine"]
        if machine["chipset"] != "q35":
            line = "machine: %s" % machine["value"] if machine["value"] else "no machine line"
            found.append("VM %s: %d GPUs on chipset %s (%s)" % (vmid, vm["gpu_count"], machine["chipset"], line))
        elif vm["gpus_without_pcie"]:
            found.append("VM %s: no pcie=1 on %s" % (vmid, ", ".join(vm["gpus_without_pcie"])))
    return found


def gather_host(evidence: Evidence) -> dict[str, Any]:
    """`gather` with its errors and where the evidence is from, as library/proxmox_facts.py returns it; never raises."""
    began = time.monotonic()
    errors = Errors("proxmox")
    for argv, limit in COMMANDS:
        evidence.start(argv, limit)
    try:
        facts = gather(evidence, errors)
    except Exception as error:  # a fault of ours must not stop the play
        facts = dict.fromkeys((*KEYS, *COMPUTED))
        errors.add(
            "module_utils/gpu_host",
            "a fault in the reader of proxmox: %s: %s; please report it" % (type(error).__name__, error),
        )
    manifest = getattr(evidence, "manifest", None)
    facts["errors"] = errors.entries
    facts["evidence"] = {
        "schema": SCHEMA,
        "recorded": manifest is not None,
        "reconstructed": bool(manifest and manifest.get("reconstructed")),
        "taken_at": evidence.now(),
        "seconds": round(time.monotonic() - began, 3),
    }
    return facts


def for_guest(facts: dict[str, Any] | None, host: str, vmid: Any) -> dict[str, Any]:
    """What the checks of a guest see as `host.hypervisor`: the host's facts without its other guests, and

    `name`, its name in the inventory; `vmid`; `guest`, the entry of this VMID (None if there is none, or the guests are
    unknown); `has_guest` (None: unknown); `gives`: "vm" or "lxc" where that guest gets GPUs from the host, "" where it
    gets none.
    """
    known = facts or dict.fromkeys((*KEYS, *COMPUTED))
    number = str(vmid)
    vms, containers = known.get("vms"), known.get("containers")
    guest = (vms or {}).get(number) or (containers or {}).get(number)
    view = {key: value for key, value in known.items() if key not in ("vms", "containers")}
    listed = vms is not None and containers is not None
    gives = guest["type"] if guest and guest["gpu_count"] != 0 else ""
    return {
        **view,
        "name": host,
        "vmid": number,
        "guest": guest,
        "has_guest": True if guest else (False if listed else None),
        "gives": gives,
    }
