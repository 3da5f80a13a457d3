"""Who owns which GPU of a Proxmox node: the driver that has a card now against the guests that claim it."""

from __future__ import annotations

from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import Evidence
from ..evidence.offenders import Offenders
from ..pcie import power_and_reset
from ..pcie.pci_names import device_name

Table = dict[str, dict[str, Any]]


def list_gpus(evidence: Evidence, errors: Errors, devices: Table, guests: Table, ids: dict[str, str]) -> Table:
    """Address -> {name, id, driver ("" none), numa_node, iommu_group, group_others, power_state, d3cold_allowed,
    reset_methods (power_and_reset.read_power), claimed_by [{vmid, type, name, running, onboot, shared, kept}],
    vfio_at_boot}

    `shared`: the VM has a mediated device (vGPU) of the card, not the card; `kept`: driver=keep, Proxmox binds nothing.

    `devices` are the detailed GPUs, `guests` all VMs and containers, `ids` what vfio-pci takes at boot
    (pve_host.vfio_ids).
    """
    result = {}
    for address, device in sorted(devices.items()):
        identifier = "%s:%s" % (device["vendor"], device["device"])
        result[address] = {
            "name": device_name(device["vendor"], device["device"]),
            "id": identifier,
            "driver": device["driver"],
            "numa_node": device["numa_node"],
            "iommu_group": device["iommu_group"],
            "group_others": _group_others(evidence, errors, address, device["iommu_group"]),
            **power_and_reset.read_power(evidence, address, errors),
            "claimed_by": [
                {
                    "vmid": vmid,
                    "type": guest["type"],
                    "name": guest["name"],
                    "running": guest.get("running"),
                    "onboot": guest.get("onboot"),
                    "shared": address in guest.get("shared_claims", ()),
                    "kept": address in guest.get("kept_claims", ()),
                }
                for vmid, guest in sorted(guests.items(), key=lambda item: values.number_in_name(item[0]))
                if address in (guest["claims"] or [])
            ],
            "vfio_at_boot": ids.get(identifier),
        }
    return result


def _group_others(evidence: Evidence, errors: Errors, address: str, group: str | None) -> list[str] | None:
    """The other devices of the card's IOMMU group, without its own functions.

    None if unknown, empty without a group.
    """
    if group is None:
        return None
    if not group:
        return []
    listing = evidence.list("/sys/kernel/iommu_groups/%s/devices" % group)
    if not listing.ok:
        errors.unanswered(listing)
        return None
    slot = address.rpartition(".")[0]
    return [other for other in sorted(listing.entries) if other.rpartition(".")[0] != slot]


def label_claim(claim: dict[str, Any]) -> str:
    """`VM 101 "llm" (running)` for messages."""
    kind = "VM" if claim["type"] == "vm" else "container"
    state = (
        "running"
        if claim["running"]
        else "starts at boot"
        if claim["onboot"]
        else "stopped"
        if claim["running"] is False
        else "state unknown"
    )
    return (
        '%s %s "%s" (%s)' % (kind, claim["vmid"], claim["name"], state)
        if claim["name"]
        else "%s %s (%s)" % (kind, claim["vmid"], state)
    )


def claimed_twice(cards: Table) -> list[str]:
    """Cards that two guests want at the same time. Containers may share one, and so may VMs that have vGPUs of it; a VM
    with the card itself needs it alone. A guest that neither runs nor starts at boot takes nothing from the others."""
    found = []
    for address, card in cards.items():
        active = [claim for claim in card["claimed_by"] if claim["running"] or claim["onboot"]]
        if len(active) > 1 and any(claim["type"] == "vm" and not claim["shared"] for claim in active):
            found.append("%s: %s" % (address, ", ".join(map(label_claim, active))))
    return found


def driver_conflicts(cards: Table) -> list[str]:
    """Cards whose driver, now or at the next boot, is not the one that their active guest needs."""
    found = []
    for address, card in cards.items():
        for claim in card["claimed_by"]:
            if claim["type"] == "lxc" and (claim["running"] or claim["onboot"]):
                if card["driver"] == "vfio-pci":
                    found.append(
                        "%s is bound to vfio-pci, and %s needs the host's nvidia driver on it"
                        % (address, label_claim(claim))
                    )
                elif card["vfio_at_boot"]:
                    text = "%s goes to vfio-pci at the next boot (%s), and %s needs nvidia on it"
                    found.append(text % (address, card["vfio_at_boot"], label_claim(claim)))
            if _takes_whole(claim) and claim["running"] and card["driver"] not in (None, "vfio-pci"):
                found.append(
                    "%s is bound to %s although %s runs with it"
                    % (address, card["driver"] or "no driver", label_claim(claim))
                )
    return found


def shared_groups(cards: Table, bridges: set[str]) -> list[str]:
    """Cards of VMs whose IOMMU group holds other devices than bridges: those go to the VM too, or the start fails."""
    found = []
    for address, card in cards.items():
        others = [other for other in card["group_others"] or [] if other not in bridges]
        if others and any(claim["type"] == "vm" and not claim["shared"] for claim in card["claimed_by"]):
            found.append("%s: group %s also holds %s" % (address, card["iommu_group"], ", ".join(others)))
    return found


def find_unresettable(cards: Table) -> list[str] | None:
    """Cards that VMs get whole and that the kernel has no way to reset; None where that is not known of one, and no
    other was found."""
    found = Offenders()
    for address, card in cards.items():
        owners = [label_claim(claim) for claim in card["claimed_by"] if _takes_whole(claim)]
        if owners:
            methods = card["reset_methods"]
            found.judge(None if methods is None else not methods, "%s of %s" % (address, ", ".join(owners)))
    return found.listed()


def _takes_whole(claim: dict[str, Any]) -> bool:
    """Whether Proxmox gives the card itself to a VM: it then resets it at the start and at the stop."""
    return claim["type"] == "vm" and not claim["shared"] and not claim["kept"]
