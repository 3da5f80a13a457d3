"""Device nodes: there, of the registered major, open."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible.module_utils.gpu_host import device_nodes
from ansible.module_utils.gpu_host.evidence import bundle
from host_evidence import Host, gathered
from hypothesis import given
from hypothesis import strategies as st

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "hosts"
DEVICES = (
    "Character devices:\n  1 mem\n195 nvidia\n195 nvidiactl\n236 nvidia-caps\n511 nvidia-uvm\n\nBlock "
    "devices:\n195 nvidia\n259 blkext\n"
)
GPUS = {"0000:01:00.0": 1, "0000:11:00.0": 0}  # the minor need not follow the order on the bus


def node(minor: int, major: int = 195, mode: int = 0o666) -> dict[str, Any]:
    return {"kind": "char", "major": major, "minor": minor, "mode": mode, "uid": 0, "gid": 0}


def host(devices: str = DEVICES, gpus: dict[str, int] | None = None, **nodes: dict[str, Any] | None) -> Host:
    there: dict[str, Any] = {
        "nvidia0": node(0),
        "nvidia1": node(1),
        "nvidiactl": node(255),
        "nvidia-uvm": node(0, 511),
        "tty": node(0, 5),
    }
    there.update(
        {
            name.replace("uvm", "nvidia-uvm") if name.startswith("uvm") else name: fields
            for name, fields in nodes.items()
        }
    )
    made = (
        Host()
        .directory("/dev", {name: fields for name, fields in there.items() if fields is not None})
        .file("/proc/devices", devices)
    )
    made.directory(
        "/proc/driver/nvidia/gpus", {address: {"kind": "dir"} for address in (GPUS if gpus is None else gpus)}
    )
    for address, minor in (GPUS if gpus is None else gpus).items():
        made.file(
            "/proc/driver/nvidia/gpus/%s/information" % address,
            "Model: \t\t NVIDIA X\nDevice Minor: \t %d\nGPU Firmware: \t 595.58.03\n" % minor,
        )
    for name in ("nvidiactl", "nvidia-uvm"):
        made.file("/dev/" + name, status="failed", reason="Invalid argument")
    return made


def test_all_is_well() -> None:
    facts, errors = gathered(device_nodes, host())
    assert (
        facts["missing"] == facts["missing_control"] == facts["stale"] == facts["unusable"] == []
        and facts["no_gpu_node"] is False
    )
    assert facts["majors"] == {
        "nvidia": 195,
        "nvidia_uvm": 511,
        "nvidia_caps": 236,
        "nvidia_nvswitch": None,
        "nvidia_nvlink": None,
    }
    assert facts["gpu_minors"] == GPUS and facts["opens"] == {"nvidiactl": True, "nvidia-uvm": True}
    assert "tty" not in facts["nodes"] and errors == []


def test_missing_nodes() -> None:
    facts, _errors = gathered(device_nodes, host(nvidia1=None, uvm=None))
    assert facts["missing"] == ["nvidia1", "nvidia-uvm"] and facts["missing_control"] == ["nvidia-uvm"]


def test_a_container_with_no_gpu_node_at_all() -> None:
    assert gathered(device_nodes, host(nvidia0=None, nvidia1=None))[0]["no_gpu_node"] is True


def test_the_node_of_uvm_is_not_asked_for_before_the_module_is_loaded() -> None:
    facts, _errors = gathered(device_nodes, host(devices=DEVICES.replace("511 nvidia-uvm\n", ""), uvm=None))
    assert facts["missing"] == []


def test_a_stale_major_is_not_opened() -> None:
    made = host(uvm=node(0, 509))
    facts, _errors = gathered(device_nodes, made)
    assert facts["stale"] == [
        {
            "name": "nvidia-uvm",
            "major": 509,
            "registered": 511,
            "text": "/dev/nvidia-uvm has major 509, the kernel registered 511",
        }
    ]
    assert facts["opens"]["nvidia-uvm"] is None and facts["unusable"] == []
    assert "/dev/nvidia-uvm" not in made.opened  # opening an unknown major makes the kernel look for a module


NVSWITCH = {"nvidia-nvswitch0": node(0, 235), "nvidia-nvswitchctl": node(255, 235), "nvidia-nvlink": node(0, 237)}
OTHERS = {"nvidia-fs0": node(0, 509, 0o600), "nvidia-vgpu1": node(0, 234, 0o600)}


def test_nodes_of_nvswitches_and_of_other_modules_have_numbers_of_their_own() -> None:
    """Every HGX host has them: their major is not the GPUs' 195."""
    devices = DEVICES.replace("236 nvidia-caps\n", "235 nvidia-nvswitch\n236 nvidia-caps\n237 nvidia-nvlink\n")
    facts, errors = gathered(device_nodes, host(devices, **NVSWITCH, **OTHERS))
    assert facts["stale"] == facts["unusable"] == [] and errors == [] and facts["majors"]["nvidia_nvswitch"] == 235
    facts, _errors = gathered(
        device_nodes, host(devices.replace("235 nvidia-nvswitch", "234 nvidia-nvswitch"), **NVSWITCH, **OTHERS)
    )
    assert [(entry["name"], entry["registered"]) for entry in facts["stale"]] == [
        ("nvidia-nvswitch0", 234),
        ("nvidia-nvswitchctl", 234),
    ]


def test_a_device_policy_that_refuses() -> None:
    facts, _errors = gathered(device_nodes, host().file("/dev/nvidia-uvm", status="denied"))
    assert facts["unusable"] == [
        {"name": "nvidia-uvm", "why": "cannot be opened", "text": "/dev/nvidia-uvm cannot be opened"}
    ]


def test_a_mode_that_is_narrower_than_the_drivers() -> None:
    facts, _errors = gathered(device_nodes, host(nvidia0=node(0, mode=0o660)))
    assert facts["unusable"][0]["why"] == "has mode 0660, the driver gives 0666"
    meant = host(
        nvidia0=node(0, mode=0o660),
        nvidia1=node(1, mode=0o660),
        nvidiactl=node(255, mode=0o660),
        uvm=node(0, 511, 0o660),
    )
    meant.file("/proc/driver/nvidia/params", "DeviceFileMode: 432\n")  # NVreg_DeviceFileMode=0660
    assert gathered(device_nodes, meant)[0]["unusable"] == []


def test_a_directory_in_the_place_of_a_node_is_found() -> None:
    facts, _errors = gathered(device_nodes, host(nvidiactl={"kind": "file"}))
    assert facts["unusable"][0]["why"] == "is no device but a file"


def test_the_name_of_old_drivers() -> None:
    facts, _errors = gathered(device_nodes, host(devices="Character devices:\n195 nvidia-frontend\n511 nvidia-uvm\n"))
    assert facts["majors"]["nvidia"] == 195


def test_a_host_without_the_driver_misses_nothing() -> None:
    facts, errors = gathered(
        device_nodes, Host().directory("/dev", {}).file("/proc/devices", "Character devices:\n  1 mem\n")
    )
    assert facts["missing"] == [] and facts["gpu_minors"] == {} and facts["no_gpu_node"] is False and errors == []


def test_what_cannot_be_seen_is_unknown() -> None:
    facts, errors = gathered(
        device_nodes, host().directory("/dev", status="denied").file("/proc/devices", status="denied")
    )
    assert facts["nodes"] is facts["missing"] is facts["stale"] is facts["unusable"] is facts["majors"] is None
    assert all(entry["needs_root"] for entry in errors) and errors


def test_the_recording_of_the_h200_host() -> None:
    facts, _errors = gathered(device_nodes, bundle.load_bundle(str(RECORDED / "h200-x2.jsonl.gz")))
    assert facts["gpu_minors"] == {"0000:00:06.0": 0, "0000:00:07.0": 1}
    assert facts["nodes"]["nvidia-uvm"]["major"] == 238 and facts["nodes"]["nvidia-caps/nvidia-cap1"]["mode"] == 0o400
    assert facts["missing"] == []


@given(st.text(), st.text())
def test_any_text_is_survived(devices: str, information: str) -> None:
    made = host(devices=devices).file("/proc/driver/nvidia/gpus/0000:01:00.0/information", information)
    facts, _errors = gathered(device_nodes, made)
    assert facts["missing"] is None or isinstance(facts["missing"], list)


def test_what_a_device_rule_forbids_is_told_apart() -> None:
    answer = "/dev/nvidia0 rw\n/dev/nvidia1 r-\n/dev/nvidiactl --\n/dev/nvidia-uvm rw\n"
    seen = host().command(device_nodes.ACCESS_COMMAND, answer)
    facts, _errors = gathered(device_nodes, seen)
    assert facts["access"] == {"nvidia0": "rw", "nvidia1": "r", "nvidiactl": "", "nvidia-uvm": "rw"}
    assert {item["name"]: item["why"] for item in facts["unusable"]} == {
        "nvidia1": "is open for reading only, by a device rule",
        "nvidiactl": "is forbidden by a device rule",
    }


def test_without_an_answer_nothing_is_claimed() -> None:
    facts, _errors = gathered(device_nodes, host().command(device_nodes.ACCESS_COMMAND, "", rc=2))
    assert (facts["access"], facts["unusable"]) == (None, None)
