#!/usr/bin/python
"""The host_facts module; the action of the same name reads recorded hosts and writes bundles."""

from __future__ import annotations

DOCUMENTATION = r"""
module: host_facts
short_description: Gather every kind of facts that the checks judge
description:
  - Gathers what M(gpu_facts) and, where they are wanted, M(proxmox_facts), M(p2p_facts) and M(inference_server_facts)
    gather, in one task and in one round trip. Only a probe that may take long (of more than two GPUs, or with the
    engine's own all-reduce) has a round trip of its own, which says how long it may take, and a server with a key.
  - With O(bundle) the same facts come from a file that C(capture.yml) wrote, read on the controller.
  - With O(capture_dest) everything that was read is written to a bundle on the controller.
options:
  gather_subset:
    description: Subjects of M(gpu_facts) to gather.
    type: list
    elements: str
    default: [all]
  bundle:
    description: A bundle on the controller to read instead of the host.
    type: path
  proxmox:
    description: Whether the guests of a Proxmox host are looked at. V(auto) goes by the host's evidence.
    type: str
    choices: [auto, 'true', 'false']
    default: auto
  probe:
    description:
      - Whether P2P is proven. V(auto) does so where the driver shows GPUs; for a recorded host, where its bundle holds
        a probe.
      - Only V(force) measures while something else works on the GPUs.
    type: str
    choices: [auto, 'true', 'false', force]
    default: auto
  probe_python:
    description: The Python whose environment holds the NCCL of the all-reduce.
    type: path
  probe_nccl:
    description: The libnccl.so.2 of the all-reduce, or its directory.
    type: path
  probe_engine_all_reduce:
    description: Whether the engine's own all-reduce is run too.
    type: bool
    default: false
  probe_environment:
    description: The environment of the all-reduce.
    type: dict
    default: {}
  probe_between_hosts:
    description: What M(between_hosts) measured of this host together with others.
    type: dict
  server:
    description:
      - Whether the inference server is looked at. V(auto) does so where a process on a GPU is named as one of a known
        engine, where the arguments name a server (O(server_unit), O(server_log), O(server_expected)), and for a
        recorded host. Where the name of a process on a GPU does not say what it runs (C(python3)), it is looked at if
        C(/proc) or a unit says that it is one. Where nothing holds a GPU, nothing more is run.
    type: str
    choices: [auto, 'true', 'false']
    default: auto
  server_unit:
    description: The systemd unit of the server.
    type: str
  server_log:
    description:
      - The log file of the server, where it is neither the journal nor the file that the process writes its output to.
    type: path
  server_api_key:
    description: The key of the server's API, if it wants one.
    type: str
  server_generate:
    description: Whether the server is asked for a short answer. V(idle) asks only where no request runs.
    type: str
    choices: [never, idle, always]
    default: idle
  server_expected:
    description: What the inventory means, C(gpu_host_expected.server).
    type: dict
    default: {}
  capture_dest:
    description:
      - The bundle to write on the controller, compressed, readable by its owner only, whole or not at all. Missing
        directories are made. Nothing is written in check mode.
    type: path
  capture_anonymous:
    description:
      - Replace UUIDs and other ids, serial numbers, MAC and IP addresses and the names of hosts, guests and users in
        the bundle, each by the same stand-in everywhere.
    type: bool
    default: false
  own_run:
    description: Whether the run is of this project's C(validate.yml), whose tags are those of the checks.
    type: bool
    default: false
  run_tags:
    description: The tags that the run was asked for or told to skip. With O(own_run), one that no check has ends it.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Changes nothing on the host; the probe runs work on idle GPUs all the same.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Gather facts
  host_facts:

- name: Gather facts of a Proxmox host, and leave its GPUs alone
  host_facts:
    proxmox: 'true'
    probe: 'false'

- name: Write what is read to a bundle
  host_facts:
    server: 'true'
    capture_dest: bundles/{{ inventory_hostname }}.jsonl.gz
"""

RETURN = r"""
ansible_facts:
  description:
    - The facts, under C(gpu_host) and, each where it was gathered, C(proxmox), C(p2p_probe) and C(inference_server).
  returned: always
  type: dict
dest:
  description: The bundle, as an absolute path.
  returned: with O(capture_dest)
  type: str
records:
  description: How many files, directories, commands and requests the bundle holds.
  returned: with O(capture_dest)
  type: int
size_bytes:
  description: Its size.
  returned: with O(capture_dest)
  type: int
summary:
  description: Sentences on what the bundle holds, for whoever sends it on.
  returned: with O(capture_dest)
  type: list
  elements: str
"""

from typing import Any

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.module_utils.gpu_gather import every_kind
from ansible.module_utils.gpu_host.evidence import caller, fact_module

ARGUMENT_SPEC = {**every_kind.ARGUMENT_SPEC, "left": {"type": "list", "elements": "str", "default": []}}


def load_kind(name: str) -> Any:
    """The code of one kind of facts; what is not wanted is not even read from the payload."""
    if name == "gpu_facts":
        from ansible.module_utils.gpu_gather import gpu_facts as kind  # noqa: PLC0415
    elif name == "p2p_facts":
        from ansible.module_utils.gpu_gather import p2p_facts as kind  # noqa: PLC0415
    elif name == "proxmox_facts":
        from ansible.module_utils.gpu_gather import proxmox_facts as kind  # noqa: PLC0415
    else:
        from ansible.module_utils.gpu_gather import inference_server_facts as kind  # noqa: PLC0415
    return kind


def ask_host(name: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """The result of the facts module `name` on this host."""
    kind = load_kind(name)
    validation = ArgumentSpecValidator(kind.ARGUMENT_SPEC).validate(arguments)
    try:
        if validation.error_messages:
            raise ValueError("; ".join(validation.error_messages))
        params = validation.validated_parameters
        found: dict[str, Any] = fact_module.gather_from(kind.open_host(params), kind.gather_facts, params)
    except ValueError as error:
        return {"failed": True, "msg": str(error)}
    return found


def gather_host(args: dict[str, Any], ask: every_kind.Ask = ask_host) -> dict[str, Any]:
    """The module's result, but for what `args` leave to other modules and for a probe that takes long."""

    def is_apart(name: str, gpu_host: dict[str, Any]) -> bool:
        return name in args["left"] or every_kind.takes_long(name, args, gpu_host)

    return every_kind.gather_every_kind(args, ask, is_apart)


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    caller.end_with_caller()
    result = gather_host(module.params)
    (module.fail_json if result.get("failed") else module.exit_json)(**result)


if __name__ == "__main__":
    main()
