"""What remedy.yml does about one check on one host, from the check's result and the host's facts. Nothing runs here.

A plan is a plain dictionary::

    {state: ready | role | nothing | refused | told,
     message: why it is not ready, for a person,
     lines: what is shown before anything runs,
     machine: the inventory's name of the machine on which it is done,
     disrupts: one of rules.DISRUPTIONS,
     role, settings: where a role does it,
     steps: [{command, looks, reboots}]}

`ready`: the commands can be run. `role`: a role does it, with `settings`. `nothing`: there is nothing to mend.
`refused`: it must not be done now. `told`: it is for a person to do, and `message` says why.
"""

from __future__ import annotations

import difflib
from collections.abc import Collection, Iterable, Mapping
from typing import Any

from . import remedy_commands

Facts = Mapping[str, Any]
# Role -> the playbook and its arguments that run it on a host.
PLAYBOOKS = {
    "nvidia_module_options": "provision.yml -b -l %s --tags module_options",
    "nvidia_driver": "provision.yml -b -l %s --tags driver",
    "cuda_toolkit": "provision.yml -b -l %s --tags cuda",
    "inference_server": "provision.yml -b -l %s --tags server",
    "proxmox_passthrough": "proxmox.yml -b -l %s",
    "pci_acs": "pci_acs.yml -b -l %s",
}
_STOPS = {
    "reboot": "everything that runs on {machine}: the remedy takes a reboot",
    "guest": "the guest, and everything in it",
    "server": "the inference server; requests that run are lost",
    "gpus": "every process that uses a GPU of {machine}",
    "nothing": "nothing",
}


def plan_remedy(
    check: str, results: Iterable[Facts], host: Facts, name: str, known: Collection[str], machines: Collection[str]
) -> dict[str, Any]:
    """The plan for the remedy of `check` on the host `name`.

    `known` are the ids of all checks, `machines` the hosts of the inventory, `host` what a check sees under that name.
    """
    if check not in known:
        near = difflib.get_close_matches(check, list(known), n=3)
        nearest = "the nearest are %s" % ", ".join(near) if near else "docs/checks.md lists them"
        return _end("refused", "No check has the id '%s'; %s." % (check, nearest))
    result = next((result for result in results if result["id"] == check), None)
    if result is None:
        return _end("refused", "%s was not among the checks of this run: leave out what chooses checks." % check)
    status = str((result.get("waiver") or {}).get("status") or result["status"])
    if status in ("pass", "skip"):
        why = "passes on %s" % name if status == "pass" else "does not apply to %s: %s" % (name, result["reason"])
        return _end("nothing", "%s %s. There is nothing to do." % (check, why))
    if status != "fail":
        why = "An unknown value is no reason to change a host." if status == "unknown" else "No verdict, no change."
        return _end("refused", "%s is %s on %s: %s. %s" % (check, status, name, str(result["reason"]).rstrip("."), why))
    remedy = result.get("remedy")
    if not remedy:
        return _end("told", "No remedy of %s fits %s; see %s." % (check, name, result["docs"]))
    return _plan_of_failure(result, remedy, host, name, machines)


def _plan_of_failure(result: Facts, remedy: Facts, host: Facts, name: str, machines: Collection[str]) -> dict[str, Any]:
    machine, problem = _find_machine(remedy, host, name, machines)
    steps = [
        {
            "command": command,
            "looks": not remedy_commands.find_changes(command),
            "reboots": remedy_commands.find_disruption(command) == "reboot",
        }
        for command in remedy["commands"]
    ]
    plan = {
        **_end("ready", ""),
        "machine": machine or name,
        # Commands of a check that does not say what they stop: the least that a change may be suspected of.
        "disrupts": remedy.get("disrupts") or ("nothing" if all(step["looks"] for step in steps) else "gpus"),
        "steps": steps,
        "role": remedy.get("role") or "",
        "settings": remedy.get("settings"),
    }
    plan["lines"] = _lines(result, remedy, plan, name, machine)
    told = _for_a_person(remedy, plan, name, machine)
    if told:
        return {**plan, "state": "told", "message": "Nothing was changed. " + told}
    if problem:
        return {**plan, "state": "refused", "message": "Nothing was changed. " + problem}
    obstacle = _guest_obstacle(plan, host)
    if obstacle:
        return {**plan, "state": "refused", "message": "Nothing was changed. " + obstacle}
    if plan["role"] and plan["settings"] is not None and machine == name:
        return {**plan, "state": "role"}
    return plan


def describe_disruption(disrupts: str, machine: str) -> str:
    """What a remedy with this `disrupts` stops when it is carried out on `machine`."""
    return _STOPS[disrupts].format(machine=machine)


def _end(state: str, message: str) -> dict[str, Any]:
    return {
        "state": state, "message": message, "lines": [], "steps": [],
        "machine": "", "disrupts": "nothing", "role": "", "settings": None,
    }  # fmt: skip


def _find_machine(remedy: Facts, host: Facts, name: str, machines: Collection[str]) -> tuple[str, str]:
    """(the machine by its name in the inventory, why there is none)."""
    on = remedy["on"]
    if on not in ("hypervisor", "container_host"):
        return name, ""
    if (host.get("proxmox") or {}).get("is_proxmox") is True:  # the check is of the Proxmox host itself
        return name, ""
    named = str((host.get("inventory") or {}).get("proxmox_host") or "")
    where = "the Proxmox host" if remedy.get("hypervisor") == "proxmox" else "the machine that runs %s" % name
    if not named:
        missing = "the inventory does not name it: set proxmox_host for %s" % name
    elif named not in machines:
        missing = "the inventory has no host '%s', which proxmox_host names" % named
    else:
        return named, ""
    return "", "It is to be done on %s, and %s." % (where, missing)


def _for_a_person(remedy: Facts, plan: Facts, name: str, machine: str) -> str:
    """Why the commands are not run here; empty where they can be."""
    if remedy["on"] == "firmware":
        return "The remedy is in the firmware or the hardware of the machine, which no command reaches."
    if remedy.get("by_hand"):
        return "The commands are for you to type: %s." % str(remedy["by_hand"]).rstrip(".")
    if plan["role"] and plan["settings"] is None:
        command = PLAYBOOKS[plan["role"]] % (machine or name)
        return "The role %s does it, by what the inventory says: ansible-playbook %s" % (plan["role"], command)
    if not plan["steps"] or all(step["looks"] for step in plan["steps"]):
        return "What has to be changed is told above; no command of this remedy changes anything."
    *before, last = plan["steps"]
    if any(step["reboots"] for step in before) or (
        last["reboots"] and not remedy_commands.reboots_only(last["command"])
    ):
        return "The commands are for you to type: they reboot and go on, which is more than a reboot at the end."
    if remedy["on"] == "controller":
        return "The commands run on this machine, not on %s: type them here." % name
    return ""


def _guest_obstacle(plan: Facts, host: Facts) -> str:
    """Why a guest that the remedy stops may not be stopped."""
    if plan["disrupts"] != "guest":
        return ""
    guest = (host.get("hypervisor") or {}).get("guest") or {}
    start = guest.get("start") or {}
    commands = "\n".join(step["command"] for step in plan["steps"])
    # A change that is suggested is one with which Proxmox was found to start the guest.
    mended = any(isinstance(fix, str) and fix in commands for fix in (guest.get("fixes") or {}).values())
    if mended or start.get("starts") is True:
        return ""
    if start.get("starts") is False:
        return "The guest would be stopped and could not start again: %s." % str(start.get("error")).rstrip(".")
    return (
        "The guest would be stopped, and whether it could start again is not known: its Proxmox host has to be in the "
        "inventory (proxmox_host, proxmox_vmid) and has to be readable."
    )


def _lines(result: Facts, remedy: Facts, plan: Facts, name: str, machine: str) -> list[str]:
    where = machine or "its %s" % str(remedy["on"]).replace("_", " ")
    lines = ["%s fails on %s: %s" % (result["id"], name, result["found"])]
    if result.get("caused_by"):
        lines.append("it comes from %s: mend that first" % ", ".join(result["caused_by"]))
    lines.append("to do, on %s: %s" % (where, remedy["text"]))
    lines.append("stops: %s" % describe_disruption(plan["disrupts"], where))
    lines += ["risk: %s" % remedy["risk"]] if remedy["risk"] else []
    lines += ["%d. %s" % (number, step["command"]) for number, step in enumerate(plan["steps"], 1)]
    lines += ["it is seen by: %s" % remedy["verify"]] if remedy["verify"] else []
    return lines


def judge_outcome(
    check: str, result: Facts | None, host: Facts, *, reboot_left_out: bool, on: str, pending: Iterable[str] = ()
) -> dict[str, Any]:
    """{passes, takes_reboot, message} after the remedy was carried out, from a second look at the host.

    `pending`: what a role said that waits for a reload or a reboot.
    """
    status, found = (result or {}).get("status"), (result or {}).get("found") or (result or {}).get("reason") or ""
    if status == "pass":
        return {"passes": True, "takes_reboot": False, "message": "%s passes now." % check}
    waits = [*pending, *_find_waiting(host)]
    waits += ["the remedy ends with a reboot"] if reboot_left_out else []
    now = "%s is %s: %s" % (check, "not decided any more" if status is None else status, str(found).rstrip("."))
    if waits:
        text = "%s takes a reboot of %s, because %s. Until then %s. To let it reboot: -e gpu_host_allow_reboot=true"
        return {"passes": False, "takes_reboot": True, "message": text % (check, on, "; ".join(waits), now)}
    return {"passes": False, "takes_reboot": False, "message": "%s still fails. It is now so: %s." % (check, now)}


def _find_waiting(host: Facts) -> list[str]:
    """What the facts say that the next load of a module, or the next boot, changes."""
    modules, kernel = host.get("modules") or {}, host.get("kernel") or {}
    waits = [str(item["text"]) for item in modules.get("pending_options") or []]
    if kernel.get("pending_words"):
        waits.append("the boot loader's file has %s" % " ".join(kernel["pending_words"]))
    if kernel.get("reboot_required") is True:
        waits.append("; ".join(kernel.get("reboot_reasons") or []) or "the system asks for it")
    return waits
