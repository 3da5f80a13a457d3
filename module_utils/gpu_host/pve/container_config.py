"""One LXC container of Proxmox VE: how the GPUs' device nodes get into it.

Two styles: `devN:` lines, for which Proxmox makes node and cgroup rule at each start from the device's number of that
moment, and hand-written `lxc.cgroup2.devices.allow` and `lxc.mount.entry` lines, which hold numbers that change with a
boot. Sources: pve-docs pct.conf(5), lxc.container.conf(5).
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from typing import Any

from ..evidence import values
from . import container_access, ct_schema
from .guest_config import GuestConfig, describe_guest, effective_settings, parse_number, parse_truth
from .property_string import Refused

_DEV = re.compile(r"dev([0-9]+)$")
_GPU_NODE = re.compile(r"/dev/nvidia([0-9]+)$")
NVIDIA_NODE = re.compile(r"/dev/nvidia")
# Without these no CUDA program starts; nvidia-uvm-tools, nvidia-modeset and nvidia-caps are for profilers, displays and
# MIG.
REQUIRED_NODES = ("/dev/nvidiactl", "/dev/nvidia-uvm")
GPU_KEYS = re.compile(r"(dev[0-9]+|features|unprivileged)$")
# What may bring nodes into a container without a line that names them.
_BRINGS_NODES = re.compile(r"lxc\.(hook\.(autodev|mount|pre-mount|pre-start|start)|include|mount\.fstab)$")
_LIBRARY = re.compile(r"/lib(?:cuda|nvidia-[a-z\-]+)\.so\.([0-9]{3}\.[0-9]+(?:\.[0-9]+)?)$")


def parse_device(index: int, value: str) -> dict[str, Any]:
    """A `devN` line: {key, path, mode, uid, gid, deny_write, problem}; `problem` stops the container's start."""
    problem = None
    try:
        options = ct_schema.check_device(value)
    except Refused as error:
        options, problem = {}, str(error)
    return {
        "key": "dev%d" % index,
        "path": options.get("path"),
        "mode": options.get("mode"),
        "uid": parse_number(options.get("uid")),
        "gid": parse_number(options.get("gid")),
        "deny_write": parse_truth(options.get("deny-write"), False),
        "problem": problem,
    }


parse_rule = container_access.parse_rule


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


def mount_point(value: str) -> dict[str, Any] | None:
    """An `mpN` line that mounts a path of the host, in the shape of `mount`; None for a volume."""
    parts = dict(part.partition("=")[::2] for part in value.split(",") if "=" in part)
    source = parts.get("volume") or next((part for part in value.split(",") if "=" not in part), "")
    if not source.startswith("/"):
        return None
    return {"source": source, "target": parts.get("mp", ""), "options": [], "optional": False, "value": value}


def read_container(config: GuestConfig) -> dict[str, Any]:
    """The facts of one configuration: what is in force now.

    `next_start` holds the same with the pending changes applied.
    """
    raw = config.current.raw()
    return {
        "type": "lxc",
        **describe_guest(config, "hostname", GPU_KEYS),
        **_devices(config.current.settings(), raw),
        "next_start": _devices(effective_settings(config), raw),
    }


def _devices(settings: Mapping[str, str], raw: list[tuple[str, str]]) -> dict[str, Any]:
    entries = sorted(
        (values.number_in_name(match.group(1)), value)
        for match, value in ((_DEV.match(key), value) for key, value in settings.items())
        if match
    )
    written = [
        (value, parse_rule(key, value)) for key, value in raw if re.match(r"lxc\.cgroup2\.devices\.(allow|deny)$", key)
    ]
    mounts = [parse_mount(value) for key, value in raw if key == "lxc.mount.entry"]
    mounts += [mount_point(value) for key, value in settings.items() if re.match(r"mp[0-9]+$", key)]
    known_mounts = [item for item in mounts if item is not None]
    devices = [parse_device(index, value) for index, value in entries]
    try:
        features = ct_schema.parse_features(settings.get("features", ""))
    except Refused:
        features = {}
    hooks = ["%s: %s" % (key, value) for key, value in raw if _BRINGS_NODES.match(key) and value]
    hooks += ["hookscript: %s" % settings["hookscript"]] if settings.get("hookscript") else []
    return {
        "unprivileged": parse_truth(settings.get("unprivileged"), False),
        "features": features,
        "devices": devices,
        "rules": [item for _value, item in written if item is not None],
        # LXC dies of a rule that it cannot read.
        "bad_rules": [value for value, item in written if item is None and value],
        "mounts": known_mounts,
        # cgroup v1 keys: Proxmox VE mounts cgroup v2 only since 7.0, so such a rule allows nothing.
        "cgroup1_rules": [value for key, value in raw if key.startswith("lxc.cgroup.devices.")],
        "nodes": _nodes(devices, known_mounts),
        "hooks": hooks,
        "pinned_libraries": [
            {"path": item["source"], "version": match.group(1)}
            for item, match in ((item, _LIBRARY.search(item["source"])) for item in known_mounts)
            if match
        ],
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


def add_mounted_directories(facts: dict[str, Any], host_nodes: Mapping[str, Any]) -> None:
    """Add the nodes that come with a mounted directory of the host (`/dev`, `/dev/nvidia-caps`)."""
    for item in facts["mounts"]:
        directory = item["source"].rstrip("/")
        if directory != "/dev" and not directory.startswith("/dev/"):
            continue
        for path, node in host_nodes.items():
            if path.startswith(directory + "/") and node["kind"] == "char":
                facts["nodes"].setdefault(path, {"by": "mount", "optional": item["optional"], "mode": None})


def gpu_minors(nodes: Mapping[str, Any]) -> list[int]:
    """The minor numbers of the GPUs among `nodes`: 0 for /dev/nvidia0."""
    return sorted(values.number_in_name(match.group(1)) for match in map(_GPU_NODE.match, nodes) if match)


def missing_nodes(nodes: Mapping[str, Any]) -> list[str]:
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
    free = (index for index in range(ct_schema.MAX_DEVICES) if "dev%d" % index not in used)
    return ["-dev%d %s,mode=0666" % (index, path) for index, path in zip(free, paths)]


def hand_written_lines(config: GuestConfig, nvidia_majors: Collection[int], known_majors: Collection[int]) -> list[int]:
    """The numbers of the lines in force that bring NVIDIA's nodes in by hand: mounts, and rules whose major is NVIDIA's
    today, or nobody's (a number of an earlier boot) where such a node is mounted."""
    lines = [line for line in config.current.lines if line.key is not None and line.key.startswith("lxc.")]
    mounts = [
        line.number
        for line in lines
        if line.key == "lxc.mount.entry" and NVIDIA_NODE.match((line.value.split() or [""])[0])
    ]
    rules = []
    for line in lines:
        if not re.match(r"lxc\.cgroup2?\.devices\.(allow|deny)$", line.key or ""):
            continue
        found = parse_rule(line.key or "", line.value)
        if found is None or found["type"] != "c" or found["major"] is None:
            continue
        if found["major"] in nvidia_majors or (mounts and found["major"] not in known_majors):
            rules.append(line.number)
    return sorted(mounts + rules)


def stale_rules(
    facts: dict[str, Any], majors: Mapping[str, int], nodes: Mapping[str, int | None]
) -> list[dict[str, Any]]:
    """Bind-mounted nodes that no rule of the container allows with the major number of today.

    `majors` is /proc/devices (name -> major), `nodes` the host's own nodes (path -> major). Each entry is
    {node, major (today's), allowed [majors that the rules name]}. A `devN` node is always right and never here.
    """
    # By cgroup v2 only: Proxmox mounts no other.
    allowed = sorted(
        {
            item["major"]
            for item in facts["rules"]
            if item["allow"] and item["type"] == "c" and item["major"] is not None
        }
    )
    stale = []
    for path, how in sorted(facts["nodes"].items()):
        today = nodes.get(path) or majors.get(_driver_of(path))
        if how["by"] == "mount" and today is not None and not container_access.names_major(facts["rules"], today):
            stale.append({"node": path, "major": today, "allowed": allowed})
    return stale


def _driver_of(path: str) -> str:
    """The name in /proc/devices of the driver that serves a node."""
    if path.startswith("/dev/nvidia-uvm"):
        return "nvidia-uvm"
    return "nvidia-caps" if path.startswith("/dev/nvidia-caps") else "nvidia"
