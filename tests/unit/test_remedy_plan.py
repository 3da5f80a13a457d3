"""What remedy.yml does with a result: it refuses, tells, or has commands to run; and what it says afterwards."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_checks.remedy_plan import judge_outcome, plan_remedy

KNOWN = ["gpu_persistence_on", "vm_cpu_host", "uvm_hmm_disabled"]
REMEDY: dict[str, Any] = {
    "number": 1,
    "on": "host",
    "text": "Switch it on.",
    "commands": ["nvidia-smi -pm 1"],
    "risk": "",
    "verify": "nvidia-smi -q",
    "disrupts": "nothing",
}
VM = {"hypervisor": "proxmox", "on": "hypervisor", "disrupts": "guest", "risk": "The guest stops."}
RESTART = {**VM, "commands": ["qm shutdown 101 && qm start 101"]}


def result(status: str = "fail", remedy: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    record = {"id": "gpu_persistence_on", "status": status, "found": "off", "reason": "", "docs": "d", "waiver": None}
    return {**record, "caused_by": [], "remedy": {**REMEDY, **(remedy or {})} if status == "fail" else None, **more}


def plan(
    found: dict[str, Any], host: dict[str, Any] | None = None, check: str = "gpu_persistence_on"
) -> dict[str, Any]:
    return plan_remedy(check, [found], host or {}, "gpu1", KNOWN, ["gpu1", "pve1"])


def guest(start: dict[str, Any] | None, **fixes: Any) -> dict[str, Any]:
    return {
        "inventory": {"proxmox_host": "pve1"},
        "hypervisor": {"guest": {"start": start or {}, "fixes": fixes}},
    }


def test_commands_that_can_be_run() -> None:
    made = plan(result())
    assert (made["state"], made["machine"], made["disrupts"]) == ("ready", "gpu1", "nothing")
    assert made["steps"] == [{"command": "nvidia-smi -pm 1", "looks": False, "reboots": False}]
    shown = "\n".join(made["lines"])
    for words in ("gpu_persistence_on fails on gpu1: off", "stops: nothing", "1. nvidia-smi -pm 1", "nvidia-smi -q"):
        assert words in shown


@pytest.mark.parametrize(
    ("found", "host", "state", "words"),
    [
        (result("pass"), {}, "nothing", "passes on gpu1. There is nothing to do"),
        (result("skip", reason="no GPU"), {}, "nothing", "does not apply to gpu1: no GPU"),
        (result("unknown", reason="it was denied"), {}, "refused", "An unknown value is no reason to change a host"),
        (result("error", reason="broken"), {}, "refused", "No verdict, no change"),
        (result(remedy={"on": "firmware"}), {}, "told", "firmware or the hardware"),
        (result(remedy={"by_hand": "mokutil asks"}), {}, "told", "for you to type: mokutil asks"),
        (result(remedy={"commands": ["lspci -nn"]}), {}, "told", "no command of this remedy changes anything"),
        (result(remedy={"commands": ["update-grub && reboot"]}), {}, "told", "more than a reboot at the end"),
        (result(remedy={"commands": ["reboot", "modprobe nvidia"]}), {}, "told", "more than a reboot at the end"),
        (result(remedy={"commands": ["modprobe nvidia", "reboot"]}), {}, "ready", ""),
        (result(remedy={"commands": ["echo 'not closed"]}), {}, "ready", ""),
        (result(remedy={"commands": []}), {}, "told", "no command of this remedy changes anything"),
        (
            result(remedy={"role": "nvidia_driver"}),
            {},
            "told",
            "ansible-playbook provision.yml -b -l gpu1 --tags driver",
        ),
        (result(remedy={"on": "controller"}), {}, "told", "type them here"),
        (result(remedy={"role": "pci_acs", "settings": {}}), {}, "role", ""),
        (result(remedy=VM), {}, "refused", "set proxmox_host for gpu1"),
        (result(remedy=VM), {"inventory": {"proxmox_host": "pve9"}}, "refused", "no host 'pve9'"),
        (result(remedy=RESTART), guest({"starts": True}), "ready", ""),
        (
            result(remedy=RESTART),
            guest({"starts": False, "error": "no PCI device found"}),
            "refused",
            "could not start again: no PCI device found",
        ),
        (result(remedy=RESTART), guest(None), "refused", "whether it could start again is not known"),
        (
            result(remedy={**VM, "commands": ["qm set 101 --cpu host", "qm shutdown 101 && qm start 101"]}),
            guest({"starts": False, "error": "x"}, cpu_host="--cpu host"),
            "ready",
            "",
        ),
        (result(remedy=RESTART), {**guest(None), "proxmox": {"is_proxmox": True}}, "refused", "is not known"),
    ],
)
def test_what_is_done_about_a_result(found: dict[str, Any], host: dict[str, Any], state: str, words: str) -> None:
    made = plan(found, host)
    assert made["state"] == state, made
    assert words in made["message"], made["message"]


def test_a_remedy_on_the_proxmox_host_is_carried_out_there() -> None:
    made = plan(result(remedy=RESTART), guest({"starts": True}))
    assert made["machine"] == "pve1"
    assert "to do, on pve1: Switch it on." in made["lines"]


def test_an_id_that_no_check_has() -> None:
    made = plan(result(), check="gpu_persistance_on")
    assert made["state"] == "refused" and "the nearest are gpu_persistence_on" in made["message"]
    assert "docs/checks.md" in plan(result(), check="zzz")["message"]


def test_a_check_that_was_left_out_of_the_run() -> None:
    assert "not among the checks of this run" in plan(result(), check="vm_cpu_host")["message"]


def test_a_remedy_that_does_not_say_what_it_stops_is_taken_to_disturb_the_gpus() -> None:
    remedy = {key: value for key, value in REMEDY.items() if key != "disrupts"}
    made = plan({**result(), "remedy": {**remedy, "commands": ["something --hard"]}})
    assert made["disrupts"] == "gpus"


def outcome(status: str, host: dict[str, Any] | None = None, **more: Any) -> dict[str, Any]:
    given = {"reboot_left_out": False, **more}
    return judge_outcome("x", {"id": "x", "status": status, "found": "off"}, host or {}, on="gpu1", **given)


@pytest.mark.parametrize(
    ("status", "host", "more", "passes", "reboot", "words"),
    [
        ("pass", {}, {}, True, False, "x passes now."),
        ("fail", {}, {}, False, False, "x still fails. It is now so: x is fail: off."),
        ("unknown", {}, {}, False, False, "x is unknown"),
        ("fail", {}, {"reboot_left_out": True}, False, True, "x takes a reboot of gpu1, because the remedy ends with"),
        ("fail", {"kernel": {"pending_words": ["iommu=pt"]}}, {}, False, True, "file has iommu=pt"),
        ("fail", {"modules": {"pending_options": [{"text": "a is N, b says Y"}]}}, {}, False, True, "a is N, b says Y"),
        ("fail", {}, {"pending": ["gpu1: reload needed"]}, False, True, "gpu1: reload needed"),
    ],
)
def test_what_came_of_it(
    status: str, host: dict[str, Any], more: dict[str, Any], passes: bool, reboot: bool, words: str
) -> None:
    made = outcome(status, host, **more)
    assert (made["passes"], made["takes_reboot"]) == (passes, reboot)
    assert words in made["message"]
