"""One VM of Proxmox VE: the settings of its configuration that decide what its GPUs can do.

Sources: pve-docs qm.conf(5) and qm-pci-passthrough; the defaults are Proxmox's (no `machine` line means `pc`, i440FX).
"""

from __future__ import annotations

import re
import shlex
from typing import Any

from .guest_config import GuestConfig, parse_number, parse_properties, parse_truth, pending_changes

_ADDRESS = re.compile(r"(?:([0-9a-f]{4,8}):)?([0-9a-f]{2}):([0-9a-f]{2})(?:\.([0-7]))?$", re.I)
_HOSTPCI = re.compile(r"hostpci([0-9]+)$")
_CLIQUE = re.compile(r"device\.(hostpci[0-9]+(?:\.[0-9]+)?)\.x-nv-gpudirect-clique=(\d+)$")
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
    return "%04x:%s:%s" % (int(domain or "0", 16), bus.lower(), device.lower()), None if function is None else int(
        function
    )


def parse_machine(value: str | None, arch: str | None = None) -> dict[str, Any]:
    """{value, chipset: i440fx | q35 | virt | None, version, viommu}; `value` None is the default."""
    options = parse_properties(value or "", "type")
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


def parse_cpu(value: str | None) -> dict[str, Any]:
    """{value, type, hidden, phys_bits: number | "host" | None}.

    Without a `cpu` line the type is Proxmox's default kvm64.
    """
    options = parse_properties(value or "", "cputype")
    bits = options.get("phys-bits")
    return {
        "value": value,
        "type": options.get("cputype", "kvm64"),
        "hidden": parse_truth(options.get("hidden"), None if "hidden" not in options else False),
        "phys_bits": bits if bits == "host" else parse_number(bits),
    }


def parse_hostpci(slot: int, value: str) -> dict[str, Any]:
    """One `hostpciN` line.

    `devices` are the addresses that it names: {slot, function (None: all functions), address (None without function)}.
    With `mapping` they are not in the line and come from the mapping file. `problem` says what is wrong with the line.
    """
    options = parse_properties(value, "host")
    devices, problems = [], []
    for part in filter(None, options.get("host", "").split(";")):
        found = parse_address(part)
        if found is None:
            problems.append("%r is not a PCI address" % part)
            continue
        place, function = found
        devices.append(
            {"slot": place, "function": function, "address": None if function is None else "%s.%d" % (place, function)}
        )
    if not devices and not problems and "mapping" not in options:
        problems.append("names neither a device nor a mapping")
    if devices and "mapping" in options:
        problems.append("names both a device and a mapping")
    return {
        "key": "hostpci%d" % slot,
        "slot": slot,
        "value": value,
        "mapping": options.get("mapping"),
        "mdev": options.get("mdev"),
        "pcie": parse_truth(options.get("pcie"), False),
        "x_vga": parse_truth(options.get("x-vga"), False),
        "legacy_igd": parse_truth(options.get("legacy-igd"), False),
        "rombar": parse_truth(options.get("rombar"), True),
        "romfile": options.get("romfile"),
        "id_overrides": {name: options[name] for name in ID_OVERRIDES if name in options},
        "devices": devices,
        "problem": "; ".join(problems) or None,
    }


def split_args(value: str) -> list[str]:
    """The words of an `args` line; with unbalanced quotes, what white space separates."""
    try:
        return shlex.split(value)
    except ValueError:
        return value.split()


def args_facts(words: list[str]) -> dict[str, Any]:
    """From extra or running QEMU arguments: {cliques {hostpci0: 1}, hides_hypervisor, address_window_mib}."""
    cliques, hides, window = {}, False, None
    for option, value in zip(words, words[1:]):
        if option == "-set":
            match = _CLIQUE.match(value)
            if match:
                cliques[match.group(1)] = int(match.group(2))
        elif option == "-global":
            hole = _HOLE64.match(value)
            if hole:
                window = _mib(hole.group(1), hole.group(2))
        elif option == "-fw_cfg":
            ovmf = _OVMF_WINDOW.search(value)
            if ovmf:
                window = int(ovmf.group(1))
        elif option == "-cpu":
            hides = (
                "kvm=off" in value.split(",")
                or "-hypervisor" in value.split(",")
                or "hypervisor=off" in value.split(",")
            )
    return {"cliques": cliques, "hides_hypervisor": hides, "address_window_mib": window}


def _mib(amount: str, unit: str) -> int | None:
    try:
        return int(float(amount) * {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}[unit.upper()]) >> 20
    except (ValueError, OverflowError):
        return None


def apply_pending(config: GuestConfig) -> dict[str, str]:
    """The settings of the next start: the current ones with the pending changes applied."""
    settings = config.current.settings()
    changed, deleted = pending_changes(config.pending)
    for key in deleted:
        settings.pop(key, None)
    settings.update(changed)
    return settings


def read_vm(config: GuestConfig) -> dict[str, Any]:
    """The facts of one configuration: what is in force now.

    `next_start` holds the same keys with the pending changes applied (equal where nothing is pending).
    """
    changed, deleted = pending_changes(config.pending)
    current = config.current.settings()
    return {
        "type": "vm",
        "name": current.get("name"),
        "template": parse_truth(current.get("template"), False),
        "onboot": parse_truth(current.get("onboot"), False),
        "lock": current.get("lock"),
        **_hardware(current),
        "next_start": _hardware(apply_pending(config)),
        "pending": sorted(set(changed) | set(deleted)),
        "pending_gpu_keys": sorted(key for key in set(changed) | set(deleted) if GPU_KEYS.match(key)),
        "snapshots": len(config.snapshots),
    }


def _hardware(settings: dict[str, str]) -> dict[str, Any]:
    """What the guest sees with these settings."""
    memory = parse_properties(settings.get("memory", "512"), "current")
    extra = args_facts(split_args(settings.get("args", "")))
    entries = sorted(
        (int(match.group(1)), value)
        for match, value in ((_HOSTPCI.match(key), value) for key, value in settings.items())
        if match
    )
    devices = [parse_hostpci(slot, value) for slot, value in entries]
    processor = parse_cpu(settings.get("cpu"))
    return {
        "machine": parse_machine(settings.get("machine"), settings.get("arch")),
        "bios": settings.get("bios", "seabios"),
        "cpu": processor,
        # Hidden by the setting, by a hand-written -cpu, or by x-vga=1, which implies it unless `hidden` is set.
        "hypervisor_hidden": bool(
            processor["hidden"]
            or extra["hides_hypervisor"]
            or (processor["hidden"] is None and any(device["x_vga"] for device in devices))
        ),
        "args": settings.get("args"),
        "cliques": extra["cliques"],
        "address_window_mib": extra["address_window_mib"],
        "memory_mib": parse_number(memory.get("current")),
        "balloon_mib": parse_number(settings.get("balloon")),
        "hugepages": settings.get("hugepages"),
        "numa": parse_truth(settings.get("numa"), False),
        "affinity": settings.get("affinity"),
        "hostpci": devices,
    }
