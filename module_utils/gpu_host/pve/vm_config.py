"""One VM of Proxmox VE: the settings of its configuration that decide what its GPUs can do.

Sources: pve-docs qm.conf(5) and qm-pci-passthrough; the defaults are Proxmox's (no `machine` line means `pc`, i440FX).
"""

from __future__ import annotations

import math
import re
import shlex
from collections.abc import Mapping
from typing import Any

from ..evidence import values
from . import vm_schema
from .guest_config import GuestConfig, describe_guest, effective_settings, parse_number, parse_truth
from .property_string import Refused, parse_property_string

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$", re.I)
_HOSTPCI = re.compile(r"hostpci([0-9]+)$")
_CLIQUE = re.compile(r"device\.(hostpci[0-9]+(?:\.[0-9]+)?)\.x-nv-gpudirect-clique=(\d+)$")
_GLOBAL_CLIQUE = re.compile(r"vfio-pci\.x-nv-gpudirect-clique=(\d+)$")
_GLOBAL_CLIQUE_LONG = re.compile(r"driver=vfio-pci,property=x-nv-gpudirect-clique,value=(\d+)$")
_HOLE64 = re.compile(r"(?:q35|i440FX)-pcihost\.pci-hole64-size=([0-9.]+)([KMGT]?)B?$", re.I)
_OVMF_WINDOW = re.compile(r"name=opt/ovmf/X-PciMmio64Mb,string=([0-9]+)$")
ID_OVERRIDES = ("vendor-id", "device-id", "sub-vendor-id", "sub-device-id")
# Settings whose pending change alters what the GPUs see; another pending key (a note, a network card) is nobody's
# fault.
GPU_KEYS = re.compile(r"(machine|bios|cpu|args|numa[0-9]*|hugepages|hostpci[0-9]+|arch)$")


def parse_address(text: str) -> tuple[str, int | None] | None:
    """`01:00.0` or `0000:01:00` -> (slot in the kernel's form `0000:01:00`, function or None for all).

    None if it is none.
    """
    match = _ADDRESS.match(text.strip())
    if not match:
        return None
    domain, bus, device, function = match.groups()
    slot = "%04x:%s:%s" % (values.hexadecimal_number(domain or "0") or 0, bus.lower(), device.lower())
    return slot, values.whole_number(function)


def parse_machine(value: str | None, arch: str | None = None) -> dict[str, Any]:
    """{value, chipset: i440fx | q35 | virt | None, version, viommu}; `value` None is the default. The chipset of a
    value
    that Proxmox refuses is None: such a line never takes effect."""
    try:
        options = parse_property_string(vm_schema.MACHINE, value or "")
    except Refused:
        return {"value": value, "chipset": None, "version": None, "viommu": None}
    kind = options.get("type")
    chipset: str | None
    if kind is None:
        chipset = "virt" if arch == "aarch64" else "i440fx"
    else:
        chipset = chipset_of(kind)
    version = re.search(r"-(\d+(?:\.\d+)+(?:\+pve\d+)?)$", kind or "")
    return {
        "value": value,
        "chipset": chipset,
        "version": version.group(1) if version else None,
        "viommu": options.get("viommu"),
    }


def chipset_of(kind: str) -> str | None:
    """The chipset of a QEMU machine type (`pc-q35-9.2+pve1`), None for one that is not known."""
    bare = kind.partition("+")[0]
    if bare == "q35" or bare.startswith("pc-q35-"):
        return "q35"
    if bare in ("pc", "i440fx") or bare.startswith("pc-i440fx-"):
        return "i440fx"
    return "virt" if bare == "virt" or bare.startswith("virt-") else None


def parse_cpu(value: str | None, models: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Any]:
    """{value, type, model, hidden, phys_bits: number | "host" | None}; without a `cpu` line the type is Proxmox's
    default
    kvm64.

    `model` is what the guest is shown: the type, or what a custom type of `models` (cpu-models.conf, by name without
    `custom-`) reports; None where that file is not known. `hidden` is the line's, or the custom type's; None: neither
    says.
    """
    try:
        options = vm_schema.parse_cpu(value, None) if value else {"cputype": "kvm64"}
    except Refused:
        options = {"cputype": "kvm64"}
    kind = options["cputype"]
    model: str | None = kind
    custom: Mapping[str, str] = {}
    if kind.startswith("custom-"):
        found = None if models is None else models.get(kind[len("custom-") :])
        model = None if found is None else found.get("reported-model", "kvm64")
        custom = found or {}
    bits = options.get("phys-bits", custom.get("phys-bits"))
    return {
        "value": value,
        "type": kind,
        "model": model,
        "hidden": parse_truth(options.get("hidden", custom.get("hidden"))),
        "phys_bits": bits if bits == "host" else parse_number(bits),
    }


def parse_hostpci(slot: int, value: str) -> dict[str, Any]:
    """One `hostpciN` line.

    `devices` are the addresses that it names: {slot, function (None: all functions), address (None without function)}.
    With `mapping` they are not in the line and come from the mapping file. `driver` is vfio, or keep: Proxmox then
    neither binds nor resets the device. `problem` says what Proxmox would refuse.
    """
    problem = None
    try:
        options = parse_property_string(vm_schema.HOSTPCI, value)
    except Refused as error:
        options, problem = {}, str(error)
    devices = []
    for part in filter(None, options.get("host", "").split(";")):
        found = parse_address(part)
        if found is None:  # the schema lets function 8 to f pass; no device has them
            problem = "no PCI device found for '%s'" % part
            continue
        place, function = found
        devices.append(
            {"slot": place, "function": function, "address": None if function is None else "%s.%d" % (place, function)}
        )
    if problem is None and "host" not in options and "mapping" not in options:
        problem = "Either 'host' or 'mapping' must be set."
    if problem is None and "host" in options and "mapping" in options:
        problem = "Cannot set both 'host' and 'mapping'."
    return {
        "key": "hostpci%d" % slot,
        "slot": slot,
        "value": value,
        "mapping": options.get("mapping"),
        "mdev": options.get("mdev"),
        "driver": options.get("driver", "vfio"),
        "pcie": parse_truth(options.get("pcie"), False),
        "x_vga": parse_truth(options.get("x-vga"), False),
        "legacy_igd": parse_truth(options.get("legacy-igd"), False),
        "rombar": parse_truth(options.get("rombar"), True),
        "romfile": options.get("romfile"),
        "id_overrides": {name: options[name] for name in ID_OVERRIDES if name in options},
        "devices": devices,
        "problem": problem,
    }


def split_args(value: str) -> list[str]:
    """The words of an `args` line; with unbalanced quotes, what white space separates."""
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def args_facts(words: list[str]) -> dict[str, Any]:
    """From extra or running QEMU arguments: {cliques {hostpci0: 1}, clique_of_all, hides_hypervisor,
    address_window_mib}.

    `clique_of_all`: a clique that `-global` gives to every vfio-pci device, None without; `-set` overrides it.
    """
    cliques, everyone, hides, window = {}, None, False, None
    for option, value in zip(words, words[1:]):
        if option == "-set":
            match = _CLIQUE.match(value)
            if match:
                cliques[match.group(1)] = values.number_in_name(match.group(2))
        elif option == "-global":
            hole = _HOLE64.match(value)
            if hole:
                window = _mib(hole.group(1), hole.group(2))
            match = _GLOBAL_CLIQUE.match(value) or _GLOBAL_CLIQUE_LONG.match(value)
            if match:
                everyone = values.number_in_name(match.group(1))
        elif option == "-fw_cfg":
            ovmf = _OVMF_WINDOW.search(value)
            if ovmf:
                window = values.whole_number(ovmf.group(1))
        elif option == "-cpu":
            hides = (
                "kvm=off" in value.split(",")
                or "-hypervisor" in value.split(",")
                or "hypervisor=off" in value.split(",")
            )
    return {"cliques": cliques, "clique_of_all": everyone, "hides_hypervisor": hides, "address_window_mib": window}


def _mib(amount: str, unit: str) -> int | None:
    number = values.decimal_number(amount)
    size = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit.upper()]
    return None if number is None else math.floor(number * size) >> 20


def read_vm(config: GuestConfig, models: Mapping[str, Mapping[str, str]] | None = None) -> dict[str, Any]:
    """The facts of one configuration: what is in force now.

    `next_start` holds the same keys with the pending changes applied (equal where nothing is pending). `models`:
    cpu-models.conf, None where it is not known.
    """
    return {
        "type": "vm",
        **describe_guest(config, "name", GPU_KEYS),
        **_hardware(config.current.settings(), models),
        "next_start": _hardware(effective_settings(config), models),
    }


def _hardware(settings: dict[str, str], models: Mapping[str, Mapping[str, str]] | None) -> dict[str, Any]:
    """What the guest sees with these settings."""
    try:
        memory = parse_property_string(vm_schema.MEMORY, settings.get("memory", "512"))
    except Refused:
        memory = {}
    extra = args_facts(split_args(settings.get("args", "")))
    entries = sorted(
        (values.number_in_name(match.group(1)), value)
        for match, value in ((_HOSTPCI.match(key), value) for key, value in settings.items())
        if match and value != "0"
    )
    devices = [parse_hostpci(slot, value) for slot, value in entries]
    processor = parse_cpu(settings.get("cpu"), models)
    x_vga = [device["key"] for device in devices if device["x_vga"]] if processor["hidden"] is None else []
    hidden_by = ["cpu"] if processor["hidden"] else []
    hidden_by += ["args"] if extra["hides_hypervisor"] else []
    return {
        "machine": parse_machine(settings.get("machine"), settings.get("arch")),
        "bios": settings.get("bios", "seabios"),
        "efi_disk": "efidisk0" in settings,
        "cpu": processor,
        # Hidden by the setting, by a hand-written -cpu, or by x-vga=1, which implies it unless `hidden` is set. The
        # names of the settings that do it.
        "hidden_by": hidden_by + x_vga,
        "hypervisor_hidden": bool(hidden_by or x_vga),
        "args": settings.get("args"),
        "cliques": extra["cliques"],
        "clique_of_all": extra["clique_of_all"],
        "address_window_mib": extra["address_window_mib"],
        "memory_mib": parse_number(memory.get("current", "512")),
        "balloon_mib": parse_number(settings.get("balloon")),
        "hugepages": settings.get("hugepages"),
        "numa": parse_truth(settings.get("numa"), False),
        "affinity": settings.get("affinity"),
        "hostpci": devices,
    }
