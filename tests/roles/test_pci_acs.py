"""The role on a real systemd host.

The PCI facts come from a recorded machine, setpci is a stand-in whose registers are files.
"""

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
from ssh_host import ask_over_ssh

RECORDED = ROOT / "tests" / "fixtures" / "hosts"
PORTS = ["0000:%02x:01.1" % (bus - 1) for bus in (0x01, 0x11, 0x61, 0x71, 0x81, 0x91, 0xE1, 0xF1)]
pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("px-acs")]


@pytest.fixture(scope="module")
def machine(make_host: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    host = make_host("px-acs", "bookworm", "--bind-ro=%s:/opt/pve" % (ROOT / "tests" / "fixtures" / "pve"))
    ask_over_ssh(host, "ln -s /opt/pve/setpci /usr/local/sbin/setpci; mkdir -p /var/lib/setpci")
    ask_over_ssh(host, "cd /var/lib/setpci; for p in %s; do echo 001d > $p; done" % " ".join(PORTS))
    return host


def role(
    host: dict[str, Any], work: Path, recording: str, *options: str, group: str = "bare_metal", **variables: Any
) -> tuple[int, str]:
    """(number of changed tasks, or -1 where the run failed; what was printed)."""
    there = Machine(host, work, work, group)
    extra = json.dumps({"gpu_host_bundle": str(RECORDED / (recording + ".jsonl.gz")), **variables})
    done = there.run_playbook("playbooks/pci_acs.yml", "-e", extra, *options)
    recap = [line for line in done.stdout.splitlines() if "changed=" in line and line.startswith(host["name"])]
    changed = int(recap[-1].partition("changed=")[2].split()[0]) if done.returncode == 0 and recap else -1
    return changed, done.stdout + done.stderr


def registers(host: dict[str, Any]) -> set[str]:
    return set(ask_over_ssh(host, "cat /var/lib/setpci/*").split())


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
    assert registers(machine) == {"001d"} and "gpu-pci-acs" not in ask_over_ssh(machine, "ls /etc/systemd/system")
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed > 0, output
    assert "2 check results on 1 host: 2 passed" in output, output
    assert registers(machine) == {"0011"}
    assert ask_over_ssh(machine, "cat /etc/gpu-pci-acs.conf").split("\n")[1:-1] == PORTS
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed == 0, output


def test_what_a_run_that_was_cut_off_did_not_clear_is_cleared_by_the_next(
    machine: dict[str, Any], tmp_path: Path
) -> None:
    """The files are written and the unit counts as started; a port that was added since still redirects."""
    ask_over_ssh(machine, "echo 001d > /var/lib/setpci/%s" % PORTS[3])
    changed, output = role(machine, tmp_path, "bare-metal")
    assert changed == 1, output
    assert registers(machine) == {"0011"}
    assert role(machine, tmp_path, "bare-metal")[0] == 0


def test_the_bits_are_cleared_at_each_boot_and_checked(machine: dict[str, Any], tmp_path: Path) -> None:
    ask_over_ssh(machine, "cd /var/lib/setpci; for p in *; do echo 001d > $p; done")
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
    ask_over_ssh(machine, "touch /var/lib/setpci/%s.stuck; echo 001d > /var/lib/setpci/%s" % (PORTS[0], PORTS[0]))
    assert (
        ask_over_ssh(machine, "systemctl restart gpu-pci-acs; systemctl is-failed gpu-pci-acs || true")
        .strip()
        .endswith("failed")
    )
    ask_over_ssh(machine, "rm /var/lib/setpci/*.stuck")


def test_it_goes_again(machine: dict[str, Any], tmp_path: Path) -> None:
    changed, output = role(machine, tmp_path, "bare-metal", pci_acs_state="absent")
    assert changed > 0, output
    assert (
        ask_over_ssh(machine, "ls /etc/systemd/system /usr/local/sbin /etc | grep -c gpu-pci-acs || true").strip()
        == "0"
    )
    assert role(machine, tmp_path, "bare-metal", pci_acs_state="absent")[0] == 0
