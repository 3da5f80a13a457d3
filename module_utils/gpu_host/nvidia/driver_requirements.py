"""What a GPU and a CUDA release ask of the driver, as data.

Sources: the README of each driver release (list of supported products), NVIDIA's driver installation guide (kernel
modules), CUDA toolkit release notes, table "CUDA Toolkit and Corresponding Driver Versions" and the CUDA compatibility
guide.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..linux import versions
from ..pcie.pci_names import FIRST_DRIVERS


@dataclass(frozen=True)
class Architecture:
    """`driver`: the first release for it.

    `modules`: which flavour drives it: 'open' only, 'proprietary' only, or 'either'. `toolkit`: the first CUDA toolkit
    whose compiler knows it.
    """

    name: str
    driver: str
    modules: str
    toolkit: str


# PCI device ids, first and last of a range. A product that came later than its architecture says so in
# pcie/pci_names.py.
_ARCHITECTURES = (
    (0x1340, 0x15EF, Architecture("maxwell", "346.16", "proprietary", "6.5")),
    (0x15F0, 0x15FF, Architecture("pascal", "375.20", "proprietary", "8.0")),
    (0x1600, 0x17FF, Architecture("maxwell", "346.16", "proprietary", "6.5")),
    (0x1B00, 0x1D56, Architecture("pascal", "375.20", "proprietary", "8.0")),
    (0x1D80, 0x1DFF, Architecture("volta", "384.59", "proprietary", "9.0")),
    (0x1E00, 0x1FFF, Architecture("turing", "410.48", "either", "10.0")),
    (0x2080, 0x20FF, Architecture("ampere", "450.36.06", "either", "11.0")),
    (0x2180, 0x21FF, Architecture("turing", "418.43", "either", "10.0")),
    (0x2200, 0x227F, Architecture("ampere", "455.23.04", "either", "11.1")),
    (0x2300, 0x2341, Architecture("hopper", "525.60.13", "either", "11.8")),
    (0x2342, 0x23FF, Architecture("hopper", "535.54.03", "open", "11.8")),  # Grace Hopper
    (0x2400, 0x25FF, Architecture("ampere", "455.23.04", "either", "11.1")),
    (0x2600, 0x28FF, Architecture("ada", "525.60.11", "either", "11.8")),
    (0x2900, 0x297F, Architecture("blackwell", "570.26", "open", "12.8")),
    (0x2B00, 0x2FFF, Architecture("blackwell", "570.86.16", "open", "12.8")),
    (0x3180, 0x31FF, Architecture("blackwell", "575.51.03", "open", "12.9")),  # B300, GB300
)
# CUDA release -> first driver of it, oldest first. A release of the same major number runs on the first driver of that
# major (minor version compatibility), without what it adds: code that it compiles to PTX does not load there.
CUDA_DRIVERS = (
    ("10.0", "410.48"),
    ("10.1", "418.39"),
    ("10.2", "440.33"),
    ("11.0", "450.36.06"),
    ("11.1", "455.23"),
    ("11.2", "460.27.03"),
    ("11.3", "465.19.01"),
    ("11.4", "470.42.01"),
    ("11.5", "495.29.05"),
    ("11.6", "510.39.01"),
    ("11.7", "515.43.04"),
    ("11.8", "520.61.05"),
    ("12.0", "525.60.13"),
    ("12.1", "530.30.02"),
    ("12.2", "535.54.03"),
    ("12.3", "545.23.06"),
    ("12.4", "550.54.14"),
    ("12.5", "555.42.02"),
    ("12.6", "560.28.03"),
    ("12.8", "570.26"),
    ("12.9", "575.51.03"),
    ("13.0", "580.65.06"),
    ("13.1", "590.44.01"),
    ("13.2", "595.45.04"),
    ("13.3", "610.43.02"),
)
_MINOR_COMPATIBILITY = {11: "450.80.02", 12: "525.60.13", 13: "580.65.06"}


def find_architecture(device_id: int) -> Architecture | None:
    """The architecture of a GPU by its PCI device id, None for one that this table does not know."""
    return next((found for first, last, found in _ARCHITECTURES if first <= device_id <= last), None)


def minimum_driver(device_id: int) -> str | None:
    """The first driver release that lists this GPU."""
    found = find_architecture(device_id)
    return FIRST_DRIVERS.get("%04x" % device_id) or (found.driver if found else None)


def cuda_of_driver(driver: str | None) -> str | None:
    """The newest CUDA release that a driver supports in full.

    None for an unknown version or one older than the table.
    """
    supported = [cuda for cuda, minimum in CUDA_DRIVERS if versions.is_at_least(driver, minimum)]
    return supported[-1] if supported else None


def driver_for_cuda(cuda: str) -> str | None:
    """The first driver that supports a CUDA release ('13.0', '13.0.2') in full; None for a release not in the table."""
    parts = versions.split_numbers(cuda) or ()
    wanted = "%d.%d" % parts[:2] if len(parts) >= 2 else None
    return dict(CUDA_DRIVERS).get(wanted or "")


def runs_cuda(driver: str | None, cuda: str | None) -> bool | None:
    """Whether programs built with a CUDA release start on a driver: the first driver of the major number is enough."""
    major = versions.parse_major(cuda)
    least = _MINOR_COMPATIBILITY.get(major or 0) or (driver_for_cuda(cuda) if cuda else None)
    return versions.is_at_least(driver, least)


def find_requirements(device_ids: dict[str, int], driver: str | None, flavor: str | None) -> dict[str, Any]:
    """What the GPUs of a host (PCI address -> device id) ask, and which of them the running driver does not satisfy.

    `gpus`: address -> {device_id, architecture, minimum_driver, modules, minimum_toolkit}, None where the id is
    unknown. `architectures`; `minimum_driver`, `minimum_toolkit`: the highest that one of them asks. `below_minimum`,
    `wrong_flavor`: addresses; None where the driver's version or flavour is unknown.
    """
    gpus = {}
    for address, device_id in sorted(device_ids.items()):
        found = find_architecture(device_id)
        gpus[address] = {
            "device_id": "%04x" % device_id,
            "architecture": found.name if found else None,
            "minimum_driver": minimum_driver(device_id),
            "modules": found.modules if found else None,
            "minimum_toolkit": found.toolkit if found else None,
        }
    below = [address for address, gpu in gpus.items() if versions.is_at_least(driver, gpu["minimum_driver"]) is False]
    wrong = [address for address, gpu in gpus.items() if gpu["modules"] not in (None, "either", flavor)]
    toolkits = [gpu["minimum_toolkit"] for gpu in gpus.values() if gpu["minimum_toolkit"]]
    drivers = [gpu["minimum_driver"] for gpu in gpus.values() if gpu["minimum_driver"]]
    return {
        "gpus": gpus,
        "architectures": sorted({gpu["architecture"] for gpu in gpus.values() if gpu["architecture"]}),
        "minimum_driver": max(drivers, key=lambda text: versions.split_numbers(text) or (), default=None),
        "minimum_toolkit": max(toolkits, key=lambda text: versions.split_numbers(text) or (), default=None),
        "below_minimum": None if driver is None else below,
        "wrong_flavor": None if flavor is None else wrong,
    }
