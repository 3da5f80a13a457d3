#!/usr/bin/python
"""The p2p_facts module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: p2p_facts
short_description: Prove GPU peer-to-peer by moving and verifying bytes between every pair of GPUs
description:
  - For each directed pair of GPUs, what the driver claims, whether peer access can be enabled, whether the bytes that
    one GPU writes arrive in the other's memory (read back by their owner), how fast and with what latency, and the same
    with peer access off.
  - Also how fast each GPU exchanges data with the host's memory, alone and all at once, and what the links counted
    while each phase ran.
  - Needs Python 3.9 and the driver's C(libcuda.so.1) on the host, nothing else. Every CUDA call runs in a child process
    with a time limit; the module ends in bounded time and leaves nothing behind, whatever the driver does.
  - Uses the GPUs. Where something already works on them it only initialises CUDA and reads what the driver says of each
    pair, and RV(ansible_facts.p2p_probe.skipped_reason) says why.
options:
  when_busy:
    description:
      - V(skip) leaves GPUs alone on which a process runs, memory is in use or work is done. V(force) measures beside
        it.
    type: str
    choices: [skip, force]
    default: skip
  buffer_mib:
    description:
      - Size of the two buffers on each GPU; less is taken where less is free.
    type: int
    default: 256
  time_limit:
    description:
      - Seconds after which the probe stops, whatever it has measured.
    type: int
    default: 180
  budget:
    description:
      - Seconds for all phases of the probe together. V(0) takes them by the number of GPUs, so that 8 are measured
        within 30 seconds and 16 within 60. What a phase has no time for is unknown.
    type: int
    default: 0
  init_limit:
    description:
      - Seconds that cuInit may take before it counts as hung.
    type: int
    default: 60
  loopback:
    description:
      - Measure each GPU with itself too. A single GPU is always measured so.
    type: bool
    default: false
  collective:
    description:
      - Also run a checked all-reduce over all GPUs by NCCL's own library, one process per GPU as configured and with
        P2P off, and all GPUs in one process. V(auto) does so where C(libnccl.so.2) is found. No PyTorch is needed.
    type: str
    choices: [auto, 'true', 'false']
    default: auto
  python:
    description:
      - A Python whose environment holds the NCCL to use, such as the inference server's own. Nothing of it is run
        unless C(libnccl.so.2) does not lie where its packages usually do.
    type: path
  nccl_library:
    description:
      - The C(libnccl.so.2) to use, or its directory. Without this and O(python) it is looked for in running processes,
        in the environments that systemd units start, beside this host's Python, below C(/opt) and C(/srv), and where
        the loader looks.
      - One that belongs to another user is loaded as that user. One that somebody else could have written, or that is
        in a container, is only used if it is named.
    type: path
  engine_all_reduce:
    description:
      - Also run the engine's own all-reduce (the custom all-reduce of SGLang and vLLM) against the exact sum, by
        O(python) or a Python with such an engine that a systemd unit starts or that stands below C(/opt) or C(/srv).
        It imports PyTorch and the engine, which takes half a minute, and an engine may compile its kernels into its
        cache.
    type: bool
    default: false
  environment:
    description:
      - The environment of the all-reduce beyond the module's own, such as the server's NCCL_ variables.
    type: dict
    default: {}
  between_hosts:
    description:
      - What M(between_hosts) measured of this host together with others, to be kept in the facts and in a bundle.
    type: dict
attributes:
  check_mode:
    support: full
    description: Changes nothing on the host; runs work on idle GPUs all the same.
extends_documentation_fragment:
  - gpu_host.authors
  - gpu_host.bundle
"""

EXAMPLES = r"""
- name: Prove P2P
  p2p_facts:

- name: Measure beside a running server, with smaller buffers
  p2p_facts:
    when_busy: force
    buffer_mib: 64

- name: Include an all-reduce by the server's own NCCL and its settings
  p2p_facts:
    python: /opt/sglang/bin/python
    environment:
      NCCL_P2P_LEVEL: SYS
"""

RETURN = r"""
ansible_facts:
  description: The facts, under the one key C(p2p_probe). docs/facts.md lists them.
  returned: always
  type: dict
bundle_text:
  description: The evidence as the text of a bundle.
  returned: when O(capture=true)
  type: str
"""

from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence import fact_module
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import Evidence
from ansible.module_utils.gpu_host.probe import all_reduce, between_hosts, engine_all_reduce, one_at_a_time
from ansible.module_utils.gpu_host.probe.worker_run import ProbeEvidence

# So that Ansible sends the child's package along.
from ansible.module_utils.gpu_probe import collective, worker  # noqa: F401
from ansible.module_utils.gpu_probe import engine_all_reduce as engine_program  # noqa: F401

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


def facts(evidence: Evidence, params: dict) -> dict:
    """The module's result for `evidence`; what the action plugin calls for a recorded host."""

    def gather(seen: Evidence) -> dict:
        errors = Errors("probe")
        restrict, taken = getattr(evidence, "only_initialise", None), getattr(evidence, "taken", None)
        found = p2p_probe.gather(seen, params, errors, restrict, taken)
        return {**found, "errors": errors.entries}

    return fact_module.build_result("p2p_facts", "p2p_probe", evidence, params, gather)


def live(params: dict) -> ProbeEvidence:
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


if __name__ == "__main__":
    fact_module.run_module(ARGUMENT_SPEC, facts, live)
