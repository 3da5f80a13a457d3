"""The server of server.py in a container, as the host of the container sees it: Docker Compose, Kubernetes, podman.

Paths of cgroups, mount tables and the answers of the runtimes are in the forms that public outputs of Docker 28,
containerd 1.7 with crictl, and podman 5 have; the values are made up.
"""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ansible.module_utils.gpu_server import units
from ansible.module_utils.gpu_server.log import log_source

from . import server
from .tree import BOOTED_AT, TAKEN_AT, HostModel

DOCKER_ID = "6f1c0d5a94e27b83d1f05c6e9a7b42380c1d5e6f7a8b9c0d1e2f3a4b5c6d7e8f"
POD_ID = "b7e2a9c4415d3f60872b1e9d0c5a6f734e8d2c1b0a9f8e7d6c5b4a3928170605"
PODMAN_ID = "2c9e4b7d1a6f83505e1d9c8b7a6f5e4d3c2b1a0918273645f5e6d7c8b9a0f1e2"
POD_UID = "3f7c1a52-9b0e-4d68-8a71-5c2e90b4d6f3"
IMAGE = "lmsysorg/sglang:v0.5.23-cu130"
IMAGE_ID = "sha256:51d0c7a4e8b9f2365a1c0d9e8f7b6a5c4d3e2f1a0b9c8d7e6f5a4b3c2d1e0f9a"
DIGEST = "sha256:0a9b8c7d6e5f4a3b2c1d0e9f8a7b6c5d4e3f2a1b0c9d8e7f6a5b4c3d2e1f0a9b"
MODEL = "/models/GLM-5-NVFP4"
NAMESPACES = {
    "cgroup": 4026531835, "ipc": 4026531839, "mnt": 4026531841, "net": 4026531840, "pid": 4026531836,
    "user": 4026531837, "uts": 4026531838,
}  # fmt: skip
PLAIN_CAPABILITIES, ALL_CAPABILITIES = "00000000a80425fb", "000001ffffffffff"
UNIT = "sglang.service"
# What the runtimes mount themselves, as Docker, containerd and podman do it.
_OWN_MOUNTS = (
    "812 811 0:{proc} / /proc rw,nosuid,nodev,noexec,relatime - proc proc rw\n"
    "813 811 0:{dev} / /dev rw,nosuid - tmpfs tmpfs rw,size=65536k,mode=755,inode64\n"
    "814 811 0:{sys} / /sys ro,nosuid,nodev,noexec,relatime - sysfs sysfs ro\n"
    "815 811 259:2 {etc}/hosts /etc/hosts rw,relatime - ext4 /dev/nvme0n1p2 rw\n"
    "816 811 259:2 /usr/lib/x86_64-linux-gnu/libcuda.so.595.58.03 "
    "/usr/lib/x86_64-linux-gnu/libcuda.so.595.58.03 ro,nosuid,nodev,relatime - ext4 /dev/nvme0n1p2 rw\n"
)


@dataclass(frozen=True)
class Container:
    """What differs from one runtime to another."""

    cgroup: str
    etc: str  # of the host, where its /etc/hosts is kept
    shared_memory: str  # options of the tmpfs at /dev/shm
    own: frozenset[str]  # namespaces
    capabilities: str = PLAIN_CAPABILITIES
    memory_max: str = "max"


def _words(host: str) -> tuple[str, ...]:
    text = server.COMMAND.replace("/opt/sglang/bin/python3", "python3").replace("lukealonso/GLM-5-NVFP4", MODEL)
    return tuple(text.replace("--host 127.0.0.1", "--host " + host).split())


def _environment(devices: str) -> dict[str, str]:
    given = {**server.ENVIRONMENT, "NVIDIA_VISIBLE_DEVICES": devices, "NVIDIA_DRIVER_CAPABILITIES": "compute,utility"}
    given["PATH"] = "/usr/local/nvidia/bin:/usr/local/cuda/bin:/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin"
    return given


def _place(container: Container, devices: str, **more: Any) -> server.Place:
    """The server in a container with a network of its own, whose output goes to a pipe."""
    own = "811 620 0:71 / / rw,relatime - overlay overlay rw,lowerdir=/l/A:/l/B,upperdir=/u/diff,workdir=/u/work\n"
    table = own + _OWN_MOUNTS.format(proc=74, dev=75, sys=76, etc=container.etc)
    table += "817 813 0:73 / /dev/shm rw,nosuid,nodev,noexec,relatime - tmpfs shm %s\n" % container.shared_memory
    table += "818 811 259:3 /models /models ro,relatime - xfs /dev/nvme1n1 rw\n"
    status = "NSpid:\t%d\t1\nSeccomp:\t2\nCapEff:\t%s\n" % (server.PID, container.capabilities)
    given: dict[str, Any] = {
        "words": _words("0.0.0.0"),  # noqa: S104  in a container's own network
        "environment": _environment(devices),
        "cgroup": "0::%s\n" % container.cgroup,
        "mounts": table,
        "root": "/proc/%d/root" % server.PID,
        "packages": "/usr/local/lib/python3.12/dist-packages",
        "net": "/proc/%d" % server.PID,
        "listens": "00000000",
        "log": None,
        "status": status,
    }
    return server.Place(**{**given, **more})


def _install(model: HostModel, addresses: Sequence[str], container: Container, place: server.Place) -> None:
    server.install(model, list(addresses), place)
    for pid, own in ((1, frozenset[str]()), (server.PID, container.own)):
        for kind, number in NAMESPACES.items():
            inode = number if kind not in own else number + 700000 + len(kind)
            model.link("/proc/%d/ns/%s" % (pid, kind), "%s:[%d]" % (kind, inode))
    root = place.root
    for name in ("nvidiactl", "nvidia-uvm", "nvidia-uvm-tools", *("nvidia%d" % n for n in range(len(addresses)))):
        entry = model.list("/dev").entries[name]
        model.device(root + "/dev/" + name, entry.major or 0, entry.minor or 0)
    model.file(root + "/usr/bin/python3", "")
    model.directory(root + "/etc")
    for number in range(1, 84):
        model.file("%s%s/model-%05d-of-00083.safetensors" % (root, MODEL, number), "", size=5368000000)
    model.file(root + MODEL + "/config.json", "{}")
    parts = container.cgroup.strip("/").split("/")
    for end in range(1, len(parts) + 1):
        base = "/sys/fs/cgroup/" + "/".join(parts[:end])
        own_limit = container.memory_max if end == len(parts) else "max"
        model.file(base + "/memory.max", own_limit + "\n")
        model.file(base + "/cpu.max", "max 100000\n")
        model.file(base + "/pids.max", "max\n")
    base = "/sys/fs/cgroup/" + "/".join(parts)
    model.file(base + "/memory.current", "%d\n" % (118 << 30))
    model.file(base + "/memory.events", "low 0\nhigh 0\nmax 0\noom 0\noom_kill 0\noom_group_kill 0\n")
    model.file(base + "/cpuset.cpus.effective", "0-127\n")


def _fib(*addresses: str) -> str:
    """/proc/net/fib_trie with these local addresses."""
    rows = "".join(
        "           |-- %s\n              /32 host LOCAL\n" % address for address in ("127.0.0.1", *addresses)
    )
    return "Main:\n  +-- 0.0.0.0/0 3 0 5\n     |-- 0.0.0.0\n        /0 universe UNICAST\nLocal:\n" + rows


def docker(model: HostModel, addresses: Sequence[str]) -> HostModel:
    """Docker Compose: a network of its own, the port published on 127.0.0.1, the log in a json-file."""
    model.name = "docker"
    model.note = (
        "Reconstructed: the bare-metal host of the field story with its server in a container of Docker Compose, "
        "healthy. The forms are those of public outputs of docker inspect."
    )
    kept = "/var/lib/docker/containers/" + DOCKER_ID
    container = Container(
        cgroup="/system.slice/docker-%s.scope" % DOCKER_ID,
        etc=kept,
        shared_memory="rw,size=33554432k,inode64",
        own=frozenset(NAMESPACES) - {"user"},
    )
    _install(model, addresses, container, _place(container, "all"))
    model.file("/proc/%d/net/fib_trie" % server.PID, _fib("172.18.0.2"))
    model.file(kept + "/%s-json.log" % DOCKER_ID, docker_log(), modified=TAKEN_AT - 600)
    model.command(("docker", "inspect", DOCKER_ID), json.dumps([docker_inspect(kept)], indent=4) + "\n")
    image = [{"Id": IMAGE_ID, "RepoTags": [IMAGE], "RepoDigests": ["lmsysorg/sglang@" + DIGEST]}]
    model.command(("docker", "image", "inspect", IMAGE_ID), json.dumps(image, indent=4) + "\n")
    return model


def docker_inspect(kept: str) -> dict[str, Any]:
    """One container as Docker 28 describes it, without what nobody reads."""
    words = list(_words("0.0.0.0"))  # noqa: S104  in a container's own network
    bindings = {"8000/tcp": [{"HostIp": "127.0.0.1", "HostPort": str(server.PORT)}]}
    return {
        "Id": DOCKER_ID,
        "Created": "2026-04-09T22:12:40.118274512Z",
        "Path": words[0],
        "Args": words[1:],
        "State": {
            "Status": "running", "Running": True, "Paused": False, "Restarting": False, "OOMKilled": False,
            "Dead": False, "Pid": server.PID, "ExitCode": 0, "Error": "", "StartedAt": "2026-04-09T22:13:20.5Z",
        },
        "Image": IMAGE_ID,
        "LogPath": "%s/%s-json.log" % (kept, DOCKER_ID),
        "Name": "/llm-sglang-1",
        "RestartCount": 0,
        "HostConfig": {
            "Binds": ["/models:/models:ro"],
            "LogConfig": {"Type": "json-file", "Config": {"max-file": "3", "max-size": "200m"}},
            "NetworkMode": "llm_default",
            "PortBindings": bindings,
            "RestartPolicy": {"Name": "unless-stopped", "MaximumRetryCount": 0},
            "IpcMode": "private",
            "Privileged": False,
            "ShmSize": 34359738368,
            "Runtime": "runc",
            "Devices": [],
            "DeviceRequests": [
                {"Driver": "nvidia", "Count": -1, "DeviceIDs": None, "Capabilities": [["gpu"]], "Options": None}
            ],
            "Ulimits": [{"Name": "memlock", "Hard": -1, "Soft": -1}],
        },
        "Mounts": [
            {"Type": "bind", "Source": "/models", "Destination": "/models", "Mode": "ro", "RW": False,
             "Propagation": "rprivate"},
        ],
        "Config": {
            "Hostname": DOCKER_ID[:12],
            "Env": ["%s=%s" % item for item in _environment("all").items()],
            "Cmd": words,
            "Image": IMAGE,
            "Labels": {
                "com.docker.compose.project": "llm",
                "com.docker.compose.service": "sglang",
                "com.docker.compose.project.config_files": "/srv/llm/compose.yml",
                "com.docker.compose.project.working_dir": "/srv/llm",
                "com.docker.compose.version": "2.39.1",
            },
        },
        "NetworkSettings": {
            "Ports": bindings,
            "Networks": {"llm_default": {"IPAddress": "172.18.0.2", "Gateway": "172.18.0.1"}},
        },
    }  # fmt: skip


def _stamp(after: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S.412000000Z", time.gmtime(server.STARTED_AT + after))


def docker_log() -> str:
    """The server's log as Docker's json-file keeps it."""
    lines = server.log().splitlines()
    return "".join(
        json.dumps({"log": line + "\n", "stream": "stderr", "time": _stamp(at)}) + "\n"
        for at, line in zip(_seconds(lines), lines)
    )


def _seconds(lines: Sequence[str]) -> list[float]:
    """When each line was written, after the start: as its own time says, else as the line before."""
    found, last = [], 0.0
    for line in lines:
        if line.startswith("[20"):
            moment = time.strptime(line[1:20] + " UTC", "%Y-%m-%d %H:%M:%S %Z")
            last = time.mktime(moment) - time.timezone - server.STARTED_AT
        found.append(last)
    return found


def cri_log() -> str:
    """The same as a runtime of Kubernetes keeps it, and podman's k8s-file."""
    lines = server.log().splitlines()
    return "".join("%s stderr F %s\n" % (_stamp(at), line) for at, line in zip(_seconds(lines), lines))


def kubernetes(model: HostModel, addresses: Sequence[str]) -> HostModel:
    """A pod of containerd with all GPUs of the node, its shared memory an emptyDir in memory, a limit of memory."""
    model.name = "kubernetes"
    model.note = (
        "Reconstructed: the bare-metal host of the field story as a node of Kubernetes with its server in a pod, "
        "healthy. The forms are those of public outputs of crictl inspect."
    )
    group = "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope"
    container = Container(
        cgroup=group % (POD_UID.replace("-", "_"), POD_ID),
        etc="/var/lib/kubelet/pods/%s/etc-hosts" % POD_UID,
        shared_memory="rw,size=67108864k,inode64",
        own=frozenset(NAMESPACES) - {"user"},
        memory_max=str(1200 << 30),
    )
    devices = ",".join("GPU-%08x-0000-4000-8000-000000000000" % (number + 1) for number in range(len(addresses)))
    place = _place(container, devices, base="http://10.42.0.17:%d" % server.PORT)
    _install(model, addresses, container, place)
    model.file("/proc/%d/net/fib_trie" % server.PID, _fib("10.42.0.17"))
    model.file("/proc/net/fib_trie", _fib("192.168.10.21", "10.42.0.1"))
    kept = "/var/log/pods/inference_glm-5-0_%s/sglang" % POD_UID
    model.file(kept + "/0.log", cri_log(), modified=TAKEN_AT - 600)
    model.link("/var/log/containers/glm-5-0_inference_sglang-%s.log" % POD_ID, kept + "/0.log")
    model.command(("crictl", "inspect", POD_ID), json.dumps(crictl_inspect(kept, devices), indent=2) + "\n")
    return model


def crictl_inspect(kept: str, devices: str) -> dict[str, Any]:
    """One container as crictl 1.33 with containerd describes it, without what nobody reads."""
    labels = {
        "io.kubernetes.container.name": "sglang",
        "io.kubernetes.pod.name": "glm-5-0",
        "io.kubernetes.pod.namespace": "inference",
        "io.kubernetes.pod.uid": POD_UID,
    }
    namespaces = [
        {"type": "pid"}, {"type": "ipc", "path": "/proc/390/ns/ipc"}, {"type": "uts", "path": "/proc/390/ns/uts"},
        {"type": "mount"}, {"type": "network", "path": "/proc/390/ns/net"}, {"type": "cgroup"},
    ]  # fmt: skip
    words = list(_words("0.0.0.0"))  # noqa: S104  in a pod's own network
    return {
        "info": {
            "config": {
                "CDI_devices": [],
                "envs": [{"key": "NVIDIA_VISIBLE_DEVICES", "value": devices}],
                "image": {"image": IMAGE_ID, "user_specified_image": "docker.io/" + IMAGE},
                "labels": labels,
                "log_path": "sglang/0.log",
                "linux": {"security_context": {"privileged": False}},
            },
            "pid": server.PID,
            "runtimeSpec": {
                "process": {
                    "args": words,
                    "env": ["%s=%s" % item for item in _environment(devices).items()],
                },
                "linux": {"namespaces": namespaces},
            },
            "runtimeType": "io.containerd.runc.v2",
            "sandboxID": "a1" * 32,
        },
        "status": {
            "annotations": {"io.kubernetes.container.hash": "cfada9cb", "io.kubernetes.container.restartCount": "0"},
            "createdAt": "2026-04-09T22:13:19.9Z",
            "exitCode": 0,
            "id": POD_ID,
            "image": {"annotations": {}, "image": "docker.io/" + IMAGE, "userSpecifiedImage": ""},
            "imageId": IMAGE_ID,
            "imageRef": "docker.io/lmsysorg/sglang@" + DIGEST,
            "labels": labels,
            "logPath": kept + "/0.log",
            "metadata": {"attempt": 0, "name": "sglang"},
            "mounts": [
                {"containerPath": "/models", "hostPath": "/models", "readonly": True},
                {"containerPath": "/dev/shm", "readonly": False,  # noqa: S108  a mount of the pod
                 "hostPath": "/var/lib/kubelet/pods/%s/volumes/kubernetes.io~empty-dir/shm" % POD_UID},
            ],
            "reason": "",
            "state": "CONTAINER_RUNNING",
        },
    }  # fmt: skip


def podman(model: HostModel, addresses: Sequence[str]) -> HostModel:
    """A quadlet: the host's network and IPC, GPUs by CDI, the log in the journal of its unit."""
    model.name = "podman"
    model.note = (
        "Reconstructed: the bare-metal host of the field story with its server in a container of a podman quadlet, "
        "healthy. The forms are those of public outputs of podman inspect."
    )
    container = Container(
        cgroup="/system.slice/%s/libpod-payload-%s" % (UNIT, PODMAN_ID),
        etc="/run/containers/storage/overlay-containers/%s/userdata" % PODMAN_ID,
        shared_memory="rw,inode64",
        own=frozenset(("cgroup", "mnt", "pid", "uts")),
    )
    listed = "%s loaded active running SGLang\n" % UNIT
    place = _place(container, "void", words=_words("127.0.0.1"), net="/proc", listens="0100007F", units=listed)
    _install(model, addresses, container, place)
    shown = {
        "Id": UNIT, "LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success",
        "ExecMainStatus": "0", "ExecMainCode": "0", "ExecMainPID": "380", "MainPID": "380", "NRestarts": "0",
        "InvocationID": "5d" * 16, "ExecMainStartTimestampMonotonic": str(round((server.STARTED_AT - BOOTED_AT) * 1e6)),
        "NeedDaemonReload": "no", "FragmentPath": "/run/systemd/generator/" + UNIT, "DropInPaths": "",
        "UnitFileState": "generated", "StandardOutput": "journal", "StandardError": "inherit", "User": "",
        "LimitMEMLOCK": "infinity", "WorkingDirectory": "",
    }  # fmt: skip
    model.command(units.show_command(UNIT), "".join("%s=%s\n" % item for item in shown.items()))
    lines = server.log().splitlines()
    journal = "".join(
        "%.6f gpu1 podman[380]: %s\n" % (server.STARTED_AT + at, line) for at, line in zip(_seconds(lines), lines)
    )
    model.command(log_source.journal_command(UNIT, "5d" * 16), journal)
    model.command(("podman", "inspect", PODMAN_ID), json.dumps([podman_inspect()], indent=5) + "\n")
    return model


def podman_inspect() -> dict[str, Any]:
    """One container as podman 5 describes it, without what nobody reads."""
    words = list(_words("127.0.0.1"))
    return {
        "Id": PODMAN_ID,
        "Created": "2026-04-09T22:13:19.1Z",
        "Path": words[0],
        "Args": words[1:],
        "State": {"Status": "running", "Running": True, "OOMKilled": False, "Pid": server.PID, "ConmonPid": 380},
        "Image": IMAGE_ID.partition(":")[2],
        "ImageDigest": DIGEST,
        "ImageName": "docker.io/" + IMAGE,
        "Pod": "",
        "Name": "systemd-sglang",
        "RestartCount": 0,
        "Mounts": [
            {"Type": "bind", "Source": "/models", "Destination": "/models", "Driver": "", "Mode": "",
             "Options": ["rbind"], "RW": False, "Propagation": "rprivate"},
        ],
        "NetworkSettings": {"IPAddress": "", "Ports": {}, "SandboxKey": ""},
        "Config": {
            "Hostname": "gpu1",
            "Env": ["%s=%s" % item for item in _environment("void").items()],
            "Cmd": words,
            "Image": "docker.io/" + IMAGE,
            "Labels": {"PODMAN_SYSTEMD_UNIT": UNIT},
            "CreateCommand": [
                "/usr/bin/podman", "run", "--name", "systemd-sglang", "--replace", "--rm", "--cgroups=split",
                "--network", "host", "--ipc", "host", "--device", "nvidia.com/gpu=all", "--sdnotify=conmon", "-d",
                "-v", "/models:/models:ro", "docker.io/" + IMAGE, *words,
            ],
            "SystemdMode": False,
        },
        "HostConfig": {
            "Binds": ["/models:/models:ro,rprivate,rbind"],
            "LogConfig": {"Type": "passthrough", "Config": None, "Path": "", "Tag": "", "Size": "0B"},
            "NetworkMode": "host",
            "RestartPolicy": {"Name": "no", "MaximumRetryCount": 0},
            "IpcMode": "host",
            "Privileged": False,
            "ShmSize": 65536000,
            "Devices": [{"PathOnHost": "nvidia.com/gpu=all", "PathInContainer": "", "CgroupPermissions": ""}],
        },
    }  # fmt: skip
