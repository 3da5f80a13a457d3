"""The module p2p_facts: P2P proven by bytes that are moved, and all-reduces over all GPUs."""

from __future__ import annotations

from typing import Any

from ..gpu_host import p2p_probe
from ..gpu_host.evidence import fact_module
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.probe import all_reduce, between_hosts, engine_all_reduce, one_at_a_time
from ..gpu_host.probe.worker_run import ProbeEvidence

# So that Ansible sends the child's package along.
from ..gpu_probe import collective, worker  # noqa: F401
from ..gpu_probe import engine_all_reduce as engine_program  # noqa: F401

ARGUMENT_SPEC = {
    "when_busy": {"type": "str", "choices": ["skip", "force"], "default": "skip"},
    "buffer_mib": {"type": "int", "default": 256},
    "time_limit": {"type": "int", "default": 180},
    "budget": {"type": "int", "default": 0},
    "init_limit": {"type": "int", "default": 60},
    "loopback": {"type": "bool", "default": False},
    "collective": {"type": "str", "choices": ["auto", "true", "false"], "default": "auto"},
    "python": {"type": "path"},
    "nccl_library": {"type": "path"},
    "engine_all_reduce": {"type": "bool", "default": False},
    "environment": {"type": "dict", "default": {}},
    "between_hosts": {"type": "dict"},
    **fact_module.ARGUMENTS,
}


def gather_facts(evidence: Evidence, params: dict[str, Any]) -> dict[str, Any]:
    """The module's result for `evidence`; what the action plugin calls for a recorded host."""

    def gather(seen: Evidence) -> dict[str, Any]:
        errors = Errors("probe")
        restrict, taken = getattr(evidence, "only_initialise", None), getattr(evidence, "taken", None)
        found = p2p_probe.gather(seen, params, errors, restrict, taken)
        return {**found, "errors": errors.entries}

    return fact_module.build_result("p2p_facts", "p2p_probe", evidence, params, gather)


def open_host(params: dict[str, Any]) -> ProbeEvidence:
    """The live host, on which the probe may run as `params` say. ValueError: bad arguments."""
    for name, least in (("buffer_mib", 1), ("time_limit", 5), ("init_limit", 1), ("budget", 0)):
        if params[name] < least:
            raise ValueError("%s must be at least %d, it is %d" % (name, least, params[name]))
    options = {"buffer_mib": params["buffer_mib"], "init_limit_s": params["init_limit"], "loopback": params["loopback"]}
    if params["engine_all_reduce"]:
        options["engine_all_reduce"] = True
    if params["budget"]:
        options["budget_s"] = params["budget"]
    if params["between_hosts"]:
        options["between_hosts"] = True
    evidence = ProbeEvidence(options, params["time_limit"], unanswered=params["unanswered"])
    evidence.taken = one_at_a_time.take_turn()
    environment = {str(name): str(value) for name, value in params["environment"].items()}
    evidence.commands[all_reduce.COLLECTIVE_COMMAND] = all_reduce.make_command(
        params["nccl_library"], params["python"], environment
    )
    evidence.commands[between_hosts.BETWEEN_COMMAND] = lambda: params["between_hosts"]
    evidence.commands[engine_all_reduce.ENGINE_COMMAND] = engine_all_reduce.make_command(params["python"], environment)
    return evidence
