#!/usr/bin/python
"""Documentation of the remedy_run action; the code is plugins/action/remedy_run.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: remedy_run
short_description: Run the commands of a remedy
description:
  - Runs each command in bash, detached, and shows it with its last lines.
  - A command that only looks may fail; the first other one that fails ends the run, and the message says what was done.
  - A reboot is left out, for the playbook to do.
options:
  steps:
    description: The commands, as M(remedy_plan) returns them.
    type: list
    elements: dict
    required: true
  timeout:
    description: Seconds that one command may take.
    type: int
    default: 3600
  interval:
    description: Seconds between two lines that say how far a command is.
    type: int
    default: 10
attributes:
  check_mode:
    support: full
    description: Runs nothing.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Run the commands
  remedy_run:
    steps: "{{ remedy_planned.steps }}"
"""

RETURN = r"""
done:
  description: The commands that were run.
  returned: always
  type: list
reboot_left_out:
  description: Whether a reboot is among the commands.
  returned: success
  type: bool
"""
