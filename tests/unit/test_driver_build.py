"""Why DKMS has no build of the driver for a kernel."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.nvidia import driver_build
from host_evidence import Host

KERNEL = "6.17.13-2-pve"
LOG = "/var/lib/dkms/nvidia/550.163.01/build/make.log"


def found(host: Host, version: str = "550.163.01", kernel: str = KERNEL, built: bool | None = False) -> Any:
    dkms = [{"module": "nvidia", "version": version, "kernel": None, "state": "added"}]
    return driver_build.find_build_failure(host, dkms, built, kernel)


@pytest.mark.parametrize(
    ("version", "kernel", "older"),
    [
        ("550.163.01", "6.17.13-2-pve", True),
        ("535.183.01", "6.14.8-2-pve", True),
        ("470.256.02", "6.12.7_1", True),
        ("535.129.03", "6.8.0-64-generic", True),
        ("550.163.01", "6.8.12-4-pve", False),
        ("580.95.05", "6.17.0-5-generic", False),
        ("570.172.08", "6.14.0-27-generic", False),
        ("999.10", "6.17.0", None),  # a branch that the table does not know
        ("550.10", "6.17.0", None),  # older than what it knows of the branch
        ("550.163.01", "9.9.0", None),
        ("550.163.01", "", None),
    ],
)
def test_a_driver_that_is_older_than_the_kernel(version: str, kernel: str, older: bool | None) -> None:
    assert found(Host(), version, kernel)["older"] is older


def test_where_it_is_built_or_unknown_there_is_no_failure() -> None:
    assert found(Host(), built=True) is None and found(Host(), built=None) is None
    assert driver_build.find_build_failure(Host(), [], False, KERNEL) is None


def test_headers() -> None:
    assert found(Host())["headers"] is False
    assert found(Host().directory("/lib/modules/%s/build" % KERNEL))["headers"] is True
    assert found(Host().directory("/lib/modules/%s/build" % KERNEL, status="denied"))["headers"] is None


def test_the_log_of_the_build_names_its_error() -> None:
    text = "DKMS (dkms-3.2.1) make.log for nvidia/550.163.01 for kernel %s (x86_64)\nCC nv.o\nnv-drm.c:10:5: error: x\n"
    failure = found(Host().file(LOG, text % KERNEL))
    assert (failure["log"], failure["error"]) == (LOG, "nv-drm.c:10:5: error: x")
    other = found(Host().file(LOG, text % "6.8.0-1"))
    assert (other["log"], other["error"]) == (None, None)  # the build for another kernel


def test_the_error_of_kbuild_itself_comes_before_what_follows_from_it() -> None:
    """As DKMS 3.0.10 logged it where a part of the headers was missing."""
    text = (
        "DKMS make.log for nvidia-current-open-535.261.03 for kernel %s (x86_64)\n\n"
        "  ERROR: Kernel configuration is invalid.\n"
        "         include/generated/autoconf.h or include/config/auto.conf are missing.\n"
        "make[2]: *** [/usr/src/linux-headers-6.1.0-50-common/Makefile:823: include/config/auto.conf] Error 1\n"
    )
    assert found(Host().file(LOG, text % KERNEL))["error"] == "ERROR: Kernel configuration is invalid."


def test_the_tables_are_in_order() -> None:
    for table in (driver_build.KERNELS, driver_build.DRIVERS):
        numbers = [tuple(int(part) for part in name.split(".")) for name, _month in table]
        assert numbers == sorted(numbers)
        assert all(month[4] == "-" and 1 <= int(month[5:]) <= 12 for _name, month in table)
