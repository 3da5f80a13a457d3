"""Module options, users of GPUs and the reload: the drop-in as kmod reads it, conflicts named, modules in order."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, OK, Entry, Evidence, Listing, Outcome, Reading
from ansible.module_utils.gpu_host.linux import modprobe
from ansible.module_utils.gpu_provision import gpu_users, module_options, reloading
from hypothesis import given
from hypothesis import strategies as st

OWN = "/etc/modprobe.d/gpu-host-nvidia.conf"


class Fake(Evidence):
    """Files by path, and commands by their words joined: (exit code, stdout, stderr). What is not told is absent."""

    def __init__(
        self, files: dict[str, str] | None = None, commands: dict[str, tuple[int, str, str]] | None = None
    ) -> None:
        self.files, self.commands, self.asked = files or {}, commands or {}, []  # type: ignore[var-annotated]

    def read(self, path: str, limit: int = 0) -> Reading:
        return Reading(path, OK, self.files[path].encode()) if path in self.files else Reading(path, ABSENT)

    def list(self, path: str) -> Listing:
        names = {name[len(path) + 1 :].split("/")[0] for name in self.files if name.startswith(path + "/")}
        return Listing(path, OK, {name: Entry("file") for name in names}) if names else Listing(path, ABSENT)

    def run(self, argv: Any, timeout: float = 0) -> Outcome:
        key = " ".join(argv)
        self.asked.append(key)
        if key not in self.commands:
            return Outcome(tuple(argv), OK, 0)
        code, out, err = self.commands[key]
        return Outcome(tuple(argv), OK, code, out.encode(), err.encode())


def test_text() -> None:
    options = {
        "nvidia-uvm": {"uvm_disable_hmm": True},
        "nvidia": {"NVreg_RegistryDwords": {"ForceP2P": "0x11", "RMForceP2PType": 1}, "NVreg_X": "a b"},
    }
    assert module_options.render_options(options) == (
        "# Written by Ansible (nvidia_module_options); changes are overwritten.\n"
        'options nvidia NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1" NVreg_X="a b"\n'
        "options nvidia_uvm uvm_disable_hmm=1\n"
    )
    assert module_options.render_options({"nvidia": {}}) == module_options.HEADER


@pytest.mark.parametrize(
    "options",
    [
        {"nvidia": {"NVreg_X": 'a"b'}},
        {"nvidia": {"NVreg_X": "a\nblacklist nvidia"}},
        {"nvidia": {"NVreg_X": "a\\"}},
        {"nvidia": {"NVreg_X": None}},
        {"nvidia": {"NVreg_X": [1]}},
        {"nvidia": {"NVreg X": 1}},
        {"nvidia; reboot": {"a": 1}},
        {"nvidia": {"NVreg_RegistryDwords": {"A": "1 2"}}},
    ],
)
def test_what_modprobe_would_misread_is_refused(options: dict[str, Any]) -> None:
    with pytest.raises(module_options.OptionError):
        module_options.render_options(options)


@given(
    st.dictionaries(
        st.from_regex(r"[A-Za-z][A-Za-z0-9_]{0,12}", fullmatch=True),
        st.one_of(st.booleans(), st.integers(-1, 2**32), st.text(max_size=12)),
        max_size=4,
    )
)
def test_what_is_written_is_read_back(options: dict[str, Any]) -> None:
    try:
        text = module_options.render_options({"nvidia": options})
    except module_options.OptionError:
        return
    found = modprobe.Configuration()
    modprobe.parse_configuration(text, OWN, found)
    assert {option.name: option.value for option in found.options} == {
        name: module_options.value_text("nvidia", name, value) for name, value in options.items()
    }
    assert found.commands == [] and found.faults == []


@pytest.mark.skipif(not shutil.which("modprobe"), reason="kmod is not installed")
def test_kmod_reads_it_so(tmp_path: Path) -> None:
    text = module_options.render_options(
        {
            "nvidia": {"NVreg_RegistryDwords": {"ForceP2P": "0x11", "RMForceP2PType": 1}},
            "nvidia_uvm": {"uvm_disable_hmm": 1},
        }
    )
    (tmp_path / "x.conf").write_text(text)
    told = subprocess.run(["modprobe", "-C", str(tmp_path), "-c"], capture_output=True, text=True, check=False).stdout
    assert [line for line in told.splitlines() if line.startswith("options nvidia")] == text.splitlines()[1:]


@pytest.mark.parametrize(
    ("left", "right", "expected"),
    [
        ("Y", "1", True),
        ("N", "1", False),
        ("0x11", "17", True),
        ("4294967295", "-1", True),
        ("phys", "phys", True),
        ("ForceP2P=0x11;A=1", "A=1;ForceP2P=17", True),
        ("ForceP2P=0x11", "ForceP2P=0x11;A=1", False),
        ("", "A=1", False),
        (None, "1", None),
    ],
)
def test_same(left: str | None, right: str, expected: bool | None) -> None:
    assert module_options.is_same_value(left, right) is expected


def test_conflicts_are_named_with_file_and_line() -> None:
    files = {
        OWN: "options nvidia_uvm uvm_disable_hmm=0\n",  # ours, about to be replaced
        "/etc/modprobe.d/a.conf": "# x\noptions nvidia-uvm uvm_disable_hmm=1\n",  # says the same
        "/usr/lib/modprobe.d/b.conf": "options nvidia NVreg_X=1 \\\n  NVreg_Y=2\noptions nvidia_uvm "
        "uvm_disable_hmm=0\n",
        "/proc/cmdline": "ro nvidia_uvm.uvm_disable_hmm=0 quiet\n",
    }
    wanted = {"nvidia_uvm": {"uvm_disable_hmm": 1}, "nvidia": {"NVreg_Y": 3}}
    assert module_options.find_conflicts(Fake(files), Errors("modules"), wanted, OWN) == [
        "/usr/lib/modprobe.d/b.conf:1 sets nvidia NVreg_Y=2, but 3 is wanted",
        "/usr/lib/modprobe.d/b.conf:3 sets nvidia_uvm uvm_disable_hmm=0, but 1 is wanted",
        "the kernel command line sets nvidia_uvm.uvm_disable_hmm=0, but 1 is wanted",
    ]


def test_live_values() -> None:
    files = {
        "/sys/module/nvidia/version": "580.95.05\n",
        "/sys/module/nvidia_uvm/parameters/uvm_disable_hmm": "N\n",
        "/proc/driver/nvidia/params": 'EnableResizableBar: 0\nRegistryDwords: "ForceP2P=17"\n',
    }
    wanted = {
        "nvidia_uvm": {"uvm_disable_hmm": 1},
        "nvidia": {"NVreg_RegistryDwords": {"ForceP2P": "0x11"}, "NVreg_EnableResizableBar": 0, "NVreg_Unknown": 1},
        "nvidia_drm": {"modeset": 1},
    }
    found = {
        (row["module"], row["option"]): (row["live"], row["pending"])
        for row in module_options.compare_options(Fake(files), wanted)
    }
    assert found == {
        ("nvidia_uvm", "uvm_disable_hmm"): ("N", True),
        ("nvidia", "NVreg_RegistryDwords"): ("ForceP2P=17", False),
        ("nvidia", "NVreg_EnableResizableBar"): ("0", False),
        ("nvidia", "NVreg_Unknown"): (None, None),  # unknown is neither good nor pending
        ("nvidia_drm", "modeset"): (None, False),  # not loaded: it will come up with the option
    }


def test_unknown_option_is_found_where_the_module_can_be_asked() -> None:
    told = {
        "modinfo -F parm nvidia_uvm": (0, "uvm_disable_hmm:Force-disable HMM (bool)\n", ""),
        "modinfo -F parm nvidia": (1, "", "not found"),
    }
    wanted = {"nvidia_uvm": {"uvm_disable_hm": 1}, "nvidia": {"NVreg_X": 1}}
    assert module_options.find_unknown_parameters(Fake(commands=told), wanted) == [
        "nvidia_uvm has no option uvm_disable_hm"
    ]


def test_order_of_reload() -> None:
    loaded = ["nvidia", "nvidia_modeset", "nvidia_drm", "nvidia_uvm"]
    assert module_options.list_modules_to_reload(["nvidia_uvm"], loaded) == ["nvidia_uvm"]
    assert module_options.list_modules_to_reload(["nvidia"], loaded) == [
        "nvidia_uvm",
        "nvidia_drm",
        "nvidia_modeset",
        "nvidia",
    ]
    assert module_options.list_modules_to_reload(["nvidia_modeset"], loaded) == ["nvidia_drm", "nvidia_modeset"]


ACTIVE = {
    "systemctl is-active nvidia-persistenced.service": (0, "active\n", ""),
    "systemctl is-active sglang.service": (0, "active\n", ""),
}
INACTIVE = {
    "systemctl is-active %s" % unit: (3, "inactive\n", "")
    for unit in reloading.DRIVER_UNITS
    if "persistenced" not in unit
}


def test_reload_stops_unloads_loads_and_starts_in_order() -> None:
    evidence = Fake(commands={**ACTIVE, **INACTIVE})
    outcome = reloading.reload_modules(evidence, ["nvidia_uvm", "nvidia"], ["sglang.service"])
    assert (outcome["reloaded"], outcome["failed"], outcome["reason"]) == (True, False, "")
    assert outcome["log"] == [
        "systemctl stop sglang.service",
        "systemctl stop nvidia-persistenced.service",
        "modprobe -r nvidia_uvm",
        "modprobe -r nvidia",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "nvidia-modprobe -u -c=0",
        "systemctl start nvidia-persistenced.service",
        "systemctl start sglang.service",
    ]


def test_a_module_in_use_leaves_the_host_as_it_was() -> None:
    busy = {"modprobe -r nvidia": (1, "", "modprobe: FATAL: Module nvidia is in use.\n")}
    outcome = reloading.reload_modules(Fake(commands={**ACTIVE, **INACTIVE, **busy}), ["nvidia_uvm", "nvidia"], [])
    assert (outcome["reloaded"], outcome["failed"]) == (False, False)
    assert "Module nvidia is in use" in outcome["reason"]
    assert (
        "modprobe nvidia_uvm" in outcome["log"] and outcome["log"][-1] == "systemctl start nvidia-persistenced.service"
    )
    assert "modprobe nvidia" not in outcome["log"]


def test_a_module_that_does_not_come_back_is_a_failure() -> None:
    lost = {
        "modprobe nvidia_uvm": (1, "", "modprobe: ERROR: could not insert 'nvidia_uvm': Key was rejected by service\n")
    }
    outcome = reloading.reload_modules(Fake(commands={**INACTIVE, **lost}), ["nvidia_uvm"], [])
    assert outcome["failed"] and "Key was rejected by service" in outcome["reason"]


def test_nouveau_gives_way_to_the_driver() -> None:
    evidence = Fake(commands=INACTIVE)
    outcome = reloading.reload_modules(evidence, ["nouveau"], [], ["nvidia", "nvidia_uvm"])
    assert (outcome["reloaded"], outcome["touched"], outcome["failed"]) == (True, True, False)
    assert outcome["log"] == [
        "modprobe -r nouveau",
        "modprobe nvidia",
        "modprobe nvidia_uvm",
        "nvidia-modprobe -u -c=0",
    ]


def test_nouveau_that_holds_a_console_stays() -> None:
    busy = {"modprobe -r nouveau": (1, "", "modprobe: FATAL: Module nouveau is in use.\n")}
    outcome = reloading.reload_modules(Fake(commands={**INACTIVE, **busy}), ["nouveau"], [], ["nvidia", "nvidia_uvm"])
    assert (outcome["reloaded"], outcome["touched"], outcome["failed"]) == (False, False, False)
    assert "Module nouveau is in use" in outcome["reason"] and "modprobe nvidia" not in outcome["log"]


def test_nouveau_comes_back_where_the_driver_does_not_come() -> None:
    lost = {"modprobe nvidia": (1, "", "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1\n")}
    outcome = reloading.reload_modules(Fake(commands={**INACTIVE, **lost}), ["nouveau"], [], ["nvidia"])
    assert outcome["failed"] and "Module nvidia not found" in outcome["reason"]
    assert outcome["log"][-1] == "modprobe nouveau"


def test_a_driver_that_was_not_loaded_and_cannot_be_is_a_reason_and_no_failure() -> None:
    lost = {"modprobe nvidia": (1, "", "modprobe: FATAL: Module nvidia not found in directory /lib/modules/6.1\n")}
    outcome = reloading.reload_modules(Fake(commands=lost), [], [], ["nvidia"])
    assert (outcome["reloaded"], outcome["touched"], outcome["failed"]) == (False, False, False)
    assert "Module nvidia not found" in outcome["reason"]
    assert reloading.reload_modules(Fake(), [], [], ["nvidia"])["touched"] is True


def process(root: Path, pid: int, command: str, targets: list[str], cgroup: str = "0::/user.slice\n") -> None:
    (root / str(pid) / "fd").mkdir(parents=True)
    (root / str(pid) / "comm").write_text(command + "\n")
    (root / str(pid) / "cgroup").write_text(cgroup)
    for number, target in enumerate(targets):
        os.symlink(target, root / str(pid) / "fd" / str(number))


def test_users(tmp_path: Path) -> None:
    process(
        tmp_path,
        20,
        "python3",
        ["/dev/nvidia0", "/dev/nvidia0", "/dev/nvidia-uvm", "/dev/null"],
        "0::/system.slice/sglang.service\n",
    )
    process(tmp_path, 30, "python3", ["/dev/nvidiactl"], "0::/lxc/105/ns/system.slice/vllm.service\n")
    process(tmp_path, 40, "nvidia-persiste", ["/dev/nvidia0"])
    process(tmp_path, 50, "bash", ["/dev/null", "/dev/nvidiafoo", "/tmp/dev/nvidia0", "socket:[1]"])
    (tmp_path / "self").mkdir()
    found = gpu_users.find_processes(str(tmp_path))
    assert found["driver_services"] == ["nvidia-persistenced"] and found["unreadable"] == 0
    assert found["users"] == [
        {
            "pid": 20,
            "command": "python3",
            "devices": ["/dev/nvidia-uvm", "/dev/nvidia0"],
            "unit": "sglang.service",
            "container": "",
        },
        {"pid": 30, "command": "python3", "devices": ["/dev/nvidiactl"], "unit": "vllm.service", "container": "105"},
    ]
    assert (
        gpu_users.describe_users(found["users"], ["sglang.service"])
        == "python3 (pid 20, sglang.service); python3 (pid 30, container 105); server unit sglang.service"
    )
    assert gpu_users.describe_users([], []) == ""


def test_serving_units() -> None:
    text = (
        "sglang-glm.service loaded active running SGLang\nssh.service loaded active running SSH\nvllm@1.service "
        "loaded activating auto-restart x\n"
    )
    evidence = Fake(commands={" ".join(gpu_users.UNITS_COMMAND): (0, text, "")})
    assert gpu_users.find_serving_units(evidence, ["sglang*.service", "vllm*.service"]) == [
        "sglang-glm.service",
        "vllm@1.service",
    ]
