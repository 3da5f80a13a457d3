"""What the probe's figures of links mean: host links, path classes, counters, and what bad pairs have in common."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import p2p_facts
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.probe import (
    host_link_verdict,
    load_verdict,
    path_classes,
    phase_counters,
    phase_results,
    shared_ports,
    worker_run,
)

GPUS = ["0000:%02x:00.0" % number for number in range(8)]
GEN5 = {"speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
# Four GPUs below each of two switches.
PATHS = {
    gpu: ["root%d" % (at // 4), "switch%d" % (at // 4), "port%d" % at] for at, gpu in enumerate(GPUS)
}  # fmt: skip


def device(gpu: str, link: dict[str, Any] | None = None, node: int | None = 0) -> dict[str, Any]:
    return {"name": "GPU", "link": link or GEN5, "place": {"path": PATHS[gpu], "numa_node": node}}


def figure(rate: float | None) -> dict[str, Any]:
    return {"median": rate, "min": rate, "max": rate}


def host_link(near: float, far: float | None = None, at_once: float | None = None) -> dict[str, Any]:
    nodes = {"0": figure(near), **({} if far is None else {"1": figure(far)})}
    beside = figure(near if at_once is None else at_once)
    return {
        "alone": {"to_gpu": nodes, "from_gpu": nodes},
        "at_once": {"to_gpu": beside, "from_gpu": beside},
    }


def judge(links: list[dict[str, Any]], **devices: dict[str, Any]) -> dict[str, Any]:
    used = GPUS[: len(links)]
    facts = {gpu: devices.get("gpu%d" % at) or device(gpu) for at, gpu in enumerate(used)}
    return host_link_verdict.judge_host_links(dict(zip(used, links)), facts)


@pytest.mark.parametrize(
    ("link", "full"),
    [
        ((32.0, 16), 55.4),  # nvbandwidth on an H200: 55.5
        ((16.0, 16), 27.7),
        ((8.0, 16), 13.9),
        ((32.0, 4), 13.9),
        ((None, 16), None),
        ((32.0, None), None),
        ((7.0, 16), None),
    ],
)
def test_the_expectation_follows_the_links_width_and_generation(link: tuple[Any, Any], full: float | None) -> None:
    state = {"speed_gt_s": link[0], "width": link[1]}
    assert host_link_verdict.expect_host_link(state)["full_gb_s"] == full
    assert host_link_verdict.expect_host_link(None)["full_gb_s"] is None


def test_good_links_are_good() -> None:
    found = judge([host_link(55.5, 47.3) for _ in range(8)])
    assert {link["verdict"] for link in found["links"].values()} == {"ok"}
    assert not any(found[name] for name in (*host_link_verdict.LISTS, "shared_uplinks"))


def test_a_slow_card_is_told_from_the_others() -> None:
    found = judge([host_link(55.5, 47.3)] * 3 + [host_link(28.0, 27.0)])
    assert found["slow_host_links"] == [GPUS[3]] and "28 GB/s alone" in found["explanations"]["slow_host_links"][0]
    assert not found["misplaced_gpus"] + found["collapsed_host_links"]


def test_a_card_whose_link_is_not_shown_is_compared_with_its_twins() -> None:
    hidden = {"gpu%d" % at: {**device(GPUS[at]), "link": {}} for at in range(4)}
    found = judge([host_link(55.5)] * 3 + [host_link(12.0)], **hidden)
    assert found["slow_host_links"] == [GPUS[3]]
    assert "the other cards of this model reach 55.5" in found["explanations"]["slow_host_links"][0]
    # Of two nobody knows which is the slow one.
    assert judge([host_link(55.5), host_link(12.0)], **hidden)["slow_host_links"] == []


@pytest.mark.parametrize("link", [{**GEN5, "width": 4}, {**GEN5, "speed_gt_s": 2.5}])
def test_a_link_that_trained_down_says_so(link: dict[str, Any]) -> None:
    found = judge([host_link(55.5), host_link(3.2)], gpu1=device(GPUS[1], link))
    assert found["trained_down_host_links"] == [GPUS[1]] and not found["slow_host_links"]
    assert "the card can do 32 GT/s x16" in found["explanations"]["trained_down_host_links"][0]


def test_a_wrong_node_is_told_from_a_slow_card() -> None:
    found = judge([host_link(55.5, 47.3), host_link(40.0, 55.0)])
    assert found["misplaced_gpus"] == [GPUS[1]] and not found["slow_host_links"]
    # Where the GPU's own node is not known, the better one counts and nothing is wrong.
    unknown = {"gpu1": device(GPUS[1], node=None)}
    assert judge([host_link(55.5, 47.3), host_link(40.0, 55.0)], **unknown)["misplaced_gpus"] == []


def test_a_shared_uplink_is_named_and_is_no_fault() -> None:
    found = judge([host_link(55.5, at_once=13.8)] * 4 + [host_link(55.5)] * 4)
    assert not any(found[name] for name in host_link_verdict.LISTS)
    assert found["links"][GPUS[0]]["verdict"] == "shared_uplink" and found["links"][GPUS[4]]["verdict"] == "ok"
    (down, up) = found["shared_uplinks"]
    assert (
        "4 GPUs at once (root port root0 (switch switch0)): 55.2 GB/s together, one alone 55.5" in down and up != down
    )


def test_an_uplink_that_collapses_is_a_fault() -> None:
    found = judge([host_link(55.5)] * 4 + [host_link(55.5, at_once=2.7)] * 4)
    assert found["collapsed_host_links"] == GPUS[4:] and found["shared_uplinks"] == []
    assert "root port root1 (switch switch1)" in found["explanations"]["collapsed_host_links"][0]


def test_one_gpu_that_gets_little_of_what_others_take_shares_with_them() -> None:
    found = judge([host_link(55.5, at_once=20.0), host_link(55.5, at_once=50.0)])
    assert not any(found[name] for name in host_link_verdict.LISTS)
    assert "%s at once" % GPUS[0] in found["shared_uplinks"][0]


def test_what_was_not_measured_is_unknown() -> None:
    assert judge([host_link(55.5), {}])["links"][GPUS[1]]["verdict"] == "unknown"


def replayed(place: tuple[Any, ...], value: Any) -> dict[str, Any]:
    """The facts of a recorded probe with another value at one place; the value "gone" takes it out."""
    path = Path(__file__).resolve().parents[1] / "fixtures" / "hosts" / "kvm-q35.jsonl.gz"
    evidence = bundle.load_bundle(str(path)).copy()
    raw = json.loads(evidence.run(worker_run.PROBE_COMMAND).text)
    inside = raw
    for key in place[:-1]:
        inside = inside[key]
    inside[place[-1]] = value
    if value == "gone":
        del inside[place[-1]]
    evidence.add({"run": list(worker_run.PROBE_COMMAND), "status": "ok", "rc": 0, "stdout": json.dumps(raw)})
    found: dict[str, Any] = p2p_facts.facts(evidence, {})["ansible_facts"]["p2p_probe"]
    return found


CARD = "0000:02:00.0"


@pytest.mark.parametrize(
    ("place", "value", "unknown"),
    [
        (("host_links",), "x", host_link_verdict.LISTS),
        (("host_links",), "gone", host_link_verdict.LISTS),
        (("host_links", CARD), "gone", host_link_verdict.LISTS),
        (("host_links", CARD, "alone"), {"a": 1}, host_link_verdict.LISTS),
        (("host_links", CARD, "alone", "to_gpu"), {}, host_link_verdict.LISTS),
        (("host_links", CARD, "alone", "to_gpu", "0", "median"), float("inf"), host_link_verdict.LISTS),
        (("host_links", CARD, "at_once", "from_gpu"), None, ("collapsed_host_links",)),
        (("phases",), "x", phase_counters.LISTS),
        (("phases", "latency", "counters"), "gone", phase_counters.LISTS),
        (("phases", "latency", "seconds"), None, phase_counters.LISTS),
        (("phases", "latency", "counters", "gpus", CARD, "replays"), "x", ("link_errors_in_phases",)),
        (("phases", "latency", "counters", "gpus"), "gone", phase_counters.LISTS[:2]),
    ],
    ids=str,
)
def test_what_a_damaged_result_could_have_held_is_unknown(
    place: tuple[Any, ...], value: Any, unknown: tuple[str, ...]
) -> None:
    found = replayed(place, value)
    assert {name for name in unknown if found[name] is None} == set(unknown)
    assert not [name for name in (*host_link_verdict.LISTS, *phase_counters.LISTS) if found[name]]
    assert found["all_delivered"] is found["all_fast"] is True  # the pairs are known all the same


# -- names of ports
# ----------------------------------------------------------------------------------------------------------------


def test_gpus_are_grouped_below_the_highest_port_that_only_they_share() -> None:
    assert shared_ports.group_by_port(GPUS[:4], PATHS) == ([("root0", GPUS[:4])], [])
    assert shared_ports.group_by_port(GPUS[:3], PATHS) == ([], GPUS[:3])  # the fourth is not among them
    assert shared_ports.group_by_port(GPUS, {}) == ([], GPUS)


def test_the_port_that_only_bad_pairs_cross_is_named() -> None:
    every = ["%s->%s" % (a, b) for a in GPUS for b in GPUS if a != b]
    crossing = [name for name in every if (GPUS.index(name[:12]) < 4) != (GPUS.index(name[-12:]) < 4)]
    found = shared_ports.find_ports_of_pairs(crossing, every, PATHS)
    # Of two, nothing tells which.
    assert found == ["root port root0 (switch switch0) or root port root1 (switch switch1)"]
    assert shared_ports.find_ports_of_pairs(crossing[:-1], every, PATHS) == []  # a good pair crosses both
    of_one = [name for name in every if GPUS[0] in name]
    assert shared_ports.find_ports_of_pairs(of_one, every, PATHS) == []  # a card, not a port
    assert shared_ports.find_ports_of_pairs(every, every, {}) == []


def test_a_collapse_of_many_to_one_names_the_switch() -> None:
    rates = {"bandwidth_gb_s": {"copy": {"median": 50.0}}}
    pairs = {"%s->%s" % (a, b): {**rates, "source": a, "target": b} for a in GPUS for b in GPUS if a != b}
    slow = {"bandwidth_gb_s": {"median": 2.7, "min": 2.6, "max": 2.9}, "corrupt_pairs": []}
    good = {"bandwidth_gb_s": {"median": 49.0, "min": 48.0, "max": 49.5}, "corrupt_pairs": []}
    result: dict[str, Any] = {
        "pairs": pairs,
        "devices": {gpu: device(gpu) for gpu in GPUS},
        "many_to_one": {gpu: slow if at >= 4 else good for at, gpu in enumerate(GPUS)},
        "one_to_many": {gpu: slow if at == 2 else good for at, gpu in enumerate(GPUS)},
        "all_at_once": None,
        "events": [],
        "corrupt_under_load": [],
        "collapsed_under_load": [],
    }
    load_verdict.judge_load(result)
    assert result["collapsed_under_load"] == [
        "all others to %s: 2.7 GB/s (2.6 to 2.9) together, one alone 50; so it is with all 4 GPUs below "
        "root port root1 (switch switch1)" % GPUS[4],
        "%s to all others: 2.7 GB/s (2.6 to 2.9) together, one alone 50" % GPUS[2],
    ]


def judge_collapse(slow: dict[int, float], **more: Any) -> list[str]:
    """What is said where all others together reach so many GB/s at these GPUs, and 49 at the rest."""
    rates = {"bandwidth_gb_s": {"copy": {"median": 50.0}}}
    loads = {
        gpu: {"bandwidth_gb_s": {"median": slow.get(at, 49.0)}, "corrupt_pairs": []} for at, gpu in enumerate(GPUS)
    }
    result: dict[str, Any] = {
        "pairs": {"%s->%s" % (a, b): {**rates, "source": a, "target": b} for a in GPUS for b in GPUS if a != b},
        "devices": {gpu: device(gpu) for gpu in GPUS},
        "many_to_one": loads, "one_to_many": {}, "all_at_once": None, "events": [],
        "corrupt_under_load": [], "collapsed_under_load": [], **more,
    }  # fmt: skip
    load_verdict.judge_load(result)
    found: list[str] = result["collapsed_under_load"]
    return found


def test_loads_that_only_cross_the_port_that_collapses_are_told_with_it() -> None:
    (text,) = judge_collapse({**dict.fromkeys(range(4), 18.0), **dict.fromkeys(range(4, 8), 6.0)})
    assert "all 4 GPUs below root port root1" in text and "4 other GPUs, which cross it too, reach 18 to 18" in text


def test_of_two_switches_that_look_alike_the_links_to_the_host_tell() -> None:
    every = dict.fromkeys(range(8), 8.0)
    assert ["root port root0" in text for text in judge_collapse(every)] == [True, False]
    links = {gpu: {"verdict": "collapsed" if at >= 4 else "ok"} for at, gpu in enumerate(GPUS)}
    (text,) = judge_collapse(every, host_links=links)
    assert "root port root1" in text and "root0" not in text
    both = {gpu: {"verdict": "collapsed"} for gpu in GPUS}
    assert len(judge_collapse(every, host_links=both)) == 2


def test_a_gpu_that_is_slower_than_the_port_is_told_by_itself() -> None:
    port, single = judge_collapse({**dict.fromkeys(range(4, 8), 8.0), 1: 2.0})
    assert "root port root1" in port and "cross it too" not in port
    assert single == "all others to %s: 2 GB/s together, one alone 50" % GPUS[1]


# -- path classes
# ------------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("cell", "source", "target", "wanted"),
    [
        ("NV18", None, None, "NVLink"),
        ("NODE", None, None, "NODE"),
        ("?", None, None, None),
        (None, None, None, None),
        (None, device(GPUS[0])["place"], device(GPUS[1])["place"], "PIX"),
        (None, {"path": ["r", "s", "d", "t", "x"]}, {"path": ["r", "s", "e", "u", "y"]}, "PXB"),
        (None, {"path": ["a"], "root_complex": "pci0"}, {"path": ["b"], "root_complex": "pci0"}, "PHB"),
        (None, {"path": ["a"], "numa_node": 1}, {"path": ["b"], "numa_node": 1}, "NODE"),
        (None, {"path": ["a"], "numa_node": 0}, {"path": ["b"], "numa_node": 1}, "SYS"),
        (None, {"path": ["a"], "numa_node": None}, {"path": ["b"], "numa_node": 1}, None),
        (None, {"path": [None]}, {"path": ["b"]}, None),
    ],
)
def test_the_class_of_a_pair(cell: Any, source: Any, target: Any, wanted: str | None) -> None:
    assert path_classes.classify_path(cell, source, target) == wanted


def classes(rates: dict[str, list[float]], in_guest: bool | None = False) -> dict[str, Any]:
    pairs = {
        "%s%d" % (name, number): {"path_class": name, "bandwidth_gb_s": {"copy": {"median": rate}}}
        for name, found in rates.items()
        for number, rate in enumerate(found)
    }
    return path_classes.summarise_classes(pairs, in_guest)


def test_classes_are_compared_by_their_medians() -> None:
    found = classes({"NODE": [55.0] * 12, "SYS": [48.4] * 32})
    assert list(found["classes"]) == ["NODE", "SYS"] and found["classes"]["SYS"]["slower_percent"] == 12.0
    assert found["classes"]["SYS"]["pairs"] == 32 and found["outliers"] == [] and found["compared"] == 44


@pytest.mark.parametrize(
    ("rates", "in_guest", "outliers"),
    [
        ([50.0] * 11 + [40.0], False, 1),
        ([50.0] * 11 + [46.0], False, 0),  # within a tenth
        ([50.0, 48.0, 52.0, 46.0, 54.0, 44.0, 56.0, 43.0], False, 0),  # they differ by themselves
        ([50.0] * 11 + [40.0], True, 0),  # a guest does not see the sockets
        ([50.0] * 11 + [30.0], True, 1),
        ([50.0] * 6 + [25.0] * 6, False, 0),  # two kinds of pairs, no outliers
        ([50.0, 50.0, 20.0], False, 0),  # too few
        ([50.0] * 11 + [70.0], False, 0),  # faster is no fault here
    ],
)
def test_outliers_are_found_without_any_expectation(rates: list[float], in_guest: bool, outliers: int) -> None:
    assert len(classes({"SYS": rates}, in_guest)["outliers"]) == outliers


def test_nvlink_is_compared_closely_in_a_guest_too() -> None:
    assert classes({"NVLink": [390.0] * 11 + [330.0]}, True)["outliers"] == ["NVLink11"]


# -- counters
# ----------------------------------------------------------------------------------------------------------------------


def phase(
    seconds: float | None = 3.0, aer: dict[str, Any] | None = None, log: Any = None, **gpu: Any
) -> dict[str, Any]:
    counted = {"replays": 0, "brakes": [], "nvlink": {}, **gpu}
    return {"budget_s": 4.0, "seconds": seconds, "counters": {"gpus": {GPUS[0]: counted}, "aer": aer or {}, "log": log}}


def test_quiet_links_are_quiet() -> None:
    assert phase_counters.summarise_counters({"latency": phase(replays=1, log=["NVRM: loading"])}) == {
        name: [] for name in phase_counters.LISTS
    }


@pytest.mark.parametrize(
    ("facts", "name", "words"),
    [
        (phase(replays=412), "link_errors_in_phases", "%s while host links ran: 412 PCI Express replays" % GPUS[0]),
        (phase(nvlink={"link 3 replay": 1}), "link_errors_in_phases", "NVLink link 3 replay +1"),
        (
            phase(aer={"root0": {"correctable BadTLP": 40}}),
            "link_errors_in_phases",
            "root0 while host links ran: BadTLP",
        ),
        (phase(aer={"root0": {"fatal DLP": 1}}), "link_errors_in_phases", "fatal DLP +1"),
        (phase(brakes=["hw_slowdown"]), "throttled_in_phases", "hw slowdown"),
        (phase(log=["NVRM: Xid (PCI:0000:61:00): 79, GPU has fallen off the bus."]), "kernel_lines_in_phases", "79"),
    ],
)
def test_what_grows_while_a_phase_runs_is_named_with_it(facts: dict[str, Any], name: str, words: str) -> None:
    found = phase_counters.summarise_counters({"host_links": facts})
    assert len(found[name]) == 1 and words in found[name][0]
    assert [other for other in phase_counters.LISTS if found[other]] == [name]


@pytest.mark.parametrize(
    ("facts", "unknown"),
    [
        (phase(seconds=None), set(phase_counters.LISTS)),
        ({"budget_s": 1.0}, set(phase_counters.LISTS)),
        (phase(replays=None), {"link_errors_in_phases"}),
        (phase(nvlink=None), {"link_errors_in_phases"}),
        (phase(brakes=None), {"throttled_in_phases"}),
    ],
)
def test_a_counter_that_was_not_read_is_unknown(facts: dict[str, Any], unknown: set[str]) -> None:
    found = phase_counters.summarise_counters({"control": facts})
    assert {name for name in phase_counters.LISTS if found[name] is None} == unknown


def test_harmless_errors_stay_harmless() -> None:
    facts = phase(aer={GPUS[0]: {"nonfatal UnsupReq": 5, "correctable BadTLP": 2, "correctable NonFatalErr": 9}})
    assert phase_counters.summarise_counters({"control": facts})["link_errors_in_phases"] == []


def test_a_pair_for_which_there_was_no_time_says_which_phase() -> None:
    phases = {"latency": {"budget_s": 2.88, "left": ["a->b"]}, "control": {"left": None}}
    assert "the phase 'latency' was out of its 2.88 s" in str(phase_results.find_phase_without_time(phases, "a->b"))
    assert phase_results.find_phase_without_time(phases, "b->a") is None
