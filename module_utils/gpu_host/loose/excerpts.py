"""What an excerpt cannot say: a list of offenders that came out empty is unknown where only a part was handed in."""

from __future__ import annotations

from typing import Any

_LOG_LISTS = ("fatal_xids", "other_xids", "other_sxids", "uvm_failures")
_OF_GUESTS = (
    "claimed_twice",
    "driver_conflicts",
    "shared_groups",
    "vms_not_ready_for_p2p",
    "faults",
    "refused_lines",
    "cannot_start",
    "needs_iommu",
    "needs_driver",
    "needs_nodes_at_boot",
)
_KEPT_OF_PCI = ("source", "host_bridge")


def narrow_facts(facts: dict[str, Any], loose: dict[str, Any], errors: list[dict[str, Any]]) -> None:
    """Take back what readers concluded from the silence of an excerpt. `loose`: of the manifest, {} of a capture."""
    partial = loose.get("partial") or ()
    log, pci = facts.get("kernel_log"), facts.get("pci")
    if log and log.get("findings") is not None and "kernel_log" in partial:
        log["by_kind"] = {kind: found or None for kind, found in log["by_kind"].items()}
        log.update({name: log[name] or None for name in _LOG_LISTS})
        _say(errors, "kernel_log", "dmesg", "only an excerpt was handed in, so what it does not show is unknown")
    if pci and "pci" in partial:
        pci.update({name: value or None for name, value in pci.items() if name not in _KEPT_OF_PCI})
        _say(errors, "pci", "lspci", "only a part of the bus was handed in")


def narrow_proxmox(facts: dict[str, Any], complete: bool, errors: list[dict[str, Any]]) -> None:
    """The same of a Proxmox host of which single guests are known."""
    if complete or not facts.get("is_proxmox"):
        return
    facts.update({name: facts[name] or None for name in _OF_GUESTS})
    _say(errors, "proxmox", "/etc/pve", "only single guests of this host were handed in")


def _say(errors: list[dict[str, Any]], subject: str, source: str, problem: str) -> None:
    errors.append({"subject": subject, "source": source, "problem": problem, "needs_root": False})
