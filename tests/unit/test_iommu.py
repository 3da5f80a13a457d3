"""The IOMMU's state as the groups tell it, and what other words are worth."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import iommu
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from pci_tree import Tree

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "recordings" / "qemu"
MISLEADING = "[    1.235176] iommu: Default domain type: Translated \n"


def gathered(tree: Tree) -> dict[str, Any]:
    return iommu.gather(tree.evidence(), Errors("iommu"))


def cards(*types: str | None) -> Tree:
    tree = Tree().directory("/sys/class/iommu", {"ivhd0": "x"}).file("/proc/cmdline", "ro iommu=pt quiet\n")
    for number, kind in enumerate(types):
        tree.device(
            "0000:%02x:00.0" % (number + 1), group=None if kind is None else str(number + 10), group_type=kind or ""
        )
    return tree


@pytest.mark.parametrize(
    ("types", "state"),
    [
        (["identity", "identity"], "identity"),
        (["DMA-FQ", "DMA-FQ"], "translated"),
        (["identity", "DMA"], "translated"),  # one is enough
        ([None, None], "off"),
    ],
)
def test_the_groups_of_the_gpus_decide(types: list[str | None], state: str) -> None:
    facts = gathered(cards(*types))
    assert (facts["state"], facts["source"]) == (state, "iommu_groups")


def test_translated_gpus_are_named() -> None:
    assert gathered(cards("identity", "DMA"))["translated_gpus"] == ["0000:02:00.0"]


def test_a_word_that_is_not_known_is_no_state() -> None:
    tree = cards("blocked")
    del tree.records["read", "/proc/cmdline"]
    facts = gathered(tree)
    assert (facts["state"], facts["translated_gpus"], facts["gpus"]["0000:01:00.0"]["type"]) == (None, None, "blocked")


def test_the_log_alone_never_makes_it_translated() -> None:
    """i440FX guest of the recordings: the line is there, an IOMMU is not."""
    log = (RECORDINGS / "tcg-i440fx-dmesg-iommu.txt").read_text()
    assert MISLEADING[15:] in log
    tree = cards(None).directory("/sys/class/iommu").command(["dmesg"], log)
    facts = gathered(tree)
    assert (facts["state"], facts["default_domain"]) == ("off", "Translated")


def test_a_host_without_gpus_goes_by_its_other_devices() -> None:
    tree = Tree().device("0000:05:00.0", ids="8086:10d3", device_class="20000", group="1", group_type="identity")
    assert gathered(tree)["state"] == "identity"
    tree.device("0000:06:00.0", ids="8086:10d3", device_class="20000", group="2", group_type="DMA-FQ")
    assert gathered(tree)["state"] == "translated"


# Groups
def test_other_functions_and_bridges_do_not_share() -> None:
    tree = cards().bridge("0000:00:01.1", group="5").device("0000:01:00.0", group="5")
    tree.device("0000:01:00.1", ids="10de:22e8", device_class="40300", group="5")
    assert gathered(tree)["shared_group_gpus"] == []
    tree.device("0000:02:00.0", ids="144d:a80a", device_class="10802", group="5")
    assert gathered(tree)["shared_group_gpus"] == [{"gpu": "0000:01:00.0", "group": "5", "others": ["0000:02:00.0"]}]


@pytest.mark.parametrize(("name", "state"), [("tcg-q35-acs8", "translated"), ("tcg-q35-intel-iommu", "identity")])
def test_recorded_guests(name: str, state: str) -> None:
    """Group numbers and types as recorded; the guest's `edu` device stands for the GPU."""
    types = {}
    for line in (RECORDINGS / (name + "-iommu_groups.txt")).read_text().splitlines():
        if line.startswith("group "):
            types[line.split()[1].rstrip(":")] = line.rsplit("type=", 1)[1]
    tree = Tree().command(["dmesg"], (RECORDINGS / (name + "-dmesg-iommu.txt")).read_text())
    for line in (RECORDINGS / (name + "-pci-sysfs.txt")).read_text().splitlines():
        values = dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        gpu = values["device"] == "0x11e8"
        ids = "10de:2bb5" if gpu else values["vendor"][2:] + ":" + values["device"][2:]
        tree.device(
            line.split()[0],
            device_class="30200" if gpu else values["class"][2:],
            ids=ids,
            group=values["iommu_group"] or None,
            group_type=types.get(values["iommu_group"], ""),
        )
    facts = gathered(tree)
    assert facts["state"] == state
    assert facts["shared_group_gpus"] == []  # 01:00.0 shares its group with its root port only


# Without sysfs: the command line and the log together
@pytest.mark.parametrize(
    ("cmdline", "log", "state", "source"),
    [
        ("ro amd_iommu=off", MISLEADING, "off", "cmdline"),
        ("ro iommu=off", "", "off", "cmdline"),
        ("ro intel_iommu=off", "pci 0000:00:00.0: Adding to iommu group 0\n", None, None),  # they contradict each other
        ("ro intel_iommu=on", "DMAR: IOMMU enabled\n" + MISLEADING, "translated", "kernel_log"),
        (
            "ro iommu=pt",
            "AMD-Vi: Interrupt remapping enabled\niommu: Default domain type: Passthrough (set via kernel command "
            "line)\n",
            "identity",
            "kernel_log",
        ),
        ("ro iommu=pt", "AMD-Vi: Interrupt remapping enabled\n", "identity", "cmdline"),
        ("ro iommu=pt", "", None, None),  # asked for, and whether there is an IOMMU is unknown
        ("ro quiet", MISLEADING, None, None),
        (
            "ro amd_iommu=on",
            MISLEADING + "AMD-Vi: AMD IOMMUv2 functionality not available on this system - This is not a bug.\n",
            None,
            None,
        ),
    ],
)
def test_words(cmdline: str, log: str, state: str | None, source: str | None) -> None:
    records = [
        {"read": "/proc/cmdline", "status": "ok", "text": cmdline + "\n"},
        {"run": ["dmesg"], "status": "ok", "rc": 0, "stdout": log},
    ]
    evidence = BundleEvidence({}, records)
    errors = Errors("iommu")
    facts = iommu.gather(evidence, errors)
    assert (facts["state"], facts["source"]) == (state, source)
    assert facts["gpus"] is None
    assert errors.entries


def test_an_option_that_only_looks_like_one() -> None:
    tree = cards().file("/proc/cmdline", "ro note=iommu=off pcie_acs_override=downstream iommu=pt\n")
    assert gathered(tree)["options"] == ["pcie_acs_override=downstream", "iommu=pt"]


def test_no_evidence_is_no_state() -> None:
    errors = Errors("iommu")
    facts = iommu.gather(BundleEvidence({}, []), errors)
    assert (facts["state"], facts["translated_gpus"], facts["shared_group_gpus"], facts["hardware"]) == (
        None,
        None,
        None,
        None,
    )
    assert {"/proc/cmdline", "/sys/kernel/iommu_groups"} <= {entry["source"] for entry in errors.entries}
