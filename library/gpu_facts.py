#!/usr/bin/python
"""The gpu_facts module."""
from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_facts
short_description: Gather facts about the GPUs of a host and everything that decides whether they work together
description:
  - Reads the NVIDIA driver's tools, C(/proc), C(/sys), C(/dev), C(/etc/modprobe.d) and the kernel log in one read-only round trip.
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
  bundle:
    description:
      - A bundle on the controller to read instead of the host.
    type: path
  capture:
    description:
      - Return the evidence too, as the text of a bundle, in RV(bundle_text).
    type: bool
    default: false
author:
  - The gpu-host-validation authors
attributes:
  check_mode:
    support: full
    description: Changes nothing, ever.
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

import os
import socket

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host import bundle as bundles
from ansible.module_utils.gpu_host.evidence import Evidence, LiveEvidence
from ansible.module_utils.gpu_host.gather import gather

ARGUMENT_SPEC = {
    "gather_subset": {"type": "list", "elements": "str", "default": ["all"]},
    "bundle": {"type": "path"},
    "capture": {"type": "bool", "default": False},
}


def facts(evidence: Evidence, params: dict) -> dict:
    """The module's result for `evidence`; what the action plugin calls for a recorded host. ValueError: bad arguments."""
    result: dict = {"changed": False}
    recorder = bundles.RecordingEvidence(evidence) if params.get("capture") else None
    result["ansible_facts"] = {"gpu_host": gather(recorder or evidence, params.get("gather_subset") or ["all"])}
    if recorder:
        manifest = {"host": socket.gethostname(), "captured_at": evidence.now(), "uid": os.getuid(), "tool": "gpu_facts"}
        result["bundle_text"] = bundles.dump(manifest, recorder.records)
    return result


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    try:
        evidence = bundles.load(module.params["bundle"]) if module.params["bundle"] else LiveEvidence()
        module.exit_json(**facts(evidence, module.params))
    except ValueError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
