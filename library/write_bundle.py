#!/usr/bin/python
"""Documentation of the write_bundle action; the code is plugins/action/write_bundle.py and runs on the controller."""

from __future__ import annotations

DOCUMENTATION = r"""
module: write_bundle
short_description: Write what gpu_facts recorded to a bundle file on the controller
description:
  - Takes the RV(ignore:bundle_text) of M(gpu_facts) with O(ignore:capture=true) and writes it compressed, mode 0600,
    whole or not at all.
  - Refuses a text that is no bundle.
options:
  text:
    description: The text of the bundle.
    type: str
    required: true
  dest:
    description: The file on the controller. Missing directories are made.
    type: path
    required: true
  anonymous:
    description:
      - Replace UUIDs, serial numbers, MAC and IP addresses and the name of the host, each by the same stand-in
        everywhere.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says whether the file would change and writes nothing.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Record the host
  gpu_facts:
    capture: true
  register: recorded

- name: Write the bundle
  write_bundle:
    text: "{{ recorded.bundle_text }}"
    dest: bundles/{{ inventory_hostname }}.jsonl.gz
"""

RETURN = r"""
dest:
  description: The file, as an absolute path.
  returned: always
  type: str
records:
  description: How many files, directories and commands the bundle holds.
  returned: always
  type: int
size_bytes:
  description: Its size.
  returned: always
  type: int
"""
