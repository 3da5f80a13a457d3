"""Outputs of other tools, read with their method, and judged by pair."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.gather import gather
from ansible.module_utils.gpu_host.loose import case
from ansible.module_utils.gpu_host.measured import agreement, nccl_tests, nvbandwidth, other_tools, p2p_test, tools

LOOSE = Path(__file__).resolve().parents[1] / "fixtures" / "loose"
P2P_TEST = (LOOSE / "p2p-test.txt").read_text()
NVBANDWIDTH = """nvbandwidth Version: v0.8
Built from Git version: unknown

Device 0: NVIDIA H200 (00000000:00:06)
Device 1: NVIDIA H200 (00000000:00:07)

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    396.11
 1    381.18       N/A

SUM device_to_device_memcpy_write_ce 792.28

Running device_to_device_bidirectional_memcpy_write_ce.
memcpy CE GPU(row) <-> GPU(column) Write1 bandwidth (GB/s)
           0         1
 0       N/A    391.73
 1    391.77       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_write1 783.50

memcpy CE GPU(row) <-> GPU(column) Total bandwidth (GB/s)
           0         1
 0       N/A    783.47
 1    783.56       N/A

SUM device_to_device_bidirectional_memcpy_write_ce_total 1567.02

Running device_to_device_latency_sm.
Device to Device Latency SM GPU(row) <-> GPU(column) (ns)
           0         1
 0       N/A    827.07
 1    827.69       N/A

SUM device_to_device_latency_sm 1654.75

Running host_to_device_memcpy_ce.
memcpy CE CPU(row) -> GPU(column) bandwidth (GB/s)
           0         1
 0     55.51     12.50

SUM host_to_device_memcpy_ce 68.01
"""
NCCL = """# nccl-tests version 2.17.6
# Collective test starting: all_reduce_perf
# nThread 1 nGpus 2 minBytes 8 maxBytes 268435456 step: 2(factor) warmup iters: 1 iters: 20 validation: 1 graph: 0
#
# Using devices
#  Rank  0 Group  0 Pid  1 on host device  0 [0000:b4:00] NVIDIA H200
#  Rank  1 Group  0 Pid  1 on host device  1 [0000:b5:00] NVIDIA H200
#
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
host:1:1 [0] NCCL INFO Launch mode Parallel
       12288          3072     float     sum      -1    17.74    0.69    0.69       0    18.08    0.68    0.68       0
   268435456      67108864     float     sum      -1   897.46  299.11  299.11       0   899.26  298.51  298.51       0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 149.7
"""


def figures(output: Any, kind: str) -> list[Any]:
    return [one for one in output.figures if one.kind == kind]


@pytest.mark.parametrize(
    ("text", "tool"),
    [
        (P2P_TEST, "p2pBandwidthLatencyTest"),
        (NVBANDWIDTH, "nvbandwidth"),
        (NVBANDWIDTH.partition("Running")[1] + NVBANDWIDTH.partition("Running")[2], "nvbandwidth"),
        (NCCL, "nccl-tests"),
        (
            "       12288          3072     float     sum      -1    17.74    0.69    0.69       0    18.08    0.68   "
            " 0.68       0\n",
            "nccl-tests",
        ),
        (" #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n", "perftest"),
        ("gpu0_to_gpu1_write_by_dma_under_numa0_uni 274.951\n", "superbench"),
        ('{"nccl-bw:nvlink/allreduce_8589934592_busbw:0": 230.1}', "superbench"),
        ('{"DCGM GPU Diagnostic": {"test_categories": []}}', "dcgmi diag"),
        ("============ Serving Benchmark Result ============\n", "server benchmark"),
        ("nothing of the kind", None),
        ('{"model_path": "x", "internal_states": [{"last_gen_throughput": 1.5}]}', None),
    ],
)
def test_tools_are_told_by_what_they_print(text: str, tool: str | None) -> None:
    assert tools.find_tool(text) == tool


def test_p2p_bandwidth_latency_test() -> None:
    output = p2p_test.read_output(P2P_TEST)
    assert output.devices[1] == {"name": "NVIDIA RTX A6000", "address": "0000:41:00.0"}
    assert output.can_access == {(0, 1): True, (1, 0): True} and output.complete
    on = [one for one in figures(output, "bandwidth") if one.peer]
    assert on[0].pairs == {(0, 1): 9.8, (1, 0): 9.81} and "160 MB" in on[0].method
    latency = [one for one in figures(output, "latency") if one.peer]
    assert latency[0].pairs == {(0, 1): 1.3, (1, 0): 1.31}  # of the GPU, not of the CPU
    reads = p2p_test.read_output(P2P_TEST.replace("(P2P Writes)", "(P2P Reads)"))
    assert next(one for one in figures(reads, "bandwidth") if one.peer).pairs == {(1, 0): 9.8, (0, 1): 9.81}


def test_a_cut_output_is_not_complete() -> None:
    assert not p2p_test.read_output(P2P_TEST[: len(P2P_TEST) // 2]).complete
    assert not nccl_tests.read_output(NCCL[: NCCL.index("# Out of")]).complete
    assert not nvbandwidth.read_output(NVBANDWIDTH[: NVBANDWIDTH.index("SUM")]).complete


def test_nvbandwidth_text() -> None:
    output = nvbandwidth.read_output(NVBANDWIDTH)
    assert output.devices[0]["address"] == "0000:00:06.0"
    # `GPU(row) <- GPU(column)`: the column is the source.
    assert figures(output, "bandwidth")[0].pairs == {(1, 0): 396.11, (0, 1): 381.18}
    assert figures(output, "both_ways")[0].pairs == {(1, 0): 783.47, (0, 1): 783.56}
    assert figures(output, "access_latency")[0].pairs[1, 0] == 0.8271  # microseconds
    assert figures(output, "from_host")[0].value == 12.5
    read = nvbandwidth.read_output(NVBANDWIDTH.replace("<- GPU", "-> GPU").replace("write_ce", "read_ce"))
    assert figures(read, "bandwidth")[0].pairs == {(0, 1): 396.11, (1, 0): 381.18}


def test_nvbandwidth_json_and_what_it_waives() -> None:
    cases = [
        {
            "name": "device_to_device_memcpy_read_ce",
            "status": "Passed",
            "bandwidth_description": "memcpy CE GPU(row) -> GPU(column) bandwidth (GB/s)",
            "bandwidth_matrix": [["N/A", "26.30"], ["26.10", "N/A"]],
        },
        {"name": "device_to_device_memcpy_write_sm", "status": "Waived"},
        {"name": "host_to_device_memcpy_sm", "status": "Error"},
    ]
    document = {"nvbandwidth": {"GPU Device list": ["Device 0: NVIDIA RTX A6000 (00000000:01:00)"], "testcases": cases}}
    output = nvbandwidth.read_output("a line of mpirun before it\n" + json.dumps(document))
    assert figures(output, "bandwidth")[0].pairs == {(0, 1): 26.3, (1, 0): 26.1}
    assert output.waived == ["device_to_device_memcpy_write_sm"] and output.failed == [
        "host_to_device_memcpy_sm: Error"
    ]
    assert nvbandwidth.read_output("Waiving device_to_device_memcpy_write_ce.\n").waived == [
        "device_to_device_memcpy_write_ce"
    ]


def test_nvbandwidth_finds_wrong_data() -> None:
    text = NVBANDWIDTH.partition("memcpy CE")[0] + " Invalid value when checking the pattern at 0x70a640000000\n"
    assert nvbandwidth.read_output(text).wrong


def test_nccl_tests_are_judged_by_the_largest_size() -> None:
    output = nccl_tests.read_output(NCCL)
    assert (output.figures[0].value, output.figures[0].size_bytes, output.figures[0].method) == (
        299.11,
        268435456,
        "all_reduce",
    )
    assert output.wrong == [] and output.checks_data and output.devices[1]["address"] == "0000:b5:00.0"
    assert nccl_tests.read_output(NCCL.replace("299.11       0", "299.11       7")).wrong
    assert nccl_tests.read_output(NCCL.replace(": 0 OK", ": 3 FAILED")).wrong
    unchecked = nccl_tests.read_output(re.sub(r"  0( {3}|\n)", r"N/A\1", NCCL))
    assert unchecked.figures and not unchecked.checks_data
    old = (
        "           8             2   float     sum    35.20    0.10    0.20    0e+00    34.05    0.10    0.21    "
        "0e+00\n"
    )
    assert nccl_tests.read_output(old).figures[0].value == 0.21


def test_perftest_counts_where_it_is_about_a_gpu() -> None:
    heading = " #bytes     #iterations    BW peak[Gb/sec]    BW average[Gb/sec]   MsgRate[Mpps]\n"
    row = heading + " 65536      5000             392.10             390.40               0.74\n"
    assert other_tools.read_perftest(row).figures == []
    output = other_tools.read_perftest(" Device         : mlx5_0\nPicking device No. 3\n" + row)
    assert output.figures[0].value == 48.8 and "GPU 3" in output.figures[0].method


def test_superbench_in_its_forms() -> None:
    text = "gpu0_to_gpu1_write_by_dma_under_numa0_uni 274.951\ngpu0_to_gpu1_write_by_dma_under_numa0_bi 480.1\n"
    text += "gpu0_to_gpu0_by_sm_under_numa0_uni 655.7\n"
    output = other_tools.read_superbench(text)
    assert figures(output, "bandwidth")[0].pairs == {(0, 1): 274.951} and figures(output, "both_ways")[0].pairs == {
        (0, 1): 480.1
    }
    line = json.dumps(
        {
            "nccl-bw:nvlink/allreduce_8192_busbw:0": 0.4,
            "nccl-bw:nvlink/allreduce_8589934592_busbw:0": 230.1,
            "nvbandwidth/device_to_device_memcpy_write_ce_gpu0_gpu1_bw:0": 276.0,
            "gpu-copy-bw/return_code": 3,
        }
    )
    output = other_tools.read_superbench(line)
    assert figures(output, "collective")[0].value == 230.1 and figures(output, "bandwidth")[0].pairs == {(1, 0): 276.0}
    assert output.failed == ["gpu-copy-bw: return code 3"]


@pytest.mark.parametrize("key", ["DCGM GPU Diagnostic", "DCGM Diagnostic"])
def test_dcgm_diagnostics(key: str) -> None:
    results = [
        {"gpu_ids": "0,1", "status": "PASS"},
        {"gpu_id": "3", "status": "Fail", "warnings": ["replays above the limit"]},
    ]
    tests = [{"name": "PCIe", "results": results}, None, {"name": "Memory", "results": [{"status": "Skip"}]}]
    output = other_tools.read_dcgm(
        "WARNING: x\n" + json.dumps({key: {"test_categories": [{"category": "Hardware", "tests": tests}]}})
    )
    assert output.failed == ["PCIe on GPU 3: Fail (replays above the limit)"] and output.waived == ["Memory"]
    assert other_tools.read_dcgm(
        "| Memory                    | Fail - GPU: 2                                  |\n"
    ).failed == ["Memory: Fail"]


def test_benchmarks_of_servers() -> None:
    text = "============ Serving Benchmark Result ============\nBackend:   sglang\n"
    text += (
        "Successful requests:   200\nFailed requests:  2\n"
        "Output token throughput (tok/s):   96.40\nMedian TTFT (ms):  120.5\n"
    )
    output = other_tools.read_server_benchmark(text)
    assert output.server == [
        {
            "engine": "sglang",
            "output_tokens_per_s": 96.4,
            "requests": 200.0,
            "failed_requests": 2.0,
            "first_token_ms": 120.5,
        }
    ]
    assert output.failed == ["2 requests failed"]
    document = json.dumps(
        {"backend": "vllm", "completed": 10, "output_throughput": 55.5, "total_token_throughput": 99.0}, indent=2
    )
    assert other_tools.read_server_benchmark(document).server[0]["output_tokens_per_s"] == 55.5
    assert (
        other_tools.read_server_benchmark(
            "Throughput: 2.50 requests/s, 1280.00 total tokens/s, 320.00 output tokens/s\n"
        ).server[0]["output_tokens_per_s"]
        == 320.0
    )


def measured(tmp_path: Path, text: str) -> dict[str, Any]:
    (tmp_path / "out.txt").write_text(text)
    facts: dict[str, Any] = gather(case.load_case(str(tmp_path / "out.txt")))["measurements"]
    return facts


@pytest.mark.parametrize(
    ("old", "new", "verdict"),
    [
        ("", "", "slow"),  # 9.8 with peer access on, 17.5 with it off
        ("   9.80", "  17.60", "ok"),  # no faster in bandwidth, and a latency that only a direct copy has
        ("   1.55   1.30", "   1.55   13.7", "staged"),
        ("Device=0 CAN Access", "Device=0 CANNOT Access", "not_usable"),
    ],
)
def test_verdicts_of_a_pair(tmp_path: Path, old: str, new: str, verdict: str) -> None:
    facts = measured(tmp_path, P2P_TEST.replace(old, new, 1) if old else P2P_TEST)
    assert facts["pairs"]["0000:01:00.0->0000:41:00.0"]["verdict"] == verdict
    assert facts["all_usable"] is (verdict != "not_usable")
    assert facts["all_fast"] is False  # the way back stays slow


def test_bandwidth_alone_does_not_decide(tmp_path: Path) -> None:
    text = (
        P2P_TEST[: P2P_TEST.index("P2P=Disabled Latency")].replace("   9.80", "  17.60").replace("   9.81", "  17.60")
    )
    facts = measured(tmp_path, text)
    assert facts["all_fast"] is None and {pair["verdict"] for pair in facts["pairs"].values()} == {"unknown"}


def test_a_live_host_has_no_measurements(tmp_path: Path) -> None:
    facts = measured(tmp_path, "nvidia-smi topo -p2p r\n GPU0\tGPU1\n GPU0\tX\tOK\n GPU1\tOK\tX\n")
    assert facts["tools"] == [] and facts["pairs"] == {} and facts["wrong"] == []


def probe(rate: float, latency: float = 0.6, enabled: bool = True) -> dict[str, Any]:
    pair = {
        "peer": {"enabled": enabled},
        "verdict": "ok",
        "bandwidth_gb_s": {"copy_alone": {"median": rate, "min": rate - 1, "max": rate + 1}},
        "latency_us": {"copy_12k_back_to_back": {"median": latency}},
    }
    sizes = {"268435456": {"bus_bandwidth_gb_s": 293.0}}
    return {"ran": True, "pairs": {"a->b": pair}, "collective": {"arms": {"configured": {"sizes": sizes}}}}


def other(
    rate: float, latency: float | None = None, all_reduce: float | None = None, can: bool | None = None
) -> dict[str, Any]:
    found = [
        {
            "tool": "nvbandwidth",
            "kind": "bandwidth",
            "method": "copy engine, write",
            "peer": True,
            "pairs": {"a->b": rate},
            "value": None,
        }
    ]
    if all_reduce:
        found.append(
            {
                "tool": "nccl-tests",
                "kind": "collective",
                "method": "all_reduce",
                "peer": None,
                "pairs": {},
                "value": all_reduce,
                "size_bytes": 268435456,
            }
        )
    return {
        "tools": [{}],
        "pairs": {"a->b": {"latency_us": latency, "can_access": can, "tool": "nvbandwidth"}},
        "figures": found,
    }


@pytest.mark.parametrize(
    ("ours", "theirs", "said"),
    [
        (probe(394.7), other(396.1, all_reduce=299.1), []),
        (probe(394.7), other(362.0), []),
        (probe(394.7), other(300.0), ["394", "395"]),
        (probe(55.0, 0.6), other(55.0, 13.7), ["through host memory"]),
        (probe(55.0), other(55.0, can=False), ["CANNOT Access Peer"]),
        (probe(394.7), other(394.0, all_reduce=26.9), ["all-reduce of 256 MiB"]),
    ],
)
def test_where_the_probe_and_a_tool_disagree(ours: dict[str, Any], theirs: dict[str, Any], said: list[str]) -> None:
    found = agreement.find_disagreements(ours, theirs)
    assert found is not None and bool(found) is bool(said)
    assert not said or any(part in found[0] for part in said)


def test_nothing_to_compare_is_unknown() -> None:
    assert (
        agreement.find_disagreements(None, other(1.0)) is None
        and agreement.find_disagreements(probe(1.0), {"tools": []}) is None
    )
