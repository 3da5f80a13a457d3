"""The selection of checks, and the verdict on a host."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import verdict

from . import report_samples as samples
from .check_samples import item, load


def chosen(directory: Path, **selection: Any) -> tuple[list[str], list[str]]:
    every = load(
        directory, item(id="a", tags=["driver"]), item(id="b", tags=["driver", "p2p"]), item(id="c", tags=["pci"])
    )
    found, problems = verdict.choose_checks(every, **selection)
    return [check.id for check in found], problems


@pytest.mark.parametrize(
    ("selection", "ids"),
    [
        ({}, ["a", "b", "c"]),
        ({"tags": ["driver"]}, ["a", "b"]),
        ({"tags": ["p2p", "pci"]}, ["b", "c"]),
        ({"skip_tags": ["driver"]}, ["c"]),
        ({"only": ["b"]}, ["b"]),
        ({"exclude": ["b"]}, ["a", "c"]),
        ({"run_tags": ["all"]}, ["a", "b", "c"]),
        ({"run_tags": ["p2p", "deploy"]}, ["b"]),
        ({"run_tags": ["deploy"]}, ["a", "b", "c"]),
        ({"run_skip_tags": ["driver", "slow"]}, ["c"]),
    ],
)
def test_selection(tmp_path: Path, selection: dict[str, Any], ids: list[str]) -> None:
    assert chosen(tmp_path, **selection) == (ids, [])


@pytest.mark.parametrize(
    "selection", [{"tags": ["drivr"]}, {"skip_tags": ["drivr"]}, {"only": ["aa"]}, {"exclude": ["aa"]}]
)
def test_a_misspelt_selection_is_a_problem(tmp_path: Path, selection: dict[str, Any]) -> None:
    _ids, problems = chosen(tmp_path, **selection)
    assert len(problems) == 1
    assert "there is no" in problems[0]


@pytest.mark.parametrize("status", ["fail", "unknown", "error"])
@pytest.mark.parametrize(("severity", "failed"), [("error", True), ("warning", False), ("info", False)])
def test_severity_decides(status: str, severity: str, failed: bool) -> None:
    outcome = verdict.summarise_verdict([samples.result("a"), samples.result("b", status, severity=severity)])
    assert outcome["failed"] is failed
    assert outcome["summary"]["ready"] is not failed


@pytest.mark.parametrize("results", [[], [samples.result("a", "skip"), samples.result("b", "skip")]])
def test_no_check_run_is_a_failure(results: list[dict[str, Any]]) -> None:
    outcome = verdict.summarise_verdict(results)
    assert outcome["failed"] is True
    assert "nothing was validated" in outcome["msg"]


def test_a_problem_fails_a_healthy_host() -> None:
    outcome = verdict.summarise_verdict([samples.result("a")], ["waiver 1: there is no check 'b'"])
    assert outcome["failed"] is True
    assert "waiver 1" in outcome["msg"]


def test_the_message_names_causes_first() -> None:
    assert (
        samples.judged(samples.broken_host())["msg"]
        == "2 failed: chipset_supports_p2p, p2p_granted; 2 unknown: p2p_fast, acs_redirect_off"
    )
    assert samples.judged([samples.result("a"), samples.result("b", "skip")])["msg"] == "ready: 1 checks"
