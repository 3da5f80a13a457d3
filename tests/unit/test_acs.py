"""Which ports decide about a pair of GPUs."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.pcie import acs


def gpu(path: list[str] | None, root: str | None = "pci0000:00") -> dict[str, Any]:
    return {"path": path, "root_complex": root}


def port(kind: str = "downstream", redirects: bool | None = False) -> dict[str, Any]:
    control = {"request_redirect": bool(redirects), "completion_redirect": False}
    return {
        "kind": kind,
        "acs": {"present": redirects is not None, "control": control, "control_raw": "0004", "redirects": redirects},
    }


@pytest.mark.parametrize(
    ("first", "second", "relation", "ports"),
    [
        (["r1", "u", "d1"], ["r1", "u", "d2"], "same_switch", ["d1", "d2"]),
        (
            ["r1", "u", "d1", "u2", "d3"],
            ["r1", "u", "d2"],
            "same_switch",
            ["d1", "d2"],
        ),  # cascaded switches: only the turn counts
        (["r1", "u", "d1", "u2", "d3"], ["r1", "u", "d1", "u2", "d4"], "same_switch", ["d3", "d4"]),
        (["r1"], ["r2"], "same_root_complex", ["r1", "r2"]),
        (["r1", "u", "d1"], ["r2"], "same_root_complex", ["r1", "r2"]),
        ([], [], "same_root_complex", []),  # a flat bus, as virtual machines have
        (["p"], ["p"], "same_bridge", []),
        (None, ["r2"], None, []),
    ],
)
def test_where_traffic_turns(first: Any, second: Any, relation: str | None, ports: list[str]) -> None:
    bridges = {"p": port("pci_bridge")}
    (pair,) = acs.list_pairs({"a": gpu(first), "b": gpu(second)}, bridges)
    assert (pair["relation"], pair["turn_ports"]) == (relation, ports)


def test_gpus_of_two_sockets() -> None:
    (pair,) = acs.list_pairs({"a": gpu(["r1"]), "b": gpu(["r2"], "pci0000:80")}, {})
    assert (pair["relation"], pair["common"]) == ("different_root_complex", None)


def test_eight_gpus_make_28_pairs() -> None:
    assert len(acs.list_pairs({str(n): gpu(["r%d" % n]) for n in range(8)}, {})) == 28


def test_a_redirect_deeper_than_the_turn_does_not_count() -> None:
    pairs = acs.list_pairs({"a": gpu(["r1", "u", "d1"]), "b": gpu(["r2"])}, {})
    bridges = {"r1": port("root_port"), "r2": port("root_port"), "d1": port(redirects=True)}
    assert acs.find_redirecting(pairs, bridges, below_switch=False) == []
    assert acs.find_redirecting(pairs, bridges, below_switch=True) == []


def test_an_unknown_port_beside_a_redirecting_one_does_not_hide_it() -> None:
    pairs = acs.list_pairs({"a": gpu(["r1"]), "b": gpu(["r2"]), "c": gpu(["r3"])}, {})
    bridges = {"r1": port("root_port", True), "r2": port("root_port", None), "r3": port("root_port")}
    found = acs.find_redirecting(pairs, bridges, below_switch=False)
    assert found is not None
    assert [(entry["address"], entry["pairs"]) for entry in found] == [("r1", ["a b", "a c"])]
    bridges["r1"] = port("root_port")
    assert acs.find_redirecting(pairs, bridges, below_switch=False) is None


@pytest.mark.parametrize(("state", "present", "redirects"), [(None, None, None), (False, False, False)])
def test_no_capability_is_not_the_same_as_unreadable(state: Any, present: Any, redirects: Any) -> None:
    described = acs.describe_acs(state)
    assert (described["present"], described["redirects"]) == (present, redirects)
