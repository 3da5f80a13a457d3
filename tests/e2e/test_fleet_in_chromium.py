"""The pages of a fleet and of its history in a real browser: from a disk, with and without scripts, on every screen.

Set GPU_HOST_SCREENSHOTS to a directory to keep the pictures.
"""

from __future__ import annotations

import urllib.parse
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_report import json_report, page_names, writers
from ansible.module_utils.gpu_report.history import keeping

from tests.unit import fleet_report, hostile_report
from tests.unit.test_report_fleet import NAMES, rename

from . import chromium
from .test_html_in_chromium import CONTRAST, OPEN_ALL, TOO_WIDE, browser, is_png, pictures

__all__ = ["browser", "pictures"]
pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("chromium"),
    pytest.mark.skipif(chromium.executable() is None, reason="chromium is not installed (tests/packages.txt)"),
]
HOSTILE = page_names.name_page(hostile_report.SCRIPT)


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A fleet after six runs, and one of hostile names and texts after two."""
    found = {}
    for kind, days in (("", 6), ("hostile ", 2)):
        directory = tmp_path_factory.mktemp("fleet")
        for day in range(1, days + 1):
            report = make_report(day, bool(kind))
            (directory / "report.json").write_bytes(json_report.render_json(report))
            kept = keeping.keep_run(str(directory / "history"), report, str(directory / "report.json"), 30)
            assert kept.problems == []
        assert writers.write_all(report, str(directory), "history/")[1] == []
        page = HOSTILE if kind else "gpu0002.html"
        paths = ("report.html", "hosts/" + page, "history/index.html", "history/hosts/" + page)
        found.update({kind + name: directory / path for name, path in zip(("fleet", "host", "index", "past"), paths)})
    return found


def make_report(day: int, hostile: bool) -> dict[str, Any]:
    if hostile:
        made = fleet_report.make_fleet(12, gpus=4, checks=20, day=day, hostile=hostile_report.HOSTILE)
        for host in made["hosts"].values():
            host["message"] = hostile_report.HOSTILE
        return rename(made, NAMES)
    made = fleet_report.make_fleet(60, gpus=4, day=day, rate=55.0 + day)
    if day == 4:
        made["hosts"]["gpu0002"]["facts"]["driver"]["version"] = "580.159.04"
        made["hosts"]["gpu0000"].update(state="not_ready", message="1 failed: made_up_check_number_007")
    return made


KINDS = ("fleet", "host", "index", "past", "hostile fleet", "hostile host", "hostile index", "hostile past")


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.long if "hostile" in name else ()) for name in KINDS]
)
def test_it_asks_for_nothing_and_fits_every_screen(
    browser: chromium.Browser, pages: dict[str, Path], pictures: Path, name: str
) -> None:
    for width in (320, 768, 1280):
        browser.open(pages[name], width, 844, phone=width < 700)
        assert browser.complaints() == [] and browser.evaluate("window.attacked") is None
        assert [url for url in browser.requests() if not url.startswith("data:")] == [pages[name].as_uri()]
        browser.evaluate(OPEN_ALL)
        assert browser.evaluate("document.documentElement.scrollWidth") <= width, width
        assert browser.evaluate(TOO_WIDE) == [], width
    assert is_png(browser.screenshot(pictures / (name.replace(" ", "-") + ".png"), whole=False), 1280)


@pytest.mark.parametrize("name", KINDS[:4])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(browser: chromium.Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], dark=dark)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate(CONTRAST) == {}
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels


VISIBLE = "[...document.querySelectorAll('%s')].filter((e) => e.checkVisibility()).length"


def filter_by(browser: chromium.Browser, words: str) -> None:
    browser.evaluate(
        "(() => { const box = document.querySelector('#filter input'); box.value = %r;"
        " box.dispatchEvent(new Event('input')); })()" % words
    )


def test_the_filter_finds_hosts_and_what_is_wrong_with_them(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fleet"])
    every = browser.evaluate(VISIBLE % "article")
    assert every > 20 and browser.evaluate(VISIBLE % "tr[data-host]") == 36, "ready hosts are folded"
    filter_by(browser, "GPU0053")
    assert browser.evaluate(VISIBLE % "tr[data-host]") == 1
    own = browser.evaluate(
        "[...document.querySelectorAll('article')].filter((e) => e.checkVisibility())"
        ".map((e) => e.querySelector('code').textContent)"
    )
    message = browser.evaluate(
        "[...document.querySelectorAll('tr[data-host]')].find((e) => e.checkVisibility()).lastElementChild.textContent"
    )
    assert set(own) - {"made_up_check_number_239"} == set(message.partition(": ")[2].split(", ")), (
        "also where its name is beyond those that the finding shows"
    )
    filter_by(browser, "gpu0005")
    assert browser.evaluate(VISIBLE % "details.ready tr[data-host]") == 1, "a ready host is unfolded"
    filter_by(browser, "")
    assert browser.evaluate(VISIBLE % "tr[data-host]") == 36 and browser.evaluate(VISIBLE % "article") == every
    browser.evaluate("document.querySelector('article button.only').click()")
    wanted = int(browser.evaluate("document.querySelector('article button.only').textContent").split()[2])
    assert browser.evaluate(VISIBLE % "tr[data-host]") == wanted > 12


def test_it_works_without_scripts(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.call("Emulation.setScriptExecutionDisabled", value=True)
    try:
        browser.open(pages["fleet"])
        shown = browser.call("DOM.getDocument", depth=-1)["root"]["nodeId"]
        rows = browser.call("DOM.querySelectorAll", nodeId=shown, selector="tr[data-host] a")["nodeIds"]
        boxes = browser.call("DOM.querySelectorAll", nodeId=shown, selector="#filter input")["nodeIds"]
        assert len(rows) == 60 and boxes == [] and browser.complaints() == []
    finally:
        browser.call("Emulation.setScriptExecutionDisabled", value=False)


@pytest.mark.parametrize("name", ["fleet", "hostile fleet", "index", "hostile index"])
def test_every_host_is_one_click_away(browser: chromium.Browser, pages: dict[str, Path], name: str) -> None:
    browser.open(pages[name])
    links = browser.evaluate("[...document.querySelectorAll('tr[data-host] a')].map((a) => [a.textContent, a.href])")
    assert len(links) == (len(NAMES) if name.startswith("hostile") else 60)
    for text, address in links[:: len(links) // 3]:
        path = Path(urllib.parse.unquote(urllib.parse.urlsplit(address).path))
        browser.open(path)
        shown = browser.evaluate("document.querySelector('.verdict').textContent")
        assert " ".join(shown.split()).startswith(" ".join(text.split()) + ":")


def test_pictures_show_what_fell(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["past"])
    assert browser.evaluate("document.querySelectorAll('figure.over-time svg').length") >= 4
    sizes = browser.evaluate(
        "[...document.querySelectorAll('figure.over-time polyline')].map((line) => line.getBoundingClientRect().width)"
    )
    assert min(sizes) > 200, "every line goes over all runs"
    assert browser.evaluate("document.querySelectorAll('table.grid thead th.when').length") == 6
