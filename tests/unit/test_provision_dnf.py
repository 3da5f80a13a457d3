"""What would be asked of dnf on RHEL 9 and 10: plans from the table, printed and compared; none was ever run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml
from ansible.module_utils.gpu_provision import dnf_planning, systems
from ansible.module_utils.gpu_provision.systems import PlanError

ROOT = Path(__file__).resolve().parents[2]
SYSTEMS = yaml.safe_load((ROOT / "roles/nvidia_apt/vars/main.yml").read_text())["nvidia_apt_systems"]
DNF = sorted(key for key, row in SYSTEMS.items() if row.get("family") == "dnf")


def plan(key: str, kind: str = "open", architecture: str = "x86_64", **options: Any) -> dict[str, Any]:
    own = {"key": key, "label": "RHEL " + key[4:], "distribution": "rhel", "architecture": architecture}
    own.update(options.pop("system", {}))
    given: dict[str, Any] = {
        "source": "nvidia", "repository": {}, "package_set": "nvidia_" + kind, "packages": [], "headers": True,
        "version": "580", "hold": True, **options,
    }  # fmt: skip
    return dnf_planning.plan_packages(systems.choose_system(own, SYSTEMS), own, given)


# What is asked for -> the lines of the plan, word for word.
PLANS: dict[str, tuple[dict[str, Any], list[str]]] = {
    "rhel9": (
        {},
        [
            "enable EPEL (for dkms)",
            "enable codeready-builder-for-rhel-9-x86_64-rpms (crb on a rebuild)",
            "rpm --import https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/D42D0685.pub"
            "  # 610C7B14E068A878070DA4E99CD0A493D42D0685",
            "dnf config-manager --add-repo https://developer.download.nvidia.com/compute/cuda/repos/rhel9/x86_64/",
            "dnf module enable nvidia-driver:580-open",
            "dnf install nvidia-driver-cuda-580.* kmod-nvidia-open-dkms-580.* nvidia-persistenced-580.* gcc-c++ "
            "kernel-devel-matched kernel-headers",
            "dnf install python3-dnf-plugin-versionlock",
            "dnf versionlock add '*nvidia*580*' 'libnvsdm*580*'",
        ],
    ),
    "rhel10": (
        {"architecture": "aarch64", "version": "595.45.04", "packages": ["nvidia-fabricmanager", "nvlsm"]},
        [
            "enable EPEL (for dkms)",
            "enable codeready-builder-for-rhel-10-aarch64-rpms (crb on a rebuild)",
            "rpm --import https://developer.download.nvidia.com/compute/cuda/repos/rhel10/sbsa/CDF6BA43.pub"
            "  # its fingerprint is to be given",
            "dnf config-manager --add-repo https://developer.download.nvidia.com/compute/cuda/repos/rhel10/sbsa/",
            "dnf install nvidia-driver-cuda-595.45.04-* kmod-nvidia-open-dkms-595.45.04-* "
            "nvidia-persistenced-595.45.04-* gcc-c++ nvidia-fabricmanager-595.45.04-* nvlsm kernel-devel-matched "
            "kernel-headers",
            "dnf install python3-dnf-plugin-versionlock",
            "dnf versionlock add '*nvidia*595.45.04*' 'libnvsdm*595.45.04*'",
        ],
    ),
}


@pytest.mark.parametrize("key", PLANS)
def test_the_plan_word_for_word(key: str) -> None:
    options, lines = PLANS[key]
    assert plan(key, **options)["lines"] == lines


def test_every_rhel_is_planned() -> None:
    assert sorted(PLANS) == DNF


@pytest.mark.parametrize("key", DNF)
def test_a_container_gets_no_module(key: str) -> None:
    """nvidia-driver-cuda would bring one: it needs nvidia-kmod-common, and that needs nvidia-kmod."""
    found = plan(key, "userspace", headers=False)
    assert found["packages"] == ["nvidia-driver-cuda-libs-580.*"] and found["needs"] == []


@pytest.mark.parametrize("key", DNF)
def test_modules_that_are_built_already(key: str) -> None:
    flavour = SYSTEMS[key]["precompiled"]["flavour"]
    found = plan(key, flavour, precompiled=True)
    assert not [name for name in found["packages"] if "dkms" in name or name.startswith("kernel-devel")]
    assert found["stream"] == ("nvidia-driver:580" if key == "rhel9" else "")
    other = {"open": "proprietary", "proprietary": "open"}[flavour]
    with pytest.raises(PlanError, match="nvidia_driver_open_modules asks for the others"):
        plan(key, other, precompiled=True)
    for system in ({"distribution": "rocky", "label": "Rocky Linux 9.5"}, {"architecture": "aarch64"}):
        with pytest.raises(PlanError, match="for the kernels of RHEL itself on x86_64"):
            plan(key, flavour, precompiled=True, system=system)


@pytest.mark.parametrize("key", DNF)
def test_the_other_flavour_and_older_names(key: str) -> None:
    found = plan(key, "proprietary", version="575", packages=["nvidia-fabricmanager"])
    assert "kmod-nvidia-latest-dkms-575.*" in found["packages"] and "nvidia-fabric-manager-575.*" in found["packages"]
    assert found["stream"] == ("nvidia-driver:575-dkms" if key == "rhel9" else "")


@pytest.mark.parametrize("key", DNF)
def test_without_a_hold_nothing_is_locked(key: str) -> None:
    found = plan(key, hold=False)
    assert found["lock"] == [] and found["plugins"] == []


def test_what_the_user_gives_of_the_repository_counts() -> None:
    found = plan(
        "rhel10", repository={"uris": "https://mirror.example/rhel10/", "fingerprints": ["A" * 40], "key_url": ""}
    )
    assert found["repository"]["uris"] == "https://mirror.example/rhel10/"
    assert found["repository"]["key_url"].endswith("CDF6BA43.pub") and "A" * 40 in "\n".join(found["lines"])


def test_there_is_no_driver_of_the_distribution() -> None:
    with pytest.raises(PlanError, match="no driver of the distribution in the table for RHEL 9"):
        plan("rhel9", source="distribution")
