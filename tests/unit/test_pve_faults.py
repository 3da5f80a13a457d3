"""What is said of the lines that Proxmox does not take, and the changes that remedies propose."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import (
    guest_config,
    guest_faults,
    node_guests,
    start_rules,
    vm_changes,
    vm_config,
)

PATH = "/etc/pve/qemu-server/101.conf"
DEVICES: dict[str, dict[str, Any]] = {
    address: {"vendor": "10de", "device": "2bb5", "class": "030200", "answers": True, "iommu_group": "1", "vgpu": ""}
    for address in ("0000:01:00.0", "0000:e1:00.0")
}


def described(text: str, kind: str = "vm") -> tuple[list[str], list[dict[str, Any]]]:
    return guest_faults.describe_faults(PATH, guest_config.parse_config(text, kind))


@pytest.mark.parametrize(
    ("text", "says", "fix"),
    [
        ("hostpci6: 0000:E1:00.0\n", "drops the line", {"key": "hostpci6", "value": "0000:e1:00.0"}),
        (
            "hostpci0: 0000:e1:00.0, pcie=1\n",
            "hostpci0 is not set",
            {"key": "hostpci0", "value": "0000:e1:00.0,pcie=1"},
        ),
        ("hostpci0: 01:00.0,pcie=1,pcie=1\n", "duplicate key", {"key": "hostpci0", "value": "01:00.0,pcie=1"}),
        ("hostpci0: 01:00.0,pcie=1,pcie=0\n", "duplicate key", None),
        ("hostpci0: 01:00.0,pcie=1 # slot 3\n", "type check", {"key": "hostpci0", "value": "01:00.0,pcie=1"}),
        ("machine: q35\nmachine: Q35\n", "in force is machine: q35", {"key": "machine", "value": "q35"}),
        ("Hostpci3: 01:00.0\n", "not a setting", {"key": "hostpci3", "value": "01:00.0"}),
        ("hostpci0: 01:00.0,clique=1\n", "clique", None),
        ("hostpci16: 01:00.0\n", "unknown setting", None),
    ],
)
def test_a_refused_line_of_a_vm(text: str, says: str, fix: dict[str, str] | None) -> None:
    faults, refused = described(text)
    assert len(refused) == 1 and says in refused[0]["sentence"] and PATH + " line " in refused[0]["sentence"]
    assert refused[0]["sentence"] in faults and refused[0]["fix"] == fix


def test_refused_lines_of_a_container_stay() -> None:
    _faults, refused = described("dev0: /dev/nvidia0,mode=666\nunprivileged: 2\n", "lxc")
    assert "refuses to start the container" in refused[0]["sentence"]
    assert refused[0]["fix"] == {"key": "dev0", "value": "/dev/nvidia0,mode=0666"}
    assert "keeps the value" in refused[1]["sentence"]


def test_what_is_no_fault() -> None:
    text = "lxc.cap.drop:\nlxc.apparmor.profile: unconfined\nlxc.id_map: u 0 100000 65536\n#dev0: x\n"
    assert described(text, "lxc") == ([], [])
    assert described("[snap]\nhostpci0: X\n") == ([], [])
    assert described("[PENDING]\nhostpci0: X\n[PENDING]\ncores: 2\n")[1] == []


def test_a_section_that_proxmox_skips_is_said() -> None:
    faults, refused = described("cores: 2\n[pve:pending]\nhostpci0: 01:00.0\n")
    assert (
        faults == [PATH + " line 2: Proxmox does not know the section [pve:pending] and skips its 1 lines"]
        and not refused
    )


def fixes(text: str, **state: Any) -> tuple[dict[str, str | None], str | None]:
    config = guest_config.parse_config(text)
    vm = {**vm_config.read_vm(config), "running": True}
    for entry in vm["next_start"]["hostpci"]:
        node_guests.resolve_devices(entry, {}, "pve1", DEVICES)
    vm["gpus_without_pcie"] = [entry["key"] for entry in vm["next_start"]["hostpci"] if not entry["pcie"]]
    node = start_rules.NodeState(**{"node": "pve1", "devices": DEVICES, "iommu_on": True, **state})
    return vm_changes.make_commands(guest_config.effective_settings(config), vm, "101", node)


@pytest.mark.parametrize(
    ("text", "name", "options"),
    [
        ("hostpci0: 01:00.0,x-vga=1\n", "q35", "--machine q35 --hostpci0 01:00.0,x-vga=1,pcie=1"),
        (
            "machine: pc-i440fx-9.2+pve1,viommu=virtio\nhostpci0: 01:00.0\n",
            "q35",
            "--machine pc-q35-9.2+pve1,viommu=virtio --hostpci0 01:00.0,pcie=1",
        ),
        ("machine: q35\nhostpci0: 01:00.0,rombar=0\n", "pcie", "--hostpci0 01:00.0,rombar=0,pcie=1"),
        ("cpu: x86-64-v3,flags=+aes,phys-bits=host\n", "cpu_host", "--cpu host,flags=+aes,phys-bits=host"),
        ("cpu: host,hidden=1,flags=+aes\n", "visible", "--cpu host,hidden=0,flags=+aes"),
        ("cpu: host\nhostpci0: 01:00.0,x-vga=1\n", "visible", "--cpu host,hidden=0"),
        (
            "cpu: host\nargs: -cpu 'host,kvm=off,+x' -smbios type=0\n",
            "visible",
            "--args '-cpu '\"'\"'host,+x'\"'\"' -smbios type=0'",
        ),
        ("machine: pc-q35-9.2,viommu=virtio,aw-bits=48\n", "viommu_off", "--machine pc-q35-9.2"),
        ("args: -set device.hostpci0.x-nv-gpudirect-clique=1\n", "no_cliques", "--delete args"),
        ("args: -global vfio-pci.x-nv-gpudirect-clique=1 -S\n", "no_cliques", "--args=-S"),
        ("args: -global q35-pcihost.pci-hole64-size=64G\n", "no_window", "--delete args"),
        ("balloon: 2048\n", "no_balloon", "--balloon 0"),
    ],
)
def test_a_change_keeps_the_rest_of_the_line(text: str, name: str, options: str) -> None:
    found, problem = fixes(text)
    assert (found[name] or "").replace("--args -S", "--args=-S") == options and problem is None


def test_what_the_vm_would_not_survive_is_not_proposed() -> None:
    found, problem = fixes("hostpci0: 01:00.0\nhostpci1: 0000:c1:00.0\n")
    assert found["q35"] is None and problem == "no PCI device found for '0000:c1:00.0'"
    found, problem = fixes("lock: backup\nhostpci0: 01:00.0\n")
    assert found["q35"] is None and problem == "VM is locked (backup)"
