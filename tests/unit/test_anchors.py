"""The comparison of the probe with a plain loop in C and with NVIDIA's tools."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "benchmarks"))

import anchors
import pytest
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
