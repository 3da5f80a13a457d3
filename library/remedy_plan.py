#!/usr/bin/python
"""Documentation of the remedy_plan action; the code is plugins/action/remedy_plan.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: remedy_plan
short_description: Plan the remedy of a check on a host
description:
  - Finds the result of the check, and says what its remedy would do on which machine, what that stops, and whether it
    may be done.
  - Runs on the controller and changes nothing.
options:
  checks_dir:
    description: The directory of the checks. The default is C(checks) of this project.
    type: path
extends_documentation_fragment:
  - gpu_host
  - gpu_host.judged
"""

EXAMPLES = r"""
- name: Plan the remedy
  remedy_plan:
    check: uvm_hmm_disabled
    checks: "{{ host_validation_result.checks }}"
"""

RETURN = r"""
state:
  description: V(ready), V(role), V(nothing), V(refused) or V(told); see C(module_utils/gpu_checks/remedy_plan.py).
  returned: success
  type: str
message:
  description: Why it is not ready.
  returned: success
  type: str
lines:
  description: What is shown before anything runs.
  returned: success
  type: list
machine:
  description: The machine on which it is done.
  returned: success
  type: str
disrupts:
  description: What it stops.
  returned: success
  type: str
steps:
  description: The commands, each with whether it only looks and whether it reboots.
  returned: success
  type: list
role:
  description: The role that does the same, with RV(settings).
  returned: success
  type: str
settings:
  description: The variables for the role.
  returned: success
  type: dict
"""
