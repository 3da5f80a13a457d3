"""Public captures of guest configurations and command lines, read as the note beside each says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible.module_utils.gpu_host.pve import container_config, guest_config, node_boot, vm_config
from captures import SAMPLES  # type: ignore[import-not-found]


def text(name: str) -> str:
    return (SAMPLES / name).read_text(encoding="utf-8")


def vm(name: str) -> dict[str, Any]:
    return vm_config.read_vm(guest_config.parse_config(text("pve_vm/%s.txt" % name)))


def lxc(name: str) -> dict[str, Any]:
    return container_config.read_container(
        guest_config.parse_config(text("pve_lxc/%s.txt" % name), guest_config.CONTAINER)
    )


def test_every_capture_is_read_and_kept() -> None:
    files = sorted(SAMPLES.glob("pve_*/*.txt"))
    assert len(files) >= 14
    for path in files:
        content = path.read_text(encoding="utf-8")
        assert guest_config.render_config(guest_config.parse_config(content)) == content


def test_a_gpu_added_twice() -> None:
    config = guest_config.parse_config(text("pve_vm/gpu-added-twice-cleaned.txt"))
    facts = vm_config.read_vm(config)
    assert [entry["devices"][0]["address"] for entry in facts["hostpci"]] == ["0000:01:00.0", "0000:01:00.1"]
    assert facts["machine"]["chipset"] == "i440fx" and facts["cpu"]["type"] == "x86-64-v2-AES"
    assert not any(entry["pcie"] for entry in facts["hostpci"])
    assert sum(line.is_junk for line in config.current.lines) == 3


def test_forms_of_hostpci() -> None:
    forms = [line.partition(": ")[2] for line in text("pve_vm/hostpci-forms-corpus.txt").splitlines()]
    entries = [vm_config.parse_hostpci(0, form) for form in forms]
    assert len(entries) == 7 and all(entry["problem"] is None and entry["pcie"] for entry in entries)
    assert [entry["devices"][0]["function"] for entry in entries] == [None, 0, None, None, None, None, None]
    assert (
        sum(entry["x_vga"] for entry in entries) == 3
        and entries[2]["rombar"] is False
        and entries[3]["romfile"] == "vgabios-radeon-rx570.bin"
    )


def test_an_integrated_gpu() -> None:
    facts = vm("igd-args-legacy-igd-not-a-gpu")
    assert (
        facts["hostpci"][0]["legacy_igd"] is True and facts["machine"]["chipset"] == "i440fx" and facts["cliques"] == {}
    )


def test_snapshots_do_not_count() -> None:
    facts = vm("qemuserver-eight-snapshots-machine-changes")
    assert facts["machine"]["value"] == "pc-i440fx-9.1" and facts["bios"] == "seabios" and facts["hostpci"] == []


def test_a_gap_in_the_numbers() -> None:
    entries = vm("qemuserver-gap-hostpci4-to-7")["hostpci"]
    assert [entry["slot"] for entry in entries] == [0, 1, 2, 3, 4, 7]
    assert [entry["slot"] for entry in entries if not entry["pcie"]] == [0, 2]
    assert [entry["slot"] for entry in entries if not entry["rombar"]] == [4]


def test_the_chipset_of_1996() -> None:
    facts = vm("qemuserver-i440fx-no-machine-line")
    assert facts["machine"]["chipset"] == "i440fx" and not facts["hostpci"][0]["pcie"]


def test_overridden_ids() -> None:
    entries = vm("qemuserver-id-overrides")["hostpci"]
    assert [entry["id_overrides"].get("vendor-id") for entry in entries] == ["0x1234", "0x1234"] and entries[0][
        "pcie"
    ] is False


def test_mappings_and_a_mediated_device() -> None:
    entries = vm("qemuserver-mapping-mdev")["hostpci"]
    assert [entry["mapping"] for entry in entries] == ["someNic", "someGpu", "someNic"] and entries[1][
        "mdev"
    ] == "some-model"
    assert all(entry["devices"] == [] and entry["problem"] is None and not entry["pcie"] for entry in entries)


def test_pending_special_and_unknown_sections() -> None:
    config = guest_config.parse_config(text("pve_vm/qemuserver-pending-special-snapshot-junk.txt"))
    facts = vm_config.read_vm(config)
    assert (facts["name"], facts["memory_mib"], facts["hostpci"]) == ("deb1223", 4096, [])
    assert facts["bios"] == "seabios" and facts["next_start"]["bios"] == "ovmf" and config.snapshots == ["foo"]


def test_three_functions_of_one_device_and_a_broken_net0() -> None:
    facts = vm("win10-renoir-3-hostpci-broken-net0")
    assert {entry["devices"][0]["slot"] for entry in facts["hostpci"]} == {"0000:05:00"} and len(facts["hostpci"]) == 3
    assert (
        facts["machine"]["chipset"] == "q35"
        and facts["bios"] == "ovmf"
        and facts["balloon_mib"] == facts["memory_mib"] == 8192
    )
    assert facts["hypervisor_hidden"] is True


def test_containers() -> None:
    majors = {"nvidia": 195, "nvidia-uvm": 510, "nvidia-caps": 236}
    caps = lxc("caps-dir-mount")
    assert container_config.gpu_minors(caps["nodes"]) == [0] and container_config.missing_nodes(caps["nodes"]) == []
    assert [item["node"] for item in container_config.stale_rules(caps, majors, {})] == ["/dev/nvidia-caps"]
    inline = lxc("cgroup2-majors-195-507-inline-comments")
    assert [rule["major"] for rule in inline["rules"]] == [195, 507]
    assert {item["node"] for item in container_config.stale_rules(inline, majors, {})} == {
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    }
    by_path = lxc("dev-entries-by-path-caps")
    assert (
        by_path["devices"][4]["path"] == "/dev/dri/by-path/pci-0000:07:00.0-card"
        and container_config.missing_nodes(by_path["nodes"]) == []
    )
    assert [item["gid"] for item in lxc("dev-gid44-three-nodes")["devices"]] == [44, 44, 44]


def test_command_lines_of_grub() -> None:
    broken = node_boot.parse_assignments(text("cmdline/deepops-grub-broken-quote-two-lines.txt"), {})
    words = " ".join(value for name, value in broken.items() if name.startswith("GRUB_CMDLINE")).split()
    assert {"quiet", "splash", "intel_iommu=on", "iommu=pt"} <= set(words)
