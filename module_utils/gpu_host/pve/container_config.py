"""One LXC container of Proxmox VE: how the GPUs' device nodes get into it.

Two styles: `devN:` lines, for which Proxmox makes node and cgroup rule at each start from the device's number of that
moment, and hand-written `lxc.cgroup2.devices.allow` and `lxc.mount.entry` lines, which hold numbers that change with a
boot. Sources: pve-docs pct.conf(5), lxc.container.conf(5).
"""

from __future__ import annotations

import re
from typing import Any

from .guest_config import GuestConfig, parse_number, parse_properties, parse_truth, pending_changes

_DEV = re.compile(r"dev([0-9]+)$")
_RULE = re.compile(r"([abc])\s+(\*|\d+):(\*|\d+)\s+([rwm]+)")
_GPU_NODE = re.compile(r"/dev/nvidia([0-9]+)$")
NVIDIA_NODE = re.compile(r"/dev/nvidia")
# Without these no CUDA program starts; nvidia-uvm-tools, nvidia-modeset and nvidia-caps are for profilers, displays and
# MIG.
REQUIRED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
GPU_KEYS = re.compile(r"(dev[0-9]+|features|unprivileged)$")


def parse_device(index: int, value: str) -> dict[str, Any]:
    """A `devN` line: {key, path, mode, uid, gid, deny_write}."""
    options = parse_properties(value, "path")
    return {
        "key": "dev%d" % index,
        "path": options.get("path"),
        "mode": options.get("mode"),
        "uid": parse_number(options.get("uid")),
        "gid": parse_number(options.get("gid")),
        "deny_write": parse_truth(options.get("deny-write"), False),
    }


def parse_rule(key: str, value: str) -> dict[str, Any] | None:
    """A cgroup device rule: {key, type, major (None: any), minor (None: any), access, value}.

    None if it cannot be read.
    """
    text = value.partition("#")[0].strip()
    match = _RULE.match(text)
    if not match:
        return (
            {"key": key, "type": "a", "major": None, "minor": None, "access": "rwm", "value": text}
            if text == "a"
            else None
        )
    kind, major, minor, access = match.groups()
    return {
        "key": key,
        "type": kind,
        "major": parse_number(major),
        "minor": parse_number(minor),
        "access": access,
        "value": text,
    }


def parse_mount(value: str) -> dict[str, Any] | None:
    """An `lxc.mount.entry`, in the form of fstab: {source, target, options, optional, value}.

    None if it cannot be read.
    """
    words = value.partition(" #")[0].split()
    if len(words) < 2:
        return None
    options = words[3].split(",") if len(words) > 3 else []
    return {
        "source": words[0],
        "target": "/" + words[1].lstrip("/"),
        "options": options,
        "optional": "optional" in options,
        "value": value,
    }


def read_container(config: GuestConfig) -> dict[str, Any]:
    """The facts of one configuration: what is in force now.

    `next_start` holds the same with the pending changes applied.
    """
    settings = config.current.settings()
    changed, deleted = pending_changes(config.pending)
    after = {key: value for key, value in settings.items() if key not in deleted}
    after.update(changed)
    raw = config.current.raw()
    return {
        "type": "lxc",
        "name": settings.get("hostname"),
        "template": parse_truth(settings.get("template"), False),
        "onboot": parse_truth(settings.get("onboot"), False),
        "lock": settings.get("lock"),
        **_devices(settings, raw),
        "next_start": _devices(after, raw),
        "pending": sorted(set(changed) | set(deleted)),
        "pending_gpu_keys": sorted(key for key in set(changed) | set(deleted) if GPU_KEYS.match(key)),
        "snapshots": len(config.snapshots),
    }


def _devices(settings: dict[str, str], raw: list[tuple[str, str]]) -> dict[str, Any]:
    entries = sorted(
        (int(match.group(1)), value)
        for match, value in ((_DEV.match(key), value) for key, value in settings.items())
        if match
    )
    rules = [
        parse_rule(key, value) for key, value in raw if key.startswith("lxc.cgroup") and key.endswith(".devices.allow")
    ]
    mounts = [parse_mount(value) for key, value in raw if key == "lxc.mount.entry"]
    devices = [parse_device(index, value) for index, value in entries]
    return {
        "unprivileged": parse_truth(settings.get("unprivileged"), False),
        "features": parse_properties(settings.get("features", ""), "features"),
        "devices": devices,
        "rules": [item for item in rules if item is not None],
        "mounts": [item for item in mounts if item is not None],
        # cgroup v1 keys: Proxmox VE mounts cgroup v2 only since 7.0, so such a rule allows nothing.
        "cgroup1_rules": [value for key, value in raw if key.startswith("lxc.cgroup.devices.")],
        "nodes": _nodes(devices, [item for item in mounts if item is not None]),
    }


def _nodes(devices: list[dict[str, Any]], mounts: list[dict[str, Any]]) -> dict[str, dict[str, Any]]:
    """NVIDIA's nodes that the configuration brings in: path on the host -> {by: dev | mount, optional, mode}."""
    found: dict[str, dict[str, Any]] = {}
    for item in mounts:
        if NVIDIA_NODE.match(item["source"]):
            found[item["source"]] = {"by": "mount", "optional": item["optional"], "mode": None}
    for item in devices:
        if item["path"] and NVIDIA_NODE.match(item["path"]):
            found[item["path"]] = {"by": "dev", "optional": False, "mode": item["mode"]}
    return found


def gpu_minors(nodes: dict[str, Any]) -> list[int]:
    """The minor numbers of the GPUs among `nodes`: 0 for /dev/nvidia0."""
    return sorted(int(match.group(1)) for match in map(_GPU_NODE.match, nodes) if match)


def missing_nodes(nodes: dict[str, Any]) -> list[str]:
    """Of a container that is meant to have GPUs, what CUDA needs and the configuration does not bring in."""
    return [path for path in REQUIRED_NODES if path not in nodes] + ([] if gpu_minors(nodes) else ["/dev/nvidia0"])


def suggested_devices(devices: dict[str, Any]) -> list[str]:
    """`-dev3 /dev/nvidia-uvm,mode=0666` for every node that comes by a mount or not at all.

    With numbers that are free.
    """
    paths = [
        path
        for path, how in devices["nodes"].items()
        if how["by"] == "mount" and not path.startswith("/dev/nvidia-caps")
    ]
    paths += missing_nodes(devices["nodes"])
    used = {item["key"] for item in devices["devices"]}
    free = (index for index in range(256) if "dev%d" % index not in used)
    return ["-dev%d %s,mode=0666" % (index, path) for index, path in zip(free, paths)]


def stale_rules(facts: dict[str, Any], majors: dict[str, int], nodes: dict[str, int | None]) -> list[dict[str, Any]]:
    """Bind-mounted nodes that no rule of the container allows with the major number of today.

    `majors` is /proc/devices (name -> major), `nodes` the host's own nodes (path -> major). Each entry is
    {node, major (today's), allowed [majors that the rules name]}. A `devN` node is always right and never here.
    """
    rules = [item for item in facts["rules"] if item["key"].startswith("lxc.cgroup2") and item["type"] in ("a", "c")]
    if any(item["major"] is None for item in rules):
        return []
    allowed = sorted({item["major"] for item in rules})
    stale = []
    for path, how in sorted(facts["nodes"].items()):
        today = nodes.get(path) or majors.get(_driver_of(path))
        if how["by"] == "mount" and today is not None and today not in allowed:
            stale.append({"node": path, "major": today, "allowed": allowed})
    return stale


def _driver_of(path: str) -> str:
    """The name in /proc/devices of the driver that serves a node."""
    if path.startswith("/dev/nvidia-uvm"):
        return "nvidia-uvm"
    return "nvidia-caps" if path.startswith("/dev/nvidia-caps") else "nvidia"
