"""What the driver role refuses by looking at the cards, on recorded hosts; and that provisioning leaves those alone."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - gpu_facts: {bundle: "{{ gpu_host_bundle }}", gather_subset: [driver, modules, virtualization, pci]}
    - include_role: {name: nvidia_driver, tasks_from: preconditions, public: true}
    - debug: {msg: "wanted={{ __nvidia_driver_wanted }} flavour={{ __nvidia_driver_flavour }}"}
"""


def ansible(tmp_path: Path, playbook: Path, bundle: str, *words: str) -> subprocess.CompletedProcess[str]:
    (tmp_path / "inventory.yml").write_text(
        "all: {hosts: {gpu1: {gpu_host_bundle: %s, ansible_connection: local}}}\n" % (HOSTS / (bundle + ".jsonl.gz"))
    )
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        GPU_HOST_REPORTS_DIR=str(tmp_path / "reports"),
        ANSIBLE_NOCOLOR="1",
        COLUMNS="400",
    )
    program = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(program), "-i", str(tmp_path / "inventory.yml"), str(playbook), *words]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("bundle", "variables", "message"),
    [
        ("bare-metal", "nvidia_driver_open_modules=false", "can only be driven by the open kernel modules"),
        ("bare-metal", "nvidia_driver_branch=570", "they need 575.57.08 or newer"),
        (
            "lxc-story",
            "nvidia_driver_version=599.10.10",
            "the user space must be exactly that, but 599.10.10 is asked for",
        ),
    ],
)
def test_refused(tmp_path: Path, bundle: str, variables: str, message: str) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    result = ansible(tmp_path, tmp_path / "play.yml", bundle, "-e", variables)
    assert result.returncode == 2, result.stdout + result.stderr
    assert message in result.stdout + result.stderr
    assert "Nothing was changed" in result.stdout + result.stderr


def test_a_card_of_today_takes_the_default(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    result = ansible(tmp_path, tmp_path / "play.yml", "bare-metal")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "wanted=580 flavour=open" in result.stdout


def test_a_container_takes_the_version_of_its_host_without_a_module(tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    result = ansible(tmp_path, tmp_path / "play.yml", "lxc-story")
    assert result.returncode == 0, result.stdout + result.stderr
    line = next(line for line in result.stdout.splitlines() if "wanted=" in line)
    assert "flavour=userspace" in line and line.split("wanted=")[1].split()[0].count(".") >= 1


def test_recorded_hosts_are_left_alone(tmp_path: Path) -> None:
    result = ansible(tmp_path, ROOT / "provision.yml", "bare-metal")
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed=0" in result.stdout
    assert not (tmp_path / "reports").exists() or not list((tmp_path / "reports").glob("baseline*"))
