#!/usr/bin/python
"""The module_options module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: module_options
short_description: Write options of kernel modules to one drop-in file and compare them with the running modules
description:
  - Writes O(path) with one C(options) line a module and nothing else. Fails before it writes when another file or the
    kernel command line gives one of the options another value, and names the place.
  - Compares what is wanted with what the loaded modules run with, and names who uses the GPUs.
options:
  options:
    description: Options by module. A dictionary as a value is written the way that C(NVreg_RegistryDwords) is read.
    type: dict
    required: true
  path:
    description: The drop-in file.
    type: path
    default: /etc/modprobe.d/gpu-host-nvidia.conf
  server_units:
    description:
      - Name patterns of the services that serve models. Without it, those of the role inference_server and of the
        engines in C(module_utils/gpu_server/engines/).
    type: list
    elements: str
attributes:
  check_mode:
    support: full
    description: Says what it would write.
  diff_mode:
    support: full
    description: Shows the file before and after.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Switch HMM off
  module_options:
    options:
      nvidia_uvm: {uvm_disable_hmm: 1}
"""

RETURN = r"""
rows:
  description: For each option module, option, wanted, live, loaded, pending.
  returned: success
  type: list
pending:
  description: One line for each option that the running module does not have yet.
  returned: success
  type: list
reload:
  description: The loaded modules that must be unloaded, in order, for the options to take effect.
  returned: success
  type: list
in_use:
  description: Who uses the GPUs; see M(apt_plan).
  returned: success
  type: dict
initramfs:
  description: Whether this host builds its initramfs with update-initramfs, dracut, mkinitcpio, or not at all (empty).
  returned: success
  type: str
"""

import os
import tempfile

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import boot_images, gpu_users, module_options
from ansible.module_utils.gpu_server.engines import UNIT_NAMES


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "options": {"type": "dict", "required": True},
            "path": {"type": "path", "default": "/etc/modprobe.d/gpu-host-nvidia.conf"},
            "server_units": {"type": "list", "elements": "str"},
        },
        supports_check_mode=True,
    )
    wanted, path, patterns = module.params["options"], module.params["path"], module.params["server_units"]
    evidence, errors = LiveEvidence(), Errors("modules")
    bad = [name for name, options in wanted.items() if not isinstance(options, dict)]
    if bad:
        module.fail_json(msg="The options of %s are not a dictionary of option and value." % ", ".join(bad))
    try:
        text = module_options.render_options(wanted)
        problems = module_options.find_conflicts(evidence, errors, wanted, path)
    except module_options.OptionError as error:
        module.fail_json(msg="%s. Nothing was changed." % error)
    if problems:
        module.fail_json(
            msg="Another place decides: %s. Nothing was changed. Take the line out there, or make it say the same."
            % "; ".join(problems),
            conflicts=problems,
        )
    unknown = module_options.find_unknown_parameters(evidence, wanted)
    if unknown:
        module.fail_json(
            msg="%s, so the kernel would ignore it. Nothing was changed. `modinfo -p MODULE` lists what there is."
            % "; ".join(unknown)
        )
    before = evidence.read(path)
    if not before.ok and before.status != "absent":
        module.fail_json(msg="%s cannot be read: %s. Run with --become." % (path, before.reason or before.status))
    changed = before.text != text
    if changed and not module.check_mode:
        write(module, path, text)
    rows = module_options.compare_options(evidence, wanted)
    waiting = [row for row in rows if row["pending"]]
    result = {
        "rows": rows,
        "pending": [
            "%s %s is %s in the running module, %s is wanted"
            % (row["module"], row["option"], row["live"], row["wanted"])
            for row in waiting
        ],
        "reload": module_options.list_modules_to_reload(
            sorted({row["module"] for row in waiting}),
            [name for name in module_options.UNLOAD_ORDER if os.path.isdir("/sys/module/" + name)],
        ),
        "in_use": gpu_users.find_gpu_users(evidence, UNIT_NAMES if patterns is None else patterns),
        "initramfs": boot_images.find_builder(),
        "errors": errors.entries,
    }
    module.exit_json(
        changed=changed,
        diff={"before": before.text, "after": text, "before_header": path, "after_header": path},
        **result,
    )


def write(module: AnsibleModule, path: str, text: str) -> None:
    """Replace the file in one step, readable by all as modprobe.d files are."""
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=module.tmpdir)
        with os.fdopen(descriptor, "w") as handle:
            handle.write(text)
        os.chmod(temporary, 0o644)
        module.atomic_move(temporary, path)
    except OSError as error:
        module.fail_json(msg="%s cannot be written: %s. Run with --become." % (path, error.strerror or error))


if __name__ == "__main__":
    main()
