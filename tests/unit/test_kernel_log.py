"""The kernel log: every form of a line, every kind of finding, and logs that are cut, flooded or refused."""

from __future__ import annotations

import gzip
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import kernel_log
from ansible.module_utils.gpu_host.log import log_findings, log_lines, log_patterns
from ansible.module_utils.gpu_host.pcie import gpu_addresses
from host_evidence import Host, gathered
from hypothesis import given
from hypothesis import strategies as st

RECORDINGS = Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "qemu"
BOOT = "[    0.000000] Linux version 6.8.0-64-generic (buildd@build)\n"
NOW = 1_790_000_000.0


def log(text: str, host: Host | None = None) -> dict[str, Any]:
    facts: dict[str, Any] = gathered(kernel_log, (host or Host(NOW)).command("dmesg", text))[0]
    return facts


def kinds(facts: dict[str, Any]) -> dict[str, int]:
    return {kind: len(found) for kind, found in facts["by_kind"].items() if found}


def pci(host: Host) -> Host:
    """A GPU at 01:00.0 behind a root port, and an NVMe drive."""
    devices = {
        "0000:00:01.1": ("6040000", "1022:14AB", "pci0000:00/0000:00:01.1"),
        "0000:01:00.0": ("30200", "10DE:2BB5", "pci0000:00/0000:00:01.1/0000:01:00.0"),
        "0000:05:00.0": ("10802", "144D:A80A", "pci0000:00/0000:05:00.0"),
    }
    host.directory(
        "/sys/bus/pci/devices",
        {name: {"kind": "link", "target": "../../../devices/" + path} for name, (_c, _i, path) in devices.items()},
    )
    for name, (pci_class, ids, _path) in devices.items():
        host.file("/sys/bus/pci/devices/%s/uevent" % name, "PCI_CLASS=%s\nPCI_ID=%s\n" % (pci_class, ids))
    return host


@pytest.mark.parametrize(
    ("raw", "text", "when"),
    [
        ("NVRM: x", "NVRM: x", None),
        ("[   12.500000] NVRM: x", "NVRM: x", "12 s after boot"),
        ("[   12.5][  T123] NVRM: x", "NVRM: x", "12 s after boot"),
        ("<3>[   12.500000] NVRM: x", "NVRM: x", "12 s after boot"),
        ("kern  :err   : [   12.500000] NVRM: x", "NVRM: x", "12 s after boot"),
        ("[   12.500000 <    0.000060>] NVRM: x", "NVRM: x", "12 s after boot"),
        ("[Sun Feb 23 16:24:18 2025] NVRM: x", "NVRM: x", "Sun Feb 23 16:24:18 2025"),
        ("[Nov18 10:51] NVRM: x", "NVRM: x", "Nov18 10:51"),
        ("[  +0.000060] NVRM: x", "NVRM: x", "before"),
        ("              NVRM: x", "NVRM: x", "before"),
        ("2026-06-20T13:18:18,123456+02:00 NVRM: x", "NVRM: x", "2026-06-20T13:18:18,123456+02:00"),
        (
            "2026-06-20T13:18:18.123456+02:00 gpu1 kernel: [   12.5] NVRM: x",
            "NVRM: x",
            "2026-06-20T13:18:18.123456+02:00",
        ),
        ("Oct  1 12:53:31 host kernel: [428083.647551] NVRM: x", "NVRM: x", "Oct  1 12:53:31"),
        ("1782037098.123456 host kernel: NVRM: x", "NVRM: x", "2026-06-21T10:18:18Z"),
        ("6,3973,227996636,-;NVRM: x", "NVRM: x", "228 s after boot"),
        ("6,3973,227996636,-,caller=T1;NVRM: x", "NVRM: x", "228 s after boot"),
        ("\x1b[32m[   12.500000] \x1b[0m\x1b[31mNVRM: x\x1b[0m", "NVRM: x", "12 s after boot"),
    ],
)
def test_every_form_of_a_line(raw: str, text: str, when: str | None) -> None:
    line = log_lines.parse_line(raw, None, "before" if "+0.00" in raw or raw.startswith("  ") else None)
    assert (line.text, line.when) == (text, when)


def test_seconds_since_boot_become_a_time_of_day() -> None:
    facts = log(
        BOOT + "[  100.0] NVRM: Xid (PCI:0000:01:00): 43, pid=1, x\n", Host(NOW).file("/proc/uptime", "500.0 1.0\n")
    )
    assert facts["findings"][0]["last"] == log_lines.format_utc(NOW - 400)


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:9b:00", "0000:9b:00.0"),
        ("0000:91:00.0", "0000:91:00.0"),
        ("0000:91:00.0:", "0000:91:00.0"),
        ("00000000:01:00.0", "0000:01:00.0"),
        ("0002:00.0", "0000:02:00.0"),
        ("07:00.0", "0000:07:00.0"),
        ("0008:01:00.0", "0008:01:00.0"),
        ("10000:e1:00.0", "10000:e1:00.0"),
        ("zz", None),
        ("", None),
    ],
)
def test_addresses_in_one_form(text: str, address: str | None) -> None:
    assert gpu_addresses.normalise_address(text) == address


LINES = {
    "xid": "NVRM: Xid (PCI:0000:61:00): 13, pid=1, name=x, Graphics Exception",
    "fallen_off_bus": "NVRM: GPU 0000:91:00.0: GPU has fallen off the bus.",
    "power_cable": "NVRM: GPU 0000:01:00.0: GPU does not have the necessary power cables connected.",
    "resumed": "PM: suspend exit",
    "rm_init_failed": "NVRM: GPU 0000:02:00.0: RmInitAdapter failed! (0x22:0x56:1017)",
    "uvm_hmm": "nvidia-uvm: uvm_pmm_gpu.c:3176 devmem_alloc_pagemap[pid:9] request_free_mem_region() err -34",
    "uvm_failed": "nvidia-uvm: uvm_global.c:412 uvm_global_set_fatal_error: Encountered a global fatal error: ERROR",
    "io_page_fault": "nvidia 0000:01:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x0007 address=0xffffc02000 "
    "flags=0x0000]",
    "aer": "nvidia 0000:01:00.0: PCIe Bus Error: severity=Uncorrected (Fatal), type=Transaction Layer, (Requester ID)",
    "driver_assert": "NVRM: nvAssertFailedNoLog: Assertion failed: ((base & RM_PAGE_MASK) == 0) @ kern_bus.c:298",
    "nvlink": "NVRM: knvlinkUpdatePostRxDetectLinkMask_IMPL: Failed to update Rx Detect Link mask!",
    "peermem": "nvidia-peermem nv_get_p2p_free_callback:127 ERROR detected invalid context, skipping further "
    "processing",
    "probe_failed": "nvidia 0000:02:00.0: probe with driver nvidia failed with error -1",
    "module_rejected": "Loading of unsigned module is rejected",
    "out_of_memory": "Out of memory: Killed process 4711 (python3) total-vm:1kB",
    "hung_task": "INFO: task nvidia-smi:4711 blocked for more than 122 seconds.",
    "lockup": "watchdog: BUG: soft lockup - CPU#12 stuck for 26s! [python3:4711]",
    "driver_oops": "BUG: kernel NULL pointer dereference, address: 0000000000000008\n"
    "Oops: Oops: 0000 [#1] PREEMPT SMP NOPTI\nRIP: 0010:uvm_hmm_unregister_gpu+0x2c/0xd0 [nvidia_uvm]",
    "sxid": "nvidia-nvswitch0: SXid (PCI:0000:05:00.0): 20034, Fatal, Link 62 LTSSM Fault Up",
    "bar_unassigned": "NVRM: BAR1 is 0M @ 0x0 (PCI:0002:21:00.0)",
    "needs_open_modules": "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c31)\n"
    "NVRM: installed in this system requires use of the NVIDIA open kernel modules.",
    "unsupported_gpu": "NVRM: The NVIDIA GPU 0000:02:00.0 (PCI ID: 10de:2c31)\n"
    "NVRM: installed in this system is not supported by the\nNVRM: NVIDIA 535.x driver release.",
    "api_mismatch": "NVRM: API mismatch: the client 'nvidia-smi' (pid 4711)\n"
    "NVRM: has the version 580.95.05, but this kernel module has\nNVRM: the version 570.86.15.  Please make sure that "
    "this\n"
    "NVRM: kernel module and all NVIDIA driver components have the same version.",
}


def test_every_kind_has_a_line_here() -> None:
    assert set(LINES) == set(log_patterns.KINDS)


@pytest.mark.parametrize("kind", sorted(LINES))
def test_every_kind_is_found_alone_and_in_time(kind: str) -> None:
    stamped = "".join("[  100.000000] %s\n" % line for line in LINES[kind].split("\n"))
    facts = log(BOOT + stamped)
    assert kinds(facts) == {kind: 1}
    assert facts["covers_boot"] is True and facts["source"] == "dmesg"
    finding = facts["by_kind"][kind][0]
    assert finding["last"] == "100 s after boot" and finding["count"] == 1 and finding["summary"]


@pytest.mark.parametrize(
    "line",
    [
        "nvidia-nvlink: Nvlink Core is being initialized, major device number 237",
        "nvidia: module verification failed: signature and/or required key missing - tainting kernel",
        "nvidia 0000:06:00.0: enabling device (0000 -> 0002)",
        "nvidia-uvm: Loaded the UVM driver, major device number 511.",
        "pci 0000:06:00.0: VF BAR 2 [mem size 0x30000000000 64bit pref]: can't assign; no space",
        "pci 0000:06:00.0: BAR 6: no space for [mem size 0x00080000 pref]",
        "pci 0000:06:00.0: BAR 5: no space for [io  size 0x0080]",
        "pcieport 0000:00:01.1: AER: enabled with IRQ 30",
        "NVRM: GPU at PCI:0000:91:00: GPU-00000000-0000-0000-0000-000000000001",
        "iommu: Default domain type: Translated",
    ],
)
def test_harmless_lines_find_nothing(line: str) -> None:
    assert log(BOOT + "[    1.0] %s\n" % line)["findings"] == []


OOPS = """BUG: unable to handle page fault for address: ffffb1c2c0a00000
#PF: supervisor read access in kernel mode
Oops: 0000 [#1] SMP NOPTI
CPU: 3 PID: 4711 Comm: python3 Tainted: P           OE     6.8.0-64-generic #67-Ubuntu
RIP: 0010:%s
Call Trace:
 <TASK>
 ? __die+0x23/0x70
 ? %s
 do_syscall_64+0x7f/0x180
 %s
Modules linked in: nvidia_uvm(OE) nvidia_drm(OE) nvidia_modeset(OE) nvidia(OE)
---[ end trace 0000000000000000 ]---
"""
OURS, THEIRS = "uvm_va_block_find+0x30/0x90 [nvidia_uvm]", "ext4_get_block+0x30/0x90 [ext4]"


@pytest.mark.parametrize(
    ("where", "unsure", "caller", "code"),
    [
        (OURS, THEIRS, THEIRS, "uvm_va_block_find [nvidia_uvm]"),
        ("__list_del_entry_valid+0x10/0x90", THEIRS, OURS, "uvm_va_block_find [nvidia_uvm]"),
        (THEIRS, OURS, THEIRS, None),  # an address that happens to lie on the stack
        (THEIRS, THEIRS, THEIRS, None),
    ],
)
def test_an_oops_is_the_drivers_where_the_driver_stands_in_its_trace(
    where: str, unsure: str, caller: str, code: str | None
) -> None:
    text = "".join("[   90.1] %s\n" % line for line in (OOPS % (where, unsure, caller)).splitlines())
    found = log(BOOT + text)["by_kind"]["driver_oops"]
    assert [one["code"] for one in found] == ([code] if code else [])
    assert all(one["text"].startswith("BUG: unable to handle page fault") for one in found)


def test_what_follows_an_oops_is_read_as_ever() -> None:
    text = "[ 1.0] Oops: 0000 [#1] SMP\n[ 1.1] %s\n[ 1.2] ---[ end trace 0 ]---\n[ 2.0]  %s\n" % (LINES["xid"], OURS)
    assert kinds(log(BOOT + text)) == {"xid": 1}


@pytest.mark.parametrize(
    ("line", "code"),
    [
        ("watchdog: BUG: soft lockup - CPU#3 stuck for 22s! [nvidia-smi:991]", "nvidia-smi"),
        ("NMI watchdog: Watchdog detected hard LOCKUP on cpu 17", "17"),
        ("watchdog: Watchdog detected hard LOCKUP on cpu 17", "17"),
        ("rcu: INFO: rcu_preempt self-detected stall on CPU", "rcu_preempt"),
        ("rcu: INFO: rcu_sched detected stalls on CPUs/tasks:", "rcu_sched"),
        ("rcu: INFO: rcu_preempt detected expedited stalls on CPUs/tasks: { 3-.... } 21 jiffies", "rcu_preempt"),
    ],
)
def test_lockups(line: str, code: str) -> None:
    found = log(BOOT + "[ 9000.0] %s\n" % line)["by_kind"]["lockup"]
    assert [one["code"] for one in found] == [code]


def test_an_nvswitch_line_that_harms_nothing_is_listed_apart() -> None:
    quiet = "nvidia-nvswitch1: SXid (PCI:0000:06:00.0): 22013, Non-fatal, Link 32 Minion Link DLREQ interrupt"
    facts = log(BOOT + "[ 1.0] %s\n[ 2.0] %s\n" % (LINES["sxid"], quiet))
    assert [one["code"] for one in facts["by_kind"]["sxid"]] == ["20034"]
    assert [one["code"] for one in facts["other_sxids"]] == ["22013"]
    assert "SXid 22013 (Minion Link DLREQ interrupt) at 0000:06:00.0" in facts["other_sxids"][0]["summary"]


def test_a_bar_that_got_its_place_later_does_not_count() -> None:
    text = BOOT + "[ 1.0] pci 0000:e1:00.0: BAR 1: no space for [mem size 0x2000000000 64bit pref]\n"
    assert kinds(log(text)) == {"bar_unassigned": 1}
    assert (
        kinds(log(text + "[ 1.1] pci 0000:e1:00.0: BAR 1: assigned [mem 0x2000000000-0x3fffffffff 64bit pref]\n")) == {}
    )
    assert kinds(
        log(text + "[ 1.1] pci 0000:e1:00.0: BAR 3: assigned [mem 0x2000000000-0x3fffffffff 64bit pref]\n")
    ) == {"bar_unassigned": 1}


def test_faults_of_other_devices_are_counted_apart() -> None:
    lines = (
        BOOT + "[ 1.0] nvme 0000:05:00.0: AMD-Vi: Event logged [IO_PAGE_FAULT domain=0x9 address=0x1 flags=0x0]\n"
        "[ 1.1] pcieport 0000:00:01.1: PCIe Bus Error: severity=Corrected, type=Physical Layer\n"
        "[ 1.2] DMAR: [DMA Read NO_PASID] Request device [05:00.0] fault addr 0x1 [fault reason 0x06]\n"
        "[ 1.3] DMAR: [DMA Write NO_PASID] Request device [01:00.0] fault addr 0x1 [fault reason 0x05]\n"
    )
    facts = log(lines, pci(Host(NOW)))
    assert [item["address"] for item in facts["by_kind"]["io_page_fault"]] == ["0000:01:00.0"]
    assert [item["address"] for item in facts["by_kind"]["aer"]] == ["0000:00:01.1"]  # the root port above the GPU
    assert facts["other_devices"] == 1


def test_a_later_load_of_the_driver_ends_what_was_before_it() -> None:
    begins, loaded = (
        "[ 50.0] nvidia-nvlink: Nvlink Core is being initialized, major device number 237\n",
        "[ 51.0] NVRM: loading NVIDIA UNIX Open Kernel Module\n",
    )
    before = BOOT + "".join("[ 9.0] %s\n" % line for line in LINES["needs_open_modules"].split("\n"))
    assert kinds(log(before)) == {"needs_open_modules": 1}
    assert kinds(log(before + begins + loaded)) == {}
    assert kinds(log(before + begins)) == {"needs_open_modules": 1}  # that load has not succeeded yet
    assert kinds(
        log(before.replace("[ 9.0]", "[ 50.5]") + "[ 51.0] NVRM: loading NVIDIA UNIX Open Kernel Module\n")
    ) == {"needs_open_modules": 1}
    xid = BOOT + "[ 9.0] NVRM: Xid (PCI:0000:61:00): 95, pid=1, Uncontained\n"
    assert len(log(xid + begins + loaded)["fatal_xids"]) == 1  # a reload mends no memory


def test_xid_79_is_named_once_and_not_among_the_fatal() -> None:
    facts = log(
        BOOT + "[ 1.0] NVRM: Xid (PCI:0000:91:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus.\n[ "
        "1.1] %s\n[ 1.2] %s\n" % (LINES["fallen_off_bus"], LINES["sxid"])
    )
    assert kinds(facts) == {"fallen_off_bus": 1} and facts["fatal_xids"] == [] and facts["other_xids"] == []


DUE = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x0 (None) to 0x1 (GPU Reset Required)\n"
CLEAR = "NVRM: Xid (PCI:0000:01:00): 154, GPU recovery action changed from 0x1 (GPU Reset Required) to 0x0 (None)\n"


@pytest.mark.parametrize(
    ("lines", "fatal"),
    [
        ([DUE], [154]),
        ([DUE, CLEAR], []),
        ([DUE, CLEAR, DUE], [154]),
        ([CLEAR], []),
        (["NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout waiting for RPC from GSP!\n", DUE, CLEAR], []),
        (["NVRM: Xid (PCI:0000:02:00): 119, pid=1, Timeout waiting for RPC from GSP!\n", DUE, CLEAR], [119]),
        ([DUE, CLEAR, "NVRM: Xid (PCI:0000:01:00): 119, pid=1, Timeout waiting for RPC from GSP!\n"], [119]),
        (["NVRM: Xid (PCI:0000:01:00): 48, pid=1, DBE\n", DUE, CLEAR], [48]),  # a reset mends no memory
    ],
)
def test_the_drivers_all_clear_ends_what_it_asked_for(lines: list[str], fatal: list[int]) -> None:
    facts = log(BOOT + "".join("[ %d.0] %s" % item for item in enumerate(lines, 1)))
    assert [item["xid"] for item in facts["fatal_xids"]] == fatal
    assert 154 not in [item["xid"] for item in facts["other_xids"]]


def test_a_card_without_its_power_cables_is_told_once() -> None:
    facts = log(BOOT + "[ 1.0] %s\n[ 1.1] %s\n" % (LINES["power_cable"], LINES["rm_init_failed"].replace("02:", "01:")))
    assert kinds(facts) == {"power_cable": 1}


def test_a_number_cut_in_the_middle_is_no_other_number() -> None:
    assert log(BOOT + "[ 1.0] NVRM: Xid (PCI:0000:91:00): 7")["findings"] == []


class TestSources:
    REFUSED = "dmesg: read kernel buffer failed: Operation not permitted\n"

    def test_refused_everywhere_is_unknown(self) -> None:
        host = (
            Host(NOW)
            .command("dmesg", "", rc=1, stderr=self.REFUSED)
            .command(
                kernel_log.JOURNAL, "", rc=1, stderr="No journal files were opened due to insufficient permissions.\n"
            )
        )
        facts, errors = gathered(kernel_log, host)
        assert (
            facts["findings"] is None
            and facts["fatal_xids"] is None
            and facts["denied"] is True
            and facts["covers_boot"] is None
        )
        assert set(facts["by_kind"].values()) == {None}
        assert errors[0]["source"] == "dmesg" and errors[0]["needs_root"] is True

    def test_the_journal_answers_where_dmesg_is_refused(self) -> None:
        host = Host(NOW).command("dmesg", "", rc=1, stderr=self.REFUSED)
        host.command(
            kernel_log.JOURNAL,
            "1782037098.123456 gpu1 kernel: Linux version 6.8.0\n1782037099.1 gpu1 kernel: x\n1782037100.123456 gpu1 "
            "kernel: %s\n" % LINES["xid"],
        )
        facts, _errors = gathered(kernel_log, host)
        assert kinds(facts) == {"xid": 1} and facts["source"].startswith("journalctl -k -b")

    def test_a_ring_buffer_that_lost_the_boot_is_completed_by_the_journal(self) -> None:
        host = Host(NOW).command("dmesg", "[ 9000.0] %s\n" % LINES["xid"])
        host.command(
            kernel_log.JOURNAL,
            "1782037098.123456 g kernel: Linux version 6.8.0\n"
            + "1782037100.123456 g kernel: %s\n" % LINES["rm_init_failed"]
            + "1782037190.123456 g kernel: %s\n" % LINES["xid"],
        )
        facts, _errors = gathered(kernel_log, host)
        assert kinds(facts) == {"xid": 1, "rm_init_failed": 1} and facts["covers_boot"] is True

    def test_a_log_without_its_beginning_says_so(self) -> None:
        assert log("[ 9000.0] something\n")["covers_boot"] is False

    def test_only_this_boot_counts_in_kern_log(self) -> None:
        host = Host(NOW).command("dmesg", "", rc=1, stderr=self.REFUSED)
        stamp = "Oct  1 12:53:31 host kernel: "
        host.command(
            kernel_log.KERN_LOG,
            stamp + "[  900.0] %s\n" % LINES["fallen_off_bus"] + stamp + BOOT + stamp + "[  900.0] %s\n" % LINES["xid"],
        )
        facts, _errors = gathered(kernel_log, host)
        assert kinds(facts) == {"xid": 1} and facts["source"].endswith("kern.log")


def test_text_is_data() -> None:
    finding = log(BOOT + "[ 1.0] NVRM: Xid (PCI:0000:61:00): 13, name={{ 1/0 }}\x1b[31m\x07 " + "x" * 5000 + "\n")[
        "findings"
    ][0]
    assert "{{ 1/0 }}" in finding["text"] and len(finding["text"]) <= 300
    assert not any(ord(character) < 32 for character in finding["text"])


@pytest.mark.slow
def test_a_flood_is_bounded_in_time_and_memory() -> None:
    flood = "".join(
        "[%9d.0] NVRM: Xid (PCI:0000:61:00): %d, pid=1, x\n" % (number, number % 900) for number in range(150_000)
    )
    began = time.process_time()  # the machine may be busy with other tests
    facts = log(BOOT + flood + "z" * 2_000_000 + "\n[ 1.0] " + LINES["fallen_off_bus"] + "\n")
    assert time.process_time() - began < 10
    assert len(facts["findings"]) == log_findings.FINDINGS_LIMIT and facts["dropped"] > 0


ANY_LINES = st.lists(
    st.sampled_from([line for text in LINES.values() for line in text.split("\n")] + ["", "junk", BOOT.strip()]),
    max_size=12,
)


@given(ANY_LINES, st.integers(0, 3000))
def test_a_cut_log_loses_nothing_that_stands_before_the_cut(lines: list[str], cut: int) -> None:
    data = "".join("[%5d.000000] %s\n" % item for item in enumerate(lines)).encode()
    data = data[: max(cut, 0)]
    whole_lines = data[: data.rfind(b"\n") + 1]
    assert {item[:3] for item in counted(whole_lines)} <= {item[:3] for item in counted(data)}
    assert len(counted(data)) - len(counted(whole_lines)) <= 1


def counted(data: bytes) -> list[tuple[Any, ...]]:
    collector = log_findings.Findings(lambda _address: None)
    for line in log_lines.find_lines(data, log_patterns.HINT, None):
        collector.add(line)
    return [(item["kind"], item["address"], item["code"], item["count"]) for item in collector.result()]


@given(st.binary(max_size=400))
def test_any_bytes_are_survived(data: bytes) -> None:
    counted(data)
    counted(b"[ 1.0] NVRM: " + data)
    counted(b"NVRM: Xid (PCI:" + data + b"): 13, x\n")


@given(st.sampled_from(sorted(LINES)), st.data())
def test_a_changed_byte_raises_nothing(kind: str, draw: st.DataObject) -> None:
    data = bytearray(LINES[kind].encode())
    data[draw.draw(st.integers(0, len(data) - 1))] = draw.draw(st.integers(0, 255))
    counted(bytes(data))


def test_logs_of_real_guests_without_gpus_are_clean() -> None:
    paths = sorted(RECORDINGS.glob("*-dmesg.txt.gz"))
    assert len(paths) >= 4
    for path in paths:
        facts = log(gzip.decompress(path.read_bytes()).decode())
        assert kinds(facts) == {} and facts["covers_boot"] is True, path.name
