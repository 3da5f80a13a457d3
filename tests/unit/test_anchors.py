"""The comparison of the probe with a plain loop in C and with NVIDIA's tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import anchors
import probe as benchmark
import pytest
import turns
from probe_library import A, B, compiled, environment

NVBANDWIDTH = """nvbandwidth Version: v0.8
Device 0: NVIDIA H200 (00000000:01:00)
Device 1: NVIDIA H200 (00000000:11:00)

Running device_to_device_memcpy_write_ce.
memcpy CE GPU(row) <- GPU(column) bandwidth (GB/s)
           0         1
 0       N/A    392.00
 1    394.00       N/A

SUM device_to_device_memcpy_write_ce 786.00
"""
ALL_REDUCE = """
# nThread 1 nGpus 2 minBytes 268435456 maxBytes 268435456 step: 2(factor) warmup iters: 5 iters: 20 validation: 1
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
   268435456      67108864     float     sum      -1   900.10  298.23  298.23      0   899.90  298.29  298.29      0
# Out of bounds values : 0 OK
# Avg bus bandwidth    : 298.26
"""


def figure(rate: float) -> dict[str, Any]:
    return {"bandwidth_gb_s": {"copy": {"median": rate}}}


RAW = {
    "devices": {A: {"cuda_index": 0}, B: {"cuda_index": 1}},
    "loopback": {},
    "pairs": {"%s->%s" % (A, B): figure(390.0), "%s->%s" % (B, A): figure(394.0)},
}


def test_the_plain_loop_in_c_runs_on_the_drivers_library_alone(tmp_path: Path) -> None:
    library = compiled(tmp_path)
    with environment(LD_LIBRARY_PATH=str(library), STANDIN_SLOW="1>0"):
        rates = anchors.measure_in_c(1)
    assert rates is not None and set(rates) == {"0->1", "1->0"}
    assert rates["0->1"] == pytest.approx(3.5 * rates["1->0"], rel=0.2)


def test_ratios_to_the_tools_that_are_here(tmp_path: Path) -> None:
    for name, text in (("nvbandwidth", NVBANDWIDTH), ("all_reduce_perf", ALL_REDUCE)):
        (tmp_path / name).write_text("#!/bin/sh\ncat <<'END'\n%sEND\n" % text)
        (tmp_path / name).chmod(0o755)
    with environment(GPU_HOST_TOOLS=str(tmp_path)):
        outputs = anchors.run_tools(2)
    reduced = {"arms": {"one_process": {"sizes": {"268435456": {"bus_bandwidth_gb_s": 297.0}}}}}
    records = anchors.compare_tools(outputs, RAW, reduced)
    told = {record["target"]: record["measured"] for record in records}
    assert sorted(value for value in told.values() if value) == [0.9898, 0.9957, 1.0051]
    assert any("p2pBandwidthLatencyTest is not here" in target for target in told)
    assert all(record["met"] is None for record in records)


def test_a_tool_that_fails_is_told(tmp_path: Path) -> None:
    (tmp_path / "nvbandwidth").write_text("#!/bin/sh\necho 'no CUDA-capable device is detected' >&2\nexit 3\n")
    (tmp_path / "nvbandwidth").chmod(0o755)
    with environment(GPU_HOST_TOOLS=str(tmp_path)):
        (record, *_) = anchors.compare_tools(anchors.run_tools(2), RAW, None)
    assert "exit status 3: no CUDA-capable device" in record["target"] and record["measured"] is None


def a_turn_of_the_plain_loop(rate: float, host: float = 55.4) -> dict[str, Any]:
    return {"pairs": {"0->1": rate}, "host": {A: {"to_gpu": host}}}


def a_turn_of_the_probe(rate: float | None, host: float = 55.3, seconds: float = 2.7) -> dict[str, Any]:
    alone = {"to_gpu": {"0": {"median": host}, "1": {"median": 31.0}}}
    pair = figure(rate) if rate else {}
    return {**RAW, "pairs": {"%s->%s" % (A, B): pair}, "host_links": {A: {"alone": alone}}, "seconds": seconds}


def compare_turns(plains: list[dict[str, Any]], probes: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return turns.compare_pairs(plains, probes) + turns.compare_host_links(plains, probes)


def test_one_slow_turn_of_either_decides_nothing_and_is_told() -> None:
    plains = [a_turn_of_the_plain_loop(rate, host) for rate, host in ((394.0, 55.4), (394.0, 53.2), (394.4, 55.4))]
    probes = [a_turn_of_the_probe(rate) for rate in (394.2, 394.2, 310.0)]
    pair, link = compare_turns(plains, probes)
    assert pair["met"] and link["met"]
    assert pair["ratios"] == [1.0005, 1.0005, 0.786] and link["ratios"] == [0.9982, 1.0395, 0.9982]
    assert "probe 310 to 394.2, plain loop 394 to 394.4 GB/s; ratios 0.7860 to 1.0005" in pair["target"]
    assert "plain loop 53.2 to 55.4 GB/s; ratios 0.9982 to 1.0395" in link["target"]


@pytest.mark.parametrize("ratio", [0.96, 1.04])
def test_a_probe_that_is_wrong_in_most_turns_is_missed(ratio: float) -> None:
    plains = [a_turn_of_the_plain_loop(394.0, 55.3) for _ in range(3)]
    probes = [a_turn_of_the_probe(394.0 * each, 55.3 * each) for each in (ratio, 1.0, ratio)]
    assert [(record["met"], record["measured"]) for record in compare_turns(plains, probes)] == [(False, ratio)] * 2


def test_a_machine_that_grows_faster_from_turn_to_turn_is_compared_at_the_same_time() -> None:
    plains = [a_turn_of_the_plain_loop(rate) for rate in (300.0, 350.0, 394.0)]
    probes = [a_turn_of_the_probe(rate) for rate in (301.0, 351.0, 395.0)]
    assert compare_turns(plains, probes)[0]["met"]


def test_a_turn_without_a_figure_is_a_miss() -> None:
    plains = [a_turn_of_the_plain_loop(394.0) for _ in range(3)]
    pair, link = compare_turns(plains, [a_turn_of_the_probe(rate) for rate in (394.0, None, 394.0)])
    assert pair["met"] is False and "394 in 2 of 3 turns" in pair["target"]
    assert link["met"]


def test_the_turns_alternate_and_all_of_them_are_kept() -> None:
    order: list[str] = []
    plains, probes = turns.take_turns(
        3, lambda: order.append("plain") or {"number": len(order)}, lambda: order.append("probe") or {}
    )
    assert order == ["plain", "probe", "probe", "plain", "plain", "probe"]
    assert len(plains) == len(probes) == 3


def test_the_time_is_the_median_of_the_turns_and_is_told_with_its_spread() -> None:
    probes = [a_turn_of_the_probe(394.0, seconds=seconds) for seconds in (2.6, 9.0, 2.8)]
    alone, reduced = turns.compare_time(probes, {"seconds": 5.3})
    assert alone["met"] and alone["measured"] == 2.8 and "turns: 2.6 to 9 s" in alone["target"]
    assert reduced["met"] is False and reduced["measured"] == 8.1


def test_the_plain_loop_allocates_on_the_node_of_the_gpu(tmp_path: Path) -> None:
    device = tmp_path / "bus/pci/devices" / A
    device.mkdir(parents=True)
    (device / "local_cpulist").write_text("0-3,8\n")
    assert benchmark.near_cpus(A, str(tmp_path)) == {0, 1, 2, 3, 8}
    assert benchmark.near_cpus(B, str(tmp_path)) == set()
