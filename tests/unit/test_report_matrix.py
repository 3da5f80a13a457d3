"""The P2P tables: what the driver says and what the probe measured.

As one model and as text for terminals of any width.
"""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_report import digest, matrix, matrix_text, terminal

from . import report_samples as samples


def address(number: int) -> str:
    return "0000:%02x:00.0" % (number + 1)


def host(count: int = 4, status: str = "OK", path: str = "NODE", **cells: Any) -> dict[str, Any]:
    """Facts of a host on which every pair has one status and path.

    `cells`: read or write cells to change, {(a, b): status}.
    """
    numbers = range(count)
    p2p = {
        way: {
            address(a): {address(b): cells.get(way, {}).get((a, b), status) for b in numbers if a != b} for a in numbers
        }
        for way in ("read", "write")
    }
    links = {address(a): {address(b): path for b in numbers if a != b} for a in numbers}
    return {"gpus": {"devices": {address(a): {"index": a} for a in numbers}}, "p2p": p2p, "topology": {"links": links}}


def pair(rate: float = 55.4, delay: float = 0.94, verdict: str = "ok", **more: Any) -> dict[str, Any]:
    figure = {
        "median": rate,
        "min": rate,
        "max": rate,
        "size_mib": 256,
        "iterations": 5,
        "transfers": 8,
        "method": "copy_engine",
        "concurrent": 2,
    }
    answer = {
        "median": delay,
        "min": delay,
        "max": delay,
        "size_bytes": 12288,
        "iterations": 5,
        "transfers": 64,
        "method": "copy_engine, events",
    }
    return {
        "verdict": verdict, "reason": "", "least_gb_s": 47.9, "path": "NODE",
        "delivered": {"copy_engine": {"sizes": [1]}},
        "bandwidth_gb_s": {"copy": figure}, "latency_us": {"copy_12k_back_to_back": answer}, **more,
    }  # fmt: skip


def probed(facts: dict[str, Any], ran: bool = True, **changed: dict[str, Any]) -> dict[str, Any]:
    """`facts` with a probe; `changed`: "0_1" -> the pair."""
    numbers = range(len(facts["gpus"]["devices"]))
    pairs = {
        "%s->%s" % (address(a), address(b)): changed.get("p%d_%d" % (a, b), pair())
        for a in numbers
        for b in numbers
        if a != b
    }
    probe = {"ran": ran, "skipped_reason": None if ran else "the GPUs are in use by python3 (pid 7)", "pairs": pairs}
    return {**facts, "probe": digest.digest_probe(probe)}


def tables(facts: dict[str, Any]) -> dict[str, matrix.Matrix]:
    return {table.key: table for table in matrix.build_matrices(facts)}


def test_one_gpu_has_no_pair() -> None:
    assert matrix.build_matrices(host(1)) == []
    assert matrix.build_matrices({}) == []
    assert matrix_text.describe_p2p({"gpus": None, "p2p": {"read": None}, "topology": None, "probe": None}, 80) == []


@pytest.mark.parametrize(
    ("cells", "text", "level"),
    [
        ({}, "OK", matrix.GOOD),
        ({"read": {(0, 1): "NS"}, "write": {(0, 1): "NS"}}, "NS", matrix.BAD),
        ({"read": {(0, 1): "CNS"}}, "CNS/OK", matrix.BAD),
        ({"write": {(0, 1): None}}, "?", matrix.UNKNOWN),  # half an answer is none
        ({"read": {(0, 1): "NS"}, "write": {(0, 1): None}}, "NS", matrix.BAD),
    ],
)
def test_what_the_driver_grants(cells: dict[str, Any], text: str, level: str) -> None:
    table = tables(host(**cells))["granted"]
    assert table.rows[0][1] == matrix.Cell(text, level)
    assert table.rows[1][0] == matrix.Cell("OK", matrix.GOOD)
    assert [table.rows[n][n].level for n in range(4)] == [matrix.SELF] * 4


def test_nvlink_takes_the_place_of_ok() -> None:
    found = tables(host(path="NV18"))
    assert {cell.text for _a, _b, cell in found["granted"].others()} == {"NV18"}
    assert found["topology"].rows[0][1].level == "h5"
    # A refused pair with NVLink is refused.
    assert tables(host(status="NS", path="NV18"))["granted"].rows[0][1] == matrix.Cell("NS", matrix.BAD)


def test_gpus_are_in_the_order_of_nvidia_smi_and_a_lost_one_is_last() -> None:
    facts = host(3)
    facts["gpus"]["devices"] = {address(0): {"index": 2}, address(1): {"index": None}, address(2): {"index": 0}}
    assert [(gpu.label, gpu.address) for gpu in matrix.list_gpus(facts)] == [
        ("0", address(2)),
        ("2", address(0)),
        ("?", address(1)),
    ]
    assert address(1) in "\n".join(matrix_text.draw_matrix(tables(facts)["granted"], 20))  # nothing else names it


def test_figures_and_their_heat() -> None:
    unmeasured = pair(verdict="unknown", bandwidth_gb_s=None, latency_us=None)
    found = tables(probed(host(), p0_1=pair(30.0, 13.7, "staged"), p1_0=pair(49.0), p2_3=unmeasured))
    rates, delays = found["bandwidth"], found["latency"]
    assert (rates.unit, delays.unit) == ("GB/s", "µs")
    assert rates.rows[0][1] == matrix.Cell("30.0", matrix.BAD)
    assert rates.rows[1][0] == matrix.Cell("49.0", "h4")
    assert rates.rows[0][2] == matrix.Cell("55.4", "h5")
    assert rates.rows[2][3] == delays.rows[2][3] == matrix.Cell("?", matrix.UNKNOWN)
    assert delays.rows[0][1] == matrix.Cell("13.7", matrix.BAD)
    assert found["verdict"].rows[0][1] == matrix.Cell("HOST", matrix.DOUBT)
    assert found["verdict"].rows[2][3].level == matrix.UNKNOWN
    assert dict(found["verdict"].legend)["HOST"] == "as slow as through host memory"


@pytest.mark.parametrize("verdict", list(matrix.VERDICTS))
def test_only_ok_is_good(verdict: str) -> None:
    cell = tables(probed(host(), p0_1=pair(verdict=verdict)))["verdict"].rows[0][1]
    assert (cell.level == matrix.GOOD) == (verdict == "ok")


def test_a_verdict_of_a_newer_probe_is_shown_and_not_good() -> None:
    assert tables(probed(host(), p0_1=pair(verdict="melted")))["verdict"].rows[0][1] == matrix.Cell(
        "melted", matrix.BAD
    )


def test_a_probe_that_did_not_run_proves_nothing() -> None:
    facts = probed(host(), ran=False)
    assert set(tables(facts)) == {"granted", "topology"}
    lines = matrix_text.describe_p2p(facts, 80)
    assert lines == [
        "all 12 directed pairs OK: granted (as the driver says, not proven)",
        "the probe did not run: the GPUs are in use by python3 (pid 7)",
    ]


def test_a_uniform_table_is_a_sentence() -> None:
    assert matrix_text.describe_p2p(host(8, "NS"), 80) == [
        "all 56 directed pairs NS: not supported (as the driver says)"
    ]
    assert matrix_text.describe_p2p(host(2, path="NV18"), 80) == [
        "both directed pairs NV18: NVLink (as the driver says, not proven)"
    ]
    halved = host(2)
    halved["p2p"]["write"] = None  # only `nvidia-smi topo -p2p r` was pasted
    unknown = "both directed pairs: unknown whether the driver grants P2P"
    assert matrix_text.describe_p2p(halved, 200) == [
        unknown + ": the driver's answer for reads is at hand (OK on every pair), not the other"
    ]
    assert matrix_text.describe_p2p({**halved, "p2p": {"read": None}}, 200) == [unknown]
    lines = matrix_text.describe_p2p(probed(host(p0=None)), 200)
    assert lines[1:] == [
        "bandwidth 55.4 GB/s on every pair (a healthy pair: at least 47.9)",
        "latency of a 12 KiB copy 0.94 µs on every pair",
    ]


def test_the_worst_pair_is_named() -> None:
    lines = matrix_text.describe_p2p(probed(host(), p2_1=pair(7.5, 21.0, "staged")), 200)
    worst = "worst from GPU 2 to GPU 1 (0000:03:00.0 to 0000:02:00.0)"
    assert "bandwidth 7.50 to 55.4 GB/s, %s (a healthy pair: at least 47.9)" % worst in lines
    assert "latency of a 12 KiB copy 0.94 to 21.0 µs, worst from GPU 2 to GPU 1 (0000:03:00.0 to 0000:02:00.0)" in lines
    assert any(line.split() == ["2", "0000:03:00.0", "OK", "HOST", "·", "OK"] for line in lines)


@pytest.mark.parametrize("count", [2, 8, 16])
@pytest.mark.parametrize("width", [36, 76, 96, 200])
def test_tables_fit_any_width_and_lose_no_cell(count: int, width: int) -> None:
    facts = host(count, read={(0, 1): "CNS"}, write={(0, 1): "CNS"})
    lines = matrix_text.describe_p2p(facts, width)
    assert max(map(len, lines)) <= width
    drawn = matrix_text.draw_matrix(tables(facts)["granted"], width)
    cells = [cell for line in drawn for cell in line.split() if cell in ("OK", "CNS", "·")]
    assert (len(cells), cells.count("CNS"), cells.count("·")) == (count * count, 1, count)


def test_sixteen_gpus_with_addresses_fit_the_usual_width() -> None:
    drawn = matrix_text.draw_matrix(tables(host(16, read={(0, 1): "CNS"}, write={(0, 1): "CNS"}))["granted"], 96)
    assert len(drawn) == 17
    assert drawn[16].startswith("15 0000:10:00.0")


def failing(facts: dict[str, Any], names: list[str], status: str = "fail") -> dict[str, Any]:
    report = samples.report()
    report["hosts"] = {name: {**report["hosts"]["gpu10"], "facts": facts} for name in names}
    for record in report["hosts"].values():
        record["results"] = [{"id": "p2p_granted", "status": status, "found": "56 of 56 pairs NS"}]
    return report


def test_the_terminal_shows_it_where_p2p_failed_and_equal_hosts_once() -> None:
    lines = [
        text for text, _tone in terminal.render_terminal(failing(host(8, "NS"), ["gpu%d" % n for n in range(100)]))
    ]
    assert sum("all 56 directed pairs NS" in line for line in lines) == 1
    assert "  - gpu0, gpu1, gpu2, gpu3, gpu4, gpu5 and 94 more:" in lines


def test_the_terminal_says_why_a_healthy_host_was_not_measured() -> None:
    lines = [text for text, _tone in terminal.render_terminal(failing(probed(host(), ran=False), ["gpu1"], "pass"))]
    assert any("the probe did not run: the GPUs are in use by python3 (pid 7)" in line for line in lines)


def test_the_terminal_leaves_healthy_hosts_out_unless_asked() -> None:
    report = failing(host(), ["gpu1"], "pass")
    assert not any("directed pairs" in text for text, _tone in terminal.render_terminal(report))
    assert any("all 12 directed pairs OK" in text for text, _tone in terminal.render_terminal(report, verbosity=1))


def test_the_digest_keeps_the_spread_and_the_method_once() -> None:
    kept = probed(host())["probe"]
    assert kept["pairs"]["0000:01:00.0->0000:02:00.0"]["bandwidth_gb_s"] == {
        "copy": {"median": 55.4, "min": 55.4, "max": 55.4}
    }
    assert kept["methods"]["bandwidth_gb_s.copy"] == "copy_engine, 256 MiB, 5 x 8 transfers, 2 pairs at a time"
    assert digest.digest_probe({"ran": False})["pairs"] == {}


def test_the_largest_all_reduce_stands_beside_the_control() -> None:
    sizes = {"12288": {"bus_bandwidth_gb_s": 1.4}, "268435456": {"bus_bandwidth_gb_s": 294.4}}
    arms = {"configured": {"sizes": sizes}, "p2p_disabled": {"sizes": {"268435456": {"bus_bandwidth_gb_s": 26.8}}}}
    assert matrix_text._all_reduce({"arms": arms}) == "all-reduce of 256 MiB by NCCL: 294 GB/s; 26.8 GB/s without P2P"
    assert matrix_text._all_reduce({"arms": {"configured": {"sizes": {}}}}) == matrix_text._all_reduce({}) == ""
