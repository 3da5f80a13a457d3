#!/usr/bin/python
"""The gpu_modules_reload module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: gpu_modules_reload
short_description: Unload and load NVIDIA's kernel modules in the right order
description:
  - Stops the driver's own services and, with O(stop_units), the services that serve; unloads the modules, users before
    what they use; loads them again; starts what it stopped.
  - A module that is in use stays; then what was unloaded is loaded again, the services are started, and RV(reloaded) is
    false with the reason. That is no failure, as a reboot does the same.
  - Never ends a process.
options:
  modules:
    description: The loaded modules that must go, in order; empty where none is in the way of those to load.
    type: list
    elements: str
    required: true
  load:
    description: The modules to load then, in order. Without it, those that went come back.
    type: list
    elements: str
  stop_units:
    description: Services to stop before and to start after.
    type: list
    elements: str
    default: []
attributes:
  check_mode:
    support: full
    description: Says what it would do.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Load nvidia_uvm anew
  gpu_modules_reload:
    modules: [nvidia_uvm]
"""

RETURN = r"""
reloaded:
  description: Whether the modules were loaded anew.
  returned: success
  type: bool
reason:
  description: Why not, in one sentence.
  returned: success
  type: str
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import reloading


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "modules": {"type": "list", "elements": "str", "required": True},
            "load": {"type": "list", "elements": "str"},
            "stop_units": {"type": "list", "elements": "str", "default": []},
        },
        supports_check_mode=True,
    )
    modules, units, load = module.params["modules"], module.params["stop_units"], module.params["load"]
    if module.check_mode or not (modules or load):
        module.exit_json(
            changed=bool(modules or load),
            reloaded=False,
            reason="check mode" if modules or load else "no module is loaded",
        )
    outcome = reloading.reload_modules(LiveEvidence(), modules, units, load)
    if outcome["failed"]:
        module.fail_json(msg=outcome["reason"], log=outcome["log"])
    module.exit_json(
        changed=outcome["touched"], reloaded=outcome["reloaded"], reason=outcome["reason"], log=outcome["log"]
    )


if __name__ == "__main__":
    main()
