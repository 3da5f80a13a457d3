"""The files of the baselines: when one is written, what becomes of the one before, and what is said instead."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_checks import verdict
from ansible.module_utils.gpu_report import baseline_files, changes, files
from ansible.module_utils.gpu_report.baseline_files import Look, follow_baseline

from . import report_samples as samples


def look(version: str = "580.82", status: str = "pass", **more: Any) -> Look:
    results = [samples.result("driver_loaded", status)]
    host = {"driver": {"version": version}, "gpus": {"devices": {}}, "virtualization": {"identity": {}}}
    return dataclasses.replace(Look("gpu1", host, results, verdict.summarise_verdict(results), []), **more)


def follow(mode: str, directory: Path, seen: Look) -> dict[str, Any]:
    found = follow_baseline(mode, str(directory), seen)
    assert found is not None
    return json.loads(json.dumps(found))  # type: ignore[no-any-return]


def kept(path: Path) -> str:
    return str(json.loads(path.read_text())["facts"]["driver"]["version"])


def test_saved_compared_and_the_one_before_is_kept(tmp_path: Path) -> None:
    directory = tmp_path / "new" / "baselines"
    assert follow("save", directory, look())["saving"] == "saved in %s" % directory
    path, before = directory / "gpu1.json", directory / "gpu1.json.previous"
    assert os.stat(path).st_mode & 0o777 == 0o600 and not before.exists()
    found = follow("auto", directory, look("580.159"))
    assert [change["text"] for change in found["changes"]] == ["driver: 580.82 -> 580.159"]
    assert (found["state"], found["saving"], kept(path)) == ("changed", "", "580.82")
    found = follow("save", directory, look("580.159"))
    assert found["state"] == "changed" and found["saving"].endswith("; the one before is kept beside it")
    assert (kept(path), kept(before)) == ("580.159", "580.82")
    assert os.stat(before).st_mode & 0o777 == 0o600
    follow("save", directory, look("580.159"))
    assert kept(before) == "580.82", "the same state again does not push out the one before"
    assert sorted(entry.name for entry in directory.iterdir()) == ["gpu1.json", "gpu1.json.previous"]


def test_a_host_that_is_not_ready_is_kept_only_by_force(tmp_path: Path) -> None:
    bad = look(status="fail")
    said = follow("save", tmp_path, bad)["saving"]
    assert said.startswith("not saved: the host is not ready (1 failed: driver_loaded).")
    assert "-e gpu_host_baseline=force" in said and not list(tmp_path.iterdir())
    assert follow("force", tmp_path, bad)["saving"].startswith("saved in ")
    assert json.loads((tmp_path / "gpu1.json").read_text())["state"] == "not_ready"


def test_a_part_is_not_kept_and_check_mode_writes_nothing(tmp_path: Path) -> None:
    said = follow("save", tmp_path, look(part="only 3 of 100 checks were chosen"))["saving"]
    assert said.startswith("not saved: only 3 of 100 checks were chosen, and a known good state needs all of it.")
    assert follow("save", tmp_path, look(check_mode=True))["saving"] == "not saved: check mode"
    assert not list(tmp_path.iterdir())


def test_the_baseline_of_another_machine_is_not_replaced_unasked(tmp_path: Path) -> None:
    def of(uuid: str) -> Look:
        seen = look()
        seen.host["virtualization"]["identity"] = {"product_uuid": uuid}
        return seen

    follow("save", tmp_path, of("8c7d6e5f-0001-4000-8000-3cecef123456"))
    found = follow("save", tmp_path, of("8c7d6e5f-0002-4000-8000-3cecef123456"))
    assert found["state"] == "other_machine" and found["saving"].startswith(
        "not saved: the baseline of this name is of another"
    )
    found = follow("force", tmp_path, of("8c7d6e5f-0002-4000-8000-3cecef123456"))
    assert "0001-4000" in (tmp_path / "gpu1.json.previous").read_text()


def test_without_a_baseline_only_who_asks_is_told(tmp_path: Path) -> None:
    assert follow_baseline("off", str(tmp_path), look()) is None
    assert follow_baseline("auto", str(tmp_path), look()) is None
    found = follow("diff", tmp_path, look())
    assert found["state"] == "none" and "Save one with -e gpu_host_baseline=save" in found["message"]


@pytest.mark.parametrize("content", [b"", b"{}", b"\xff", b'{"facts": {}, "schema": 99}'])
def test_a_file_that_is_no_baseline_is_told_and_replaced_when_asked(tmp_path: Path, content: bytes) -> None:
    path = tmp_path / "gpu1.json"
    path.write_bytes(content)
    found = follow("auto", tmp_path, look())
    assert found["state"] == "unreadable" and str(path) in found["message"] and path.read_bytes() == content
    follow("save", tmp_path, look())
    assert kept(path) == "580.82" and not (tmp_path / "gpu1.json.previous").exists()


def test_a_file_that_somebody_edited_never_ends_the_run(tmp_path: Path) -> None:
    follow("save", tmp_path, look())
    path = tmp_path / "gpu1.json"
    made = json.loads(path.read_text())
    deep: Any = 1
    for _ in range(500):
        deep = {"x": deep}
    for facts in ({"driver": {"version": deep}}, {"driver": {"dkms": [deep, 3, None]}}, {"driver": 7}, {}):
        path.write_text(json.dumps({**made, "facts": facts}))
        assert follow("auto", tmp_path, look())["state"] in ("same", "changed", "unreadable")
    for identity in ({}, {"cards": 3}, {"cards": [{"address": deep}], "product_uuid": []}):
        path.write_text(json.dumps({**made, "identity": identity, "checks": {"pass": 3, "fail": [None]}}))
        assert follow("auto", tmp_path, look())["state"] in ("same", "changed", "unreadable", "other_machine")


def test_what_cannot_be_read_or_written_is_told(tmp_path: Path, monkeypatch: Any) -> None:
    (tmp_path / "gpu1.json").mkdir()
    found = follow("save", tmp_path, look())
    assert found["state"] == "unreadable" and "Is a directory" in found["message"]
    assert "cannot be written" in found["saving"]

    def refuse(*_arguments: Any, **_more: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(files, "write_file", refuse)
    assert follow("save", tmp_path / "x", look())["saving"].endswith("cannot be written: No space left on device")
    monkeypatch.setattr(baseline_files.baselines, "LARGEST", 10)
    assert follow("save", tmp_path / "x", look())["saving"].startswith("not saved: its facts take ")


def test_hosts_with_the_same_changes_are_told_once(tmp_path: Path) -> None:
    run = samples.run()
    for number in range(100):
        name = "gpu%d" % number
        follow("save", tmp_path, look(name=name))
        version = "580.159" if number % 2 else "580.82"
        drift = follow("auto", tmp_path, look(version, name=name))
        run.results(name, {**samples.judged([samples.result("driver_loaded")]), "report_drift": json.dumps(drift)})
    report = run.report(samples.RUN)
    told = changes.group_drift(report)
    day = told[0].since
    assert [(len(group.hosts), group.list_lines()) for group in told] == [(50, ["driver: 580.82 -> 580.159"]), (50, [])]
    assert told[1].title.endswith("nothing changed since %s" % day) and len(day) == 10


def test_a_host_that_was_not_seen_to_its_end_has_no_drift_and_is_compared_with_none(tmp_path: Path) -> None:
    """No verdict is older than the last change, and neither is what is said of one."""
    follow("save", tmp_path, look())
    drift = json.dumps(follow("auto", tmp_path, look("580.159")))
    features = {"kind": {"models": {"10de:2335": 2}, "names": {}, "placement": "kvm"}}
    told = {"report_drift": drift, "report_features": json.dumps({**features, "values": {}, "maps": [], "figures": {}})}
    run = samples.run()
    for name in ("gpu1", "gpu2"):
        run.results(name, {**samples.judged([samples.result("driver_loaded")]), **told})
    assert "alike" in run.report(samples.RUN)
    run.failed("gpu1", "the connection broke", unreachable=True, step="Install the driver")
    report = run.report(samples.RUN)
    assert "drift" not in report["hosts"]["gpu1"] and "drift" in report["hosts"]["gpu2"] and "alike" not in report


def test_many_changes_are_cut_and_all_of_them_are_told_when_asked() -> None:
    listed = [{"text": "change %d" % number, "explains": []} for number in range(20)]
    record = {"state": "changed", "saved_at": "2026-11-12T00:00:00+00:00", "changes": listed}

    def told(mode: str) -> list[str]:
        return changes.group_drift({"hosts": {"a": {"drift": {**record, "mode": mode}}}})[0].list_lines()

    assert told("auto")[-1] == "and 14 more, in report.json; -e gpu_host_baseline=diff shows all"
    assert len(told("auto")) == 7 and len(told("diff")) == 20
