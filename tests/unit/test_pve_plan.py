"""What changes in a guest's configuration for the GPUs that the inventory gives it, and what never does."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import guest_config, node_guests, vm_config
from ansible.module_utils.gpu_provision import pve_plan
from hypothesis import given, settings
from hypothesis import strategies as st

GPUS = ["0000:01:00.0", "0000:11:00.0", "0000:61:00.0"]
DEVICES: dict[str, dict[str, Any]] = {
    **{address: {"vendor": "10de", "device": "2bb5", "class": "030200"} for address in GPUS},
    "0000:01:00.1": {"vendor": "10de", "device": "22e8", "class": "040300"},
    "0000:a1:00.0": {"vendor": "144d", "device": "a80a", "class": "010802"},
}


def vm(text: str, gpus: list[str], **options: Any) -> pve_plan.Plan:
    config = guest_config.parse_config(text)
    entries = vm_config.read_vm(config)["next_start"]["hostpci"]
    for entry in entries:
        node_guests.resolve_devices(entry, options.pop("mapping", {}), "pve1", DEVICES)
    return pve_plan.plan_vm(config, entries, gpus, **options)


def after(text: str, plan: pve_plan.Plan) -> str:
    """The configuration with the plan carried out on a stopped guest."""
    settings = {**guest_config.parse_config(text).current.settings(), **plan.set}
    return "".join("%s: %s\n" % item for item in settings.items() if item[0] not in plan.delete)


def test_a_new_vm_gets_q35_and_its_gpus() -> None:
    plan = vm("cores: 4\nhostpci0: 0000:a1:00.0\n", GPUS[:2], machine="q35")
    assert plan.set == {"machine": "q35", "hostpci1": "0000:01:00.0,pcie=1", "hostpci2": "0000:11:00.0,pcie=1"}
    assert plan.delete == []
    assert plan.arguments()[:2] == ["--machine", "q35"]


def test_the_vm_of_the_story() -> None:
    text = "".join("hostpci%d: %s\n" % item for item in enumerate(GPUS))
    plan = vm(text, GPUS, machine="q35")
    assert plan.set == {"machine": "q35", **{"hostpci%d" % number: gpu + ",pcie=1" for number, gpu in enumerate(GPUS)}}
    assert not vm(after(text, plan), GPUS, machine="q35").changes


def test_pcie_without_q35_is_refused() -> None:
    with pytest.raises(pve_plan.PlanError, match="needs the chipset q35 and this VM has i440fx"):
        vm("hostpci0: 0000:01:00.0\n", GPUS[:1])
    assert vm("hostpci0: 0000:01:00.0\n", GPUS[:1], pcie=False).changes is False


def test_a_pinned_machine_version_stays() -> None:
    assert "machine" not in vm("machine: pc-q35-9.2+pve1\n", GPUS[:1], machine="q35").set


def test_options_of_a_line_stay_and_other_devices_are_never_touched() -> None:
    text = (
        "machine: q35\nhostpci0: 0000:01:00,pcie=1,rombar=0,x-vga=1\nhostpci3: 0000:a1:00.0,pcie=1\nhostpci5: "
        "0000:61:00.0,pcie=1\n"
    )
    plan = vm(text, GPUS[:2])
    assert plan.set == {"hostpci1": "0000:11:00.0,pcie=1"} and plan.delete == ["hostpci5"]
    assert vm(text, [GPUS[0], GPUS[2]]).changes is False


def test_taking_every_gpu_away_needs_no_chipset() -> None:
    plan = vm("hostpci0: 0000:01:00.0\nhostpci1: 0000:a1:00.0\n", [])
    assert plan.delete == ["hostpci0"] and plan.set == {}


def test_a_pending_change_counts_as_made() -> None:
    text = "hostpci0: 0000:01:00.0\n[PENDING]\nmachine: q35\nhostpci0: 0000:01:00.0,pcie=1\n"
    assert vm(text, GPUS[:1], machine="q35").changes is False


def test_a_clique_names_the_function_and_keeps_other_arguments() -> None:
    text = "machine: q35\nargs: -cpu 'host,+x' -set device.hostpci9.x-nv-gpudirect-clique=3\n"
    text += "hostpci0: 0000:01:00,pcie=1\nhostpci1: 0000:11:00.0,pcie=1\n"
    plan = vm(text, GPUS[:2], clique=1)
    assert plan.set["hostpci0"] == "0000:01:00.0,pcie=1"
    assert (
        plan.set["args"]
        == "-cpu 'host,+x' -set device.hostpci0.x-nv-gpudirect-clique=1 -set device.hostpci1.x-nv-gpudirect-clique=1"
    )
    done = after(text, plan)
    assert not vm(done, GPUS[:2], clique=1).changes
    assert vm(done, GPUS[:2], remove_clique=True).set == {"args": "-cpu 'host,+x'"}
    assert not vm(done, GPUS[:2]).changes


def test_the_last_argument_goes_with_its_line() -> None:
    text = "machine: q35\nargs: -set 'device.hostpci0.x-nv-gpudirect-clique=1'\nhostpci0: 0000:01:00.0,pcie=1\n"
    assert vm(text, GPUS[:1], remove_clique=True).delete == ["args"]


def test_what_only_a_person_can_decide_is_refused() -> None:
    with pytest.raises(pve_plan.PlanError, match="split the line by hand"):
        vm("machine: q35\nhostpci0: 0000:01:00.0;0000:11:00.0,pcie=1\n", GPUS[:1])
    with pytest.raises(pve_plan.PlanError, match="cannot be resolved"):
        vm("machine: q35\nhostpci0: mapping=gone,pcie=1\n", GPUS[:1])
    with pytest.raises(pve_plan.PlanError, match="no hostpci number is left"):
        vm("machine: q35\n" + "".join("hostpci%d: 0000:a1:00.0\n" % number for number in range(16)), GPUS[:1])


@pytest.mark.parametrize(
    ("have", "wanted", "line"),
    [
        ("pc,viommu=virtio", "q35", "q35,viommu=virtio"),
        ("viommu=virtio", "q35", "q35,viommu=virtio"),
        ("type=q35", "q35", None),
        ("q35,viommu=intel", "q35", None),
        ("q35,viommu=intel", "type=q35", None),
        ("pc-q35-9.2+pve1", "q35", None),
        ("q35", "q35,viommu=virtio", "q35,viommu=virtio"),
        ("q35", "pc-q35-9.2", "pc-q35-9.2"),
        ("pc,enable-s3=1", "type=q35", "q35,enable-s3=1"),
    ],
)
def test_a_machine_line_keeps_what_the_wish_does_not_name(have: str, wanted: str, line: str | None) -> None:
    plan = vm("machine: %s\nhostpci0: 0000:01:00.0,pcie=1\n" % have, GPUS[:1], machine=wanted)
    assert plan.set.get("machine") == line


@pytest.mark.parametrize(
    ("have", "wanted", "says"),
    [
        ("q35", "Q35", "Proxmox refuses it"),
        ("q35", "q35,foo=1", "Proxmox refuses it"),
        ("q35,viommu=intel", "pc", "would not start the VM"),
        ("q35", "q35,aw-bits=39", "would not start the VM"),
    ],
)
def test_a_machine_that_proxmox_would_not_take(have: str, wanted: str, says: str) -> None:
    with pytest.raises(pve_plan.PlanError, match=says):
        vm("machine: %s\n" % have, [], machine=wanted)


NODES = ["/dev/nvidia0", "/dev/nvidiactl", "/dev/nvidia-uvm", "/dev/nvidia-uvm-tools"]
MAJORS, KNOWN = {195, 511, 236}, {1, 5, 10, 136, 195, 511, 236}


def container(text: str, nodes: list[str], mode: str | None = "0666") -> pve_plan.Plan:
    return pve_plan.plan_container(guest_config.parse_config(text, guest_config.CONTAINER), nodes, mode, MAJORS, KNOWN)


def test_a_new_container() -> None:
    plan = container("hostname: ct\ndev1: /dev/dri/renderD128,gid=44\n", NODES)
    assert plan.set == {
        "dev0": "/dev/nvidia0,mode=0666",
        "dev2": "/dev/nvidiactl,mode=0666",
        "dev3": "/dev/nvidia-uvm,mode=0666",
        "dev4": "/dev/nvidia-uvm-tools,mode=0666",
    }
    assert plan.delete == [] and plan.drop_lines == []


def test_lines_by_hand_are_replaced_and_only_those_of_nvidia() -> None:
    text = (
        "hostname: ct\nlxc.cgroup2.devices.allow: c 195:* rwm\nlxc.cgroup2.devices.allow: c 508:* "
        "rwm\nlxc.cgroup2.devices.allow: c 10:200 rwm\n"
        "lxc.mount.entry: /dev/nvidia0 dev/nvidia0 none bind,optional,create=file\nlxc.mount.entry: /dev/net/tun "
        "dev/net/tun none bind,create=file\n"
        "lxc.apparmor.profile: unconfined\n[snap]\nlxc.cgroup2.devices.allow: c 195:* rwm\n"
    )
    plan = container(text, NODES)
    kept = guest_config.without_lines(guest_config.parse_config(text, guest_config.CONTAINER), plan.drop_lines)
    assert plan.drop_lines == [2, 3, 5]
    assert (
        "c 10:200" in kept
        and "/dev/net/tun" in kept
        and "apparmor" in kept
        and kept.endswith("[snap]\nlxc.cgroup2.devices.allow: c 195:* rwm\n")
    )


def test_a_number_of_nobody_stays_where_no_nvidia_node_is_mounted() -> None:
    assert container("lxc.cgroup2.devices.allow: c 508:* rwm\n", []).drop_lines == []


def test_existing_lines_keep_number_and_options() -> None:
    text = "dev0: /dev/nvidiactl\ndev1: /dev/nvidia0,gid=44\ndev7: /dev/nvidia-uvm,mode=0660\n"
    text += "dev8: /dev/nvidia5,mode=0666\ndev9: /dev/nvidia0,mode=0666\n"
    plan = container(text, NODES)
    assert plan.set == {
        "dev0": "/dev/nvidiactl,mode=0666",
        "dev2": "/dev/nvidia-uvm-tools,mode=0666",
    } and plan.delete == ["dev8", "dev9"]
    assert container(text, NODES, None).set == {"dev2": "/dev/nvidia-uvm-tools"}


def test_taking_the_gpus_away() -> None:
    plan = container("dev0: /dev/nvidia0\ndev1: /dev/dri/card0\n", [])
    assert plan.delete == ["dev0"] and plan.set == {}
    assert pve_plan.container_nodes([]) == []
    assert pve_plan.container_nodes([3, 0], ["/dev/nvidia-caps/nvidia-cap1"])[:2] == ["/dev/nvidia0", "/dev/nvidia3"]


LINE = st.sampled_from(
    [
        "machine: q35",
        "machine: pc",
        "cores: 4",
        "args: -cpu host",
        "args: -set device.hostpci2.x-nv-gpudirect-clique=4",
        "hostpci0: 0000:01:00,pcie=1",
        "hostpci1: 0000:a1:00.0",
        "hostpci2: 0000:11:00.0",
        "hostpci7: 0000:61:00.0,pcie=1,rombar=0",
        "[PENDING]",
        "[snap]",
        "#hostpci3: 0000:61:00.0",
    ]
)


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(st.lists(LINE, max_size=10), st.lists(st.sampled_from(GPUS), unique=True), st.sampled_from([None, 1, 15]))
def test_a_second_plan_changes_nothing(lines: list[str], gpus: list[str], clique: int | None) -> None:
    text = "\n".join(lines) + "\n"
    # Carried out on a stopped guest, whose pending values are in force.
    text = "".join(
        "%s: %s\n" % item for item in guest_config.effective_settings(guest_config.parse_config(text)).items()
    )
    done = after(text, vm(text, gpus, machine="q35", clique=clique))
    assert not vm(done, gpus, machine="q35", clique=clique).changes
    others = [line for line in text.splitlines() if line.startswith(("cores", "hostpci1: 0000:a1"))]
    assert all(line in done.splitlines() for line in others)
    have = [
        address
        for entry in vm_config.read_vm(guest_config.parse_config(done))["hostpci"]
        for address in _resolved(entry)
        if address in GPUS
    ]
    assert sorted(have) == sorted(gpus)


def _resolved(entry: dict[str, Any]) -> list[str]:
    node_guests.resolve_devices(entry, {}, "pve1", DEVICES)
    return list(entry["addresses"])
