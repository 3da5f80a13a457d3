"""lspci's text: recorded guests against sysfs, and public captures read as their notes say."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

from ansible.module_utils.gpu_host import pci
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.pcie import lspci
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "recordings" / "qemu"
VVV = gzip.decompress((RECORDINGS / "tcg-q35-acs8-lspci-vvv.txt.gz").read_bytes()).decode()
TREE = (RECORDINGS / "tcg-q35-acs8-lspci-tv.txt").read_text()


def sysfs_paths() -> dict[str, tuple[list[str], str]]:
    paths = {}
    for line in (RECORDINGS / "tcg-q35-acs8-pci-sysfs.txt").read_text().splitlines():
        parts = line.rsplit("path=", 1)[1].split("/")[3:]
        paths[line.split()[0]] = (parts[1:-1], parts[0])
    return paths


def assembled(text: str) -> dict[str, Any]:
    return pci.assemble_facts(lspci.parse_lspci(text))


def test_the_tree_gives_the_paths_that_sysfs_gives() -> None:
    assert lspci.parse_tree(TREE) == sysfs_paths()


def test_bus_numbers_give_the_paths_that_sysfs_gives() -> None:
    assert {
        address: (device["path"], device["root_complex"]) for address, device in lspci.parse_lspci(VVV).items()
    } == sysfs_paths()


def test_a_whole_block_tells_driver_numa_node_and_group() -> None:
    device = lspci.parse_lspci(VVV)["0000:21:00.0"]
    assert (device["driver"], device["numa_node"], device["iommu_group"], device["class"]) == ("e1000e", 0, "31", None)
    assert [(bar["index"], bar["kind"], bar["size_mib"]) for bar in device["bars"]][:2] == [
        (0, "memory", 0.125),
        (1, "memory", 0.125),
    ]


def test_a_bundle_that_lacks_sysfs_is_read_from_lspci() -> None:
    text = VVV.replace("Unclassified device [00ff]: Device 1234:11e8", "3D controller: NVIDIA Corporation Device 2bb5")
    assert text != VVV
    records = [
        {"run": argv, "status": "ok", "rc": 0, "stdout": out}
        for argv, out in ((["lspci", "-vvv"], text), (["lspci", "-tv"], TREE))
    ]
    errors = Errors("pci")
    facts = pci.gather(BundleEvidence({}, records), errors)
    assert facts["source"] == "lspci"
    assert list(facts["gpus"]) == ["0000:01:00.0", "0000:b1:00.0", "0000:cb:00.0", "0000:cc:00.0"]
    assert [port["address"] for port in facts["redirecting_root_ports"]] == ["0000:b0:00.0", "0000:c8:00.0"]
    assert {entry["source"] for entry in errors.entries} == {"/sys/bus/pci/devices"}


def test_without_root_lspci_denies_access_and_acs_is_unknown() -> None:
    lines = (
        "Control: I/O+",
        "Bus: primary=00, secondary=01, subordinate=08",
        "Capabilities: <access denied>",
        "Kernel driver in use: pcieport",
    )
    device = lspci.parse_lspci("00:01.1 PCI bridge: X\n" + "".join("\t%s\n" % line for line in lines))["0000:00:01.1"]
    assert (device["config"]["acs"], device["config"]["express"], device["config"]["secondary_bus"]) == (None, None, 1)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(VVV)), st.integers(0, 400), st.text(max_size=40))
def test_cut_and_scrambled_listings_never_raise(start: int, length: int, junk: str) -> None:
    facts = assembled(VVV[:start] + junk + VVV[start + length :][:20000])
    assert set(facts) | {"source"} == set(pci.KEYS)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(TREE)), st.text(alphabet="-+\\|[]:. 0123456789abcdef\n", max_size=80))
def test_cut_and_scrambled_trees_never_raise(start: int, junk: str) -> None:
    lspci.parse_tree(TREE[:start] + junk + TREE[start:])
