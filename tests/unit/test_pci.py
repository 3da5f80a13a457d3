"""PCI facts from a synthetic sysfs, from recordings of guests that QEMU ran, and from lspci's text."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pci_tree
import pytest
from ansible.module_utils.gpu_host import pci
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.pcie import config_space, pci_devices
from hypothesis import given, settings
from hypothesis import strategies as st
from pci_tree import DOWNSTREAM, REDIRECT, UPSTREAM, Tree

RECORDINGS = Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "qemu"
A, B = "0000:01:00.0", "0000:02:00.0"


def gathered(tree: Tree) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    errors = Errors("pci")
    return pci.gather(tree.evidence(), errors), errors.entries


def two_direct(**second: Any) -> Tree:
    tree = Tree().bridge("0000:00:01.1").device(A, ("0000:00:01.1",))
    return tree.bridge("0000:40:01.1", root="pci0000:40").device(B, ("0000:40:01.1",), root="pci0000:40", **second)


def below_a_switch(acs: int = pci_tree.NO_REDIRECT) -> Tree:
    up = ("0000:00:01.1", "0000:01:00.0")
    tree = Tree().bridge("0000:00:01.1").bridge("0000:01:00.0", up[:1], kind=UPSTREAM, acs=None, secondary=2)
    tree.bridge("0000:02:00.0", up, kind=DOWNSTREAM, secondary=3).bridge(
        "0000:02:01.0", up, kind=DOWNSTREAM, acs=acs, secondary=4
    )
    return tree.device("0000:03:00.0", (*up, "0000:02:00.0")).device("0000:04:00.0", (*up, "0000:02:01.0"))


def test_a_healthy_pair_of_cards() -> None:
    facts, errors = gathered(two_direct())
    assert errors == []
    assert set(facts) == set(pci.KEYS)
    gpu = facts["gpus"][A]
    assert (gpu["name"], gpu["driver"], gpu["bound"], gpu["numa_node"]) == (
        "RTX PRO 6000 Blackwell Server Edition",
        "nvidia",
        True,
        0,
    )
    assert gpu["link"] == {"speed_gt_s": 2.5, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
    assert [(bar["index"], bar["size_mib"], bar["assigned"]) for bar in gpu["bars"]] == [
        (0, 64, True),
        (2, 131072, True),
        (4, 32, True),
    ]
    assert facts["bridges"]["0000:40:01.1"]["kind"] == "root_port"
    assert facts["pairs"] == [
        {
            "gpus": [A, B],
            "relation": "different_root_complex",
            "common": None,
            "turn_ports": ["0000:00:01.1", "0000:40:01.1"],
        }
    ]
    offenders = [name for name, value in facts.items() if isinstance(value, list) and name not in ("pairs",) and value]
    assert offenders == []


def test_a_host_without_pci_has_no_gpus() -> None:
    errors = Errors("pci")
    facts = pci.gather(BundleEvidence({}, [{"list": "/sys/bus/pci/devices", "status": "absent"}]), errors)
    assert (facts["gpus"], facts["unbound_gpus"], errors.entries) == ({}, [], [])


def test_a_bundle_without_any_pci_evidence_is_unknown() -> None:
    errors = Errors("pci")
    facts = pci.gather(BundleEvidence({}, []), errors)
    assert set(facts.values()) == {None}
    assert {entry["source"] for entry in errors.entries} == {"/sys/bus/pci/devices", "lspci"}


# BARs: what the kernel shows when it found no room.
UNSET = (0, 0x1FFFFFFFFF, 0x20000000 | pci_tree.MEM64)


@pytest.mark.parametrize(("bar2", "size"), [(UNSET, 131072), ((0, 0x1FFFFFFFFF, pci_tree.MEM64), 131072)])
def test_a_bar_without_an_address(bar2: tuple[int, int, int], size: int) -> None:
    facts, _ = gathered(two_direct(resource=pci_tree.bars(bar2)))
    assert facts["unassigned_bars"] == [{"gpu": B, "index": 2, "size_mib": size}]


def test_a_bar_that_the_kernel_cleared_shows_in_the_register() -> None:
    space = bytearray(pci_tree.config())
    space[0x18] = 0x0C  # BAR 2: 64-bit, prefetchable, no address
    facts, _ = gathered(two_direct(resource=pci_tree.bars((0, 0, 0)), space=bytes(space)))
    assert facts["unassigned_bars"] == [{"gpu": B, "index": 2, "size_mib": None}]


def test_bar_0_of_a_gpu_always_exists() -> None:
    facts, _ = gathered(two_direct(resource="0x0 0x0 0x0\n" * 13))
    assert facts["unassigned_bars"][0] == {"gpu": B, "index": 0, "size_mib": None}


def test_an_io_bar_without_an_address_is_no_fault() -> None:
    rows = pci_tree.bars().splitlines()
    rows[5] = "0x0000000000000000 0x000000000000007f 0x0000000020040101"
    facts, _ = gathered(two_direct(resource="\n".join(rows) + "\n"))
    assert facts["unassigned_bars"] == []
    assert [bar["kind"] for bar in facts["gpus"][B]["bars"]] == ["memory", "memory", "memory", "io"]


@pytest.mark.parametrize("driver", ["nvidia", "vfio-pci", None])
def test_unreadable_bars_are_unknown(driver: str | None) -> None:
    facts, errors = gathered(two_direct(resource="junk\n", driver=driver))
    assert facts["unassigned_bars"] is None
    assert "is not a list of resources: 'junk'" in {entry["problem"] for entry in errors}


@pytest.mark.parametrize(("driver", "expected"), [("nvidia", []), ("vfio-pci", None), (None, None)])
def test_where_the_kernel_shows_no_bars_the_driver_vouches_for_them(driver: str | None, expected: Any) -> None:
    tree = two_direct(driver=driver)
    path = next(name for _call, name in tree.records if name.endswith(B + "/resource"))
    tree.records["read", path] = {"read": path, "status": "absent"}
    facts, _errors = gathered(tree)
    assert facts["unassigned_bars"] == expected


def test_virtual_functions_and_the_rom_are_no_bars() -> None:
    text = pci_tree.bars() + "0x0000000000000000 0x00000000001fffff 0x0000000020140204\n" * 4
    bars = pci_devices.parse_resource(text, None)
    assert bars is not None
    assert [bar["index"] for bar in bars] == [0, 2, 4]


# Drivers
@pytest.mark.parametrize(
    ("driver", "where", "value"),
    [
        (None, "unbound_gpus", [B]),
        ("vfio-pci", "vfio_gpus", [B]),
        ("nouveau", "foreign_driver_gpus", [{"gpu": B, "driver": "nouveau"}]),
    ],
)
def test_who_holds_a_gpu(driver: str | None, where: str, value: Any) -> None:
    facts, _ = gathered(two_direct(driver=driver))
    assert {name: facts[name] for name in ("unbound_gpus", "vfio_gpus", "foreign_driver_gpus")} == {
        "unbound_gpus": [],
        "vfio_gpus": [],
        "foreign_driver_gpus": [],
        where: value,
    }


# Links
def test_a_card_on_fewer_lanes() -> None:
    facts, _ = gathered(two_direct(width="8"))
    assert facts["width_reduced"] == [
        {"address": B, "width": 8, "max_width": 16, "port": "0000:40:01.1", "port_max_width": 16, "gpus": [B]}
    ]


def test_a_switch_on_fewer_lanes_slows_all_gpus_below_it() -> None:
    tree = below_a_switch()
    tree.file("/sys/bus/pci/devices/0000:01:00.0/current_link_width", "4\n")
    facts, _ = gathered(tree)
    assert [(link["address"], link["gpus"]) for link in facts["width_reduced"]] == [
        ("0000:01:00.0", ["0000:03:00.0", "0000:04:00.0"])
    ]


def test_an_idle_gpu_at_low_speed_is_not_reduced() -> None:
    assert gathered(two_direct())[0]["width_reduced"] == []  # 2.5 of 32 GT/s


def test_a_conventional_device_has_no_link() -> None:
    space = bytearray(256)
    space[:16] = pci_tree.config()[:16]
    space[6] = 0
    tree = Tree().device(A, space=bytes(space), width=None)
    facts, _ = gathered(tree)
    assert (facts["gpus"][A]["express"], facts["width_reduced"]) == (False, [])


def test_a_port_that_names_no_width() -> None:
    """The downstream ports of QEMU's switch: the kernel shows a maximum of 0, which is no width."""
    space = pci_tree.config(DOWNSTREAM, max_width=0)
    tree = Tree().bridge("0000:00:01.1").device(A, ("0000:00:01.1",), width="8")
    tree.bridge("0000:00:01.1", kind=DOWNSTREAM, space=space, max_width="0", width="8")
    facts, _ = gathered(tree)
    assert facts["bridges"]["0000:00:01.1"]["link"]["max_width"] is None
    assert [(link["address"], link["port_max_width"]) for link in facts["width_reduced"]] == [(A, None)]


def test_the_width_comes_from_the_registers_where_sysfs_lacks_it() -> None:
    facts, _ = gathered(Tree().device(A, space=pci_tree.config(width=4), width=None))
    assert [link["width"] for link in facts["width_reduced"]] == [4]


# ACS
def test_a_redirecting_port_of_a_switch() -> None:
    facts, _ = gathered(below_a_switch(REDIRECT))
    assert facts["pairs"][0]["relation"] == "same_switch"
    assert facts["redirecting_switch_ports"] == [
        {
            "address": "0000:02:01.0",
            "kind": "downstream",
            "control_raw": "001d",
            "redirects": ["request_redirect", "completion_redirect"],
            "pairs": ["0000:03:00.0 0000:04:00.0"],
        }
    ]
    assert facts["redirecting_root_ports"] == []


def test_without_root_acs_is_unknown_and_says_that_it_needs_root() -> None:
    tree = below_a_switch(REDIRECT)
    for record in list(tree.records.values()):
        if record.get("read", "").endswith("/config"):
            tree.file(record["read"], pci_tree.config(secondary=2)[:64])
    facts, errors = gathered(tree)
    assert facts["redirecting_switch_ports"] is None
    assert facts["acs_unreadable"] == ["0000:02:00.0", "0000:02:01.0"]
    assert [entry["needs_root"] for entry in errors] == [True]
    assert facts["width_reduced"] == []  # sysfs tells the width to anyone


def test_a_port_that_does_not_answer_is_unknown() -> None:
    tree = below_a_switch()
    tree.file("/sys/bus/pci/devices/0000:02:01.0/config", b"\xff" * 4096)
    facts, errors = gathered(tree)
    assert facts["redirecting_switch_ports"] is None
    assert any("does not answer" in entry["problem"] for entry in errors)


# The wider picture
def test_only_what_matters_is_read_in_detail() -> None:
    tree = two_direct()
    tree.device("0000:03:00.0", ids="8086:10d3", device_class="20000", driver="e1000e")
    evidence = tree.evidence()
    devices = pci_devices.read_inventory(evidence, Errors("pci"))
    assert devices is not None
    assert pci.choose_devices(devices) == {A, B, "0000:00:01.1", "0000:40:01.1"}


def test_bridges_and_audio_of_nvidia_are_no_gpus() -> None:
    tree = two_direct()
    tree.device("0000:01:00.1", ("0000:00:01.1",), ids="10de:22e8", device_class="40300", driver="snd_hda_intel")
    tree.device("0000:50:00.0", ids="10de:22b1", device_class="60400", driver="pcieport")
    tree.device("0000:51:00.0", ids="10de:22a3", device_class="68000", driver="nvidia-nvswitch")
    facts, _ = gathered(tree)
    assert list(facts["gpus"]) == [A, B]
    assert facts["gpus"][A]["audio"] == {"address": "0000:01:00.1", "driver": "snd_hda_intel"}
    assert facts["nvswitches"] == ["0000:51:00.0"]


def test_numa_node_minus_one_is_not_node_minus_one() -> None:
    facts, _ = gathered(two_direct(node=-1))
    assert (facts["gpus"][B]["numa_node"], facts["gpus_without_numa_node"]) == (None, [B])


def test_sysfs_without_uevent_is_read_from_single_files() -> None:
    tree = two_direct()
    del tree.records["read", "/sys/bus/pci/devices/%s/uevent" % A]
    tree.file("/sys/bus/pci/devices/%s/vendor" % A, "0x10de\n").file("/sys/bus/pci/devices/%s/device" % A, "0x2bb5\n")
    tree.file("/sys/bus/pci/devices/%s/class" % A, "0x030200\n").directory(
        "/sys/bus/pci/devices/" + A, {"driver": "../../../bus/pci/drivers/nvidia"}
    )
    facts, _ = gathered(tree)
    assert facts["gpus"][A]["driver"] == "nvidia"


def test_the_path_below_a_domain_of_its_own_begins_at_the_last_root() -> None:
    target = "../../../devices/pci0000:00/0000:00:0e.0/pci10000:00/10000:00:02.0/10000:01:00.0"
    assert pci_devices.path_of(target, "10000:01:00.0") == (["10000:00:02.0"], "pci10000:00")
    assert pci_devices.path_of(None, A) == (None, None)


def recorded_as_gpus(name: str, which: str) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    """A guest that QEMU ran, its `which` devices taken for GPUs.

    Sysfs as recorded, configuration space from lspci's dump.
    """
    tree = Tree()
    dump = gzip.decompress((RECORDINGS / (name + "-lspci-vvvxxxx.txt.gz")).read_bytes()).decode()
    spaces: dict[str, bytes] = {}
    at = ""
    for line in dump.splitlines():
        if pci.lspci.HEADER.match(line):
            at = pci.lspci.full_address(line.split()[0])
        row = pci.lspci.HEX_ROW.match(line)
        if row:
            spaces[at] = spaces.get(at, b"") + bytes.fromhex(row.group(2))
    for line in (RECORDINGS / (name + "-pci-sysfs.txt")).read_text().splitlines():
        address, values = line.split()[0], dict(word.split("=", 1) for word in line.split()[1:] if "=" in word)
        parts = values["path"].split("/")[3:]
        ids = "%s:%s" % (values["vendor"][2:], values["device"][2:])
        is_gpu = ids == which
        tree.device(
            address,
            tuple(parts[1:-1]),
            root=parts[0],
            ids="10de:2bb5" if is_gpu else ids,
            device_class="30200" if is_gpu else values["class"][2:],
            driver=values["driver"] or None,
            space=spaces[address],
            node=int(values["numa"]),
            width=None,
        )
    return gathered(tree)


def test_a_recorded_guest_with_a_switch_and_two_numa_nodes() -> None:
    """Root complexes c8 (a switch with two `edu` devices), b0 and 00 (a root port without ACS)."""
    facts, _ = recorded_as_gpus("tcg-q35-acs8", "1234:11e8")
    assert list(facts["gpus"]) == ["0000:01:00.0", "0000:b1:00.0", "0000:cb:00.0", "0000:cc:00.0"]
    relations = {tuple(pair["gpus"]): pair["relation"] for pair in facts["pairs"]}
    assert relations.pop(("0000:cb:00.0", "0000:cc:00.0")) == "same_switch"
    assert set(relations.values()) == {"different_root_complex"}
    kinds = {address: bridge["kind"] for address, bridge in facts["bridges"].items()}
    assert kinds == {
        "0000:00:0c.0": "root_port",
        "0000:b0:00.0": "root_port",
        "0000:c8:00.0": "root_port",
        "0000:c9:00.0": "upstream",
        "0000:ca:00.0": "downstream",
        "0000:ca:01.0": "downstream",
    }
    # The switch's ports have no ACS; the root port 00:0c.0 neither (disable-acs=on); the others redirect.
    assert facts["redirecting_switch_ports"] == []
    assert [port["address"] for port in facts["redirecting_root_ports"]] == ["0000:b0:00.0", "0000:c8:00.0"]
    assert facts["acs_unreadable"] == []
    assert facts["host_bridge"] == "8086:29c0"
    assert {gpu["numa_node"] for gpu in facts["gpus"].values()} == {None, 1}


@settings(max_examples=60, deadline=None)
@given(
    st.dictionaries(
        st.sampled_from(
            ["uevent", "config", "resource", "numa_node", "current_link_width", "max_link_width", "max_link_speed"]
        ),
        st.binary(max_size=300),
        min_size=1,
    )
)
def test_junk_in_sysfs_never_raises(junk: dict[str, bytes]) -> None:
    tree = two_direct()
    for name, data in junk.items():
        tree.file("/sys/bus/pci/devices/%s/%s" % (B, name), data)
    facts, _ = gathered(tree)
    assert set(facts) == set(pci.KEYS)


@settings(max_examples=40, deadline=None)
@given(st.integers(0, 4096))
def test_a_cut_never_hides_a_redirect(length: int) -> None:
    tree = below_a_switch(REDIRECT)
    tree.file("/sys/bus/pci/devices/0000:02:01.0/config", pci_tree.config(DOWNSTREAM, REDIRECT, secondary=4)[:length])
    found = gathered(tree)[0]["redirecting_switch_ports"]
    assert found is None or [port["address"] for port in found] == ["0000:02:01.0"]
    assert found is None or length >= 0x2A8 >= config_space.CONVENTIONAL_BYTES


def with_a_network_card(acs: int, place: str = "0000:02:02.0") -> Tree:
    up = ("0000:00:01.1", "0000:01:00.0")
    tree = below_a_switch().bridge(place, up, kind=DOWNSTREAM, acs=acs, secondary=5)
    return tree.device("0000:05:00.0", (*up, place), ids="15b3:1021", device_class="20700", driver="mlx5_core")


def test_a_network_card_below_the_switch_of_gpus() -> None:
    facts, errors = gathered(with_a_network_card(pci_tree.NO_REDIRECT))
    assert errors == [] and list(facts["nics"]) == ["0000:05:00.0"]
    assert [(pair["gpus"], pair["relation"]) for pair in facts["nic_pairs"]] == [
        (["0000:03:00.0", "0000:05:00.0"], "same_switch"),
        (["0000:04:00.0", "0000:05:00.0"], "same_switch"),
    ]
    assert facts["redirecting_nic_ports"] == [] and facts["redirecting_switch_ports"] == []
    facts, _errors = gathered(with_a_network_card(REDIRECT))
    assert facts["redirecting_switch_ports"] == []
    (port,) = facts["redirecting_nic_ports"]
    assert port["address"] == "0000:02:02.0" and port["pairs"] == [
        "0000:03:00.0 0000:05:00.0",
        "0000:04:00.0 0000:05:00.0",
    ]


def test_a_network_card_elsewhere_has_no_pair() -> None:
    tree = two_direct().bridge("0000:80:01.1", root="pci0000:80")
    tree.device("0000:81:00.0", ("0000:80:01.1",), root="pci0000:80", ids="15b3:1021", device_class="20000")
    facts, _errors = gathered(tree)
    assert facts["nics"] == {} and facts["nic_pairs"] == [] and facts["redirecting_nic_ports"] == []


class TestErrorCounters:
    PORT = "/sys/bus/pci/devices/0000:40:01.1/"

    def test_none_is_none(self) -> None:
        facts, _errors = gathered(two_direct())
        assert (facts["aer_reported"], facts["aer_uncorrected"], facts["aer_replays_high"]) == (True, [], [])

    def test_a_failed_transfer_names_the_device_and_its_gpus(self) -> None:
        tree = two_direct().file(self.PORT + "aer_dev_nonfatal", "CmpltTO 3\nUnsupReq 9\nTOTAL_ERR_NONFATAL 12\n")
        facts, _errors = gathered(tree)
        assert facts["aer_uncorrected"] == [{"address": "0000:40:01.1", "gpus": [B], "counts": {"CmpltTO": 3}}]

    @pytest.mark.parametrize(("count", "uptime", "high"), [(479, 60, False), (481, 60, True), (24001, 180000, True)])
    def test_replays_are_judged_by_their_rate(self, count: int, uptime: int, high: bool) -> None:
        text = "RxErr 1\nBadTLP %d\nTimeout 0\nTOTAL_ERR_COR %d\n" % (count, count + 1)
        tree = two_direct().file(self.PORT + "aer_dev_correctable", text).file("/proc/uptime", "%d.5 1\n" % uptime)
        facts, _errors = gathered(tree)
        assert [one["address"] for one in facts["aer_replays_high"]] == (["0000:40:01.1"] if high else [])

    @pytest.mark.parametrize("text", ["", "BadTLP 0\n", "BadTLP 0\nTOTAL_ERR_COR", "junk\nTOTAL_ERR_COR 0\n"])
    def test_a_part_of_a_list_is_unknown(self, text: str) -> None:
        facts, errors = gathered(two_direct().file(self.PORT + "aer_dev_correctable", text))
        assert facts["aer_replays_high"] is None and facts["aer_uncorrected"] is None
        assert any("aer_dev" in entry["source"] for entry in errors)

    def test_a_machine_without_aer_reports_none(self) -> None:
        tree = two_direct()
        for key in [key for key in tree.records if "aer_dev_" in key[1]]:
            tree.records[key] = {"read": key[1], "status": "absent"}
        facts, errors = gathered(tree)
        assert (facts["aer_reported"], facts["aer_uncorrected"], facts["aer_replays_high"]) == (False, [], [])
        assert errors == []
