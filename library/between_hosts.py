#!/usr/bin/python
"""The between_hosts module: what one host does of an all-reduce over several; plugins/action/between_hosts.py joins
them."""

from __future__ import annotations

DOCUMENTATION = r"""
module: between_hosts
short_description: Run a checked all-reduce by NCCL over the GPUs of several hosts
description:
  - Each host looks first (idle GPUs, the version of NCCL, the way to rank 0, its networks), then rank 0's host starts
    its ranks, then the others start theirs with the identifiers that rank 0 made, then the results are fetched and put
    together. C(playbooks/tasks/between_hosts.yml) calls the steps in this order on all hosts of a group.
  - The ranks run detached, end by themselves after a limit, and leave nothing behind.
  - Nothing is run where a GPU of one of the hosts works, where a host of the group is missing, or where a host's own
    probe did not run or found a fault.
options:
  step:
    description: The step.
    type: str
    choices: [look, first, others, fetch, join]
    required: true
  group:
    description: The group of the inventory whose hosts serve a model together, in the order of their ranks.
    type: str
    required: true
  address:
    description: The name or address of rank 0's host as the others see it.
    type: str
  python:
    description: A Python whose environment holds the NCCL to use.
    type: path
  nccl_library:
    description: The C(libnccl.so.2) to use, or its directory.
    type: path
  environment:
    description: The environment of the ranks, such as the server's NCCL_ variables.
    type: dict
    default: {}
  sizes:
    description:
      - Bytes of the all-reduces, multiples of four; without it, three or four that suit the slowest link.
    type: list
    elements: int
    default: []
  order:
    description: What the ranks of this host are to do. The action fills it in.
    type: dict
  meeting:
    description: Where rank 0's host says whether hosts reach one another. The action fills it in.
    type: dict
attributes:
  check_mode:
    support: full
    description: Changes nothing on the hosts; runs work on idle GPUs all the same.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Look at the host
  between_hosts:
    step: look
    group: glm
    address: gpu1
  register: between_hosts_look
"""

RETURN = r"""
look:
  description: What this host has for it.
  returned: with O(step=look)
  type: dict
directory:
  description: Where the ranks of this host tell how far they are.
  returned: with O(step=first) and O(step=others), where ranks were started
  type: str
identifiers:
  description: What NCCL made on rank 0, by arm.
  returned: with O(step=first)
  type: dict
problem:
  description: Why no ranks were started.
  returned: with O(step=first) and O(step=others)
  type: str
raw:
  description: The result of all hosts, as a bundle of this host holds it.
  returned: with O(step=join)
  type: dict
ansible_facts:
  description: C(p2p_probe) with C(between_hosts).
  returned: with O(step=join)
  type: dict
"""

import json
import os
import subprocess
import sys

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_host.probe import between_hosts, host_network, host_ranks, nccl_library  # noqa: F401
from ansible.module_utils.gpu_host.probe.worker_run import PACKAGES, read_signature

# So that Ansible sends the ranks' package along.
from ansible.module_utils.gpu_probe import collective, worker  # noqa: F401

# What stands in the archive is imported before root is given up: another user may not read it.
VERSION = """
import os, sys
sys.path.insert(0, sys.argv[1])
from gpu_probe.nccl import Nccl
if sys.argv[3:]:
    user, group = map(int, sys.argv[3:])
    os.setgroups([])
    os.setresgid(group, group, group)
    os.setresuid(user, user, user)
print(Nccl(sys.argv[2]).version())
"""
VERSION_SECONDS = 30
FIRST_SECONDS = 100.0
STEPS = ("look", "first", "others", "fetch", "join")
ARGUMENT_SPEC = {
    "step": {"type": "str", "choices": list(STEPS), "required": True},
    "group": {"type": "str", "required": True},
    "address": {"type": "str"},
    "python": {"type": "path"},
    "nccl_library": {"type": "path"},
    "environment": {"type": "dict", "default": {}},
    "sizes": {"type": "list", "elements": "int", "default": []},
    "order": {"type": "dict"},
    "meeting": {"type": "dict"},
}


def look_around(params: dict) -> dict:
    """``{gpus, busy, nccl: {path, source, owner, version, reason}, way, addresses, speeds, rdma}``."""
    gate = p2p_probe.check_idle(LiveEvidence(), Errors("between_hosts"))
    return {
        "gpus": [row["pci_address"] for row in read_signature()],
        "busy": gate["reason"],
        "nccl": find_nccl(params),
        "way": host_network.find_way(params["address"]),
        "addresses": host_network.list_addresses(),
        "speeds": host_network.read_link_speeds(),
        "rdma": host_network.read_rdma_ports(),
    }


def find_nccl(params: dict) -> dict:
    """The library and what it says of its version; a child loads it, as the user to whom it belongs."""
    found = {**nccl_library.find_library(params["nccl_library"], params["python"]), "version": None}
    if found["path"] is None:
        return found
    owner = [] if found["owner"] is None else [str(found["owner"]), str(os.stat(found["path"]).st_gid)]
    try:
        asked = subprocess.run(
            [sys.executable, "-I", "-c", VERSION, PACKAGES, found["path"], *owner],
            capture_output=True,
            timeout=VERSION_SECONDS,
            check=False,
            stdin=subprocess.DEVNULL,
        )
    except (OSError, subprocess.SubprocessError) as error:
        return {**found, "reason": str(error)}
    said = asked.stdout.decode("utf-8", "replace").strip().splitlines()[-1:]
    if asked.returncode or not said:
        told = asked.stderr.decode("utf-8", "replace").strip().splitlines()[-1:]
        return {**found, "reason": "%s: %s" % (found["path"], (told or ["exit status %d" % asked.returncode])[0])}
    return {**found, "version": said[0]}


def start_first(params: dict) -> dict:
    """Start rank 0's host: ``{directory, identifiers, port, problem}``."""
    directory = host_ranks.start_detached(params["order"])
    said = host_ranks.wait_for_file(
        directory, host_ranks.FIRST, FIRST_SECONDS, lambda: host_ranks.is_looked_at(directory)
    )
    found = {"directory": directory, "identifiers": {}, "port": None, "problem": "rank 0 made no identifier in time"}
    return {**found, **json.loads(said)} if said else found


def start_others(params: dict) -> dict:
    """Start another host, where it and rank 0's reach one another: ``{directory, problem}``."""
    meeting = params["meeting"]
    identifier = next((arm["identifier"] for arm in params["order"]["arms"] if arm["identifier"]), "")
    place = host_network.parse_meeting_place(bytes.fromhex(identifier))
    address = place[0] if place else params["address"]
    problem = host_ranks.find_meeting_problem(address, meeting["port"], params["order"]["token"])
    if problem:
        return {"directory": None, "problem": problem}
    return {"directory": host_ranks.start_detached(params["order"]), "problem": None}


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    params = module.params
    if params["step"] == "look":
        module.exit_json(changed=False, look=look_around(params))
    if params["step"] == "first":
        module.exit_json(changed=False, **start_first(params))
    if params["step"] == "others":
        module.exit_json(changed=False, **start_others(params))
    module.fail_json(msg="the step %s is done on the controller, by the action of the same name" % params["step"])


if __name__ == "__main__":
    main()
