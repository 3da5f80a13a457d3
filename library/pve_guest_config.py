#!/usr/bin/python
"""The pve_guest_config module."""

from __future__ import annotations

DOCUMENTATION = r"""
module: pve_guest_config
short_description: Give a VM or a container of a Proxmox host its GPUs
description:
  - Changes only what belongs to NVIDIA GPUs. In a VM C(machine) (if asked), the C(hostpciN) lines of GPUs and the
    clique words of C(args) (if asked). In a container the C(devN) lines of NVIDIA's nodes, and hand-written C(lxc.*)
    lines for them, which it removes.
  - Everything goes through C(qm set) and C(pct set) with the configuration's digest, so a configuration that another
    process changed meanwhile is left alone. Only C(lxc.*) lines are removed from the file itself, under Proxmox's lock,
    by a rename.
  - Keeps a copy of the configuration before the first change. Never stops a guest unless O(restart=true).
  - Must run as root on the node that has the guest.
options:
  vmid:
    description: The number of the guest.
    type: int
    required: true
  type:
    description: Whether it is a VM or a container.
    type: str
    choices: [vm, lxc]
    required: true
  gpus:
    description:
      - PCI addresses of the GPUs that the guest shall have, and no others. V(all) stands for every NVIDIA GPU of the
        host.
      - An empty list takes all of them away.
    type: list
    elements: str
    required: true
  machine:
    description:
      - The machine type of a VM, such as V(q35). A version that is pinned (C(pc-q35-9.2)) stays.
      - The default leaves it alone.
    type: str
  pcie:
    description: Whether a VM's GPUs are attached to the PCI Express bus, which needs Q35.
    type: bool
    default: true
  clique:
    description:
      - The GPUDirect clique of a VM's GPUs, V(0) to V(15). V(keep) leaves C(args) alone, V(remove) takes the grant
        away.
      - The grant makes the driver answer OK without looking. Use it only where a probe has verified the bytes.
    type: str
    default: keep
  mode:
    description: The mode of a container's device nodes. An empty text leaves it to Proxmox (0660, root only).
    type: str
    default: "0666"
  extra_nodes:
    description: More device nodes for a container, such as those of MIG in C(/dev/nvidia-caps).
    type: list
    elements: str
    default: []
  backup_dir:
    description: Where copies of changed configurations are kept.
    type: path
    default: /var/backups/gpu-host
  restart:
    description: Stop and start a running guest whose change waits for it.
    type: bool
    default: false
attributes:
  check_mode:
    support: full
    description: Says what would change.
  diff_mode:
    support: full
    description: Shows the settings before and after.
extends_documentation_fragment:
  - gpu_host.authors
"""

EXAMPLES = r"""
- name: Give the VM four GPUs on Q35
  pve_guest_config:
    vmid: 101
    type: vm
    machine: q35
    gpus: ["0000:01:00.0", "0000:11:00.0", "0000:61:00.0", "0000:71:00.0"]

- name: Give the container all GPUs
  pve_guest_config:
    vmid: 102
    type: lxc
    gpus: [all]
"""

RETURN = r"""
commands:
  description: What was run, or would be, as one would type it.
  returned: always
  type: list
  elements: str
backup:
  description: The copy of the configuration before the change.
  returned: when something changed
  type: str
restart_needed:
  description: Whether the running guest still has to be stopped and started.
  returned: always
  type: bool
restart_reasons:
  description: What waits for the restart.
  returned: always
  type: list
  elements: str
restart_command:
  description: The command that stops and starts the guest, or starts it where it does not run.
  returned: always
  type: str
restarted:
  description: Whether the module stopped and started the guest.
  returned: always
  type: bool
"""

import shlex

from ansible.module_utils.basic import AnsibleModule
from ansible.module_utils.gpu_host.evidence import secrets
from ansible.module_utils.gpu_host.evidence.interface import Evidence
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_host.proxmox import gather_host
from ansible.module_utils.gpu_host.pve import guest_config
from ansible.module_utils.gpu_host.pve.card_claims import label_claim
from ansible.module_utils.gpu_host.pve.vm_config import parse_address
from ansible.module_utils.gpu_provision import pve_apply, pve_plan

ARGUMENT_SPEC = {
    "vmid": {"type": "int", "required": True},
    "type": {"type": "str", "choices": ["vm", "lxc"], "required": True},
    "gpus": {"type": "list", "elements": "str", "required": True},
    "machine": {"type": "str"},
    "pcie": {"type": "bool", "default": True},
    "clique": {"type": "str", "default": "keep"},
    "mode": {"type": "str", "default": "0666"},
    "extra_nodes": {"type": "list", "elements": "str", "default": []},
    "backup_dir": {"type": "path", "default": "/var/backups/gpu-host"},
    "restart": {"type": "bool", "default": False},
}


def wanted_gpus(names: list, facts: dict) -> list:
    """The addresses that `gpus` means, each with its function; ValueError where one is no GPU of this host."""
    cards = facts["gpus"]
    if cards is None:
        raise ValueError(
            "the GPUs of this host are unknown: %s"
            % "; ".join("%(source)s %(problem)s" % entry for entry in facts["errors"][:3])
        )
    if names == ["all"]:
        if not cards:
            raise ValueError("this host has no NVIDIA GPU to give")
        return sorted(cards)
    found = []
    for name in names:
        parsed = parse_address(name)
        place = "%s.%d" % (parsed[0], parsed[1] or 0) if parsed else name
        if place not in cards:
            raise ValueError("%s is no NVIDIA GPU of this host; it has %s" % (name, ", ".join(sorted(cards)) or "none"))
        if place in found:
            raise ValueError("%s is named twice" % name)
        found.append(place)
    return found


def refuse_two_owners(gpus: list, vmid: str, kind: str, facts: dict) -> None:
    """ValueError where a guest that runs, or starts at boot, has one of the cards and cannot share it."""
    for place in gpus:
        for claim in facts["gpus"][place]["claimed_by"]:
            shared = kind == "lxc" and claim["type"] == "lxc"
            if claim["vmid"] != vmid and not shared and (claim["running"] or claim["onboot"]):
                text = (
                    "%s belongs to %s. Take it from there first (give that guest `gpus` without it, listed before "
                    "this one), or stop that guest."
                )
                raise ValueError(text % (place, label_claim(claim)))


def plan(params: dict, facts: dict, text: str) -> pve_plan.Plan:
    """What must change; ValueError says why it cannot."""
    vmid, kind = str(params["vmid"]), params["type"]
    gpus = wanted_gpus(params["gpus"], facts)
    refuse_two_owners(gpus, vmid, kind, facts)
    config = guest_config.parse_config(text, kind)
    if kind == "vm":
        clique = params["clique"]
        if clique not in ("keep", "remove") and not (clique.isdigit() and int(clique) <= 15):
            raise ValueError("clique is keep, remove or a number from 0 to 15, not %r" % clique)
        entries = facts["vms"].get(vmid, {}).get("next_start", {}).get("hostpci", [])
        number = int(clique) if clique.isdigit() else None
        return pve_plan.plan_vm(
            config,
            entries,
            gpus,
            machine=params["machine"],
            pcie=params["pcie"],
            clique=number,
            remove_clique=clique == "remove",
        )
    driver = facts["driver"]
    missing = [place for place in gpus if place not in driver["minors"]]
    if missing:
        bound = ", ".join("%s (%s)" % (place, facts["gpus"][place]["driver"] or "no driver") for place in missing)
        text = (
            "the host's nvidia driver does not have %s; a container needs it there. Load the driver, and free the "
            "card from vfio-pci."
        )
        raise ValueError(text % bound)
    nodes = pve_plan.container_nodes([driver["minors"][place] for place in gpus], params["extra_nodes"] if gpus else ())
    majors = driver["majors"] or {}
    return pve_plan.plan_container(
        config, nodes, params["mode"] or None, set(majors.values()) | {195}, driver["known_majors"] or []
    )


def shown(text: str, kind: str, change: pve_plan.Plan) -> dict:
    """The settings that change, before and after, for --diff."""
    config = guest_config.parse_config(text, kind)
    settings = config.current.settings()
    keys = sorted({*change.set, *change.delete})
    dropped = [line.text.rstrip("\n") for line in config.current.lines if line.number in change.drop_lines]
    before = ["%s: %s" % (key, settings[key]) for key in keys if key in settings] + dropped
    after = ["%s: %s" % (key, change.set[key]) for key in keys if key in change.set]
    # An `args` line may hold a secret of its own.
    before, after = secrets.redact_strings(before), secrets.redact_strings(after)
    return {"before": "".join(line + "\n" for line in before), "after": "".join(line + "\n" for line in after)}


def configure(params: dict, check_mode: bool, evidence: Evidence, guest: pve_apply.Guest) -> dict:
    """The module's result. ValueError (ApplyError, PlanError) where nothing was, or could be, done."""
    # The text first: should the file change while the facts are gathered, its digest no longer fits and nothing is
    # written.
    text = guest.text()
    facts = gather_host(evidence)
    if not facts["is_proxmox"]:
        raise ValueError("this is no Proxmox VE host: there is no /etc/pve")
    change = plan(params, facts, text)
    result: dict = {"changed": change.changes, "commands": [], "restarted": False}
    result["diff"] = {"before_header": guest.path, "after_header": guest.path, **shown(text, guest.kind, change)}
    tool = pve_apply.TOOLS[guest.kind]
    if change.arguments():
        command = shlex.join([tool, "set", guest.vmid, *change.arguments()])
        result["commands"].append(secrets.redact_strings(command))
    if change.drop_lines:
        result["commands"].append(
            "sed -i '%s' %s" % ("; ".join("%dd" % number for number in change.drop_lines), guest.path)
        )
    if change.changes and not check_mode:
        result["backup"] = guest.backup(params["backup_dir"], text)
        if change.arguments():
            guest.configure(change.arguments(), text)
        if change.drop_lines:
            now = guest.text()
            lines = plan(params, facts, now).drop_lines
            guest.replace(now, guest_config.without_lines(guest_config.parse_config(now, guest.kind), lines))
        facts = gather_host(evidence)
    entry = (facts["vms"] if guest.kind == "vm" else facts["containers"] or {}).get(guest.vmid, {})
    reasons = list(entry.get("restart_pending") or [])
    if check_mode and change.changes and entry.get("running"):
        reasons += [line for line in result["diff"]["after"].splitlines() if line]
    result.update(restart_needed=bool(reasons), restart_reasons=reasons)
    result["restart_command"] = entry.get("restart_command", "%s start %s" % (tool, guest.vmid))
    start = entry.get("start") or {}
    if reasons and params["restart"] and not check_mode and start.get("starts") is False:
        text = (
            "%s: the configuration is written, and the guest was not stopped, because Proxmox would not start it "
            "again: %s"
        )
        raise ValueError(text % (guest.path, start["error"]))
    if reasons and params["restart"] and not check_mode:
        result["commands"] += [" ".join(command) for command in guest.restart()]
        result.update(changed=True, restarted=True, restart_needed=False)
    return result


def main() -> None:
    module = AnsibleModule(argument_spec=ARGUMENT_SPEC, supports_check_mode=True)
    guest = pve_apply.Guest(module.params["type"], str(module.params["vmid"]))
    try:
        module.exit_json(**configure(module.params, module.check_mode, LiveEvidence(), guest))
    except ValueError as error:
        module.fail_json(msg=str(error))


if __name__ == "__main__":
    main()
