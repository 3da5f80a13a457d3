#!/usr/bin/python
"""The gpu_facts module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Gather facts about the GPUs of a host and everything that decides whether they work together
description:
  - Reads the NVIDIA driver's tools, C(/proc), C(/sys), C(/dev), C(/etc/modprobe.d) and the kernel log in one read-only
    round trip.
  - Needs nothing but Python 3.9 on the host. Never fails because something is absent or unreadable; what could not be
    read is V(null) in the facts and explained in C(errors).
  - With O(bundle) the same facts come from a file that C(capture.yml) wrote, read on the controller.
options:
  gather_subset:
    description:
      - Subjects to gather. V(all) stands for every one, a leading V(!) leaves one out.
    type: list
    elements: str
    default: [all]
extends_documentation_fragment:
  - gpu_host
  - gpu_host.bundle
"""

EXAMPLES = r"""
- name: Gather all facts
  gpu_facts:

- name: Gather what P2P needs
  gpu_facts:
    gather_subset: [gpus, p2p, pci, iommu]

- name: Read a recorded host
  gpu_facts:
    bundle: bundles/gpu1.jsonl.gz
"""

RETURN = r"""
ansible_facts:
  description: The facts, under the one key C(gpu_host). docs/facts.md lists them.
  returned: always
  type: dict
bundle_text:
  description: The evidence as the text of a bundle.
  returned: when O(capture=true)
  type: str
"""

from ansible.module_utils.gpu_gather.gpu_facts import ARGUMENT_SPEC, open_host
from ansible.module_utils.gpu_gather.gpu_facts import gather_facts as facts
from ansible.module_utils.gpu_host.evidence import fact_module

if __name__ == "__main__":
    fact_module.run_module(ARGUMENT_SPEC, facts, open_host)
