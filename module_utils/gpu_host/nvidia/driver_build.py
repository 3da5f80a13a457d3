"""Why DKMS has no build of the driver for a kernel.

A build that failed, headers that are missing, a driver that is older than the kernel.
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence.interface import ABSENT, Evidence
from ..linux import versions

# Month in which a kernel series came out (kernel.org), and in which a driver release did (NVIDIA's release notes and
# archive). A driver that is older than a kernel is not expected to build on it: its sources do not know what changed
# (open-gpu-kernel-modules issues 501 and 1143; void-linux/void-packages issues 53759 and 55536).
KERNELS = (
    ("5.10", "2020-12"), ("5.11", "2021-02"), ("5.12", "2021-04"), ("5.13", "2021-06"), ("5.14", "2021-08"),
    ("5.15", "2021-10"), ("5.16", "2022-01"), ("5.17", "2022-03"), ("5.18", "2022-05"), ("5.19", "2022-07"),
    ("6.0", "2022-10"), ("6.1", "2022-12"), ("6.2", "2023-02"), ("6.3", "2023-04"), ("6.4", "2023-06"),
    ("6.5", "2023-08"), ("6.6", "2023-10"), ("6.7", "2024-01"), ("6.8", "2024-03"), ("6.9", "2024-05"),
    ("6.10", "2024-07"), ("6.11", "2024-09"), ("6.12", "2024-11"), ("6.13", "2025-01"), ("6.14", "2025-03"),
    ("6.15", "2025-05"), ("6.16", "2025-07"), ("6.17", "2025-09"), ("6.18", "2025-11"), ("6.19", "2026-02"),
)  # fmt: skip
DRIVERS = (
    ("470.57.02", "2021-07"), ("470.103.01", "2022-01"), ("470.161.03", "2022-11"), ("470.199.02", "2023-06"),
    ("470.239.06", "2024-02"), ("470.256.02", "2024-06"), ("515.43.04", "2022-05"), ("525.60.11", "2022-11"),
    ("525.105.17", "2023-03"), ("525.147.05", "2023-10"), ("530.30.02", "2023-02"), ("535.54.03", "2023-06"),
    ("535.104.05", "2023-08"), ("535.129.03", "2023-10"), ("535.154.05", "2024-01"), ("535.183.01", "2024-06"),
    ("535.216.01", "2024-10"), ("535.230.02", "2025-01"), ("535.247.01", "2025-04"), ("535.261.03", "2025-07"),
    ("545.23.06", "2023-10"), ("550.54.14", "2024-02"), ("550.90.07", "2024-06"), ("550.120", "2024-09"),
    ("550.142", "2024-12"), ("550.163.01", "2025-04"), ("555.42.02", "2024-05"), ("555.58", "2024-06"),
    ("560.28.03", "2024-07"), ("565.57.01", "2024-10"), ("565.77", "2024-12"), ("570.86.10", "2025-01"),
    ("570.124.04", "2025-02"), ("570.133.07", "2025-03"), ("570.148.08", "2025-05"), ("570.169", "2025-06"),
    ("570.172.08", "2025-07"), ("570.195.03", "2025-09"), ("575.51.02", "2025-04"), ("575.57.08", "2025-05"),
    ("575.64", "2025-06"), ("580.65.06", "2025-08"), ("580.82.07", "2025-09"), ("580.105.08", "2025-11"),
)  # fmt: skip
_ERROR = re.compile(r"(?:\b(?:error|ERROR):|Error!|\*\*\* .{0,200}Error \d|No such file or directory|\bFATAL\b)")
_LOG_LIMIT = 1 << 20


def find_build_failure(
    evidence: Evidence, dkms: list[dict[str, Any]], built: bool | None, release: str | None
) -> dict[str, Any] | None:
    """None where DKMS has built the driver for `release`, or does not manage it.

    Else ``{kernel, versions: [text], headers, log, error, older, driver_released, kernel_released}``: `headers`:
    whether
    the kernel's build directory is there (None: unknown); `log`: path of a build's log, `error`: its first line that
    names an error, both None where it was not read; `older`: whether every release that DKMS has is older than the
    kernel's series (None where a date is not known); the dates as YYYY-MM.
    """
    if built is not False or not dkms or release is None:
        return None
    found: dict[str, Any] = {"kernel": release, "versions": [], "log": None, "error": None}
    directory = evidence.list("/lib/modules/%s/build" % release)
    found["headers"] = True if directory.ok else False if directory.status == ABSENT else None
    for item in dkms:
        name = "%s/%s" % (item["module"], item["version"])
        if name in found["versions"]:
            continue
        found["versions"].append(name)
        path = "/var/lib/dkms/%s/build/make.log" % name
        log = evidence.read(path, _LOG_LIMIT)
        if log.ok and found["log"] is None and _is_of_kernel(log.text, release):
            found["log"], found["error"] = path, _find_error(log.text)
    released = [_find_month(DRIVERS, str(item["version"]), branch=True) for item in dkms]
    newest = max((month for month in released if month), default=None) if None not in released else None
    kernel = _find_month(KERNELS, release)
    found.update(driver_released=newest, kernel_released=kernel)
    found["older"] = newest < kernel if newest and kernel else None
    return found


def _is_of_kernel(text: str, release: str) -> bool:
    """`DKMS make.log for nvidia-550.163.01 for kernel 6.17.13-2-pve (x86_64)` stands first; one without may be any."""
    first = re.search(r"DKMS \(?.{0,40}make\.log for .{1,80} for kernel (\S{1,80})", text[:400])
    return first is None or first.group(1) == release


def _find_error(text: str) -> str | None:
    return next((" ".join(line.split())[:300] for line in text.splitlines() if _ERROR.search(line)), None)


def _find_month(table: tuple[tuple[str, str], ...], version: str, branch: bool = False) -> str | None:
    """The month of the newest entry of `table` that is not newer than `version`: of its own branch of drivers, or the
    very series of kernels. What is later than the table's end is not known."""
    if branch:
        known = [entry for entry in table if versions.parse_major(entry[0]) == versions.parse_major(version)]
        before = [month for name, month in known if versions.is_at_least(version, name)]
        return before[-1] if before else None
    series = (versions.split_numbers(version) or ())[:2]
    return next((month for name, month in table if versions.split_numbers(name) == series), None)
