"""A guest and its Proxmox host, judged together: the cause lies on the side that can mend it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_host.evidence import bundle


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


XID_OF_ANOTHER_CARD = (
    "[   90.000000] NVRM: Xid (PCI:0000:%s:00): 63, pid='<unknown>', name=<unknown>, Row Remapper: New row\n"
    "[   91.000000] NVRM: Xid (PCI:0000:%s:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n"
)


def cut_log(recording: str, card: str, cut: bool) -> bundle.BundleEvidence:
    """The Proxmox host with an Xid of one card in its log, which is read to its end or not."""
    evidence = harness.base(recording).copy()
    log = evidence.run(("dmesg",))
    text = log.stdout + (XID_OF_ANOTHER_CARD % (card, card)).encode()
    evidence.put(replace(log, stdout=text, truncated=cut))
    return evidence


def findings_on_cards(guest: str, recording: str, vmid: int, evidence: bundle.BundleEvidence) -> dict[str, Any]:
    hypervisor = {"facts": harness.facts_of_hypervisor(evidence), "vmid": vmid}
    return harness.judge(harness.base(guest), {}, None, hypervisor)["guest_cards_sound"]


@pytest.mark.parametrize(("guest", "recording", "vmid"), [("kvm-q35", "pve-kvm", 101), ("lxc-story", "pve-lxc", 102)])
def test_the_xid_of_another_card_in_a_log_that_was_cut_off_proves_nothing_for_the_guest(
    guest: str, recording: str, vmid: int
) -> None:
    another = "c1"  # no card of the recorded hosts
    cut = findings_on_cards(guest, recording, vmid, cut_log(recording, another, cut=True))
    assert cut["status"] == "unknown" and "cut off" in cut["reason"], cut["reason"]
    whole = findings_on_cards(guest, recording, vmid, cut_log(recording, another, cut=False))
    assert whole["status"] == "pass", (whole["found"], whole["reason"])


def test_an_offender_beside_one_that_could_not_be_read_is_no_proof_for_the_guest() -> None:
    facts = harness.facts_of_hypervisor(harness.base("pve-kvm"))
    link = {
        "address": "0000:c1:00.0",
        "width": 4,
        "max_width": 16,
        "gpus": ["0000:c1:00.0"],
        "port": "",
        "port_max_width": None,
    }
    facts["gpu_host"]["pci"]["width_reduced"] = [link]
    on = {"facts": facts, "vmid": 101}
    assert harness.judge(harness.base("kvm-q35"), {}, None, on)["guest_cards_sound"]["status"] == "pass"
    unread = {"subject": "pci", "source": "/sys/…/current_link_width", "problem": "needs root", "needs_root": True}
    facts["gpu_host"]["errors"].append(unread)
    result = harness.judge(harness.base("kvm-q35"), {}, None, on)["guest_cards_sound"]
    assert result["status"] == "unknown" and "pci_link_width_full on pve1" in result["reason"] and result["needs_root"]


def test_a_fault_that_names_no_card_may_be_that_of_a_containers_card() -> None:
    facts = harness.facts_of_hypervisor(harness.base("pve-lxc"))
    failure = {"summary": "UVM failed once", "text": "nvidia-uvm: failed", "address": None}
    facts["gpu_host"]["kernel_log"]["uvm_failures"] = [failure]
    result = harness.judge(harness.base("lxc-story"), {}, None, {"facts": facts, "vmid": 102})["guest_cards_sound"]
    assert result["status"] == "unknown" and "log_no_uvm_failure on pve1 fails and names no GPU" in result["reason"]


def test_a_guest_of_another_kind_is_judged_by_nothing_else_of_its_entry() -> None:
    hypervisor = harness.hypervisor_of({"hypervisor": {"recording": "pve-lxc", "vmid": 102}})
    results = harness.judge(harness.base("kvm-q35"), {}, None, hypervisor)
    assert results["guest_kind_agrees"]["status"] == "fail"
    assert {results[name]["status"] for name in ("guest_gpus_accounted", "guest_lines_accepted", "ct_can_start")} == {
        "skip"
    }
    assert results["guest_cards_sound"]["status"] == "skip"
