"""A whole Proxmox host.

Cards and their owners, guests resolved against them, what makes the nodes, and a guest's view of it.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from ansible.module_utils.gpu_host import proxmox
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.pve import card_claims, node_driver, node_guests, pci_mapping
from hypothesis import given, settings
from hypothesis import strategies as st

GPUS = ["0000:01:00.0", "0000:11:00.0"]
DEVICES = {
    **{address: {"address": address, "vendor": "10de", "device": "2bb5", "class": "030200"} for address in GPUS},
    "0000:01:00.1": {"address": "0000:01:00.1", "vendor": "10de", "device": "22e8", "class": "040300"},
    "0000:a1:00.0": {"address": "0000:a1:00.0", "vendor": "144d", "device": "a80a", "class": "010802"},
}


def file(path: str, text: str) -> dict[str, Any]:
    return {"read": path, "status": "ok", "text": text}


def folder(path: str, *names: str, **entries: dict[str, Any]) -> dict[str, Any]:
    return {"list": path, "status": "ok", "entries": {**{name: {"kind": "file"} for name in names}, **entries}}


def vms(configs: dict[str, str], *more: dict[str, Any]) -> dict[str, dict[str, Any]]:
    records = [folder(node_guests.VM_DIRECTORY, *["%s.conf" % vmid for vmid in configs], "100.conf.bak")]
    records += [file("%s/%s.conf" % (node_guests.VM_DIRECTORY, vmid), text) for vmid, text in configs.items()]
    records += [{"read": "/var/run/qemu-server/%s.pid" % vmid, "status": "absent"} for vmid in configs]
    found = node_guests.read_vms(bundle.BundleEvidence({}, [*records, *more]), Errors("proxmox"), "pve1", DEVICES)
    assert found is not None
    return found


def test_a_slot_means_all_functions_and_qemu_gives_them_names_that_set_cannot_address() -> None:
    config = (
        "machine: q35\nhostpci0: 0000:01:00,pcie=1\nhostpci1: 0000:11:00,pcie=1\nargs: -set "
        "device.hostpci0.x-nv-gpudirect-clique=1\n"
    )
    vm = vms({"101": config})["101"]
    first, second = vm["hostpci"]
    assert (
        first["addresses"] == ["0000:01:00.0", "0000:01:00.1"]
        and first["gpus"] == ["0000:01:00.0"]
        and first["qemu_id"] is None
    )
    assert second["addresses"] == ["0000:11:00.0"] and second["qemu_id"] == "hostpci1"
    assert vm["gpus"] == GPUS and vm["gpu_count"] == 2 and vm["running"] is False
    assert vm["clique_faults"] == [
        "hostpci0 (0000:01:00,pcie=1) passes several functions, which QEMU names hostpci0.0 ...; give the address "
        "with its function",
        "hostpci1 (0000:11:00.0) has no clique",
    ]


def test_the_audio_function_is_no_gpu() -> None:
    vm = vms({"101": "hostpci0: 0000:01:00.0\nhostpci1: 0000:01:00.1\nhostpci2: a1:00.0\n"})["101"]
    assert vm["gpus"] == ["0000:01:00.0"] and vm["gpu_entries"] == ["hostpci0"]


@pytest.mark.parametrize(
    ("args", "fault"),
    [
        (
            "device.hostpci0.x-nv-gpudirect-clique=1 -set device.hostpci1.x-nv-gpudirect-clique=2",
            "cliques differ (1, 2)",
        ),
        ("device.hostpci0.0.x-nv-gpudirect-clique=1", "-set cannot address a name with a dot"),
        ("device.hostpci9.x-nv-gpudirect-clique=1", "hostpci9 has a clique and is no device of this VM"),
        (
            "device.hostpci0.x-nv-gpudirect-clique=1 -set device.hostpci1.x-nv-gpudirect-clique=1 -cpu host,kvm=off",
            "the hypervisor is hidden",
        ),
    ],
)
def test_clique_grants_that_do_not_hold(args: str, fault: str) -> None:
    vm = vms({"101": "hostpci0: 0000:01:00.0\nhostpci1: 0000:11:00.0\nargs: -set %s\n" % args})["101"]
    assert any(fault in text for text in vm["clique_faults"]), vm["clique_faults"]


def test_a_mapping_is_looked_up_for_this_node() -> None:
    mapping = (
        "gpu\n\tmap id=10de:2bb5,node=pve2,path=0000:99:00.0\n\tmap id=10de:2bb5,node=pve1,path=0000:01:00.0\n"
        "\tmap id=10de:2bb5,node=pve1,path=0000:11:00.0\n"
    )
    found = vms(
        {"101": "hostpci0: mapping=gpu,pcie=1\n", "102": "hostpci0: mapping=gone\n"},
        file(pci_mapping.FILE, mapping),
    )
    entry = found["101"]["hostpci"][0]
    assert entry["addresses"] == GPUS and entry["alternatives"] == 2
    # Proxmox takes one of the two when the VM starts: nothing is claimed for certain, and one GPU comes.
    assert found["101"]["claims"] == [] and found["101"]["gpu_count"] == 1
    assert found["102"]["gpus"] is None and found["102"]["gpu_count"] is None
    assert "no mapping 'gone' for this node" in found["102"]["faults"][0]


def test_a_vm_without_devices_is_only_named() -> None:
    assert vms({"100": "name: router\ncores: 1\n"})["100"] == {
        "type": "vm",
        "name": "router",
        "gpus": [],
        "claims": [],
        "gpu_count": 0,
    }


def test_a_stale_pid_file_is_no_running_vm() -> None:
    more = [file("/var/run/qemu-server/101.pid", "77\n"), file("/proc/77/cmdline", "/usr/bin/vim\0")]
    vm = vms({"101": "hostpci0: 0000:01:00.0\n"}, *more)["101"]
    assert vm["running"] is False and vm["qemu"] is None and vm["restart_pending"] == []


def test_a_pid_file_that_was_not_captured_leaves_the_state_unknown() -> None:
    records = [
        folder(node_guests.VM_DIRECTORY, "101.conf"),
        file(node_guests.VM_DIRECTORY + "/101.conf", "hostpci0: 0000:01:00.0\n"),
    ]
    errors = Errors("proxmox")
    found = node_guests.read_vms(bundle.BundleEvidence({}, records), errors, "pve1", DEVICES)
    assert found is not None and found["101"]["running"] is None and found["101"]["restart_pending"] is None
    assert [entry["source"] for entry in errors.entries] == ["/var/run/qemu-server/101.pid"]


def test_without_sysfs_nothing_is_said_of_gpus() -> None:
    records = [
        folder(node_guests.VM_DIRECTORY, "101.conf"),
        file(node_guests.VM_DIRECTORY + "/101.conf", "hostpci0: 0000:01:00.0\n"),
    ]
    found = node_guests.read_vms(bundle.BundleEvidence({}, records), Errors("proxmox"), "pve1", None)
    assert found is not None and found["101"]["gpus"] is None and found["101"]["clique_faults"] is None


def card(
    driver: str, *claims: dict[str, Any], vfio: str | None = None, others: list[str] | None = None
) -> dict[str, dict[str, Any]]:
    return {
        "0000:01:00.0": {
            "driver": driver,
            "claimed_by": list(claims),
            "vfio_at_boot": vfio,
            "iommu_group": "2",
            "group_others": others or [],
        }
    }


def claim(kind: str, vmid: str, running: bool | None = False, onboot: bool = False, **more: bool) -> dict[str, Any]:
    known = {"shared": False, "kept": False, **more}
    return {"type": kind, "vmid": vmid, "name": "", "running": running, "onboot": onboot, **known}


@pytest.mark.parametrize(
    ("claims", "found"),
    [
        ([claim("vm", "101", True), claim("vm", "102", False)], 0),
        ([claim("vm", "101", True), claim("vm", "102", False, onboot=True)], 1),
        ([claim("vm", "101", onboot=True), claim("lxc", "102", True)], 1),
        ([claim("lxc", "101", True), claim("lxc", "102", True)], 0),
        ([claim("vm", "101", True, shared=True), claim("vm", "102", True, shared=True)], 0),
        ([claim("vm", "101", True, shared=True), claim("vm", "102", True)], 1),
    ],
)
def test_two_owners(claims: list[dict[str, Any]], found: int) -> None:
    assert len(card_claims.claimed_twice(card("nvidia", *claims))) == found


def test_drivers_against_owners() -> None:
    conflicts = card_claims.driver_conflicts
    assert conflicts(card("nvidia", claim("lxc", "102", True))) == []
    assert "needs the host's nvidia driver" in conflicts(card("vfio-pci", claim("lxc", "102", True)))[0]
    assert (
        "/etc/modprobe.d/vfio.conf"
        in conflicts(card("nvidia", claim("lxc", "102", True), vfio="/etc/modprobe.d/vfio.conf"))[0]
    )
    assert conflicts(card("vfio-pci", claim("vm", "101", True))) == []
    assert "bound to nvidia although VM 101 (running)" in conflicts(card("nvidia", claim("vm", "101", True)))[0]
    # With driver=keep, and for a vGPU, Proxmox leaves the card to its driver.
    assert conflicts(card("nvidia", claim("vm", "101", True, kept=True))) == []
    assert conflicts(card("nvidia", claim("vm", "101", True, shared=True))) == []
    # Proxmox binds the card when the VM starts.
    assert conflicts(card("nvidia", claim("vm", "101", False))) == []


def test_groups() -> None:
    vm = claim("vm", "101", True)
    assert card_claims.shared_groups(card("vfio-pci", vm, others=["0000:00:01.1"]), {"0000:00:01.1"}) == []
    assert card_claims.shared_groups(card("vfio-pci", vm, others=["0000:a1:00.0"]), set()) == [
        "0000:01:00.0: group 2 also holds 0000:a1:00.0"
    ]
    assert card_claims.shared_groups(card("nvidia", claim("lxc", "1", True), others=["0000:a1:00.0"]), set()) == []


def test_vfio_ids() -> None:
    text = (
        "options vfio-pci ids=10DE:2bb5,10de:22e8:1:2 disable_vga=1\n#options vfio-pci ids=1:2\noptions kvm "
        "ignore_msrs=1\n"
    )
    evidence = bundle.BundleEvidence(
        {}, [folder("/etc/modprobe.d", "vfio.conf"), file("/etc/modprobe.d/vfio.conf", text)]
    )
    assert node_driver.vfio_ids(evidence, ["quiet", "vfio-pci.ids=8086:1234"]) == {
        "10de:2bb5": "/etc/modprobe.d/vfio.conf",
        "10de:22e8": "/etc/modprobe.d/vfio.conf",
        "8086:1234": "/proc/cmdline",
    }


UNIT = "[Unit]\nBefore=pve-guests.service\n[Service]\nExecStart=/usr/bin/nvidia-modprobe -c 0 -u\n"


@pytest.mark.parametrize(
    ("unit", "wanted", "ready"),
    [
        (UNIT, True, True),
        (UNIT, False, False),
        (UNIT.replace("Before=pve-guests.service\n", ""), True, False),
        (UNIT.replace(" -u", ""), True, False),
        ("[Service]\nExecStart=/bin/true\n", True, False),
    ],
)
def test_what_makes_the_nodes_before_the_guests(unit: str, wanted: bool, ready: bool) -> None:
    link = {"nvidia-nodes.service": {"kind": "link", "target": "/etc/systemd/system/nvidia-nodes.service"}}
    records = [
        folder("/etc/systemd/system", "nvidia-nodes.service", "multi-user.target.wants"),
        {"list": "/etc/systemd/system/multi-user.target.wants", "status": "ok", "entries": link if wanted else {}},
        file("/etc/systemd/system/nvidia-nodes.service", unit),
    ]
    assert node_driver.find_nodes_at_boot(bundle.BundleEvidence({}, records), Errors("proxmox"))["ready"] is ready


def test_a_udev_rule_counts_and_a_comment_in_one_does_not() -> None:
    rule = 'ACTION=="add", DRIVER=="nvidia", RUN+="/usr/bin/nvidia-modprobe -c0 -u"\n'
    for text, ready in ((rule, True), ("#" + rule, False)):
        records = [folder("/etc/systemd/system"), folder("/usr/lib/udev/rules.d", "60-nvidia.rules")]
        records.append(file("/usr/lib/udev/rules.d/60-nvidia.rules", text))
        assert node_driver.find_nodes_at_boot(bundle.BundleEvidence({}, records), Errors("proxmox"))["ready"] is ready


def test_a_host_that_is_no_proxmox() -> None:
    facts = proxmox.gather_host(bundle.BundleEvidence({}, [{"list": "/etc/pve", "status": "absent"}]))
    assert facts["is_proxmox"] is False and facts["vms"] is None and facts["errors"] == []
    facts = proxmox.gather_host(bundle.BundleEvidence({}, [{"list": "/etc/pve", "status": "denied"}]))
    assert facts["is_proxmox"] is None and facts["errors"][0]["needs_root"] is True


def test_the_same_keys_whatever_is_missing() -> None:
    nothing = proxmox.gather_host(bundle.BundleEvidence({}, []))
    bare = proxmox.gather_host(bundle.BundleEvidence({}, [folder("/etc/pve")]))
    assert set(nothing) == set(bare) == {*proxmox.KEYS, *proxmox.COMPUTED, "errors", "evidence"}
    assert bare["vms"] is None and bare["claimed_twice"] is None and bare["iommu_on"] is None
    assert not any("fault in the reader" in entry["problem"] for entry in bare["errors"])


def test_a_guest_sees_its_host_without_the_other_guests() -> None:
    guests = {"vms": {"101": {"type": "vm", "gpu_count": 2}}, "containers": {"102": {"type": "lxc", "gpu_count": 0}}}
    facts = {**dict.fromkeys(proxmox.KEYS), "node": "pve1", **guests}
    view = proxmox.select_guest(facts, "hv", 101)
    assert (
        view["guest"]["type"] == "vm"
        and view["gives"] == "vm"
        and view["has_guest"] is True
        and "vms" not in view
        and view["name"] == "hv"
    )
    assert proxmox.select_guest(facts, "hv", "102")["gives"] == ""
    assert proxmox.select_guest(facts, "hv", 999)["has_guest"] is False
    assert proxmox.select_guest(None, "hv", 101)["has_guest"] is None


CONFIGS = st.lists(
    st.one_of(
        st.text(max_size=40),
        st.sampled_from(
            ["hostpci0: 0000:01:00.0", "hostpci1: mapping=x", "args: -set 'x", "cpu: ,,=", "machine: ,", "memory: x"]
        ),
        st.sampled_from(["[PENDING]", "delete: hostpci0", "[", "[snap]"]),
        st.sampled_from(
            [
                "lxc.mount.entry: /dev/nvidia0",
                "lxc.cgroup2.devices.allow: c 1:",
                "dev0: ,mode=",
                "dev1: /dev/nvidia0",
                "lxc.x =",
            ]
        ),
    ),
    max_size=12,
).map("\n".join)


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(CONFIGS, CONFIGS, st.binary(max_size=60))
def test_hostile_configurations_give_facts_that_can_be_written_as_json(vm: str, container: str, process: bytes) -> None:
    records = [
        folder("/etc/pve"),
        folder(node_guests.VM_DIRECTORY, "101.conf", "x.conf", "101.conf.tmp"),
        file(node_guests.VM_DIRECTORY + "/101.conf", vm.encode("utf-8", "replace").decode()),
        folder(node_guests.CT_DIRECTORY, "102.conf"),
        file(node_guests.CT_DIRECTORY + "/102.conf", container.encode("utf-8", "replace").decode()),
        file("/var/run/qemu-server/101.pid", "7"),
        file("/proc/7/cmdline", "-id\x00101\x00" + process.decode("latin-1")),
        folder("/sys/bus/pci/devices"),
    ]
    facts = proxmox.gather_host(bundle.BundleEvidence({}, records))
    assert not any("fault in the reader" in entry["problem"] for entry in facts["errors"]), facts["errors"]
    json.dumps(facts)
