"""Would Proxmox start this guest? The refusals of `qm start` and `pct start` that concern its devices, in their order.

Source: vm_start (QemuServer.pm), parse_hostpci_devices, choose_hostpci_devices, reserve_pci_usage and
prepare_pci_device (PCI.pm), assert_valid (Mapping/PCI.pm), assert_valid_machine_property (Machine.pm); for a container
update_lxc_config (LXC.pm: parse_features, then foreach_passthrough_device and get_device_mode_and_rdev). The messages
are Proxmox's own.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from ..evidence import values
from . import ct_schema, pci_mapping, vm_schema
from .property_string import Refused, parse_property_string

NO_IOMMU = "cannot prepare PCI pass-through, IOMMU not present"
_DEV_KEY = re.compile(r"dev[0-9]+")
_WHOLE_DEVICE = re.compile(r"\.[a-fA-F0-9]")


@dataclass(frozen=True)
class NodeState:
    """What a start meets on its node; None stands for unknown everywhere.

    `devices`: every PCI address -> {vendor, device, subsystem ("10de:204e", None: has none), iommu_group ("" none),
    vgpu: None unknown, "" no mediated devices, "mdev" the kernel's interface, "nvidia" NVIDIA's since kernel 6.8,
    answers: False where the device is lost}. A field that was not read is missing. `mapping`: what pci_mapping.parse
    gives, {} without a file. `in_use`: address -> VMID of the running VM that holds it. `iommu_on`. `nodes`: what
    stands at a path of /dev: "device", "other" (no device), or "" (nothing).
    """

    node: str | None = None
    devices: dict[str, dict[str, Any]] | None = None
    mapping: dict[str, Any] | None = None
    in_use: dict[str, str] = field(default_factory=dict)
    iommu_on: bool | None = None
    nodes: Mapping[str, str] | None = None


@dataclass(frozen=True)
class Verdict:
    """`starts` None: unknown, `error` then says what is not known. `step` and `error` of the first refusal, `key` the
    setting that it is about. `devices`: key -> addresses that Proxmox chooses, where it starts."""

    starts: bool | None
    step: str | None = None
    error: str | None = None
    key: str | None = None
    devices: dict[str, list[str]] = field(default_factory=dict)


class _Dies(Exception):
    def __init__(self, step: str, error: str, key: str | None = None) -> None:
        super().__init__(error)
        self.verdict = Verdict(False, step, error, key)


class _Unknown(Exception):
    pass


def judge_vm(settings: Mapping[str, str], state: NodeState, vmid: str, running: bool | None = False) -> Verdict:
    """Whether a VM with these settings (those of the next start) starts. `vmid` is its own; `running`: a VM that runs
    is
    resumed from a backup's lock rather than refused."""
    try:
        if settings.get("template") == "1":
            raise _Dies("template", "you can't start a vm if it's a template", "template")
        lock = settings.get("lock", "")
        if lock not in ("", "0", "suspended") and not (lock == "backup" and running):
            raise _Dies("lock", "VM is locked (%s)" % lock, "lock")
        _machine(settings)
        entries, unknown = _hostpci_entries(settings, state)
        chosen = _choose(entries, state, vmid)
        unknown = unknown or _prepare(entries, chosen, state)
    except _Dies as died:
        return died.verdict
    if unknown is not None:
        return Verdict(None, None, unknown)
    return Verdict(True, devices=chosen)


def _machine(settings: Mapping[str, str]) -> None:
    options = parse_property_string(vm_schema.MACHINE, settings["machine"]) if settings.get("machine") else {}
    viommu, bits = options.get("viommu"), options.get("aw-bits")
    if viommu == "intel":
        if "q35" not in options.get("type", ""):
            raise _Dies("machine", "to use Intel vIOMMU please set the machine type to q35", "machine")
        if bits is not None and values.decimal_number(bits) not in (39.0, 48.0):
            raise _Dies("machine", "Intel vIOMMU supports only 39 or 48 bits as address width", "machine")
    if bits is not None and viommu is None:
        raise _Dies("machine", "cannot set aw-bits if no vIOMMU is configured", "machine")


def is_q35(settings: Mapping[str, str]) -> bool:
    """Whether Proxmox takes the machine for q35."""
    if not settings.get("machine"):
        return False
    return "q35" in parse_property_string(vm_schema.MACHINE, settings["machine"]).get("type", "")


@dataclass
class _Entry:
    key: str
    options: dict[str, str]
    alternatives: list[list[str]]  # of addresses; several functions are passed together
    nvidia_vgpu: bool = False


def _hostpci_entries(settings: Mapping[str, str], state: NodeState) -> tuple[list[_Entry], str | None]:
    """The hostpci lines with their devices, and what of them is unknown."""
    entries, unknown = [], None
    legacy_igd = False
    for number in range(vm_schema.MAX_HOSTPCI):
        key = "hostpci%d" % number
        if not settings.get(key) or settings[key] == "0":
            continue
        try:
            entry = _entry(key, settings[key], state)
        except _Unknown as error:
            unknown = unknown or str(error)
            continue
        options = entry.options
        if options.get("pcie") == "1" and not is_q35(settings):
            raise _Dies("hostpci", "q35 machine model is not enabled", key)
        if options.get("legacy-igd") == "1":
            _legacy_igd(entry, settings, legacy_igd)
            legacy_igd = True
        entries.append(entry)
    return entries, unknown


def _legacy_igd(entry: _Entry, settings: Mapping[str, str], another: bool) -> None:
    options = entry.options
    problems = (
        (another, "only one device can be assigned in legacy-igd mode"),
        (settings.get("vga") != "none", "legacy IGD assignment requires VGA mode to be 'none'"),
        (options.get("rombar") == "0", "legacy IGD assignment requires rombar to be enabled"),
        (options.get("x-vga") == "1", "legacy IGD assignment is not compatible with x-vga"),
        ("mdev" in options, "legacy IGD assignment is not compatible with mdev"),
        (is_q35(settings), "legacy IGD assignment is not compatible with q35"),
        (
            any(len(addresses) > 1 for addresses in entry.alternatives),
            "legacy IGD assignment is not compatible with multifunction devices",
        ),
        (len(entry.alternatives) > 1, "legacy IGD assignment is not compatible with alternate devices"),
        (
            not entry.alternatives[0][0].endswith("02.0"),
            "legacy IGD assignment only works for devices on host bus 00:02.0",
        ),
    )
    for holds, error in problems:
        if holds:
            raise _Dies("hostpci", error, entry.key)


def _entry(key: str, value: str, state: NodeState) -> _Entry:
    try:
        options = parse_property_string(vm_schema.HOSTPCI, value)
    except Refused as error:  # such a line is dropped before a start, unless the caller judges one that is not written
        raise _Dies("hostpci", str(error), key) from error
    host, mapping = options.get("host"), options.get("mapping")
    if host is not None and mapping is not None:
        raise _Dies("hostpci", "Cannot set both 'host' and 'mapping'.", key)
    if mapping:
        paths = [item["path"] for item in _valid_maps(key, mapping, state)]
    elif host:
        paths = [host]
    else:
        raise _Dies("hostpci", "Either 'host' or 'mapping' must be set.", key)
    if state.devices is None:
        raise _Unknown("the PCI devices of the node")
    entry = _Entry(key, options, [])
    for path in paths:
        addresses: list[str] = []
        for place in filter(None, path.split(";")):
            found = matching_addresses(place, state.devices)
            if not found:
                raise _Dies("hostpci", "no PCI device found for '%s'" % place, key)
            addresses += found
        if len(addresses) > 1 and "mdev" in options:
            raise _Dies("hostpci", "cannot use mediated device with multifunction device", key)
        # One device of NVIDIA's own interface among the alternatives decides for all of them.
        entry.nvidia_vgpu = entry.nvidia_vgpu or bool(
            re.fullmatch(r"nvidia-\d+", options.get("mdev", "")) and state.devices[addresses[0]].get("vgpu") == "nvidia"
        )
        entry.alternatives.append(addresses)
    return entry


def matching_addresses(place: str, devices: Mapping[str, Any]) -> list[str]:
    """The devices that Proxmox finds for an address: it takes it for the beginning of one, with or without domain."""
    return sorted(
        address
        for address in devices
        if address.startswith(place) or (address.startswith("0000:") and address[5:].startswith(place))
    )


def _valid_maps(key: str, name: str, state: NodeState) -> list[dict[str, Any]]:
    """The entries of a mapping for this node, each of which must agree with the device."""
    if state.mapping is None:
        raise _Unknown("the mapping file %s" % pci_mapping.FILE)
    if state.node is None:
        raise _Unknown("the name of the node")
    cluster_wide = state.mapping.get(name) or {"mdev": False, "maps": []}
    maps = [item for item in cluster_wide["maps"] if item["node"] == state.node]
    if not maps:
        raise _Dies("hostpci", "PCI device mapping not found for '%s'" % name, key)
    for item in maps:
        problem = mapping_problem(name, item, bool(cluster_wide["mdev"]), state)
        if problem:
            raise _Dies("hostpci", "PCI device mapping invalid (hardware probably changed): %s" % problem, key)
    return maps


def mapping_problem(name: str, item: Mapping[str, Any], mdev: bool, state: NodeState) -> str | None:
    """Why Proxmox refuses one entry of a mapping; None where it is right. _Unknown where a fact is missing."""
    if state.devices is None:
        raise _Unknown("the PCI devices of the node")
    for index, place in enumerate(filter(None, item["path"].split(";"))):
        address = place if _WHOLE_DEVICE.search(place) else place + ".0"
        device = state.devices.get(address)
        if device is None:
            return "pci device '%s' not found" % address
        for wanted in ("iommu_group", "subsystem", "vgpu"):
            if wanted not in device or (device[wanted] is None and wanted != "subsystem"):
                raise _Unknown("%s of %s" % (wanted, address))
        pairs: dict[str, tuple[str | None, str | None]] = {
            "id": ("%s:%s" % (device["vendor"], device["device"]), item["id"]),
            "iommugroup": (device["iommu_group"] or None, item["iommu_group"]),
            "mdev": ("1" if device["vgpu"] else "0", "1" if mdev else "0"),
            "subsystem-id": (device["subsystem"], item["subsystem_id"]),
        }
        for prop, (expected, configured) in pairs.items():
            if prop == "iommugroup" and index > 0:
                continue
            if expected is not None and configured is None:
                return "missing expected property '%s' for device '%s'" % (prop, address)
            if expected is None and configured is not None:
                return "unexpected property '%s' configured for device '%s'" % (prop, address)
            if expected != configured:
                return "'%s' does not match for '%s' (%s != %s)" % (prop, name, expected, configured)
    return None


def _choose(entries: list[_Entry], state: NodeState, vmid: str) -> dict[str, list[str]]:
    """The devices that each line gets; a mapping's alternatives are tried in order, those in use are passed over."""
    used: set[str] = set()
    chosen: dict[str, list[str]] = {}
    fixed: list[tuple[str, str]] = []

    def take(key: str, addresses: list[str]) -> None:
        for address in addresses:
            if address in used:
                raise _Dies("choose", "device '%s' assigned more than once" % address, key)
            used.add(address)
        chosen[key] = addresses

    for entry in entries:
        if "mdev" in entry.options and not entry.nvidia_vgpu:
            chosen[entry.key] = [addresses[0] for addresses in entry.alternatives]
        elif len(entry.alternatives) == 1:
            take(entry.key, entry.alternatives[0])
            fixed += [(entry.key, address) for address in entry.alternatives[0]]
        else:
            free = [
                addresses
                for addresses in entry.alternatives
                if not used.intersection(addresses) and not any(_held(state, vmid, address) for address in addresses)
            ]
            if not free:
                raise _Dies("choose", "could not find a free device for '%s'" % entry.key, entry.key)
            take(entry.key, free[0])
    for key, address in fixed:
        holder = _held(state, vmid, address)
        if holder:
            raise _Dies("reserve", "PCI device '%s' already in use by VMID '%s'" % (address, holder), key)
    return chosen


def _held(state: NodeState, vmid: str, address: str) -> str | None:
    holder = state.in_use.get(address)
    return holder if holder != vmid else None


def _prepare(entries: list[_Entry], chosen: dict[str, list[str]], state: NodeState) -> str | None:
    """Dies where a chosen device cannot be prepared; returns what is not known of one."""
    unknown = "whether an IOMMU is active" if entries and state.iommu_on is None else None
    for entry in entries:
        for address in chosen[entry.key]:
            if state.iommu_on is False:
                raise _Dies("prepare", NO_IOMMU, entry.key)
            device = (state.devices or {}).get(address, {})
            if device.get("answers", True) is None:
                unknown = unknown or "whether %s answers" % address
            if device.get("answers") is False:
                text = "%s does not answer: its configuration space reads as all ones (lost, or asleep in D3cold)"
                raise _Dies("device", text % address, entry.key)
            if entry.options.get("driver") == "keep" or "mdev" not in entry.options or entry.nvidia_vgpu:
                continue
            if device.get("vgpu") in ("", "nvidia"):
                text = "pci device '%s' does not support mediated devices"
                raise _Dies("prepare", text % address, entry.key)
    return unknown


def judge_container(settings: Mapping[str, str], state: NodeState) -> Verdict:
    """Whether a container with these settings starts. Every key of the form dev + digits counts, also dev256."""
    try:
        if settings.get("template") == "1":
            raise _Dies("template", "you can't start a CT if it's a template", "template")
        lock = settings.get("lock", "")
        if lock not in ("", "0", "mounted"):
            raise _Dies("lock", "CT is locked (%s)" % lock, "lock")
        try:
            ct_schema.parse_features(settings.get("features", ""))
        except Refused as error:
            raise _Dies("features", str(error), "features") from error
        devices = {}
        missing: list[str] = []
        for key in sorted(filter(_DEV_KEY.fullmatch, settings), key=lambda name: values.number_in_name(name[3:])):
            try:
                path = ct_schema.check_device(settings[key])["path"]
            except Refused as error:
                raise _Dies("device", str(error), key) from error
            if state.nodes is None or path not in state.nodes:
                missing.append(path)
            elif state.nodes[path] == "":
                raise _Dies("device", "Device %s does not exist" % path, key)
            elif state.nodes[path] != "device":
                raise _Dies("device", "%s is not a device" % path, key)
            devices[key] = [path]
    except _Dies as died:
        return died.verdict
    if missing:
        return Verdict(None, None, "whether the host has %s" % ", ".join(missing))
    return Verdict(True, devices=devices)
