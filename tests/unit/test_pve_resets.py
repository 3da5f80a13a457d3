"""Cards that did not come back from a reset, and what is written for the boot without effect."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import card_resets, node_boot

OWNER = {"vmid": "101", "type": "vm", "name": "llm", "running": True, "onboot": True, "shared": False, "kept": False}
CARDS = {"0000:81:00.0": {"claimed_by": [OWNER]}}


@pytest.mark.parametrize(
    ("lines", "found"),
    [
        (["vfio-pci 0000:81:00.0: not ready 65535ms after FLR; giving up"], 1),
        (["vfio-pci 0000:81:00.0: not ready 32767ms after bus reset; waiting"], 1),
        (["vfio-pci 0000:81:00.0: Unable to change power state from D3cold to D0, device inaccessible"], 1),
        (["vfio-pci 0000:81:00.1: Unable to change power state from D3hot to D0, device inaccessible"], 1),
        # It came back, or is no GPU, or is what every slow card says.
        (["vfio-pci 0000:81:00.0: not ready 1023ms after FLR; waiting"], 0),
        (
            [
                "vfio-pci 0000:81:00.0: timed out waiting for pending transaction; performing function level reset "
                "anyway"
            ],
            0,
        ),
        (["pci 0000:81:00.0: not ready 16383ms after FLR; waiting", "pci 0000:81:00.0: ready 20000ms after FLR"], 0),
        (
            [
                "pci 0000:81:00.0: not ready 65535ms after FLR; giving up",
                "pci 0000:81:00.0: [10de:2bb5] type 00 class 0x030200",
            ],
            0,
        ),
        (["nvme 0000:a1:00.0: Unable to change power state from D3cold to D0, device inaccessible"], 0),
        (["", "garbage: \x00 0000:81:00.0", "vfio-pci 0000:81:00.0: vfio_ecap_init: hiding ecap 0x1e@0x258"], 0),
    ],
)
def test_failed_resets(lines: list[str], found: int) -> None:
    text = "".join("[ %d.000000] %s\n" % item for item in enumerate(lines))
    result = card_resets.find_failed_resets(text, CARDS)
    assert len(result) == found
    assert all(item["owners"] == ['VM 101 "llm" (running)'] for item in result)


def boot(**more: Any) -> dict[str, Any]:
    known = {
        "ignored": [],
        "ignored_source": "/etc/default/grub",
        "loader": "systemd-boot",
        "source": "/etc/kernel/cmdline",
    }
    return {**known, "live": ["quiet"], "configured": ["quiet"], **more}


def test_parameters_in_the_file_of_the_other_loader() -> None:
    found = node_boot.find_boot_faults(boot(ignored=["iommu=pt"]), "6.14.11-3-pve", True, True)
    assert found == [
        "/etc/default/grub has iommu=pt, and this host boots by systemd-boot, which reads /etc/kernel/cmdline"
    ]
    assert node_boot.find_boot_faults(boot(), "6.14.11-3-pve", True, True) == []
    assert node_boot.find_boot_faults(boot(ignored=None), "6.14.11-3-pve", True, True) is None


@pytest.mark.parametrize(
    ("kernel", "iommu_on", "needed", "words", "faults"),
    [
        ("6.5.13-1-pve", False, True, ["quiet"], 1),
        ("6.5.13-1-pve", False, True, ["quiet", "intel_iommu=on"], 0),
        ("6.5.13-1-pve", True, True, ["quiet"], 0),
        ("6.5.13-1-pve", False, False, ["quiet"], 0),
        ("6.8.12-4-pve", False, True, ["quiet"], 0),
        (None, False, True, ["quiet"], 0),
    ],
)
def test_an_option_that_older_kernels_need(
    kernel: str | None, iommu_on: bool, needed: bool, words: list[str], faults: int
) -> None:
    found = node_boot.find_boot_faults(boot(live=words, configured=words), kernel, iommu_on, needed)
    assert found is not None and len(found) == faults
