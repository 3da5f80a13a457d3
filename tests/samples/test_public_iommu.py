"""Public boot logs and command lines: the state of the IOMMU that they tell."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import iommu
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from captures import SAMPLES  # type: ignore[import-not-found]


def test_a_public_boot_log_with_the_iommu_off() -> None:
    path = SAMPLES / "dmesg" / "rtxpro6000-iommu-off-but-default-domain-translated.txt"
    evidence = BundleEvidence({}, [{"run": ["dmesg"], "status": "ok", "rc": 0, "stdout": path.read_text()}])
    facts = iommu.gather(evidence, Errors("iommu"))
    assert (facts["state"], facts["source"]) == ("off", "kernel_log")


@pytest.mark.parametrize("name", ["asus-esc8000a-amd-iommu-off", "pve-amd-iommu-off"])
def test_public_command_lines_with_the_iommu_off(name: str) -> None:
    path = SAMPLES / "cmdline" / (name + ".txt")
    evidence = BundleEvidence({}, [{"read": "/proc/cmdline", "status": "ok", "text": path.read_text()}])
    assert iommu.gather(evidence, Errors("iommu"))["state"] == "off"
