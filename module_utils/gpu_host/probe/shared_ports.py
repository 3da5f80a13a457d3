"""Which switch or root port GPUs, or pairs of them, have in common, by the bridges above each GPU.

`paths`: PCI address of a GPU -> the bridges above it, root port first (`devices[…].place.path` of the probe).
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

Paths = dict[str, list[str]]


def read_paths(devices: dict[str, dict[str, Any]]) -> Paths:
    """Of the GPUs whose place is known whole."""
    found = {}
    for address, device in devices.items():
        path = (device.get("place") or {}).get("path")
        if path is not None and None not in path:
            found[address] = path
    return found


def name_port(port: str, paths: Paths) -> str:
    """'root port 0000:20:01.0 (switch 0000:21:00.0)', or 'switch port 0000:22:04.0 (below root port 0000:20:01.0)'."""
    below = [path for path in paths.values() if port in path]
    if not below:
        return "port %s" % port
    place = below[0].index(port)
    if place:
        return "switch port %s (below root port %s)" % (port, below[0][0])
    switches = {path[1] for path in below if len(path) > 1}
    return "root port %s%s" % (port, " (switch %s)" % next(iter(switches)) if len(switches) == 1 else "")


def group_by_port(gpus: Iterable[str], paths: Paths) -> tuple[list[tuple[str, list[str]]], list[str]]:
    """([(port, its GPUs)], the rest): `gpus` by the highest port below which hang two of them or more, and no other."""
    left, groups = set(gpus), []
    depth = max((len(path) for path in paths.values()), default=0)
    for level in range(depth):
        ports: dict[str, set[str]] = {}
        for address, path in paths.items():
            if len(path) > level:
                ports.setdefault(path[level], set()).add(address)
        for port, members in sorted(ports.items()):
            if len(members) > 1 and members <= left:
                groups.append((port, sorted(members)))
                left -= members
    return groups, sorted(left)


def list_crossed(source: str, target: str, paths: Paths) -> set[str]:
    """The bridges that a transfer between two GPUs goes through, without those that it turns round in or above."""
    one, other = paths.get(source), paths.get(target)
    if one is None or other is None:
        return set()
    shared = next((at for at, (a, b) in enumerate(zip(one, other)) if a != b), min(len(one), len(other)))
    return {*one[shared:], *other[shared:]}


def find_ports_of_pairs(bad: Iterable[str], every: Iterable[str], paths: Paths) -> list[str]:
    """The names of the ports that only `bad` pairs ("source->target") cross, several GPUs below each: highest first.

    Nothing is named where a single GPU's own port would do: that is the GPU.
    """
    wanted = set(bad)
    crossing: dict[str, set[str]] = {}
    for name in every:
        source, _, target = name.partition("->")
        for port in list_crossed(source, target, paths):
            crossing.setdefault(port, set()).add(name)
    found: dict[frozenset[str], list[str]] = {}
    for port, names in sorted(crossing.items()):
        if names <= wanted and len(names) > 1 and sum(1 for path in paths.values() if port in path) > 1:
            found.setdefault(frozenset(names), []).append(port)
    # The set that explains most comes first; what lies within another says nothing more.
    kept: list[frozenset[str]] = []
    for key in sorted(found, key=lambda names: (-len(names), found[names])):
        if not any(key <= other for other in kept):
            kept.append(key)
    return [" or ".join(name_port(port, paths) for port in _list_highest(found[key], paths)) for key in kept]


def _list_highest(ports: list[str], paths: Paths) -> list[str]:
    """Without those that hang below another of them: a root port and its switch carry the same pairs."""
    below = {
        port for path in paths.values() for at, port in enumerate(path) if any(above in ports for above in path[:at])
    }
    return [port for port in ports if port not in below]
