#!/usr/bin/python
"""Documentation of the remedy_outcome action; the code is plugins/action/remedy_outcome.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: remedy_outcome
short_description: Say whether a remedy helped
description:
  - Looks for the check in the results of a validation that followed the remedy, and fails unless it passes.
  - Says whether what is left takes a reboot, by what the facts say of it.
options:
  machine:
    description: The machine on which the remedy was carried out.
    type: str
    required: true
  reboot_left_out:
    description: Whether the remedy ends with a reboot that was left out.
    type: bool
    default: false
  pending:
    description: What a role said that waits for a reload or a reboot.
    type: list
    elements: str
    default: []
extends_documentation_fragment:
  - gpu_host
  - gpu_host.judged
"""

EXAMPLES = r"""
- name: Say what came of it
  remedy_outcome:
    check: uvm_hmm_disabled
    checks: "{{ host_validation_result.checks }}"
    machine: "{{ inventory_hostname }}"
"""

RETURN = r"""
passes:
  description: Whether the check passes now.
  returned: always
  type: bool
takes_reboot:
  description: Whether a reload or a reboot is left to be done.
  returned: always
  type: bool
"""
