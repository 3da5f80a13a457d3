"""The report of more hosts than one page should hold: sizes, names, and nothing left of an earlier run.

How a browser shows it, and its filter: tests/e2e/test_fleet_in_chromium.py.
"""

from __future__ import annotations

import dataclasses
import functools
import os
import re
import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_report import findings, html_report, page_folder, page_names, terminal, writers

from . import fleet_report, hostile_report
from .test_report_html import Page

NAMES = (
    "gpu1", "GPU1", "gpu1.example.com", "../../etc/passwd", "..", ".", ".hidden", "a/b", "a_b", "a b", "gpü", "gpu1 ",
    "con", "nul.txt", "[2001:db8::1]:22", "<b>x</b>", "x" * 300, "x" * 301, "%2e%2e", "a\\b", "a\nb", "host?", "host#1",
    "gpu-0123456789abcdef", "\udc80", "日本", "-", "gpu1.html", hostile_report.SCRIPT,
)  # fmt: skip


@functools.cache
def fleet() -> dict[str, Any]:
    return fleet_report.make_fleet(500, gpus=2)


def small(hosts: int = 12, **more: Any) -> dict[str, Any]:
    return fleet_report.make_fleet(hosts, gpus=2, checks=30, **more)


def rename(report: dict[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
    """`report` with its hosts under other names."""
    hosts = list(report["hosts"].values())
    return {**report, "hosts": {name: hosts[place % len(hosts)] for place, name in enumerate(names)}}


# The first page
def test_500_hosts_with_a_hundred_findings_load_less_than_2_mb() -> None:
    data = html_report.render_html(fleet())
    assert len(data) < 1_000_000
    page = Page(data.decode())
    assert "300 of 500 hosts not ready" in page.text and "100 causes" in page.text
    links = {value for tag, name, value in page.attributes if (tag, name) == ("a", "href")}
    assert {"hosts/gpu%04d.html" % number for number in range(500)} <= links
    causes = {value for tag, name, value in page.attributes if (tag, name) == ("article", "id")}
    assert len(causes) == 100
    assert page.text.index("made_up_check_number_000") < page.text.index("made_up_check_number_099")
    assert 'table class="matrix"' not in data.decode()


@pytest.mark.slow
def test_what_cannot_be_shown_in_full_is_told_by_its_number(monkeypatch: pytest.MonkeyPatch) -> None:
    """However large: a first page that would be too large shows less, and says how much it leaves out."""
    report = small(30, hostile=" " + "<&>" * 300)
    whole = len(html_report.render_html(report))
    monkeypatch.setattr(html_report, "FIRST_PAGE", whole // 3)
    page = html_report.render_html(report)
    assert len(page) <= whole // 3
    assert "The others are told on the page of each host." in Page(page.decode()).text
    few = dataclasses.replace(html_report._MEASURES[-1], rows=10)
    monkeypatch.setattr(html_report, "_MEASURES", (few,))
    assert "and 8 more hosts, in report.json" in Page(html_report.render_html(report).decode()).text


def test_the_same_check_is_one_cause_whatever_its_commands() -> None:
    found = findings.fold_findings(findings.group_findings(fleet()).causes)
    assert len(found) == len({one.first.check for one in found}) == 100
    sizes = [len(one.hosts) for one in found]
    assert sizes == sorted(sizes, reverse=True) and sizes[0] > 90
    every = next(one for one in found if one.first.check == "made_up_check_number_000")
    assert len(every.others) == len(every.hosts) - 1, "its commands name one host each"


@pytest.mark.parametrize(
    ("numbers", "text"), [([], ""), ([4], "4"), ([3, 1, 2, 7, 9, 8, 12], "1-3,7-9,12"), ([0, 2], "0,2")]
)
def test_hosts_by_their_numbers(numbers: list[int], text: str) -> None:
    assert html_report.write_ranges(numbers) == text


def test_ten_hosts_are_one_page_and_eleven_are_not(tmp_path: Path) -> None:
    written, problems = writers.write_all(small(11), str(tmp_path))
    assert problems == [] and written[-1] == "%s/hosts/ (11 pages)" % tmp_path
    assert len(list((tmp_path / "hosts").iterdir())) == 11
    assert (tmp_path / "report.html").read_text().count('class="matrix"') == 0
    writers.write_all(small(10), str(tmp_path))
    one = (tmp_path / "report.html").read_text()
    assert one.count('<details class="host"') == 10 and one.count('class="matrix"') > 10 and "hosts/" not in one
    assert not (tmp_path / "hosts").exists(), "no page of an earlier run is left"


def test_a_page_per_host_has_what_is_known_of_it(tmp_path: Path) -> None:
    writers.write_all(small(), str(tmp_path), "history/")
    page = Page((tmp_path / "hosts/gpu0002.html").read_text())
    for words in ("gpu0002: not ready", "made_up_check_number_000", "P2P, pair by pair", "PCIe tree", "All 30 checks"):
        assert words in page.text, words
    links = {value for tag, name, value in page.attributes if (tag, name) == ("a", "href")}
    assert links == {"../report.html", "../history/hosts/gpu0002.html"}
    assert "-l gpu0002\n" in (tmp_path / "hosts/gpu0002.html").read_text(), "its own command, not that of all"
    assert 'href="history/index.html"' in (tmp_path / "report.html").read_text()


# Names
def test_every_name_has_a_file_of_its_own_on_every_file_system() -> None:
    files = [page_names.name_page(name) for name in NAMES]
    assert len({name.lower() for name in files}) == len(NAMES), "GPU1 and gpu1 are one file on some systems"
    for name in files:
        assert re.fullmatch(r"[A-Za-z0-9][A-Za-z0-9._-]*\.html", name) and len(name) < 100 and ".." not in name, name
    assert page_names.name_page("gpu1.example.com") == "gpu1.example.com.html"


@pytest.mark.slow
def test_hosts_of_any_name_are_pages_that_the_first_page_finds(tmp_path: Path) -> None:
    report = rename(small(hostile=hostile_report.HOSTILE), NAMES)
    _written, problems = writers.write_all(report, str(tmp_path / "reports"), "history/")
    assert problems == [] and [path.name for path in tmp_path.iterdir()] == ["reports"]
    files = {path.name for path in (tmp_path / "reports/hosts").iterdir()}
    assert len(files) == len(NAMES)
    first = Page((tmp_path / "reports/report.html").read_text())
    linked = {
        urllib.parse.unquote(value or "")
        for tag, name, value in first.attributes
        if (tag, name) == ("a", "href") and (value or "").startswith("hosts/")
    }
    assert linked == {"hosts/" + name for name in files}
    for path in [tmp_path / "reports/report.html", *sorted((tmp_path / "reports/hosts").iterdir())[::9]]:
        page = Page(path.read_text())
        assert page.count["script"] == 1 and page.count.get("img", 0) == 0, path
        assert "1337" not in page.text and "\x1b" not in page.text and "\u202e" not in page.text
        assert {name for _tag, name, _value in page.attributes if name.startswith("on") or name == "style"} == set()


# What is in the folder
def test_what_somebody_else_keeps_there_stays(tmp_path: Path) -> None:
    folder = tmp_path / "hosts"
    writers.write_all(small(), str(tmp_path))
    (folder / "notes.html").write_text("<p>ours</p>")
    (folder / "gpu0001.txt").write_text("x")
    os.symlink(folder / "gpu0000.html", folder / "link.html")
    report = small()
    report["hosts"].pop("gpu0003")
    writers.write_all(report, str(tmp_path))
    assert not (folder / "gpu0003.html").exists()
    assert {"notes.html", "gpu0001.txt", "link.html", "gpu0004.html"} <= {path.name for path in folder.iterdir()}
    writers.write_all(small(3), str(tmp_path))
    assert {path.name for path in folder.iterdir()} == {"notes.html", "gpu0001.txt", "link.html"}


def test_pages_that_cannot_be_written_are_one_problem(tmp_path: Path) -> None:
    (tmp_path / "hosts").write_text("in the way")
    written, problems = writers.write_all(small(), str(tmp_path))
    assert len(problems) == 1 and "gpu0000.html and 11 more cannot be written" in problems[0]
    assert {os.path.basename(path) for path in written} == set(writers.WRITERS)

    def broken() -> bytes:
        raise KeyError("x")

    number, faults = page_folder.write_pages(str(tmp_path / "other"), [("a.html", broken), ("b.html", lambda: b"b")])
    assert number == 1 and faults == ["%s/other/a.html cannot be made: KeyError: 'x'" % tmp_path]


# The terminal
def test_the_terminal_is_readable_at_500_hosts() -> None:
    lines = [line for line, _tone in terminal.render_terminal(fleet(), 100, 0, ("reports/report.html",))]
    text = "\n".join(lines)
    assert len(lines) < 320 and lines[1] == "300 of 500 hosts NOT READY: 100 causes, 10 hosts not validated."
    assert text.count("\n  NOT READY  ") == 13 and "and 278 more hosts with other findings" in text
    assert "12. made_up" in text and "\n13. made_up" in text and "and 48 more causes" in text
    assert text.index("OTHER CAUSES: each in full in report.html") > text.index("12. made_up")
    assert "also      on 98 more hosts, with other commands" in text
    assert "made_up_check_number_239 (gpu0001, gpu0005, gpu0009 and 117 more)" in text


def test_a_handful_of_hosts_is_told_host_by_host() -> None:
    lines = [line for line, _tone in terminal.render_terminal(small(10), 100)]
    assert sum(line.startswith("  NOT READY  ") for line in lines) == 5
    assert not any("more hosts with other findings" in line for line in lines)


@pytest.mark.slow
@pytest.mark.long
def test_time_and_memory_per_host_stay_the_same(tmp_path: Path) -> None:
    """Writing 400 hosts takes four times what 100 take, and the pages are not held together."""
    import time
    import tracemalloc

    took, held = {}, {}
    for hosts in (100, 400):
        report = fleet_report.make_fleet(hosts)
        writers.write_all(report, str(tmp_path / str(hosts)))
        tracemalloc.start()
        began = time.process_time()
        for _name, render in html_report.list_host_pages(report):
            render()
        took[hosts] = (time.process_time() - began) / hosts
        held[hosts] = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
    assert took[400] < 1.5 * took[100]
    assert held[400] < 2 * held[100] + 1_000_000
