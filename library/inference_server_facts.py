#!/usr/bin/python
"""The inference_server_facts module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: inference_server_facts
short_description: Say whether an inference server serves, starts, is stuck or has failed, on which settings, and why
description:
  - Finds the server of a host (of an engine in C(module_utils/gpu_server/engines/)) by its processes or its unit,
    and reads its live arguments and environment, its ranks and their GPUs, its log since the last start, its HTTP
    API, and what is installed beside its Python.
  - Needs nothing but Python 3.9 on the host. Never fails because something is absent or unreadable; what could not be
    read is V(null) in the facts and explained in C(errors).
  - Reads only. With O(generate) it also asks the server for one short answer, twice.
options:
  unit:
    description:
      - The systemd unit of the server, or the name or id of its container. Without it, the unit of the process that is
        found, or one whose name says so.
    type: str
  port:
    description:
      - The port of the server, where several run.
    type: int
  log:
    description:
      - The log file, where it is neither the journal nor the file that the process writes its output to.
    type: path
  api_key:
    description:
      - The key of the API, if it wants one. It is sent to the server and kept nowhere.
    type: str
  generate:
    description:
      - Whether the server is asked for an answer. V(idle) asks only where no request runs.
    type: str
    choices: [never, idle, always]
    default: idle
  expected_text:
    description:
      - A regular expression that the answer to "The capital of France is" must match.
    type: str
  expected:
    description:
      - What the inventory means, C(gpu_host_expected.server); O(expected) C(arguments) and C(environment) are compared
        with the process.
    type: dict
    default: {}
  patience_scale:
    description:
      - Factor on the times after which a phase of a start that shows nothing new counts as stuck.
    type: float
    default: 1.0
  light:
    description:
      - Leave out what does not change during a start, for a look every few seconds.
    type: bool
    default: false
  outside_containers:
    description:
      - Whether processes of LXC containers are left out, which a Proxmox host sees beside its own; a container's server
        is judged in the container.
    type: bool
    default: false
  only_if_found:
    description:
      - Gather nothing (V(null)) where neither a process nor a unit says that a server is there.
    type: bool
    default: false
extends_documentation_fragment:
  - gpu_host
  - gpu_host.bundle
"""

EXAMPLES = r"""
- name: Is the server up, really serving, on the settings that are meant?
  inference_server_facts:
    unit: inference-server.service
    expected: "{{ gpu_host_expected.server }}"

- name: A server that was started by hand
  inference_server_facts:
    log: /root/sglang.log
"""

RETURN = r"""
ansible_facts:
  description:
    - The facts, under the one key C(inference_server). docs/facts.md lists them.
    - V(null) where a bundle holds nothing of a server.
  returned: always
  type: dict
bundle_text:
  description: The evidence as the text of a bundle.
  returned: when O(capture=true)
  type: str
"""

from ansible.module_utils.gpu_gather.inference_server_facts import ARGUMENT_SPEC, open_host
from ansible.module_utils.gpu_gather.inference_server_facts import gather_facts as facts
from ansible.module_utils.gpu_host.evidence import fact_module

if __name__ == "__main__":
    fact_module.run_module(ARGUMENT_SPEC, facts, open_host)
