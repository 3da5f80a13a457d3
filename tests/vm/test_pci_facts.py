"""What gpu_facts says inside two real virtual machines, against what was started (guests.py)."""

from __future__ import annotations

from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.gather import gather
from guests import (
    DOWN_A,
    DOWN_B,
    DRIVE_BESIDE_PLAIN,
    FAR_A,
    FAR_B,
    FAR_PORT,
    I440FX_GPUS,
    NEAR_A,
    NEAR_A_PORT,
    NEAR_B,
    NEAR_B_PORT,
    PLAIN,
    PLAIN_PORT,
    Q35_GPUS,
    SWITCH,
)

pytestmark = [pytest.mark.vm, pytest.mark.xdist_group("vm")]

Facts = dict[str, Any]
# The kernel sets these bits of a port that has them when an IOMMU is in use (pci_std_enable_acs in drivers/pci/pci.c):
# source validation, request redirect, completion redirect, upstream forwarding.
ACS_WITH_IOMMU = "001d"


# i440FX
def test_an_i440fx_guest_is_named_as_such(i440fx: Facts) -> None:
    seen = i440fx["virtualization"]
    assert (seen["placement"], seen["hypervisor"], seen["container"], seen["host_facts"]) == ("kvm", "qemu", "", False)
    assert (seen["chipset"], seen["chipset_reason"]) == ("i440fx", "host bridge 8086:1237")
    assert seen["dmi"]["product_name"] == "Standard PC (i440FX + PIIX, 1996)"
    assert seen["cpu"]["kind"] == "generic"
    assert i440fx["pci"]["host_bridge"] == "8086:1237"


def test_without_an_iommu_there_are_no_groups(i440fx: Facts) -> None:
    iommu = i440fx["iommu"]
    assert (iommu["state"], iommu["hardware"], iommu["groups"], iommu["options"]) == ("off", [], {}, [])
    assert iommu["default_domain"] == "Translated"  # which is why that line of the log alone says nothing
    assert (iommu["translated_gpus"], iommu["shared_group_gpus"]) == ([], [])


def test_gpus_on_the_conventional_bus(i440fx: Facts) -> None:
    pci = i440fx["pci"]
    assert sorted(pci["gpus"]) == sorted(I440FX_GPUS)
    conventional, express = (pci["gpus"][address] for address in sorted(I440FX_GPUS))
    assert (conventional["express"], express["express"]) == (False, True)
    assert conventional["link"]["width"] is None
    assert (express["link"]["width"], express["link"]["max_speed_gt_s"]) == (16, 32.0)
    assert [gpu["path"] for gpu in pci["gpus"].values()] == [[], []]
    assert pci["bridges"] == {}
    assert [(pair["relation"], pair["turn_ports"]) for pair in pci["pairs"]] == [("same_root_complex", [])]
    assert (pci["redirecting_root_ports"], pci["acs_unreadable"], pci["width_reduced"]) == ([], [], [])


# Q35
def test_a_q35_guest_under_a_server_makers_dmi(q35: Facts) -> None:
    seen = q35["virtualization"]
    assert (seen["placement"], seen["hypervisor"], seen["vendor"]) == ("kvm", "qemu", "Supermicro")
    assert (seen["dmi"]["product_name"], seen["dmi"]["board_name"]) == ("AS-4124GS-TNR", "H12DSG-O-CPU")
    assert (seen["chipset"], seen["chipset_reason"]) == ("q35", "host bridge 8086:29c0")
    assert (seen["cpu"]["kind"], seen["cpu"]["model_name"]) == ("named", "AMD EPYC Processor")
    assert seen["hypervisor_hidden"] is False  # nothing but CPUID can have told "qemu" here


def test_identity_of_every_gpu(q35: Facts) -> None:
    gpus = q35["pci"]["gpus"]
    assert sorted(gpus) == sorted(Q35_GPUS)
    for address, started in Q35_GPUS.items():
        gpu = gpus[address]
        assert (gpu["vendor_id"], gpu["device_id"], gpu["subsystem_id"]) == (
            "10de",
            "%04x" % started.device,
            "10de:%04x" % started.subsystem,
        )
        assert gpu["class"] == "%04x00" % started.device_class
        assert (gpu["driver"], gpu["bound"], gpu["express"]) == ("", False, True)
    assert gpus[PLAIN]["name"] == "GeForce RTX 4090"
    assert q35["pci"]["unbound_gpus"] == sorted(Q35_GPUS)


def test_every_bar_has_its_size_and_an_address(q35: Facts) -> None:
    for address, gpu in q35["pci"]["gpus"].items():
        memory = next(bar for bar in gpu["bars"] if bar["index"] == 2)
        assert memory == {
            "index": 2,
            "kind": "memory",
            "size_mib": 1024 if address == NEAR_A else 64,
            "assigned": True,
            "prefetchable": True,
            "bits": 64,
        }
    assert q35["pci"]["unassigned_bars"] == []


def test_links(q35: Facts) -> None:
    pci = q35["pci"]
    for address, started in Q35_GPUS.items():
        assert pci["gpus"][address]["link"] == {
            "speed_gt_s": started.speed_gt_s,
            "max_speed_gt_s": started.max_speed_gt_s,
            "width": started.width,
            "max_width": started.max_width,
        }
    bridges = pci["bridges"]
    assert bridges[NEAR_A_PORT]["link"] == {"speed_gt_s": 16.0, "max_speed_gt_s": 16.0, "width": 16, "max_width": 16}
    assert bridges[NEAR_B_PORT]["link"] == {"speed_gt_s": 2.5, "max_speed_gt_s": 16.0, "width": 8, "max_width": 16}
    assert (bridges[PLAIN_PORT]["link"]["max_width"], bridges[PLAIN_PORT]["link"]["max_speed_gt_s"]) == (8, 8.0)
    # QEMU's switch names no width for its downstream ports; the kernel then shows 0, which is no width.
    assert bridges[DOWN_A]["link"]["max_width"] is None
    assert pci["width_reduced"] == [
        {"address": NEAR_B, "width": 8, "max_width": 16, "port": NEAR_B_PORT, "port_max_width": 16, "gpus": [NEAR_B]},
    ]


def test_topology(q35: Facts) -> None:
    pci = q35["pci"]
    assert {address: (gpu["root_complex"], gpu["path"]) for address, gpu in pci["gpus"].items()} == {
        NEAR_A: ("pci0000:20", [NEAR_A_PORT]),
        NEAR_B: ("pci0000:20", [NEAR_B_PORT]),
        FAR_A: ("pci0000:40", [FAR_PORT, SWITCH, DOWN_A]),
        FAR_B: ("pci0000:40", [FAR_PORT, SWITCH, DOWN_B]),
        PLAIN: ("pci0000:00", [PLAIN_PORT]),
    }
    kinds = {address: bridge["kind"] for address, bridge in pci["bridges"].items()}
    ports = dict.fromkeys((NEAR_A_PORT, NEAR_B_PORT, FAR_PORT, PLAIN_PORT), "root_port")
    assert kinds == {**ports, SWITCH: "upstream", DOWN_A: "downstream", DOWN_B: "downstream"}
    pairs = {tuple(pair["gpus"]): pair for pair in pci["pairs"]}
    assert len(pairs) == 10
    near, far = pairs[NEAR_A, NEAR_B], pairs[FAR_A, FAR_B]
    assert (near["relation"], near["common"], near["turn_ports"]) == (
        "same_root_complex",
        "pci0000:20",
        [NEAR_A_PORT, NEAR_B_PORT],
    )
    assert (far["relation"], far["common"], far["turn_ports"]) == ("same_switch", SWITCH, [DOWN_A, DOWN_B])
    others = [pair for names, pair in pairs.items() if names not in ((NEAR_A, NEAR_B), (FAR_A, FAR_B))]
    assert {(pair["relation"], pair["common"]) for pair in others} == {("different_root_complex", None)}


def test_numa_nodes(q35: Facts) -> None:
    nodes = {address: gpu["numa_node"] for address, gpu in q35["pci"]["gpus"].items()}
    assert nodes == {NEAR_A: 0, NEAR_B: 0, FAR_A: 1, FAR_B: 1, PLAIN: None}
    assert q35["pci"]["gpus_without_numa_node"] == [PLAIN]  # below QEMU's main bus, which belongs to no node
    assert sorted(q35["system"]["numa_nodes"]) == ["0", "1"]


def test_iommu_state_and_groups(q35: Facts) -> None:
    iommu = q35["iommu"]
    assert (iommu["state"], iommu["source"], iommu["hardware"], iommu["options"]) == (
        "translated",
        "iommu_groups",
        ["dmar0"],
        ["intel_iommu=on"],
    )
    assert iommu["translated_gpus"] == sorted(Q35_GPUS)
    groups = {address: iommu["groups"][gpu["group"]]["devices"] for address, gpu in iommu["gpus"].items()}
    assert groups[NEAR_A] == [NEAR_A]  # ports with ACS isolate
    assert groups[NEAR_B] == [NEAR_B]
    assert groups[FAR_A] == [DOWN_A, FAR_A]  # the switch's ports do not
    assert groups[FAR_B] == [DOWN_B, FAR_B]
    assert PLAIN in groups[PLAIN]
    assert DRIVE_BESIDE_PLAIN in groups[PLAIN]
    assert iommu["shared_group_gpus"] == [
        {"gpu": PLAIN, "group": iommu["gpus"][PLAIN]["group"], "others": [DRIVE_BESIDE_PLAIN]}
    ]
    for address, gpu in iommu["gpus"].items():
        assert gpu["group"] == q35["pci"]["gpus"][address]["iommu_group"]


def test_acs_as_the_kernel_sets_it(q35: Facts) -> None:
    pci = q35["pci"]
    for port in (NEAR_A_PORT, NEAR_B_PORT, FAR_PORT):
        acs = pci["bridges"][port]["acs"]
        assert (acs["present"], acs["control_raw"], acs["redirects"]) == (True, ACS_WITH_IOMMU, True), port
    for port in (PLAIN_PORT, SWITCH, DOWN_A, DOWN_B):
        assert pci["bridges"][port]["acs"]["present"] is False, port
    assert [(port["address"], port["redirects"]) for port in pci["redirecting_root_ports"]] == [
        (port, ["request_redirect", "completion_redirect"]) for port in sorted((NEAR_A_PORT, NEAR_B_PORT, FAR_PORT))
    ]
    assert (pci["redirecting_switch_ports"], pci["acs_unreadable"]) == ([], [])


def test_nothing_went_wrong_while_reading(i440fx: Facts, q35: Facts) -> None:
    for facts in (i440fx, q35):
        assert [
            entry
            for entry in facts["errors"]
            if entry["subject"] in ("pci", "iommu", "virtualization", "joined", "system")
        ] == []


# The same hosts, recorded
@pytest.mark.parametrize("name", ["i440fx", "q35"])
def test_the_bundle_gives_the_same_facts(results: dict[str, Facts], name: str) -> None:
    live = results[name]["ansible_facts"]["gpu_host"]
    replayed = gather(bundle.parse_bundle(results[name]["bundle_text"].encode()))
    for subject in ("pci", "iommu", "virtualization", "joined"):
        assert replayed[subject] == live[subject], subject


def test_what_the_checks_say(results: dict[str, Facts]) -> None:
    i440fx, q35 = (
        harness.judge(bundle.parse_bundle(results[name]["bundle_text"].encode()), {}) for name in ("i440fx", "q35")
    )
    assert i440fx["chipset_supports_p2p"]["status"] == "fail"
    assert "i440FX" in i440fx["chipset_supports_p2p"]["found"]
    assert i440fx["pci_link_width_full"]["status"] == "pass"
    assert q35["chipset_supports_p2p"]["status"] == "pass"
    assert q35["hypervisor_not_hidden"]["status"] == "pass"
    assert q35["pci_link_width_full"]["status"] == "fail"
    assert "%s runs x8 of x16 below port %s" % (NEAR_B, NEAR_B_PORT) in q35["pci_link_width_full"]["found"]
    assert q35["gpu_bars_assigned"]["status"] == "pass"
    assert q35["gpu_numa_nodes_known"]["status"] == "fail"
    assert PLAIN in q35["gpu_numa_nodes_known"]["found"]
    assert q35["acs_redirect_off"]["status"] == "skip"  # in a guest ACS is the hypervisor's


# Changed while it runs
@pytest.fixture(scope="session")
def changed(machines: Any, q35: Facts) -> Facts:
    """The Q35 guest's facts after changes from inside: ACS of two ports, the type of a group, vfio-pci, a card gone."""
    group = q35["iommu"]["gpus"][NEAR_A]["group"]
    commands = [
        "set -e",
        "setpci -s %s ECAP_ACS+6.w=0000" % NEAR_A_PORT,
        "setpci -s %s ECAP_ACS+6.w=0011" % NEAR_B_PORT,  # source validation and upstream forwarding: harmless
        "echo identity > /sys/kernel/iommu_groups/%s/type" % group,
        "modprobe vfio-pci",
        "echo vfio-pci > /sys/bus/pci/devices/%s/driver_override" % FAR_A,
        "echo %s > /sys/bus/pci/drivers_probe" % FAR_A,
        "echo 1 > /sys/bus/pci/devices/%s/remove" % PLAIN,
        "setpci -s %s ECAP_ACS+6.w; setpci -s %s ECAP_ACS+6.w" % (NEAR_A_PORT, NEAR_B_PORT),
    ]
    assert machines.q35.ssh("; ".join(commands)).split() == ["0000", "0011"]
    return dict(machines.gather("q35", "gather_subset=pci,iommu")["q35"]["ansible_facts"]["gpu_host"])


def test_cleared_acs_redirects_no_more(changed: Facts) -> None:
    pci = changed["pci"]
    raw = {port: pci["bridges"][port]["acs"]["control_raw"] for port in (NEAR_A_PORT, NEAR_B_PORT, FAR_PORT)}
    assert raw == {NEAR_A_PORT: "0000", NEAR_B_PORT: "0011", FAR_PORT: ACS_WITH_IOMMU}
    assert pci["bridges"][NEAR_A_PORT]["acs"]["present"] is True
    assert pci["bridges"][NEAR_B_PORT]["acs"]["redirects"] is False
    ports = [port["address"] for port in pci["redirecting_root_ports"]]
    assert ports == [FAR_PORT]


def test_groups_stay_as_they_were_at_boot(changed: Facts, q35: Facts) -> None:
    """Clearing ACS changes what the ports do, not the groups that the kernel made: those tell nothing about ACS now."""
    for address in (NEAR_A, NEAR_B, FAR_A, FAR_B):
        assert changed["iommu"]["gpus"][address]["group"] == q35["iommu"]["gpus"][address]["group"]


def test_one_gpu_passed_through_does_not_hide_the_translated_ones(changed: Facts) -> None:
    iommu = changed["iommu"]
    assert (iommu["gpus"][NEAR_A]["state"], iommu["gpus"][NEAR_B]["state"]) == ("identity", "translated")
    assert NEAR_A not in iommu["translated_gpus"]
    assert iommu["state"] == "translated"


def test_a_card_given_to_vfio_and_one_gone(changed: Facts) -> None:
    pci = changed["pci"]
    assert sorted(pci["gpus"]) == sorted({*Q35_GPUS} - {PLAIN})
    assert pci["vfio_gpus"] == [FAR_A]
    assert pci["unbound_gpus"] == sorted([NEAR_A, NEAR_B, FAR_B])
    assert PLAIN_PORT not in pci["bridges"]
