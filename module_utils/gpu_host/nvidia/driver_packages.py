"""Driver packages of the distribution: installed versions, held ones, and whether the host upgrades them by itself."""

from __future__ import annotations

import fnmatch
import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence

DPKG_COMMAND = (
    "dpkg-query", "-W", "-f=${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\n",
    "nvidia*", "libnvidia*", "libcuda*", "cuda-compat*",
)  # fmt: skip
RPM_COMMAND = (
    "rpm",
    "-qa",
    "--qf",
    "%{NAME}\\t%{VERSION}-%{RELEASE}\\n",
    "nvidia*",
    "libnvidia*",
    "kmod-nvidia*",
    "cuda-compat*",
)
_AUTO_UPGRADES = "/etc/apt/apt.conf.d/20auto-upgrades"
_UNATTENDED = "/etc/apt/apt.conf.d/50unattended-upgrades"
_VERSION_LOCKS = ("/etc/dnf/plugins/versionlock.list", "/etc/yum/pluginconf.d/versionlock.list")
# The packages of a driver, in all their spellings: what the role nvidia_driver holds (nvidia_apt_driver_packages; a
# test compares the two). The exemptions share a beginning with them and have versions of their own.
DRIVER_PATTERNS = (
    "nvidia-driver*", "nvidia-open*", "nvidia-kernel-dkms", "nvidia-kernel-source", "nvidia-kernel-open-dkms",
    "nvidia-kernel-open-source", "nvidia-kernel-common-*", "nvidia-kernel-source-*", "nvidia-open-kernel-dkms",
    "nvidia-open-kernel-source", "nvidia-dkms*", "nvidia-headless*", "nvidia-utils*", "nvidia-compute-utils*",
    "nvidia-firmware*", "nvidia-smi", "nvidia-persistenced", "nvidia-modprobe", "nvidia-fabricmanager*",
    "nvidia-imex*", "nvidia-libopencl1", "nvidia-opencl-icd", "firmware-nvidia-gsp", "cuda-drivers*", "libcuda1*",
    "libcudadebugger1", "libnvcuvid1", "libnvoptix1", "libnvidia-*", "libnvsdm*", "xserver-xorg-video-nvidia*",
)  # fmt: skip
OTHER_PATTERNS = (
    "libnvidia-container*", "libnvidia-egl-*", "nvidia-driver-pinning*", "nvidia-driver-local-repo-*",
    "nvidia-driver-assistant", "libnvidia-ml-dev",
)  # fmt: skip
_RPM_ARCHITECTURES = ("x86_64", "aarch64", "noarch")
# Names that only rpm has.
_RPM_PATTERNS = ("kmod-nvidia*", "nvidia-kmod-common", "nvidia-fabric-manager*")


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of the packages that the driver comes from.

    `manager` (dpkg, rpm, None), `packages` ([{name, version, held}], None if unknown), `unheld` (names of driver
    packages that an upgrade may replace), `automatic_upgrades` (True, False, None): whether upgrades happen unasked and
    are not told to leave the driver alone.
    """
    outcome = evidence.run(DPKG_COMMAND, 20.0)
    if outcome.status != ABSENT:
        # dpkg-query ends with 1 and says so where no package matches.
        if not outcome.ok or (outcome.rc != 0 and not outcome.stdout and "no packages found" not in outcome.error_text):
            errors.unsuccessful(outcome)
            return _facts("dpkg", None, None)
        packages = _dpkg(outcome.text)
        return _facts("dpkg", packages, _automatic_upgrades(evidence, errors))
    outcome = evidence.run(RPM_COMMAND, 30.0)
    if outcome.status == ABSENT:
        return _facts(None, [], False)
    if not outcome.succeeded:
        errors.unsuccessful(outcome)
        return _facts("rpm", None, None)
    return _facts("rpm", _rpm(outcome.text, evidence), None)


def _facts(manager: str | None, packages: list[dict[str, Any]] | None, automatic: bool | None) -> dict[str, Any]:
    unheld = (
        None
        if packages is None
        else [item["name"] for item in packages if not item["held"] and is_driver_package(item["name"])]
    )
    if unheld and any(item["name"].startswith("nvidia-driver-pinning") for item in packages or ()):
        unheld = []  # NVIDIA's own way: a package that pins the branch by apt preferences
    return {"manager": manager, "packages": packages, "unheld": unheld, "automatic_upgrades": automatic}


def is_driver_package(name: str) -> bool:
    """Whether an upgrade of the package may put the driver's user space and its module apart."""
    return _matches(name, (*DRIVER_PATTERNS, *_RPM_PATTERNS)) and not _matches(name, OTHER_PATTERNS)


def _matches(name: str, patterns: tuple[str, ...]) -> bool:
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in patterns)


def _dpkg(text: str) -> list[dict[str, Any]]:
    found = []
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) == 4 and fields[3] == "installed":
            found.append({"name": fields[0], "version": fields[1], "held": fields[2] == "hold"})
    return found


def _rpm(text: str, evidence: Evidence) -> list[dict[str, Any]]:
    locks = []
    for path in _VERSION_LOCKS:
        locks += [
            line.strip() for line in evidence.read(path).text.splitlines() if line.strip() and not line.startswith("#")
        ]
    found = []
    for line in text.splitlines():
        name, tab, version = line.partition("\t")
        if tab:
            held = any(_locks(lock, name, version) for lock in locks)
            found.append({"name": name, "version": version, "held": held})
    return found


def _locks(lock: str, name: str, version: str) -> bool:
    """Whether a line of versionlock.list holds a package: `nvidia-driver-3:580.95.05-1.el9.*` as dnf writes it, a
    pattern, or a bare name. `!` before it excludes that version, which holds nothing."""
    pattern = re.sub(r"-\d+:", "-", lock)
    whole = "%s-%s" % (name, version)
    texts = (whole, *("%s.%s" % (whole, architecture) for architecture in _RPM_ARCHITECTURES))
    return lock == name or any(fnmatch.fnmatchcase(text, pattern) for text in texts)


def _automatic_upgrades(evidence: Evidence, errors: Errors) -> bool | None:
    periodic = evidence.read(_AUTO_UPGRADES)
    errors.unanswered(periodic, absent_is_fine=True)
    if periodic.status == ABSENT:
        return False
    if not periodic.ok:
        return None
    switches = re.findall(r'^\s*APT::Periodic::Unattended-Upgrade\s+"([^"]*)"', periodic.text, re.MULTILINE)
    if not switches or switches[-1] in ("0", ""):
        return False
    unattended = evidence.read(_UNATTENDED)
    errors.unanswered(unattended, absent_is_fine=True)
    if not unattended.ok and unattended.status != ABSENT:
        return None
    block = re.search(r"Package-Blacklist\s*\{([^}]*)\}", unattended.text)
    listed = re.findall(r'^\s*"([^"]+)"', block.group(1), re.MULTILINE) if block else []
    return not any("nvidia" in entry for entry in listed)
