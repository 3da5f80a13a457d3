"""Power state and reset methods of a card, and what keeps the driver from being loaded at boot."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import cross_facts
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.linux import kept_off, modprobe
from ansible.module_utils.gpu_host.log import log_sources
from ansible.module_utils.gpu_host.pcie import power_and_reset
from ansible.module_utils.gpu_host.pve import card_resets
from host_evidence import Host

CARD = "0000:81:00.0"
BASE = "/sys/bus/pci/devices/" + CARD


def power(host: Host) -> dict[str, Any]:
    return power_and_reset.read_power(host, CARD, Errors("proxmox"))


def test_what_sysfs_says_of_a_card() -> None:
    host = Host().file(BASE + "/power_state", "D3cold\n").file(BASE + "/d3cold_allowed", "0\n")
    host.file(BASE + "/reset_method", "flr bus\n")
    assert power(host) == {"power_state": "D3cold", "d3cold_allowed": False, "reset_methods": ["flr", "bus"]}


@pytest.mark.parametrize(("entries", "methods"), [({"reset": {"kind": "file"}}, ["unnamed"]), ({}, [])])
def test_a_kernel_that_names_no_method_and_a_card_without_one(entries: dict[str, Any], methods: list[str]) -> None:
    host = Host().file(BASE + "/reset_method", status="absent").directory(BASE, entries)
    assert power(host)["reset_methods"] == methods


@pytest.mark.parametrize("status", ["denied", "failed", "timeout"])
def test_what_cannot_be_read_is_unknown(status: str) -> None:
    host = Host()
    for name in ("power_state", "d3cold_allowed", "reset_method"):
        host.file("%s/%s" % (BASE, name), status=status)
    assert set(power(host).values()) == {None}
    assert power(Host().file(BASE + "/power_state", "D7\n").file(BASE + "/d3cold_allowed", "x\n")) == power(Host())


FAILED_RESET = "[9.1] vfio-pci 0000:81:00.0: not ready 65535ms after FLR; giving up\n"
JOURNAL = "1775.1 pve1 kernel: Linux version 6.14\n1776.1 pve1 kernel: %s" % FAILED_RESET.partition(" ")[2]
CARDS = {CARD: {"claimed_by": [], "power_state": "D0", "d3cold_allowed": True, "reset_methods": ["flr"]}}


def resets(host: Host) -> list[dict[str, Any]] | None:
    return card_resets.failed_resets(host, Errors("proxmox"), CARDS)


def refused() -> Host:
    return Host().command(
        log_sources.DMESG, "", rc=1, stderr="dmesg: read kernel buffer failed: Operation not permitted"
    )


def test_where_dmesg_is_refused_the_journal_tells() -> None:
    assert [item["address"] for item in resets(refused().command(log_sources.JOURNAL, JOURNAL)) or []] == [CARD]
    assert resets(refused().command(log_sources.JOURNAL, "1775.1 pve1 kernel: Linux version 6.14\n")) == []


def test_where_no_log_can_be_read_nothing_is_claimed() -> None:
    host = refused().command(log_sources.JOURNAL, "", rc=1, stderr="insufficient permissions")
    assert resets(host.command(log_sources.KERN_LOG, "", rc=1, stderr="Permission denied")) is None


def test_a_ring_buffer_that_lost_its_beginning_is_completed_by_the_journal() -> None:
    host = Host().command(log_sources.DMESG, "[99.1] eth0: link up\n").command(log_sources.JOURNAL, JOURNAL)
    assert [item["address"] for item in resets(host) or []] == [CARD]
    # Without a journal, what is left of the ring counts.
    assert resets(Host().command(log_sources.DMESG, FAILED_RESET))


def kept(files: str, command_line: str = "ro quiet", modules: str | None = "") -> dict[str, Any]:
    configuration = modprobe.Configuration()
    modprobe.parse_configuration(files, "/etc/modprobe.d/x.conf", configuration)
    host = Host().file("/proc/cmdline", command_line + "\n")
    for directory in kept_off.LOAD_DIRECTORIES:
        host.directory(directory, status="absent")
    host.file("/etc/modules", modules or "", status="ok" if modules is not None else "denied")
    return kept_off.find_kept_off(host, Errors("modules"), "nvidia", configuration)


@pytest.mark.parametrize(
    ("found", "enabled", "expected"),
    [
        (kept("blacklist nouveau\n"), False, []),
        (kept("blacklist nvidia\n"), False, ["/etc/modprobe.d/x.conf:1"]),
        (kept("blacklist nvidia\n"), True, []),  # nvidia-persistenced asks for it by name
        (kept("blacklist nvidia\n"), None, None),
        (kept("blacklist nvidia\n", modules="# x\nnvidia\n"), False, []),
        (kept("blacklist nvidia\n", modules=None), False, None),
        (kept("install nvidia /bin/false\n"), True, ["/etc/modprobe.d/x.conf:1"]),
        (kept("", "module_blacklist=nouveau,nvidia"), True, ["/proc/cmdline"]),
        (kept("", "modprobe.blacklist=nvidia"), False, ["/proc/cmdline"]),
        (kept("", "modprobe.blacklist=nvidiafb"), False, []),
    ],
)
def test_what_keeps_the_driver_from_its_cards(found: dict[str, Any], enabled: bool | None, expected: Any) -> None:
    facts = {"modules": {"driver_kept_off": found}, "driver": {"persistenced": {"enabled": enabled}}}
    assert cross_facts.join_facts(facts, Errors("joined"))["driver_kept_off"] == expected
