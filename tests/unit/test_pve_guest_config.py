"""The module that gives guests their GPUs.

It runs against stand-ins for qm, pct and lxc-info that behave as Proxmox documents them.
"""

from __future__ import annotations

import os
import signal
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pve_guest_config
import pytest
from ansible.module_utils.gpu_host.evidence.interface import Listing
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_provision import pve_apply

BIN = Path(__file__).resolve().parents[1] / "fixtures" / "pve" / "bin"
GPUS = ["0000:01:00.0", "0000:11:00.0"]
VM = (
    "#my notes\ncores: 8\nhostpci0: 0000:01:00.0\nmemory: 65536\nname: llm\nnet0: "
    "virtio=02:00:00:00:00:01,bridge=vmbr0\n"
)
SNAPSHOT = "\n[before]\ncores: 2\nhostpci0: 0000:11:00\n"
CONTAINER = (
    "hostname: ct\nmemory: 4096\nlxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 508:* rwm\n"
    "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.apparmor.profile: unconfined\n"
)


class WithNodes(LiveEvidence):
    """The files below its /dev are shown as the device nodes that a test may not make."""

    def list(self, path: str) -> Listing:
        listing = super().list(path)
        if path == "/dev":
            shown = {name: replace(entry, kind="char", mode=0o666) for name, entry in listing.entries.items()}
            return replace(listing, entries=shown)
        return listing


class Host:
    """A Proxmox host in a directory."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.evidence = WithNodes(str(root))
        for path, text in {
            "/proc/devices": "Character devices:\n  1 mem\n 10 misc\n195 nvidia\n511 nvidia-uvm\n\nBlock "
            "devices:\n259 blkext\n",
            "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz root=x ro\n",
            "/proc/modules": "",
            "/sys/class/iommu/ivhd0/uevent": "",
        }.items():
            self.write(path, text)
        for name in (
            "/etc/pve/qemu-server",
            "/etc/pve/lxc",
            "/dev",
            "/sys/bus/pci/devices",
            "/run/qemu-server",
            "/var",
        ):
            (root / name[1:]).mkdir(parents=True, exist_ok=True)
        (root / "var/run").symlink_to("../run")
        for minor, address in enumerate(GPUS):
            self.card(address, "nvidia")
            self.write("/proc/driver/nvidia/gpus/%s/information" % address, "Model: x\nDevice Minor: \t %d\n" % minor)
        for node in ("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools"):
            self.write("/dev/" + node, "")

    def card(self, address: str, driver: str) -> None:
        base = "/sys/devices/pci0000:00/%s" % address
        self.write(base + "/uevent", "DRIVER=%s\nPCI_CLASS=30200\nPCI_ID=10DE:2BB5\nPCI_SUBSYS_ID=10DE:204E\n" % driver)
        link = self.root / "sys/bus/pci/devices" / address
        if not link.is_symlink():
            link.symlink_to("../../../devices/pci0000:00/%s" % address)

    def write(self, path: str, text: str) -> None:
        target = self.root / path[1:]
        target.parent.mkdir(parents=True, exist_ok=True)
        target.write_text(text)

    def read(self, path: str) -> str:
        return (self.root / path[1:]).read_text()

    def configure(self, kind: str, vmid: int, gpus: list[str], check: bool = False, **more: Any) -> dict[str, Any]:
        defaults = {name: spec.get("default") for name, spec in pve_guest_config.ARGUMENT_SPEC.items()}
        params = {**defaults, "vmid": vmid, "type": kind, "gpus": gpus, "backup_dir": "/var/backups/gpu-host", **more}
        guest = pve_apply.Guest(kind, str(vmid), str(self.root))
        return pve_guest_config.configure(params, check, self.evidence, guest)

    def tool(self, *argv: str) -> None:
        subprocess.run([str(BIN / argv[0]), *argv[1:]], check=True, capture_output=True)


@pytest.fixture
def host(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Host]:
    monkeypatch.setenv("PVE_ROOT", str(tmp_path))
    monkeypatch.setenv("PATH", "%s:%s" % (BIN, os.environ["PATH"]))
    made = Host(tmp_path)
    made.write("/etc/pve/qemu-server/101.conf", VM + SNAPSHOT)
    made.write("/etc/pve/lxc/102.conf", CONTAINER)
    yield made
    for pid_file in (*tmp_path.glob("run/qemu-server/*.pid"), *tmp_path.glob("run/lxc-standin/*.pid")):
        try:
            os.kill(int(pid_file.read_text()), signal.SIGKILL)
        except ProcessLookupError:
            continue


def test_a_stopped_vm(host: Host) -> None:
    result = host.configure("vm", 101, GPUS, machine="q35")
    text = host.read("/etc/pve/qemu-server/101.conf")
    assert (
        "machine: q35\n" in text
        and "hostpci0: 0000:01:00.0,pcie=1\n" in text
        and "hostpci1: 0000:11:00.0,pcie=1\n" in text
    )
    # What is not ours stays: the notes, the network, the snapshot.
    assert (
        text.startswith("#my notes\n")
        and "net0: virtio=02:00:00:00:00:01,bridge=vmbr0\n" in text
        and text.endswith(SNAPSHOT.lstrip("\n"))
    )
    assert result["changed"] is True and result["restart_needed"] is False
    assert result["commands"] == [
        "qm set 101 --machine q35 --hostpci0 0000:01:00.0,pcie=1 --hostpci1 0000:11:00.0,pcie=1"
    ]
    assert host.read(result["backup"]) == VM + SNAPSHOT
    assert result["diff"]["before"] == "hostpci0: 0000:01:00.0\n"
    again = host.configure("vm", 101, GPUS, machine="q35")
    assert again["changed"] is False and again["commands"] == [] and "backup" not in again


def test_check_mode_changes_nothing_and_says_the_same(host: Host) -> None:
    before = host.read("/etc/pve/qemu-server/101.conf")
    checked = host.configure("vm", 101, GPUS, check=True, machine="q35")
    assert host.read("/etc/pve/qemu-server/101.conf") == before and not (host.root / "var/backups").exists()
    done = host.configure("vm", 101, GPUS, machine="q35")
    assert (checked["changed"], checked["commands"], checked["diff"]) == (
        done["changed"],
        done["commands"],
        done["diff"],
    )


@pytest.mark.slow
def test_a_running_vm_keeps_running_until_told_otherwise(host: Host) -> None:
    host.card(GPUS[0], "vfio-pci")
    host.tool("qm", "start", "101")
    pid = host.read("/run/qemu-server/101.pid")
    result = host.configure("vm", 101, GPUS, machine="q35")
    assert (
        result["restart_needed"] is True
        and result["restarted"] is False
        and host.read("/run/qemu-server/101.pid") == pid
    )
    assert any(reason.startswith("machine: configured q35, running i440fx") for reason in result["restart_reasons"]), (
        result["restart_reasons"]
    )
    assert "[PENDING]" in host.read("/etc/pve/qemu-server/101.conf")
    again = host.configure("vm", 101, GPUS, machine="q35")
    assert again["changed"] is False and again["restart_needed"] is True
    restarted = host.configure("vm", 101, GPUS, machine="q35", restart=True)
    assert restarted["restarted"] is True and restarted["restart_needed"] is False
    assert host.read("/run/qemu-server/101.pid") != pid
    assert host.configure("vm", 101, GPUS, machine="q35")["restart_needed"] is False


def test_a_container_loses_its_hand_written_lines(host: Host) -> None:
    result = host.configure("lxc", 102, ["all"])
    text = host.read("/etc/pve/lxc/102.conf")
    for number, node in enumerate(("nvidia0", "nvidia1", "nvidiactl", "nvidia-uvm", "nvidia-uvm-tools")):
        assert "dev%d: /dev/%s,mode=0666\n" % (number, node) in text
    assert "nvidia0 dev/nvidia0" not in text and "c 195" not in text and "c 508" not in text
    assert "lxc.apparmor.profile: unconfined\n" in text and "memory: 4096\n" in text
    assert result["changed"] is True and result["commands"][0].startswith("pct set 102 --dev0 /dev/nvidia0,mode=0666")
    assert host.configure("lxc", 102, ["all"])["changed"] is False
    taken = host.configure("lxc", 102, [])
    assert taken["commands"] == ["pct set 102 --delete dev0,dev1,dev2,dev3,dev4"]
    assert "dev0" not in host.read("/etc/pve/lxc/102.conf")


@pytest.mark.slow
def test_a_running_container(host: Host) -> None:
    host.tool("pct", "start", "102")
    result = host.configure("lxc", 102, [GPUS[1]])
    assert result["restart_needed"] is True and "dev0: changed, in force at the next start" in result["restart_reasons"]
    assert host.configure("lxc", 102, [GPUS[1]], restart=True)["restarted"] is True
    assert host.configure("lxc", 102, [GPUS[1]])["restart_needed"] is False


def test_a_change_by_somebody_else_is_left_alone(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PVE_INTERFERE", "onboot: 1")
    with pytest.raises(pve_apply.ApplyError, match="changed by another process meanwhile"):
        host.configure("vm", 101, GPUS, machine="q35")
    assert "machine" not in host.read("/etc/pve/qemu-server/101.conf")


def test_a_cluster_without_quorum(host: Host) -> None:
    host.write("/etc/pve/.no-quorum", "")
    with pytest.raises(pve_apply.ApplyError, match="pvecm status"):
        host.configure("vm", 101, GPUS, machine="q35")
    assert host.read("/etc/pve/qemu-server/101.conf") == VM + SNAPSHOT


def test_a_locked_guest(host: Host) -> None:
    host.write("/etc/pve/qemu-server/101.conf", VM + "lock: backup\n")
    with pytest.raises(pve_apply.ApplyError, match=r"VM is locked \(backup\)"):
        host.configure("vm", 101, GPUS, machine="q35")


@pytest.mark.slow
def test_a_card_has_one_owner(host: Host) -> None:
    host.write("/etc/pve/qemu-server/103.conf", "name: other\nonboot: 1\nhostpci0: 0000:11:00.0\n")
    with pytest.raises(ValueError, match=r'0000:11:00\.0 belongs to VM 103 "other" \(starts at boot\)'):
        host.configure("vm", 101, GPUS, machine="q35")
    host.configure("vm", 103, [])
    assert host.configure("vm", 101, GPUS, machine="q35")["changed"] is True


@pytest.mark.slow
def test_containers_share_a_card(host: Host) -> None:
    host.write(
        "/etc/pve/lxc/104.conf",
        "hostname: other\nonboot: 1\ndev0: /dev/nvidia0\ndev1: /dev/nvidiactl\ndev2: /dev/nvidia-uvm\n",
    )
    assert host.configure("lxc", 102, ["all"])["changed"] is True
    with pytest.raises(ValueError, match="belongs to container 104"):
        host.configure("vm", 101, GPUS, machine="q35")


@pytest.mark.parametrize(
    ("asked", "more", "message"),
    [
        (
            ("vm", 101, ["0000:99:00.0"]),
            {},
            "0000:99:00.0 is no NVIDIA GPU of this host; it has 0000:01:00.0, 0000:11:00.0",
        ),
        (("vm", 101, ["01:00.0", "0000:01:00"]), {}, "0000:01:00 is named twice"),
        (("vm", 101, ["01:00.0"]), {}, "pcie=1 needs the chipset q35"),
        (("vm", 101, ["01:00.0"]), {"clique": "16"}, "a number from 0 to 15"),
        (("vm", 999, ["01:00.0"]), {}, "this host has no VM 999"),
        (("lxc", 101, ["01:00.0"]), {}, "this host has no container 101"),
        (("vm", 101, ["01:00.0"]), {"machine": "q36"}, "Proxmox refuses it"),
    ],
)
def test_what_is_asked_and_cannot_be_done(
    host: Host, asked: tuple[str, int, list[str]], more: dict[str, Any], message: str
) -> None:
    with pytest.raises(ValueError, match=message.replace(".", r"\.")):
        host.configure(*asked, **more)
    assert host.read("/etc/pve/qemu-server/101.conf") == VM + SNAPSHOT


def test_a_container_cannot_have_a_card_of_vfio(host: Host) -> None:
    (host.root / "proc/driver/nvidia/gpus/0000:11:00.0/information").unlink()
    host.card(GPUS[1], "vfio-pci")
    with pytest.raises(ValueError, match=r"does not have 0000:11:00\.0 \(vfio-pci\)"):
        host.configure("lxc", 102, ["all"])


def test_no_proxmox(host: Host) -> None:
    (host.root / "etc/pve").rename(host.root / "etc/was-pve")
    with pytest.raises(ValueError, match="this host has no VM 101"):
        host.configure("vm", 101, GPUS)


def test_a_file_that_cannot_be_written_is_left_whole(host: Host) -> None:
    guest = pve_apply.Guest("lxc", "102", str(host.root))
    (host.root / ("etc/pve/lxc/102.conf.tmp.%d" % os.getpid())).mkdir()
    with pytest.raises(pve_apply.ApplyError, match="Nothing was written"):
        guest.replace(CONTAINER, "x")
    assert host.read("/etc/pve/lxc/102.conf") == CONTAINER
    with pytest.raises(pve_apply.ApplyError, match="changed by another process"):
        guest.replace("something else", "x")
    assert host.read("/etc/pve/lxc/102.conf") == CONTAINER


def test_bytes_that_are_no_utf8_survive(host: Host) -> None:
    raw = b"#caf\xe9\n" + CONTAINER.encode()
    (host.root / "etc/pve/lxc/102.conf").write_bytes(raw)
    guest = pve_apply.Guest("lxc", "102", str(host.root))
    text = guest.text()
    assert pve_apply.digest_config(text) == __import__("hashlib").sha1(raw).hexdigest()
    guest.replace(text, text + "cores: 1\n")
    assert (host.root / "etc/pve/lxc/102.conf").read_bytes() == raw + b"cores: 1\n"


def test_a_lock_that_is_held_stops_the_change(host: Host, monkeypatch: pytest.MonkeyPatch) -> None:
    import fcntl

    monkeypatch.setattr(pve_apply, "LOCK_SECONDS", 0.3)
    guest = pve_apply.Guest("lxc", "102", str(host.root))
    path = host.root / "run/lock/lxc/pve-config-102.lock"
    path.parent.mkdir(parents=True)
    with open(path, "a") as handle:
        fcntl.flock(handle, fcntl.LOCK_EX)
        with pytest.raises(pve_apply.ApplyError, match="locked by another process"):
            guest.replace(CONTAINER, "x")
    assert host.read("/etc/pve/lxc/102.conf") == CONTAINER
