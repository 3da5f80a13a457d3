"""The module inference_server_facts: the inference server of a host."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence import fact_module
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from ..gpu_server.gather import gather
from ..gpu_server.nccl_job import ServerEvidence

ARGUMENT_SPEC = {
    "unit": {"type": "str"},
    "port": {"type": "int"},
    "log": {"type": "path"},
    "api_key": {"type": "str", "no_log": True},
    "generate": {"type": "str", "choices": ["never", "idle", "always"], "default": "idle"},
    "expected_text": {"type": "str"},
    "expected": {"type": "dict", "default": {}},
    "patience_scale": {"type": "float", "default": 1.0},
    "light": {"type": "bool", "default": False},
    "only_if_found": {"type": "bool", "default": False},
    "outside_containers": {"type": "bool", "default": False},
    **fact_module.ARGUMENTS,
}


def gather_facts(evidence: Evidence, params: dict[str, Any]) -> dict[str, Any]:
    """The module's result for `evidence`; what the action plugin calls for a recorded host."""

    def gathered(seen: Evidence) -> dict[str, Any] | None:
        errors = Errors("server")
        found = gather(seen, params, errors)
        return None if found is None else {**found, "errors": errors.entries}

    return fact_module.build_result("inference_server_facts", "inference_server", evidence, params, gathered)


def open_host(params: dict[str, Any]) -> ServerEvidence:
    """The live host, whose server may be asked."""
    return ServerEvidence(unanswered=params["unanswered"])
