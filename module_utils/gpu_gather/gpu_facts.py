"""The module gpu_facts: everything on a host that decides whether its GPUs work together."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import fact_module
from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.evidence.live import LiveEvidence
from ..gpu_host.gather import gather

ARGUMENT_SPEC = {
    "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
    **fact_module.ARGUMENTS,
}


def gather_facts(evidence: Evidence, params: dict[str, Any]) -> dict[str, Any]:
    """The module's result for `evidence`; what the action plugin calls for a recorded host.

    ValueError: bad arguments.
    """
    subset = params.get("gather_subset") or ["all"]
    return fact_module.build_result("gpu_facts", "gpu_host", evidence, params, lambda seen: gather(seen, subset))


def open_host(params: dict[str, Any]) -> LiveEvidence:
    """The live host."""
    return LiveEvidence(unanswered=params["unanswered"])
