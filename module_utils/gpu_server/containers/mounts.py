"""What a process's mount table shows of its container: the root, /dev/shm and its size, and what is mounted into it.

/proc/PID/mountinfo, proc_pid_mountinfo(5). Its `size=` of a tmpfs is what holds, whatever the container was asked for.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ...gpu_host.evidence import values

_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30}
_ESCAPED = re.compile(r"\\([0-7]{3})")
# Of the kernel and of the runtime itself: no one chose them.
_RUNTIMES_OWN = re.compile(
    r"/(?:proc|sys|dev)(?:/.*)?|/run/podman-init|/sbin/docker-init|/etc/(?:hosts|hostname|resolv\.conf|mtab)|/run/(?:\.containerenv|secrets)(?:/.*)?"
    r"|/usr/(?:local/)?(?:s?bin|lib(?:64|exec)?)/.*(?:nvidia|cuda|libnv|libvdpau).*|/usr/lib/firmware/nvidia/.*"
    r"|/etc/(?:nvidia|vulkan|OpenCL|glvnd|egl)/.*|/run/nvidia.*|/usr/share/(?:nvidia|glvnd|egl|vulkan)/.*"
)


@dataclass(frozen=True)
class Mount:
    device: str  # major:minor
    root: str  # of that file system, what is mounted
    point: str
    options: tuple[str, ...]
    kind: str
    source: str
    super_options: tuple[str, ...]


def parse_mounts(text: str) -> list[Mount]:
    """The mounts of a mountinfo, in its order; lines of another form are left out."""
    found = []
    for line in text.splitlines():
        before, dash, after = line.partition(" - ")
        fields, rest = before.split(" "), after.split(" ")
        if dash and len(fields) >= 6 and len(rest) >= 3:
            found.append(
                Mount(
                    fields[2], _plain(fields[3]), _plain(fields[4]), tuple(fields[5].split(",")),
                    rest[0], _plain(rest[1]), tuple(rest[2].split(",")),
                )
            )  # fmt: skip
    return found


def _plain(text: str) -> str:
    """Blanks and the like are written as three octal digits."""
    return _ESCAPED.sub(lambda match: chr(_octal(match[1])), text)


def _octal(digits: str) -> int:
    number = 0
    for digit in digits:
        number = number * 8 + "01234567".index(digit)
    return number & 0xFF


def find_mount(mounts: list[Mount], path: str) -> Mount | None:
    """The mount at `path` itself; the last of several lies on top."""
    return next((mount for mount in reversed(mounts) if mount.point == path), None)


def find_mount_of(mounts: list[Mount], path: str) -> Mount | None:
    """The mount that `path` lies in."""
    inside = [mount for mount in mounts if mount.point in ("/", path) or path.startswith(mount.point + "/")]
    longest = max((len(mount.point) for mount in inside), default=0)
    return next((mount for mount in reversed(inside) if len(mount.point) == longest), None)


def has_other_root(own: list[Mount], others: list[Mount]) -> bool | None:
    """Whether the two see different file systems as "/"; None where one of the tables names none."""
    first, second = find_mount(own, "/"), find_mount(others, "/")
    if first is None or second is None:
        return None
    return (first.device, first.root) != (second.device, second.root)


def describe_shared_memory(mounts: list[Mount], memory_mib: int | None) -> dict[str, Any]:
    """``{kind, size_mib, of_memory}`` of /dev/shm.

    `kind`: the file system that /dev/shm is, or lies in. A tmpfs without `size=` may grow to half of the host's memory
    (`of_memory`), tmpfs(5). `size_mib`: 'unlimited' for size=0; None if unknown.
    """
    mount = find_mount_of(mounts, "/dev/shm")  # noqa: S108  looked at, not written
    if mount is None or mount.kind != "tmpfs":
        return {"kind": mount.kind if mount else None, "size_mib": None, "of_memory": None}
    given = next((option[5:] for option in mount.super_options if option.startswith("size=")), None)
    if given is None:
        return {"kind": mount.kind, "size_mib": None if memory_mib is None else memory_mib // 2, "of_memory": True}
    size = parse_size(given)
    return {
        "kind": mount.kind,
        "size_mib": "unlimited" if size == 0 else None if size is None else size >> 20,
        "of_memory": False,
    }


def parse_size(text: str) -> int | None:
    """Bytes of a size as tmpfs writes it: 65536k, 32g, 1048576."""
    match = re.fullmatch(r"([0-9]{1,15})([kKmMgG]?)", text)
    number = values.whole_number(match[1]) if match else None
    return None if match is None or number is None else number * _UNITS[match[2].lower()]


def list_given_mounts(mounts: list[Mount]) -> list[dict[str, Any]]:
    """``[{path, kind, source, read_only}]``: what somebody mounted into the container, without what its runtime does.

    `source`: the path on the mounted file system, which is that of the host below the mount point there.
    """
    return [
        {
            "path": mount.point,
            "kind": mount.kind,
            "source": mount.root if mount.source.startswith("/dev/") or mount.root != "/" else mount.source,
            "read_only": "ro" in mount.options,
        }
        for mount in mounts
        if mount.point != "/" and not _RUNTIMES_OWN.fullmatch(mount.point)
    ]
