"""Which container a process belongs to, by its cgroup, and what the cgroup limits.

The paths are those of the runtimes' own cgroup drivers: docker-ID.scope and /docker/ID (moby), libpod-ID.scope and
libpod-payload-ID (podman), cri-containerd-ID.scope, crio-ID.scope and kubepods/.../podUID/ID (the kubelet and its
runtimes), nerdctl-ID.scope. Files and units: Documentation/admin-guide/cgroup-v2.rst and cgroup-v1/ of the kernel.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Callable

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import ABSENT, Evidence, Reading

DOCKER, PODMAN, CONTAINERD, CRIO, NERDCTL = "docker", "podman", "containerd", "cri-o", "nerdctl"
_ID = r"(?P<id>[0-9a-f]{64})"
# The last part of a path that is a container's -> its runtime.
_NAMED = (
    (DOCKER, re.compile(r"docker-%s\.scope" % _ID)),
    (PODMAN, re.compile(r"libpod(?:-payload)?-%s(?:\.scope)?" % _ID)),
    (CONTAINERD, re.compile(r"(?:[^:]*:)?cri-containerd[-:]%s(?:\.scope)?" % _ID)),
    (CRIO, re.compile(r"(?:[^:]*:)?crio[-:]%s(?:\.scope)?" % _ID)),
    (NERDCTL, re.compile(r"nerdctl-%s\.scope" % _ID)),
)
_BARE = re.compile(_ID)
_POD = re.compile(r"(?:^|[-/])pod(?P<uid>[0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})")
# Services that a container's cgroup can stand below and that did not start the server: the runtimes themselves.
RUNTIME_SERVICE = re.compile(
    r"(?:docker|dockerd|containerd|crio|cri-o|kubelet|k3s|k3s-agent|rke2-server|rke2-agent|podman|buildkit"
    r"|snap\.docker\.dockerd|snap\.microk8s\.daemon-[a-z-]{1,40})\.service"
)
_ROOT = "/sys/fs/cgroup"
_DEPTH_AT_MOST = 16
_NO_LIMIT_BYTES = 1 << 60  # cgroup v1 writes the largest multiple of a page that fits
MIB = 1 << 20


@dataclass(frozen=True)
class Membership:
    """What /proc/PID/cgroup says: `runtime` and `id` of the container (None in none), `pod`: UID of a Kubernetes pod.

    `paths`: controller -> path below its hierarchy, "" for that of cgroup v2. `service`: the systemd service above it.
    """

    runtime: str | None
    id: str | None
    pod: str | None
    paths: dict[str, str]
    service: str | None


def parse_membership(text: str) -> Membership:
    """The container that the text of a /proc/PID/cgroup names."""
    paths: dict[str, str] = {}
    for line in text.splitlines():
        _number, _colon, rest = line.partition(":")
        controllers, colon, path = rest.partition(":")
        if colon and path.startswith("/"):
            paths.update(dict.fromkeys(controllers.split(","), path))
    order = [paths[name] for name in ("memory", "pids", "") if name in paths] + list(paths.values())
    for path in order:
        parts = path.split("/")
        runtime, identity, at = _find_container(parts)
        if runtime:
            return Membership(runtime, identity, _find_pod(path), paths, _find_service(parts[:at]))
    services = [service for service in (_find_service(path.split("/")) for path in paths.values()) if service]
    return Membership(None, None, None, paths, services[0] if services else None)


def _find_container(parts: list[str]) -> tuple[str | None, str | None, int]:
    """(runtime, id, place in the path) of the outermost container: that of the runtime of this host.

    What is in a container may make cgroups and containers of its own.
    """
    for at, part in enumerate(parts):
        for runtime, pattern in _NAMED:
            match = pattern.fullmatch(part)
            if match:
                return runtime, match["id"], at
        bare = _BARE.fullmatch(part)
        named = _find_runtime_of(parts[at - 1]) if bare and at else None
        if bare and named:
            return named, bare["id"], at
    return None, None, 0


def _find_runtime_of(parent: str) -> str | None:
    """Of a container whose cgroup has its bare number as its name, by the cgroup above."""
    if parent in ("docker", "docker-ce"):
        return DOCKER
    if parent in ("libpod", "libpod_parent"):
        return PODMAN
    if parent in ("default", "k8s.io", "nerdctl"):
        return NERDCTL
    # CRI-O and dockerd do it, too; crictl speaks to whichever it is.
    return CONTAINERD if _POD.search(parent) else None


def _find_pod(path: str) -> str | None:
    """The UID of the pod as Kubernetes writes it; systemd's names have underscores in the place of dashes."""
    match = _POD.search(path)
    return match["uid"].replace("_", "-") if match else None


def _find_service(parts: Sequence[str]) -> str | None:
    """The systemd service of a cgroup path, without the runtimes' own and the manager of a user's session."""
    for part in reversed(parts):
        if part.endswith(".service") and not part.startswith("user@") and not RUNTIME_SERVICE.fullmatch(part):
            return part
    return None


def read_limits(evidence: Evidence, membership: Membership, errors: Errors) -> dict[str, Any]:
    """What the cgroup and those above it allow.

    ``{memory_max_mib, memory_current_mib, cpus, cpu_set, processes_max, oom_kills}``: 'unlimited' where nothing
    limits, None where that is not known. `cpus`: as many as the quota allows. `oom_kills`: processes of the container
    that the kernel killed because its memory limit was reached.
    """
    if "memory" in membership.paths or "" not in membership.paths:
        return _limits_v1(evidence, membership, errors)
    chain = _chain(membership.paths[""])
    leaf = chain[0] if chain else ""
    memory = [_read_memory(evidence, "%s%s/memory.max" % (_ROOT, path), path == leaf, errors) for path in chain]
    tasks = [_read_count(evidence, "%s%s/pids.max" % (_ROOT, path), path == leaf, errors) for path in chain]
    return {
        "memory_max_mib": _lowest(memory),
        "memory_current_mib": _mib(_read_number(evidence, "%s%s/memory.current" % (_ROOT, leaf), errors)),
        "cpus": _lowest(
            [_read_quota(evidence, "%s%s/cpu.max" % (_ROOT, path), path == leaf, errors) for path in chain]
        ),
        "cpu_set": _read_text(evidence, "%s%s/cpuset.cpus.effective" % (_ROOT, leaf)),
        "processes_max": _lowest(tasks),
        "oom_kills": _read_field(evidence, "%s%s/memory.events" % (_ROOT, leaf), "oom_kill", errors),
    }


def _chain(path: str) -> list[str]:
    """The cgroup and those above it, without the root, which has no limits."""
    parts = [part for part in path.split("/") if part]
    return ["/" + "/".join(parts[:end]) for end in range(len(parts), 0, -1)][:_DEPTH_AT_MOST]


def _lowest(found: Sequence[int | float | str | None]) -> int | float | str | None:
    """The strictest of several limits; None where one that may be stricter is not known."""
    numbers = [one for one in found if isinstance(one, (int, float))]
    if None in found or not found:
        return None
    return min(numbers) if numbers else "unlimited"


def _read_limit(
    evidence: Evidence, path: str, own: bool, errors: Errors, parse: Callable[[Reading], int | float | str | None]
) -> int | float | str | None:
    """'unlimited' for a file that is not there: the controller is not on for a cgroup above (`own`: unknown)."""
    reading = evidence.read(path, 4096)
    if reading.status == ABSENT and not own:
        return "unlimited"
    errors.unanswered(reading)
    return parse(reading) if reading.ok else None


def _read_memory(evidence: Evidence, path: str, own: bool, errors: Errors) -> int | float | str | None:
    def parse(reading: Reading) -> int | str | None:
        text = reading.text.strip()
        if text in ("max", "-1"):
            return "unlimited"
        number = _number_of_bytes(text)
        if number is None:
            errors.odd(path, "is no limit of memory", text)
        return number if number is None else "unlimited" if number >= _NO_LIMIT_BYTES else number // MIB

    return _read_limit(evidence, path, own, errors, parse)


def _number_of_bytes(text: str) -> int | None:
    """The limit that cgroup v1 writes for "none" has 19 digits."""
    return _NO_LIMIT_BYTES if re.fullmatch(r"[0-9]{19,20}", text) else values.whole_number(text)


def _read_count(evidence: Evidence, path: str, own: bool, errors: Errors) -> int | float | str | None:
    def parse(reading: Reading) -> int | str | None:
        text = reading.text.strip()
        return "unlimited" if text == "max" else errors.read_whole(path, "the limit", text)

    return _read_limit(evidence, path, own, errors, parse)


def _read_quota(evidence: Evidence, path: str, own: bool, errors: Errors) -> int | float | str | None:
    def parse(reading: Reading) -> float | str | None:
        words = reading.text.split()
        if words[:1] == ["max"]:
            return "unlimited"
        quota, period = (values.whole_number(words[at]) if len(words) > at else None for at in (0, 1))
        if quota is None or not period:
            errors.odd(path, "is no quota of a cgroup", reading.text.strip())
            return None
        return round(quota / period, 2)

    return _read_limit(evidence, path, own, errors, parse)


def _read_number(evidence: Evidence, path: str, errors: Errors) -> int | None:
    reading = evidence.read(path, 4096)
    errors.unanswered(reading)
    return errors.read_whole(path, "the value", reading.text.strip()) if reading.ok else None


def _read_text(evidence: Evidence, path: str) -> str | None:
    """None also where the cpuset controller is off for the container."""
    reading = evidence.read(path, 65536)
    return reading.text.strip() or None if reading.ok else None


def _read_field(evidence: Evidence, path: str, name: str, errors: Errors) -> int | None:
    reading = evidence.read(path, 65536)
    errors.unanswered(reading)
    match = re.search(r"^%s (\S+)$" % name, reading.text, re.MULTILINE) if reading.ok else None
    return errors.read_whole(path, name, match[1]) if match else None


def _mib(number: int | None) -> int | None:
    return None if number is None else number // MIB


def _limit_of_chain(
    found: Sequence[int | float | str | None], membership: Membership, controller: str
) -> int | float | str | None:
    """Of cgroup v1; where the process is in the root of a hierarchy, nothing limits it there."""
    if controller not in membership.paths:
        return None
    return _lowest(found) if found else "unlimited"


def _limits_v1(evidence: Evidence, membership: Membership, errors: Errors) -> dict[str, Any]:
    def place(controller: str, name: str) -> str | None:
        path = membership.paths.get(controller)
        return None if path is None else "%s/%s%s/%s" % (_ROOT, controller, path.rstrip("/"), name)

    usage = place("memory", "memory.usage_in_bytes")
    events, quota = place("memory", "memory.oom_control"), place("cpu", "cpu.cfs_quota_us")
    period, cpus = place("cpu", "cpu.cfs_period_us"), place("cpuset", "cpuset.effective_cpus")
    tasks = [
        _read_count(evidence, "%s/pids%s/pids.max" % (_ROOT, path), at == 0, errors)
        for at, path in enumerate(_chain(membership.paths.get("pids", "")))
    ]
    limit = [
        _read_memory(evidence, "%s/memory%s/memory.limit_in_bytes" % (_ROOT, path), at == 0, errors)
        for at, path in enumerate(_chain(membership.paths.get("memory", "")))
    ]
    given = _read_number(evidence, quota, errors) if quota else None
    share = _read_number(evidence, period, errors) if period and given is not None and given > 0 else None
    return {
        "memory_max_mib": _limit_of_chain(limit, membership, "memory"),
        "memory_current_mib": _mib(_read_number(evidence, usage, errors)) if usage else None,
        "cpus": None if given is None else "unlimited" if given < 0 else round(given / share, 2) if share else None,
        "cpu_set": _read_text(evidence, cpus) if cpus else None,
        "processes_max": _limit_of_chain(tasks, membership, "pids"),
        "oom_kills": _read_field(evidence, events, "oom_kill", errors) if events else None,
    }
