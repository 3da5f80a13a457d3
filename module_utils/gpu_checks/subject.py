"""`host` of a check: the facts of one host, of every facts module that ran on it, and of its hypervisor."""

from __future__ import annotations

from typing import Any, Callable

from ..gpu_host.measured import agreement
from ..gpu_host.proxmox import for_guest

# Key in ansible_facts -> key in `host`. Those that did not run are left out, so that a check can ask `host.probe is
# defined`.
_OTHER_FACTS = {"p2p_probe": "probe", "proxmox": "proxmox", "inference_server": "server"}


def host(task_vars: dict[str, Any], template: Callable[[Any], Any]) -> dict[str, Any]:
    """The facts as the checks see them. ValueError where gpu_facts has not run on this host."""
    facts = task_vars.get("ansible_facts") or {}
    if not isinstance(facts.get("gpu_host"), dict):
        raise ValueError("There are no facts of this host: run the gpu_facts module before run_checks.")
    result = dict(facts["gpu_host"])
    result.update({ours: facts[theirs] for theirs, ours in _OTHER_FACTS.items() if facts.get(theirs) is not None})
    compare_measurements(result)
    hypervisor = _hypervisor(task_vars, template) or _handed_in_with_it(result)
    if hypervisor is not None:
        result["hypervisor"] = hypervisor
    return result


def compare_measurements(host: dict[str, Any]) -> None:
    """Add what needs the facts of two modules: where the probe and other tools disagree."""
    if isinstance(host.get("measurements"), dict):
        host["measurements"]["disagreements"] = agreement.disagreements(host.get("probe"), host["measurements"])


def _handed_in_with_it(host: dict[str, Any]) -> dict[str, Any] | None:
    """The Proxmox side of a guest, where pieces of both were handed in together; it is taken out of `host`."""
    loose = (host.get("evidence") or {}).get("loose") or {}
    if loose.get("hypervisor") != "of_guest" or not isinstance(host.get("proxmox"), dict):
        return None
    proxmox, guests = host.pop("proxmox"), loose.get("guests") or []
    view = for_guest(proxmox, "its Proxmox host", guests[0] if len(guests) == 1 else None)
    _count_gpus(view["guest"], host)
    return view


def _count_gpus(guest: dict[str, Any] | None, host: dict[str, Any]) -> None:
    """Without the bus of the Proxmox host nothing says which of its devices are GPUs; a guest that shows as many GPUs as
    it is given devices does."""
    devices = ((guest or {}).get("next_start") or {}).get("hostpci") or []
    shown = (host.get("joined") or {}).get("gpu_count") or (host.get("p2p") or {}).get("gpu_count")
    if guest and guest.get("gpu_count") is None and shown and shown == len(devices):
        guest["gpu_count"] = shown


def _hypervisor(task_vars: dict[str, Any], template: Callable[[Any], Any]) -> dict[str, Any] | None:
    name = template(task_vars.get("proxmox_host"))
    hostvars = task_vars.get("hostvars")
    if not name or hostvars is None or name not in hostvars:
        return None
    proxmox = (hostvars.raw_get(name).get("ansible_facts") or {}).get("proxmox")
    if not isinstance(proxmox, dict):
        return None
    return for_guest(proxmox, name, template(task_vars.get("proxmox_vmid")))
