"""What GPUs and CUDA releases ask of the driver."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_host.linux import versions
from ansible.module_utils.gpu_host.nvidia import driver_requirements as requirements


@pytest.mark.parametrize(
    ("device_id", "architecture", "driver", "modules"),
    [
        (0x2BB5, "blackwell", "575.57.08", "open"),  # RTX PRO 6000 Blackwell Server Edition
        (0x2BB1, "blackwell", "570.133.07", "open"),  # … Workstation Edition
        (0x2901, "blackwell", "570.26", "open"),  # B200
        (0x2D04, "blackwell", "570.86.16", "open"),  # RTX 5060 Ti
        (0x2335, "hopper", "525.60.13", "either"),  # H200
        (0x2342, "hopper", "535.54.03", "open"),  # GH200
        (0x20B2, "ampere", "450.36.06", "either"),  # A100 80 GB
        (0x2204, "ampere", "455.23.04", "either"),  # RTX 3090
        (0x26B9, "ada", "525.60.11", "either"),  # L40S
        (0x15F8, "pascal", "375.20", "proprietary"),  # P100
        (0x1DB6, "volta", "384.59", "proprietary"),  # V100
        (0x22A3, None, None, None),  # an NVSwitch
        (0xFFFF, None, None, None),
    ],
)
def test_gpus(device_id: int, architecture: str | None, driver: str | None, modules: str | None) -> None:
    found = requirements.find_architecture(device_id)
    assert (
        found.name if found else None,
        requirements.minimum_driver(device_id),
        found.modules if found else None,
    ) == (
        architecture,
        driver,
        modules,
    )


@pytest.mark.parametrize(
    ("driver", "cuda"),
    [
        ("595.58.03", "13.2"),
        ("580.159.04", "13.0"),
        ("575.57.08", "12.9"),
        ("570.26", "12.8"),
        ("570.20", "12.6"),
        ("550.163.01", "12.4"),
        ("390.1", None),
        (None, None),
    ],
)
def test_the_newest_cuda_of_a_driver(driver: str | None, cuda: str | None) -> None:
    assert requirements.cuda_of_driver(driver) == cuda


@pytest.mark.parametrize(
    ("driver", "cuda", "runs"),
    [
        ("580.65.06", "13.2", True),  # minor version compatibility
        ("575.57.08", "13.0", False),
        ("535.54.03", "12.9", True),
        ("580.65.06", "99.0", None),
        (None, "13.0", None),
    ],
)
def test_programs_of_a_cuda_release_on_a_driver(driver: str | None, cuda: str, runs: bool | None) -> None:
    assert requirements.runs_cuda(driver, cuda) is runs


def test_the_tables_are_in_order() -> None:
    table = requirements.CUDA_DRIVERS
    for (older, driver_before), (newer, driver_after) in zip(table, table[1:]):
        assert versions.is_at_least(newer, older) and versions.is_at_least(driver_after, driver_before)
    ranges = requirements._ARCHITECTURES
    assert all(first <= last for first, last, _found in ranges)
    assert all(before[1] < after[0] for before, after in zip(ranges, ranges[1:]))


def test_a_mixed_host() -> None:
    facts = requirements.find_requirements(
        {"0000:02:00.0": 0x2BB5, "0000:01:00.0": 0x1DB6, "0000:03:00.0": 0xFFFF}, "570.133.07", "open"
    )
    assert list(facts["gpus"]) == ["0000:01:00.0", "0000:02:00.0", "0000:03:00.0"]
    assert facts["below_minimum"] == ["0000:02:00.0"] and facts["wrong_flavor"] == ["0000:01:00.0"]
    assert facts["minimum_driver"] == "575.57.08" and facts["minimum_toolkit"] == "12.8"
    assert facts["gpus"]["0000:03:00.0"] == {
        "device_id": "ffff",
        "architecture": None,
        "minimum_driver": None,
        "modules": None,
        "minimum_toolkit": None,
    }
    unknown = requirements.find_requirements({"0000:02:00.0": 0x2BB5}, None, None)
    assert unknown["below_minimum"] is None and unknown["wrong_flavor"] is None
