"""Public captures of lspci, each with the reading that its note establishes."""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible.module_utils.gpu_host import pci
from ansible.module_utils.gpu_host.pcie import lspci
from captures import SAMPLES  # type: ignore[import-not-found]
from test_lspci import assembled  # type: ignore[import-not-found]


def sample(name: str) -> str:
    return (SAMPLES / "lspci" / (name + ".txt")).read_text(errors="replace")


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
