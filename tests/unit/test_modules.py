"""Module options in three states."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import modules
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.linux import module_values
from host_evidence import Host, gathered
from hypothesis import given
from hypothesis import strategies as st

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "hosts"
LOADED = "nvidia_uvm 2224128 4 - Live 0x0 (OE)\nnvidia 14381056 24 nvidia_uvm, Live 0x0 (OE)\n"
PARAMS = 'EnableResizableBar: 0\nDeviceFileMode: 438\nResmanDebugLevel: 4294967295\nRegistryDwords: "%s"\n'


def host(files: dict[str, str] | None = None, live: str = "N\n", dwords: str = "", cmdline: str = "quiet\n") -> Host:
    made = (
        Host()
        .file("/proc/modules", LOADED)
        .file("/proc/driver/nvidia/params", PARAMS % dwords)
        .file("/proc/cmdline", cmdline)
    )
    made.file("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm", live)
    made.directory("/etc/modprobe.d", {name: {} for name in files or {}})
    for name, text in (files or {}).items():
        made.file("/etc/modprobe.d/" + name, text)
    return made


def hmm(facts: dict[str, Any]) -> dict[str, Any]:
    option: dict[str, Any] = facts["nvidia_uvm"]["options"]["uvm_disable_hmm"]
    return option


def test_a_file_that_was_written_after_the_load_is_pending() -> None:
    facts, errors = gathered(modules, host({"uvm.conf": "# HMM\noptions nvidia-uvm uvm_disable_hmm=1\n"}))
    assert hmm(facts) == {
        "live": False,
        "configured": True,
        "source": "/etc/modprobe.d/uvm.conf:2",
        "cmdline": None,
        "pending": True,
    }
    assert [item["name"] for item in facts["pending_options"]] == ["uvm_disable_hmm"]
    assert "Y in /etc/modprobe.d/uvm.conf:2, N in the running module" in facts["pending_options"][0]["text"]
    assert errors == []


@pytest.mark.parametrize("value", ["1", "y", "Y", "on", "true"[:1]])
def test_every_spelling_of_true_agrees_with_the_live_one(value: str) -> None:
    facts, _errors = gathered(modules, host({"a.conf": "options nvidia_uvm uvm_disable_hmm=%s\n" % value}, live="Y\n"))
    assert hmm(facts)["pending"] is False
    assert facts["pending_options"] == [] and facts["unsaved_options"] == []


def test_the_last_file_wins_and_the_conflict_is_named() -> None:
    facts, _errors = gathered(
        modules,
        host({"a.conf": "options nvidia_uvm uvm_disable_hmm=1\n", "b.conf": "options nvidia_uvm uvm_disable_hmm=0\n"}),
    )
    assert hmm(facts)["configured"] is False and hmm(facts)["pending"] is False
    assert facts["conflicting_options"][0]["places"] == [
        "1 in /etc/modprobe.d/a.conf:1",
        "0 in /etc/modprobe.d/b.conf:1",
    ]


def test_the_kernel_command_line_comes_after_the_files() -> None:
    facts, _errors = gathered(
        modules,
        host(
            {"a.conf": "options nvidia_uvm uvm_disable_hmm=0\n"}, live="Y\n", cmdline="nvidia-uvm.uvm_disable_hmm=1\n"
        ),
    )
    assert hmm(facts)["cmdline"] is True and hmm(facts)["pending"] is False


def test_an_option_set_by_hand_is_lost_at_the_next_load() -> None:
    facts, _errors = gathered(modules, host(live="Y\n"))
    assert facts["unsaved_options"][0]["line"] == "options nvidia_uvm uvm_disable_hmm=1"
    unreadable = host(live="Y\n").directory("/etc/modprobe.d", status="denied")
    assert gathered(modules, unreadable)[0]["unsaved_options"] is None


def test_registry_keys_that_force_p2p() -> None:
    facts, _errors = gathered(
        modules, host(dwords="ForceP2P=0x11;RMForceP2PType=1;RMPcieP2PType=0;RmSetPCIERelaxedOrdering=1")
    )
    assert [(item["name"], item["value"], item["where"]) for item in facts["forced_p2p"]] == [
        ("ForceP2P", 0x11, "the running module"),
        ("RMForceP2PType", 1, "the running module"),
    ]
    waiting, _errors = gathered(modules, host({"n.conf": 'options nvidia NVreg_RegistryDwords="ForceP2P=0x11"\n'}))
    assert waiting["forced_p2p"][0]["where"] == "/etc/modprobe.d/n.conf:1"
    assert gathered(modules, host())[0]["forced_p2p"] == []


def test_a_registry_key_with_the_name_of_an_option_sets_that_option() -> None:
    facts, _errors = gathered(modules, host({"n.conf": 'options nvidia NVreg_RegistryDwords="EnableResizableBar=1"\n'}))
    option = facts["nvidia"]["options"]["NVreg_EnableResizableBar"]
    assert (option["configured"], option["live"], option["pending"]) == (1, 0, True)


def test_without_the_drivers_file_nothing_is_claimed() -> None:
    facts, errors = gathered(modules, host().file("/proc/driver/nvidia/params", status="denied"))
    assert facts["forced_p2p"] is None and facts["registry_dwords"]["live"] is None
    assert any(entry["needs_root"] for entry in errors)


def test_no_driver_at_all() -> None:
    facts, errors = gathered(
        modules, Host().file("/proc/modules", "ext4 1114112 1 - Live 0x0\n").file("/proc/cmdline", "quiet\n")
    )
    assert facts["nvidia"]["loaded"] is False and facts["forced_p2p"] == [] and facts["pending_options"] == []
    assert errors == []


def test_modules_that_cannot_be_listed_are_unknown_not_absent() -> None:
    facts, _errors = gathered(modules, Host().file("/proc/modules", status="denied"))
    assert facts["nvidia"]["loaded"] is None and facts["nouveau"]["loaded"] is None


def test_the_recording_of_the_h200_host() -> None:
    facts, _errors = gathered(modules, bundle.load_bundle(str(RECORDED / "h200-x2.jsonl.gz")))
    assert (
        facts["nvidia"]["loaded"] is True and facts["nvidia"]["references"] is None
    )  # this kernel counts no references
    assert facts["live_options"]["nvidia_uvm"]["uvm_disable_hmm"] is False
    assert facts["live_options"]["nvidia"]["NVreg_DeviceFileMode"] == 0o666
    assert facts["registry_dwords"]["live"] == {} and facts["forced_p2p"] == []


class TestInitramfs:
    def made(self, changed: float, listing: str | None) -> dict[str, Any]:
        one = host({"uvm.conf": "options nvidia_uvm uvm_disable_hmm=1\n"}, live="Y\n").file(
            "/proc/sys/kernel/osrelease", "6.8.0\n"
        )
        one.directory("/etc/modprobe.d", {"uvm.conf": {"modified": changed}})
        one.directory("/boot", {"initrd.img-6.8.0": {"modified": 1000.0}})
        if listing is not None:
            one.command("lsinitramfs /boot/initrd.img-6.8.0", listing)
        facts: dict[str, Any] = gathered(modules, one)[0]["initramfs"]
        return facts

    def test_older_than_the_options_and_it_loads_the_module(self) -> None:
        facts = self.made(2000.0, "usr/lib/modules/6.8.0/updates/dkms/nvidia-uvm.ko.zst\n")
        assert (
            facts["stale"] is True
            and facts["modules"] == ["nvidia_uvm"]
            and facts["older_than"] == ["/etc/modprobe.d/uvm.conf"]
        )

    def test_older_but_no_gpu_module_in_it(self) -> None:
        assert self.made(2000.0, "usr/lib/modules/6.8.0/kernel/fs/ext4.ko\n")["stale"] is False

    def test_older_and_nobody_can_look_inside(self) -> None:
        assert self.made(2000.0, None)["stale"] is None

    def test_newer_than_the_options(self) -> None:
        assert self.made(500.0, None)["stale"] is False


@given(st.text())
def test_any_value_is_survived(text: str) -> None:
    assert isinstance(module_values.parse_live_value(text), (bool, int, str))
    assert isinstance(module_values.parse_configured_value("x", text, 3), (bool, int, str))
    assert isinstance(module_values.registry_dwords(text), dict)


@given(st.text(), st.text())
def test_any_file_is_survived(config: str, params: str) -> None:
    one = host({"x.conf": config}).file("/proc/driver/nvidia/params", params)
    facts, _errors = gathered(modules, one)
    assert set(modules.MODULES) <= set(facts)


def without_proc_modules() -> Host:
    """A kernel whose /proc/modules is not shown: nvidia is loaded, ext4 is built in."""
    made = Host().file("/proc/modules", status="absent").directory("/sys/module", {"nvidia": {}, "ext4": {}})
    made.file("/sys/module/nvidia/initstate", "live\n").file("/sys/module/nvidia/refcnt", "24\n")
    made.directory("/sys/module/nvidia/holders", {"nvidia_uvm": {}})
    return made.file("/sys/module/ext4/initstate", status="absent")


def loaded_modules(seen: Host) -> tuple[Any, list[Any]]:
    errors = Errors("modules")
    return modules.read_loaded_modules(seen, errors), errors.entries


def test_without_proc_modules_sysfs_says_what_is_loaded() -> None:
    found, errors = loaded_modules(without_proc_modules())
    assert found == {"nvidia": {"references": 24, "used_by": ["nvidia_uvm"]}} and errors == []


@pytest.mark.parametrize("status", ["denied", "failed"])
def test_a_sysfs_that_does_not_answer_does_not_say_that_nothing_is_loaded(status: str) -> None:
    found, errors = loaded_modules(without_proc_modules().directory("/sys/module", status=status))
    assert found is None and errors
    found, errors = loaded_modules(without_proc_modules().file("/sys/module/nvidia/initstate", status=status))
    assert found is None and errors
