"""The report callback: whatever goes wrong, the run never looks clean."""

from __future__ import annotations

import importlib.util
import json
import os
import shutil
import signal
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from . import report_samples as samples

ROOT = Path(__file__).resolve().parents[2]


def plugin(name: str) -> Any:
    spec = importlib.util.spec_from_file_location("callback_" + name, ROOT / "callback_plugins" / (name + ".py"))
    assert spec
    assert spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.CallbackModule


class Display:
    """Keeps what it is told to show."""

    verbosity = 0
    columns = 80

    def __init__(self) -> None:
        self.lines: list[str] = []

    def display(self, text: str, color: str | None = None, **_more: Any) -> None:
        self.lines.append(text)

    @property
    def text(self) -> str:
        return "\n".join(self.lines)


@pytest.fixture
def callback(tmp_path: Path) -> Any:
    made = plugin("check_report")(display=Display())
    made.get_option = {
        "reports_dir": str(tmp_path / "reports"),
        "history": 30,
        "reason_file": str(tmp_path / "reasons"),
    }.__getitem__
    made.v2_playbook_on_play_start(play("host_facts", "run_checks"))
    return made


def play(*actions: str) -> Any:
    tasks = [SimpleNamespace(action=action) for action in actions]
    return SimpleNamespace(
        compile=lambda: [
            SimpleNamespace(block=[SimpleNamespace(block=tasks, rescue=[], always=[])], rescue=[], always=[])
        ]
    )


def outcome(host: str, action: str, result: dict[str, Any]) -> Any:
    return SimpleNamespace(
        host=SimpleNamespace(get_name=lambda: host),
        task=SimpleNamespace(action=action, get_name=lambda: "role : " + action),
        result=result,
        is_changed=lambda: bool(result.get("changed")),
    )


def ready(facts: dict[str, Any] | None = None) -> dict[str, Any]:
    return samples.judged([samples.result("driver_loaded")], facts=facts)


def test_a_good_run(callback: Any, tmp_path: Path) -> None:
    callback.v2_runner_on_ok(outcome("gpu1", "host_facts", {"ansible_facts": {"gpu_host": {"gpus": {"count": 8}}}}))
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready({"gpus": {"count": 8}})))
    callback.v2_playbook_on_stats(None)
    assert "The host is ready." in callback._display.lines
    report = json.loads((tmp_path / "reports/report.json").read_text())
    assert report["hosts"]["gpu1"]["facts"]["gpus"] == {"count": 8}
    assert (tmp_path / "reports/junit.xml").exists()
    assert (tmp_path / "reasons").read_text() == "gpu1 ready \n"


def test_failed_checks(callback: Any, tmp_path: Path) -> None:
    callback.v2_runner_on_failed(outcome("gpu1", "run_checks", samples.judged(samples.broken_host())))
    callback.v2_playbook_on_stats(None)
    assert "1 of 1 host NOT READY" in callback._display.text


@pytest.mark.parametrize("action", ["host_facts", "ansible.builtin.validate_argument_spec"])
def test_failure_before_the_checks(callback: Any, action: str) -> None:
    callback.v2_runner_on_failed(outcome("gpu1", action, {"msg": "it broke"}))
    callback.v2_playbook_on_stats(None)
    assert "NO RESULT  gpu1: role : %s: it broke" % action in callback._display.text


def test_an_ignored_failure_is_none(callback: Any) -> None:
    callback.v2_runner_on_failed(outcome("gpu1", "command", {"msg": "it broke"}), ignore_errors=True)
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    callback.v2_playbook_on_stats(None)
    assert "The host is ready." in callback._display.lines


def test_unreachable(callback: Any) -> None:
    callback.v2_runner_on_unreachable(outcome("gpu1", "host_facts", {"msg": "Connection refused"}))
    callback.v2_playbook_on_stats(None)
    assert "NO RESULT  gpu1: unreachable: Connection refused" in callback._display.text


def test_no_host_ends_the_run(callback: Any) -> None:
    with pytest.raises(SystemExit) as ended:
        callback.v2_playbook_on_stats(None)
    assert ended.value.code == 1
    assert "NOTHING WAS VALIDATED" in callback._display.text


def test_other_playbooks_are_left_alone(tmp_path: Path) -> None:
    other = plugin("check_report")(display=Display())
    other.v2_playbook_on_play_start(play("command"))
    other.v2_runner_on_failed(outcome("gpu1", "command", {"msg": "x"}))
    other.v2_playbook_on_stats(None)
    assert other._display.lines == []


def test_a_report_that_cannot_be_written_ends_the_run(callback: Any, tmp_path: Path) -> None:
    shutil.rmtree(tmp_path / "reports")
    (tmp_path / "reports").write_text("in the way")
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    with pytest.raises(SystemExit):
        callback.v2_playbook_on_stats(None)
    assert "report.json cannot be written" in callback._display.text


@pytest.mark.parametrize("broken", ["v2_runner_on_ok", "v2_runner_on_failed"])
def test_a_fault_while_collecting_ends_the_run(callback: Any, broken: str) -> None:
    getattr(callback, broken)(outcome("gpu1", "run_checks", {"checks": [{"no": "id"}], "summary": {}}))
    with pytest.raises(SystemExit):
        callback.v2_playbook_on_stats(None)
    assert "a fault of check_report" in callback._display.text


def test_a_fault_while_reporting_ends_the_run(callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    monkeypatch.setattr(callback, "_run", lambda: 1 / 0)
    with pytest.raises(SystemExit):
        callback.v2_playbook_on_stats(None)
    assert "ZeroDivisionError" in callback._display.text


def test_a_host_without_results_is_not_validated(callback: Any) -> None:
    callback.v2_runner_on_ok(outcome("gpu1", "host_facts", {"ansible_facts": {"gpu_host": {}}}))
    callback.v2_playbook_on_stats(None)
    assert "NO RESULT  gpu1: no check ran on this host" in callback._display.text


@pytest.fixture
def quiet() -> Any:
    made = plugin("quiet")()
    made._display = Display()
    return made


def test_quiet_says_nothing_where_all_is_well(quiet: Any) -> None:
    quiet.v2_runner_on_ok(outcome("gpu1", "host_facts", {"ansible_facts": {"gpu_host": {"much": "x" * 10000}}}))
    quiet.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    assert quiet._display.lines == []


def test_quiet_says_one_line_where_something_failed(quiet: Any) -> None:
    quiet.v2_runner_on_failed(outcome("gpu1", "run_checks", samples.judged(samples.broken_host())))
    assert quiet._display.lines == [
        "failed: [gpu1] 2 failed: chipset_supports_p2p, p2p_granted; 2 unknown: p2p_fast, acs_redirect_off"
    ]


def test_quiet_says_more_with_v(quiet: Any) -> None:
    quiet._display.verbosity = 1
    quiet.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    assert quiet._display.lines == ["ok: [gpu1] ready: 1 checks"]


# A verdict is of now
def test_a_run_that_died_after_a_look_says_so_first_and_last(callback: Any, tmp_path: Path) -> None:
    callback._in_validation = False  # as in provision.yml, which includes its tasks
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    callback.v2_runner_on_failed(outcome("gpu1", "apt", {"msg": "Unable to fetch some archives"}))
    callback.v2_playbook_on_stats(None)
    lines = [line for line in callback._display.lines if line.strip()]
    said = "THE RUN DID NOT FINISH on gpu1: the run ended at 'role : apt': Unable to fetch some archives"
    assert lines[0] == said and said in lines[-3:]
    assert "The host is ready." not in lines
    assert "before     gpu1: ready: ready: 1 checks" in callback._display.text
    host = json.loads((tmp_path / "reports/report.json").read_text())["hosts"]["gpu1"]
    assert (host["state"], host["before"]["state"], host["results"]) == ("not_validated", "ready", [])


def test_a_later_look_at_everything_is_the_verdict(callback: Any) -> None:
    bad = samples.judged([samples.result("driver_loaded", "fail")])
    callback.v2_runner_on_failed(outcome("gpu1", "run_checks", bad))
    callback.v2_runner_on_failed(outcome("gpu1", "apt", {"msg": "rescued"}))
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    callback.v2_playbook_on_stats(None)
    assert "The host is ready." in callback._display.lines


def test_a_task_that_fails_for_the_verdict_leaves_it(callback: Any) -> None:
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    said = outcome("gpu1", "assert", {"msg": "came out worse"})
    said.task.vars = {"check_report_verdict": True}
    callback.v2_runner_on_failed(said)
    callback.v2_playbook_on_stats(None)
    assert "The host is ready." in callback._display.lines


def test_a_change_after_the_last_look_is_said(callback: Any) -> None:
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    callback.v2_runner_on_ok(outcome("gpu1", "systemd", {"changed": True}))
    callback.v2_playbook_on_stats(None)
    assert "'role : systemd' changed something after the last look" in " ".join(callback._display.text.split())


def test_a_host_that_was_changed_when_another_ended_the_run_has_no_verdict(callback: Any, tmp_path: Path) -> None:
    for name in ("gpu1", "gpu2"):
        callback.v2_runner_on_ok(outcome(name, "run_checks", ready()))
    callback.v2_runner_on_ok(outcome("gpu2", "apt", {"changed": True}))
    callback.v2_runner_on_failed(outcome("gpu1", "apt", {"msg": "no"}))
    callback.v2_playbook_on_stats(None)
    hosts = json.loads((tmp_path / "reports/report.json").read_text())["hosts"]
    assert {host["state"] for host in hosts.values()} == {"not_validated"}


def test_an_interrupted_run_reports_what_is_known(callback: Any, tmp_path: Path) -> None:
    callback.v2_runner_on_start(SimpleNamespace(get_name=lambda: "gpu2"), None)
    callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    callback._at_exit(os.getpid() + 1)
    assert not (tmp_path / "reports/report.json").exists(), "a worker is not the run"
    callback._at_exit(os.getpid())
    lines = [line for line in callback._display.lines if line.strip()]
    assert lines[0] == lines[-1] == "THE RUN WAS INTERRUPTED: this is what was known by then."
    report = json.loads((tmp_path / "reports/report.json").read_text())
    assert report["run"]["complete"] is False and report["ready"] is False
    assert {name: host["state"] for name, host in report["hosts"].items()} == {"gpu1": "ready", "gpu2": "not_validated"}


def test_ctrl_c_waits_until_a_verdict_is_taken(callback: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    take, taken = callback._collector.results, []

    def interrupted(host: str, result: Any) -> None:
        signal.pthread_kill(threading.get_ident(), signal.SIGINT)  # not to another thread of the process
        take(host, result)
        taken.append(host)

    monkeypatch.setattr(callback._collector, "results", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)  # a worker of the tests ignores it
    try:
        with pytest.raises(KeyboardInterrupt):
            callback.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    finally:
        signal.signal(signal.SIGINT, before)
    assert taken == ["gpu1"] and callback._collector.judged("gpu1")


def test_two_runs_at_a_time_write_apart_and_say_so(tmp_path: Path) -> None:
    runs = [plugin("check_report")(display=Display()) for _ in range(2)]
    for made in runs:
        made._display.warning = made._display.display
        made.get_option = {
            "reports_dir": str(tmp_path / "reports"),
            "history": 30,
            "reason_file": str(tmp_path / "reasons"),
        }.__getitem__
        made.v2_playbook_on_play_start(play("host_facts", "run_checks"))
        made.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    for made in runs:
        made.v2_playbook_on_stats(None)
    assert "Another run writes its reports" not in runs[0]._display.text
    assert "Another run writes its reports to %s" % (tmp_path / "reports") in runs[1]._display.text
    assert len(list(tmp_path.glob("reports/run-*/report.json"))) == 1 and (tmp_path / "reports/report.json").exists()
    assert len(list(tmp_path.glob("reports/history/*.json.gz"))) == 2, "one history of both"
    assert 'href="../history/index.html"' in next(tmp_path.glob("reports/run-*/report.html")).read_text()


def finished_run(directory: Path, history: int) -> str:
    """What the terminal says of a run that keeps so many."""
    made = plugin("check_report")(display=Display())
    made.get_option = {"reports_dir": str(directory), "history": history, "reason_file": ""}.__getitem__
    made.v2_playbook_on_play_start(play("host_facts", "run_checks"))
    made.v2_runner_on_ok(outcome("gpu1", "run_checks", ready()))
    try:
        made.v2_playbook_on_stats(None)
    finally:
        made._in_use.close()  # as at the end of the process
    return str(made._display.text)


def test_the_history_is_named_once_there_is_one(tmp_path: Path) -> None:
    assert "index.html" not in finished_run(tmp_path, 2), "of one run there is nothing to see"
    kept = next(tmp_path.glob("history/*.json.gz"))
    assert "history/index.html" in finished_run(tmp_path, 2) and kept.exists()
    kept.write_bytes(b"damaged")
    said = finished_run(tmp_path, 3)
    assert "[WARNING]: %s is left out of the history: it is damaged" % kept in said
    assert "The host is ready." in said and "ERROR" not in said
    finished_run(tmp_path, 2)
    assert len(list(tmp_path.glob("history/*.json.gz"))) == 2 and not kept.exists()


def test_without_a_history_nothing_of_it_is_written(tmp_path: Path) -> None:
    for _run in range(2):
        assert "history/" not in finished_run(tmp_path, 0)
    assert sorted(path.name for path in tmp_path.iterdir()) == [
        ".in-use", "junit.xml", "metrics.prom", "report.html", "report.json", "report.md",
    ]  # fmt: skip
    assert "history/" not in (tmp_path / "report.html").read_text()


def test_a_history_that_cannot_be_written_ends_the_run(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    with pytest.raises(SystemExit):
        finished_run(tmp_path, 30)
    assert (tmp_path / "report.html").exists()
