"""The real worker on eight and on sixteen stand-ins: every injected fault is named by what names it, within the budget.

The stand-in's time is reckoned on a clock of its own and nobody waits for it; the tests add it to the processor time
that the worker took, so that a busy machine changes nothing. `sysfs` is a directory of the test, with two (four)
switches of four GPUs.
"""

from __future__ import annotations

import resource
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.probe.worker_run import Probe
from probe_library import compiled, environment

LIMITS_S = {8: 30, 16: 60}
LONG = [pytest.mark.slow, pytest.mark.long]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("libcuda"))


def address(number: int) -> str:
    return "0000:%02x:00.0" % (0x10 * number + 1)


def name(source: int, target: int) -> str:
    return "%s->%s" % (address(source), address(target))


def build_sysfs(root: Path, count: int, narrow: int | None = None) -> Path:
    """Switches of four GPUs, half of the switches on each NUMA node; the link of GPU `narrow` is x4."""
    (root / "bus/pci/devices").mkdir(parents=True)
    for number in range(count):
        switch = number // 4
        place = "devices/pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0/0000:%02x:%02x.0/%s" % (
            0xA0 + switch,
            0xA0 + switch,
            0xB0 + switch,
            0xC0 + switch,
            number % 4,
            address(number),
        )
        device = root / place
        device.mkdir(parents=True)
        (root / "bus/pci/devices" / address(number)).symlink_to(device)
        (device / "numa_node").write_text("%d\n" % (number >= count // 2))
        width = 4 if number == narrow else 16
        for file, text in (
            ("current_link_speed", "32.0 GT/s PCIe"),
            ("max_link_speed", "32.0 GT/s PCIe"),
            ("current_link_width", width),
            ("max_link_width", 16),
        ):
            (device / file).write_text("%s\n" % text)
    return root


def run(
    library: Path, sysfs: Path, count: int, options: dict[str, Any] | None = None, **steered: str
) -> dict[str, Any]:
    """The facts of one probe, and `all_seconds`: what the worker computed, and what the GPUs would have taken."""
    clock = sysfs.parent / "clock"
    given = {"buffer_mib": 1, "init_limit_s": 30, "budget_s": 600, "sysfs": str(sysfs), **(options or {})}
    variables = {"STANDIN_GPUS": str(count), "STANDIN_SWITCH": "4", "STANDIN_QUICK": "1", "STANDIN_CLOCK": str(clock)}
    told: list[str] = []
    before = resource.getrusage(resource.RUSAGE_CHILDREN)
    with environment(LD_LIBRARY_PATH=str(library), **variables, **steered):
        raw = Probe(given, 600, progress=told.append).run()
    after = resource.getrusage(resource.RUSAGE_CHILDREN)
    found = p2p_probe.fill_result(raw, p2p_probe._empty(), {"topology": {}, "p2p": {}, "in_guest": False})
    found["all_seconds"] = after.ru_utime - before.ru_utime + after.ru_stime - before.ru_stime
    found["all_seconds"] += float(clock.read_text())
    found["told"] = told
    return found


def faults(found: dict[str, Any]) -> set[str]:
    return {key for key in p2p_probe.LISTS if found[key]}


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_a_healthy_host_is_measured_within_its_time(library: Path, tmp_path: Path, count: int) -> None:
    found = run(library, build_sysfs(tmp_path / "sys", count), count)
    assert found["all_seconds"] < LIMITS_S[count]
    assert found["verdicts"] == {"pairs": count * (count - 1), "ok": count * (count - 1)}
    assert faults(found) == set() and found["unfinished_phases"] == []
    assert set(found["path_classes"]) == {"PIX", "SYS"} | ({"NODE"} if count == 16 else set())
    # Four GPUs share the link of their switch to the host: told, and no fault.
    assert len(found["shared_uplinks"]) == 2 * count // 4
    assert {link["verdict"] for link in found["host_links"].values()} == {"shared_uplink"}
    assert len(found["told"]) == len(found["phases"]) and "phase 1 of 6" in found["told"][0]
    # Pairs that share no link work at the same time, and none is slower for it.
    assert max(pair["bandwidth_gb_s"]["copy"]["concurrent"] for pair in found["pairs"].values()) > 1
    assert min(pair["bandwidth_gb_s"]["copy"]["median"] for pair in found["pairs"].values()) > 45


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_faults_that_have_nothing_to_do_with_one_another_are_each_named(
    library: Path, tmp_path: Path, count: int
) -> None:
    """One bad direction, a card whose link is x4, wrong data under load only, a link that sends packets again."""
    narrow = count - 2
    steered = {"STANDIN_SLOW": "1>2", "STANDIN_SLOW_LINK": str(narrow), "STANDIN_CORRUPT_LOADED": "3>4"}
    found = run(library, build_sysfs(tmp_path / "sys", count, narrow), count, STANDIN_REPLAYS="5", **steered)
    assert found["all_seconds"] < LIMITS_S[count]
    assert found["trained_down_host_links"] == [address(narrow)] and found["slow_host_links"] == []
    assert name(1, 2) in found["class_outliers"] and name(2, 1) not in found["class_outliers"]
    assert name(1, 2) in found["slow_pairs"] and name(1, 2) in found["one_way_pairs"]
    assert found["corrupt_under_load"] == [name(3, 4)] and found["undelivered_pairs"] == []
    assert {text[:12] for text in found["link_errors_in_phases"]} == {address(5)}
    others = {pair for pair in found["class_outliers"] if address(narrow) not in pair}
    assert others == {name(1, 2)} and len(found["class_outliers"]) > count // 2


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=pytest.mark.slow)])
def test_a_slow_switch_is_named(library: Path, tmp_path: Path, count: int) -> None:
    found = run(library, build_sysfs(tmp_path / "sys", count), count, STANDIN_SLOW_SWITCH="1")
    assert found["all_seconds"] < LIMITS_S[count]
    assert len(found["slow_pairs"]) + len(found["staged_pairs"]) == 2 * 4 * (count - 4)
    named = "root port 0000:a1:01.0 (switch 0000:b1:00.0)"
    # Of two switches, what crosses one crosses the other; the host's links tell which it is.
    assert len(found["ports_of_bad_pairs"]) == 1 and named in found["ports_of_bad_pairs"][0]
    assert (found["ports_of_bad_pairs"][0] == named) == (count > 8)
    assert found["slow_host_links"] == [address(number) for number in range(4, 8)]


@pytest.mark.parametrize("count", [8, pytest.param(16, marks=LONG)])
def test_a_switch_that_collapses_under_load_only_is_named(library: Path, tmp_path: Path, count: int) -> None:
    """By every load that shows it, and no other switch by any: all of them send through it."""
    found = run(library, build_sysfs(tmp_path / "sys", count), count, STANDIN_COLLAPSE="1")
    assert found["all_seconds"] < LIMITS_S[count]
    assert faults(found) == {"collapsed_under_load", "collapsed_host_links"}
    assert found["collapsed_host_links"] == [address(number) for number in range(4, 8)]
    switch = "root port 0000:a1:01.0 (switch 0000:b1:00.0)"
    assert switch in found["explanations"]["collapsed_host_links"][0]
    to_one, to_many, every = found["collapsed_under_load"]
    assert to_one.startswith("all others to %s: " % address(4)) and to_many.startswith(
        "%s to all others: " % address(4)
    )
    assert every.startswith("all pairs at once: ")
    for text in (to_one, to_many):
        assert "so it is with all 4 GPUs below %s" % switch in text
    assert "the loads of %d other GPUs, which cross it too" % (count - 4) in to_one
    assert "they cross %s," % switch in every
    assert not [port for port in ("a0", "a2", "a3") if "0000:%s:01.0" % port in "".join((to_one, to_many, every))]


@pytest.mark.parametrize("count", [pytest.param(8, marks=pytest.mark.slow), pytest.param(16, marks=LONG)])
def test_a_hang_in_the_third_phase_costs_its_pair(library: Path, tmp_path: Path, count: int) -> None:
    """Copies of a pair: four to deliver, then the latency."""
    sysfs = build_sysfs(tmp_path / "sys", count)
    found = run(library, sysfs, count, {"pair_limit_s": 1.0}, STANDIN_HANG_AT="2>3@5")
    assert [(event["stage"], event["kind"]) for event in found["events"]] == [("latency", "hung")]
    assert found["hung_pairs"] == [name(2, 3)] and "'latency'" in found["explanations"]["hung_pairs"][0]
    assert found["all_seconds"] + found["events"][0]["seconds"] < LIMITS_S[count]
    assert found["verdicts"]["ok"] >= count * (count - 1) - 2 and found["unfinished_phases"] == []
    assert any("'latency' hung" in text for text in found["told"])


def test_a_phase_without_time_leaves_its_pairs_unknown(library: Path, tmp_path: Path) -> None:
    found = run(library, build_sysfs(tmp_path / "sys", 4), 4, {"budget_s": 0.05})
    assert found["unfinished_phases"] and found["all_delivered"] is None and found["verdicts"].get("ok", 0) == 0
    assert "was out of its" in found["explanations"]["unmeasured_pairs"][0]
    assert found["slow_host_links"] is found["all_usable"] is None


def test_pairs_on_nvlink_all_work_at_once(library: Path, tmp_path: Path) -> None:
    found = run(library, build_sysfs(tmp_path / "sys", 6), 6, STANDIN_NVLINK="1")
    assert {pair["bandwidth_gb_s"]["copy"]["concurrent"] for pair in found["pairs"].values()} == {3}
    counted = found["phases"]["control"]["counters"]["gpus"][address(0)]
    assert (counted["nvlink"], counted["nvlink_counters"]) == ({}, 8)  # four links, none of which made an error
    assert found["link_errors_in_phases"] == []
