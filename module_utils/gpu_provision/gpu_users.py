"""Who uses the GPUs of this host right now: open device files in /proc/PID/fd, and the units of inference servers.

Read before a driver, a module or a unit is touched. Processes of LXC containers are seen from their host, as they
should be.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from fnmatch import fnmatch
from typing import Any

from ..gpu_host.evidence.interface import Evidence

# Services of the driver itself: they hold the device files, do no work, and a reload stops and starts them.
DRIVER_SERVICES = {
    "nvidia-persiste": "nvidia-persistenced",
    "nv-fabricmanage": "nvidia-fabricmanager",
    "nv-hostengine": "nvidia-dcgm",
    "nvidia-imex": "nvidia-imex",
}
_NODE = re.compile(r"/dev/nvidia(?:\d+|-uvm|-uvm-tools|ctl|-modeset|-caps/.*)?$")
UNITS_COMMAND = [
    "systemctl",
    "list-units",
    "--type=service",
    "--state=active,activating,reloading",
    "--plain",
    "--no-legend",
    "--no-pager",
    "--full",
]


def look(evidence: Evidence, patterns: Sequence[str]) -> dict[str, Any]:
    """What `processes` finds, the `units` that serve, and `text`: one line for a person, empty when the GPUs are free."""
    found = processes()
    found["units"] = serving_units(evidence, patterns) if patterns else []
    found["text"] = describe(found["users"], found["units"])
    return found


def processes(root: str = "/proc") -> dict[str, Any]:
    """``{"users": [...], "driver_services": [...], "unreadable": N}``; each user ``{pid, command, devices, unit,
    container}``.

    `unreadable` counts processes whose files this user may not see: with any, an empty list proves nothing.
    """
    users: list[dict[str, Any]] = []
    services: set[str] = set()
    unreadable = 0
    for name in sorted((name for name in os.listdir(root) if name.isdigit()), key=int):
        devices = _devices(os.path.join(root, name, "fd"))
        if devices is None:
            unreadable += 1
        elif devices:
            command = _text(os.path.join(root, name, "comm"))
            if command in DRIVER_SERVICES:
                services.add(DRIVER_SERVICES[command])
                continue
            unit, container = _unit(_text(os.path.join(root, name, "cgroup")))
            users.append(
                {"pid": int(name), "command": command, "devices": devices, "unit": unit, "container": container}
            )
    return {"users": users, "driver_services": sorted(services), "unreadable": unreadable}


def _devices(directory: str) -> list[str] | None:
    """NVIDIA device files that are open; None if the process may not be looked at. A process that has ended holds none."""
    try:
        names = os.listdir(directory)
    except PermissionError:
        return None
    except OSError:
        return []
    found = set()
    for name in names:
        try:
            target = os.readlink(os.path.join(directory, name))
        except OSError:
            continue
        if _NODE.match(target):
            found.add(target)
    return sorted(found)


def _text(path: str) -> str:
    try:
        with open(path, encoding="utf-8", errors="replace") as handle:
            return handle.read(65536).strip()
    except OSError:
        return ""


def _unit(cgroup: str) -> tuple[str, str]:
    """(systemd service or scope, LXC container id) of a /proc/PID/cgroup text; empty where there is none."""
    parts = [part for line in cgroup.splitlines() for part in line.rpartition(":")[2].split("/")]
    container = next((part for before, part in zip(parts, parts[1:]) if before in ("lxc", "lxc.payload") and part), "")
    unit = next((part for part in reversed(parts) if part.endswith((".service", ".scope"))), "")
    return unit, container


def serving_units(evidence: Evidence, patterns: Sequence[str]) -> list[str]:
    """Active or starting services whose name matches one of the shell `patterns`; empty without systemd."""
    outcome = evidence.run(UNITS_COMMAND, 15)
    names = [line.split()[0] for line in outcome.text.splitlines() if line.split()]
    return sorted({name for name in names if any(fnmatch(name, pattern) for pattern in patterns)})


def describe(users: list[dict[str, Any]], units: list[str]) -> str:
    """One line for a person: who is in the way."""
    parts = []
    for user in users[:8]:
        place = "container %s" % user["container"] if user["container"] else user["unit"]
        parts.append("%s (pid %d%s)" % (user["command"] or "?", user["pid"], ", " + place if place else ""))
    if len(users) > 8:
        parts.append("%d more" % (len(users) - 8))
    if units:
        parts.append("server unit %s" % ", ".join(units))
    return "; ".join(parts)
