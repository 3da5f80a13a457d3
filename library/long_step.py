#!/usr/bin/python
"""Documentation of the long_step action; the code is plugins/action/long_step.py."""

from __future__ import annotations

DOCUMENTATION = r"""
module: long_step
short_description: Run a command that takes minutes and show that it progresses
description:
  - Runs detached from the connection, prints a line with the elapsed time and the command's last line every O(interval)
    seconds, and fails with the lines that say why.
options:
  argv:
    description: The command and its arguments; no shell.
    type: list
    elements: str
    required: true
  label:
    description: What the step is, for its progress lines and messages.
    type: str
    required: true
  environment:
    description: Environment variables for the command.
    type: dict
    default: {}
  timeout:
    description: Seconds after which the command is stopped.
    type: int
    default: 3600
  interval:
    description: Seconds between progress lines.
    type: int
    default: 10
  hint:
    description: What to tell the user when it fails.
    type: str
    default: ""
attributes:
  check_mode:
    support: full
    description: Says what it would run.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Rebuild the initramfs of all kernels
  long_step:
    label: initramfs
    argv: [update-initramfs, -u, -k, all]
"""

RETURN = r"""
rc:
  description: Exit code.
  returned: not in check mode
  type: int
seconds:
  description: How long it took.
  returned: not in check mode
  type: float
stdout:
  description: The last 6000 bytes of output.
  returned: not in check mode
  type: str
"""
