#!/usr/bin/python
"""The apt_plan module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: apt_plan
short_description: Say what adding a package source and installing packages would do, and refuse beforehand
description:
  - Downloads the key of the source and compares its fingerprint, lets apt fetch and verify the source in a scratch
    directory, and lets apt work out the installation there. Nothing of the host is changed, in check mode or not.
  - Fails, with the reason and what to do, for an unsupported system, a wrong key, a source that cannot be reached or
    whose signature is refused, packages that are not to be had in the wanted branch, packages that must not come along,
    a step back that was not allowed, the removal of packages that do not belong, and a disk without room.
  - Where the files of the source and the packages are as wanted already, nothing is fetched.
  - Names who uses the GPUs, so that the caller can stop before it disturbs them.
options:
  systems:
    description: Table by system (V(debian12), V(ubuntu2404), V(pve9), V(rhel10)) of repository and package sets.
    type: dict
    required: true
  source:
    description: Whose packages; V(none) leaves the sources of the host as they are.
    type: str
    choices: [nvidia, distribution, none]
    default: nvidia
  repository:
    description: Overrides for the repository of the table; keys are uris, suites, components, key_url, fingerprints.
    type: dict
    default: {}
  package_set:
    description: Name of a package set of the table.
    type: str
    default: ""
  packages:
    description: Packages beside those of the set.
    type: list
    elements: str
    default: []
  headers:
    description: Whether to add the headers of the running kernel and of those to come.
    type: bool
    default: false
  version:
    description: A driver branch (V(580)) or an exact version (V(580.95.05)) of the managed packages.
    type: str
    default: ""
  managed:
    description: Name patterns of the packages that the pin, the hold and the version are about.
    type: list
    elements: str
    default: []
  exempt:
    description: Name patterns that O(managed) would take in by mistake.
    type: list
    elements: str
    default: []
  pin_path:
    description: Where the preferences go that keep other branches out; empty for no pin.
    type: str
    default: ""
  hold:
    description: Whether the managed packages are to be held. Left out, holds stay as they are.
    type: bool
  forbid:
    description: Name patterns of packages that must not be installed along.
    type: list
    elements: str
    default: []
  forbid_reason:
    description: What to tell the user about a forbidden package.
    type: str
    default: ""
  recommends:
    description: Whether recommended packages come along.
    type: bool
    default: false
  upgrade:
    description: Whether to look for a newer version that fits although the installed one does.
    type: bool
    default: false
  allow_downgrade:
    description: Whether the managed packages may go back to an older version.
    type: bool
    default: false
  download:
    description:
      - Whether to leave the scratch directory, and return in RV(plan) the command that downloads what the plan needs
        (download.argv). Whoever asks for it removes the directory (download.directory).
    type: bool
    default: false
  precompiled:
    description: Whether to take modules that are built already for the kernels of the distribution; with dnf only.
    type: bool
    default: false
  cuda_versions:
    description: CUDA toolkits to install, such as V(12.8); each adds its package and is compared with the driver.
    type: list
    elements: str
    default: []
  driver_version:
    description: The driver that runs on this host, for O(cuda_versions); empty if there is none.
    type: str
    default: ""
  refuse_runfile:
    description: Whether a driver of NVIDIA's .run installer is a reason to stop.
    type: bool
    default: false
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
- name: Plan the toolkit
  apt_plan:
    systems: "{{ nvidia_apt_systems }}"
    packages: [cuda-toolkit-12-8]
    forbid: ["nvidia-driver*"]
"""

RETURN = r"""
plan:
  description:
    - What would be done. steps (action, package, from, to), files (path, content) to write first, hold and unhold,
      packages, download (directory, argv), source_path, download_bytes, disk_bytes, installed_version,
      planned_version, changes, full_update, family, entry (of the table).
    - Where family is V(dnf), instead of the steps what would be asked of dnf - repository, needs, plugins, stream,
      packages, lock, lines.
  returned: success
  type: dict
summary:
  description: The plan in one line.
  returned: success
  type: str
headline:
  description: What happens to the packages, shorter.
  returned: success
  type: str
lines:
  description: The plan, a line a package.
  returned: success
  type: list
notes:
  description: What is worth knowing about the toolkits and the driver.
  returned: success
  type: list
system:
  description: key, label, distribution, codename, architecture and kernel of the host.
  returned: always
  type: dict
in_use:
  description: users (pid, command, devices, unit, container), units, driver_services, text (one line, empty when free).
  returned: success
  type: dict
"""

import ssl

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import apt_planning, gpu_users, toolkits
from ansible.module_utils.gpu_provision.systems import PlanError
from ansible.module_utils.gpu_server.engines import UNIT_NAMES
from ansible.module_utils.urls import open_url

KEY_LIMIT_BYTES = 1 << 20


def fetch(url: str) -> bytes:
    """The bytes at an address; file: addresses are files of the host."""
    if url.startswith("file:"):
        with open(url[len("file:") :].replace("//", "/"), "rb") as handle:
            return handle.read(KEY_LIMIT_BYTES)
    try:
        return open_url(url, timeout=30).read(KEY_LIMIT_BYTES)
    except ssl.SSLError as error:
        raise OSError("TLS: %s" % error) from error


def headline(plan: dict) -> str:
    """What happens to the packages."""
    before, after = plan.get("installed_version"), plan.get("planned_version")
    version = (
        "" if not after else "driver %s" % after if before == after else "driver %s -> %s" % (before or "none", after)
    )
    return ", ".join(part for part in (version, apt_planning.summarise_steps(plan.get("steps", []))) if part)


def one_line(plan: dict) -> str:
    """The plan for a person."""
    parts = [headline(plan)]
    if plan.get("download_bytes"):
        parts.append("%.1f MB to download" % (plan["download_bytes"] / 1e6))
    parts += ["write %s" % ", ".join(row["path"] for row in plan["files"])] if plan.get("files") else []
    parts += ["hold %d packages" % len(plan["hold"])] if plan.get("hold") else []
    parts += ["unhold %d packages" % len(plan["unhold"])] if plan.get("unhold") else []
    return "; ".join(part for part in parts if part) if plan.get("changes") else "nothing to do"


def main() -> None:
    text, flag, names = (
        {"type": "str", "default": ""},
        {"type": "bool", "default": False},
        {"type": "list", "elements": "str", "default": []},
    )
    module = AnsibleModule(
        argument_spec={
            "systems": {"type": "dict", "required": True},
            "source": {"type": "str", "choices": ["nvidia", "distribution", "none"], "default": "nvidia"},
            "repository": {"type": "dict", "default": {}},
            "package_set": text,
            "packages": names,
            "headers": flag,
            "version": text,
            "managed": names,
            "exempt": names,
            "pin_path": text,
            "hold": {"type": "bool"},
            "forbid": names,
            "forbid_reason": text,
            "recommends": flag,
            "upgrade": flag,
            "allow_downgrade": flag,
            "download": flag,
            "precompiled": flag,
            "cuda_versions": names,
            "driver_version": text,
            "refuse_runfile": flag,
            "server_units": {"type": "list", "elements": "str"},
        },
        supports_check_mode=True,
    )
    patterns = module.params["server_units"]
    planner = apt_planning.Planner(module.params, fetch)
    try:
        notes = toolkits.make_notes(module.params["cuda_versions"], module.params["driver_version"])
        module.params["packages"] = [
            *module.params["packages"],
            *(toolkits.package_name(version) for version in module.params["cuda_versions"]),
        ]
        plan = planner.plan()
    except PlanError as error:
        message = str(error)
        named = message.startswith(("apt ", "dpkg "))  # programs keep their own spelling
        module.fail_json(msg=message if named else message[0].upper() + message[1:], system=planner.system)
    module.exit_json(
        changed=False,
        plan=plan,
        notes=notes,
        summary=one_line(plan),
        headline=headline(plan),
        lines=plan.get("lines") or apt_planning.describe_steps(plan.get("steps", [])),
        system=planner.system,
        in_use=gpu_users.find_gpu_users(LiveEvidence(), UNIT_NAMES if patterns is None else patterns),
    )


if __name__ == "__main__":
    main()
