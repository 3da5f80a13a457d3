#!/usr/bin/python
"""The proxmox_facts module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: proxmox_facts
short_description: Gather facts about a Proxmox VE host, its GPUs and the guests that use them
description:
  - Reads the configurations of all VMs and containers of the node, the command lines of the running QEMU processes, the
    boot loader's configuration, the GPUs and what makes their device nodes. Read-only, one round trip.
  - Needs nothing but Python 3.9 on the host, and root for most of it. Never fails because something is absent or
    unreadable; what could not be read is V(null) in the facts and explained in C(errors).
  - On a host that is no Proxmox VE, C(is_proxmox) is V(false) and everything else V(null).
extends_documentation_fragment:
  - gpu_host
  - gpu_host.bundle
"""

EXAMPLES = r"""
- name: Gather what a Proxmox host knows of its GPUs
  proxmox_facts:
  become: true

- name: Name the VMs whose GPUs cannot reach one another
  ansible.builtin.debug:
    var: ansible_facts.proxmox.vms_not_ready_for_p2p
"""

RETURN = r"""
ansible_facts:
  description: The facts, under the one key C(proxmox). docs/facts.md lists them.
  returned: always
  type: dict
bundle_text:
  description: The evidence as the text of a bundle.
  returned: when O(capture=true)
  type: str
"""

from ansible.module_utils.gpu_gather.proxmox_facts import ARGUMENT_SPEC, open_host
from ansible.module_utils.gpu_gather.proxmox_facts import gather_facts as facts
from ansible.module_utils.gpu_host.evidence import fact_module

if __name__ == "__main__":
    fact_module.run_module(ARGUMENT_SPEC, facts, open_host)
