"""The changes of a VM's settings that remedies need, built from the lines that it has: nothing else of them is lost.

Every change is judged by the rules of a start before it is offered: what the VM would not survive is not proposed.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping
from typing import Any

from . import start_rules, vm_schema
from .property_string import Refused, edit_property_string, parse_property_string
from .vm_config import args_facts, split_args

Change = dict[str, "str | None"]  # None: the key is deleted

_CLIQUE_WORDS = re.compile(
    r"(?<!\s)\s*-set\s+(['\"]?)device\.hostpci\d+(?:\.\d+)?\.x-nv-gpudirect-clique=\d+\1(?=\s|$)"
    r"|(?<!\s)\s*-global\s+(['\"]?)(?:vfio-pci\.x-nv-gpudirect-clique=|driver=vfio-pci,property=x-nv-gpudirect-clique,value=)"
    r"\d+\2(?=\s|$)"
)
_WINDOW_WORDS = re.compile(
    r"(?<!\s)\s*-global\s+(['\"]?)(?:q35|i440FX)-pcihost\.pci-hole64-size=\S+?\1(?=\s|$)"
    r"|(?<!\s)\s*-fw_cfg\s+(['\"]?)name=opt/ovmf/X-PciMmio64Mb,string=\d+\2(?=\s|$)",
    re.I,
)
_HIDING = re.compile(r",(?:kvm=off|-hypervisor|hypervisor=off)(?=[,'\"\s]|$)")


def without_cliques(args: str) -> str:
    return _CLIQUE_WORDS.sub("", args).strip()


def q35_machine(value: str | None) -> str:
    """The machine line with the Q35 chipset; its options and a pinned version stay."""
    kind = (parse_property_string(vm_schema.MACHINE, value) if value else {}).get("type", "pc")
    pinned = re.fullmatch(r"pc(?:-i440fx)?-(\d.*)", kind)
    return edit_property_string(
        vm_schema.MACHINE, value or "", {"type": "pc-q35-" + pinned.group(1) if pinned else "q35"}
    )


def _express(settings: Mapping[str, str], entries: list[dict[str, Any]]) -> Change:
    return {
        entry["key"]: edit_property_string(vm_schema.HOSTPCI, settings[entry["key"]], {"pcie": "1"})
        for entry in entries
        if entry["gpus"] and not entry["pcie"] and entry["key"] in settings
    }


def _cpu(settings: Mapping[str, str], changes: Change) -> str:
    return edit_property_string(vm_schema.CPU, settings.get("cpu", "kvm64"), changes)


def _args(value: str) -> Change:
    return {"args": value or None}


def propose_changes(settings: Mapping[str, str], vm: Mapping[str, Any]) -> dict[str, Change]:
    """Name -> change, for what the checks ask of a VM; empty where nothing is to change.

    `q35` chipset and pcie=1; `pcie`; `cpu_host`; `visible` (nothing hides the hypervisor); `viommu_off`; `cliques` (a
    grant for every GPU) and `no_cliques`; `no_window`; `no_balloon`.
    """
    hardware = vm["next_start"]
    entries = hardware["hostpci"]
    args = settings.get("args", "")
    found: dict[str, Change] = {}
    if hardware["machine"]["chipset"] != "q35":
        found["q35"] = {"machine": q35_machine(settings.get("machine")), **_express(settings, entries)}
    elif vm["gpus_without_pcie"]:
        found["pcie"] = _express(settings, entries)
    if hardware["cpu"]["model"] not in ("host", None):
        found["cpu_host"] = {"cpu": _cpu(settings, {"cputype": "host"})}
    if hardware["hypervisor_hidden"]:
        visible: Change = {}
        if hardware["hidden_by"] != ["args"]:
            # Stated, it also outweighs what x-vga=1 or a custom CPU model would do.
            visible["cpu"] = _cpu(settings, {"hidden": "0"})
        if "args" in hardware["hidden_by"]:
            visible.update(_args(_HIDING.sub("", args)))
        found["visible"] = visible
    if hardware["machine"]["viommu"] is not None:
        found["viommu_off"] = {
            "machine": edit_property_string(vm_schema.MACHINE, settings["machine"], {"viommu": None, "aw-bits": None})
            or None
        }
    if hardware["cliques"] or hardware["clique_of_all"] is not None:
        found["no_cliques"] = _args(without_cliques(args))
        found["cliques"] = _with_cliques(settings, args, entries)
    if hardware["address_window_mib"] is not None:
        found["no_window"] = _args(_WINDOW_WORDS.sub("", args).strip())
    if hardware["balloon_mib"] not in (None, 0):
        found["no_balloon"] = {"balloon": "0"}
    return found


def _with_cliques(settings: Mapping[str, str], args: str, entries: list[dict[str, Any]]) -> Change:
    """Every GPU named by its function, and one grant for each; empty where a line passes several GPUs."""
    change: Change = {}
    words = [without_cliques(args)]
    for entry in entries:
        if not entry["gpus"]:
            continue
        if entry["qemu_id"] is None:
            if entry["mapping"] is not None or len(entry["gpus"]) != 1:
                return {}
            change[entry["key"]] = edit_property_string(
                vm_schema.HOSTPCI, settings[entry["key"]], {"host": entry["gpus"][0]}
            )
        words.append("-set device.%s.x-nv-gpudirect-clique=1" % entry["key"])
    return {**change, "args": " ".join(filter(None, words))}


def make_commands(
    settings: Mapping[str, str], vm: Mapping[str, Any], vmid: str, state: start_rules.NodeState
) -> tuple[dict[str, str | None], str | None]:
    """(name of a proposal -> the options of `qm set`, None where it cannot be offered; why nothing can be offered, or
    None).

    Not offered: anything while the configuration is locked (qm set refuses), and what would leave the VM unable to
    start.
    """
    lock = settings.get("lock")
    found: dict[str, str | None] = {}
    refusal = "VM is locked (%s)" % lock if lock else None
    for name, change in _safely(settings, vm).items():
        after = {key: value for key, value in settings.items() if key not in change}
        after.update({key: value for key, value in change.items() if value is not None})
        verdict = start_rules.judge_vm(after, state, vmid, vm.get("running"))
        meets = verdict.starts is False and verdict.step not in ("reserve", "choose")
        found[name] = None if lock or meets or not change else format_options(change)
        if meets and refusal is None:
            refusal = verdict.error
    return found, refusal


def _safely(settings: Mapping[str, str], vm: Mapping[str, Any]) -> dict[str, Change]:
    try:
        return propose_changes(settings, vm)
    except Refused:  # a line that only a hand-made set of settings can hold
        return {}


def format_options(change: Mapping[str, str | None]) -> str:
    """`--machine q35 --delete args` for `qm set` and `pct set`, quoted for a shell."""
    words = [word for key, value in change.items() if value is not None for word in ("--" + key, value)]
    deleted = [key for key, value in change.items() if value is None]
    return " ".join(map(shlex.quote, words + (["--delete", ",".join(deleted)] if deleted else [])))


def parse_grants(args: str | None) -> tuple[dict[str, int], int | None]:
    """The clique grants of an args line: (by device, of all)."""
    facts = args_facts(split_args(args or ""))
    return facts["cliques"], facts["clique_of_all"]
