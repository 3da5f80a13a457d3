"""NUMA nodes, /dev/shm, limits and the rest of the system's facts."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host import system
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors

SHM = "tmpfs /dev/shm tmpfs rw,nosuid,nodev%s 0 0\n"
DF = "Filesystem     1024-blocks  Used Available Capacity Mounted on\n%s %d 0 %d 0%% /dev/shm\n"


def read(path: str, text: str) -> dict[str, Any]:
    return {"read": path, "status": "ok", "text": text}


def files(path: str, *names: str) -> dict[str, Any]:
    return {"list": path, "status": "ok", "entries": {name: {"kind": "file"} for name in names}}


def df(text: str, rc: int = 0) -> dict[str, Any]:
    return {"run": ["df", "-kP", "/dev/shm"], "status": "ok", "rc": rc, "stdout": text}


NO_DF = {"run": ["df", "-kP", "/dev/shm"], "status": "absent"}


def gathered(*records: dict[str, Any]) -> dict[str, Any]:
    return system.gather(BundleEvidence({}, records), Errors("system"))


def limits(value: str) -> str:
    return (
        "Limit                     Soft Limit           Hard Limit           Units\nMax locked memory         %-20s "
        "%-20s bytes\n" % (value, value)
    )


@pytest.mark.parametrize(
    ("records", "size"),
    [
        ([read("/proc/mounts", SHM % ""), df(DF % ("tmpfs", 65536, 65536))], 64),
        ([read("/proc/mounts", SHM % ",size=65536k"), NO_DF], 64),
        ([read("/proc/mounts", SHM % ",size=65536k"), {**NO_DF, "status": "timeout"}], None),
        ([read("/proc/mounts", SHM % ",size=16g,inode64"), NO_DF], 16384),
        # the mount on top is the one that is seen
        ([read("/proc/mounts", SHM % "" + SHM % ",size=1048576k"), NO_DF], 1024),
        ([read("/proc/mounts", SHM % "")], None),
        ([read("/proc/mounts", "proc /proc proc rw 0 0\n"), df("df: /dev/shm: No such file or directory\n", 1)], None),
        ([df(DF % ("a name with blanks", 1048576, 0))], 1024),
        ([df("junk")], None),
    ],
)
def test_dev_shm(records: list[dict[str, Any]], size: int | None) -> None:
    assert gathered(*records)["dev_shm"]["size_mib"] == size


def test_dev_shm_that_is_not_mounted() -> None:
    assert gathered(read("/proc/mounts", "proc /proc proc rw 0 0\n"))["dev_shm"]["mounted"] is False


@pytest.mark.parametrize(
    ("text", "value"), [(limits("unlimited"), "unlimited"), (limits("8388608"), 8192), ("junk", None)]
)
def test_memlock(text: str, value: Any) -> None:
    facts = gathered(read("/proc/self/limits", text))
    assert (facts["memlock"]["own_kib"], facts["memlock"]["init_kib"]) == (value, None)


def absent(path: str, kind: str = "read") -> dict[str, Any]:
    return {kind: path, "status": "absent"}


def test_systemd_default_memlock_takes_the_last_drop_in() -> None:
    records = [read("/etc/systemd/system.conf", "[Manager]\n#DefaultLimitMEMLOCK=8M\nDefaultLimitMEMLOCK=64M\n")]
    rest = [absent(path, "list") for path in system.SYSTEMD_DROP_INS if not path.startswith("/etc")]
    none = absent("/etc/systemd/system.conf.d", "list")
    assert gathered(*records, *rest, none)["memlock"]["systemd_default"] == "64M"
    assert gathered(*records, *rest)["memlock"]["systemd_default"] is None, "a drop-in may say otherwise"
    records += rest
    records.append(files("/etc/systemd/system.conf.d", "90-memlock.conf", "10-a.conf"))
    records.append(read("/etc/systemd/system.conf.d/90-memlock.conf", "[Manager]\nDefaultLimitMEMLOCK=infinity\n"))
    records.append(read("/etc/systemd/system.conf.d/10-a.conf", "[Manager]\nDefaultLimitMEMLOCK=1M\n"))
    assert gathered(*records)["memlock"]["systemd_default"] == "infinity"


def test_systemd_default_memlock_not_set_is_not_unknown() -> None:
    no_drop_ins = [absent(path, "list") for path in system.SYSTEMD_DROP_INS]
    unset = [read("/etc/systemd/system.conf", "[Manager]\n"), *no_drop_ins]
    no_systemd = [absent(path) for path in system.SYSTEMD_FILES] + no_drop_ins
    assert [gathered(*records)["memlock"]["systemd_default"] for records in (unset, no_systemd, [])] == ["", "", None]


@pytest.mark.parametrize(
    ("record", "value"),
    [
        (read("/proc/sys/kernel/numa_balancing", "0\n"), False),
        (read("/proc/sys/kernel/numa_balancing", "1\n"), True),
        (read("/proc/sys/kernel/numa_balancing", "2\n"), True),
        (absent("/proc/sys/kernel/numa_balancing"), False),
        ({"read": "/proc/sys/kernel/numa_balancing", "status": "denied"}, None),
    ],
)
def test_numa_balancing(record: dict[str, Any], value: bool | None) -> None:
    assert gathered(record)["numa_balancing"] is value


def test_numa_nodes() -> None:
    nodes = "/sys/devices/system/node"
    facts = gathered(
        files(nodes, "node0", "node10", "has_cpu"),
        read(nodes + "/node0/cpulist", "0-31,64-95\n"),
        read("/sys/devices/system/node/node0/meminfo", "Node 0 MemTotal:       800805888 kB\n"),
    )
    assert facts["numa_nodes"] == {
        "0": {"cpus": "0-31,64-95", "memory_mib": 782037},
        "10": {"cpus": None, "memory_mib": None},
    }


def test_governors() -> None:
    policies = files(system.POLICIES, "policy0", "policy1", "boost")
    one = read(system.POLICIES + "/policy0/scaling_governor", "performance\n")
    other = read(system.POLICIES + "/policy1/scaling_governor", "powersave\n")
    assert gathered(policies, one, other)["cpu_governors"] == ["performance", "powersave"]
    assert gathered(policies, one)["cpu_governors"] is None
    assert gathered(absent(system.POLICIES, "list"))["cpu_governors"] == []


def test_release_and_times() -> None:
    release = read("/etc/os-release", 'PRETTY_NAME="Ubuntu 24.04.3 LTS"\nID=ubuntu\nVERSION_ID="24.04"\n')
    facts = gathered(
        release, read("/proc/uptime", "180000.11 99.0\n"), read("/proc/stat", "cpu 1 2\nbtime 1775600000\n")
    )
    assert facts["os"] == {"id": "ubuntu", "version": "24.04", "name": "Ubuntu 24.04.3 LTS"}
    assert (facts["uptime_s"], facts["booted_at"]) == (180000.11, 1775600000)


def test_without_evidence_everything_is_unknown_with_its_reason() -> None:
    errors = Errors("system")
    facts = system.gather(BundleEvidence({}, []), errors)
    assert [
        facts[name] for name in ("numa_nodes", "memory_mib", "numa_balancing", "cpu_governors", "uptime_s", "booted_at")
    ] == [None] * 6
    assert len(errors.entries) >= 10
