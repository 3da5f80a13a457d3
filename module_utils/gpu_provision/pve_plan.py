"""What must change in a guest's configuration so that it has the GPUs that the inventory gives it.

Pure: text and facts in, a plan out.

Only these keys are ever touched, and of them only those of NVIDIA's GPUs: `machine`, `hostpciN`, the clique words of
`args` (VM); `devN`, and hand-written `lxc.*` lines for NVIDIA's nodes (container).
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..gpu_host.pve import container_config, vm_config, vm_schema
from ..gpu_host.pve.ct_schema import MAX_DEVICES as MAX_DEV
from ..gpu_host.pve.guest_config import GuestConfig, effective_settings
from ..gpu_host.pve.property_string import Refused, edit_property_string, parse_property_string
from ..gpu_host.pve.start_rules import NodeState, judge_vm
from ..gpu_host.pve.vm_changes import parse_grants, without_cliques
from ..gpu_host.pve.vm_schema import MAX_HOSTPCI

_HOSTPCI_KEY = re.compile(r"hostpci([0-9]+)$")
_DEV_KEY = re.compile(r"dev([0-9]+)$")


class PlanError(ValueError):
    """What was asked for cannot be done; the message says why and what to do."""


@dataclass
class Plan:
    """`set` key -> value and `delete` keys for qm or pct; `drop_lines` numbers of lines that only the file can lose."""

    set: dict[str, str] = field(default_factory=dict)
    delete: list[str] = field(default_factory=list)
    drop_lines: list[int] = field(default_factory=list)

    @property
    def changes(self) -> bool:
        return bool(self.set or self.delete or self.drop_lines)

    def arguments(self) -> list[str]:
        """The options of `qm set` or `pct set`."""
        words = [word for key, value in self.set.items() for word in ("--" + key, value)]
        return words + (["--delete", ",".join(self.delete)] if self.delete else [])


def plan_vm(
    config: GuestConfig,
    entries: list[dict[str, Any]],
    gpus: list[str],
    *,
    machine: str | None = None,
    pcie: bool = True,
    clique: int | None = None,
    remove_clique: bool = False,
) -> Plan:
    """Give a VM exactly the GPUs `gpus` (addresses with function).

    `entries` are its hostpci lines of the next start, resolved against the host's devices (pve_guests.resolve). Lines
    of other devices stay as they are, and so do the options of a GPU's line.

    PlanError: pcie without Q35, a line that names GPUs of both kinds, a mapping that cannot be resolved, no number
    left.
    """
    plan = Plan()
    settings = effective_settings(config)
    line = _machine_line(settings, machine)
    if line != settings.get("machine"):
        plan.set["machine"] = line or ""
    chipset = vm_config.parse_machine(line, settings.get("arch"))["chipset"]
    if gpus and pcie and chipset != "q35":
        raise PlanError("pcie=1 needs the chipset q35 and this VM has %s; give machine: q35, or pcie: false" % chipset)
    keys = _hostpci_lines(plan, entries, gpus, pcie, named_functions=clique is not None)
    if clique is not None or remove_clique:
        _clique(plan, settings.get("args"), keys, clique)
    return plan


def _machine_line(settings: dict[str, str], wanted: str | None) -> str | None:
    """The machine line: what the VM has, with what is wanted. A pinned version of the same chipset stays, and so do
    options that the inventory does not name.

    PlanError: a machine that Proxmox refuses, or that it would not start.
    """
    now = settings.get("machine")
    if wanted is None:
        return now
    try:
        asked = parse_property_string(vm_schema.MACHINE, wanted)
    except Refused as error:
        raise PlanError("machine %r: Proxmox refuses it (%s)" % (wanted, error)) from error
    kind = asked.pop("type", None)
    changes: dict[str, str | None] = dict(asked)
    chipset = vm_config.parse_machine(now, settings.get("arch"))["chipset"]
    if kind is not None and (vm_config.chipset_of(kind) != chipset or re.search(r"-[0-9]", kind)):
        changes["type"] = kind
    line = edit_property_string(vm_schema.MACHINE, now or "", changes) if changes else now
    verdict = judge_vm({"machine": line or "", "arch": settings.get("arch", "")}, NodeState(), "0")
    if verdict.starts is False:
        raise PlanError("machine %r: Proxmox would not start the VM (%s)" % (line, verdict.error))
    return line


def _hostpci_lines(
    plan: Plan, entries: list[dict[str, Any]], gpus: list[str], pcie: bool, named_functions: bool
) -> list[str]:
    """Plan the hostpci lines; returns the key of each GPU."""
    keys = []
    wanted = list(gpus)
    for entry in entries:
        if entry["gpus"] is None:
            raise PlanError(
                "%s (%s) cannot be resolved to devices; correct the mapping first" % (entry["key"], entry["value"])
            )
        if not entry["gpus"]:
            continue
        kept = [address for address in entry["gpus"] if address in wanted]
        if not kept:
            plan.delete.append(entry["key"])
            continue
        if len(kept) != len(entry["gpus"]) and entry["mapping"] is None:
            raise PlanError(
                "%s (%s) names GPUs that stay and GPUs that go; split the line by hand" % (entry["key"], entry["value"])
            )
        # Of a mapping's alternatives Proxmox takes one.
        wanted = [address for address in wanted if address not in (kept if entry["mapping"] is None else kept[:1])]
        keys.append(entry["key"])
        value = _express(entry["value"], pcie)
        if named_functions and entry["qemu_id"] is None and entry["mapping"] is None:
            value = _with_function(value, kept)
        if value != entry["value"]:
            plan.set[entry["key"]] = value
    used = {entry["key"] for entry in entries} - set(plan.delete)
    free = [key for key in ("hostpci%d" % number for number in range(MAX_HOSTPCI)) if key not in used]
    if len(wanted) > len(free):
        raise PlanError(
            "no hostpci number is left for %s (0 to %d)" % (", ".join(wanted[len(free) :]), MAX_HOSTPCI - 1)
        )
    for key, address in zip(free, wanted):
        plan.set[key] = address + (",pcie=1" if pcie else "")
        keys.append(key)
        if key in plan.delete:
            plan.delete.remove(key)
    return keys


def _express(value: str, pcie: bool) -> str:
    """The line with pcie=1, or without it, and otherwise as it was."""
    if (parse_property_string(vm_schema.HOSTPCI, value).get("pcie") == "1") == pcie:
        return value
    return edit_property_string(vm_schema.HOSTPCI, value, {"pcie": "1" if pcie else None})


def _with_function(value: str, addresses: list[str]) -> str:
    """The line with the device named by its function: QEMU then gives it a name that -set can address."""
    if len(addresses) != 1:
        raise PlanError(
            "%s passes several GPUs in one line, which a clique cannot address; give each a line of its own" % value
        )
    return edit_property_string(vm_schema.HOSTPCI, value, {"host": addresses[0]})


def _clique(plan: Plan, args: str | None, keys: list[str], clique: int | None) -> None:
    old = args or ""
    kept = without_cliques(old)
    words = (
        ["-set device.%s.x-nv-gpudirect-clique=%d" % (key, clique) for key in sorted(keys, key=_number)]
        if clique is not None
        else []
    )
    new = " ".join(filter(None, [kept, *words]))
    if parse_grants(old) == parse_grants(new):
        return
    if new:
        plan.set["args"] = new
    else:
        plan.delete.append("args")


def _number(key: str) -> int:
    match = _HOSTPCI_KEY.match(key)
    return int(match.group(1)) if match else 0


def plan_container(
    config: GuestConfig, nodes: list[str], mode: str | None, nvidia_majors: Iterable[int], known_majors: Iterable[int]
) -> Plan:
    """Give a container exactly these NVIDIA nodes by devN lines, and take hand-written lines for NVIDIA's nodes away.

    An existing devN line of a wanted node keeps its number and its options; only a missing mode is added. A cgroup rule
    goes where its major is NVIDIA's today, or nobody's (a number of an earlier boot) and NVIDIA's nodes are mounted by
    hand.
    """
    plan = Plan()
    settings = effective_settings(config)
    used, there = set(), set()
    for key, value in settings.items():
        match = _DEV_KEY.match(key)
        if not match:
            continue
        item = container_config.parse_device(int(match.group(1)), value)
        used.add(key)
        path = item["path"] or ""
        if not container_config.NVIDIA_NODE.match(path):
            continue
        if path not in nodes or path in there:
            plan.delete.append(key)
            continue
        there.add(path)
        if mode and not (item["mode"] or item["uid"] is not None or item["gid"] is not None):
            plan.set[key] = "%s,mode=%s" % (value, mode)
    free = (key for key in ("dev%d" % number for number in range(MAX_DEV)) if key not in used or key in plan.delete)
    for path in nodes:
        if path not in there:
            number = next(free, None)
            if number is None:
                raise PlanError("no devN number is left for %s (0 to %d)" % (path, MAX_DEV - 1))
            plan.set[number] = "%s,mode=%s" % (path, mode) if mode else path
            if number in plan.delete:
                plan.delete.remove(number)
    plan.drop_lines = container_config.hand_written_lines(config, set(nvidia_majors), set(known_majors))
    return plan


def container_nodes(minors: Iterable[int], more: Iterable[str] = ()) -> list[str]:
    """The nodes that a container with these GPUs needs, in the order of the lines."""
    minors = sorted(minors)
    if not minors:
        return []
    base = ["/dev/nvidia%d" % minor for minor in minors] + [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    return base + [path for path in more if path not in base]
