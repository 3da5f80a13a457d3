"""What a report says of links: path classes, host links, phases, and the ladder."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "checks"))

import harness
import pytest
from ansible.module_utils.gpu_report import digest, link_figures, matrix, matrix_text


def facts_of(overlay: str | None = None, base: str = "bare-metal") -> dict[str, Any]:
    """The facts as a report keeps them, of a recorded host or of a broken one."""
    if overlay:
        path = Path(__file__).resolve().parents[1] / "checks" / "broken" / (overlay + ".yml")
        broken = harness.overlay(path)
        return digest.digest_facts(harness.facts_of_host(harness.changed(broken), broken.expected))
    return digest.digest_facts(harness.facts_of_host(harness.base(base), {}))


@pytest.fixture(scope="module")
def healthy() -> dict[str, Any]:
    return facts_of()


def test_a_healthy_host_has_one_line_of_links(healthy: dict[str, Any]) -> None:
    assert link_figures.describe_links(healthy, verbose=False) == [
        "by path: NODE 55.4 GB/s (24 pairs), SYS 45.2 (32 pairs, 18.4 % slower); "
        "host links 55.2 to 55.3 GB/s to the GPUs, 54.1 to 54.2 from them (a good link: 55.4)"
    ]


def test_with_verbosity_each_link_has_its_bar_and_each_phase_its_time(healthy: dict[str, Any]) -> None:
    lines = link_figures.describe_links(healthy, verbose=True)
    bars = [line for line in lines if "█" in line]
    assert len(bars) == 16 and bars[0].startswith("to   GPU 0 ███") and "55.2 of 55.4 GB/s, 53.5 with" in bars[0]
    assert any(line.startswith("phase 'host links': 1.30 s, of 2.4 s") for line in lines)


def test_the_expectation_stands_beside_the_bandwidth(healthy: dict[str, Any]) -> None:
    tables = {table.key: table for table in matrix.build_matrices(healthy)}
    assert tables["expected"].rows[0][1].text == "47.9" and tables["expected"].rows[0][4].text == "37.8"
    lines = " ".join(matrix_text.describe_p2p(healthy, 100))
    assert "(a healthy pair: at least 37.8 to 47.9)" in lines


def test_a_slow_card_is_shown_without_being_asked() -> None:
    facts = facts_of("host_links_fast")
    lines = link_figures.describe_links(facts, verbose=False)
    (bar,) = [line for line in lines if "(slow)" in line and line.startswith("to ")]
    assert "GPU 2" in bar and "28.4 of 55.4 GB/s" in bar and bar.count("█") == 12
    table = link_figures.build_host_link_table(facts)
    assert table and any("slow: host to GPU: 28.4 GB/s alone" in row[-1] for row in table.rows)


def test_an_outlier_is_told_with_its_class() -> None:
    lines = link_figures.describe_links(facts_of("p2p_uniform_by_path"), verbose=False)
    assert any("38.4 GB/s, the median of the 32 pairs across NUMA nodes (SYS) is 45.2" in line for line in lines)


def test_the_ladder_ends_with_the_servers_own_use(healthy: dict[str, Any]) -> None:
    table = link_figures.build_ladder_table(healthy, [{"id": "p2p_engaged", "status": "fail"}])
    assert table and [row[:2] for row in table.rows] == [("NODE", "24"), ("SYS", "32")]
    row = dict(zip(table.head, table.rows[0]))
    assert [row[name] for name in ("Granted", "Usable", "Delivered", "Fast")] == ["yes"] * 4
    assert (row["GB/s"], row["At least"], row["Engaged"]) == ("55.4", "47.9", "NO")
    assert row["From GPU → to GPU"].startswith("0→1, 0→2, 0→3, 1→0")
    asked = link_figures.build_ladder_table(healthy, [])
    assert asked and dict(zip(asked.head, asked.rows[0]))["Engaged"] == link_figures.NOT_ASKED


def test_the_ladder_says_nothing_beyond_the_rung_that_failed() -> None:
    facts = facts_of("p2p_fast")
    table = link_figures.build_ladder_table(facts, [{"id": "p2p_engaged", "status": "pass"}])
    assert table
    row = dict(zip(table.head, table.rows[0]))
    assert [row[name] for name in ("Delivered", "Fast", "Collective", "Engaged")] == ["yes", "NO", "–", "–"]


def test_a_host_without_such_figures_says_nothing() -> None:
    for facts in ({"gpus": None, "probe": None}, {"probe": {"ran": False}}, facts_of(base="no-gpu")):
        assert link_figures.describe_links(facts, verbose=True) == []
        for build in (
            link_figures.build_path_table,
            link_figures.build_host_link_table,
            link_figures.build_phase_table,
        ):
            assert build(facts) is None
    old = facts_of(base="h200-x1")  # recorded before the probe had phases
    assert link_figures.build_host_link_table(old) is None and link_figures.build_phase_table(old) is None
    assert link_figures.describe_links(old, verbose=False) == []
