"""validate.yml on the example fleet: who is ready, why the other is not, exit status, reports, selection."""

from __future__ import annotations

import xml.etree.ElementTree as ET
from typing import Any

import pytest

ROOT_CAUSE = "vm_machine_q35"


@pytest.fixture
def fleet(play: Any) -> Any:
    return play("validate.yml")


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


def test_a_healthy_part_of_the_fleet_is_ready(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct,h200-x2")
    assert (run.rc, run.status) == (0, "successful")
    assert set(run.report["hosts"]) == {"llm-ct", "h200-x2"}


def test_a_limit_that_names_nothing_is_a_failure(play: Any) -> None:
    run = play("validate.yml", arguments="--limit no-such-host")
    assert run.rc != 0
    assert run.report == {} or run.report["hosts"] == {}


def test_check_mode_says_the_same_and_changes_nothing(play: Any, fleet: Any) -> None:
    run = play("validate.yml", arguments="--check")
    assert run.rc == fleet.rc
    for host in ("llm-vm", "llm-ct", "h200-x2", "pve1"):
        assert run.statuses(host) == fleet.statuses(host)


def test_tags_choose_checks(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct --tags p2p")
    chosen = run.results("llm-ct")
    assert run.rc == 0 and 0 < len(chosen) < 60
    assert all("p2p" in check["tags"] for check in chosen)


def test_a_waiver_lets_a_host_pass_until_its_day(play: Any) -> None:
    waivers = [
        {"check": name, "reason": "moved to Q35 next week", "expires": "2999-12-31"}
        for name in (ROOT_CAUSE, "chipset_supports_p2p", "p2p_granted")
    ]
    run = play("validate.yml", arguments="--limit llm-vm,pve1", gpu_host_waivers=waivers)
    assert run.rc == 0 and run.statuses("llm-vm")["p2p_granted"] == "waived"
    assert "moved to Q35 next week" in run.text and "2999-12-31" in run.text
    expired = [{**waiver, "expires": "2020-01-01"} for waiver in waivers]
    run = play("validate.yml", arguments="--limit llm-vm,pve1", gpu_host_waivers=expired)
    assert run.rc == 2 and run.statuses("llm-vm")["p2p_granted"] == "fail"


def test_what_is_expected_decides(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct", gpu_host_expected_here={"gpus": {"count": 4}})
    assert run.rc == 2 and run.statuses("llm-ct")["gpu_count_expected"] == "fail"


def test_a_misspelt_expectation_is_refused(play: Any) -> None:
    run = play("validate.yml", arguments="--limit llm-ct", gpu_host_expected_here={"gpus": {"cout": 8}})
    assert run.rc != 0 and "cout" in run.text and "Traceback" not in run.text
