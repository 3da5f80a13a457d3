"""NVIDIA's CDI specifications: whether a container can be given the GPUs of this host by them.

A specification names the device nodes and the driver's libraries of the day when it was written; a container that is
started with one of another driver does not start, or finds no GPU. Sources: the Container Device Interface (SPEC.md and
pkg/cdi/cache.go: of two directories the later one counts, two files of one directory that name the same device make
neither usable), and what `nvidia-ctk cdi generate` of NVIDIA's container toolkit writes.
"""

from __future__ import annotations

import posixpath
import re
from collections.abc import Sequence
from dataclasses import dataclass

from ..gpu_host.evidence import values
from ..gpu_host.evidence.interface import ABSENT, Evidence
from ..gpu_host.linux import versions

DIRECTORIES = ("/etc/cdi", "/run/cdi")  # /var/run is a link to /run
KIND = "nvidia.com/gpu"
SIZE_BYTES = 4 << 20
GENERATE = "nvidia-ctk cdi generate --output=/etc/cdi/nvidia.yaml"
_KIND = re.compile(r"""^\s*kind:\s*["']?([^\s"'#]+)""", re.MULTILINE)
_DEVICES = re.compile(r"^devices:[ \t]*$", re.MULTILINE)
_TOP = re.compile(r"^[A-Za-z]\w*:", re.MULTILINE)
_NAME = re.compile(r"""^(\s*(?:-\s+)?)name:\s*["']?([^\s"'#]+)""", re.MULTILINE)
_ITEM = re.compile(r"^\s*-\s", re.MULTILINE)
_HOST_PATH = re.compile(r"""^\s*hostPath:\s*["']?(/[^\s"'#]+)""", re.MULTILINE)
_PATH = re.compile(r"""^\s*path:\s*["']?(/[^\s"'#]+)""", re.MULTILINE)  # of a device node, a hook
_DRIVER_FILE = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d{3}\.\d+(?:\.\d+)?)$")


@dataclass(frozen=True)
class CdiSpec:
    """One file: the `devices` that it names, and the `paths` of the host that it needs."""

    path: str
    devices: frozenset[str]
    paths: tuple[str, ...]

    @property
    def drivers(self) -> set[str]:
        """The versions of the driver whose libraries it names."""
        return {match[1] for match in map(_DRIVER_FILE.search, self.paths) if match}


def read_specs(evidence: Evidence) -> tuple[list[list[CdiSpec]], list[str]]:
    """(the specifications of NVIDIA's GPUs by directory, the one that counts first; what could not be read)."""
    found, unread = [], []
    for directory in reversed(DIRECTORIES):
        listing = evidence.list(directory)
        if not listing.ok and listing.status != ABSENT:
            unread.append("%s (%s)" % (directory, listing.reason or listing.status))
        specs = []
        for name in sorted(listing.entries):
            if not name.endswith((".yaml", ".json")):
                continue
            reading = evidence.read(posixpath.join(directory, name), SIZE_BYTES)
            if not reading.ok:
                unread.append("%s (%s)" % (reading.path, reading.reason or reading.status))
                continue
            spec = _parse_spec(reading.path, reading.text)
            if spec:
                specs.append(spec)
        found.append(specs)
    return found, unread


def _parse_spec(path: str, text: str) -> CdiSpec | None:
    """None for a specification of other devices. YAML is read as far as `nvidia-ctk` writes it: a key on a line."""
    if path.endswith(".json"):
        return _parse_json(path, text)
    kind = _KIND.search(text)
    if not kind or kind[1] != KIND:
        return None
    begin = _DEVICES.search(text)
    rest = text[begin.end() :] if begin else ""
    end = _TOP.search(rest)
    # The names of devices stand at the same depth; deeper ones are of what a device is made of.
    names = _NAME.findall(rest[: end.start()] if end else rest)
    least = min((len(indent) for indent, _name in names), default=0)
    devices = frozenset(name for indent, name in names if len(indent) == least)
    items = (_HOST_PATH.search(item) or _PATH.search(item) for item in _ITEM.split(text))
    return CdiSpec(path, devices, tuple(dict.fromkeys(match[1] for match in items if match)))


def _parse_json(path: str, text: str) -> CdiSpec | None:
    try:
        content = values.parse_mapping(values.json_value(text))
    except ValueError:
        return None
    if content.get("kind") != KIND:
        return None
    devices = [values.parse_mapping(one) for one in values.parse_sequence(content.get("devices"))]
    paths: list[str] = []
    for edits in [values.parse_mapping(one.get("containerEdits")) for one in [content, *devices]]:
        paths += [str(values.parse_mapping(one).get("hostPath")) for one in values.parse_sequence(edits.get("mounts"))]
        nodes = [values.parse_mapping(one) for one in values.parse_sequence(edits.get("deviceNodes"))]
        hooks = [values.parse_mapping(one) for one in values.parse_sequence(edits.get("hooks"))]
        paths += [str(one.get("hostPath") or one.get("path")) for one in [*nodes, *hooks]]
    return CdiSpec(path, frozenset(str(one.get("name")) for one in devices), tuple(dict.fromkeys(paths)))


def find_problem(evidence: Evidence, wanted: Sequence[str], driver: str | None) -> str | None:
    """One sentence on why a container cannot be given the devices `wanted` ("all", "0", a UUID), with what to do.

    `driver`: the version of the running one, None where it is not known. None where nothing speaks against it.
    """
    directories, unread = read_specs(evidence)
    if unread:
        return "The CDI specifications could not be read: %s" % ", ".join(unread)
    if not any(directories):
        where = " and ".join(DIRECTORIES)
        return "No CDI specification of NVIDIA's GPUs is in %s: install nvidia-container-toolkit-base and run `%s`" % (
            where,
            GENERATE,
        )
    used: dict[str, CdiSpec] = {}
    for device in wanted:
        holders = next(
            (found for found in ([s for s in specs if device in s.devices] for specs in directories) if found), []
        )
        if not holders:
            known = sorted({name for specs in directories for spec in specs for name in spec.devices})
            return "The CDI specifications know no device %s=%s, only %s" % (KIND, device, ", ".join(known) or "none")
        if len(holders) > 1:
            files = ", ".join(spec.path for spec in holders)
            return "%s both name %s=%s, so that CDI takes neither: remove one of them" % (files, KIND, device)
        used[holders[0].path] = holders[0]
    for path, spec in used.items():
        stale = _find_stale(evidence, spec, driver)
        if stale:
            return "%s: write it anew, `%s`" % (stale, GENERATE.replace("/etc/cdi/nvidia.yaml", path))
    return None


def _find_stale(evidence: Evidence, spec: CdiSpec, driver: str | None) -> str | None:
    """What shows that a specification is of another driver than the one that runs."""
    other = sorted(found for found in spec.drivers if versions.is_same_version(found, driver) is False)
    if driver and other:
        return "%s is of the driver %s, and %s runs" % (spec.path, ", ".join(other), driver)
    missing = []
    listings = {
        directory: evidence.list(directory) for directory in sorted({posixpath.dirname(one) for one in spec.paths})
    }
    for path in spec.paths:
        around = listings[posixpath.dirname(path)]
        if around.status == ABSENT or (around.ok and posixpath.basename(path) not in around.entries):
            missing.append(path)
    if missing:
        more = " and %d more" % (len(missing) - 3) if len(missing) > 3 else ""
        return "%s names files that this host has not: %s%s" % (spec.path, ", ".join(missing[:3]), more)
    return None


def read_driver_version(evidence: Evidence) -> str | None:
    """The version of the running driver; None where none runs or it does not say."""
    match = versions.DRIVER_VERSION.search(evidence.read("/proc/driver/nvidia/version").text.partition("\n")[0])
    version = evidence.read("/sys/module/nvidia/version").text.strip() or (match[1] if match else "")
    return version if versions.DRIVER_VERSION.fullmatch(version) else None
