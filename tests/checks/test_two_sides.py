"""A guest and its Proxmox host, judged together: the cause lies on the side that can mend it."""

from __future__ import annotations

import harness


def test_the_cause_of_the_story_is_on_the_hypervisor() -> None:
    hypervisor = harness.hypervisor_of({"hypervisor": {"recording": "pve-story", "vmid": 101}})
    results = harness.judge(harness.base("kvm-story"), {"gpus": {"count": 8}}, None, hypervisor)
    bad = {
        name: result
        for name, result in results.items()
        if result["status"] in ("fail", "error") and result["severity"] == "error"
    }
    assert set(bad) == {"vm_machine_q35", "chipset_supports_p2p", "p2p_granted"}
    assert [name for name, result in bad.items() if result["root_cause"]] == ["vm_machine_q35"]
    cause = bad["vm_machine_q35"]
    assert cause["found"].startswith("VM 101 on pve1 has no machine line: i440FX")
    assert cause["remedy"]["on"] == "hypervisor"
    assert "qm set 101 --machine q35 --hostpci0 0000:01:00.0,pcie=1 --hostpci1" in cause["remedy"]["commands"][1]


def test_a_fix_that_waits_for_a_restart_is_the_cause_then() -> None:
    """Q35 is configured, but the VM was not stopped since.

    The guest still shows i440FX, and no second remedy is given for that.
    """
    hypervisor = harness.hypervisor_of(
        {"hypervisor": {"recording": "pve-story", "vmid": 101}},
        [
            {
                "read": "/etc/pve/qemu-server/101.conf",
                "append": "\n[PENDING]\nmachine: q35\n"
                + "".join(
                    "hostpci%d: 0000:%s:00.0,pcie=1\n" % item
                    for item in enumerate(("01", "11", "61", "71", "81", "91", "e1", "f1"))
                ),
            }
        ],
    )
    results = harness.judge(harness.base("kvm-story"), {"gpus": {"count": 8}}, None, hypervisor)
    causes = [
        name
        for name, result in results.items()
        if result["root_cause"] and result["status"] == "fail" and result["severity"] == "error"
    ]
    assert causes == ["vm_restart_not_pending"]
    assert "machine: configured q35, running i440fx" in results["vm_restart_not_pending"]["found"]


def test_a_guest_without_a_known_hypervisor_is_not_asked_about_it() -> None:
    results = harness.judged_base("kvm-q35")
    assert {
        result["status"] for name, result in results.items() if name.startswith(("vm_", "ct_", "pve_", "guest_"))
    } == {"skip"}


def test_a_hypervisor_whose_guests_could_not_be_read_leaves_them_unknown() -> None:
    hypervisor = harness.hypervisor_of(
        {"hypervisor": {"recording": "pve-kvm", "vmid": 101}}, [{"list": "/etc/pve/qemu-server", "denied": True}]
    )
    result = harness.judge(harness.base("kvm-q35"), {}, None, hypervisor)["guest_known_to_hypervisor"]
    assert result["status"] == "unknown" and "/etc/pve/qemu-server" in result["reason"]


def test_a_log_of_the_hypervisor_that_could_not_be_read_leaves_its_guests_cards_unknown() -> None:
    hypervisor = harness.hypervisor_of(
        {"hypervisor": {"recording": "pve-kvm", "vmid": 101}}, [{"run": ["dmesg"], "failed": True, "reason": "cut"}]
    )
    result = harness.judge(harness.base("kvm-q35"), {}, None, hypervisor)["guest_cards_sound"]
    assert result["status"] == "unknown"
    assert "log_no_fatal_xid on pve1 is unknown: dmesg" in result["reason"]


def test_a_guest_of_another_kind_is_judged_by_nothing_else_of_its_entry() -> None:
    hypervisor = harness.hypervisor_of({"hypervisor": {"recording": "pve-lxc", "vmid": 102}})
    results = harness.judge(harness.base("kvm-q35"), {}, None, hypervisor)
    assert results["guest_kind_agrees"]["status"] == "fail"
    assert {results[name]["status"] for name in ("guest_gpus_accounted", "guest_lines_accepted", "ct_can_start")} == {
        "skip"
    }
    assert results["guest_cards_sound"]["status"] == "skip"
