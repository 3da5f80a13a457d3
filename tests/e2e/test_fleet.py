"""validate.yml on the example fleet: who is ready, why the other is not, exit status, reports, selection."""

from __future__ import annotations

import importlib.util
import xml.etree.ElementTree as ET
from typing import Any

import pytest

from .conftest import HOSTS, ROOT

ROOT_CAUSE = "vm_machine_q35"


together = pytest.mark.xdist_group("fleet")


@pytest.fixture(scope="module")
def fleet(play_once: Any) -> Any:
    return play_once("validate.yml")


@together
def test_the_example_fleet(fleet: Any) -> None:
    assert (fleet.rc, fleet.status) == (2, "failed")
    assert fleet.failed_hosts() == {"llm-vm"}
    bad = {
        check["id"]: check
        for check in fleet.results("llm-vm")
        if check["severity"] == "error" and check["status"] not in ("pass", "skip")
    }
    assert set(bad) == {ROOT_CAUSE, "chipset_supports_p2p", "p2p_granted"}
    assert [name for name, check in bad.items() if check["root_cause"]] == [ROOT_CAUSE]
    for host in ("llm-ct", "h200-x2", "pve1"):
        statuses = fleet.statuses(host)
        wrong = {
            check["id"]
            for check in fleet.results(host)
            if check["severity"] == "error" and check["status"] not in ("pass", "skip")
        }
        assert wrong == set(), (host, wrong)
        assert "pass" in statuses.values()
    assert fleet.statuses("h200-x2")["p2p_granted"] == fleet.statuses("llm-ct")["p2p_granted"] == "pass"

    # What `make validate` compares with.
    specification = importlib.util.spec_from_file_location("dev", ROOT / "scripts" / "dev.py")
    assert specification and specification.loader
    dev = importlib.util.module_from_spec(specification)
    specification.loader.exec_module(dev)
    assert dev.failed_checks(fleet.report) == dev.EXAMPLE

    # The reports say the same.
    hosts = fleet.report["hosts"]
    assert set(hosts) == {"llm-vm", "llm-ct", "h200-x2", "pve1"}
    suites = {suite.get("name"): suite for suite in ET.parse(fleet.reports / "junit.xml").getroot().iter("testsuite")}
    assert set(hosts) <= set(suites)
    failures = {case.get("name") for case in suites["llm-vm"].iter("testcase") if case.find("failure") is not None}
    assert {ROOT_CAUSE, "chipset_supports_p2p", "p2p_granted"} <= failures
    assert [
        case
        for name in ("llm-ct", "h200-x2")
        for case in suites[name].iter("testcase")
        if case.find("failure") is not None
    ] == []
    for suite in suites.values():
        assert int(suite.get("tests", -1)) == len(list(suite.iter("testcase")))


def test_the_terminal_names_the_cause_what_follows_and_what_to_do(command: Any) -> None:
    run = command()
    assert run.rc == 2
    said = [
        run.text.index(words)
        for words in (
            "1 of 4 hosts NOT READY",
            ROOT_CAUSE,
            "i440FX",
            "56 of 56 directed pairs NS",
            "qm set 101 --machine q35",
        )
    ]
    assert said[0] < said[2] < said[3] < said[4]
    assert len(run.text) < 6000 and "Traceback" not in run.text and "failed_condition" not in run.text, (
        "raw results do not flood the terminal"
    )


def test_a_limit_that_names_nothing_is_a_failure(play: Any) -> None:
    run = play("validate.yml", arguments="--limit no-such-host")
    assert run.rc != 0
    assert run.report == {} or run.report["hosts"] == {}


@together
@pytest.mark.slow
def test_check_mode_says_the_same_and_changes_nothing(play: Any, fleet: Any) -> None:
    run = play("validate.yml", arguments="--check")
    assert run.rc == fleet.rc
    for host in ("llm-vm", "llm-ct", "h200-x2", "pve1"):
        assert run.statuses(host) == fleet.statuses(host)


@pytest.mark.slow
def test_tags_choose_checks(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct --tags p2p")
    chosen = run.results("llm-ct")
    assert run.rc == 0 and 0 < len(chosen) < 60
    assert all("p2p" in check["tags"] for check in chosen)


def waivers(expires: str) -> list[dict[str, str]]:
    return [
        {"check": name, "reason": "moved to Q35 next week", "expires": expires}
        for name in (ROOT_CAUSE, "chipset_supports_p2p", "p2p_granted")
    ]


@pytest.mark.slow
def test_a_healthy_part_is_ready_and_a_waiver_lets_a_host_pass(play: Any) -> None:
    run = play("validate.yml", gpu_host_waivers=waivers("2999-12-31"))
    assert (run.rc, run.status) == (0, "successful") and run.statuses("llm-vm")["p2p_granted"] == "waived"
    assert set(run.report["hosts"]) == {"llm-vm", "pve1", "llm-ct", "h200-x2"} and run.failed_hosts() == set()
    assert "moved to Q35 next week" in run.text and "2999-12-31" in run.text


@pytest.mark.slow
def test_what_the_inventory_says_of_a_host_decides(play: Any) -> None:
    """One host after its waiver's day, one with other expectations, one with a misspelt one, one with none."""
    vm, ct = ({"gpu_host_bundle": str(HOSTS / (name + ".jsonl.gz"))} for name in ("kvm-story", "serving"))
    hosts = {
        "expired": {**vm, "gpu_host_waivers": waivers("2020-01-01")},
        "counted": {**ct, "gpu_host_expected_here": {"gpus": {"count": 4}}},
        "misspelt": {**ct, "gpu_host_expected_here": {"gpus": {"cout": 8}}},
        "healthy": {**ct, "gpu_host_expected_here": {"gpus": {"count": 8}}},
    }
    run = play("validate.yml", {"all": {"hosts": hosts}})
    assert run.rc == 2 and "Traceback" not in run.text
    assert run.failed_hosts() == {"expired", "counted", "misspelt"}
    assert run.statuses("expired")["p2p_granted"] == "fail"
    assert run.statuses("counted")["gpu_count_expected"] == "fail"
    assert run.statuses("healthy")["gpu_count_expected"] == "pass"
    assert "cout" in run.messages()["misspelt"]
