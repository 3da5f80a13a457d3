"""Live hosts of which some hang, flood, talk nonsense or are not there: the others have their verdicts meanwhile."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))
import mixed_fleet

pytestmark = pytest.mark.slow

HOST_SECONDS = 45.0


@pytest.fixture
def fleet(play: Any, tmp_path: Path) -> Any:
    return play("validate.yml", mixed_fleet.make_inventory(tmp_path, healthy=2), probe="false")


def judged_at(run: Any) -> dict[str, float]:
    """Host -> seconds from the first event of the run to its verdict."""
    began = min(event["event_data"]["start"] for event in run.events if (event.get("event_data") or {}).get("start"))
    found = {}
    for event in run.events:
        data = event.get("event_data") or {}
        if event["event"] in ("runner_on_ok", "runner_on_failed") and data.get("task_action", "").endswith(
            "run_checks"
        ):
            found[data["host"]] = seconds_of(data["end"]) - seconds_of(began)
    return found


def seconds_of(stamp: str) -> float:
    import datetime

    return datetime.datetime.fromisoformat(stamp).timestamp()


def test_a_bad_host_costs_the_others_nothing_and_says_what_is_wrong(fleet: Any) -> None:
    at = judged_at(fleet)
    healthy = [at["healthy1"], at["healthy2"]]
    assert max(healthy) < at["hanging"], "they did not wait for the one that hangs"
    assert at["hanging"] - min(healthy) < HOST_SECONDS, at
    hosts = fleet.report["hosts"]
    assert {name for name, host in hosts.items() if host["state"] == "ready"} >= {"healthy1", "healthy2"}
    assert hosts["unreachable"]["state"] == "not_validated" and hosts["unreachable"]["unreachable"]
    bad = {result["id"]: result for result in hosts["hanging"]["results"] if result["status"] == "fail"}
    assert bad["nvidia_smi_answers"]["root_cause"] is True
    assert bad["nvidia_smi_answers"]["found"].startswith("nvidia-smi hangs: no answer within 30 s")
    assert "gpus_found" not in bad and "shows none" not in fleet.text
    asked = hosts["hanging"]["facts"]["evidence"]["unanswered"]
    assert list(asked) == ["nvidia-smi"]
