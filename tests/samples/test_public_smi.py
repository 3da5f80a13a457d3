"""Public captures of nvidia-smi, read as the note beside each says."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))
sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import gpus, p2p, topology
from ansible.module_utils.gpu_host.smi import nvlink, query_csv, topo_matrix
from ansible.module_utils.gpu_host.smi.gpu_findings import LISTS
from captures import SAMPLES  # type: ignore[import-not-found]
from smi_host import gathered  # type: ignore[import-not-found]

COMMANDS = {"smi_xml": gpus.XML, "smi_q": gpus.TEXT, "smi_table": gpus.TABLE, "smi_csv": gpus.INDEX}


def data(name: str) -> bytes:
    return (SAMPLES / (name + ".txt")).read_bytes()


def read(name: str) -> tuple[dict[str, Any], list[str]]:
    return gathered({COMMANDS[name.partition("/")[0]]: data(name)})


def values(facts: dict[str, Any], name: str) -> set[Any]:
    return {gpu[name] for gpu in facts["devices"].values()}


def links(gpu: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(
        gpu["link_" + name] for name in ("generation", "generation_max", "generation_host_max", "width", "width_max")
    )


def test_every_capture_is_read_without_raising() -> None:
    seen = 0
    for kind in COMMANDS:
        for path in sorted((SAMPLES / kind).glob("*.txt")):
            facts, _problems = read("%s/%s" % (kind, path.stem))
            assert facts["count"] is None or facts["count"] == facts["parsed"] - len(
                [gpu for gpu in facts["devices"].values() if gpu["lost"]]
            )
            seen += 1
    assert seen >= 25


# (attached, parsed, count, driver, CUDA), and the lists that are not empty
@pytest.mark.parametrize(
    ("name", "numbers", "lists"),
    [
        ("smi_q/4090-8gpu-535-mixed-pstates", (8, 8, 8, "535.154.05", "12.2"), {"bar1_smaller_than_memory"}),
        (
            "smi_q/4090-8gpu-535-addressing-mode-unknown-error",
            (8, 8, 8, "535.154.05", "12.2"),
            {"bar1_smaller_than_memory"},
        ),
        ("smi_q/h100-sxm-8gpu-535-fabric-completed", (8, 8, 8, "535.161.08", "12.2"), {"slowed"}),
        ("smi_q/h100-535-truncated-attached8-one-block", (8, 1, None, "535.183.01", "12.2"), set()),
        (
            "smi_q/titanv-560-addressing-na",
            (1, 1, 1, "560.35.03", "12.6"),
            {"bar1_smaller_than_memory", "persistence_off"},
        ),
        ("smi_q/rtxpro6000-blackwell-8gpu-595", (8, 8, 8, "595.58.03", "13.2"), set()),
        ("smi_q/h200-590-q-idle", (1, 1, 1, "590.48.01", "13.1"), set()),
        ("smi_q/l40s-595-q-idle", (1, 1, 1, "595.80", "13.2"), {"persistence_off"}),
        ("smi_q/2080super-610-windows-q-idle", (1, 1, 1, "610.62", "13.3"), {"bar1_smaller_than_memory"}),
        ("smi_q/vgpu-rtxa6000-24q-unlicensed", (1, 1, 1, "535.183.06", "12.2"), {"unlicensed"}),
        ("smi_xml/telegraf-a100-sxm4-v12", (4, 1, None, "535.54.03", "12.2"), {"mig_enabled", "persistence_off"}),
        ("smi_xml/telegraf-rtx-4000-sff-ada-v13", (1, 1, 1, "595.84", "13.2"), set()),
        ("smi_xml/telegraf-gtx-1070-ti", (None, 1, 1, None, None), set()),
        ("smi_xml/netdata-a100-sxm4-mig", (1, 1, 1, "510.47.03", "11.6"), {"mig_enabled", "persistence_off"}),
        ("smi_xml/k8s-b200-8gpu-580-addressing-none", (8, 8, 8, "580.105.08", "13.0"), {"persistence_off"}),
        ("smi_xml/k8s-gb200-4gpu-580-ats-devmax6", (4, 4, 4, "580.173.02", "13.0"), set()),
        ("smi_xml/k8s-l40s-1gpu-595-width8", (1, 1, 1, "595.91.07", "13.2"), {"width_reduced"}),
        ("smi_xml/k8s-gb200-one-gpu-is-lost", (2, 2, 1, "580.65.06", "13.0"), {"ecc_errors", "remapping_unfinished"}),
        (
            "smi_table/525-fan-err-e-process",
            (None, 1, 1, "525.125.06", "12.0"),
            {"compute_mode_restricted", "persistence_off"},
        ),
        ("smi_table/610-kmd-umd-version-header", (None, 1, 1, "610.57.04", "13.3"), {"persistence_off"}),
        ("smi_table/h200-mig-table-and-list", (None, 1, 1, "590.48.01", "13.1"), {"mig_enabled"}),
        ("smi_table/4gpu-one-lost-error-line-before-table", (None, 3, 3, "610.57.04", "13.3"), set()),
        ("smi_table/no-devices-were-found", (0, 0, 0, None, None), set()),
        ("smi_csv/610-query-gpu-all-fields", (None, 1, 1, "610.57.04", None), {"persistence_off"}),
        ("smi_csv/h200-mig-query-gpu", (None, 1, 1, "590.48.01", None), {"mig_enabled"}),
    ],
)
def test_numbers_and_verdicts(name: str, numbers: tuple[Any, ...], lists: set[str]) -> None:
    facts, _problems = read(name)
    assert tuple(facts[key] for key in ("attached", "parsed", "count", "driver_version", "cuda_version")) == numbers
    assert {entry for entry in LISTS if facts[entry]} == lists


def test_idle_links_are_not_degraded() -> None:
    facts, _problems = read("smi_q/4090-8gpu-535-mixed-pstates")
    by_state = {where: (gpu["performance_state"], gpu["link_generation"]) for where, gpu in facts["devices"].items()}
    assert {where for where, (state, _generation) in by_state.items() if state == "P8"} == {
        "0000:81:00.0",
        "0000:a1:00.0",
        "0000:e1:00.0",
    }
    assert {generation for state, generation in by_state.values() if state == "P8"} == {1}
    assert {generation for state, generation in by_state.values() if state == "P2"} == {4}
    assert facts["generation_reduced"] == [] and len(facts["loaded"]) == 2
    facts, _problems = read("smi_q/rtxpro6000-blackwell-8gpu-595")
    assert {links(gpu) for gpu in facts["devices"].values()} == {(1, 5, 5, 16, 16)} and facts[
        "generation_reduced"
    ] == []
    assert values(facts, "bar1_mib") == {131072} and values(facts, "recovery_action") == {"None"}


def test_unknown_addressing_mode_is_unknown() -> None:
    facts, problems = read("smi_q/4090-8gpu-535-addressing-mode-unknown-error")
    assert facts["addressing_modes"] is None and values(facts, "addressing_mode") == {None}
    assert problems == ["reads 'Unknown Error' in place of a value: addressing mode (8 GPUs)"]


def test_addressing_modes() -> None:
    expected = {
        "smi_q/rtxpro6000-blackwell-8gpu-595": "None",
        "smi_q/l40s-595-q-idle": "HMM",
        "smi_q/titanv-560-addressing-na": "n/a",
        "smi_q/2080super-610-windows-q-idle": "n/a",
        "smi_xml/k8s-gb200-4gpu-580-ats-devmax6": "ATS",
        "smi_xml/telegraf-rtx-4000-sff-ada-v13": "HMM",
    }
    assert {name: read(name)[0]["addressing_modes"] for name in expected} == {
        name: [mode] for name, mode in expected.items()
    }


def test_a_truncated_text_is_incomplete() -> None:
    facts, problems = read("smi_q/h100-535-truncated-attached8-one-block")
    assert facts["complete"] is False and facts["slowed"] is None
    assert "8 GPUs attached, 1 parsed" in problems


def test_a_vgpu_has_no_link_to_judge() -> None:
    facts, _problems = read("smi_q/vgpu-rtxa6000-24q-unlicensed")
    gpu = facts["devices"]["0000:00:10.0"]
    assert set(links(gpu)) == {"n/a"} and facts["link_reported"] is False
    assert facts["unlicensed"] == [
        {"address": "0000:00:10.0", "index": None, "label": "GPU at 0000:00:10.0", "license": "Unlicensed"}
    ]
    assert gpu["clock_event_reasons"] == "n/a"


def test_grace_blackwell_is_not_degraded_by_what_the_card_could_do() -> None:
    facts, _problems = read("smi_xml/k8s-gb200-4gpu-580-ats-devmax6")
    assert {links(gpu) for gpu in facts["devices"].values()} == {(5, 5, "n/a", 16, 16)}
    assert (
        values(facts, "link_generation_device_max") == {6}
        and facts["width_reduced"] == facts["generation_reduced"] == []
    )


def test_one_gpu_is_lost() -> None:
    facts, problems = read("smi_xml/k8s-gb200-one-gpu-is-lost")
    assert facts["lost"] == [
        {"address": "0000:0b:00.0", "index": 1, "label": "GPU 1 (0000:0b:00.0)", "reason": "GPU is lost"}
    ]
    assert problems == ["0000:0b:00.0 is lost: its values cannot be read"]
    assert facts["devices"]["0000:0b:00.0"]["remapped_rows"] is None
    facts, _problems = read("smi_table/4gpu-one-lost-error-line-before-table")
    assert facts["lost"] == [
        {"index": 1, "address": "0000:34:00.0", "label": "GPU 1 (0000:34:00.0)", "reason": "Unknown Error"}
    ]
    assert [gpu["index"] for gpu in facts["devices"].values()] == [0, 2, 3]
    assert values(facts, "ecc") == {False} and facts["ecc_errors"] == []


def test_sizes_and_health_of_the_large_machines() -> None:
    facts, _problems = read("smi_xml/k8s-b200-8gpu-580-addressing-none")
    assert (values(facts, "bar1_mib"), values(facts, "memory_total_mib")) == ({262144}, {183359})
    assert facts["fabric_present"] is True and facts["fabric_not_ready"] == []
    facts, _problems = read("smi_q/h100-sxm-8gpu-535-fabric-completed")
    # The note calls this one good, for its links and fabric; its power brake is on all the same.
    assert {tuple(gpu["reasons"]) for gpu in facts["slowed"]} == {("hw_slowdown", "hw_power_brake_slowdown")}
    assert facts["fabric_not_ready"] == [] and {links(gpu) for gpu in facts["devices"].values()} == {(5, 5, 5, 16, 16)}
    assert (values(facts, "bar1_mib"), values(facts, "memory_total_mib"), values(facts, "fan_percent")) == (
        {131072},
        {81559},
        {"n/a"},
    )


def test_a_trimmed_log_is_unknown_not_zero() -> None:
    facts, _problems = read("smi_xml/telegraf-gtx-1070-ti")
    assert links(facts["devices"]["0000:01:00.0"]) == (1, None, None, 16, None)
    assert facts["width_reduced"] is None and facts["idle"] is None


def test_mig_devices_are_no_gpus() -> None:
    assert read("smi_xml/netdata-a100-sxm4-mig")[0]["devices"]["0000:00:04.0"]["mig_devices"] == 2
    facts, _problems = read("smi_csv/h200-mig-query-gpu")
    assert values(facts, "utilization_percent") == {"n/a"}


def test_a_row_without_a_header_needs_its_columns() -> None:
    row = query_csv.parse_rows(
        data("smi_csv/gb10-memory-na-row"),
        ["name", "driver_version", "compute_cap", "temperature.gpu", "pstate", "memory.total"],
    )
    gpu = query_csv.parse_device(row[0])
    assert (gpu["name"], gpu["memory_total_mib"], gpu["temperature_c"], gpu["lost"]) == (
        "NVIDIA GB10",
        "n/a",
        48,
        False,
    )
    assert read("smi_csv/gb10-memory-na-row")[0]["count"] is None


@pytest.mark.parametrize(
    ("name", "gpus_seen", "status"),
    [
        ("3090-2gpu-patched-driver-ok-no-blank-line", 2, "OK"),
        ("geforce-3gpu-all-ok-but-cuda-refuses-mixed", 3, "OK"),
        ("h100-8gpu-ok-spaces", 8, "OK"),
        ("l4-2gpu-cns-no-legend", 2, "CNS"),
        ("nccl-docs-8gpu-ok-indented", 8, "OK"),
    ],
)
def test_p2p_matrices(name: str, gpus_seen: int, status: str) -> None:
    pairs = p2p.read_statuses(topo_matrix.parse_matrix(data("topo_p2p/" + name)))
    assert len(pairs) == gpus_seen * (gpus_seen - 1) and set(pairs.values()) == {status}
    facts = p2p.summarise_statuses({"read": pairs, "write": pairs}, {})
    assert facts["all_granted"] is (status == "OK") and facts["all_nvlink"] is None


@pytest.mark.parametrize(
    ("name", "classes", "worst", "nodes", "nics"),
    [
        ("2gpu-phb-numa-na-spaces", {"PHB": 1}, "PHB", [], 0),
        ("azure-4xa100-pcie-nv12-pairs-4numa", {"NV": 2, "SYS": 4}, "SYS", [0, 1, 2, 3], 0),
        ("b300-8gpu-9nic-nv18-esc-stripped", {"NV": 28}, "NV", [0, 1], 9),
        ("dgx1-p100-8gpu-soc-label-mangled-header", {"NV": 16, "SYS": 12}, "SYS", None, 4),
        ("geforce-5gpu-phb-ansi", {"PHB": 10}, "PHB", [0], 0),
        ("h100-8gpu-nv18-narrow-columns", {"NV": 28}, "NV", [0, 1], 0),
        ("rtxpro6000-8gpu-2socket-pix-node-sys", {"PIX": 4, "NODE": 8, "SYS": 16}, "SYS", [0, 1], 0),
        ("rtxpro6000-8gpu-pix4-phb-single-socket", {"PIX": 12, "PHB": 16}, "PHB", None, 0),
        ("windows-610-empty-affinity-cells", {}, None, None, 0),
    ],
)
def test_topology_matrices(
    name: str, classes: dict[str, int], worst: str | None, nodes: list[int] | None, nics: int
) -> None:
    facts = topology.summarise_topology(topo_matrix.parse_matrix(data("topo_m/" + name)), {})
    assert (facts["class_counts"], facts["worst_class"], facts["gpu_numa_nodes"], len(facts["nics"])) == (
        classes,
        worst,
        nodes,
        nics,
    )
    assert facts["unknown_pairs"] == []


def test_affinity_of_the_topology_matrices() -> None:
    facts = topology.summarise_topology(topo_matrix.parse_matrix(data("topo_m/b300-8gpu-9nic-nv18-esc-stripped")), {})
    assert {facts["links"]["GPU%d" % number]["NIC%d" % number] for number in range(8)} == {"PXB"} and facts["nics"][
        "NIC8"
    ] == "mlx5_bond_0"
    assert facts["gpus"]["GPU4"] == {
        "index": 4,
        "cpu_affinity": "64-127,192-255",
        "numa_node": 1,
        "gpu_numa_node": "n/a",
    }
    facts = topology.summarise_topology(topo_matrix.parse_matrix(data("topo_m/windows-610-empty-affinity-cells")), {})
    assert facts["gpus"]["GPU0"] == {"index": 0, "cpu_affinity": None, "numa_node": None, "gpu_numa_node": "n/a"}


def test_nvlink_status() -> None:
    found = nvlink.parse_nvlink(data("nvlink/a100-nvlink-status"))
    assert (
        found is not None
        and [nvlink.summarise_nvlink(gpu) for gpu in found.values()]
        == [
            {
                "links": 12,
                "active": 12,
                "inactive": [],
                "all_inactive": False,
                "unknown": 0,
                "mig": False,
                "said": [],
                "speed_gb_s": 25.0,
            }
        ]
        * 8
    )
