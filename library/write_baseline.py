#!/usr/bin/python
"""Documentation of the write_baseline action; the code is plugins/action/write_baseline.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: write_baseline
short_description: Write the state of a host before a change to a file on the controller
description:
  - Writes JSON through a temporary file and a rename, readable by its owner only. Runs on the controller, and in check
    mode too.
  - This is what playbooks write down before they change a host. The known good state of a host, with which later runs
    are compared, is kept by O(run_checks#module:baseline) of M(run_checks) (docs/drift.md).
options:
  dest:
    description: The file.
    type: path
    required: true
  content:
    description: What was found.
    type: dict
    required: true
attributes:
  check_mode:
    support: full
    description: Nothing of a host is changed, ever.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Write down the state before the change
  write_baseline:
    dest: reports/baseline-{{ inventory_hostname }}.json
    content: "{{ {'facts': ansible_facts.gpu_host} }}"
"""

RETURN = r"""
dest:
  description: The file that was written.
  returned: success
  type: str
"""
