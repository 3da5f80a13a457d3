"""`host` of a check: the facts of one host, of every facts module that ran on it, of its hypervisor, and what the
inventory says of both."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..gpu_host.measured import agreement
from ..gpu_host.probe.bad_pairs import find_common_ground
from ..gpu_host.proxmox import select_guest
from .check_files import Check, suggest_name
from .packed_facts import unpack_facts
from .served_group import find_generating_host

Facts = dict[str, Any]
# Key in ansible_facts -> key in `host`. Those that did not run are left out, so that a check can ask `host.probe is
# defined`.
_OTHER_FACTS = {"p2p_probe": "probe", "proxmox": "proxmox", "inference_server": "server"}

# The name of a Proxmox host whose pieces were handed in together with those of its guest; the inventory has no such.
HANDED_IN_HYPERVISOR = "its Proxmox host"


def build_subject(task_vars: Facts, template: Callable[[Any], Any]) -> Facts:
    """The facts as the checks see them. ValueError where gpu_facts has not run on this host."""
    facts = unpack_facts(task_vars.get("ansible_facts"))
    if not isinstance(facts.get("gpu_host"), dict):
        raise ValueError("There are no facts of this host: run the gpu_facts module before run_checks.")
    result = make_host(facts)
    handed_in = take_handed_in_hypervisor(result)
    if handed_in is not None:
        result["hypervisor"] = handed_in
    named, vmid = template(task_vars.get("proxmox_host")), template(task_vars.get("proxmox_vmid"))
    groups = task_vars.get("group_names") or ()
    describe_place(result, groups)
    own = str(task_vars.get("inventory_hostname", ""))
    name_group(result, template(task_vars.get("inference_server_group")), task_vars.get("groups") or {}, own)
    hostvars = task_vars.get("hostvars")
    if hostvars is None:
        name_guest(result)
        return result
    in_run = task_vars.get("ansible_play_hosts_all")
    others = result["inventory"]["serves_with"]
    if others:
        here = {name for name in others if name in hostvars and (in_run is None or name in in_run)}
        seen = {
            name: unpack_facts(hostvars.raw_get(name).get("ansible_facts")) if name in here else None for name in others
        }
        result["inventory"]["generated_from"] = find_generating_host({own: facts, **seen})
    other = unpack_facts(hostvars.raw_get(named).get("ansible_facts")) if named and named in hostvars else None
    known = set(hostvars) if other is None and named else set()
    result["inventory"].update(look_at_hypervisor(own, (named, vmid), other, known, in_run))
    if other is not None and isinstance(other.get("proxmox"), dict) and named != own:
        result["hypervisor"] = describe_hypervisor(result, other, str(named), vmid)
    name_guest(result, vmid)
    return result


def name_group(host: Facts, group: Any, groups: Facts, own: str) -> None:
    """Add ``inventory.serves_in`` and ``serves_with``: the group of the inventory whose hosts serve one model together
    (inference_server_group), and the others in it; "" and [] where this host serves alone. And ``generated_from``, the
    host of rank 0 where a generation took them all (served_group.py), "" where that is not shown."""
    members = [str(name) for name in groups.get(str(group)) or ()] if group else []
    others = [name for name in members if name != own] if own in members else []
    host["inventory"].update(serves_in=str(group) if others else "", serves_with=others, generated_from="")


def name_guest(host: Facts, vmid: Any = None) -> None:
    """Add ``inventory.guest_number``: the number of this guest on its Proxmox host, for commands; "" where it is not
    known. `vmid` is the inventory's word for it, which counts unless the Proxmox host was looked at and has no such
    guest, or one of another kind."""
    view = host.get("hypervisor")
    if view is not None:
        number = "" if view["has_guest"] is False or view["kind_agrees"] is False else view["vmid"]
    else:
        unfit = (host.get("inventory") or {}).get("hypervisor_fault")
        number = "" if vmid in (None, "") or unfit else str(vmid)
    host["inventory"]["guest_number"] = number if number.isdigit() else ""


def make_host(ansible_facts: Facts) -> Facts:
    """What the facts modules gave for one host, under the names that the checks use."""
    result = dict(ansible_facts["gpu_host"])
    found = {ours: ansible_facts.get(theirs) for theirs, ours in _OTHER_FACTS.items()}
    result.update({ours: facts for ours, facts in found.items() if facts is not None})
    compare_measurements(result)
    return result


def compare_measurements(host: Facts) -> None:
    """Add what needs the facts of two modules.

    Where the probe and other tools disagree, and what the pairs that the probe found bad have in common.
    """
    if isinstance(host.get("probe"), dict):
        host["probe"] = {**host["probe"], "common": find_common_ground(host["probe"], host.get("gpus") or {})}
    found = host.get("measurements")
    if isinstance(found, dict):
        host["measurements"] = {**found, "disagreements": agreement.find_disagreements(host.get("probe"), found)}


def take_handed_in_hypervisor(host: Facts) -> Facts | None:
    """The Proxmox side of a guest, where pieces of both were handed in together; it is taken out of `host`."""
    loose = (host.get("evidence") or {}).get("loose") or {}
    if loose.get("hypervisor") != "of_guest" or not isinstance(host.get("proxmox"), dict):
        return None
    proxmox, guests = host.pop("proxmox"), loose.get("guests") or []
    view = describe_hypervisor(
        host, {"proxmox": proxmox}, HANDED_IN_HYPERVISOR, guests[0] if len(guests) == 1 else None
    )
    if view["guest"] is None:  # among several guests, or among those that were not handed in
        view.update(has_guest=None, gives=None)
    _count_gpus(view["guest"], host)
    return view


def choose_checks_of_pieces(checks: Iterable[Check], host: Facts) -> list[Check]:
    """Of pieces that were handed in, all of a Proxmox host, only the checks of a hypervisor; else all of `checks`."""
    pieces = ((host.get("evidence") or {}).get("loose") or {}).get("hypervisor")
    only_hypervisor = pieces == "self" and not (host.get("inventory") or {}).get("in_gpu_hosts")
    return [check for check in checks if not only_hypervisor or "hypervisor" in check.tags]


def _count_gpus(guest: Facts | None, host: Facts) -> None:
    """Without the bus of the Proxmox host nothing says which of its devices are GPUs; a guest that shows as many GPUs
    as
    it is given devices does."""
    devices = ((guest or {}).get("next_start") or {}).get("hostpci") or []
    shown = (host.get("joined") or {}).get("gpu_count") or (host.get("p2p") or {}).get("gpu_count")
    if guest and guest.get("gpu_count") is None and shown and shown == len(devices):
        guest["gpu_count"] = shown


def describe_place(host: Facts, groups: Iterable[str]) -> None:
    """Add ``inventory``: {in_proxmox_hosts, in_gpu_hosts, guest_number (name_guest)}. On a Proxmox host that only gives
    its cards to VMs, ``joined.driver_expected`` becomes False: they may be at vfio-pci, or without a driver until their
    VM starts."""
    groups = list(groups)
    host["inventory"] = {"in_proxmox_hosts": "proxmox_hosts" in groups, "in_gpu_hosts": "gpu_hosts" in groups}
    host["inventory"]["guest_number"] = ""
    proxmox = host.get("proxmox") or {}
    unused = proxmox.get("needs_driver") is False and not (host.get("gpus") or {}).get("devices")
    if unused and (host.get("driver") or {}).get("loaded") is not True and not host["inventory"]["in_gpu_hosts"]:
        host["joined"] = {**(host.get("joined") or {}), "driver_expected": False}


def look_at_hypervisor(
    own: str, entry: tuple[Any, Any], facts: Facts | None, known: Iterable[str], in_run: Iterable[str] | None
) -> Facts:
    """What became of `entry` (proxmox_host, proxmox_vmid) of the host `own`: {proxmox_host ("" if none is named),
    hypervisor_fault (what is wrong with the entry, "" if nothing), hypervisor_unseen (why the machine was not looked
    at, "" if it was)}.

    `facts` are those of the machine named, None where the inventory has no such; `known` then are the hosts that it
    has. `in_run`: the hosts of this run.
    """
    named, vmid = entry
    name = str(named) if named not in (None, "") else ""
    fault = unseen = ""
    if not name:
        fault = "proxmox_vmid is %s and no proxmox_host is named" % vmid if vmid not in (None, "") else ""
    elif facts is None:
        fault = "proxmox_host is '%s', which is not in the inventory%s" % (name, suggest_name(name, set(known) - {own}))
    elif name == own:
        fault = "proxmox_host is this host itself"
    elif vmid in (None, ""):
        fault = "proxmox_host is '%s' and no proxmox_vmid is named" % name
    elif isinstance(facts.get("proxmox"), dict):
        if facts["proxmox"].get("is_proxmox") is False:
            fault = "proxmox_host is '%s', which is no Proxmox host: it has no /etc/pve" % name
    elif isinstance(facts.get("gpu_host"), dict):
        fault = "proxmox_host is '%s', on which nothing shows a Proxmox host" % name
    elif in_run is not None and name not in in_run:
        unseen = "%s is not part of this run (--limit or the pattern leaves it out)" % name
    else:
        unseen = "%s could not be looked at in this run" % name
    return {"proxmox_host": name, "hypervisor_fault": fault, "hypervisor_unseen": unseen}


def describe_hypervisor(host: Facts, others_facts: Facts, name: str, vmid: Any) -> Facts:
    """``host.hypervisor``: for_guest, and

    `kind_agrees`: whether this host is of the kind that the entry of the hypervisor says (None: unknown). Where it is
    not, the entry is another guest's, and `gives` is "": nothing else is judged by it. `card_findings` and
    `cards_unjudged`: see guest_cards.add_findings, which fills them in, as it takes the checks to find them.
    """
    view = select_guest(others_facts["proxmox"], name, vmid)
    view["kind_agrees"] = _agrees(view["guest"], host.get("virtualization") or {})
    if view["guest"] is not None and view["kind_agrees"] is not False:  # what the guest's own DMI need not say
        host["virtualization"] = {**(host.get("virtualization") or {}), "hypervisor_kind": "proxmox", "cloud": False}
    view.update(card_findings=None, cards_unjudged=[])
    if view["kind_agrees"] is False:
        view["gives"] = ""
    return view


def _agrees(guest: Facts | None, virtualization: Facts) -> bool | None:
    """A Docker container shows only whether there is a VM around it, a VM that hides may look like bare metal."""
    placement, vm = virtualization.get("placement"), virtualization.get("vm")
    if guest is None or placement is None:
        return None
    if guest["type"] == "lxc":
        return placement == "lxc" if placement != "container" else None if vm is None else not vm
    if placement == "container":
        return vm if isinstance(vm, bool) else None
    if placement == "bare_metal" and (guest.get("next_start") or {}).get("hypervisor_hidden"):
        return None
    return placement in ("kvm", "vm")
