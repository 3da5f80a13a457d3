"""The container of a server: what it was given, what limits it, who made it, and where it can be asked.

Read from /proc and /sys/fs/cgroup, which tell what holds; and from its runtime, which tells what was asked for.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from ...gpu_host.evidence import values
from ...gpu_host.evidence.errors import Errors
from ...gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, Evidence
from ..ports import LOOPBACK
from . import cgroups, container_log, devices, inspections, mounts, namespaces, reach, weights
from .inside import InsideEvidence

# Bits of CapEff of /proc/PID/status, include/uapi/linux/capability.h.
CAPABILITIES = {
    0: "CHOWN", 1: "DAC_OVERRIDE", 5: "KILL", 12: "NET_ADMIN", 13: "NET_RAW", 14: "IPC_LOCK", 15: "IPC_OWNER",
    17: "SYS_RAWIO", 19: "SYS_PTRACE", 21: "SYS_ADMIN", 23: "SYS_NICE", 24: "SYS_RESOURCE", 27: "MKNOD", 38: "PERFMON",
    39: "BPF",
}  # fmt: skip
_WHOLE_GPU = re.compile(r"[0-9]{1,3}|GPU-[0-9a-f-]{8,36}")
_SECCOMP = {"0": "off", "1": "strict", "2": "filter"}
CLIENTS = ("docker", "podman", "nerdctl")


def find_membership(evidence: Evidence, pid: int) -> cgroups.Membership | None:
    """None where the cgroup of the process cannot be read."""
    reading = evidence.read("/proc/%d/cgroup" % pid, 16384)
    return cgroups.parse_membership(reading.text) if reading.ok else None


def read_mounts(evidence: Evidence, pid: int) -> list[mounts.Mount] | None:
    """The mount table of a process; None where it cannot be read."""
    reading = evidence.read("/proc/%d/mountinfo" % pid, 1 << 20)
    return mounts.parse_mounts(reading.text) if reading.ok else None


def is_contained(evidence: Evidence, pid: int, membership: cgroups.Membership | None) -> bool | None:
    """Whether a process runs in a container: its cgroup names one, or its root is not that of the host's first process.

    None where that is not known. A bundle from before this was asked holds no mount table: there the cgroup decides.
    """
    if membership is None or membership.runtime:
        return None if membership is None else True
    own = evidence.read("/proc/%d/mountinfo" % pid, 1 << 20)
    if own.status in (NOT_CAPTURED, ABSENT):
        return False
    first = read_mounts(evidence, 1)
    if not own.ok or first is None:
        return None
    return mounts.has_other_root(mounts.parse_mounts(own.text), first)


def read_container(
    evidence: Evidence,
    pid: int,
    environment: Mapping[str, str] | None,
    errors: Errors,
    *,
    monitors: Sequence[Sequence[str]] = (),
    light: bool = False,
) -> tuple[bool | None, dict[str, Any] | None]:
    """(whether process `pid` runs in a container, what is known of it; None for one in none).

    `monitors`: the command lines of the host's conmon processes.

    `runtime` (docker, podman, containerd, cri-o, nerdctl; None where no cgroup names it), `id`, `name`, `pod_uid`;
    `inspected`: whether the runtime described it. `image`, `image_id`, `digest` ("" for an image that no registry
    knows), `floating`: whether the image's name is one that means another image tomorrow. `arguments`, `mounts`:
    ``[{path, kind, source, read_only}]``. `shared_memory` (mounts.py). `ipc`, `network`: "host" or "own".
    `own_namespaces`: kind -> whether it has its own; `inner_pid`. `limits` (cgroups.py), `oom_killed`. `devices`
    (devices.py), with `asked` (the GPUs that it was to get), `meant` (how many those are) and `lacking` (how many of
    them it does not have). `capabilities` (the effective ones, without CAP_; those of CAPABILITIES), `may_lock_memory`,
    `seccomp`, `privileged`. `restart_policy`, `restarts`, `comes_back`. `log_driver`, `log_path`. `started_by`:
    ``{kind, ...}`` with kind compose, kubernetes, systemd or None. `addresses`, `published` (where it can be asked).
    """
    membership = find_membership(evidence, pid)
    inside = is_contained(evidence, pid, membership)
    if not inside:
        if inside is None:
            errors.unanswered(evidence.read("/proc/%d/cgroup" % pid, 16384))
            errors.unanswered(evidence.read("/proc/%d/mountinfo" % pid, 1 << 20))
            errors.unanswered(evidence.read("/proc/1/mountinfo", 1 << 20))
        return inside, None
    assert membership is not None  # is_contained() says None without one
    told = inspections.inspect_container(evidence, membership, errors, light=light) if membership.runtime else None
    seen = told or dict.fromkeys(inspections.FIELDS)
    found: dict[str, Any] = {
        "runtime": membership.runtime,
        "id": membership.id,
        "pod_uid": membership.pod,
        "inspected": told is not None,
        **{
            name: seen[name] for name in inspections.FIELDS if name not in ("shm_mib", "devices_asked", "out_of_memory")
        },
    }
    if not membership.runtime:
        errors.add("the container of process %d" % pid, "has no runtime that its cgroup names, and none describes it")
    if told is None:
        _add_monitored(found, monitors)
    _add_mounts(evidence, pid, found, errors)
    _add_namespaces(evidence, pid, found, seen, errors)
    _add_status(evidence, pid, found, errors)
    found["limits"] = cgroups.read_limits(evidence, membership, errors)
    found["oom_killed"] = _was_killed(found["limits"]["oom_kills"], seen["out_of_memory"])
    found["devices"] = _read_devices(evidence, pid, environment, told, errors, in_pod=bool(membership.pod))
    found["floating"] = is_floating(found["image"])
    _add_maker(evidence, found, membership)
    found["comes_back"] = _comes_back(found)
    return True, found


def _add_monitored(found: dict[str, Any], monitors: Sequence[Sequence[str]]) -> None:
    """What the command line of podman's and CRI-O's monitor says, conmon(8): the name and where the log goes.

    So it is with a rootless container, which root's own podman does not know.
    """
    for words in monitors:
        given = dict(zip(words, words[1:]))
        if found["id"] and given.get("-c") == found["id"]:
            driver, _colon, path = given.get("-l", "").partition(":")
            found.update(name=given.get("-n"), log_driver=driver or None, log_path=path or None)


def _add_mounts(evidence: Evidence, pid: int, found: dict[str, Any], errors: Errors) -> None:
    reading = evidence.read("/proc/%d/mountinfo" % pid, 1 << 20)
    errors.unanswered(reading)
    table = mounts.parse_mounts(reading.text) if reading.ok else None
    memory = re.search(r"^MemTotal:\s+([0-9]+) kB", evidence.read("/proc/meminfo").text, re.MULTILINE)
    total = values.whole_number(memory[1]) if memory else None
    found["shared_memory"] = mounts.describe_shared_memory(table or [], None if total is None else total // 1024)
    if table is not None:
        asked = {one["path"]: one["source"] for one in found["mounts"] or ()}
        given = mounts.list_given_mounts(table)
        found["mounts"] = [{**one, "source": asked.get(one["path"]) or one["source"]} for one in given]


def _add_namespaces(evidence: Evidence, pid: int, found: dict[str, Any], seen: dict[str, Any], errors: Errors) -> None:
    own = namespaces.read_namespaces(evidence, pid, errors)
    differs = namespaces.compare_namespaces(own, namespaces.read_of_host(evidence, errors))
    found["own_namespaces"] = differs
    found["ipc_namespace"] = (own or {}).get("ipc")
    for kind, name, mode in (("ipc", "ipc", "ipc_mode"), ("net", "network", "network_mode")):
        known = differs[kind]
        if known is None and seen[mode]:
            known = seen[mode] != "host"
        found[name] = None if known is None else "own" if known else "host"
    found["inner_pid"] = namespaces.read_inner_pid(evidence, pid)
    if not found["addresses"] and found["network"] == "own":
        theirs = namespaces.find_local_addresses(evidence.read("/proc/%d/net/fib_trie" % pid, 1 << 20).text)
        hosts = namespaces.find_local_addresses(evidence.read("/proc/net/fib_trie", 1 << 20).text)
        # A rootless container with pasta has copies of the host's addresses: asked there, the host itself would answer.
        found["addresses"] = [one for one in theirs if one not in hosts]


def _add_status(evidence: Evidence, pid: int, found: dict[str, Any], errors: Errors) -> None:
    reading = evidence.read("/proc/%d/status" % pid, 16384)
    errors.unanswered(reading)
    fields = dict(re.findall(r"^(\w+):\s*(.*)$", reading.text, re.MULTILINE)) if reading.ok else {}
    mask = values.hexadecimal_number(fields.get("CapEff"))
    found["capabilities"] = (
        None if mask is None else [name for bit, name in sorted(CAPABILITIES.items()) if mask >> bit & 1]
    )
    # Of another user namespace than the host's, capabilities do not lift the limit of locked memory.
    user = found["own_namespaces"]["user"]
    locks = None if found["capabilities"] is None else "IPC_LOCK" in found["capabilities"]
    found["may_lock_memory"] = False if user else None if user is None and locks else locks
    found["seccomp"] = _SECCOMP.get(fields.get("Seccomp", ""))


def _was_killed(kills: int | None, told: bool | None) -> bool | None:
    if kills or told:
        return True
    return None if kills is None else False


def _read_devices(
    evidence: Evidence,
    pid: int,
    environment: Mapping[str, str] | None,
    told: dict[str, Any] | None,
    errors: Errors,
    *,
    in_pod: bool,
) -> dict[str, Any]:
    found = devices.read_devices(evidence, pid, errors)
    asked = (told or {}).get("devices_asked") or None
    given = (environment or {}).get("NVIDIA_VISIBLE_DEVICES")
    if not asked and given is not None and given != "void":  # void: the devices came by CDI
        asked = inspections.parse_visible_devices(given)
        if in_pod and asked == ["all"]:  # of the image; a pod gets what the device plugin gives it
            asked = None
    if asked is None and (told or in_pod):
        asked = []  # it named none
    found["asked"] = asked
    meant = None if asked is None else _count_meant(asked, found["host_gpus"])
    gpus = found["gpus"]
    found["meant"] = meant
    found["lacking"] = max(0, meant - len(gpus)) if isinstance(meant, int) and gpus is not None else None
    return found


def _count_meant(asked: list[str], host_gpus: list[int] | None) -> int | str | None:
    """How many GPUs were asked for, 'n/a' for parts of a GPU (MIG) and what has another form; None if unknown."""
    if not asked:
        return 0
    if "all" in asked:
        return None if host_gpus is None else len(host_gpus)
    count = next((values.whole_number(one.partition("=")[2]) for one in asked if one.startswith("count=")), None)
    if count is not None:
        return count
    return len(set(asked)) if all(_WHOLE_GPU.fullmatch(one) for one in asked) else "n/a"


def is_floating(image: str | None) -> bool | None:
    """Whether the name of an image has no tag or `latest`, so that the next pull may bring another one."""
    if not image or image.startswith("sha256:"):
        return None if not image else False
    if "@sha256:" in image:
        return False
    tag = image.rpartition("/")[2].partition(":")[2]
    return tag in ("", "latest")


def _add_maker(evidence: Evidence, found: dict[str, Any], membership: cgroups.Membership) -> None:
    """Who started it, by labels, else by the cgroup and the link of the kubelet."""
    made = found["started_by"] or {"kind": None}
    if made["kind"] is None and membership.pod:
        names = evidence.list("/var/log/containers").entries
        own = next((name for name in names if name.endswith("-%s.log" % membership.id)), "")
        made = {"kind": "kubernetes", **(container_log.parse_link_name(own) or {})}
        found["name"] = found["name"] or made.get("container")
    if made["kind"] is None and membership.service:
        made = {"kind": "systemd", "unit": membership.service}
    found["started_by"] = made


def _comes_back(found: dict[str, Any]) -> bool | None:
    """Whether something starts the server again after a crash or a reboot.

    The kubelet and a systemd unit do, unless they are told not to, which is theirs to say.
    """
    if found["started_by"]["kind"] in ("kubernetes", "systemd"):
        return True
    policy = found["restart_policy"]
    return None if policy is None else policy not in ("no", "")


def list_bindings(container: dict[str, Any], proxied: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """The published ports, ``{port, host_address, host_port}``, as the runtime says, or as its docker-proxy shows.

    `proxied`: what the docker-proxy processes of the host pass on.
    """
    addresses = container["addresses"] or []
    return [*(container["published"] or []), *(one for one in proxied if one["address"] in addresses)]


def find_way(
    container: dict[str, Any], port: int, bindings: list[dict[str, Any]], listens: list[str]
) -> dict[str, Any]:
    """How the host reaches `port` of the container (reach.py), with `loopback_only`: nobody outside it can.

    `listens`: the addresses that the server listens on, in the form of /proc/PID/net/tcp; none where that is not known.
    """
    own = all(address in LOOPBACK for address in listens) if listens else None
    way = reach.find_way(
        port, bindings, container["addresses"] or [], in_pod=bool(container["pod_uid"]), own_loopback=own
    )
    return {**way, "loopback_only": own}


def find_client_unit(evidence: Evidence, pid: int, clients: list[tuple[int, list[str]]], errors: Errors) -> str | None:
    """The systemd service whose `docker run` or the like holds the container of `pid` in the foreground.

    None where none does. `clients`: such processes of the host, each with its command line.
    """
    membership = find_membership(evidence, pid)
    if membership is None or not membership.runtime:
        return None
    told = inspections.inspect_container(evidence, membership, errors, light=True) or {}
    names = {told.get("name"), membership.id} - {None}
    for number, words in clients:
        given = {word.partition("=")[2] if word.startswith("--name=") else word for word in words}
        theirs = find_membership(evidence, number)
        if names & given and theirs and theirs.service:
            return theirs.service
    return None


def is_named(evidence: Evidence, pid: int, name: str, errors: Errors) -> bool:
    """Whether process `pid` runs in the container of this name or id (its first 12 digits or more)."""
    membership = find_membership(evidence, pid)
    if membership is None or not membership.id:
        return False
    if len(name) >= 12 and membership.id.startswith(name):
        return True
    told = inspections.inspect_container(evidence, membership, errors, light=True)
    return told is not None and told["name"] == name


def is_client(words: list[str]) -> bool:
    """Whether a command line runs or starts a container and stays with it."""
    own = words[0].rpartition("/")[2] if words else ""
    return own in CLIENTS and any(word in ("run", "start", "attach") for word in words[1:4])


def measure_model(evidence: Evidence, pid: int, model: str | None, environment: Mapping[str, str] | None) -> int | None:
    """MiB of the model's weights, where the container has them."""
    return weights.measure_weights(InsideEvidence(evidence, pid), model, dict(environment or {}))
