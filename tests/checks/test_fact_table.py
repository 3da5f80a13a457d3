"""Every fact of a host is compared with its baseline, or computed from what is, or noise: none is forgotten."""

from __future__ import annotations

import copy
import functools
from collections.abc import Iterator
from typing import Any

import harness
import pytest
from ansible.module_utils.gpu_compare import fact_table, rules

RECORDED = sorted({*harness.BASES, *(path.name.split(".")[0] for path in harness.HOSTS.glob("*.jsonl.gz"))})
# What no recorded host shows: an option of another machine's command line, and a probe on a host with one GPU.
UNSEEN = {
    "modules.registry_dwords.configured.*",
    "probe.loopback.<card>.bandwidth_gb_s.*",
    "probe.loopback.<card>.latency_us.*",
    "probe.collective.arms.*.torch",  # of bundles written before NCCL was called without PyTorch
    "proxmox.containers.*.cgroup1_rules",
}


@functools.cache
def facts_of(name: str) -> dict[str, Any]:
    settings = harness.BASES.get(name, {})
    expected, facts = settings.get("expected", {}), settings.get("facts")
    hypervisor, proxmox = harness.hypervisor_of(settings), bool(settings.get("proxmox"))
    return harness.facts_of_host(harness.base(name), expected, facts, hypervisor, proxmox)


@pytest.mark.parametrize("name", RECORDED)
def test_every_fact_has_a_line(name: str) -> None:
    unknown = sorted(set(rules.find_unknown(facts_of(name), fact_table.TREE)))
    assert unknown == [], "add each to module_utils/gpu_compare/fact_table.py, as compared, derived or noise"


@pytest.mark.parametrize(
    "place", [("gpus",), ("gpus", "devices", "0000:01:00.0"), ("pci", "bridges", "0000:00:01.1"), ("driver", "on_disk")]
)
def test_a_new_fact_is_found(place: tuple[str, ...]) -> None:
    host = copy.deepcopy(facts_of("bare-metal"))
    inside = functools.reduce(lambda value, part: value[part], place, host)
    inside["new_fact"] = 1
    assert list(rules.find_unknown(host, fact_table.TREE)) == [".".join((*place, "new_fact"))]


def test_a_new_member_of_a_list_is_found() -> None:
    host = copy.deepcopy(facts_of("bare-metal"))
    host["driver"]["dkms"][0]["new_fact"] = 1
    assert list(rules.find_unknown(host, fact_table.TREE)) == ["driver.dkms.[].new_fact"]


@pytest.mark.long
@pytest.mark.slow
def test_every_broken_host_too_and_no_line_is_of_a_fact_that_there_is_not() -> None:
    seen: set[rules.Path] = set()
    unknown: set[str] = set()
    for host in [*(facts_of(name) for name in RECORDED), *_broken_hosts()]:
        unknown.update(rules.find_unknown(host, fact_table.TREE))
        _collect_rules(host, fact_table.TREE, seen)
    assert sorted(unknown) == []
    unused = {
        ".".join(rule.path)
        for rule in fact_table.RULES
        if rule.path not in seen and rule.path[:2] != ("kernel", "values")  # parameters that no recorded host has
    }
    assert unused <= UNSEEN, "misspelt, or a fact that there was once"


def _broken_hosts() -> Iterator[dict[str, Any]]:
    for path in harness.overlays():
        broken = harness.overlay(path)
        settings = harness.BASES[broken.base]
        expected = harness.merged(settings.get("expected", {}), broken.expected)
        facts = harness.merged(settings.get("facts") or {}, broken.facts)
        hypervisor = harness.hypervisor_of(settings, broken.hypervisor, path.name)
        yield harness.facts_of_host(harness.changed(broken), expected, facts, hypervisor, bool(settings.get("proxmox")))


def _collect_rules(value: Any, node: rules.Node, seen: set[rules.Path]) -> None:
    if node.rule is not None:
        seen.add(node.rule.path)
    for name, part in value.items() if isinstance(value, dict) else ():
        member = node.find_member(str(name))
        if member is not None:
            _collect_rules(part, member[1], seen)


def test_what_is_derived_says_from_what() -> None:
    """A source is compared, or leads to something that is; nothing is derived from noise alone."""
    compared = [rule.path for rule in fact_table.RULES if rule.how in rules.COMPARED]
    derived = [rule for rule in fact_table.RULES if rule.how == rules.DERIVED]
    sources = {source for rule in derived for source in rule.of}
    lost = [".".join(source) for source in sources if not any(rules.is_covered_by(source, path) for path in compared)]
    assert len(derived) > 200 and lost == []


def test_noise_has_a_reason_and_what_is_compared_a_name() -> None:
    for rule in fact_table.RULES:
        if rule.how in (rules.NOISE, *rules.COMPARED):
            assert rule.label, rule.path
        if rule.how == rules.MEASURED:
            assert rule.unit and 0 < rule.floor < 1, rule.path
        places = rule.label.count("{")
        assert places <= sum(part == rules.NAME for part in rule.path), rule.path
