"""The module proxmox_facts: a Proxmox VE host and its guests."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import fact_module
from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.evidence.live import LiveEvidence
from ..gpu_host.evidence.sides import choose_proxmox_side
from ..gpu_host.proxmox import gather_host

ARGUMENT_SPEC = fact_module.ARGUMENTS


def gather_facts(evidence: Evidence, params: dict[str, Any]) -> dict[str, Any]:
    """The module's result for `evidence`; what the action plugin calls for a recorded host."""
    return fact_module.build_result(
        "proxmox_facts", "proxmox", evidence, params, lambda seen: gather_host(choose_proxmox_side(seen))
    )


def open_host(params: dict[str, Any]) -> LiveEvidence:
    """The live host."""
    return LiveEvidence(unanswered=params["unanswered"])
