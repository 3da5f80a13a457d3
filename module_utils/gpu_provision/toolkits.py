"""CUDA toolkits: their package, and whether programs that they build run on a driver."""

from __future__ import annotations

import re

from ..gpu_host.linux import versions
from ..gpu_host.nvidia import driver_requirements
from .systems import PlanError


def package_name(version: str) -> str:
    """`12.8` -> `cuda-toolkit-12-8`. Never `cuda`, which brings a driver along."""
    if not re.fullmatch(r"\d{1,2}\.\d{1,2}", version):
        raise PlanError(
            "%r is no version of the CUDA toolkit; write it as in cuda_toolkit_versions: ['12.8']." % version
        )
    return "cuda-toolkit-" + version.replace(".", "-")


def make_notes(wanted: list[str], driver: str) -> list[str]:
    """Remarks on toolkits and driver.

    PlanError when programs built with a toolkit would not even start on the driver.
    """
    found = []
    for version in wanted:
        package_name(version)
        full = driver_requirements.driver_for_cuda(version)
        if not driver:
            found.append(
                "no driver is loaded, so CUDA %s could not be compared with it%s"
                % (version, "; it needs %s or newer" % full if full else "")
            )
            continue
        runs = driver_requirements.runs_cuda(driver, version)
        if runs is False:
            newest = driver_requirements.cuda_of_driver(driver) or "unknown"
            raise PlanError(
                "CUDA %s does not run on the driver %s of this host: it needs %s or newer. Upgrade the driver first "
                "(nvidia_driver_branch), "
                "or take an older toolkit (newest for this driver: %s)."
                % (version, driver, full or "a newer one", newest)
            )
        if runs is None:
            found.append(
                "CUDA %s is not in the table of known releases; whether the driver %s is new enough is unknown"
                % (version, driver)
            )
        elif versions.is_at_least(driver, full) is False:
            found.append(
                "CUDA %s runs on the driver %s by minor version compatibility; PTX that it compiles needs %s"
                % (version, driver, full)
            )
    return found
