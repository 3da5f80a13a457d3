"""A server in a container, as its host sees it: which container, its files, its port, its log, what it was given."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence, load_bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import DENIED, Outcome
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server import gather
from ansible.module_utils.gpu_server.containers import (
    cgroups,
    container_log,
    container_reader,
    inspections,
    mounts,
    namespaces,
    reach,
    weights,
)

HOSTS = Path(__file__).resolve().parents[1] / "fixtures" / "hosts"
ID = "0123456789abcdef" * 4
UID = "6ffc887b-d619-41e7-8e8b-42010af00002"


@pytest.mark.parametrize(
    ("path", "runtime", "pod", "service"),
    [
        ("/system.slice/docker-%s.scope" % ID, "docker", None, None),
        ("/docker/" + ID, "docker", None, None),
        ("/docker/%s/system.slice/nested.service" % ID, "docker", None, None),
        ("/machine.slice/libpod-%s.scope/container" % ID, "podman", None, None),
        ("/system.slice/llm.service/libpod-payload-" + ID, "podman", None, "llm.service"),
        ("/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-%s.scope" % ID, "podman", None, None),
        ("/libpod_parent/libpod-" + ID, "podman", None, None),
        (
            "/kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod%s.slice/cri-containerd-%s.scope"
            % (UID.replace("-", "_"), ID),
            "containerd", UID, None,
        ),
        ("/kubepods/besteffort/pod%s/%s" % (UID, ID), "containerd", UID, None),
        ("/kubepods.slice/kubepods-pod%s.slice/crio-%s.scope" % (UID.replace("-", "_"), ID), "cri-o", UID, None),
        ("/kubepods.slice/kubepods-pod%s.slice/docker-%s.scope" % (UID.replace("-", "_"), ID), "docker", UID, None),
        (
            "/system.slice/containerd.service/kubepods-burstable-pod%s.slice:cri-containerd:%s"
            % (UID.replace("-", "_"), ID),
            "containerd", UID, None,
        ),
        ("/kubelet.slice/kubelet-kubepods.slice/kubelet-kubepods-pod%s.slice/cri-containerd-%s.scope"
         % (UID.replace("-", "_"), ID), "containerd", UID, None),
        ("/system.slice/nerdctl-%s.scope" % ID, "nerdctl", None, None),
        ("/system.slice/sglang.service", None, None, "sglang.service"),
        ("/system.slice/docker.service", None, None, None),
        ("/user.slice/user-0.slice/session-4.scope", None, None, None),
        ("/", None, None, None),
        ("/lxc/102/ns/system.slice/x.service", None, None, "x.service"),
    ],
)  # fmt: skip
def test_the_cgroup_names_the_container(path: str, runtime: str | None, pod: str | None, service: str | None) -> None:
    for text in ("0::%s\n" % path, "12:pids:%s\n5:memory:%s\n1:name=systemd:%s\n0::/\n" % (path, path, path)):
        found = cgroups.parse_membership(text)
        assert (found.runtime, found.pod, found.service) == (runtime, pod, service), text
        assert found.id == (ID if runtime else None)


def read(text: str) -> dict[str, Any]:
    return {"status": "ok", "text": text}


def limits(files: dict[str, str], path: str = "/a.slice/docker-%s.scope" % ID) -> tuple[dict[str, Any], list[Any]]:
    records = [{"read": "/sys/fs/cgroup" + name, **read(text)} for name, text in files.items()]
    evidence, errors = BundleEvidence({}, records), Errors("server")
    for name in ("/a.slice/memory.max", "/a.slice/pids.max", "/a.slice/cpu.max"):
        if name not in files:
            evidence.add({"read": "/sys/fs/cgroup" + name, "status": "absent"})
    return cgroups.read_limits(evidence, cgroups.parse_membership("0::%s\n" % path), errors), errors.entries


def test_the_strictest_limit_of_the_cgroups_above_holds() -> None:
    leaf = "/a.slice/docker-%s.scope/" % ID
    files = {
        leaf + "memory.max": "max\n", "/a.slice/memory.max": "8589934592\n", leaf + "memory.current": "1048576\n",
        leaf + "memory.events": "low 0\nmax 2\noom 1\noom_kill 1\noom_group_kill 0\n",
        leaf + "cpu.max": "150000 100000\n", leaf + "pids.max": "512\n", leaf + "cpuset.cpus.effective": "0-3\n",
    }  # fmt: skip
    found, errors = limits(files)
    assert found == {
        "memory_max_mib": 8192, "memory_current_mib": 1, "cpus": 1.5, "cpu_set": "0-3", "processes_max": 512,
        "oom_kills": 1,
    }  # fmt: skip
    assert errors == []


@pytest.mark.parametrize("text", ["", "much\n", "-\n"])
def test_a_limit_that_cannot_be_read_is_unknown_and_never_none(text: str) -> None:
    found, errors = limits({"/a.slice/docker-%s.scope/memory.max" % ID: text})
    assert found["memory_max_mib"] is None and errors


def test_limits_of_the_first_version_of_cgroups() -> None:
    base = "/sys/fs/cgroup/%s/docker/" + ID
    files = {
        base % "memory" + "/memory.limit_in_bytes": "9223372036854771712\n",
        "/sys/fs/cgroup/memory/docker/memory.limit_in_bytes": "4294967296\n",
        base % "memory" + "/memory.usage_in_bytes": "2097152\n",
        base % "memory" + "/memory.oom_control": "oom_kill_disable 0\nunder_oom 0\noom_kill 2\n",
        base % "cpu" + "/cpu.cfs_quota_us": "-1\n",
        base % "pids" + "/pids.max": "max\n",
        "/sys/fs/cgroup/pids/docker/pids.max": "max\n",
    }
    evidence = BundleEvidence({}, [{"read": path, **read(text)} for path, text in files.items()])
    text = "".join("%d:%s:/docker/%s\n" % (n, name, ID) for n, name in enumerate(("memory", "cpu,cpuacct", "pids"), 2))
    found = cgroups.read_limits(evidence, cgroups.parse_membership(text + "0::/\n"), Errors("server"))
    assert (found["memory_max_mib"], found["oom_kills"], found["cpus"], found["processes_max"]) == (
        4096, 2, "unlimited", "unlimited",
    )  # fmt: skip


OVERLAY = "811 620 0:71 / / rw - overlay overlay rw,lowerdir=/l\n813 811 0:75 / /dev rw - tmpfs tmpfs rw,size=65536k\n"


@pytest.mark.parametrize(
    ("line", "size", "of_memory"),
    [
        ("817 813 0:73 / /dev/shm rw - tmpfs shm rw,size=65536k", 64, False),
        ("817 813 0:73 / /dev/shm rw - tmpfs shm rw,size=16g,inode64", 16384, False),
        ("817 813 0:73 / /dev/shm rw - tmpfs shm rw,size=1048576", 1, False),
        ("817 813 0:73 / /dev/shm rw - tmpfs shm rw,size=0", "unlimited", False),
        ("817 813 0:73 / /dev/shm rw - tmpfs tmpfs rw,inode64", 500, True),
        ("817 813 0:73 / /dev/shm rw - tmpfs shm rw,size=50%", None, False),
        ("817 813 259:1 / /dev/shm rw - xfs /dev/sdb rw", None, None),
        ("", 64, False),  # /dev/shm is a directory of the container's /dev
        ("817 813 0:7 / /dev/shm rw - tmpfs a rw,size=6m\n8 8 0:8 / /dev/shm rw - tmpfs b rw,size=8g", 8192, False),
    ],
)  # fmt: skip
def test_the_size_of_shared_memory_is_that_of_the_mount(line: str, size: Any, of_memory: bool | None) -> None:
    found = mounts.describe_shared_memory(mounts.parse_mounts(OVERLAY + line + "\n"), 1000)
    assert (found["size_mib"], found["of_memory"]) == (size, of_memory)


def test_what_somebody_mounted_is_told_from_what_the_runtime_did() -> None:
    text = OVERLAY + (
        "815 811 259:2 /var/lib/docker/x/hosts /etc/hosts rw - ext4 /dev/nvme0n1p2 rw\n"
        "816 811 0:90 / /models\\040of\\040mine ro,relatime - nfs4 nas:/models rw\n"
    )
    assert mounts.list_given_mounts(mounts.parse_mounts(text)) == [
        {"path": "/models of mine", "kind": "nfs4", "source": "nas:/models", "read_only": True}
    ]


def contained(records: list[dict[str, Any]]) -> bool | None:
    evidence = BundleEvidence({}, records)
    return container_reader.is_contained(evidence, 7, container_reader.find_membership(evidence, 7))


def test_a_root_of_its_own_makes_a_container_without_a_cgroup_of_one() -> None:
    """Enroot and Apptainer under Slurm make none. PrivateTmp= and the like keep the root."""
    cgroup = {"read": "/proc/7/cgroup", **read("0::/system.slice/slurmstepd.scope/job_1/step_0\n")}
    host = {"read": "/proc/1/mountinfo", **read("22 1 259:2 / / rw - ext4 /dev/sda rw\n")}
    own = {"read": "/proc/7/mountinfo", **read(OVERLAY)}
    same = {
        "read": "/proc/7/mountinfo",
        **read("99 1 259:2 / / ro - ext4 /dev/sda rw\n100 99 0:9 / /tmp rw - tmpfs t rw\n"),
    }
    assert contained([cgroup, host, own]) is True
    assert contained([cgroup, host, same]) is False
    assert contained([cgroup, host, {"read": "/proc/7/mountinfo", "status": DENIED}]) is None
    assert contained([cgroup]) is False, "a bundle from before"
    assert contained([{"read": "/proc/7/cgroup", "status": DENIED}, host, own]) is None


def test_a_monitor_says_the_name_and_the_log_of_a_rootless_container() -> None:
    """Root's own podman does not know the container; conmon's command line is the user's."""
    path = "/home/u/.local/share/containers/storage/overlay-containers/%s/userdata/ctr.log" % ID
    line = "/usr/bin/conmon --api-version 1 -c %s -u %s -r /usr/bin/crun -n llm -l k8s-file:%s --log-level warning"
    cgroup = "0::/user.slice/user-1000.slice/user@1000.service/user.slice/libpod-%s.scope\n" % ID
    records: list[dict[str, Any]] = [
        {"read": "/proc/7/cgroup", **read(cgroup)},
        {"run": ["podman", "inspect", ID], "status": "ok", "rc": 125, "stderr": "Error: no such object"},
    ]
    for monitors, name, kept in (([], None, None), ([(line % (ID, ID, path)).split()], "llm", path)):
        inside, found = container_reader.read_container(
            BundleEvidence({}, records), 7, None, Errors("server"), monitors=monitors
        )
        assert inside is True and found is not None
        assert (found["name"], found["log_path"], found["started_by"]) == (name, kept, {"kind": None})
    assert container_log.find_log(BundleEvidence({}, records), found) == {
        "form": "cri", "path": path, "command": None,
    }  # fmt: skip


def test_where_the_first_process_is_hidden_our_own_namespaces_are_the_hosts() -> None:
    def namespace(path: str, number: int) -> dict[str, Any]:
        return {"list": path, "status": "ok", "entries": {"ipc": {"kind": "link", "target": "ipc:[%d]" % number}}}

    for first in ({"list": "/proc/1/ns", "status": "ok", "entries": {}}, {"list": "/proc/1/ns", "status": "denied"}):
        evidence = BundleEvidence({}, [first, namespace("/proc/self/ns", 5)])
        assert namespaces.read_of_host(evidence, Errors("server")) == {"ipc": "ipc:[5]"}
    evidence = BundleEvidence({}, [namespace("/proc/1/ns", 4), namespace("/proc/self/ns", 5)])
    assert namespaces.read_of_host(evidence, Errors("server")) == {"ipc": "ipc:[4]"}


# -- files of a container -------------------------------------------------------------------------------------------


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A tree with the file system of process 7 in it, as /proc has it."""
    inside = tmp_path / "proc" / "7" / "root"
    (inside / "etc").mkdir(parents=True)
    (inside / "etc" / "name").write_text("of the container\n")
    (tmp_path / "etc").mkdir()
    (tmp_path / "etc" / "name").write_text("of the host\n")
    return inside


@pytest.mark.parametrize(
    ("link", "target"),
    [
        ("direct", "/etc/name"),
        ("upwards", "../../../../../../../etc/name"),
        ("chained", "/direct"),
        ("data/deep", "../../../etc/name"),
    ],
)
def test_a_link_in_a_container_leads_nowhere_else(root: Path, tmp_path: Path, link: str, target: str) -> None:
    (root / link).parent.mkdir(exist_ok=True)
    (root / "direct").symlink_to("/etc/name")
    if link != "direct":
        (root / link).symlink_to(target)
    reading = LiveEvidence(str(tmp_path)).read("/proc/7/root/" + link)
    assert (reading.status, reading.text) == ("ok", "of the container\n")


def test_a_directory_behind_a_link_in_a_container_is_listed_there(root: Path, tmp_path: Path) -> None:
    (root / "opt").symlink_to("/etc")
    (root / "etc" / "link").symlink_to("/x")
    listing = LiveEvidence(str(tmp_path)).list("/proc/7/root/opt")
    assert {name: entry.kind for name, entry in listing.entries.items()} == {"link": "link", "name": "file"}
    assert listing.entries["link"].target == "/x"


def test_what_is_no_file_in_a_container_is_not_opened(root: Path, tmp_path: Path) -> None:
    os.mkfifo(root / "pipe")
    (root / "loop").symlink_to("loop")
    host = LiveEvidence(str(tmp_path))
    assert host.read("/proc/7/root/pipe").status == "failed"
    assert host.read("/proc/7/root/loop").status == "failed"
    assert host.read("/proc/7/root/etc/none").status == "absent"
    assert host.list("/proc/7/root/etc/name").status == "absent"
    assert host.list("/proc/9/root").status == "absent"


# -- what the runtimes say ------------------------------------------------------------------------------------------


def inspected(runtime: str, content: Any, image: Any = None) -> dict[str, Any] | None:
    command = inspections.inspect_command(runtime, ID)
    assert command is not None
    records = [{"run": list(command), "status": "ok", "rc": 0, "stdout": json.dumps(content)}]
    if image is not None:
        name = ["docker", "image", "inspect", content[0]["Image"]]
        records.append({"run": name, "status": "ok", "rc": 0, "stdout": json.dumps(image)})
    membership = cgroups.Membership(runtime, ID, None, {}, None)
    return inspections.inspect_container(BundleEvidence({}, records), membership, Errors("server"))


@pytest.mark.parametrize(
    ("host", "environment", "asked"),
    [
        ({"DeviceRequests": [{"Driver": "", "Count": -1, "Capabilities": [["gpu"]]}]}, [], ["all"]),
        ({"DeviceRequests": [{"Driver": "nvidia", "Count": 2, "Capabilities": [["gpu"]]}]}, [], ["count=2"]),
        (
            {"DeviceRequests": [{"Driver": "nvidia", "DeviceIDs": ["0", "GPU-12345678"], "Capabilities": [["gpu"]]}]},
            [],
            ["0", "GPU-12345678"],
        ),
        ({"DeviceRequests": [{"Driver": "cdi", "DeviceIDs": ["nvidia.com/gpu=all"]}]}, [], ["all"]),
        ({"Devices": [{"PathOnHost": "/dev/nvidia3"}, {"PathOnHost": "/dev/nvidiactl"}]}, [], ["3"]),
        ({"DeviceRequests": None}, ["NVIDIA_VISIBLE_DEVICES=0,1"], ["0", "1"]),
        ({"DeviceRequests": None}, ["NVIDIA_VISIBLE_DEVICES=void"], []),
        ({}, [], None),
    ],
)  # fmt: skip
def test_which_gpus_a_container_asked_for(host: dict[str, Any], environment: list[str], asked: Any) -> None:
    found = inspected("docker", [{"Id": ID, "HostConfig": host, "Config": {"Env": environment}}])
    assert found is not None and found["devices_asked"] == asked


def test_an_image_that_no_registry_knows_has_no_digest() -> None:
    content = [{"Id": ID, "Image": "sha256:" + "a" * 64, "Config": {"Image": "llm:latest"}}]
    for digests, expected in (([], ""), (["x/llm@sha256:" + "b" * 64], "sha256:" + "b" * 64)):
        found = inspected("docker", content, [{"RepoDigests": digests}])
        assert found is not None and found["digest"] == expected
    found = inspected("docker", content)
    assert found is not None and found["digest"] is None


@pytest.mark.parametrize(
    ("image", "floating"),
    [
        ("lmsysorg/sglang", True),
        ("lmsysorg/sglang:latest", True),
        ("registry.example.org:5000/llm", True),
        ("registry.example.org:5000/llm:1", False),
        ("vllm/vllm-openai:v0.10.2", False),
        ("vllm/vllm-openai@sha256:" + "a" * 64, False),
        (None, None),
    ],
)
def test_a_tag_that_moves(image: str | None, floating: bool | None) -> None:
    assert container_reader.is_floating(image) is floating


@pytest.mark.parametrize(
    "content", [[], {}, [None], ["x"], [[]], 7, {"status": 3, "info": [1]}, [{"HostConfig": [], "Config": 4}]]
)
@pytest.mark.parametrize("runtime", ["docker", "podman", "containerd"])
def test_an_answer_of_another_form_is_no_description(runtime: str, content: Any) -> None:
    found = inspected(runtime, content)
    assert found is None or {value for value in found.values() if not isinstance(value, (dict, list))} <= {None, False}


# -- where it is asked ----------------------------------------------------------------------------------------------

BOUND = {"port": 8000, "host_address": "0.0.0.0", "host_port": 30000}


@pytest.mark.parametrize(
    ("bindings", "addresses", "in_pod", "own", "way"),
    [
        ([BOUND], ["172.17.0.2"], False, False, ("127.0.0.1", 30000, True)),
        ([{**BOUND, "host_address": "127.0.0.1"}], ["172.17.0.2"], False, False, ("127.0.0.1", 30000, False)),
        ([{**BOUND, "host_address": "192.168.1.5"}], [], False, None, ("192.168.1.5", 30000, True)),
        ([{**BOUND, "host_address": "::"}], [], False, None, ("127.0.0.1", 30000, True)),
        ([{**BOUND, "port": 9000}], ["172.17.0.2"], False, False, ("172.17.0.2", 8000, False)),
        ([], ["10.42.0.9"], True, False, ("10.42.0.9", 8000, True)),
        ([BOUND], ["172.17.0.2"], False, True, ("127.0.0.1", 30000, False)),
        ([], [], False, False, (None, 8000, None)),
    ],
)
def test_the_way_to_the_port(bindings: Any, addresses: list[str], in_pod: bool, own: Any, way: tuple[Any, ...]) -> None:
    found = reach.find_way(8000, bindings, addresses, in_pod=in_pod, own_loopback=own)
    assert (found["address"], found["port"], found["beyond_this_host"]) == way


def test_the_docker_proxy_shows_what_is_published() -> None:
    line = "/usr/bin/docker-proxy -proto tcp -host-ip 0.0.0.0 -host-port 30000 -container-ip 172.17.0.2"
    line += " -container-port 8000"
    assert namespaces.find_proxied(line.split()) == {**BOUND, "address": "172.17.0.2"}
    assert namespaces.find_proxied(line.replace("tcp", "udp").split()) is None
    assert namespaces.find_proxied(["docker-proxy", "-proto"]) is None


def test_the_addresses_of_a_network_namespace() -> None:
    leaves = (
        ("127.0.0.1", "/32 host LOCAL"), ("172.17.0.0", "/16 link UNICAST"), ("172.17.0.2", "/32 host LOCAL"),
        ("172.17.255.255", "/32 link BROADCAST"),
    )  # fmt: skip
    rows = "".join("        |-- %s\n           %s\n" % leaf for leaf in leaves)
    text = "Main:\n  +-- 0.0.0.0/0 3 0 5\nLocal:\n" + rows
    assert namespaces.find_local_addresses(text) == ["172.17.0.2"]


# -- its log --------------------------------------------------------------------------------------------------------


def test_the_log_of_docker_is_put_together() -> None:
    parts = [("first ", "stderr", "01.5"), ("half\n", "stderr", "02"), ("other\n", "stdout", "03.123456789")]
    text = "".join(
        json.dumps({"log": log, "stream": stream, "time": "2026-04-09T22:13:%sZ" % second}) + "\n"
        for log, stream, second in parts
    )
    cut = '9T22:13:00Z"}\n' + text + '{"log":"cut of'
    assert container_log.decode_log(cut, container_log.DOCKER_JSON) == (
        "1775772782.000000 container engine: first half\n1775772783.123456 container engine: other\n"
    )


def test_the_log_of_kubernetes_is_put_together() -> None:
    text = (
        "ing away\n2026-04-09T22:13:01.000000001Z stderr P begun\n2026-04-09T22:13:01.5Z stdout F between\n"
        "2026-04-09T22:13:02+02:00 stderr F , ended\n"
    )
    assert container_log.decode_log(text, container_log.CRI) == (
        "1775772781.500000 container engine: between\n1775765582.000000 container engine: begun, ended\n"
    )


def test_the_two_outputs_of_docker_logs_are_put_in_order() -> None:
    merged = container_log.merge_streams("2026-04-09T22:13:02Z b\n", "2026-04-09T22:13:01Z a\n2026-04-09T22:13:03Z c\n")
    text = container_log.decode_log(merged, container_log.STAMPED)
    assert [line.rpartition(" ")[2] for line in text.splitlines()] == ["a", "b", "c"]


@pytest.mark.parametrize(
    ("container", "path", "command"),
    [
        ({"log_driver": "json-file", "log_path": "/data/x-json.log"}, "/data/x-json.log", None),
        ({}, "/var/lib/docker/containers/%s/%s-json.log" % (ID, ID), None),
        ({"log_driver": "journald"}, None, "journalctl"),
        ({"log_driver": "local"}, None, "docker"),
        ({"runtime": "podman", "log_driver": "k8s-file", "log_path": "/c/ctr.log"}, "/c/ctr.log", None),
        ({"runtime": "podman", "log_driver": "journald"}, None, "journalctl"),
        ({"runtime": "podman", "log_driver": "none"}, None, None),
        ({"runtime": "podman"}, None, "journalctl"),
        ({"runtime": "containerd", "pod_uid": UID}, "/var/log/pods/n_p_%s/c/3.log" % UID, None),
        ({"runtime": "cri-o", "pod_uid": UID, "log_path": "/var/log/pods/a/0.log"}, "/var/log/pods/a/0.log", None),
        ({"runtime": None}, None, None),
    ],
)
def test_where_the_runtime_keeps_the_log(container: dict[str, Any], path: str | None, command: str | None) -> None:
    link = {"kind": "link", "target": "/var/log/pods/n_p_%s/c/3.log" % UID}
    evidence = BundleEvidence(
        {}, [{"list": "/var/log/containers", "status": "ok", "entries": {"p_n_c-%s.log" % ID: link}}]
    )
    given = {"runtime": "docker", "id": ID, "log_driver": None, "log_path": None, "pod_uid": None, **container}
    found = container_log.find_log(evidence, given)
    assert (found["path"], (found["command"] or [None])[0]) == (path, command)


# -- weights --------------------------------------------------------------------------------------------------------


def test_the_weights_are_measured_through_the_links_of_the_hub(tmp_path: Path) -> None:
    place = tmp_path / "hub" / "models--org--name"
    (place / "blobs").mkdir(parents=True)
    (place / "snapshots" / "abc").mkdir(parents=True)
    for number in (1, 2):
        (place / "blobs" / str(number)).write_bytes(b"x" * (3 << 20))
        (place / "snapshots" / "abc" / ("model-%d.safetensors" % number)).symlink_to("../../blobs/%d" % number)
    (place / "snapshots" / "abc" / "config.json").write_text("{}")
    evidence = LiveEvidence(str(tmp_path))
    assert weights.measure_weights(evidence, "org/name", {"HF_HOME": "/"}) == 6
    assert weights.measure_weights(evidence, "/hub/models--org--name/snapshots/abc", {}) == 6
    (place / "blobs" / "2").unlink()
    assert weights.measure_weights(evidence, "org/name", {"HF_HOME": "/"}) is None, "a part of them says nothing"
    assert weights.measure_weights(evidence, "org/name", {}) is None
    assert weights.measure_weights(evidence, "/none", {}) is None


# -- all of it ------------------------------------------------------------------------------------------------------


def served(name: str, changes: list[dict[str, Any]] | None = None, **params: Any) -> dict[str, Any]:
    evidence = load_bundle(str(HOSTS / (name + ".jsonl.gz")))
    for record in changes or ():
        evidence.add(record)
    found = gather.gather(evidence, params, Errors("server"))
    assert found is not None
    return found


@pytest.mark.parametrize("name", ["docker", "kubernetes", "podman"])
def test_a_server_in_a_container_is_looked_at_as_one_of_ours(name: str) -> None:
    found = served(name)
    assert (found["state"], found["log"]["ready"], len(found["ranks"])) == ("ready", True, 8)
    assert found["packages"]["sglang"] == "0.5.23" and found["nccl"]["level"] == "SYS"
    assert len(found["p2p_caches"]) == 1 and found["log"]["decode"]["tokens_per_s"] > 90
    container = found["container"]
    assert container["inner_pid"] == 1 and container["devices"]["hidden"] == [] and container["seccomp"] == "filter"
    assert container["image"].endswith("sglang:v0.5.23-cu130") and container["digest"].startswith("sha256:")


def kubelets_links(container: dict[str, Any]) -> dict[str, Any]:
    """What is listed where crictl does not say it: the links of the kubelet."""
    link = {"kind": "link", "target": container["log_path"] or ""}
    name = "glm-5-0_inference_sglang-%s.log" % container["id"]
    return {"list": "/var/log/containers", "status": "ok", "entries": {name: link}}


@pytest.mark.slow
@pytest.mark.parametrize("name", ["docker", "kubernetes", "podman"])
def test_without_the_runtimes_word_the_kernels_is_enough(name: str) -> None:
    """No program, no right, no daemon: what holds is read from /proc and the cgroup all the same."""
    whole = served(name)
    runtime = {"kubernetes": "containerd"}.get(name, name)
    command = list(inspections.inspect_command(runtime, whole["container"]["id"]) or ())
    for status in (
        {"status": "absent"},
        {"status": "ok", "rc": 1, "stderr": "permission denied"},
        {"status": "timeout"},
    ):
        found = served(name, [{"run": command, **status}, kubelets_links(whole["container"])])
        container = found["container"]
        assert container["inspected"] is False and container["image"] is None and container["restart_policy"] is None
        assert container["shared_memory"] == whole["container"]["shared_memory"]
        assert container["limits"] == whole["container"]["limits"]
        assert container["devices"]["gpus"] == whole["container"]["devices"]["gpus"]
        assert (
            container["started_by"]["kind"] == {"docker": None, "kubernetes": "kubernetes", "podman": "systemd"}[name]
        )
        if name != "docker":  # whose port is published, which docker alone knows here
            assert found["state"] == "ready" and found["log"]["ready"], found["why"]


def test_of_several_servers_the_one_that_is_named_is_looked_at() -> None:
    other = {"list": "/proc", "status": "ok", "entries": {name: {"kind": "dir"} for name in ("1", "400", "900")}}
    stat = "900 (python3) S 1 900 900 0 -1 0 0 0 0 0 0 0 0 0 20 0 96 0 17281000 0 0\n"
    records = [
        other,
        {"read": "/proc/900/stat", **read(stat)},
        {"read": "/proc/900/cmdline", **read("python3\0-m\0sglang.launch_server\0--port\0008100\0")},
        {"read": "/proc/900/cgroup", **read("0::/user.slice/session-4.scope\n")},
    ]
    for params in ({}, {"unit": "llm-sglang-1"}, {"unit": "6f1c0d5a94e2"}, {"port": 8000}):
        found = served("docker", records, **params)
        assert found["process"]["pid"] == 400, params
        assert [(one["pid"], one["container"]) for one in found["not_looked_at"]] == [(900, "")]
    assert served("docker", records, port=8100)["process"]["pid"] == 900


def test_a_published_port_finds_its_server() -> None:
    """The host's port is another than the one that the server was started with."""
    evidence = load_bundle(str(HOSTS / "docker.jsonl.gz"))
    identity = served("docker")["container"]["id"]
    outcome = evidence.run(["docker", "inspect", identity])
    moved = outcome.text.replace('"HostPort": "8000"', '"HostPort": "30000"')
    evidence.put(Outcome(outcome.argv, "ok", rc=0, stdout=moved.encode()))
    found = gather.gather(evidence, {"port": 30000}, Errors("server"))
    assert found is not None and found["api"]["base"] == "http://127.0.0.1:30000"
    assert found["port"] == {"port": 30000, "listening": True, "beyond_this_host": False, "connections": 0}


def test_the_unit_whose_client_waits_for_a_container_is_its_unit() -> None:
    identity = served("docker")["container"]["id"]
    unit = "0::/system.slice/llm.service\n"
    client = "/usr/bin/docker\0run\0--rm\0--name\0llm-sglang-1\0lmsysorg/sglang\0python3\0"
    clients = [(380, client.split("\0"))]
    evidence = load_bundle(str(HOSTS / "docker.jsonl.gz"))
    evidence.add({"read": "/proc/380/cgroup", **read(unit)})
    assert container_reader.is_client(clients[0][1])
    assert container_reader.find_client_unit(evidence, 400, clients, Errors("server")) == "llm.service"
    other = [(380, client.replace("llm-sglang-1", "another").split("\0"))]
    assert container_reader.find_client_unit(evidence, 400, other, Errors("server")) is None
    assert identity and not container_reader.is_client(["docker", "ps"])


def test_the_ranks_of_other_hosts_are_looked_for_in_the_network_of_the_container() -> None:
    """The host's own table of sockets does not show who is connected to a container with a network of its own."""
    evidence = load_bundle(str(HOSTS / "docker.jsonl.gz"))
    words = (
        evidence.read("/proc/400/cmdline").text + "--nnodes\x002\0--node-rank\x000\0--dist-init-addr\x0010.0.0.1:5000\0"
    )
    evidence.add({"read": "/proc/400/cmdline", **read(words)})
    table = evidence.read("/proc/400/net/tcp").text
    row = "   1: 020012AC:1388 0200000A:C350 01 00000000:00000000 00:00000000 00000000 0 0 1 1 0 20 4\n"
    for text, missing in ((table, 1), (table + row, 0)):
        evidence.add({"read": "/proc/400/net/tcp", **read(text)})
        found = gather.gather(evidence, {"generate": "never"}, Errors("server"))
        assert found is not None and found["node"]["peers_missing"] == missing, found["node"]
        assert found["container"]["gpus_needed"] == 4
