"""``nvidia-smi topo -m`` and ``nvidia-smi nvlink -s``."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import topology
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import OK, Outcome
from ansible.module_utils.gpu_host.smi import nvlink, topo_matrix
from smi_host import evidence, host

FOUR = (
    "\t\x1b[4mGPU0\tGPU1\tGPU2\tGPU3\tNIC0\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    "GPU0\t X \tPIX\tNODE\tSYS\tPXB\t0-31,64-95\t0\t\tN/A\n"
    "GPU1\tPIX\t X \tNODE\tSYS\tNODE\t0-31,64-95\t0\t\tN/A\n"
    "GPU2\tNODE\tNODE\t X \tSYS\tNODE\t0-31\t0\t\t2\n"
    "GPU3\tSYS\tSYS\tSYS\t X \tSYS\t\t\t\tN/A\n"
    "NIC0\tPXB\tNODE\tNODE\tSYS\t X \t\t\t\t\n"
    "\nLegend:\n\n  X    = Self\n  NV#  = Connection traversing a bonded set of # NVLinks\n\nNIC Legend:\n\n  NIC0: "
    "mlx5_0\n"
)
NAMES = {number: "0000:%02d:00.0" % (number + 1) for number in range(4)}


def read(text: str, names: dict[int, str] | None = None) -> dict:  # type: ignore[type-arg]
    return topology.summarise_topology(topo_matrix.parse_matrix(text.encode()), NAMES if names is None else names)


def test_classes_nics_and_affinity() -> None:
    facts = read(FOUR)
    assert facts["class_counts"] == {"PIX": 1, "NODE": 2, "SYS": 3} and facts["worst_class"] == "SYS"
    assert facts["links"]["0000:01:00.0"] == {
        "0000:02:00.0": "PIX",
        "0000:03:00.0": "NODE",
        "0000:04:00.0": "SYS",
        "NIC0": "PXB",
    }
    assert facts["nics"] == {"NIC0": "mlx5_0"}
    assert facts["gpus"]["0000:01:00.0"] == {
        "index": 0,
        "cpu_affinity": "0-31,64-95",
        "numa_node": 0,
        "gpu_numa_node": "n/a",
    }
    assert facts["gpus"]["0000:03:00.0"]["gpu_numa_node"] == 2
    assert facts["gpus"]["0000:04:00.0"] == {
        "index": 3,
        "cpu_affinity": None,
        "numa_node": None,
        "gpu_numa_node": "n/a",
    }
    assert facts["gpus_without_numa_node"] == ["0000:04:00.0"] and facts["gpu_numa_nodes"] is None
    assert [len(pairs) for pairs in facts["pairs_beyond"].values()] == [6, 5, 5, 5, 3, 0]


def test_old_names_and_a_header_that_ran_together() -> None:
    text = (
        "\t    GPU0GPU1mlx5_0\tmlx5_2\tCPU Affinity\nGPU0\t X \tSOC\tPIX\tSOC\t1-1\nGPU1\tSOC\t X "
        "\tSOC\tPHB\t1-1\nmlx5_0\tPIX\tSOC\t X \tSOC\n"
    )
    facts = read(text, {})
    assert facts["class_counts"] == {"SYS": 1} and list(facts["nics"]) == ["mlx5_0", "mlx5_2"]
    assert facts["gpus"]["GPU0"]["cpu_affinity"] == "1-1" and facts["gpus"]["GPU0"]["numa_node"] is None


def test_nvlink_counts() -> None:
    text = (
        "      GPU0  GPU1  CPU Affinity  NUMA Affinity\nGPU0   X    NV18   0-51         0\nGPU1  NV18   X     "
        "52-103        1\n"
    )
    facts = read(text, {})
    assert facts["pairs"] == [{"a": "GPU0", "b": "GPU1", "class": "NV", "nvlinks": 18}]
    assert facts["gpu_numa_nodes"] == [0, 1]


def test_halves_that_disagree_are_unknown() -> None:
    facts = read(FOUR.replace("GPU1\tPIX\t", "GPU1\tSYS\t"))
    assert facts["unknown_pairs"] == [{"a": "0000:01:00.0", "b": "0000:02:00.0"}]
    assert facts["worst_class"] is None and facts["pairs_beyond"] is None


def test_a_cut_matrix() -> None:
    facts = read(FOUR[: FOUR.index("GPU1\tPIX")])
    assert len(facts["unknown_pairs"]) == 3 and len(facts["pairs"]) == 3


def test_affinity_of_several_nodes_is_no_single_node() -> None:
    assert read(FOUR.replace("0-31,64-95\t0\t\tN/A", "0-63\t0-1\t\tN/A"))["gpus"]["0000:01:00.0"]["numa_node"] is None


def test_without_an_answer_everything_is_unknown() -> None:
    errors = Errors("topology")
    facts = topology.gather(evidence({}), errors)
    assert set(facts.values()) == {None} and {entry["problem"] for entry in errors.entries} == {
        "not captured in this bundle"
    }
    errors = Errors("topology")
    failed = Outcome(topology.MATRIX, OK, rc=9, stdout=b"NVIDIA-SMI has failed\n")
    topology.gather(evidence({topology.MATRIX: failed}), errors)
    assert errors.entries[0]["problem"] == "exit code 9: NVIDIA-SMI has failed"


def test_an_empty_answer_means_no_active_link() -> None:
    errors = Errors("topology")
    facts = topology.gather(evidence({topology.MATRIX: FOUR, topology.NVLINK: ""}), errors)
    assert (facts["nvlink"], facts["nvlink_whole"]) == ({}, True)
    assert errors.entries == []
    failed = Outcome(topology.NVLINK, OK, rc=9, stdout=b"")
    assert topology.gather(evidence({topology.MATRIX: FOUR, topology.NVLINK: failed}), errors)["nvlink"] is None
    assert errors.entries[0]["problem"] == "exit code 9: no output"


def test_the_recording_with_nvlink() -> None:
    facts = topology.gather(host("h200-x2"), Errors("topology"))
    assert facts["class_counts"] == {"NV": 1} and facts["pairs"][0]["nvlinks"] == 18
    assert facts["nvlink"]["0000:00:07.0"] == {
        "links": 18,
        "active": 18,
        "inactive": [],
        "all_inactive": False,
        "unknown": 0,
        "mig": False,
        "said": [],
        "speed_gb_s": 26.562,
    }


def test_a_matrix_without_nvlink_in_its_legend_does_not_deny_it() -> None:
    """``nvidia-smi topo -mp`` shows the PCI Express path of every pair, also where NVLink joins it."""
    text = FOUR.replace("  NV#  = Connection traversing a bonded set of # NVLinks\n", "")
    errors = Errors("topology")
    facts = topology.gather(evidence({topology.MATRIX: text, topology.NVLINK: ""}), errors)
    assert facts["nvlink_shown"] is False and {pair["nvlinks"] for pair in facts["pairs"]} == {None}
    assert facts["worst_class"] is None and facts["pairs_beyond"] is None
    assert "has no NV#" in errors.entries[0]["problem"]
    facts = read(FOUR[: FOUR.index("\nLegend")])
    assert facts["nvlink_shown"] is None and facts["pairs"][0]["nvlinks"] is None and facts["worst_class"] == "SYS"
    assert read(FOUR)["nvlink_shown"] is True and read(FOUR)["pairs"][0]["nvlinks"] == 0


def test_an_answer_that_was_cut_or_failed_is_not_whole() -> None:
    listing = "GPU 0: X (UUID: y)\n\t Link 0: 25 GB/s\n\t Link 1: 25 GB/s\nGPU 1: X (UUID: z)\n\t Link 0: 25 GB/s\n"
    for answer in (
        Outcome(topology.NVLINK, OK, rc=0, stdout=listing.encode(), truncated=True),
        Outcome(topology.NVLINK, OK, rc=1, stdout=listing.encode()),
    ):
        errors = Errors("topology")
        facts = topology.gather(evidence({topology.MATRIX: FOUR, topology.NVLINK: answer}), errors)
        assert facts["nvlink_whole"] is False and errors.entries
        assert [links["unknown"] for links in facts["nvlink"].values()] == [0, 1]
    cut = Outcome(topology.NVLINK, OK, rc=0, truncated=True)
    assert topology.gather(evidence({topology.NVLINK: cut}), Errors("topology"))["nvlink"] is None


@pytest.mark.parametrize("status", ["timeout", "hung", "denied", "failed"])
def test_one_command_that_does_not_answer_leaves_the_other_its_answer(status: str) -> None:
    listing = "GPU 0: X (UUID: y)\n\t Link 0: 25 GB/s\n"
    silent = Outcome(topology.MATRIX, status, reason="no answer within 30 s")
    facts = topology.gather(evidence({topology.MATRIX: silent, topology.NVLINK: listing}), Errors("topology"))
    assert facts["pairs"] is None and facts["nvlink"]["GPU0"]["active"] == 1


@pytest.mark.parametrize(
    ("line", "active"),
    [("25 GB/s", True), ("<inactive>", False), ("inActive", False), ("0 GB/s", False), ("25 furlongs", None)],
)
def test_a_link(line: str, active: bool | None) -> None:
    assert [
        link["active"]
        for link in (nvlink.parse_nvlink(("GPU 0: X (UUID: y)\n\t Link 0: %s\n" % line).encode()) or {})[0]
    ] == [active]


def test_gpus_without_nvlink_have_no_links() -> None:
    assert nvlink.parse_nvlink(b"GPU 0: NVIDIA L40S (UUID: GPU-1)\nGPU 1: NVIDIA L40S (UUID: GPU-2)\n") == {
        0: [],
        1: [],
    }
    assert nvlink.parse_nvlink(
        b"GPU 0: X (UUID: y)\n\t NVML: Unable to retrieve NVLink information: Not Supported\n"
    ) == {0: []}
    assert nvlink.parse_nvlink(b"NVML: Unable to retrieve NVLink information as all links are inActive\n") == {}
    assert nvlink.parse_nvlink(b"NVIDIA-SMI has failed\n") is None


def test_a_sentence_in_the_place_of_links_is_kept() -> None:
    said = "Nvlink queries are not supported for Devices in MIG mode"
    found = nvlink.parse_nvlink(
        ("GPU 0: NVIDIA H200 (UUID: GPU-1)\n%s\nGPU 1: NVIDIA H200 (UUID: GPU-2)\n" % said).encode()
    )
    assert found is not None
    kept = nvlink.summarise_nvlink(found[0])
    assert (kept["said"], kept["unknown"], kept["mig"], kept["links"]) == ([said], 1, True, 0)
    assert nvlink.summarise_nvlink(found[1])["unknown"] == 0


HOPPER_ERRORS = "GPU 0: NVIDIA H100 80GB HBM3 (UUID: GPU-0)\n" + "".join(
    "\t Link %d: Replay Errors: %d\n\t Link %d: Recovery Errors: 0\n\t Link %d: CRC Errors: %d\n\n"
    % (n, n == 3, n, n, n)
    for n in range(18)
)
BLACKWELL_ERRORS = "GPU 0: NVIDIA B200 (UUID: GPU-0)\n" + "".join(
    "\t Link %d: Tx packets: 12345\n\t Link %d: Rx Errors: 0\n\t Link %d: Symbol Errors: 77\n"
    "\t Link %d: Effective Errors: %d\n\t Link %d: Symbol BER: 15e-255\n\t Link %d: Total link recovery events: 2\n"
    % (n, n, n, n, n == 17, n, n)
    for n in range(18)
)


@pytest.mark.parametrize(
    ("text", "link", "counts"),
    [
        (HOPPER_ERRORS, 3, {"replay errors": 1, "crc errors": 3}),
        (BLACKWELL_ERRORS, 17, {"effective errors": 1, "symbol errors": 77}),
    ],
)
def test_error_counters_of_links(text: str, link: int, counts: dict[str, int]) -> None:
    shown = nvlink.parse_nvlink_errors(text.encode())
    assert shown is not None and len(shown[0]) == 18
    assert nvlink.list_link_errors(shown[0]) == [{"link": link, "counts": counts}]
    assert nvlink.parse_nvlink_errors(b"GPU 0: NVIDIA L40S (UUID: GPU-0)\n") is None


def test_error_counters_are_whole_or_unknown() -> None:
    names = {0: "0000:01:00.0"}
    links = {"nvlink": {"0000:01:00.0": {"active": 18, "unknown": 0}}, "nvlink_whole": True}

    def found(text: str) -> Any:
        return topology._nvlink_errors(evidence({topology.NVLINK_ERRORS: text}), names, links, Errors("topology"))

    clean = HOPPER_ERRORS.replace("Replay Errors: 1", "Replay Errors: 0")
    assert found(clean) == []
    assert found(clean[: len(clean) // 2]) is None and found("") is None
    assert found(HOPPER_ERRORS[: len(HOPPER_ERRORS) // 2])[0]["link"] == 3
    none_active = {"nvlink": {}, "nvlink_whole": True}
    assert topology._nvlink_errors(evidence({}), names, none_active, Errors("topology")) == []
