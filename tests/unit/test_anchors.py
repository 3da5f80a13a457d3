"""The comparison of the probe with a plain loop in C and with NVIDIA's tools."""

from __future__ import annotations

import json
import os
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

TOOL = Path(__file__).resolve().parents[1] / "fixtures" / "tools" / "tool.py"


def install_tools(directory: Path, *names: str) -> None:
    """Executables of these names that print what the real ones printed on two H200."""
    for name in names:
        (directory / name).write_text('#!/bin/sh\nexec %s %s %s "$@"\n' % (sys.executable, TOOL, name))
        (directory / name).chmod(0o755)


def figure(rate: float) -> dict[str, Any]:
    return {"bandwidth_gb_s": {"copy": {"median": rate}}}


def host_link(to_gpu: float, from_gpu: float) -> dict[str, Any]:
    return {"alone": {"to_gpu": {"0": {"median": to_gpu}}, "from_gpu": {"0": {"median": from_gpu}}}}


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
    install_tools(tmp_path, "nvbandwidth", "p2pBandwidthLatencyTest", "all_reduce_perf")
    with environment(GPU_HOST_TOOLS=str(tmp_path)):
        outputs = anchors.run_tools(2)
    reduced = {"arms": {"one_process": {"sizes": {"268435456": {"bus_bandwidth_gb_s": 297.0}}}}}
    host_links = {A: host_link(55.4, 55.2), B: host_link(55.5, 55.3)}
    records = anchors.compare_tools(outputs, {**RAW, "host_links": host_links}, reduced)
    assert {record["target"]: record["measured"] for record in records} == {
        # The tool's rows are the targets of its writes.
        "nvbandwidth, copy engine, write, 0->1: probe 390.0, tool 396.18 GB/s": 0.9844,
        "nvbandwidth, copy engine, write, 1->0: probe 394.0, tool 396.11 GB/s": 0.9947,
        "nvbandwidth, copy engine, host link to_gpu, lowest of all GPUs: probe 55.4, tool 55.5 GB/s": 0.9982,
        "nvbandwidth, copy engine, host link from_gpu, lowest of all GPUs: probe 55.2, tool 55.31 GB/s": 0.998,
        "p2pBandwidthLatencyTest, copy engine, 160 MB, 5 repeats, 0->1: probe 390.0, tool 361.75 GB/s": 1.0781,
        "p2pBandwidthLatencyTest, copy engine, 160 MB, 5 repeats, 1->0: probe 394.0, tool 390.99 GB/s": 1.0077,
        "all_reduce_perf of 256 MiB: probe 297.0, tool 299.11 GB/s": 0.9929,
    }
    assert all(record["met"] is None for record in records)


def test_tools_that_are_not_here_and_tools_of_pairs_on_one_gpu(tmp_path: Path) -> None:
    install_tools(tmp_path, "p2pBandwidthLatencyTest")
    with environment(GPU_HOST_TOOLS=str(tmp_path), PATH=str(tmp_path)):
        outputs = anchors.run_tools(1)
    assert outputs["nvbandwidth"] == "nvbandwidth is not here (PATH, GPU_HOST_TOOLS)"
    assert outputs["p2pBandwidthLatencyTest"] == "p2pBandwidthLatencyTest measures between GPUs, and one is here"


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


@pytest.mark.slow
def test_make_bench_on_a_host_with_gpus(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole comparison: the plain loop in C, the loop of host memory, the probe, and the tools, on stand-ins."""
    library = compiled(tmp_path)
    install_tools(tmp_path, "nvbandwidth", "nvidia-smi")
    monkeypatch.setattr(sys, "argv", ["probe.py", "--mib", "2", "--json", str(tmp_path / "records.json")])
    variables = {"LD_LIBRARY_PATH": str(library), "STANDIN_QUICK": "1", "GPU_HOST_TOOLS": str(tmp_path)}
    with environment(**variables, PATH="%s:%s" % (tmp_path, os.environ["PATH"])):
        status = benchmark.main()
    records = json.loads((tmp_path / "records.json").read_text())
    ratios = {record["target"].split(": probe")[0]: record["ratios"] for record in records if "ratios" in record}
    links = {"host link %s %s" % (address, way) for address in (A, B) for way in ("to_gpu", "from_gpu")}
    assert set(ratios) == {"copy bandwidth 0->1", "copy bandwidth 1->0"} | links
    assert {len(each) for each in ratios.values()} == {3}
    told = capsys.readouterr().out
    assert "the plain loop between GPUs is in C; 3 turns of it and of the probe" in told
    assert "ratio  nvbandwidth, copy engine, write, 0->1" in told and "all_reduce_perf is not here" in told
    assert status == (0 if all(record["met"] is not False for record in records) else 1)
