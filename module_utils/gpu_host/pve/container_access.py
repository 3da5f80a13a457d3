"""What a container may do with the device nodes that it is given: LXC's device rules and the nodes' modes.

Source: LXC's cgroup2_devices.c and cgfsng.c (rules), PVE::LXC (the rules of devN lines, owner and mode of their nodes).
LXC keeps a list of rules. `a` alone, allowed or denied, empties it and sets what holds for everything else (denied at
the start, by common.conf). Where everything is denied, only the rules that allow count: a deny does something only if
it is written exactly as an earlier allow, which it then takes back. Where everything is allowed, it is the other way
round. One rule must hold all the rights that an open() asks for: `r` and `w` on two lines do not make `rw`. CUDA opens
for both.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from .guest_config import parse_number

_RULE = re.compile(r"([abc])[ \t]([*]|[0-9]+):([*]|[0-9]+)[ \t]([rwm]{3}|[rwm]{0,2}(?=$))")
OPENED_FOR = frozenset("rw")


def parse_rule(key: str, value: str) -> dict[str, Any] | None:
    """A device rule: {key, allow, type, major (None: any), minor (None: any), access, value}; None if LXC cannot read
    it,
    and then does not start the container. `a` alone has the access "" and stands for everything."""
    allow = key.endswith(".allow")
    if value == "a":
        return {"key": key, "allow": allow, "type": "a", "major": None, "minor": None, "access": "", "value": value}
    match = _RULE.match(value)  # after three rights LXC reads no further: a comment may follow
    if not match:
        return None
    kind, major, minor, access = match.groups()
    return {
        "key": key,
        "allow": allow,
        "type": kind,
        "major": parse_number(major),
        "minor": parse_number(minor),
        "access": access,
        "value": value,
    }


def device_rules(devices: Iterable[dict[str, Any]], host_nodes: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The rules that Proxmox writes for devN lines, with the numbers of the host's nodes of now."""
    rules = []
    for device in devices:
        node = host_nodes.get(device["path"] or "")
        if node is None or node["kind"] not in ("char", "block"):
            continue
        place = "%s %s:%s" % ("c" if node["kind"] == "char" else "b", node["major"], node["minor"])
        found = parse_rule("lxc.cgroup2.devices.allow", "%s %s" % (place, "r" if device["deny_write"] else "rw"))
        if found is not None:
            rules.append(found)
    return rules


def find_granted(rules: Iterable[dict[str, Any]], kind: str, major: int, minor: int) -> str:
    """The rights among r and w that these rules, in this order, leave on one device: "rw", "r", "w" or ""."""
    everything = False
    listed: list[dict[str, Any]] = []
    for item in rules:
        if item["type"] == "a" and not item["access"]:
            everything, listed = item["allow"], []
            continue
        same = [
            earlier
            for earlier in listed
            if all(earlier[name] == item[name] for name in ("type", "major", "minor", "access"))
            and earlier["allow"] != everything
        ]
        if same:
            same[0]["allow"] = item["allow"]
        else:
            listed.insert(0, dict(item))
    matching = [
        item
        for item in listed
        if item["allow"] != everything
        and item["type"] in ("a", kind)
        and item["major"] in (None, major)
        and item["minor"] in (None, minor)
    ]

    def may(rights: str) -> bool:
        return any(set(rights) <= set(item["access"]) for item in matching) != everything

    if may("rw"):
        return "rw"
    return "r" if may("r") else "w" if may("w") else ""


def find_access_faults(facts: dict[str, Any], host_nodes: dict[str, dict[str, Any]]) -> list[dict[str, str]]:
    """The container's nodes that it cannot open for reading and writing although a rule names their major number:
    [{node, why: forbidden | read_only | closed, text}]. `facts`: container_config.read's."""
    rules = device_rules(facts["devices"], host_nodes) + facts["rules"]
    found = []
    for path, how in sorted(facts["nodes"].items()):
        node = host_nodes.get(path)
        if node is None or node["kind"] != "char":
            continue
        rights = find_granted(rules, "c", node["major"], node["minor"])
        place = "%s (c %s:%s)" % (path, node["major"], node["minor"])
        if rights in ("r", "w"):
            only = "reading" if rights == "r" else "writing"
            found.append({"node": path, "why": "read_only", "text": "%s may be opened for %s only" % (place, only)})
        elif rights == "":
            if names_major(facts["rules"], node["major"]) or how["by"] == "dev":
                found.append({"node": path, "why": "forbidden", "text": "%s: no rule in force allows rw" % place})
        elif how["by"] == "mount" and facts["unprivileged"] and (node["mode"] or 0) & 0o006 != 0o006:
            text = "%s has mode %04o on the host, and the users of an unprivileged container are nobody there"
            found.append({"node": path, "why": "closed", "text": text % (place, node["mode"] or 0)})
    return found


def names_major(rules: Iterable[dict[str, Any]], major: int) -> bool:
    """Whether a rule that allows something is about this major number of character devices."""
    return any(item["allow"] and item["type"] in ("a", "c") and item["major"] in (None, major) for item in rules)


def root_only(devices: Iterable[dict[str, Any]]) -> list[str]:
    """NVIDIA's nodes of devN lines that only the container's root can open: Proxmox makes them with mode 0660 and owner
    root unless the line says otherwise."""
    return [
        item["path"]
        for item in devices
        if (item["path"] or "").startswith("/dev/nvidia")
        and not (item["uid"] or item["gid"])
        and (item["mode"] or "0660")[-1:] not in ("6", "7")  # read and write for everybody
    ]
