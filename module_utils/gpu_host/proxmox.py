"""Facts of a Proxmox VE host: how it boots, its GPUs, and every guest that has one."""

from __future__ import annotations

import re
import time
from typing import Any

from .evidence.errors import Errors
from .evidence.folders import unread_directories, unread_files
from .evidence.interface import ABSENT, Evidence
from .evidence.noting import NotingEvidence
from .evidence.offenders import Offenders, any_of
from .evidence.sides import find_pieces
from .log import log_sources
from .loose import excerpts
from .pcie import lspci, pci_devices
from .pcie.pci_names import is_gpu
from .pve import card_claims, card_resets, node_boot, node_driver, node_guests
from .pve.start_rules import NO_IOMMU

SCHEMA = 1
COMMANDS = [(["pveversion"], 20.0), (list(log_sources.DMESG), log_sources.SECONDS)]
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
    "unread_guests",
)
COMPUTED = (
    "claimed_twice",
    "driver_conflicts",
    "shared_groups",
    "vms_not_ready_for_p2p",
    "p2p_commands",
    "isolation_weakened",
    "faults",
    "refused_lines",
    "cannot_start",
    "failed_resets",
    "unresettable",
    "boot_faults",
    "needs_nodes_at_boot",
    "needs_iommu",
    "needs_driver",
)
# Parameters that take the isolation away on which passing a card to a VM rests.
_WEAKENS_ISOLATION = re.compile(
    r"pcie_acs_override=|pci=.*(disable_acs_redir|config_acs)|vfio_iommu_type1\.allow_unsafe_interrupts=1"
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of a Proxmox VE host; every key is there always, None for unknown.

    On another host `is_proxmox` is False and the rest None.

    `node`, `version`, `kernel`; `boot`, `driver`, `at_boot`, `gpus`, `vms`, `containers`: see below. `iommu_on`;
    `vfio_ids`: "vendor:device" -> the file that gives it to vfio-pci at boot. Lists of offenders, as sentences:
    `claimed_twice`, `driver_conflicts`, `shared_groups`, `vms_not_ready_for_p2p` (`p2p_commands` would change them),
    `faults` (of guests' configurations, with file and line), `refused_lines` (those of them about GPUs that Proxmox
    does not take), `cannot_start` (guests that Proxmox would not start), `failed_resets` (card_resets.failed_resets),
    `unresettable` (cards of VMs that the kernel cannot reset),
    `boot_faults` (node_boot.faults), `isolation_weakened` (kernel parameters). `needs_nodes_at_boot`: a container with
    GPUs starts at boot; `needs_iommu`: a VM has GPUs; `needs_driver`: a container has GPUs, for which the host's own
    driver has to hold them. `unread_guests`: VMIDs whose configuration could not be read. `errors` as everywhere.

    The guests are read from their files, not through `qm config` and `pct config`: those show pending values as if they
    were in force unless asked otherwise, need a second for each guest, and read the same files.
    """
    facts: dict[str, Any] = dict.fromkeys((*KEYS, *COMPUTED))
    cluster = evidence.list("/etc/pve")
    # An empty directory is what is left where pmxcfs is not mounted. Of loose pieces single files of it are known.
    mounted = bool(cluster.entries)
    facts["is_proxmox"] = True if mounted else (False if cluster.ok or cluster.status == ABSENT else None)
    if not (mounted and cluster.ok):
        errors.unanswered(cluster, absent_is_fine=True)
    if not facts["is_proxmox"]:
        return facts
    local = cluster.entries.get("local")
    facts["node"] = (local.target or "").rpartition("/")[2] or None if local else None
    version = evidence.run(COMMANDS[0][0], COMMANDS[0][1])
    errors.unsuccessful(version)
    match = re.search(r"pve-manager/([^/\s]+)", version.text) if version.succeeded else None
    facts["version"] = match.group(1) if match else None
    release = evidence.read("/proc/sys/kernel/osrelease")
    errors.unanswered(release)
    facts["kernel"] = (release.text.strip() or None) if release.ok else None
    facts["boot"] = node_boot.gather(evidence, errors)
    facts["iommu_on"] = _iommu_on(evidence, errors)
    facts["driver"] = node_driver.read_driver(evidence, errors)
    facts["at_boot"] = node_driver.find_nodes_at_boot(evidence, errors)
    modprobe_unread = unread_files(evidence, "/etc/modprobe.d", ".conf", errors)
    facts["vfio_ids"] = node_driver.vfio_ids(evidence, facts["boot"]["live"]) if modprobe_unread == [] else None
    live = facts["boot"]["live"]
    facts["isolation_weakened"] = None if live is None else [word for word in live if _WEAKENS_ISOLATION.match(word)]
    _guests_and_cards(evidence, errors, facts)
    facts["boot_faults"] = node_boot.find_boot_faults(
        facts["boot"], facts["kernel"], facts["iommu_on"], facts["needs_iommu"]
    )
    if find_pieces(evidence):
        complete = evidence.list(node_guests.VM_DIRECTORY).ok and evidence.list(node_guests.CT_DIRECTORY).ok
        excerpts.narrow_proxmox(facts, complete, errors.entries)
    return facts


def _iommu_on(evidence: Evidence, errors: Errors) -> bool | None:
    listing = evidence.list("/sys/class/iommu")
    errors.unanswered(listing, absent_is_fine=True)
    return bool(listing.entries) if listing.ok else (False if listing.status == ABSENT else None)


def _guests_and_cards(evidence: Evidence, errors: Errors, facts: dict[str, Any]) -> None:
    devices = pci_devices.read_inventory(evidence, errors)
    listed = devices is None
    if listed:
        devices = lspci.read_devices(evidence, errors)
        if devices and "0000:00:00.0" not in devices:
            devices = None  # a part of the bus: what a guest gets may be among the rest
    cards = {
        address: device for address, device in (devices or {}).items() if is_gpu(device["vendor"], device["class"])
    }
    for device in () if listed else cards.values():
        pci_devices.add_detail(evidence, device, errors)
    unidentified = devices is None or bool(pci_devices.find_unidentified(devices))
    facts["vms"] = node_guests.read_vms(evidence, errors, facts["node"], devices, facts["iommu_on"])
    facts["containers"] = node_guests.read_containers(evidence, errors, facts["driver"])
    vms, containers = facts["vms"] or {}, facts["containers"] or {}
    unread_vms = unread_files(evidence, node_guests.VM_DIRECTORY, ".conf", errors)
    unread_containers = unread_files(evidence, node_guests.CT_DIRECTORY, ".conf", errors)
    if unread_vms is not None and unread_containers is not None:
        paths = unread_vms + unread_containers
        facts["unread_guests"] = sorted(path.rpartition("/")[2][: -len(".conf")] for path in paths)
    # Without its configuration nobody knows what a guest has; without the mapping, which card a name in it is.
    unread_vm = unread_vms != [] or any(vm["gpus"] is None for vm in vms.values())
    unread = unread_vm or unread_containers != []
    faults = Offenders(unknown=unread)
    for fault in (fault for guest in (*vms.values(), *containers.values()) for fault in guest.get("faults", [])):
        faults.judge(True, fault)
    facts["faults"] = faults.listed()
    refused = Offenders(unknown=unread)
    for line in (line for guest in (*vms.values(), *containers.values()) for line in guest.get("refused", [])):
        refused.judge(True, line["sentence"])
    facts["refused_lines"] = refused.listed()
    facts["cannot_start"] = _cannot_start({**vms, **containers}, unread)
    facts["p2p_commands"] = None if facts["vms"] is None else _p2p_commands(vms)
    facts["vms_not_ready_for_p2p"] = _not_ready(vms, unread_vm or unidentified)
    facts["needs_iommu"] = any_of([*(bool(vm["gpus"]) for vm in vms.values()), None if unread_vm else False])
    at_boot = [bool(guest["gpus"] and guest["onboot"]) for guest in containers.values()]
    facts["needs_nodes_at_boot"] = any_of([*at_boot, None if unread_containers != [] else False])
    with_gpus = [bool(guest["gpus"]) for guest in containers.values()]
    facts["needs_driver"] = any_of([*with_gpus, None if unread_containers != [] else False])
    if devices is None:
        return
    gpus = card_claims.list_gpus(evidence, errors, cards, {**vms, **containers}, facts["vfio_ids"] or {})
    facts["gpus"] = None if unidentified or unread else gpus
    facts["failed_resets"] = card_resets.failed_resets(evidence, errors, gpus)
    unknown = unidentified or unread
    unresettable = None if listed else card_claims.find_unresettable(gpus)
    facts["unresettable"] = unresettable or (None if unknown else unresettable)
    cards_unread = unread_directories(evidence, "/proc/driver/nvidia/gpus", "information", errors)
    unclaimed = unknown or cards_unread != []
    facts["claimed_twice"] = card_claims.claimed_twice(gpus) or (None if unclaimed else [])
    facts["driver_conflicts"] = card_claims.driver_conflicts(gpus) or (
        None if unclaimed or facts["vfio_ids"] is None or any(gpu["driver"] is None for gpu in gpus.values()) else []
    )
    bridges = {address for address, device in devices.items() if (device["class"] or "").startswith("06")}
    shared = card_claims.shared_groups(gpus, bridges)
    facts["shared_groups"] = shared or (
        None if unknown or any(gpu["group_others"] is None for gpu in gpus.values()) else []
    )


def _cannot_start(guests: dict[str, dict[str, Any]], unread: bool) -> list[str] | None:
    """Guests with devices that Proxmox would not start, each with its reason; None where it is not known of one that
    runs or
    starts at boot, and nothing else is found. A template is not meant to start, and of a guest that is down and stays
    down only what does not pass by itself counts."""
    found, unknown = [], unread
    for vmid, guest in guests.items():
        start = guest.get("start")
        # That the host has no IOMMU is said once, by `iommu_on`.
        if start is None or guest["template"] or start["error"] == NO_IOMMU:
            continue
        active = guest["running"] or guest["onboot"]
        if start["starts"] is False and (start["lasting"] or active):
            kind = "VM" if guest["type"] == "vm" else "container"
            key = " (%s)" % start["key"] if start["key"] else ""
            found.append("%s %s: %s%s" % (kind, vmid, start["error"], key))
        unknown = unknown or (start["starts"] is None and bool(active))
    return None if unknown and not found else found


def _not_ready(vms: dict[str, dict[str, Any]], unknown: bool) -> list[str] | None:
    """VMs with several GPUs whose configuration keeps them from reaching one another."""
    found = Offenders(unknown)
    for vmid, vm in vms.items():
        if (vm.get("gpu_count") or 0) < 2 or vm.get("template"):
            continue
        machine = vm["next_start"]["machine"]
        if machine["chipset"] != "q35":
            line = "machine: %s" % machine["value"] if machine["value"] else "no machine line"
            text = "VM %s: %d GPUs on chipset %s (%s)" % (vmid, vm["gpu_count"], machine["chipset"], line)
            found.judge(True, text)
        elif vm["gpus_without_pcie"]:
            found.judge(True, "VM %s: no pcie=1 on %s" % (vmid, ", ".join(vm["gpus_without_pcie"])))
    return found.listed()


def _p2p_commands(vms: dict[str, dict[str, Any]]) -> list[str]:
    """`qm set …` for each VM with several GPUs that Proxmox would start with Q35 and pcie=1."""
    return [
        "qm set %s %s" % (vmid, vm["fixes"].get(name))
        for vmid, vm in vms.items()
        for name in ("q35", "pcie")
        if (vm.get("gpu_count") or 0) > 1 and not vm.get("template") and vm.get("fixes", {}).get(name)
    ]


def gather_host(evidence: Evidence) -> dict[str, Any]:
    """`gather` with its errors and where the evidence is from, as library/proxmox_facts.py returns it; never raises."""
    began = time.monotonic()
    errors = Errors("proxmox")
    noting = NotingEvidence(evidence, "proxmox")
    for argv, limit in COMMANDS:
        evidence.start(argv, limit)
    try:
        facts = gather(noting, errors)
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
        "unread": noting.unread,
        "seconds": round(time.monotonic() - began, 3),
    }
    return facts


def may_be_proxmox(gpu_host: dict[str, Any]) -> bool:
    """Whether this host's guests are to be looked at, by the facts of gpu_facts: its evidence shows a Proxmox host,
    pieces of one were handed in with it, or something speaks for one and nothing against it."""
    virtualization = gpu_host.get("virtualization") or {}
    shown = virtualization.get("hypervisor_is_proxmox")
    handed_in = ((gpu_host.get("evidence") or {}).get("loose") or {}).get("hypervisor")
    return bool(shown or handed_in or (shown is None and virtualization.get("proxmox_signs")))


def select_guest(facts: dict[str, Any] | None, host: str, vmid: Any) -> dict[str, Any]:
    """What the checks of a guest see as `host.hypervisor`: the host's facts without its other guests, and

    `name`, its name in the inventory; `vmid`; `guest`, the entry of this VMID (None if there is none, or it is
    unknown); `has_guest` (None: unknown); `gives`: "vm" or "lxc" where that guest gets GPUs from the host or may get
    them, "" where it gets none, None where it is unknown what it is.
    """
    known = facts or dict.fromkeys((*KEYS, *COMPUTED))
    number = str(vmid)
    vms, containers = known.get("vms"), known.get("containers")
    guest = (vms or {}).get(number) or (containers or {}).get(number)
    view = {key: value for key, value in known.items() if key not in ("vms", "containers")}
    listed = vms is not None and containers is not None
    # A guest whose configuration could not be read may have GPUs; and nobody knows which other lists it stands in.
    listed = listed and number not in (known.get("unread_guests") or ())
    gives = guest["type"] if guest and guest["gpu_count"] != 0 else ("" if guest or listed else None)
    return {
        **view,
        "name": host,
        "vmid": number,
        "guest": guest,
        "has_guest": True if guest else (False if listed else None),
        "gives": gives,
    }
