"""What the inventory says of a host and its Proxmox host, beside what their evidence shows."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_checks import guest_cards, subject, unknowns, unproven
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.proxmox import may_be_proxmox
from ansible.module_utils.gpu_host.pve import node_signs

PVE = {"proxmox": {"is_proxmox": True, "vms": {}, "containers": {}}, "gpu_host": {}}


class HostVars(dict):  # type: ignore[type-arg]
    """As Ansible's, as far as it is asked."""

    def raw_get(self, name: str) -> dict[str, Any]:
        return {"ansible_facts": self[name]}


def seen(variables: dict[str, Any], others: dict[str, Any], in_run: tuple[str, ...] = ("vm", "pve1")) -> dict[str, Any]:
    facts = {"gpu_host": {"virtualization": {"placement": "kvm", "vm": True}}}
    hostvars = HostVars({"vm": facts, **others})
    task_vars = {"ansible_facts": facts, "inventory_hostname": "vm", "hostvars": hostvars, **variables}
    return subject.build_subject({**task_vars, "ansible_play_hosts_all": list(in_run)}, lambda value: value)


@pytest.mark.parametrize(
    ("variables", "others", "fault"),
    [
        ({}, {"pve1": PVE}, ""),
        ({"proxmox_host": "pve1", "proxmox_vmid": 101}, {"pve1": PVE}, ""),
        ({"proxmox_host": "pve9", "proxmox_vmid": 101}, {"pve1": PVE}, "'pve9', which is not in the inventory; did "
                                                                       "you mean pve1?"),
        ({"proxmox_host": "elsewhere", "proxmox_vmid": 101}, {"pve1": PVE}, "'elsewhere', which is not in the "
                                                                            "inventory"),
        ({"proxmox_host": "vm", "proxmox_vmid": 101}, {"pve1": PVE}, "this host itself"),
        ({"proxmox_host": "pve1"}, {"pve1": PVE}, "no proxmox_vmid is named"),
        ({"proxmox_vmid": 101}, {"pve1": PVE}, "no proxmox_host is named"),
        ({"proxmox_host": "gpu7", "proxmox_vmid": 101}, {"gpu7": {"gpu_host": {}}}, "on which nothing shows a Proxmox "
                                                                                    "host"),
        (
            {"proxmox_host": "gpu7", "proxmox_vmid": 101},
            {"gpu7": {"gpu_host": {}, "proxmox": {"is_proxmox": False}}},
            "which is no Proxmox host: it has no /etc/pve",
        ),
    ],
)  # fmt: skip
def test_an_entry_that_cannot_be_right_is_said(variables: Any, others: Any, fault: str) -> None:
    found = seen(variables, others)["inventory"]["hypervisor_fault"]
    assert found.endswith(fault) and bool(found) == bool(fault)


@pytest.mark.parametrize(
    ("others", "in_run", "said"),
    [
        ({"pve1": PVE}, ("vm", "pve1"), ""),
        ({"pve1": {}}, ("vm", "pve1"), "pve1 could not be looked at in this run"),
        ({"pve1": {}}, ("vm",), "pve1 is not part of this run (--limit or the pattern leaves it out)"),
    ],
)
def test_a_hypervisor_that_nobody_looked_at_is_said(others: Any, in_run: tuple[str, ...], said: str) -> None:
    host = seen({"proxmox_host": "pve1", "proxmox_vmid": 101}, others, in_run)
    assert host["inventory"]["hypervisor_unseen"] == said
    assert ("hypervisor" in host) == (not said)
    assert any(said in text for text in unproven.list_unproven(host)) or not said


@pytest.mark.parametrize(
    ("kind", "virtualization", "agrees"),
    [
        ("vm", {"placement": "kvm", "vm": True}, True),
        ("vm", {"placement": "lxc", "vm": False}, False),
        ("vm", {"placement": "bare_metal", "vm": False}, False),
        ("vm", {"placement": "container", "vm": True}, True),
        ("vm", {"placement": None, "vm": None}, None),
        ("lxc", {"placement": "lxc", "vm": False}, True),
        ("lxc", {"placement": "kvm", "vm": True}, False),
        ("lxc", {"placement": "container", "vm": False}, True),
        ("lxc", {"placement": "container", "vm": None}, None),
        ("lxc", {"placement": "bare_metal", "vm": False}, False),
    ],
)
def test_the_kind_of_the_guest(kind: str, virtualization: dict[str, Any], agrees: bool | None) -> None:
    key = "vms" if kind == "vm" else "containers"
    guest = {"type": kind, "name": "web", "gpu_count": 8, "gpus": []}
    facts = {"proxmox": {"vms": {}, "containers": {}, key: {"101": guest}}}
    view = subject.describe_hypervisor({"virtualization": virtualization}, facts, "pve1", 101)
    assert view["kind_agrees"] is agrees
    assert view["gives"] == ("" if agrees is False else kind), "nothing is judged by the entry of another guest"


def test_a_vm_that_hides_may_look_like_bare_metal() -> None:
    guest = {"type": "vm", "gpu_count": 1, "next_start": {"hypervisor_hidden": True}}
    facts = {"proxmox": {"vms": {"101": guest}, "containers": {}}}
    host = {"virtualization": {"placement": "bare_metal", "vm": False}}
    assert subject.describe_hypervisor(host, facts, "pve1", 101)["kind_agrees"] is None


def test_a_proxmox_host_without_gpu_containers_needs_no_driver() -> None:
    host = {"proxmox": {"needs_driver": False}, "driver": {"loaded": False}, "joined": {"driver_expected": True}}
    subject.describe_place(host, [])
    assert host["joined"]["driver_expected"] is False
    for more, groups in (
        ({"driver": {"loaded": True}}, []),
        ({"proxmox": {"needs_driver": None}}, []),
        ({}, ["gpu_hosts"]),
    ):
        other = {**host, "joined": {"driver_expected": True}, **more}
        subject.describe_place(other, groups)
        assert other["joined"]["driver_expected"] is True, (more, groups)


# What shows a Proxmox host
KERNEL = {"read": node_signs.KERNEL_FILE, "status": "ok", "text": "6.14.11-3-pve\n"}
PLAIN = {"read": node_signs.KERNEL_FILE, "status": "ok", "text": "6.8.0-64-generic\n"}
VERSION = {"run": ["pveversion"], "status": "ok", "rc": 0, "stdout": "pve-manager/9.1.3/0000 (running kernel: x)\n"}
NO_VERSION = {"run": ["pveversion"], "status": "absent"}


def directory(status: str, *names: str) -> dict[str, Any]:
    return {"list": "/etc/pve", "status": status, "entries": {name: {"kind": "dir"} for name in names}}


@pytest.mark.parametrize(
    ("records", "container", "found"),
    [
        ([directory("ok", "local")], "", True),
        ([directory("denied")], "", True),
        ([directory("failed"), PLAIN], "", True),  # a FUSE file system whose server ended
        ([directory("timeout")], "", True),
        ([directory("absent"), VERSION], "", True),
        ([VERSION, PLAIN], "", True),
        ([{**VERSION, "status": "timeout", "rc": None, "stdout": ""}], "", True),
        ([directory("absent"), NO_VERSION, KERNEL], "", False),  # another product of Proxmox
        ([directory("absent")], "", False),
        ([KERNEL], "", None),
        ([KERNEL], None, None),
        ([PLAIN], "", False),
        ([], "", None),
        ([directory("ok", "local"), VERSION, KERNEL], "lxc", False),
        ([PLAIN, {"read": "/proc/cmdline", "status": "ok", "text": "root=/dev/mapper/pve-root ro\n"}], "", None),
        ([PLAIN, {"read": "/etc/os-release", "status": "ok", "text": 'NAME="Proxmox VE"\n'}], "", None),
    ],
)  # fmt: skip
def test_signs_of_a_proxmox_host(records: list[dict[str, Any]], container: str | None, found: bool | None) -> None:
    decided, signs = node_signs.find_signs(BundleEvidence({}, records), container)
    assert decided is found
    facts = {"virtualization": {"hypervisor_is_proxmox": decided, "proxmox_signs": signs}}
    assert may_be_proxmox(facts) is (found is True or (found is None and bool(records)))


# Whose card is it
def test_the_cards_of_a_guest() -> None:
    vm = {"type": "vm", "gpus": ["0000:01:00.0"], "next_start": {"hostpci": [{"addresses": ["0000:02:00.0"]}]}}
    assert guest_cards.list_cards(vm, {}) == ["0000:01:00.0", "0000:02:00.0"], (
        "a card that left the bus is still its card"
    )
    cards = {"0000:01:00.0": {"claimed_by": [{"type": "vm"}]}, "0000:03:00.0": {"claimed_by": []}}
    container = {"type": "lxc", "gpus": ["/dev/nvidia3", "0000:04:00.0"]}
    assert guest_cards.list_cards(container, {"gpus": cards}) == ["0000:03:00.0", "0000:04:00.0"]
    assert guest_cards.list_cards(None, {}) == []
    assert guest_cards.list_cards({"type": "vm", "gpus": None}, {}) is None, "a mapping that could not be read"
    assert guest_cards.list_cards(container, {"gpus": None}) is None


@pytest.mark.parametrize(
    ("gpus", "source"),
    [(None, "101 on pve1"), (["0000:01:00.0"], "pve1")],
    ids=["cards are unknown", "the facts of the Proxmox host are not there"],
)
def test_cards_on_which_nobody_looked_are_not_sound(gpus: Any, source: str) -> None:
    view: dict[str, Any] = {"name": "pve1", "vmid": "101", "guest": {"type": "vm", "gpus": gpus}, "cards_unjudged": []}
    guest_cards.add_findings(view, (), None, None)
    assert view["card_findings"] is None
    assert [entry["source"] for entry in view["cards_unjudged"]] == [source]
    reason, _needs_root = unknowns.explain_unknown({"hypervisor": view}, ("host", "hypervisor", "card_findings"))
    assert reason.startswith(source)


def test_a_guest_without_cards_has_none_that_is_faulty() -> None:
    view: dict[str, Any] = {"name": "pve1", "vmid": "101", "guest": {"type": "vm", "gpus": []}, "cards_unjudged": []}
    guest_cards.add_findings(view, (), None, None)
    assert view["card_findings"] == [] and view["cards_unjudged"] == []


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("Xid 79 at 0000:61:00.0, once", True),
        ("NVRM: Xid (PCI:0000:61:00): 79", True),
        ("link of 61:00.0 is narrow", True),
        ("0000:61:00.1 is its audio", False),
        ("Xid 79 at 0000:61:01.0", False),
        ("0001:61:00.0", False),
        ("at 12:34:61:00:05", False),
    ],
)
def test_a_message_names_a_card(text: str, named: bool) -> None:
    assert bool(guest_cards._name("0000:61:00.0").search(text)) is named


# What was not proven
def test_p2p_that_was_granted_and_not_measured() -> None:
    host = {
        "p2p": {"pair_count": 2, "granted_pairs": ["a->b", "b->a"]},
        "evidence": {"probe_not_run": "the bundle holds no probe"},
    }
    said = (
        "P2P of all 2 pairs is granted by the driver, not proven: the probe did not run because the bundle holds "
        "no probe"
    )
    assert unproven.list_unproven(host) == [said]
    assert unproven.list_unproven({**host, "probe": {"ran": True}}) == []
    busy = unproven.list_unproven({**host, "probe": {"ran": False, "skipped_reason": "the GPUs are in use"}})
    assert busy[0].endswith("because the GPUs are in use")
    assert unproven.list_unproven({"p2p": {"pair_count": 2, "granted_pairs": []}}) == [], "its checks say that it fails"
    assert unproven.list_unproven({}) == []


def test_a_server_that_was_not_asked() -> None:
    server = {"state": "ready", "generation": {"ran": False, "skipped_reason": "requests run"}}
    assert unproven.list_unproven({"server": server}) == [
        "the server says that it is ready; that it generates was not proven: requests run"
    ]
    assert unproven.list_unproven({"server": {"state": "ready", "generation": {"ran": True}}}) == []


# What a generation proves of the hosts that serve one model together
def of_rank(rank: int, **changes: Any) -> dict[str, Any]:
    """The facts of a host of a server over two, as a look at a server that answers finds them."""
    node = {"rank": rank, "nodes": 2, "address": "10.0.0.1", "port": 20000, "follower": rank > 0, "spans_hosts": True}
    node["peers_missing"] = None if rank else 0
    answer = {"ran": True, "answered": True, "sane": True} if rank == 0 else {"ran": False}
    facts = {
        "gpu_host": {"evidence": {"recorded": False, "taken_at": 1000.0 + rank}},
        "inference_server": {"state": "ready", "node": node, "generation": answer},
    }
    for path, value in changes.items():
        place: dict[str, Any] = facts
        *way, last = path.split("__")
        for name in way:
            place = place[name]
        place[last] = value
    return facts


def unproven_of_group(
    zero: dict[str, Any], one: dict[str, Any], own: str, in_run: tuple[str, ...] = ("one", "two")
) -> list[str]:
    both = {"one": zero, "two": one}
    task_vars = {"ansible_facts": both[own], "inventory_hostname": own, "hostvars": HostVars(both)}
    task_vars.update(inference_server_group="glm", groups={"glm": ["one", "two"]}, ansible_play_hosts_all=list(in_run))
    host = subject.build_subject(task_vars, lambda value: value)
    return [text for text in unproven.list_unproven(host) if "all-reduce" in text]


@pytest.mark.parametrize(("own", "other"), [("one", "two"), ("two", "one")])
def test_a_generation_over_both_hosts_proves_that_their_collective_works(own: str, other: str) -> None:
    (text,) = unproven_of_group(of_rank(0), of_rank(1), own)
    assert text == (
        "that a collective between it and %s works is proven by a generation of the server over all their ranks "
        "(rank 0 on one); that its values are right, and how fast it is, was not proven: no all-reduce ran between "
        "them, it was not asked for (ansible-playbook validate.yml -l glm -e probe_between_hosts=true)" % other
    )


@pytest.mark.parametrize(
    ("zero", "one"),
    [
        ({"inference_server__generation__ran": False}, {}),
        ({"inference_server__generation__ran": None}, {}),
        ({"inference_server__generation__answered": False}, {}),
        ({"inference_server__generation__sane": False}, {}),
        ({"inference_server__node__spans_hosts": False}, {}),  # a copy of the model on each host
        ({"inference_server__node__spans_hosts": None}, {}),
        ({"inference_server__node__peers_missing": 1}, {}),
        ({"inference_server__node__peers_missing": None}, {}),
        ({"inference_server__node__nodes": 1}, {"inference_server": {"state": "absent", "node": None}}),
        ({}, {"inference_server__node__address": "10.0.0.9"}),  # a rank of another server
        ({}, {"inference_server__node__rank": 0}),
        ({}, {"inference_server__node__rank": None}),
        ({"inference_server__node__port": None}, {"inference_server__node__port": None}),
        ({}, {"inference_server": None}),
        ({}, {"gpu_host__evidence__taken_at": 90000.0}),  # of another day, from a cache of facts
        ({}, {"gpu_host__evidence__taken_at": None}),
        ({}, {"gpu_host__evidence__recorded": True}),
    ],
)
def test_what_is_no_proof_of_a_collective_between_hosts(zero: dict[str, Any], one: dict[str, Any]) -> None:
    for own in ("one", "two"):
        (text,) = unproven_of_group(of_rank(0, **zero), of_rank(1, **one), own)
        assert text.startswith("that it serves one model together with "), text


def test_a_host_outside_the_run_proves_nothing() -> None:
    for own in ("one", "two"):
        (text,) = unproven_of_group(of_rank(0), of_rank(1), own, in_run=(own,))
        assert text.startswith("that it serves one model together with "), text


def test_an_all_reduce_that_ran_is_for_the_checks() -> None:
    zero = of_rank(0, p2p_probe={"ran": True, "between_hosts": {"asked": True, "ran": True}})
    assert unproven_of_group(zero, of_rank(1), "one") == []


# The guest's number in commands
@pytest.mark.parametrize(
    ("variables", "others", "number"),
    [
        ({}, {"pve1": PVE}, ""),
        ({"proxmox_host": "pve1", "proxmox_vmid": 999}, {"pve1": PVE}, ""),  # looked at, and it has no such guest
        ({"proxmox_host": "pve1", "proxmox_vmid": 101}, {"pve1": {}}, "101"),  # not looked at: the inventory's word
        ({"proxmox_host": "pve1"}, {"pve1": PVE}, ""),
        ({"proxmox_host": "pve9", "proxmox_vmid": 101}, {"pve1": PVE}, ""),
    ],
)
def test_the_number_of_a_guest_is_known_or_not_given(variables: Any, others: Any, number: str) -> None:
    assert seen(variables, others)["inventory"]["guest_number"] == number
