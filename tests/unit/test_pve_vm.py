"""One VM: every form of machine, cpu, hostpci and args, and the running QEMU beside the configuration."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import guest_config, pci_mapping, qemu_process, vm_config


def read(text: str) -> dict[str, Any]:
    return vm_config.read_vm(guest_config.parse_config(text))


@pytest.mark.parametrize(
    ("value", "chipset", "version", "viommu"),
    [
        (None, "i440fx", None, None),
        ("pc", "i440fx", None, None),
        ("pc-i440fx-9.2+pve1", "i440fx", "9.2+pve1", None),
        ("q35", "q35", None, None),
        ("pc-q35-9.2+pve1", "q35", "9.2+pve1", None),
        ("q35,viommu=virtio", "q35", None, "virtio"),
        ("type=pc-q35-8.0,viommu=intel,aw-bits=48", "q35", "8.0", "intel"),
        ("enable-s3=1", "i440fx", None, None),
        ("virt", "virt", None, None),
        ("microvm", None, None, None),
    ],
)
def test_machine(value: str | None, chipset: str | None, version: str | None, viommu: str | None) -> None:
    facts = vm_config.parse_machine(value)
    assert (facts["chipset"], facts["version"], facts["viommu"]) == (chipset, version, viommu)


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("01:00.0", ("0000:01:00", 0)),
        ("0000:C1:00.1", ("0000:c1:00", 1)),
        ("10000:01:00", ("10000:01:00", None)),
        ("0001:e1:1f.7", ("0001:e1:1f", 7)),
        ("01:00.8", None),
        ("1:00.0", None),
        ("", None),
        ("../../x", None),
    ],
)
def test_addresses(text: str, expected: tuple[str, int | None] | None) -> None:
    assert vm_config.parse_address(text) == expected


@pytest.mark.parametrize(
    ("value", "expected"),
    [
        ("0000:01:00.0,pcie=1", {"pcie": True, "mapping": None, "mdev": None, "problem": None}),
        (
            "host=01:00,x-vga=on,rombar=0,romfile=a.bin",
            {"pcie": False, "x_vga": True, "rombar": False, "romfile": "a.bin", "problem": None},
        ),
        ("01:00.0;01:00.1,pcie=yes", {"pcie": True, "problem": None}),
        ("mapping=gpu0,pcie=1", {"mapping": "gpu0", "devices": [], "problem": None}),
        ("mapping=gpu0,mdev=nvidia-63", {"mdev": "nvidia-63", "problem": None}),
        (
            "01:00.0,vendor-id=0x10de,sub-device-id=0x0001",
            {"id_overrides": {"vendor-id": "0x10de", "sub-device-id": "0x0001"}},
        ),
        ("01:00.0,legacy-igd=1", {"legacy_igd": True}),
        ("pcie=1", {"problem": "Either 'host' or 'mapping' must be set."}),
        ("gpu,pcie=1", {"problem": "format error; host: value does not match the regex pattern"}),
        ("01:00.0,mapping=gpu0", {"problem": "Cannot set both 'host' and 'mapping'."}),
    ],
)
def test_hostpci(value: str, expected: dict[str, Any]) -> None:
    facts = vm_config.parse_hostpci(3, value)
    assert {key: facts[key] for key in expected} == expected
    assert facts["key"] == "hostpci3"


def test_a_line_without_function_names_the_slot_and_no_address() -> None:
    assert vm_config.parse_hostpci(0, "0001:c1:00")["devices"] == [
        {"slot": "0001:c1:00", "function": None, "address": None}
    ]


@pytest.mark.parametrize(
    ("settings", "hidden"),
    [
        ("cpu: host", False),
        ("cpu: host,hidden=1", True),
        ("cpu: host\nhostpci0: 01:00.0,x-vga=1", True),
        ("cpu: host,hidden=0\nhostpci0: 01:00.0,x-vga=1", False),
        ("args: -cpu 'host,-hypervisor,kvm=off'", True),
        ("args: -cpu host,+kvm_pv_eoi", False),
    ],
)
def test_a_hidden_hypervisor(settings: str, hidden: bool) -> None:
    assert read(settings + "\n")["hypervisor_hidden"] is hidden


def test_arguments() -> None:
    text = (
        "args: -set device.hostpci0.x-nv-gpudirect-clique=1 -set 'device.hostpci10.x-nv-gpudirect-clique=15' "
        "-global q35-pcihost.pci-hole64-size=2048G -set device.hostpci0.addr=02.0\n"
    )
    facts = read(text)
    assert facts["cliques"] == {"hostpci0": 1, "hostpci10": 15}
    assert facts["address_window_mib"] == 2048 * 1024
    assert read("args: -fw_cfg name=opt/ovmf/X-PciMmio64Mb,string=262144\n")["address_window_mib"] == 262144
    assert read("args: -set device.hostpci0.x-nv-gpudirect-clique=1 'unbalanced\n")["cliques"] == {"hostpci0": 1}


def test_pending_values_are_those_of_the_next_start() -> None:
    facts = read(
        "memory: 4096\nhostpci0: 01:00.0\nname: x\n[PENDING]\nmachine: q35\nname: y\ndelete: "
        "hostpci0\n[snap]\nmachine: pc\ncpu: host\n"
    )
    assert facts["machine"]["chipset"] == "i440fx" and facts["next_start"]["machine"]["chipset"] == "q35"
    assert [entry["key"] for entry in facts["hostpci"]] == ["hostpci0"] and facts["next_start"]["hostpci"] == []
    assert facts["pending"] == ["hostpci0", "machine", "name"]
    assert facts["pending_gpu_keys"] == ["hostpci0", "machine"]
    assert facts["cpu"]["type"] == "kvm64" and facts["snapshots"] == 1


def test_devices_come_in_the_order_of_their_numbers() -> None:
    assert [
        entry["slot"] for entry in read("hostpci10: 01:00.0\nhostpci2: 02:00.0\nhostpci0: 03:00.0\n")["hostpci"]
    ] == [0, 2, 10]


def qemu(*arguments: str) -> dict[str, Any]:
    facts = qemu_process.parse_process(
        b"\0".join(word.encode() for word in ("/usr/bin/kvm", "-id", "101", *arguments)) + b"\0", "101"
    )
    assert facts is not None
    return facts


def test_the_running_process() -> None:
    facts = qemu(
        "-device", "vfio-pci,host=0000:01:00.0,id=hostpci0,bus=ich9-pcie-port-1,addr=0x0",
        "-device", '{"driver":"vfio-pci","host":"0000:11:00.0","id":"hostpci1.0","bus":"pci.0"}',
        "-device", "{not json",
        "-set", "device.hostpci0.x-nv-gpudirect-clique=2",
        "-cpu", "host,kvm=off",
        "-machine", "pflash0=pflash0,type=pc-q35-9.2+pve1",
    )  # fmt: skip
    assert facts["chipset"] == "q35" and facts["machine_type"] == "pc-q35-9.2+pve1"
    assert facts["devices"]["hostpci0"] == {
        "address": "0000:01:00.0",
        "slot": 0,
        "bus": "ich9-pcie-port-1",
        "pcie": True,
    }
    assert facts["devices"]["hostpci1.0"]["pcie"] is False
    assert facts["cliques"] == {"hostpci0": 2} and facts["hides_hypervisor"] is True and facts["cpu"] == "host"


def test_another_process_with_the_same_number_is_not_the_vm() -> None:
    assert qemu_process.parse_process(b"/usr/bin/vim\0-id\x00102\0", "101") is None
    assert qemu_process.parse_process(b"", "101") is None


CONFIG = "machine: q35\nhostpci0: 01:00.0,pcie=1\nargs: -set device.hostpci0.x-nv-gpudirect-clique=1\n"
ATTACHED = ("-device", "vfio-pci,host=0000:01:00.0,id=hostpci0,bus=ich9-pcie-port-1,addr=0x0")
CLIQUE = ("-set", "device.hostpci0.x-nv-gpudirect-clique=1")


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ((*ATTACHED, *CLIQUE, "-machine", "type=q35+pve1"), []),
        ((*ATTACHED, *CLIQUE, "-machine", "type=pc+pve0"), ["machine: configured q35, running i440fx (pc+pve0)"]),
        ((*ATTACHED, "-machine", "type=q35"), ["hostpci0: x-nv-gpudirect-clique configured 1, running None"]),
        ((*CLIQUE, "-machine", "type=q35"), ["hostpci0: configured (01:00.0,pcie=1), not attached to the running VM"]),
        (
            ("-device", "vfio-pci,host=0000:02:00.0,id=hostpci0,bus=pci.0", *CLIQUE, "-machine", "type=q35"),
            [
                "hostpci0: configured 01:00.0,pcie=1, running with 0000:02:00.0",
                "hostpci0: configured pcie=1, running on bus pci.0",
            ],
        ),
        (
            (*ATTACHED, "-device", "vfio-pci,host=0000:03:00.0,id=hostpci4,bus=pci.0", *CLIQUE, "-machine", "type=q35"),
            ["hostpci4: still attached to the running VM, no longer configured"],
        ),
    ],
)
def test_what_waits_for_a_restart(arguments: tuple[str, ...], expected: list[str]) -> None:
    assert qemu_process.find_differences(read(CONFIG)["next_start"], qemu(*arguments)) == expected


def test_mappings() -> None:
    text = (
        "gpu0\n\tdescription the first card\n\tmap "
        "id=10de:2bb5,iommugroup=2,node=pve1,path=0000:01:00.0,subsystem-id=10de:204e\n"
        "\tmap id=10de:2bb5,node=pve2,path=0000:41:00\n\n# a note\nnic\n\tmap "
        "id=15b3:1021,node=pve1,path=0000:a1:00.0;0000:a1:00.1\n\tmdev 1\n"
    )
    found = pci_mapping.parse_mappings(text)
    assert set(found) == {"gpu0", "nic"} and found["nic"]["mdev"] and not found["gpu0"]["mdev"]
    maps = found["gpu0"]["maps"]
    assert maps[0]["devices"] == [{"slot": "0000:01:00", "function": 0, "address": "0000:01:00.0"}]
    assert maps[1]["node"] == "pve2" and maps[1]["devices"][0]["address"] is None
    assert len(found["nic"]["maps"][0]["devices"]) == 2
    # What the format refuses is dropped; a name that is none makes its section be skipped.
    junk = (
        "\tmap before=any\ncards\n\tmap nonsense\n\tmap id=0x10de:0x2bb5,node=pve1,path=0000:01:00.0\n\n9x\n\tmdev "
        "1\n\x00"
    )
    assert pci_mapping.parse_mappings(junk) == {"cards": {"mdev": False, "maps": []}}


def test_a_section_of_the_mapping_file_ends_at_an_empty_line_only() -> None:
    one = "\tmap id=10de:2bb5,node=pve1,path=0000:%s:00.0\n"
    found = pci_mapping.parse_mappings("first\n" + one % "01" + "second\n" + one % "41")
    assert [item["path"] for item in found["first"]["maps"]] == ["0000:01:00.0", "0000:41:00.0"]
    assert "second" not in found
