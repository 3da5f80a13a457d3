"""What the driver role refuses by looking at the cards, on recorded hosts; and that provisioning leaves those alone."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parent.parent.parent
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  tasks:
    - gpu_facts: {bundle: "{{ gpu_host_bundle }}", gather_subset: [driver, modules, virtualization, pci]}
    - set_fact:
        gpu_host: "{{ ansible_facts.gpu_host | combine(laid_over, recursive=true) }}"
        cacheable: true
      when: laid_over is defined
    - include_role: {name: nvidia_driver, tasks_from: preconditions, public: true}
    - debug:
        msg: >-
          wanted={{ __nvidia_driver_wanted }} flavour={{ __nvidia_driver_flavour }}
          fabric={{ __nvidia_driver_fabric | bool }}{{ '+nvlsm' if __nvidia_driver_nvlink5_board | bool else '' }}.
"""


BOARD = {
    "driver": {"nvswitches": [], "nvlink5": True, "fabric_services": {"nvlink5": "none"}},
    "pci": {"gpus": {"0000:1b:00.0": {"name": "NVIDIA B200"}}},
}
# Host -> (its recording, what is asked for, whether that is refused, what it says).
CASES: dict[str, tuple[str, dict[str, Any], bool, str]] = {
    "proprietary": (
        "bare-metal",
        {"nvidia_driver_open_modules": False},
        True,
        "can only be driven by the open kernel modules",
    ),
    "too_old": ("bare-metal", {"nvidia_driver_branch": "570"}, True, "they need 575.57.08 or newer"),
    "other_than_its_host": (
        "lxc-story",
        {"nvidia_driver_version": "599.10.10"},
        True,
        "the user space must be exactly that, but 599.10.10 is asked for",
    ),
    "card_of_today": ("bare-metal", {}, False, "wanted=580 flavour=open"),
    "container": ("lxc-story", {}, False, "flavour=userspace"),
    "no_switches": ("bare-metal", {}, False, "fabric=False."),
    "switches": ("bare-metal", {"laid_over": {"driver": {"nvswitches": ["0000:07:00.0"]}}}, False, "fabric=True."),
    # An HGX B200 before its first driver: the bus names the card, and the switches are no PCI devices.
    "board": ("bare-metal", {"laid_over": BOARD}, False, "fabric=True+nvlsm."),
    "board_of_a_guest": ("kvm-q35", {"laid_over": BOARD}, False, "fabric=False+nvlsm."),
    "rack": (
        "bare-metal",
        {"laid_over": {"driver": {"nvswitches": [], "nvlink5": True, "fabric_services": {"nvlink5": "rack"}}}},
        False,
        "fabric=False.",
    ),
}


def ansible(tmp_path: Path, playbook: Path, hosts: dict[str, dict[str, Any]]) -> subprocess.CompletedProcess[str]:
    (tmp_path / "inventory.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        GPU_HOST_REPORTS_DIR=str(tmp_path / "reports"),
        ANSIBLE_NOCOLOR="1",
        COLUMNS="400",
    )
    program = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(program), "-i", str(tmp_path / "inventory.yml"), str(playbook)]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


def recorded(bundle: str, **variables: Any) -> dict[str, Any]:
    return {"gpu_host_bundle": str(HOSTS / (bundle + ".jsonl.gz")), "ansible_connection": "local", **variables}


@pytest.fixture(scope="module")
def preconditions(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All cases in one run: each is a host."""
    place = tmp_path_factory.mktemp("preconditions")
    (place / "play.yml").write_text(PLAY)
    return ansible(place, place / "play.yml", {name: recorded(case[0], **case[1]) for name, case in CASES.items()})


def said(done: subprocess.CompletedProcess[str], host: str) -> str:
    """What the run printed of one host: the blocks of lines that begin with its name."""
    blocks = re.split(r"\n(?=(?:ok|fatal|failed|skipping|changed|included|PLAY|TASK)\b|\[)", done.stdout + done.stderr)
    return "\n".join(block for block in blocks if "[%s]" % host in block.split("\n")[0])


@pytest.mark.xdist_group("preconditions")
@pytest.mark.parametrize("host", CASES)
def test_what_the_role_says_of_the_cards(preconditions: subprocess.CompletedProcess[str], host: str) -> None:
    _bundle, _variables, refused, message = CASES[host]
    text = said(preconditions, host)
    assert preconditions.returncode == 2, preconditions.stdout + preconditions.stderr
    assert message in text, preconditions.stdout
    recap = re.search(r"^%s +:.* failed=(\d)" % host, preconditions.stdout, re.M)
    assert recap and recap[1] == str(int(refused)), preconditions.stdout
    assert ("Nothing was changed" in text) is refused
    if host == "container":  # exactly the version of its host
        wanted = next(line for line in text.splitlines() if "wanted=" in line).split("wanted=")[1].split()[0]
        assert wanted.count(".") >= 1


def test_recorded_hosts_are_left_alone(tmp_path: Path) -> None:
    result = ansible(tmp_path, ROOT / "provision.yml", {"gpu1": recorded("bare-metal")})
    assert result.returncode == 0, result.stdout + result.stderr
    assert "changed=0" in result.stdout
    assert not (tmp_path / "reports").exists() or not list((tmp_path / "reports").glob("baseline*"))
