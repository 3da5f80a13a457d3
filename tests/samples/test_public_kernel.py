"""Public command lines of kernels, read as the note beside each says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible.module_utils.gpu_host import kernel
from ansible.module_utils.gpu_host.linux import kernel_cmdline
from captures import SAMPLES  # type: ignore[import-not-found]
from host_evidence import gathered  # type: ignore[import-not-found]
from test_kernel import host  # type: ignore[import-not-found]


class TestSamples:
    def sample(self, name: str) -> str:
        return (SAMPLES / "cmdline" / (name + ".txt")).read_text()

    def test_asus(self) -> None:
        found: dict[str, Any] = kernel_cmdline.last_values(
            kernel_cmdline.parse_command_line(self.sample("asus-esc8000a-amd-iommu-off"))
        )
        assert (found["amd_iommu"], found["iommu"], found["mitigations"]) == ("off", "off", "off")
        assert "pcie_aspm" not in found and "pcie_port_pm" not in found

    def test_deepops_quote_over_two_lines(self) -> None:
        facts, _errors = gathered(kernel, host(grub=self.sample("deepops-grub-broken-quote-two-lines")))
        assert facts["configured"][0]["words"] == [
            "quiet",
            "splash",
            "intel_iommu=on",
            "vfio_iommu_type1.allow_unsafe_interrupts=1",
            "iommu=pt",
        ]

    def test_pve(self) -> None:
        running, grub = self.sample("pve-amd-iommu-off").split("# /etc/default/grub\n")
        facts, _errors = gathered(kernel, host(running.splitlines()[1], grub=grub))
        assert facts["values"]["amd_iommu"] == "off" and facts["values"]["pcie_aspm"] == "off"
        assert facts["pending_words"] == [] and facts["boot_loader"] == "grub"
