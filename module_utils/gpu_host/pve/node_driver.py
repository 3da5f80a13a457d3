"""The Proxmox host's own side of its GPUs.

Driver, device numbers, nodes, what makes the nodes at boot, what hands cards to vfio.
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence, Listing

_MODULE_DIRECTORIES = ("/etc/modules-load.d", "/usr/lib/modules-load.d")
_RULE_DIRECTORIES = ("/etc/udev/rules.d", "/usr/lib/udev/rules.d")
_UNITS = "/etc/systemd/system"
_WANTED_BY = (
    "multi-user.target.wants",
    "pve-guests.service.wants",
    "sysinit.target.wants",
    "basic.target.wants",
    "default.target.wants",
)
_INTERESTING = re.compile(r"nvidia|gpu|cuda", re.I)
_MAKES_NODES = re.compile(r"nvidia-modprobe|nvidia-persistenced|nvidia-smi|mknod|gpu-device-nodes")
_MAKES_UVM_NODE = re.compile(
    r"nvidia-modprobe\s.*-\w*u|nvidia-persistenced\b.*--uvm-persistence-mode|mknod\b.*nvidia-uvm|gpu-device-nodes"
)
_VFIO_IDS = re.compile(r"^[ \t]*options[ \t]+vfio[-_]pci[ \t].*?\bids=([0-9a-fA-F:,]+)", re.M)
_VFIO_IDS_LIVE = re.compile(r"\bvfio[-_]pci\.ids=([0-9a-fA-F:,]+)")
_MINOR = re.compile(r"^Device Minor:\s*([0-9]{1,9})\s*$", re.M)


def read_driver(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """NVIDIA's driver on the host: {loaded, version, uvm_loaded, uvm_disable_hmm, majors {name: n}, known_majors [of
    every
    character driver], nodes {path: {…}}, minors {address: n}, make_nodes (the command that makes every node)}."""
    version = evidence.read("/sys/module/nvidia/version")
    errors.unanswered(version, absent_is_fine=True)
    hmm = evidence.read("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm")
    uvm = evidence.list("/sys/module/nvidia_uvm")
    devices = evidence.read("/proc/devices")
    errors.unanswered(devices)
    minors = _minors(evidence)
    return {
        "loaded": True if version.ok else (False if version.status == ABSENT else None),
        "version": version.text.strip() or None,
        "uvm_loaded": True if uvm.ok else (False if uvm.status == ABSENT else None),
        "uvm_disable_hmm": {"Y": True, "1": True, "N": False, "0": False}.get(hmm.text.strip()) if hmm.ok else None,
        "majors": character_majors(devices.text) if devices.ok else None,
        "known_majors": known_majors(devices.text) if devices.ok else None,
        "nodes": read_nodes(evidence, "/dev", errors),
        "minors": minors,
        # nvidia-smi makes the nodes of all cards where their numbers are not known.
        "make_nodes": "nvidia-modprobe -u" + "".join(" -c %d" % minor for minor in sorted(minors.values()))
        if minors
        else "nvidia-smi -L && nvidia-modprobe -u -c=0",
    }


def known_majors(text: str) -> list[int]:
    """Every major number that a character driver has, from /proc/devices."""
    lines = text.partition("Block devices:")[0].splitlines()
    numbers = [values.whole_number((line.split() or [""])[0]) for line in lines]
    return sorted({number for number in numbers if number is not None})


def character_majors(text: str) -> dict[str, int]:
    """NVIDIA's names and major numbers among the character devices of /proc/devices."""
    result = {}
    for line in text.partition("Block devices:")[0].splitlines():
        words = line.split()
        major = values.whole_number(words[0]) if len(words) == 2 else None
        if major is not None and words[1].startswith("nvidia"):
            # Drivers before 470 register as nvidia-frontend.
            result["nvidia" if words[1] == "nvidia-frontend" else words[1]] = major
    return result


def read_nodes(evidence: Evidence, directory: str, errors: Errors) -> dict[str, dict[str, Any]] | None:
    """NVIDIA's device nodes below a /dev: {path as seen inside: {kind, major, minor, mode}}.

    None if it cannot be listed.
    """
    listing = evidence.list(directory)
    if not listing.ok:
        errors.unanswered(listing)
        return None
    result = _node_entries(listing, "/dev")
    if "nvidia-caps" in listing.entries:
        result.update(_node_entries(evidence.list(directory + "/nvidia-caps"), "/dev/nvidia-caps"))
    return result


def _node_entries(listing: Listing, shown_as: str) -> dict[str, dict[str, Any]]:
    return {
        "%s/%s" % (shown_as, name): {"kind": entry.kind, "major": entry.major, "minor": entry.minor, "mode": entry.mode}
        for name, entry in sorted(listing.entries.items())
        if name.startswith("nvidia")
    }


def _minors(evidence: Evidence) -> dict[str, int]:
    """Device minor of each card that the driver has, by PCI address; it need not follow the order of the bus."""
    result = {}
    for address in sorted(evidence.list("/proc/driver/nvidia/gpus").entries):
        match = _MINOR.search(evidence.read("/proc/driver/nvidia/gpus/%s/information" % address).text)
        minor = values.whole_number(match.group(1)) if match else None
        if minor is not None:
            result[address.lower()] = minor
    return result


def find_nodes_at_boot(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """What makes NVIDIA's nodes exist before Proxmox starts its guests.

    {modules {nvidia: file | None, nvidia_uvm: file | None}, makers [{path, kind: unit | udev, enabled, before_guests,
    makes_uvm}], ready} `ready`: something enabled makes the nodes, nvidia-uvm's included, in time (udev counts: it runs
    before the guests). None if the units cannot be listed.
    """
    modules: dict[str, str | None] = {"nvidia": None, "nvidia_uvm": None}
    for directory in _MODULE_DIRECTORIES:
        for name in sorted(evidence.list(directory).entries):
            if name.endswith(".conf") and (_INTERESTING.search(name) or directory.startswith("/etc")):
                path = "%s/%s" % (directory, name)
                for module in _words(evidence.read(path).text):
                    if module.replace("-", "_") in modules:
                        modules[module.replace("-", "_")] = path
    for module in _words(evidence.read("/etc/modules").text):
        if module.replace("-", "_") in modules:
            modules[module.replace("-", "_")] = "/etc/modules"
    units = evidence.list(_UNITS)
    errors.unanswered(units)
    makers = _unit_makers(evidence, units) + _udev_makers(evidence)
    ready = any(
        maker["enabled"] and maker["makes_uvm"] and (maker["kind"] == "udev" or maker["before_guests"])
        for maker in makers
    )
    return {"modules": modules, "makers": makers, "ready": ready if units.ok else None}


def _unit_makers(evidence: Evidence, units: Listing) -> list[dict[str, Any]]:
    enabled: dict[str, str] = {}
    for wants in _WANTED_BY:
        if wants in units.entries:
            for name, entry in evidence.list("%s/%s" % (_UNITS, wants)).entries.items():
                enabled[name] = entry.target or "%s/%s" % (_UNITS, name)
    names = {name for name in enabled if _INTERESTING.search(name)}
    names |= {
        name
        for name, entry in units.entries.items()
        if name.endswith(".service") and entry.kind == "file" and _INTERESTING.search(name)
    }
    makers = []
    for name in sorted(names):
        path = "%s/%s" % (_UNITS, name) if name in units.entries else enabled[name]
        text = evidence.read(path).text
        if not _MAKES_NODES.search(text):
            continue
        before = " ".join(re.findall(r"^Before=(.*)$", text, re.M)).split()
        makers.append(
            {
                "path": path,
                "kind": "unit",
                "enabled": name in enabled,
                "before_guests": "pve-guests.service" in before,
                "makes_uvm": bool(_MAKES_UVM_NODE.search(text)),
            }
        )
    return makers


def _udev_makers(evidence: Evidence) -> list[dict[str, Any]]:
    makers = []
    for directory in _RULE_DIRECTORIES:
        for name in sorted(evidence.list(directory).entries):
            if not (name.endswith(".rules") and _INTERESTING.search(name)):
                continue
            path = "%s/%s" % (directory, name)
            text = "\n".join(
                line for line in evidence.read(path).text.splitlines() if not line.lstrip().startswith("#")
            )
            if _MAKES_NODES.search(text):
                uvm = bool(_MAKES_UVM_NODE.search(text))
                makers.append({"path": path, "kind": "udev", "enabled": True, "before_guests": True, "makes_uvm": uvm})
    return makers


def _words(text: str) -> list[str]:
    return [line.split()[0] for line in text.splitlines() if line.split() and not line.lstrip().startswith(("#", ";"))]


def vfio_ids(evidence: Evidence, live: list[str] | None) -> dict[str, str]:
    """`vendor:device` pairs that vfio-pci takes at boot -> the file (or /proc/cmdline) that says so."""
    result: dict[str, str] = {}
    for name in sorted(evidence.list("/etc/modprobe.d").entries):
        if name.endswith(".conf"):
            path = "/etc/modprobe.d/" + name
            for match in _VFIO_IDS.finditer(evidence.read(path).text):
                result.update({_pair(item): path for item in match.group(1).split(",") if item})
    for match in _VFIO_IDS_LIVE.finditer(" ".join(live or [])):
        result.update({_pair(item): "/proc/cmdline" for item in match.group(1).split(",") if item})
    return result


def _pair(item: str) -> str:
    return ":".join(item.lower().split(":")[:2])
