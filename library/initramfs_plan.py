#!/usr/bin/python
"""The initramfs_plan module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: initramfs_plan
short_description: Say which initramfs must be built anew, and by which commands
description:
  - An initramfs is to be built anew where it is older than one of O(files), or where an earlier run did not come to the
    end of the step. So a step that failed or was killed is done by the next run.
  - Knows update-initramfs, dracut and mkinitcpio, and proxmox-boot-tool where it manages the boot partitions.
  - Runs none of the commands. Where there are some, it leaves a mark in C(/var/lib/gpu-host), which a later call with
    O(finished) takes away.
options:
  files:
    description: The files that each initramfs must hold as they are now. One that is not there asks for nothing.
    type: list
    elements: path
    required: true
  changing:
    description: Whether one of the files is about to change, which check mode has to be told.
    type: bool
    default: false
  finished:
    description:
      - The commands were run. Fails where an initramfs is still older than one of the files; else takes the mark away.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Leaves no mark.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Look whether each initramfs holds the options
  initramfs_plan:
    files: [/etc/modprobe.d/gpu-host-nvidia.conf]
"""

RETURN = r"""
builder:
  description: update-initramfs, dracut, mkinitcpio, or empty.
  returned: success
  type: str
images:
  description: The images that the builder makes on this host.
  returned: success
  type: list
stale:
  description: Those to be built anew.
  returned: success
  type: list
because:
  description: Why, as the end of a sentence; empty where nothing is to be done.
  returned: success
  type: str
inclusions:
  description: Files to write before (path, content), so that the builder takes O(files) along; dracut alone needs them.
  returned: success
  type: list
commands:
  description: What to run, in order; each with label and argv.
  returned: success
  type: list
"""

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_provision import boot_images


def main() -> None:
    module = AnsibleModule(
        argument_spec={
            "files": {"type": "list", "elements": "path", "required": True},
            "changing": {"type": "bool", "default": False},
            "finished": {"type": "bool", "default": False},
        },
        supports_check_mode=True,
    )
    files = module.params["files"]
    try:
        if module.params["finished"] and not module.check_mode:
            boot_images.finish_builds(files)
        plan = boot_images.plan_builds(files, module.params["changing"] and module.check_mode)
        if plan["commands"] and not module.check_mode:
            boot_images.begin_builds(files, plan["because"])
    except boot_images.BuildError as error:
        module.fail_json(msg="%s. A module that is loaded from it comes up without what the files say." % error)
    except OSError as error:
        module.fail_json(msg="%s: %s. Run with --become." % (error.filename or boot_images.MARK, error.strerror))
    module.exit_json(changed=False, **plan)


if __name__ == "__main__":
    main()
