"""Waivers: accepted for a while, with a reason; expired or misspelt ones accept nothing."""

from __future__ import annotations

import datetime
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import waivers

from .check_samples import item, judge

TODAY = datetime.date(2026, 6, 15)
GOOD = {"check": "hmm_off", "reason": "ticket 4711", "expires": "2026-06-15"}


def parsed(*items: Any) -> tuple[list[waivers.Waiver], list[str]]:
    return waivers.parse_waivers(list(items), ["hmm_off", "acs_off"], TODAY)


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ({"check": "hmm_of"}, "there is no check 'hmm_of'; did you mean hmm_off?"),
        ({"reason": ""}, "lacks reason"),
        ({"expires": None}, "lacks expires"),
        ({"expires": "next week"}, "expires must be a day such as 2027-01-31, not 'next week'"),
        ({"expires": "2026-02-30"}, "expires must be a day"),
        ({"until": "x"}, "unknown key until"),
    ],
)
def test_faults(more: dict[str, Any], problem: str) -> None:
    found, problems = parsed({**GOOD, **more})
    assert found == []
    assert problem in problems[0]


@pytest.mark.parametrize("value", ["hmm_off", {"check": "hmm_off"}, None, 3])
def test_no_list(value: Any) -> None:
    found, problems = waivers.parse_waivers(value, ["hmm_off"], TODAY)
    assert found == []
    assert problems == ["gpu_host_waivers must be a list of {check, reason, expires}"]


@pytest.mark.parametrize(
    ("expires", "status"), [("2026-06-15", "waived"), ("2026-06-14", "fail"), (datetime.date(2026, 6, 15), "waived")]
)
def test_the_last_day_counts(tmp_path: Path, expires: Any, status: str) -> None:
    found, problems = parsed({**GOOD, "expires": expires})
    assert problems == []
    (result,) = judge(tmp_path, {"hmm": True}, item(), waived=found)
    assert result["status"] == status
    assert result["waiver"]["expired"] is (status == "fail")
    assert result["waiver"]["reason"] == "ticket 4711"


def test_of_two_waivers_the_later_counts(tmp_path: Path) -> None:
    found, _problems = parsed(GOOD, {**GOOD, "expires": "2020-01-01"})
    assert judge(tmp_path, {"hmm": True}, item(), waived=found)[0]["status"] == "waived"


def test_what_passes_needs_no_waiver(tmp_path: Path) -> None:
    found, _problems = parsed(GOOD)
    assert judge(tmp_path, {"hmm": False}, item(), waived=found)[0]["status"] == "pass"


def test_an_unknown_can_be_waived(tmp_path: Path) -> None:
    found, _problems = parsed(GOOD)
    result = judge(tmp_path, {"hmm": None}, item(), waived=found)[0]
    assert (result["status"], result["waiver"]["status"]) == ("waived", "unknown")
