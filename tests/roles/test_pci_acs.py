"""The role on a real systemd host.

The PCI facts come from a recorded machine, setpci is a stand-in whose registers are files.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
RECORDED = ROOT / "tests" / "fixtures" / "hosts"
SSH_OPTIONS = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]
PORTS = ["0000:%02x:01.1" % (bus - 1) for bus in (0x01, 0x11, 0x61, 0x71, 0x81, 0x91, 0xE1, 0xF1)]
pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("px-acs")]


@pytest.fixture(scope="module")
def machine(make_host: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    host = make_host("px-acs", "bookworm", "--bind-ro=%s:/opt/pve" % (ROOT / "tests" / "fixtures" / "pve"))
    ssh(host, "ln -s /opt/pve/setpci /usr/local/sbin/setpci; mkdir -p /var/lib/setpci")
    ssh(host, "cd /var/lib/setpci; for p in %s; do echo 001d > $p; done" % " ".join(PORTS))
    return host


def ssh(host: dict[str, Any], command: str) -> str:
    argv = ["ssh", "-i", host["key"], *SSH_OPTIONS, "root@" + host["address"], command]
    done = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=120)
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def role(
    host: dict[str, Any], work: Path, recording: str, *options: str, group: str = "bare_metal", **variables: Any
) -> tuple[int, str]:
    """(number of changed tasks, or -1 where the run failed; what was printed)."""
    address = {
        "ansible_host": host["address"],
        "ansible_user": "root",
        "ansible_ssh_private_key_file": host["key"],
        "ansible_ssh_common_args": " ".join(SSH_OPTIONS),
        "ansible_python_interpreter": "/usr/bin/python3",
    }
    inventory = work / "inventory.yml"
    inventory.write_text(yaml.safe_dump({group: {"hosts": {host["name"]: address}}}))
    extra = json.dumps({"gpu_host_bundle": str(RECORDED / (recording + ".jsonl.gz")), **variables})
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_STDOUT_CALLBACK": "default",
        "NO_COLOR": "1",
    }
    playbook = str(Path(sys.executable).parent / "ansible-playbook")
    command = [playbook, "-i", str(inventory), "playbooks/pci_acs.yml", "-e", extra, *options]
    done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    recap = [line for line in done.stdout.splitlines() if "changed=" in line and line.startswith(host["name"])]
    changed = int(recap[-1].partition("changed=")[2].split()[0]) if done.returncode == 0 and recap else -1
    return changed, done.stdout + done.stderr


def registers(host: dict[str, Any]) -> set[str]:
    return set(ssh(host, "cat /var/lib/setpci/*").split())


@pytest.mark.parametrize(
    ("recording", "group", "reason"),
    [
        ("kvm-q35", "bare_metal", "it is a virtual machine"),
        ("lxc-story", "bare_metal", "it is a container: run this on its host"),
        ("pve-kvm", "proxmox_hosts", "vfio-pci holds GPUs for virtual machines"),
    ],
)
def test_it_refuses_where_isolation_rests_on_acs(
    machine: dict[str, Any], tmp_path: Path, recording: str, group: str, reason: str
) -> None:
    changed, output = role(machine, tmp_path, recording, group=group)
    assert changed == -1 and reason in " ".join(output.split()), output
    assert registers(machine) == {"001d"}


def test_check_mode_then_cleared_then_nothing_to_do(machine: dict[str, Any], tmp_path: Path) -> None:
    changed, output = role(machine, tmp_path, "bare-metal", "--check", "--diff")
    assert changed > 0 and "+0000:00:01.1" in output, output
    assert registers(machine) == {"001d"} and "gpu-pci-acs" not in ssh(machine, "ls /etc/systemd/system")
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed > 0, output
    assert "2 check results on 1 host: 2 passed" in output, output
    assert registers(machine) == {"0011"}
    assert ssh(machine, "cat /etc/gpu-pci-acs.conf").split("\n")[1:-1] == PORTS
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed == 0, output


def test_what_a_run_that_was_cut_off_did_not_clear_is_cleared_by_the_next(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    """The files are written and the unit counts as started; a port that was added since still redirects."""
    ssh(machine, "echo 001d > /var/lib/setpci/%s" % PORTS[3])
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed == 1, output
    assert registers(machine) == {"0011"}
    assert role(machine, tmp_path, "bare-metal")[0] == 0


def test_the_bits_are_cleared_at_each_boot_and_checked(machine: dict[str, Any], tmp_path: Path) -> None:
    ssh(machine, "cd /var/lib/setpci; for p in *; do echo 001d > $p; done")
    reboot = [
        str(Path(sys.executable).parent / "ansible"),
        "-i",
        str(tmp_path / "inventory.yml"),
        "-m",
        "ansible.builtin.reboot",
        "px-acs",
    ]
    role(machine, tmp_path, "bare-metal", "--check")  # writes the inventory
    subprocess.run(reboot, cwd=ROOT, check=True, capture_output=True, timeout=180)
    assert registers(machine) == {"0011"}
    ssh(machine, "touch /var/lib/setpci/%s.stuck; echo 001d > /var/lib/setpci/%s" % (PORTS[0], PORTS[0]))
    assert (
        ssh(machine, "systemctl restart gpu-pci-acs; systemctl is-failed gpu-pci-acs || true")
        .strip()
        .endswith("failed")
    )
    ssh(machine, "rm /var/lib/setpci/*.stuck")


def test_it_goes_again(machine: dict[str, Any], tmp_path: Path) -> None:
    changed, output = role(machine, tmp_path, "bare-metal", pci_acs_state="absent")
    assert changed > 0, output
    assert ssh(machine, "ls /etc/systemd/system /usr/local/sbin /etc | grep -c gpu-pci-acs || true").strip() == "0"
    assert role(machine, tmp_path, "bare-metal", pci_acs_state="absent")[0] == 0
