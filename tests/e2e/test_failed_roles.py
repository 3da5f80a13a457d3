"""A run that ends in a role never ends with a verdict: every role, after a look that said ready."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
# Role -> (variables with which it fails before it changes anything, a part of what it says). None of them may get
# further: the role runs on this machine.
FAILS: dict[str, tuple[dict[str, Any], str]] = {
    "cuda_toolkit": ({"cuda_toolkit_versions": ["12.8"]}, "is a recorded host"),
    "gpu_host_guard": (
        {"gpu_host_guard_in_use": {"text": "python3 (pid 7)", "unreadable": 0}, "gpu_host_guard_would": "A test"},
        "python3 (pid 7)",
    ),
    "host_validation": ({"host_validation_probe": "perhaps"}, "perhaps"),
    "inference_server": ({"inference_server_model": "m", "inference_server_engine": "nonsense"}, "nonsense"),
    "nvidia_apt": ({}, "use those roles"),
    "nvidia_driver": ({}, "is a recorded host"),
    "nvidia_module_options": ({"nvidia_module_options_wanted": {"nvidia": {"a": 1}}}, "is a recorded host"),
    "pci_acs": ({}, "ACS is left alone"),
    "proxmox_passthrough": ({}, "is no Proxmox VE host"),
    "scheduled_validation": ({}, "must name an inventory"),
}
PLAY = """
- name: Provision
  hosts: all
  gather_facts: false
  strategy: free
  tasks:
    - name: Look before
      ansible.builtin.include_role: {name: host_validation}
      vars: {host_validation_only: [driver_loaded, cuda_initialises]}
    - name: Change something
      ansible.builtin.command: "true"
    - name: Look at another machine
      ansible.builtin.set_fact: {gpu_host_bundle: "{{ bundle_then }}"}
    - name: Include the role
      ansible.builtin.include_role: {name: "{{ role }}"}
"""


def bundle(name: str) -> str:
    return str(HOSTS / (name + ".jsonl.gz"))


def run_roles(tmp_path: Path, roles: list[str]) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    hosts = {
        role.replace("_", "-"): {
            "ansible_connection": "local",
            "ansible_python_interpreter": sys.executable,
            "gpu_host_bundle": bundle("bare-metal"),
            "bundle_then": bundle("kvm-q35" if role == "pci_acs" else "bare-metal"),
            "role": role,
            **FAILS[role][0],
        }
        for role in roles
    }
    for row in hosts.values():  # a value that fails the first look already would be no test
        row.pop("host_validation_probe", None)
    play = PLAY.replace('{name: "{{ role }}"}', '{name: "{{ role }}"}\n      vars: {host_validation_probe: perhaps}')
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    (tmp_path / "play.yml").write_text(play)
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        GPU_HOST_REPORTS_DIR=str(tmp_path / "reports"),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_HOME=str(tmp_path / "home"),
    )
    program = Path(sys.executable).parent / "ansible-playbook"
    argv = [str(program), "-i", str(tmp_path / "hosts.yml"), str(tmp_path / "play.yml")]
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)
    return done, json.loads((tmp_path / "reports" / "report.json").read_text())


def test_every_role_is_tried() -> None:
    assert sorted(FAILS) == sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())


@pytest.fixture(scope="module")
def all_roles(tmp_path_factory: pytest.TempPathFactory) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    return run_roles(tmp_path_factory.mktemp("roles"), sorted(FAILS))


@pytest.mark.xdist_group("failed_roles")
@pytest.mark.parametrize("role", FAILS)
def test_a_host_whose_role_failed_has_no_verdict(all_roles: Any, role: str) -> None:
    done, report = all_roles
    assert done.returncode == 2, done.stdout + done.stderr
    host = report["hosts"][role.replace("_", "-")]
    assert host["state"] == "not_validated" and not host["results"], host["message"]
    assert host["before"]["state"] == "ready", host["before"]
    assert host["message"].startswith("the run ended at '") and FAILS[role][1] in host["message"], host["message"]


@pytest.mark.xdist_group("failed_roles")
def test_the_first_and_the_last_words_say_so(tmp_path: Path) -> None:
    done, report = run_roles(tmp_path, ["nvidia_driver"])
    assert report["ready"] is False
    said = [line for line in done.stdout[done.stdout.index("\nTHE RUN") :].splitlines() if line.strip()]
    begins, ends = " ".join(" ".join(said[:6]).split()), " ".join(" ".join(said[-6:]).split())
    for place in (begins, ends):
        assert "THE RUN DID NOT FINISH on nvidia-driver: the run ended at 'nvidia_driver : Refuse a recorded" in place
        assert "Changed by then: 'Change something'." in place, "what was changed by then"
        assert "Mend that and run it again" in place
    assert ends.endswith("What was seen before the change is no verdict.")
    assert not any(line.startswith("The host is ready") for line in said)
    assert "before nvidia-driver: ready:" in " ".join(done.stdout.split())
