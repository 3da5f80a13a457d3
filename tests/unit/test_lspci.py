"""lspci's text: recorded guests against sysfs, and public captures read as their notes say."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host import pci
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.pcie import lspci
from hypothesis import given, settings
from hypothesis import strategies as st

ROOT = Path(__file__).resolve().parents[2]
RECORDINGS = ROOT / "tests" / "fixtures" / "recordings" / "qemu"
SAMPLES = ROOT.parent / "shared" / "samples" / "lspci"
VVV = gzip.decompress((RECORDINGS / "tcg-q35-acs8-lspci-vvv.txt.gz").read_bytes()).decode()
TREE = (RECORDINGS / "tcg-q35-acs8-lspci-tv.txt").read_text()


def sysfs_paths() -> dict[str, tuple[list[str], str]]:
    paths = {}
    for line in (RECORDINGS / "tcg-q35-acs8-pci-sysfs.txt").read_text().splitlines():
        parts = line.rsplit("path=", 1)[1].split("/")[3:]
        paths[line.split()[0]] = (parts[1:-1], parts[0])
    return paths


def sample(name: str) -> str:
    path = SAMPLES / (name + ".txt")
    if not path.exists():
        pytest.skip("the public captures are not beside this checkout: %s" % path)
    return path.read_text(errors="replace")


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


# Public captures, each with the reading that its note establishes.
def test_a10_without_nvswitch() -> None:
    facts = assembled(sample("a10-nn-no-nvswitch"))
    assert (list(facts["gpus"]), facts["nvswitches"], facts["host_bridge"]) == (["0000:06:00.0"], [], "8086:29c0")
    assert facts["gpus"]["0000:06:00.0"]["name"] == "A10"
    assert (facts["unbound_gpus"], facts["unassigned_bars"]) == (None, None)  # -nn does not say


def test_gb200_root_ports_are_no_gpus() -> None:
    assert list(assembled(sample("gb200-domains-t-n-listing"))["gpus"]) == [
        "0008:01:00.0",
        "0009:01:00.0",
        "0018:01:00.0",
        "0019:01:00.0",
    ]


def test_downgraded_lines_without_devices_belong_to_nobody() -> None:
    assert lspci.parse_lspci(sample("grep-downgraded-without-device-lines")) == {}


def test_a_root_port_that_redirects() -> None:
    """ACSCtl counts, ACSCap does not; blank lines and blanks for tabs."""
    device = lspci.parse_lspci(sample("amd-gpp-acs-redirect-on"))["0000:00:01.1"]
    assert device["config"]["acs"]["control_raw"] == "001d"
    assert device["config"]["acs"]["capabilities"]["translation_blocking"] is True
    assert device["config"]["acs"]["control"]["translation_blocking"] is False


def test_four_gpus_below_two_switches_without_redirect() -> None:
    devices = lspci.parse_lspci(sample("rtxpro6000-pex890xx-acs-redirect-off"))
    facts = pci.assemble_facts(devices)
    assert list(facts["gpus"]) == ["0000:06:00.0", "0000:07:00.0", "0000:75:00.0", "0000:76:00.0"]
    assert {gpu["driver"] for gpu in facts["gpus"].values()} == {"nvidia"}
    assert {gpu["link"]["width"] for gpu in facts["gpus"].values()} == {16}  # idle at 2.5 GT/s, on all lanes
    assert {bar["size_mib"] for gpu in facts["gpus"].values() for bar in gpu["bars"] if bar["index"] == 2} == {131072}
    assert facts["unassigned_bars"] == []
    pair = next(pair for pair in facts["pairs"] if pair["gpus"] == ["0000:06:00.0", "0000:07:00.0"])
    assert (pair["relation"], pair["common"], pair["turn_ports"]) == (
        "same_switch",
        "0000:01:00.0",
        ["0000:02:03.0", "0000:02:04.0"],
    )
    ports = {address: device["config"]["acs"] for address, device in devices.items() if device["config"]["acs"]}
    assert {acs["control_raw"] for acs in ports.values()} == {"0011"}
    assert not any(
        acs["control"]["request_redirect"] or acs["control"]["completion_redirect"] for acs in ports.values()
    )
    # The excerpt ends below the second switch: what lies above it is unknown, and no pair across is called good.
    assert facts["redirecting_switch_ports"] is None


def test_unassigned_bars_and_one_lane() -> None:
    facts = assembled(sample("rk3588-3090-unassigned-x1"))
    assert [bar["index"] for bar in facts["unassigned_bars"]] == [1, 3]
    assert [(link["width"], link["max_width"]) for link in facts["width_reduced"]] == [(1, 16)]
    assert facts["unbound_gpus"] == ["0002:21:00.0"]  # "Kernel modules:" alone binds nothing
    assert facts["gpus"]["0002:21:00.0"]["resizable_bars"][1] == {"index": 1, "size_mib": 256, "max_size_mib": 32768}


def test_a_tree_of_another_domain_whose_columns_slipped() -> None:
    paths = lspci.parse_tree(sample("igx-orin-tree-marvell-switch"))
    gpu, nic = paths["0005:09:00.0"][0], paths["0005:03:00.0"][0]
    assert [bridge for bridge in gpu if bridge in nic] == ["0005:00:00.0", "0005:01:00.0"]
    assert paths["0007:01:00.0"] == (["0007:00:00.0"], "pci0007:00")


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(VVV)), st.integers(0, 400), st.text(max_size=40))
def test_cut_and_scrambled_listings_never_raise(start: int, length: int, junk: str) -> None:
    facts = assembled(VVV[:start] + junk + VVV[start + length :][:20000])
    assert set(facts) | {"source"} == set(pci.KEYS)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, len(TREE)), st.text(alphabet="-+\\|[]:. 0123456789abcdef\n", max_size=80))
def test_cut_and_scrambled_trees_never_raise(start: int, junk: str) -> None:
    lspci.parse_tree(TREE[:start] + junk + TREE[start:])
