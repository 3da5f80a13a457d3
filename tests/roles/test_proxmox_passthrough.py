"""The role on a real systemd host, with stand-ins for Proxmox's own programs and for the cards."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from driver_host import Machine

PVE = ROOT / "tests" / "fixtures" / "pve"
GPUS = ["0000:01:00.0", "0000:11:00.0"]
VM = "#a note\ncores: 8\nhostpci0: 0000:01:00.0\nmemory: 65536\nname: llm\n"
CONTAINER = (
    "hostname: ct\nonboot: 1\nlxc.cgroup2.devices.allow: c 195:* rwm\n"
    "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.apparmor.profile: unconfined\n"
)
pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("px-pve")]


class Proxmox(Machine):
    """A host that looks like Proxmox VE with two cards."""

    def __init__(self, host: dict[str, Any], work: Path) -> None:
        super().__init__(host, work, work, group="proxmox_hosts")

    def role(self, guests: list[dict[str, Any]], *options: str, **variables: Any) -> tuple[int, str]:
        """(number of changed tasks, or -1 where the run failed; what was printed)."""
        extra = json.dumps({"proxmox_passthrough_guests": guests, **variables})
        done = self.run_playbook("playbooks/proxmox.yml", "-e", extra, *options)
        recap = [line for line in done.stdout.splitlines() if "changed=" in line and line.startswith(self.host["name"])]
        changed = int(recap[-1].partition("changed=")[2].split()[0]) if done.returncode == 0 and recap else -1
        return changed, done.stdout + done.stderr


@pytest.fixture(scope="module")
def proxmox(make_host: Callable[..., dict[str, Any]], tmp_path_factory: pytest.TempPathFactory) -> Proxmox:
    work = tmp_path_factory.mktemp("pve")
    for minor, address in enumerate(GPUS):
        device = work / "pci" / address
        device.mkdir(parents=True)
        (device / "uevent").write_text(
            "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=10DE:2BB5\nPCI_SUBSYS_ID=10DE:204E\nPCI_SLOT_NAME=%s\n" % address
        )
        card = work / "driver" / "nvidia" / "gpus" / address
        card.mkdir(parents=True)
        (card / "information").write_text("Model: \t\t NVIDIA\nDevice Minor: \t %d\n" % minor)
    (work / "devices").write_text(
        "Character devices:\n  1 mem\n195 nvidia\n511 nvidia-uvm\n\nBlock devices:\n259 blkext\n"
    )
    (work / "cmdline").write_text("BOOT_IMAGE=/boot/vmlinuz root=/dev/x ro quiet\n")
    (work / "class" / "iommu" / "ivhd0").mkdir(parents=True)
    # The stand-ins refuse by the project's own schema and start rules.
    binds = ["--bind-ro=%s:/opt/pve" % PVE, "--bind-ro=%s:/opt/fake" % work]
    binds += ["--bind-ro=%s:/opt/module_utils" % (ROOT / "module_utils")]
    host = make_host("px-pve", "trixie", *binds)
    made = Proxmox(host, work)
    made.ssh("mkdir -p /etc/pve/qemu-server /etc/pve/lxc /etc/default/grub.d /run/qemu-server")
    made.ssh(
        "for t in qm pct pvesh lxc-info dmesg; do ln -s /opt/pve/bin/$t /usr/local/sbin/$t; done; "
        "ln -s /opt/pve/update-grub /usr/sbin/update-grub"
    )
    made.ssh("ln -s /opt/pve/nvidia-modprobe /usr/bin/nvidia-modprobe")
    made.ssh("cp /opt/pve/pve-guests.service /etc/systemd/system/ && systemctl enable pve-guests")
    made.ssh("echo 'GRUB_CMDLINE_LINUX_DEFAULT=\"quiet\"' > /etc/default/grub")
    made.ssh("cat > /etc/pve/qemu-server/101.conf <<'END'\n%sEND" % VM)
    made.ssh("cat > /etc/pve/lxc/102.conf <<'END'\n%sEND" % CONTAINER)
    _as_the_kernel(made)
    return made


def _as_the_kernel(proxmox: Proxmox) -> None:
    """Lay the stand-ins over /proc and /sys; a reboot takes them away."""
    places = {
        "devices": "/proc/devices",
        "cmdline": "/proc/cmdline",
        "driver": "/proc/driver",
        "pci": "/sys/bus/pci/devices",
        "class": "/sys/class",
    }
    for name, place in places.items():
        script = str(ROOT / "tests" / "hosts" / "make_hosts.py")
        command = [sys.executable, script, "enter", proxmox.host["name"], "mount", "--bind", "/opt/fake/" + name, place]
        done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
        assert done.returncode == 0, done.stdout + done.stderr


def _everything(proxmox: Proxmox) -> str:
    return proxmox.ssh("find /etc /boot /var/backups -xdev -type f | sort | xargs md5sum")


CONTAINER_GUEST = [{"vmid": 102, "type": "lxc", "gpus": ["all"]}]
VM_GUEST = [{"vmid": 102, "type": "lxc", "gpus": []}, {"vmid": 101, "type": "vm", "machine": "q35", "gpus": GPUS}]


def test_check_mode_changes_nothing(proxmox: Proxmox) -> None:
    before = _everything(proxmox)
    changed, output = proxmox.role(CONTAINER_GUEST, "--check", "--diff")
    assert changed >= 4, output
    assert "+dev0: /dev/nvidia0,mode=0666" in output, output
    assert "+GRUB_CMDLINE_LINUX_DEFAULT" in output, output
    assert _everything(proxmox) == before


@pytest.mark.long
def test_a_container_gets_all_gpus_and_a_second_run_changes_nothing(proxmox: Proxmox) -> None:
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed > 0, output
    assert "check results on 1 host" in output and "NOT READY" not in output, "ends by checking the host"
    config = proxmox.ssh("cat /etc/pve/lxc/102.conf")
    assert "dev1: /dev/nvidia1,mode=0666\n" in config and "mount.entry" not in config and "apparmor" in config
    assert "iommu=pt" in proxmox.ssh("cat /boot/grub/grub.cfg")
    assert proxmox.ssh("cat /etc/modules-load.d/gpu-host.conf").split("\n")[1:3] == ["nvidia", "nvidia_uvm"]
    assert "has to be rebooted" in output and "iommu=pt" in output
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed == 0, output


@pytest.mark.long
def test_a_boot_loader_that_could_not_be_refreshed_is_refreshed_by_the_next_run(proxmox: Proxmox) -> None:
    proxmox.ssh("rm /boot/grub/grub.cfg /etc/default/grub.d/gpu-host.cfg /usr/sbin/update-grub")
    proxmox.ssh(
        "printf '#!/bin/sh\\necho No space left on device >&2\\nexit 1\\n' > /usr/sbin/update-grub; "
        "chmod +x /usr/sbin/update-grub"
    )
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed == -1 and "No space left on device" in output, output
    proxmox.ssh("rm /usr/sbin/update-grub; ln -s /opt/pve/update-grub /usr/sbin/update-grub")
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed == 1, output
    assert "iommu=pt" in proxmox.ssh("cat /boot/grub/grub.cfg")
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed == 0, output


@pytest.mark.long
def test_a_unit_that_was_written_and_not_started_is_started_by_the_next_run(proxmox: Proxmox) -> None:
    """systemd still has the unit as it was before: what a run leaves that is killed after it wrote the file."""
    unit = "/etc/systemd/system/gpu-device-nodes.service"
    proxmox.ssh("cp %s /tmp/unit; sed -i 's/-c 1$/-c 7/' %s; systemctl daemon-reload" % (unit, unit))
    proxmox.ssh("systemctl restart gpu-device-nodes; rm -f /dev/nvidia1; cp /tmp/unit %s" % unit)
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed == 1, output
    assert "nvidia1" in proxmox.ssh("ls /dev")
    assert proxmox.role(CONTAINER_GUEST)[0] == 0


def test_the_nodes_are_there_before_the_guests_after_a_boot(proxmox: Proxmox) -> None:
    changed, output = proxmox.role(CONTAINER_GUEST)
    assert changed >= 0, output
    proxmox.ssh("rm -f /dev/nvidia* /var/lib/nodes-at-guest-start")
    ping = "-i %s -m ansible.builtin.reboot px-pve" % proxmox.inventory
    subprocess.run(
        [str(Path(sys.executable).parent / "ansible"), *ping.split()],
        cwd=ROOT,
        check=True,
        capture_output=True,
        timeout=180,
    )
    _as_the_kernel(proxmox)
    nodes = proxmox.ssh("cat /var/lib/nodes-at-guest-start").split()
    assert nodes == ["nvidia-uvm", "nvidia-uvm-tools", "nvidia0", "nvidia1", "nvidiactl"]
    assert proxmox.ssh("systemctl is-active gpu-device-nodes.service").strip() == "active"


@pytest.mark.long
def test_a_running_guest_is_stopped_only_when_told(proxmox: Proxmox) -> None:
    proxmox.ssh("pct start 102")
    pid = proxmox.ssh("cat /run/lxc-standin/102.pid")
    one = [{"vmid": 102, "type": "lxc", "gpus": GPUS[:1]}]
    _changed, output = proxmox.role(one)
    assert "lxc 102 still runs as it was started" in output
    assert proxmox.ssh("cat /run/lxc-standin/102.pid") == pid
    changed, output = proxmox.role(one, gpu_host_disrupt=True)
    assert changed == 1, output
    assert proxmox.ssh("cat /run/lxc-standin/102.pid") != pid
    changed, output = proxmox.role(one)
    assert changed == 0 and "still runs" not in output
    proxmox.ssh("pct stop 102")


@pytest.mark.long
def test_cards_go_from_a_container_to_a_vm(proxmox: Proxmox) -> None:
    changed, output = proxmox.role(VM_GUEST)
    assert changed > 0, output
    assert "dev0" not in proxmox.ssh("cat /etc/pve/lxc/102.conf")
    config = proxmox.ssh("cat /etc/pve/qemu-server/101.conf")
    assert config.startswith("#a note\n") and "machine: q35\n" in config and "hostpci1: 0000:11:00.0,pcie=1\n" in config
    assert proxmox.ssh("ls /var/backups/gpu-host | grep -c vm-101").strip() == "1"
    assert proxmox.role(VM_GUEST)[0] == 0
    proxmox.ssh("qm start 101 && qm stop 101")


@pytest.mark.long
def test_the_command_line_of_systemd_boot(proxmox: Proxmox) -> None:
    (proxmox.work / "cmdline").write_text(
        "initrd=\\EFI\\proxmox\\6.14\\initrd.img root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=off\n"
    )
    proxmox.ssh("mkdir -p /etc/kernel; echo 'root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=off' > /etc/kernel/cmdline")
    proxmox.ssh("echo AAAA-0001 > /etc/kernel/proxmox-boot-uuids")
    proxmox.ssh(
        "printf '#!/bin/sh\\necho $1 >> /var/lib/refreshed\\n' > /usr/sbin/proxmox-boot-tool; chmod +x "
        "/usr/sbin/proxmox-boot-tool"
    )
    changed, output = proxmox.role(VM_GUEST)
    assert changed == 2, output  # the file and the handler
    assert proxmox.ssh("cat /etc/kernel/cmdline") == "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt\n"
    assert proxmox.ssh("cat /var/lib/refreshed") == "refresh\n"
    assert proxmox.role(VM_GUEST)[0] == 0


@pytest.mark.parametrize(
    ("guests", "message"),
    [
        (
            [{"vmid": 101, "type": "vm", "gpus": GPUS[:1]}, {"vmid": 102, "type": "lxc", "gpus": ["all"]}],
            "A GPU belongs to one VM",
        ),
        ([{"vmid": 101, "type": "vm", "gpus": [], "machin": "q35"}], "machin"),
    ],
)
def test_wishes_that_are_refused(proxmox: Proxmox, guests: list[dict[str, Any]], message: str) -> None:
    before = proxmox.ssh("cat /etc/pve/qemu-server/101.conf /etc/pve/lxc/102.conf")
    changed, output = proxmox.role(guests)
    assert changed == -1 and message in " ".join(output.split()), output
    assert "Traceback" not in output
    assert proxmox.ssh("cat /etc/pve/qemu-server/101.conf /etc/pve/lxc/102.conf") == before


def test_a_cluster_without_quorum_is_told_as_such(proxmox: Proxmox) -> None:
    proxmox.ssh("touch /etc/pve/.no-quorum")
    try:
        freed = {"vmid": 102, "type": "lxc", "gpus": []}
        changed, output = proxmox.role([freed, {"vmid": 101, "type": "vm", "machine": "q35", "gpus": GPUS[:1]}])
    finally:
        proxmox.ssh("rm /etc/pve/.no-quorum")
    assert changed == -1, output
    assert "pvecm status" in output, output
