"""Pieces that people hand in, each with the verdict that stands beside it, and never a pass that they do not show."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpu_host.loose import case
from loose_cases import LOOSE, judge

VERDICTS: dict[str, dict[str, Any]] = yaml.safe_load((LOOSE / "verdicts.yml").read_text())


def test_every_input_has_its_verdict() -> None:
    assert {path.name for path in LOOSE.iterdir()} == set(VERDICTS) | {"verdicts.yml"}


@pytest.mark.parametrize("name", VERDICTS)
def test_the_verdict_beside_the_input(name: str) -> None:
    wanted = VERDICTS[name]
    loose = case.load_case(str(LOOSE / name)).manifest["loose"]
    found = [piece["what"] for piece in loose["recognised"]]
    for part in wanted["recognised"]:
        assert any(what.startswith(part) for what in found), (part, found)
    assert loose["unrecognised"] == wanted.get("not_recognised", loose["unrecognised"])
    assert loose["hypervisor"] == wanted.get("hypervisor")
    results = judge(LOOSE / name)
    assert [check for check, result in results.items() if result["status"] == "error"] == []
    assert {check for check, result in results.items() if result["status"] == "fail"} == set(wanted["fail"])
    passed = {check for check, result in results.items() if result["status"] == "pass"}
    assert set(wanted.get("pass", ())) <= passed
    if "only_pass" in wanted:
        assert passed == set(wanted["only_pass"])
    for check in wanted.get("unknown", ()):
        assert results[check]["status"] == "unknown", (check, results[check])
    for check, words in wanted.get("says", {}).items():
        assert words in " ".join((results[check]["found"] + " " + results[check]["remedy"]["text"]).split())
    assert not any("exit code None" in result["reason"] + result["found"] for result in results.values())


def test_nothing_of_one_line_is_ready() -> None:
    """Whatever the pieces are, a host of which so little is known is not ready."""
    for name in VERDICTS:
        results = judge(LOOSE / name)
        assert any(
            result["status"] in ("fail", "unknown") and result["severity"] == "error" for result in results.values()
        )


def test_a_guest_and_its_proxmox_host_in_one_folder(tmp_path: Path) -> None:
    lines = (LOOSE / "pasted-session.txt").read_text().splitlines(keepends=True)
    (tmp_path / "guest.txt").write_text("".join(line for line in lines if "Xid" not in line))
    (tmp_path / "101.conf").write_bytes((LOOSE / "pve" / "101.conf").read_bytes())
    results = judge(tmp_path)
    assert results["vm_machine_q35"]["status"] == "fail"
    assert "VM 101 on its Proxmox host has no machine line" in results["vm_machine_q35"]["found"]
    assert results["p2p_granted"]["caused_by"] == ["vm_machine_q35"]


def test_two_machines_in_one_text(tmp_path: Path) -> None:
    """The prompts say which output is the guest's and which its Proxmox host's."""
    lines = (LOOSE / "pasted-session.txt").read_text().splitlines(keepends=True)
    session = "".join(line for line in lines if "Xid" not in line)
    config, listing = ((LOOSE / "pve" / name).read_text() for name in ("101.conf", "lspci"))
    prompt = "root@pve1:~# "
    session += (
        prompt
        + "qm config 101\n"
        + config
        + prompt
        + "lspci -nnk\n"
        + listing
        + prompt
        + "pveversion\npve-manager/8.2.4/x\n"
    )
    (tmp_path / "post.txt").write_text(session)
    loose = case.load_case(str(tmp_path / "post.txt")).manifest["loose"]
    assert (loose["hypervisor"], loose["guests"]) == ("of_guest", ["101"])
    results = judge(tmp_path / "post.txt")
    assert results["vm_machine_q35"]["status"] == "fail" and results["p2p_granted"]["caused_by"] == ["vm_machine_q35"]
    assert "pve_host_is_proxmox" not in results or results["pve_host_is_proxmox"]["status"] == "skip"
