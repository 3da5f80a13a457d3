"""The kernel's command line and what waits for a reboot."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import kernel
from ansible.module_utils.gpu_host.linux import kernel_cmdline
from host_evidence import Host, gathered
from hypothesis import given
from hypothesis import strategies as st

NOW = 1_790_000_000.0


def words(text: str) -> list[str]:
    return kernel_cmdline.format_words(kernel_cmdline.parse_command_line(text))


def host(
    cmdline: str = "BOOT_IMAGE=/vmlinuz-6.8.0 ro iommu=pt", grub: str | None = 'GRUB_CMDLINE_LINUX_DEFAULT="iommu=pt"\n'
) -> Host:
    made = (
        Host(NOW)
        .file("/proc/sys/kernel/osrelease", "6.8.0\n")
        .file("/proc/cmdline", cmdline + "\n")
        .file("/proc/uptime", "1000.0 1.0\n")
    )
    return made.file("/etc/default/grub", grub) if grub is not None else made


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("ro  quiet\n", ["ro", "quiet"]),
        ('dyndbg="file a.c +p; file b.c +p" ro', ["dyndbg=file a.c +p; file b.c +p", "ro"]),
        ('"a b" c', ["a b", "c"]),
        ("a-b-c=x-y", ["a_b_c=x-y"]),  # the kernel compares names with dash and underscore as one
        ("iommu=pt -- --single iommu=off", ["iommu=pt"]),
        ("", []),
    ],
)
def test_words_as_the_kernel_splits_them(text: str, found: list[str]) -> None:
    assert words(text) == found


def test_the_last_of_two_values_counts() -> None:
    assert kernel_cmdline.last_values(kernel_cmdline.parse_command_line("iommu=on ro iommu=pt")) == {
        "iommu": "pt",
        "ro": True,
    }


def test_module_parameters() -> None:
    parameters = kernel_cmdline.parse_command_line(
        "nvidia-uvm.uvm_disable_hmm=1 rd.driver.blacklist=nouveau quiet .x=1"
    )
    assert kernel_cmdline.module_parameters(parameters)[0] == ("nvidia_uvm", "uvm_disable_hmm", "1")


@pytest.mark.parametrize(
    ("text", "line"),
    [
        (
            'GRUB_CMDLINE_LINUX_DEFAULT="quiet intel_iommu=on\niommu=pt"\n',
            "quiet intel_iommu=on iommu=pt",
        ),  # quotes span lines
        ("GRUB_CMDLINE_LINUX_DEFAULT='quiet'\n# GRUB_CMDLINE_LINUX_DEFAULT=\"iommu=pt\"\n", "quiet"),
        (
            'GRUB_CMDLINE_LINUX="a"\nGRUB_CMDLINE_LINUX="$GRUB_CMDLINE_LINUX '
            'b"\nGRUB_CMDLINE_LINUX="${GRUB_CMDLINE_LINUX} c"\n',
            "a b c",
        ),
        ("export GRUB_CMDLINE_LINUX=quiet # iommu=pt\n", "quiet"),
        ('GRUB_CMDLINE_LINUX_DEFAULT="quiet iommu=pt\n', "quiet iommu=pt"),  # never closed
        ("if true; then echo; fi\nGRUB_CMDLINE_LINUX=x\n", "x"),
    ],
)
def test_grub_file_as_the_shell_reads_it(text: str, line: str) -> None:
    facts, _errors = gathered(kernel, host(grub=text))
    assert facts["configured"][0]["text"] == line


def test_a_drop_in_adds_to_the_main_file() -> None:
    made = host().directory("/etc/default/grub.d", {"50-x.cfg": {}, "README": {}})
    made.file(
        "/etc/default/grub.d/50-x.cfg", 'GRUB_CMDLINE_LINUX_DEFAULT="$GRUB_CMDLINE_LINUX_DEFAULT pcie_aspm=off"\n'
    )
    facts, _errors = gathered(kernel, made)
    assert facts["configured"][0]["words"] == ["iommu=pt", "pcie_aspm=off"]
    assert facts["pending_words"] == [{"word": "pcie_aspm=off", "source": "/etc/default/grub"}]
    assert facts["reboot_required"] is True


def test_words_that_do_not_matter_here_are_no_reason_to_reboot() -> None:
    facts, _errors = gathered(kernel, host(grub='GRUB_CMDLINE_LINUX_DEFAULT="quiet splash iommu=pt"\n'))
    assert facts["pending_words"] == [] and facts["reboot_required"] is False


def test_systemd_boot_of_proxmox() -> None:
    made = host(
        r"initrd=\EFI\proxmox\6.14.8-2-pve\initrd.img root=ZFS=rpool/ROOT/pve-1",
        grub='GRUB_CMDLINE_LINUX="amd_iommu=off"\n',
    )
    made.file("/etc/kernel/cmdline", "root=ZFS=rpool/ROOT/pve-1 boot=zfs iommu=pt\n")
    facts, _errors = gathered(kernel, made)
    assert facts["boot_loader"] == "systemd-boot"
    assert facts["pending_words"] == [
        {"word": "iommu=pt", "source": "/etc/kernel/cmdline"}
    ]  # GRUB's file is not in use


def test_a_kernel_installed_since_the_boot() -> None:
    made = host().directory(
        "/boot", {"vmlinuz-6.8.0": {}, "vmlinuz-6.11.0": {}, "initrd.img-6.11.0": {"modified": NOW - 10}}
    )
    facts, _errors = gathered(kernel, made)
    assert facts["newest_installed"] == "6.11.0"
    assert facts["reboot_reasons"] == ["kernel 6.11.0 was installed after the boot, 6.8.0 is running"]


def test_a_newer_kernel_that_this_boot_did_not_choose_is_no_reason() -> None:
    made = host().directory(
        "/boot", {"vmlinuz-6.8.0": {}, "vmlinuz-6.11.0": {}, "initrd.img-6.11.0": {"modified": NOW - 5000}}
    )
    facts, _errors = gathered(kernel, made)
    assert facts["reboot_required"] is False


def test_packages_that_ask_for_a_reboot_are_named() -> None:
    facts, _errors = gathered(
        kernel, host().file("/run/reboot-required").file("/run/reboot-required.pkgs", "libc6\nlinux-base\nlibc6\n")
    )
    assert facts["reboot_reasons"] == ["installed packages ask for it: libc6, linux-base"]


def test_an_unreadable_flag_is_unknown() -> None:
    facts, _errors = gathered(
        kernel, host().file("/run/reboot-required", status="not_captured").file("/run/reboot-required", status="denied")
    )
    assert facts["reboot_required"] is None


def test_kaslr() -> None:
    assert gathered(kernel, host("ro nokaslr"))[0]["kaslr"] is False
    assert gathered(kernel, host("ro"))[0]["kaslr"] is True
    facts, errors = gathered(kernel, Host(NOW))
    assert facts["kaslr"] is None and facts["words"] is None and len(errors) == 2


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    facts, _errors = gathered(kernel, host(text.replace("\n", " "), grub=text))
    assert isinstance(facts["configured"], list)
