"""What a machine is, and how a run was started: evidence decides, and what is wrong with the inventory or the command
is said."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence import bundle as bundles

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"


def bundle(name: str, **variables: Any) -> dict[str, Any]:
    return {"gpu_host_bundle": str(HOSTS / (name + ".jsonl.gz")), **variables}


@pytest.mark.slow
def test_machines_without_a_group_and_wrong_entries(play: Any) -> None:
    inventory = {
        "all": {
            "hosts": {
                "vm": bundle("kvm-story", proxmox_host="pve", proxmox_vmid=101),
                "typo": bundle("kvm-q35", proxmox_host="pve9", proxmox_vmid=101),
                "wrong-kind": bundle("lxc-story", proxmox_host="pve", proxmox_vmid=101),
                "no-hypervisor": bundle("kvm-q35", proxmox_host="bare", proxmox_vmid=101),
                "bare": bundle("bare-metal"),
                "pve": bundle("pve-story"),
            }
        }
    }
    run = play("validate.yml", inventory)
    hosts = run.report["hosts"]
    failed = {
        name: {result["id"] for result in host["results"] if result["status"] == "fail"} for name, host in hosts.items()
    }
    assert "pve_host_in_its_group" in failed["pve"] and run.statuses("pve")["pve_host_is_proxmox"] == "pass"
    assert run.statuses("pve")["log_no_fatal_xid"] == "pass", "its kernel log is looked at"
    assert "vm_machine_q35" in failed["vm"] and "qm set 101 --machine q35" in run.text
    for name in ("typo", "no-hypervisor"):
        assert "guest_hypervisor_named" in failed[name] and hosts[name]["state"] == "not_ready"
    assert "guest_kind_agrees" in failed["wrong-kind"]
    assert "'pve9', which is not in the inventory" in run.text
    unproven = [text for host in hosts.values() for text in host["unproven"]]
    assert any("not proven: the probe did not run because the bundle holds no probe" in text for text in unproven)
    assert "reconstructed" in run.text


@pytest.mark.slow
def test_acs_is_left_alone_on_a_proxmox_host_in_no_group_whose_vms_have_gpus(play: Any, tmp_path: Path) -> None:
    """Its cards have no driver until their VM starts, so only the configurations of its guests say whose they are."""
    source = bundles.load_bundle(str(HOSTS / "pve-kvm.jsonl.gz"))
    records = [json.dumps(record).replace("DRIVER=vfio-pci\\n", "") for record in source.records()]
    manifest = json.dumps(source.manifest)
    path = tmp_path / "pve.jsonl"
    path.write_text("\n".join([manifest, *records]) + "\n")
    run = play("pci_acs.yml", {"all": {"hosts": {"pve": {"gpu_host_bundle": str(path)}}}}, "--check")
    assert run.rc != 0 and "its VMs have GPUs, and their isolation rests on ACS" in run.messages()["pve"]


def test_an_unknown_tag_ends_the_run_and_is_named(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct --tags p2p,drvier")
    assert run.rc != 0 and "There is no tag 'drvier'; did you mean driver?" in run.text
    assert re.search(r"Known tags: (?:\w+, )*cuda,", run.text)


@pytest.mark.slow
def test_a_run_from_another_directory_says_what_is_missing(tmp_path: Path) -> None:
    program = Path(sys.executable).parent / "ansible-playbook"
    environment = {**os.environ, "LC_ALL": "C.UTF-8", "ANSIBLE_HOME": str(tmp_path)}
    environment.pop("ANSIBLE_CONFIG", None)
    ran = subprocess.run(
        [str(program), str(ROOT / "validate.yml"), "-i", "nowhere,"],
        cwd=tmp_path, env=environment, capture_output=True, text=True, check=False, timeout=120,
    )  # fmt: skip
    said = " ".join((ran.stdout + ran.stderr).split())
    assert (
        ran.returncode != 0
        and "The ansible.cfg of this project is not in force (there is none in %s)" % tmp_path in said
    )
    assert "ANSIBLE_CONFIG=%s" % (ROOT / "ansible.cfg") in said and "unreachable=0" in said
