"""The history of the runs: what is kept of them, how many, what the pages say, and what becomes of damaged files."""

from __future__ import annotations

import gzip
import json
import os
import re
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_report import json_report, page_names, writers
from ansible.module_utils.gpu_report.history import figures, keeping, pages, plot, record, store, timeline

from . import fleet_report, hostile_report
from . import report_samples as samples
from .test_report_fleet import NAMES, rename
from .test_report_html import Page


def made(day: int = 2, hosts: int = 3, **more: Any) -> dict[str, Any]:
    return fleet_report.make_fleet(hosts, gpus=2, checks=12, day=day, **more)


def keep(directory: Path, report: dict[str, Any], runs: int = 30) -> keeping.Kept:
    """One run of the callback: the report, then the history."""
    (directory / "report.json").write_bytes(json_report.render_json(report))
    return keeping.keep_run(str(directory / "history"), report, str(directory / "report.json"), runs)


def files_in(directory: Path) -> list[str]:
    return store.list_runs(str(directory / "history"))


def page(directory: Path, name: str) -> Page:
    return Page((directory / "history" / name).read_text())


# Files
def test_a_run_is_one_file_with_the_whole_report(tmp_path: Path) -> None:
    report = made()
    kept = keep(tmp_path, report)
    assert (kept.problems, kept.notes, kept.runs) == ([], [], 1)
    (name,) = files_in(tmp_path)
    assert re.fullmatch(r"20260102T030405Z-[0-9a-f]{8}\.json\.gz", name)
    lines = gzip.decompress((tmp_path / "history" / name).read_bytes()).split(b"\n", 1)
    assert lines[1] == (tmp_path / "report.json").read_bytes()
    summary = json.loads(lines[0])
    assert summary["hosts"]["gpu0002"]["state"] == "not_ready"
    assert summary["hosts"]["gpu0000"]["figures"]["p2p_bandwidth.lowest"] == 54.4
    assert sorted(path.name for path in (tmp_path / "history").iterdir()) == [".in-use", name, "hosts", "index.html"]


def test_only_the_last_runs_are_kept(tmp_path: Path) -> None:
    for day in (1, 2, 3, 4, 5):
        keep(tmp_path, made(day), runs=3)
    assert [name[:8] for name in files_in(tmp_path)] == ["20260103", "20260104", "20260105"]
    assert keep(tmp_path, made(1), runs=3).runs == 3
    assert [name[:8] for name in files_in(tmp_path)] == ["20260101", "20260104", "20260105"], (
        "a clock that was set back does not make a run forget itself"
    )
    assert keep(tmp_path, made(6), runs=1).runs == 1
    assert [name[:8] for name in files_in(tmp_path)] == ["20260106"]


def test_what_a_killed_run_left_is_removed_and_nothing_else(tmp_path: Path) -> None:
    keep(tmp_path, made(1))
    old, young = (tmp_path / "history" / (".%s.%s" % (files_in(tmp_path)[0], end)) for end in ("abc", "def"))
    other = tmp_path / "history" / "notes.txt"
    for path in (old, young, other):
        path.write_text("x")
    os.utime(old, (time.time() - 7200,) * 2)
    keep(tmp_path, made(2), runs=1)
    assert not old.exists() and young.exists() and other.exists()


DAMAGES = {
    "empty": lambda data: b"",
    "no gzip": lambda data: b"{}" * 100,
    "cut off in the summary": lambda data: data[:100],
    "cut off in the report": lambda data: data[:-10],
    "a bit in the report": lambda data: data[:-300] + bytes([data[-300] ^ 4]) + data[-299:],
    "something behind it": lambda data: data + b"x",
    "no JSON": lambda data: gzip.compress(b"nonsense"),
    "another JSON": lambda data: gzip.compress(b"[1]"),
    "an older version": lambda data: changed(data, schema=0),
    "a newer version": lambda data: changed(data, schema=2),
    "no hosts": lambda data: changed(data, hosts=None),
    "a state that is none": lambda data: changed(data, hosts={"a": {"state": "fine"}}),
    "figures that are none": lambda data: changed_host(data, figures={"p2p_bandwidth.lowest": "fast"}),
    "too few checks": lambda data: changed_host(data, statuses="p"),
}


def changed(data: bytes, **values: Any) -> bytes:
    line, _end, report = gzip.decompress(data).partition(b"\n")
    return record.encode_record({**json.loads(line), **values}, gzip.compress(report))


def changed_host(data: bytes, **values: Any) -> bytes:
    hosts = json.loads(gzip.decompress(data).partition(b"\n")[0])["hosts"]
    return changed(data, hosts={name: {**host, **values} for name, host in hosts.items()})


def test_damaged_files_are_named_and_left_out(tmp_path: Path) -> None:
    keep(tmp_path, made(1))
    (name,) = files_in(tmp_path)
    whole = (tmp_path / "history" / name).read_bytes()
    for number, damage in enumerate(DAMAGES.values()):
        (tmp_path / "history" / ("20260101T0304%02dZ-00000000.json.gz" % (10 + number))).write_bytes(damage(whole))
    (tmp_path / "history/20260101T030459Z-00000000.json.gz").mkdir()
    kept = keep(tmp_path, made(2))
    assert kept.problems == [] and kept.runs == 2
    assert len(kept.notes) == len(DAMAGES) + 1
    for note, words in zip(kept.notes, ["cut off", "damaged", "cut off", "report in it", "report in it", "report in it",
                                        "no JSON", "no file", "an older", "a newer", "form", "right form",
                                        "right form", "right form", "Is a directory"]):  # fmt: skip
        assert "is left out of the history: " in note and words in note, note
    assert "%d files left out" % len(kept.notes) in page(tmp_path, "index.html").text


def test_a_history_that_cannot_be_written_is_a_problem_and_no_more(tmp_path: Path) -> None:
    (tmp_path / "history").write_text("in the way")
    kept = keep(tmp_path, made())
    assert kept.pages == [] and len(kept.problems) == 1
    assert "history cannot be written: File exists" in kept.problems[0]


def test_the_folder_may_be_deleted_at_any_time(tmp_path: Path) -> None:
    import shutil

    keep(tmp_path, made(1))
    shutil.rmtree(tmp_path / "history")
    assert keep(tmp_path, made(2)).runs == 1
    (tmp_path / "history/hosts/gpu0001.html").unlink()
    limited = made(3)
    limited["hosts"] = {"gpu0000": limited["hosts"]["gpu0000"]}
    keep(tmp_path, limited)
    assert (tmp_path / "history/hosts/gpu0001.html").exists(), "no link of the index leads nowhere"


# What the pages say
def story(tmp_path: Path) -> None:
    """Four runs: a host falls, is mended on another driver, is unreachable; another one is looked at twice."""
    for day, (state, status, rate, driver) in enumerate(
        [("ready", "pass", 55.0, "580.82"), ("not_ready", "fail", 41.5, "580.82"), ("ready", "pass", 55.2, "580.159")],
        1,
    ):
        report = made(day, hosts=2, rate=rate + 1)
        host = report["hosts"]["gpu0000"]
        host.update(state=state, message="1 failed: made_up_check_number_003" if status == "fail" else "ready")
        host["results"][3] = {"id": "made_up_check_number_003", "status": status}
        host["facts"]["driver"] = {"version": driver, "loaded": True}
        if day == 2:
            del report["hosts"]["gpu0001"]
        keep(tmp_path, report)
    report = made(4, hosts=1)
    report["hosts"]["gpu0000"].update(
        state="not_validated", unreachable=True, message="Connection timed out", results=[], facts={}
    )
    keep(tmp_path, report)


def test_the_index_shows_hosts_and_runs_and_what_changed(tmp_path: Path) -> None:
    story(tmp_path)
    shown = page(tmp_path, "index.html")
    assert "History: 4 runs, 2 hosts" in shown.text
    rows = re.findall(r"<tr data-host.*?</tr>", (tmp_path / "history/index.html").read_text())
    cells = [re.findall(r"<td(?: class=\"([^\"]*)\")?[^>]*>([^<]*)</td>", row) for row in rows]
    assert [sign for _kind, sign in cells[0][1:]] == ["✓", "✗", "✓", "∅"]
    assert [kind for kind, _sign in cells[0][1:]] == ["good", "bad changed", "good changed", "doubt changed"]
    assert [sign for _kind, sign in cells[1][1:]] == ["✓", "", "✓", ""], "a run that did not look says nothing"
    assert "2 of 4" in rows[0] and "2 of 2" in rows[1]
    assert "no result now: gpu0000" in shown.text and "ready now: gpu0000" in shown.text
    assert "not ready now: gpu0000" in shown.text
    assert "1 host ready in every run" in shown.text
    assert "new: made_up_check_number_003" in rows[0].replace("&#39;", "'")


def test_the_page_of_a_host_shows_checks_and_measurements_over_the_runs(tmp_path: Path) -> None:
    story(tmp_path)
    text = (tmp_path / "history/hosts/gpu0000.html").read_text()
    shown = Page(text)
    assert "gpu0000: unreachable" in shown.text and "ready in 2 of 4 runs" in shown.text
    assert "P2P bandwidth, one way, GB/s: higher is better" in shown.text
    assert "lowest pair: last 55.2, from 41.5 to 55.2" in shown.text
    assert "<title>2026-01-02 03:04: 41.5 GB/s</title>" in text
    assert "new: made_up_check_number_003" in shown.text and "mended: made_up_check_number_003" in shown.text
    assert "Driver: 580.82 → 580.159" in shown.text
    (row,) = re.findall(r"<tr><th scope=\"row\"><code>made_up_check_number_003.*?</tr>", text, re.DOTALL)
    assert re.findall(r"title=\"([^\"]*)\"", row) == [
        "2026-01-01 03:04: pass", "2026-01-02 03:04: fail", "2026-01-03 03:04: pass",
    ]  # fmt: skip
    assert "11 other checks passed or did not apply in every run." in shown.text
    other = page(tmp_path, "hosts/gpu0001.html")
    assert "ready in 2 of 2 runs" in other.text and "2026-01-02" not in other.text


def test_a_part_of_the_checks_does_not_mend_the_others() -> None:
    builder = timeline.TimelineBuilder()
    for place, (ids, letters) in enumerate(
        [("abc", "pff"), ("b", "p"), ("abc", "ppf"), ("abc", "up-"), ("abc", "pps")]
    ):
        host = {"state": "ready", "message": "", "unreachable": False, "recorded": False, "statuses": letters,
                "overview": {}, "figures": {}}  # fmt: skip
        summary = {"run": {"started_at": str(place)}, "totals": {}, "checks": [[one, one] for one in ids]}
        builder.add(str(place), {**summary, "hosts": {"h": host}})
    changes = [look.change for look in builder.finish().hosts["h"]]
    assert [(one.new, one.unknown, one.mended) for one in changes] == [
        ((), (), ()), ((), (), ("b",)), ((), (), ()), ((), ("a",), ()), ((), (), ("a", "c")),
    ]  # fmt: skip


def test_pages_of_hosts_that_no_run_knows_any_more_are_removed(tmp_path: Path) -> None:
    keep(tmp_path, made(1, hosts=3))
    keep(tmp_path, made(2, hosts=2), runs=1)
    assert sorted(path.name for path in (tmp_path / "history/hosts").iterdir()) == ["gpu0000.html", "gpu0001.html"]


def test_hostile_names_and_texts_are_text(tmp_path: Path) -> None:
    report = rename(made(1, hostile=hostile_report.HOSTILE), NAMES)
    report["run"]["playbook"] = hostile_report.HOSTILE
    for host in report["hosts"].values():
        host["message"] = hostile_report.HOSTILE
        host["facts"] = {**host["facts"], "driver": {"version": hostile_report.HOSTILE}}
    assert keep(tmp_path, report).problems == []
    assert {path.name for path in (tmp_path / "history/hosts").iterdir()} == set(map(page_names.name_page, NAMES))
    names = [page_names.name_page(name) for name in (NAMES[3], NAMES[15], NAMES[-1])]
    for name in ["index.html", *("hosts/" + name for name in names)]:
        shown = page(tmp_path, name)
        assert shown.count["script"] == 1 and shown.count.get("img", 0) == shown.count.get("x", 0) == 0
        assert "1337" not in shown.text and "\x1b" not in shown.text
        links = {value or "" for tag, key, value in shown.attributes if key in ("href", "src")}
        assert all(re.fullmatch(r"data:,|(\.\./)*(hosts/)?[\w.-]+\.html", link) for link in links), links


def test_little_is_known_of_a_host_and_of_one_that_is_recorded(tmp_path: Path) -> None:
    keep(tmp_path, samples.report())
    assert keep(tmp_path, samples.report()).problems == []
    assert "gpu3: unreachable" in page(tmp_path, "hosts/gpu3.html").text
    shown = page(tmp_path, "hosts/gpu10.html")
    assert "read from a bundle" in shown.text and "No run measured anything" in shown.text
    assert "gpu10 (recorded)" in page(tmp_path, "index.html").text


def test_the_report_leads_to_the_history(tmp_path: Path) -> None:
    report = samples.report()
    writers.write_all(report, str(tmp_path), "history/")
    keep(tmp_path, report)
    (link,) = re.findall(r'href="([^"#]*index.html)"', (tmp_path / "report.html").read_text())
    assert (tmp_path / link).exists()
    for path in (tmp_path / "history").rglob("*.html"):
        for link in re.findall(r'href="([^"#:]+)"', path.read_text()):
            assert (path.parent / link).resolve().is_file(), (path, link)


# Figures
def test_figures_are_those_that_were_measured() -> None:
    assert figures.measure_host({}) == figures.measure_host({"probe": None, "gpus": {"devices": None}}) == {}
    facts = fleet_report.make_facts(2, 55.4)
    facts["probe"]["collective"]["arms"] = {
        "configured": {"sizes": {"12288": {"bus_bandwidth_gb_s": 0.1}, "268435456": {"bus_bandwidth_gb_s": 41.5}}}
    }
    facts["probe"]["pairs"]["odd"] = {"bandwidth_gb_s": {"copy": {"median": float("nan")}}}
    facts["server"] = {
        "decode_tokens_per_s": 812.5,
        "generation": {"tokens_per_s": 61.0, "first_token_s": None},
    }
    found = figures.measure_host(facts)
    assert found == {
        "p2p_bandwidth.lowest": 54.4, "p2p_bandwidth.median": 54.9, "p2p_latency.highest": 0.94,
        "p2p_latency.median": 0.94, "host_link.to_gpu": 55.2, "host_link.from_gpu": 54.1,
        "all_reduce@268435456.configured": 41.5, "server_log.median": 812.5, "server_answer.one": 61.0,
        "temperature.gpu": 41.0,
    }  # fmt: skip
    assert all(figures.find_plot(name.rpartition(".")[0]) for name in found)


@pytest.mark.parametrize("values", [[5.0], [0.0, 0.0], [1e12, 1e-9, 3.0], [55.4] * 200])
def test_a_picture_holds_every_value(values: list[float]) -> None:
    builder = timeline.TimelineBuilder()
    for place, value in enumerate(values):
        host = {"state": "ready", "message": "", "unreachable": False, "recorded": False, "statuses": "",
                "overview": {}, "figures": {"all_pairs.sum": value}}  # fmt: skip
        run = {"started_at": "2026-01-02T03:04:05+00:00"}
        builder.add(str(place), {"run": run, "totals": {}, "checks": [], "hosts": {"h": host}})
    found = builder.finish()
    (drawn,) = plot.list_plots(found.hosts["h"], found.runs)
    points = [tuple(map(float, one.split(","))) for one in re.findall(r'points="([^"]*)"', drawn)[0].split()]
    assert len(points) == len(values)
    assert all(0 <= x <= 420 and 20 <= y <= 108 for x, y in points)
    Page("<!DOCTYPE html>" + drawn)


# Sizes
@pytest.mark.slow
@pytest.mark.long
def test_500_hosts_and_30_runs(tmp_path: Path) -> None:
    """Files are small, the index loads less than 2 MB, and a run that looks at one host writes one page."""
    (tmp_path / "history").mkdir()
    for day in range(1, 30):
        report = fleet_report.make_fleet(500, gpus=2, day=day, rate=50.0 + day % 3)
        (tmp_path / "report.json").write_bytes(json_report.render_json(report))
        store.write_run(str(tmp_path / "history"), report, str(tmp_path / "report.json"))
    assert keep(tmp_path, fleet_report.make_fleet(500, gpus=2, day=30)).runs == 30
    assert max(path.stat().st_size for path in (tmp_path / "history").glob("*.gz")) < 2_000_000
    assert (tmp_path / "history/index.html").stat().st_size < 2_000_000
    assert len(list((tmp_path / "history/hosts").iterdir())) == 500
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "history/hosts").iterdir()}
    one = fleet_report.make_fleet(500, gpus=2, day=31)
    one["hosts"] = {"gpu0003": one["hosts"]["gpu0003"]}
    keep(tmp_path, one)
    assert [path.name for path, at in before.items() if path.stat().st_mtime_ns != at] == ["gpu0003.html"]
    assert pages.INDEX in os.listdir(tmp_path / "history")
