"""The driver stack from its files and tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import driver
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.linux import versions
from ansible.module_utils.gpu_host.nvidia import cuda_toolkits, driver_packages, driver_services
from host_evidence import Host, gathered
from hypothesis import given
from hypothesis import strategies as st

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "hosts"
OPEN = (
    "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  595.58.03  Release Build  (x@)  \nGCC version:  gcc "
    "version 13.3.0\n"
)
PROPRIETARY = "NVRM version: NVIDIA UNIX x86_64 Kernel Module  470.256.02  Thu May  2 14:37:44 UTC 2024\n"
LIBRARY = "/usr/lib/x86_64-linux-gnu/"


def host(
    version: str = OPEN,
    loaded: str = "595.58.03",
    library: str = "595.58.03",
    disk: str = "595.58.03",
    gpu: str = "10DE:2BB5",
) -> Host:
    made = (
        Host()
        .file("/proc/modules", "nvidia 14381056 24 - Live 0x0 (OE)\n")
        .file("/proc/driver/nvidia/version", version)
    )
    made.file("/sys/module/nvidia/version", loaded + "\n").file("/proc/sys/kernel/osrelease", "6.8.0-64-generic\n")
    made.directory(
        "/sys/bus/pci/devices",
        {"0000:01:00.0": {"kind": "link", "target": "../../../devices/pci0000:00/0000:00:01.1/0000:01:00.0"}},
    )
    made.file("/sys/bus/pci/devices/0000:01:00.0/uevent", "DRIVER=nvidia\nPCI_CLASS=30200\nPCI_ID=%s\n" % gpu)
    made.command(
        "modinfo nvidia",
        "filename:       /lib/modules/x/nvidia.ko\nversion:        %s\nlicense:        Dual MIT/GPL\nparm:           "
        "NVreg_x:int\n" % disk,
    )
    made.command(
        driver.LIBRARIES_COMMAND,
        "".join(
            LIBRARY + line
            for line in (
                "libcuda.so.1\tlibcuda.so.%s\n" % library,
                "libcuda.so.%s\t\n" % library,
                "libnvidia-ml.so.%s\t\n" % library,
            )
        ),
        rc=1,
        stderr="find: '/usr/lib64': No such file\n",
    )
    return made


def test_one_version_everywhere() -> None:
    facts, errors = gathered(driver, host())
    assert (facts["loaded"], facts["version"], facts["branch"], facts["flavor"]) == (True, "595.58.03", 595, "open")
    assert facts["mismatched"] == [] and facts["cuda"] == "13.2" and facts["on_disk"]["flavor"] == "open"
    assert facts["libraries"]["libcuda"] == [{"path": LIBRARY + "libcuda.so.595.58.03", "version": "595.58.03"}]
    assert (
        facts["gpus"]["0000:01:00.0"]["architecture"] == "blackwell"
        and facts["below_minimum"] == []
        and facts["wrong_flavor"] == []
    )
    assert errors == []


def test_an_upgrade_that_waits_for_a_reload() -> None:
    facts, _errors = gathered(driver, host(library="595.71.05", disk="595.71.05"))
    assert facts["mismatched"] == [
        "the module on disk is 595.71.05",
        "%slibcuda.so.595.71.05 is 595.71.05" % LIBRARY,
        "%slibnvidia-ml.so.595.71.05 is 595.71.05" % LIBRARY,
    ]


def test_libraries_that_no_link_leads_to_are_left_over() -> None:
    made = host()
    lines = (
        "libcuda.so.1\tlibcuda.so.595.58.03",
        "libcuda.so.595.58.03\t",
        "libcuda.so.535.54.03\t",
        "libnvidia-ml.so.535.54.03\t",
    )
    facts, _errors = gathered(
        driver, made.command(driver.LIBRARIES_COMMAND, "".join("%s%s\n" % (LIBRARY, line) for line in lines))
    )
    # Without a link the loader's choice is unknown, so every file counts.
    assert facts["mismatched"] == ["%slibnvidia-ml.so.535.54.03 is 535.54.03" % LIBRARY]


def test_the_proprietary_module_cannot_drive_blackwell() -> None:
    facts, _errors = gathered(driver, host(version=PROPRIETARY, loaded="470.256.02"))
    assert facts["flavor"] == "proprietary" and facts["version"] == "470.256.02"
    assert (
        facts["wrong_flavor"] == ["0000:01:00.0"]
        and facts["below_minimum"] == ["0000:01:00.0"]
        and facts["minimum_driver"] == "575.57.08"
    )


def test_the_version_comes_from_either_file() -> None:
    facts, _errors = gathered(driver, host().file("/sys/module/nvidia/version", status="absent"))
    assert facts["version"] == "595.58.03"
    broken, errors = gathered(driver, host(loaded="\x00junk"))
    assert broken["version"] == "595.58.03" and "no driver version" in errors[0]["problem"]


def test_debian_s_own_module_has_another_name_on_disk() -> None:
    """`modinfo nvidia` knows none there, and the next load takes nvidia-current-open all the same."""
    made = host().command("modinfo nvidia", "", 1, "modinfo: ERROR: Module nvidia not found.\n")
    assert gathered(driver, made)[0]["on_disk"]["version"] is None
    made.directory("/etc/modprobe.d", {"nvidia.conf": {}})
    made.file("/etc/modprobe.d/nvidia.conf", "install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS\n")
    made.command("modinfo nvidia-current-open", "version:        595.58.03\nlicense:        Dual MIT/GPL\n")
    facts, _errors = gathered(driver, made)
    assert (facts["on_disk"]["version"], facts["on_disk"]["flavor"]) == ("595.58.03", "open")
    assert facts["mismatched"] == []


def test_a_module_is_not_absent_where_its_name_could_not_be_read() -> None:
    made = host().command("modinfo nvidia", "", 1, "modinfo: ERROR: Module nvidia not found.\n")
    facts, errors = gathered(driver, made.directory("/etc/modprobe.d", status="denied"))
    assert facts["on_disk"]["known"] is False and facts["on_disk"]["version"] is None
    assert [entry["source"] for entry in errors if entry["needs_root"]] == ["/etc/modprobe.d"]


def test_not_loaded_is_known_and_not_an_error() -> None:
    facts, errors = gathered(
        driver, Host().file("/proc/modules", "ext4 1 1 - Live 0x0\n").directory("/sys/bus/pci/devices", {})
    )
    assert (
        facts["loaded"] is False
        and facts["version"] is None
        and facts["mismatched"] is None
        and facts["below_minimum"] is None
    )
    assert [entry["source"].split()[0] for entry in errors] == [
        "find"
    ]  # a host without find(1) cannot say which libraries it has


def test_a_sandbox_that_hides_the_list_of_modules() -> None:
    facts, _errors = gathered(driver, host().file("/proc/modules", status="absent"))
    assert facts["loaded"] is True
    unknown, _errors = gathered(driver, Host().file("/proc/modules", status="denied"))
    assert unknown["loaded"] is None and unknown["nouveau_loaded"] is None


def test_gpus_of_virtual_machines_ask_nothing_of_this_driver() -> None:
    made = host().file(
        "/sys/bus/pci/devices/0000:01:00.0/uevent", "DRIVER=vfio-pci\nPCI_CLASS=30200\nPCI_ID=10DE:2BB5\n"
    )
    assert gathered(driver, made)[0]["gpus"] == {}


@pytest.mark.parametrize(
    ("efi", "variable", "mokutil", "enabled"),
    [
        (False, None, None, False),
        (True, "\x06\x00\x00\x00\x01", None, True),
        (True, "\x06\x00\x00\x00\x00", None, False),
        (True, None, "SecureBoot enabled\n", True),
        (True, None, "SecureBoot disabled\nPlatform is in Setup Mode\n", False),
        (True, None, None, None),
        (True, "\x06", None, None),
    ],
)
def test_secure_boot(efi: bool, variable: str | None, mokutil: str | None, enabled: bool | None) -> None:
    made = Host()
    if efi:
        made.directory("/sys/firmware/efi", {"efivars": {"kind": "dir"}})
    if variable is not None:
        made.file(driver.SECURE_BOOT_VARIABLE, variable)
    if mokutil is not None:
        made.command("mokutil --sb-state", mokutil)
    assert driver.read_secure_boot(made, Errors("driver")) is enabled


@pytest.mark.parametrize(
    ("output", "running", "newest"),
    [
        (
            "nvidia/595.58.03, 6.8.0-64-generic, x86_64: installed\nnvidia/595.58.03, 6.11.0-9-generic, x86_64: "
            "installed\n",
            True,
            True,
        ),
        ("nvidia, 595.58.03, 6.8.0-64-generic, x86_64: installed\n", True, False),  # the spelling of DKMS 2
        ("nvidia/595.58.03, 6.8.0-63-generic, x86_64: installed\n", False, False),
        ("nvidia/595.58.03: added\n", False, False),
        (
            "nvidia/595.58.03, 6.8.0-64-generic, x86_64: installed (WARNING! Diff between built and installed "
            "module!)\n",
            True,
            False,
        ),
        ("zfs/2.2.2, 6.8.0-64-generic, x86_64: installed\n", None, None),
        ("", None, None),
    ],
)
def test_dkms(output: str, running: bool | None, newest: bool | None) -> None:
    made = (
        host()
        .command("dkms status", output)
        .directory("/boot", {"vmlinuz-6.8.0-64-generic": {}, "vmlinuz-6.11.0-9-generic": {}, "vmlinuz-6.9.0.old": {}})
    )
    facts, _errors = gathered(driver, made)
    assert (facts["built_for_running_kernel"], facts["built_for_newest_kernel"]) == (running, newest)


class TestServices:
    def made(self, stdout: str, rc: int = 0, stderr: str = "") -> Host:
        return Host().command(driver_services.SYSTEMCTL_COMMAND, stdout, rc, stderr)

    def test_states(self) -> None:
        text = (
            "Result=exit-code\nId=nvidia-persistenced.service\nLoadState=loaded\nActiveState=failed\nSubState=failed\nUnitFileState=enabled\n\n"
            "Result=success\nId=nvidia-fabricmanager.service\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=disabled\n"
        )
        made = self.made(text).command("nv-fabricmanager --version", "Fabric Manager version is : 580.95.05\n")
        facts = driver_services.gather(made, Errors("driver"))
        assert facts["persistenced"] == {
            "installed": True,
            "active": False,
            "state": "failed (failed)",
            "enabled": True,
            "result": "exit-code",
            "load_state": "loaded",
        }
        assert facts["fabric_manager"]["active"] is True and facts["fabric_manager"]["version"] == "580.95.05"

    def test_without_systemd_the_pid_file_tells(self) -> None:
        errors = Errors("driver")
        made = self.made("", 1, "System has not been booted with systemd as init system (PID 1). Can't operate.\n")
        made.directory("/run/nvidia-persistenced", {"nvidia-persistenced.pid": {}})
        facts = driver_services.gather(made, errors)
        assert (
            facts["persistenced"]["active"] is True
            and facts["persistenced"]["installed"] == "n/a"
            and errors.entries == []
        )
        assert driver_services.gather(Host(), errors)["persistenced"]["active"] is False

    def test_an_answer_that_did_not_come_is_unknown(self) -> None:
        made = Host()
        made.add(
            {"run": list(driver_services.SYSTEMCTL_COMMAND), "status": "timeout", "reason": "no answer within 10 s"}
        )
        errors = Errors("driver")
        assert driver_services.gather(made, errors)["fabric_manager"]["installed"] is None and errors.entries


class TestPackages:
    # A compatibility library is not used by what runs on the driver itself: its upgrade parts nothing.
    DPKG = (
        "nvidia-driver-cuda\t595.58.03-1\thold\tinstalled\nlibnvidia-compute\t595.58.03-1\tinstall\tinstalled\n"
        "nvidia-container-toolkit\t1.17\tinstall\tinstalled\nnvidia-old\t1\tdeinstall\tconfig-files\ncuda-compat-13-0\t580.95.05\tinstall\tinstalled\n"
    )
    ON = 'APT::Periodic::Unattended-Upgrade "1";\n'

    def facts(self, made: Host) -> dict[str, Any]:
        return driver_packages.gather(made, Errors("driver"))

    def test_held_and_not(self) -> None:
        facts = self.facts(Host().command(driver_packages.DPKG_COMMAND, self.DPKG, rc=1))
        names = [item["name"] for item in facts["packages"]]
        assert names == ["nvidia-driver-cuda", "libnvidia-compute", "nvidia-container-toolkit", "cuda-compat-13-0"]
        assert facts["unheld"] == ["libnvidia-compute"] and facts["automatic_upgrades"] is False

    def test_automatic_upgrades(self) -> None:
        made = (
            Host().command(driver_packages.DPKG_COMMAND, self.DPKG).file("/etc/apt/apt.conf.d/20auto-upgrades", self.ON)
        )
        assert self.facts(made)["automatic_upgrades"] is True
        made.file(
            "/etc/apt/apt.conf.d/50unattended-upgrades",
            'Unattended-Upgrade::Package-Blacklist {\n//  "linux-";\n    "nvidia";\n};\n',
        )
        assert self.facts(made)["automatic_upgrades"] is False  # told to leave the driver alone
        made.file("/etc/apt/apt.conf.d/20auto-upgrades", 'APT::Periodic::Unattended-Upgrade "0";\n')
        assert self.facts(made)["automatic_upgrades"] is False

    def test_a_pinning_package_holds_all(self) -> None:
        made = Host().command(
            driver_packages.DPKG_COMMAND, self.DPKG + "nvidia-driver-pinning-595\t1\tinstall\tinstalled\n"
        )
        assert self.facts(made)["unheld"] == []

    def test_rpm_with_version_locks(self) -> None:
        made = Host().command(
            driver_packages.RPM_COMMAND, "nvidia-driver\t580.95.05-1.el9\nnvidia-driver-libs\t580.95.05-1.el9\n"
        )
        made.file(
            "/etc/dnf/plugins/versionlock.list", "# locks\nnvidia-driver-3:580.95.05-1.el9.*\nnvidia-driver-libs\n"
        )
        held = {item["name"]: item["held"] for item in self.facts(made)["packages"]}
        assert held["nvidia-driver-libs"] is True

    @pytest.mark.parametrize(
        ("lock", "unheld"),
        [
            ("nvidia-driver-3:580.95.05-1.el9.*\n", ["nvidia-driver-libs"]),
            ("nvidia-driver-libs-3:580.95.05-1.el9.*\n", ["nvidia-driver"]),  # its name holds the other's
            ("*nvidia*580*\n", []),
            ("nvidia-driver*-3:580.95.05-1.el9.x86_64\n", []),
            ("nvidia-driver*-3:580.95.05-1.el9.aarch64\n", []),
            ("nvidia-driver-3:575.57.08-1.el9.*\n", ["nvidia-driver", "nvidia-driver-libs"]),
            ("!nvidia-driver-3:580.95.05-1.el9.*\n", ["nvidia-driver", "nvidia-driver-libs"]),
        ],
    )
    def test_which_package_a_version_lock_holds(self, lock: str, unheld: list[str]) -> None:
        made = Host().command(
            driver_packages.RPM_COMMAND, "nvidia-driver\t580.95.05-1.el9\nnvidia-driver-libs\t580.95.05-1.el9\n"
        )
        assert self.facts(made.file("/etc/dnf/plugins/versionlock.list", lock))["unheld"] == unheld

    def test_no_package_manager(self) -> None:
        assert self.facts(Host()) == {"manager": None, "packages": [], "unheld": [], "automatic_upgrades": False}


class TestToolkits:
    def made(self, *names: str, link: str | None = None) -> Host:
        entries: dict[str, dict[str, Any]] = {name: {"kind": "dir"} for name in names}
        if link:
            entries["cuda"] = {"kind": "link", "target": link}
        return Host().directory("/usr/local", entries)

    def facts(self, made: Host, version: str | None = "580.95.05", minimum: str | None = "12.8") -> dict[str, Any]:
        return cuda_toolkits.gather(made, Errors("driver"), version, minimum)

    def test_which_run_and_which_know_the_gpu(self) -> None:
        facts = self.facts(
            self.made("bin", "cuda-12.4", "cuda-13.2", link="/usr/local/cuda-13.2").file(
                "/usr/local/cuda-13.2/version.json", '{"cuda": {"version": "13.2.1"}}'
            )
        )
        assert [(item["version"], item["default"], item["runs"], item["full"]) for item in facts["toolkits"]] == [
            ("12.4", False, True, True),
            ("13.2.1", True, True, False),
        ]
        assert facts["unsupported_toolkits"] == [] and facts["toolkits_too_old"] == ["/usr/local/cuda-12.4"]
        assert self.facts(self.made("cuda-13.2"), "570.133.07")["unsupported_toolkits"] == ["/usr/local/cuda-13.2"]

    def test_without_a_driver_nothing_is_claimed(self) -> None:
        assert self.facts(self.made("cuda-13.0"), None)["toolkits"][0]["runs"] is None

    def test_compat_libraries_on_the_linkers_path(self) -> None:
        made = self.made("cuda-13.0").directory(
            "/usr/local/cuda-13.0/compat", {"libcuda.so.580.82.07": {}, "libcuda.so.1": {"kind": "link"}}
        )
        made.directory("/etc/ld.so.conf.d", {"000_cuda.conf": {}, "libc.conf": {}}).file(
            "/etc/ld.so.conf.d/000_cuda.conf", "/usr/local/cuda-13.0/compat\n"
        )
        facts = self.facts(made)
        assert facts["compat_libraries"] == [
            {"path": "/usr/local/cuda-13.0/compat/libcuda.so.580.82.07", "version": "580.82.07"}
        ]
        assert facts["compat_in_library_path"] is True

    @given(st.text())
    def test_any_version_file_is_survived(self, text: str) -> None:
        assert self.facts(self.made("cuda-13.0").file("/usr/local/cuda-13.0/version.json", text))["toolkits"][0][
            "version"
        ]


def test_the_recording_of_the_h200_host() -> None:
    facts, _errors = gathered(driver, bundle.load_bundle(str(RECORDED / "h200-x2.jsonl.gz")))
    assert (facts["version"], facts["flavor"], facts["cuda"]) == ("580.159.04", "open", "13.0")
    assert facts["architectures"] == ["hopper"] and facts["gsp_firmware"] == {
        "0000:00:06.0": "580.159.04",
        "0000:00:07.0": "580.159.04",
    }
    assert facts["nvswitches"] == [] and facts["below_minimum"] == []


@given(st.text(), st.text(), st.text())
def test_any_text_is_survived(version: str, modinfo: str, libraries: str) -> None:
    made = (
        host(version=version)
        .command("modinfo nvidia", modinfo)
        .command(driver.LIBRARIES_COMMAND, libraries)
        .command("dkms status", libraries)
    )
    facts, _errors = gathered(driver, made)
    # Two files that tell of two drivers: neither counts.
    another = versions.DRIVER_VERSION.fullmatch(version.strip()) and version.strip() != "595.58.03"
    assert facts["version"] == (None if another else "595.58.03")
