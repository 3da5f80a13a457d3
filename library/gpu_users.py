#!/usr/bin/python
"""The gpu_users module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_users
short_description: Say who uses the GPUs of a host right now
description:
  - Looks for open NVIDIA device files in C(/proc/PID/fd), those of LXC containers included, and for active services
    that serve models.
options:
  server_units:
    description:
      - Name patterns of the services that serve models. Without it, those of the role inference_server and of the
        engines in C(module_utils/gpu_server/engines/).
    type: list
    elements: str
extends_documentation_fragment:
  - gpu_host
"""

EXAMPLES = r"""
- name: Look before a change
  gpu_users:
    server_units: ["sglang*.service"]
"""

RETURN = r"""
in_use:
  description:
    - users (pid, command, devices, unit, container), units, driver_services (they hold the devices and do no work),
      unreadable (processes that could not be looked at), text (one line for a person, empty when the GPUs are free).
  returned: success
  type: dict
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import gpu_users
from ansible.module_utils.gpu_server.engines import UNIT_NAMES


def main() -> None:
    module = AnsibleModule(
        argument_spec={"server_units": {"type": "list", "elements": "str"}}, supports_check_mode=True
    )
    patterns = module.params["server_units"]
    in_use = gpu_users.look(LiveEvidence(), UNIT_NAMES if patterns is None else patterns)
    module.exit_json(changed=False, in_use=in_use)


if __name__ == "__main__":
    main()
