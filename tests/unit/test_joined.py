"""Facts that need two subjects; each is unknown where one of them is."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import cross_facts, gpus
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, Outcome
from ansible.module_utils.gpu_host.smi import nvlink
from smi_host import block, evidence, xml

A, B = "0000:01:00.0", "0000:02:00.0"
SUBJECTS = ("gpus", "p2p", "topology", "pci", "device_nodes", "system")


def smi(*blocks: str, attached: int | None = None) -> dict[str, Any]:
    text = xml("".join(blocks), attached=len(blocks) if attached is None else attached)
    return gpus.gather(evidence({gpus.XML: text}), Errors("gpus"))


def not_installed() -> dict[str, Any]:
    return gpus.gather(evidence({gpus.XML: Outcome(gpus.XML, ABSENT)}), Errors("gpus"))


def join(**facts: Any) -> dict[str, Any]:
    return cross_facts.join_facts({**dict.fromkeys(SUBJECTS), **facts}, Errors("joined"))


def card(driver: str | None = "nvidia", width: int = 16) -> dict[str, Any]:
    return {"name": "L40S", "driver": driver, "link": {"width": width}}


def test_nothing_known_makes_nothing_known() -> None:
    assert set(join().values()) == {None}
    assert set(cross_facts.SOURCES) == set(join()), "a fact without sources is unknown without a reason"
    assert set(cross_facts.join_facts({}, Errors("joined")).values()) == {None}


def test_a_card_that_the_driver_does_not_show() -> None:
    facts = join(gpus=smi(block()), pci={"gpus": {A: card(), B: card()}})
    assert facts["missing_from_driver"] == [{"address": B, "name": "L40S", "driver": "nvidia"}]
    assert (facts["gpu_found"], facts["driver_expected"], facts["gpu_count"]) == (True, True, 1)


def test_a_card_given_to_a_guest_is_not_missing() -> None:
    facts = join(gpus=smi(block()), pci={"gpus": {A: card(), B: card("vfio-pci")}})
    assert facts["missing_from_driver"] == [] and facts["given_to_guests"] == [B]
    facts = join(gpus=not_installed(), pci={"gpus": {A: card("vfio-pci"), B: card("vfio-pci")}})
    assert facts["driver_expected"] is False and facts["gpu_found"] is True


@pytest.mark.parametrize(
    ("on_bus", "smi_facts", "found"),
    [
        ({}, not_installed(), False),
        (None, not_installed(), None),  # the bus could not be read: nobody knows
        ({A: card()}, not_installed(), True),
        ({}, smi(block()), True),
    ],
)
def test_whether_there_is_a_gpu(on_bus: dict[str, Any] | None, smi_facts: dict[str, Any], found: bool | None) -> None:
    facts = join(gpus=smi_facts, pci=None if on_bus is None else {"gpus": on_bus})
    assert facts["gpu_found"] is found and facts["driver_expected"] is found


def test_no_gpu_counts_as_none() -> None:
    assert join(gpus=not_installed(), pci={"gpus": {}})["gpu_count"] == 0
    assert join(gpus=not_installed(), pci={"gpus": {A: card()}})["gpu_count"] is None


def links(active: int, inactive: int = 0, unknown: int = 0, said: str | None = None) -> dict[str, Any]:
    lines = ["Link %d: 25 GB/s" % number for number in range(active)]
    lines += ["Link %d: <inactive>" % number for number in range(active, active + inactive)]
    lines += ["Link %d: 25 furlongs" % number for number in range(unknown)] + ([said] if said else [])
    parsed = nvlink.parse_nvlink(("GPU 0: X\n" + "\n".join(lines) + "\n").encode())
    assert parsed is not None
    return nvlink.summarise_nvlink(parsed[0])


ALL_INACTIVE = "NVML: Unable to retrieve NVLink information as all links are inActive"
NO_NVLINK = "NVML: Unable to retrieve NVLink information: Not Supported"
IN_MIG_MODE = "Nvlink queries are not supported for Devices in MIG mode"


FABRIC = "<state>Completed</state><status>Success</status>"


@pytest.mark.parametrize(
    ("first", "second", "fabric", "down"),
    [
        (links(18), links(18), FABRIC, []),
        (links(17, 1), links(17, 1), FABRIC, [A, B]),  # on an NVSwitch fabric every link must be up
        (
            links(12, 6),
            links(12, 6),
            "<state>N/A</state>",
            [],
        ),  # a bridge between two PCI Express cards uses some of the links
        (links(12, 6), links(11, 7), "<state>N/A</state>", [B]),
        (links(0, 12), links(0, 12), "<state>N/A</state>", []),
        (links(0), links(0), "<state>N/A</state>", []),
        (links(12), links(11, 0, 1), "<state>N/A</state>", None),
        # a GPU of a fabric, or beside one that has links, is not well without one; a card without NVLink is
        (links(18), links(0), FABRIC, [B]),
        (links(0), links(0), FABRIC, None),
        (links(18), links(0, said=ALL_INACTIVE), FABRIC, [B]),
        (links(0, said=ALL_INACTIVE), links(0, said=ALL_INACTIVE), FABRIC, [A, B]),
        (links(12), links(0, said=ALL_INACTIVE), "<state>N/A</state>", [B]),
        (links(0, said=ALL_INACTIVE), links(0, said=ALL_INACTIVE), "<state>N/A</state>", []),
        (links(0, said=NO_NVLINK), links(0, said=NO_NVLINK), "<state>N/A</state>", []),
        # any other sentence, and a fabric state that the driver cannot give, tell nothing
        (
            links(12),
            links(0, said="NVML: Unable to retrieve NVLink information: Unknown Error"),
            "<state>N/A</state>",
            None,
        ),
        (links(0, said=IN_MIG_MODE), links(0), "<state>N/A</state>", None),
        (links(0), links(0), "<state>Unknown Error</state>", None),
    ],
)
def test_links_that_are_down(
    first: dict[str, Any], second: dict[str, Any], fabric: str, down: list[str] | None
) -> None:
    facts = join(
        gpus=smi(block(fabric=fabric), block("00000000:02:00.0", fabric=fabric)),
        topology={"nvlink": {A: first, B: second}, "nvlink_whole": True},
    )
    assert (
        facts["nvlinks_down"] if facts["nvlinks_down"] is None else [gpu["address"] for gpu in facts["nvlinks_down"]]
    ) == down
    used = first["active"] > 0 or fabric == FABRIC
    assert facts["nvlink_present"] is (True if used else None if down is None else False)


def test_no_links_at_all_are_none_down_except_in_a_fabric() -> None:
    none = {"nvlink": {}, "nvlink_whole": True}
    facts = join(gpus=smi(block()), topology=none)
    assert (facts["nvlink_present"], facts["nvlinks_down"], facts["nvlink_active_fewest"]) == (False, [], 0)
    facts = join(gpus=smi(block(fabric=FABRIC)), topology=none)
    assert (facts["nvlink_present"], facts["nvlinks_down"]) == (True, None)


def test_nvlink_is_absent_only_where_every_gpu_was_seen() -> None:
    """A cut answer, a log that shows one GPU of two, no answer; and a matrix that names NVLink all the same."""
    for smi_facts, topology in (
        (smi(block()), {"nvlink": {}, "nvlink_whole": False}),
        (smi(block(), attached=2), {"nvlink": {A: links(0)}, "nvlink_whole": True}),
        (smi(block()), {"nvlink": None}),
    ):
        facts = join(gpus=smi_facts, topology=topology)
        assert (facts["nvlink_present"], facts["nvlinks_down"], facts["nvlink_active_fewest"]) == (None, None, None)
    shown = {"nvlink": None, "pairs": [{"a": A, "b": B, "class": "NV", "nvlinks": 4}]}
    facts = join(gpus=smi(block()), topology=shown)
    assert (facts["nvlink_present"], facts["nvlinks_down"]) == (True, None)


def test_nvlink_is_not_for_gpus_in_mig_mode() -> None:
    on = "<current_mig>Enabled</current_mig><pending_mig>Enabled</pending_mig>"
    topology = {"nvlink": {A: links(0, said=IN_MIG_MODE)}, "nvlink_whole": True}
    facts = join(gpus=smi(block(mig_mode=on)), topology=topology)
    assert (facts["nvlink_present"], facts["nvlinks_down"]) == (False, [])


def test_a_card_that_a_cut_log_does_not_show_is_not_missing() -> None:
    facts = join(gpus=smi(block(), attached=2), pci={"gpus": {A: card(), B: card()}})
    assert facts["missing_from_driver"] is None
    facts = join(gpus=smi(block(), attached=1), pci={"gpus": {A: card(), B: card()}})
    assert [entry["address"] for entry in facts["missing_from_driver"]] == [B]


def test_numa_nodes_matter_where_there_are_several() -> None:
    topology = {"gpus_without_numa_node": [A]}
    assert join(topology=topology, system={"numa_nodes": {"0": {}, "1": {}}})["gpus_without_numa_node"] == [A]
    assert join(topology=topology, system={"numa_nodes": {"0": {}}})["gpus_without_numa_node"] == []
    assert join(topology=topology)["gpus_without_numa_node"] is None


def test_p2p_over_pci_express() -> None:
    two = smi(block(), block("00000000:02:00.0"))
    assert join(gpus=two, p2p={"gpu_count": 2, "all_nvlink": False})["pcie_p2p"] is True
    assert join(gpus=two, p2p={"gpu_count": 2, "all_nvlink": True})["pcie_p2p"] is False
    assert join(gpus=two, p2p={"gpu_count": 2, "all_nvlink": None})["pcie_p2p"] is True
    assert join(gpus=smi(block()), p2p=None)["pcie_p2p"] is False
    assert join(gpus=two, p2p={"gpu_count": 1})["p2p_gpus_differ"] is True


@pytest.mark.parametrize(
    ("peermem", "flavor", "release", "way"),
    [
        (True, "proprietary", "5.4.0-1-generic", "nvidia_peermem"),
        (True, None, None, "nvidia_peermem"),
        (False, "open", "6.8.0-64-generic", "dma-buf"),
        (None, "open", "5.12.0", "dma-buf"),
        (False, "open", "5.11.22", "none"),
        (False, "proprietary", "6.8.0", "none"),
        (False, "open", None, None),
        (None, "proprietary", "6.8.0", None),
        (False, None, "6.8.0", None),
    ],
)
def test_how_a_network_card_reaches_gpu_memory(
    peermem: bool | None, flavor: str | None, release: str | None, way: str | None
) -> None:
    facts = join(
        modules={"nvidia_peermem": {"loaded": peermem}}, driver={"flavor": flavor}, kernel={"release": release}
    )
    assert facts["gpudirect_rdma"] == way


@pytest.mark.parametrize(
    ("classes", "far"),
    [
        ([["PXB", "SYS"], ["SYS", "PIX"]], []),
        ([["PXB", "SYS"], ["SYS", "SYS"]], [{"gpu": B, "nearest": "SYS"}]),
        ([["PHB", "PHB"], ["PHB", "PHB"]], []),  # QEMU's tree, or cards that are meant for something else
        ([["PXB", "SYS"], [None, "NODE"]], None),
        ([["PXB", "SYS"], [None, "PIX"]], []),
        ([["NODE", "SYS"], ["SYS", None]], None),
        ([[], []], []),
    ],
)
def test_a_gpu_far_from_every_network_card(classes: list[list[str | None]], far: list[dict[str, Any]] | None) -> None:
    labels = ["NIC%d" % number for number in range(len(classes[0]))]
    links = {gpu: dict(zip(labels, row)) for gpu, row in zip((A, B), classes)}
    topology = {"nics": {label: "mlx5_" + label[3:] for label in labels}, "links": links, "gpus": {A: {}, B: {}}}
    facts = join(topology=topology)
    assert facts["gpus_without_near_nic"] == far
    assert facts["rdma_nics"] == ["mlx5_%d" % number for number in range(len(labels))]


@pytest.mark.parametrize(
    ("replays", "uptime_s", "high"),
    [(0, None, []), ("N/A", None, []), (479, 60.0, []), (481, 60.0, [A]), (481, None, None), (481, 86400.0, [])],
)
def test_replays_of_a_link(replays: int | str, uptime_s: float | None, high: list[str] | None) -> None:
    text = block().replace("<replay_counter>0<", "<replay_counter>%s<" % replays)
    if "<replay_counter>" not in text:
        text = text.replace("<pci>", "<pci><replay_counter>%s</replay_counter>" % replays, 1)
    found = join(gpus=smi(text), system={"uptime_s": uptime_s})["link_replays_high"]
    assert (None if found is None else [one["address"] for one in found]) == high
