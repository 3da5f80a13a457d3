"""Which loader boots a Proxmox host, what it will pass to the kernel, and what of it the running kernel has."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.pve import node_boot
from hypothesis import given, settings
from hypothesis import strategies as st


def boot(
    files: dict[str, str | None], lists: dict[str, list[str]] | None = None, status: str | None = None
) -> tuple[dict[str, Any], Errors]:
    records: list[dict[str, Any]] = [
        {"read": path, "status": "absent"} if text is None else {"read": path, "status": "ok", "text": text}
        for path, text in files.items()
    ]
    records += [
        {"list": path, "status": "ok", "entries": {name: {"kind": "file"} for name in names}}
        for path, names in (lists or {}).items()
    ]
    if status is not None:
        records.append({"run": node_boot.STATUS, "status": "ok", "rc": 0, "stdout": status})
    errors = Errors("proxmox")
    return node_boot.gather(BundleEvidence({}, records), errors), errors


def test_systemd_boot() -> None:
    facts, errors = boot(
        {
            "/proc/cmdline": "initrd=\\EFI\\proxmox\\6.14\\initrd.img root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt\n",
            "/etc/kernel/proxmox-boot-uuids": "AAAA-0001\n",
            "/etc/kernel/cmdline": "root=ZFS=rpool/ROOT/pve-1 boot=zfs\nsecond line=ignored\n",
        }
    )
    assert (
        facts["loader"] == "systemd-boot"
        and facts["refresh"] == "proxmox-boot-tool refresh"
        and facts["source"] == "/etc/kernel/cmdline"
    )
    assert facts["to_come"] == [] and facts["to_go"] == ["iommu=pt"]
    assert errors.entries == []


def test_grub_with_a_drop_in() -> None:
    facts, _errors = boot(
        {
            "/proc/cmdline": "BOOT_IMAGE=/boot/vmlinuz-6.14 root=/dev/mapper/pve-root ro quiet\n",
            "/etc/kernel/proxmox-boot-uuids": None,
            "/etc/default/grub": '#GRUB_CMDLINE_LINUX_DEFAULT="amd_iommu=off"\n'
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet"\nGRUB_CMDLINE_LINUX=""\n',
            "/etc/default/grub.d/gpu.cfg": 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT iommu=pt"\n',
        },
        {"/etc/default/grub.d": ["gpu.cfg", "gpu.cfg.bak"]},
    )
    assert facts["loader"] == "grub" and facts["refresh"] == "update-grub"
    assert facts["configured"] == ["quiet", "iommu=pt"]
    assert facts["to_come"] == ["iommu=pt"] and facts["to_go"] == []


def test_grub_on_esps_that_proxmox_boot_tool_keeps() -> None:
    files: dict[str, str | None] = {"/proc/cmdline": "BOOT_IMAGE=/vmlinuz root=x ro", "/etc/default/grub": ""}
    files["/etc/kernel/proxmox-boot-uuids"] = "A\n"
    facts, _errors = boot(files, {"/etc/default/grub.d": []})
    assert facts["loader"] == "grub" and facts["refresh"] == "proxmox-boot-tool refresh"


@pytest.mark.parametrize(
    ("status", "loader"),
    [
        ("A is configured with: uefi (versions: 6.14)\n", "systemd-boot"),
        ("System currently booted with uefi\nA is configured with: grub (versions: 6.14)\n", "grub"),
        ("A is configured with: uefi (versions: 6.14)\nB is configured with: grub (versions: 6.14)\n", None),
        ("", None),
    ],
)
def test_the_tool_is_asked_when_the_command_line_does_not_tell(status: str, loader: str | None) -> None:
    facts, _errors = boot(
        {"/proc/cmdline": "root=x", "/etc/kernel/proxmox-boot-uuids": "A\n", "/etc/kernel/cmdline": ""}, status=status
    )
    assert facts["loader"] == loader
    if loader is None:
        assert facts["configured"] is None and facts["to_come"] is None and facts["to_go"] is None


def test_what_cannot_be_read_is_unknown_with_a_reason() -> None:
    facts, errors = boot({"/proc/cmdline": "BOOT_IMAGE=/x ro", "/etc/kernel/proxmox-boot-uuids": None})
    assert facts["configured"] is None and facts["to_come"] is None
    assert [entry["source"] for entry in errors.entries] == ["/etc/default/grub"]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('A="quiet splash\nintel_iommu=on"\n', "quiet splash\nintel_iommu=on"),
        ("A='one $B'\n", "one $B"),
        ("export A=one\nA+=two\n", "onetwo"),
        ('A="a\\"b"\n', 'a"b'),
        ('B=x\nA="${B}y $C z"\n', "xy  z"),
        ("A=one # A=two\n", "one"),
        ("A=one;B=two", "one"),
        ('A="never closed', "never closed"),
        ("A=a\\\nb\n", "ab"),
        ("A=$\n", "$"),
    ],
)
def test_shell_assignments(text: str, expected: str) -> None:
    assert node_boot.parse_assignments(text, {})["A"] == expected


@settings(deadline=None)  # a busy machine is no fault of the reader
@given(st.text())
def test_any_text_is_read(text: str) -> None:
    node_boot.parse_assignments(text, {})
