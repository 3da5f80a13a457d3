"""A real unprivileged container, started by Debian's LXC: what its device rules do, and what our facts say of them.

The nodes are real device nodes of NVIDIA's numbers without a driver behind them. Opening one that the rules allow fails
with ENXIO (no such device); one that they forbid, with EPERM, before the kernel looks for a driver.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import apt_proxy
from ssh_host import ask_over_ssh

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]
CTID = "102"
GPUS = ["0000:%02x:00.0" % bus for bus in (0x01, 0x11, 0x61, 0x71, 0x81)]
# Node -> (major, minor, mode). The host has no /dev/nvidia3, which the container mounts, and no /dev/nvidia4.
NODES = {
    **{"nvidia0": (195, 0, "666"), "nvidia1": (195, 1, "666"), "nvidia2": (195, 2, "666")},
    **{"nvidiactl": (195, 255, "666"), "nvidia-uvm": (511, 0, "600")},
}
RULES = ("c 195:255 rw", "c 195:0 rw", "c 195:1 r", "c 511:* rwm")
MOUNTED = (*NODES, "nvidia3")
DEVICES = "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n"
# Prints what a process inside may do, by open() itself, and what our facts say.
INSIDE = """
import errno, json, os, sys
sys.path.insert(0, "/opt/module_utils")
from gpu_host import device_nodes
from gpu_host.evidence.errors import Errors
from gpu_host.evidence.live import LiveEvidence
def opened(name, flags):
    try:
        os.close(os.open("/dev/" + name, flags))
    except OSError as error:
        return errno.errorcode[error.errno]
    return ""
names = ["nvidia0", "nvidia1", "nvidia2", "nvidia3", "nvidia4", "nvidiactl", "nvidia-uvm"]
kernel = {name: [opened(name, os.O_RDWR), opened(name, os.O_RDONLY)] for name in names}
print(json.dumps({"kernel": kernel, "facts": device_nodes.gather(LiveEvidence(), Errors("device_nodes"))}))
"""
OUTSIDE = """
import json, sys
sys.path.insert(0, "/opt/module_utils")
from gpu_host.proxmox import gather_host
from gpu_host.evidence.live import LiveEvidence
print(json.dumps(gather_host(LiveEvidence())["containers"]["102"]))
"""


@pytest.fixture(scope="module")
def ssh(make_host: Callable[..., dict[str, Any]]) -> Callable[..., str]:
    host = make_host(
        "px-lxc",
        "trixie",
        "--bind-ro=%s:/opt/module_utils" % (ROOT / "module_utils"),
        "--bind-ro=%s:/opt/hosts" % (ROOT / "tests" / "hosts"),
        # LXC enforces its device rules by a program in the kernel.
        "--system-call-filter=bpf keyctl add_key",
        "--capability=all",
    )

    def run(command: str, text: str = "") -> str:
        return ask_over_ssh(host, command, text)

    with apt_proxy.running() as proxy:
        run(
            "echo 'Acquire::http::Proxy \"%s\";' > /etc/apt/apt.conf.d/proxy; apt-get update -qq && "
            "apt-get install -y -qq --no-install-recommends lxc uidmap >/dev/null 2>&1" % proxy
        )
    return run


def lxc_lines(separator: str) -> str:
    lines = ["lxc.cgroup2.devices.allow%s%s" % (separator, rule) for rule in RULES]
    entry = "lxc.mount.entry%s/dev/%s dev/%s none bind,optional,create=file 0 0"
    return "\n".join(lines + [entry % (separator, name, name) for name in MOUNTED]) + "\n"


@pytest.fixture(scope="module")
def container(ssh: Callable[..., str]) -> Callable[..., str]:
    for name, (major, minor, mode) in NODES.items():
        ssh("mknod -m %s /dev/%s c %d %d" % (mode, name, major, minor))
    ssh("mkdir -p /opt/fake/driver/nvidia /etc/pve/lxc /etc/pve/qemu-server /etc/pve/nodes/pve1")
    ssh("ln -s nodes/pve1 /etc/pve/local; cat > /opt/fake/devices", DEVICES)
    ssh("echo 580.65.06 > /opt/fake/driver/nvidia/version")
    for minor, address in enumerate(GPUS):
        place = "/opt/fake/driver/nvidia/gpus/" + address
        ssh("mkdir -p %s; printf 'Device Minor: %d\\n' > %s/information" % (place, minor, place))
    ssh("mount --bind /opt/fake/devices /proc/devices && mount --bind /opt/fake/driver /proc/driver")
    ssh("cat > /etc/pve/lxc/%s.conf" % CTID, "arch: amd64\nostype: debian\nunprivileged: 1\n" + lxc_lines(": "))
    kernel = "lxc.mount.entry = /opt/fake/%s proc/%s none bind 0 0\n"
    ssh(
        "/opt/hosts/lxc_container.sh " + CTID,
        lxc_lines(" = ") + kernel % ("devices", "devices") + kernel % ("driver", "driver"),
    )
    return ssh


def test_the_kernel_and_our_facts_agree_inside(container: Callable[..., str]) -> None:
    found = json.loads(container("lxc-attach -n %s -- /usr/bin/python3 -" % CTID, INSIDE))
    assert found["kernel"] == {
        "nvidia0": ["ENXIO", "ENXIO"],  # allowed: only the driver is missing
        "nvidia1": ["EPERM", "ENXIO"],  # for reading only
        "nvidia2": ["EPERM", "EPERM"],  # forbidden
        "nvidia3": ["", ""],  # an optional mount of nothing: LXC made a plain file for it
        "nvidia4": ["ENOENT", "ENOENT"],  # missing
        "nvidiactl": ["ENXIO", "ENXIO"],
        "nvidia-uvm": ["EACCES", "EACCES"],  # the rule allows it, its mode does not: root of the host owns it
    }
    facts = found["facts"]
    assert facts["access"] == {"nvidia0": "rw", "nvidia1": "r", "nvidia2": "", "nvidiactl": "rw", "nvidia-uvm": ""}
    assert facts["missing"] == ["nvidia4"]
    assert {item["name"]: item["why"] for item in facts["unusable"]} == {
        "nvidia1": "is open for reading only, by a device rule",
        "nvidia2": "is forbidden by a device rule",
        "nvidia3": "is no device but a file",
        # These two are opened for a look, and there is no driver behind them.
        "nvidiactl": "cannot be opened",
        "nvidia-uvm": "cannot be opened",
    }


def test_the_configuration_tells_the_same_from_outside(container: Callable[..., str]) -> None:
    found = json.loads(container("python3 -", OUTSIDE))
    assert found["running"] is True and sorted(found["live_nodes"]) == sorted("/dev/" + name for name in MOUNTED)
    assert {item["node"]: item["why"] for item in found["access_faults"]} == {
        "/dev/nvidia1": "read_only",
        "/dev/nvidia2": "forbidden",
        "/dev/nvidia-uvm": "closed",
    }
    assert found["absent_optional"] == ["/dev/nvidia3"]
    assert found["start"]["starts"] is True
