"""The HTML report in a real browser.

It asks for nothing, complains about nothing, fits a phone, reads well in light, dark and print.

Set GPU_HOST_SCREENSHOTS to a directory to keep the pictures.
"""

from __future__ import annotations

import copy
import os
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_report import html_report

from tests.unit import hostile_report
from tests.unit import report_samples as samples
from tests.unit.test_report_matrix import host, pair, probed

from . import chromium

pytestmark = [
    pytest.mark.browser,
    pytest.mark.xdist_group("chromium"),
    pytest.mark.skipif(chromium.executable() is None, reason="chromium is not installed (tests/packages.txt)"),
]
PHONE = (390, 844)
DESKTOP = (1280, 900)

# Every visible text against what is behind it, by WCAG 2's formula; the least ratio for text of this size is 4.5.
CONTRAST = """(() => {
  const parse = (colour) => (colour.match(/[\\d.]+/g) || [0, 0, 0, 0]).map(Number);
  const light = ([r, g, b]) => [r, g, b].map((v) => v / 255)
    .map((v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4))
    .reduce((sum, v, i) => sum + v * [0.2126, 0.7152, 0.0722][i], 0);
  const behind = (element) => {
    for (let e = element; e; e = e.parentElement) {
      const colour = parse(getComputedStyle(e).backgroundColor);
      if (colour.length < 4 || colour[3] > 0) return colour;
    }
    return [255, 255, 255];
  };
  const found = {};
  for (const element of document.querySelectorAll("body *")) {
    const own = [...element.childNodes].some((node) => node.nodeType === 3 && node.data.trim());
    if (!own || !element.checkVisibility() || parseFloat(getComputedStyle(element).fontSize) === 0) continue;
    const [a, b] = [light(parse(getComputedStyle(element).color)), light(behind(element))].sort((x, y) => y - x);
    const ratio = (a + 0.05) / (b + 0.05);
    if (ratio < 4.5) found[element.tagName + "." + element.className] = ratio;
  }
  return found;
})()"""

# What sticks out of the window, except inside a region that scrolls by itself.
TOO_WIDE = """[...document.querySelectorAll("body *")].filter((e) => e.checkVisibility() && !e.closest(".scroll") &&
  e.getBoundingClientRect().right > innerWidth + 1)
  .map((e) => e.tagName + "." + e.className + " " + e.textContent.slice(0, 60))"""
OPEN_ALL = "document.querySelectorAll('details').forEach((d) => { d.open = true; })"


@pytest.fixture(scope="module")
def browser(tmp_path_factory: pytest.TempPathFactory) -> Iterator[chromium.Browser]:
    with chromium.Browser(tmp_path_factory.mktemp("chromium") / "profile") as running:
        yield running


@pytest.fixture(scope="module")
def pages(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A usual report, one with as many hosts as one page holds, and a hostile one."""
    directory = tmp_path_factory.mktemp("reports")
    usual = samples.report()
    usual["hosts"]["gpu10"]["facts"] = {
        **probed(host(8), p0_1=pair(30.0, 13.7, "staged", reason="30 GB/s")),
        "evidence": {"recorded": True},
    }
    fleet = copy.deepcopy(usual)
    fleet["hosts"] = {"gpu%d" % number: usual["hosts"]["gpu10" if number % 2 else "gpu2"] for number in range(10)}
    reports = {
        "usual": usual,
        "fleet": fleet,
        "hostile": hostile_report.report(),
        "ready": {**usual, "hosts": {"gpu2": usual["hosts"]["gpu2"]}},
    }
    paths = {}
    for name, report in reports.items():
        paths[name] = directory / (name + ".html")
        paths[name].write_bytes(html_report.render_html(report))
    return paths


@pytest.fixture
def pictures(tmp_path: Path) -> Path:
    kept = Path(os.environ.get("GPU_HOST_SCREENSHOTS") or tmp_path)
    kept.mkdir(parents=True, exist_ok=True)
    return kept


def is_png(path: Path, width: int) -> bool:
    data = path.read_bytes()
    return data.startswith(b"\x89PNG") and int.from_bytes(data[16:20], "big") == width and len(data) > 20_000


@pytest.mark.parametrize("name", ["usual", "fleet", "hostile", "ready"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_it_asks_for_nothing_and_complains_about_nothing(
    browser: chromium.Browser, pages: dict[str, Path], name: str, dark: bool
) -> None:
    browser.open(pages[name], *DESKTOP, dark=dark)
    assert browser.evaluate("document.readyState") == "complete"
    assert [url for url in browser.requests() if not url.startswith("data:")] == [pages[name].as_uri()]
    assert browser.complaints() == []
    assert browser.evaluate("window.attacked") is None


@pytest.mark.parametrize("name", ["usual", "fleet", "hostile", "ready"])
@pytest.mark.parametrize("width", [320, 390, 768, 1280])
def test_nothing_sticks_out(browser: chromium.Browser, pages: dict[str, Path], name: str, width: int) -> None:
    browser.open(pages[name], width, 844, phone=width < 700)
    if name != "fleet":
        browser.evaluate(OPEN_ALL)
    assert browser.evaluate("innerWidth") == width
    assert browser.evaluate("document.documentElement.scrollWidth") <= width
    assert browser.evaluate(TOO_WIDE) == []


@pytest.mark.parametrize("name", ["usual", "hostile"])
@pytest.mark.parametrize("dark", [False, True], ids=["light", "dark"])
def test_every_text_can_be_read(browser: chromium.Browser, pages: dict[str, Path], name: str, dark: bool) -> None:
    browser.open(pages[name], *DESKTOP, dark=dark)
    browser.evaluate(OPEN_ALL)
    assert browser.evaluate("[...document.querySelectorAll('td')].some((cell) => cell.checkVisibility())")
    assert browser.evaluate(CONTRAST) == {}


def test_light_dark_phone_and_print(browser: chromium.Browser, pages: dict[str, Path], pictures: Path) -> None:
    browser.open(pages["usual"], *DESKTOP)
    light = browser.screenshot(pictures / "light.png")
    day = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    browser.open(pages["usual"], *DESKTOP, dark=True)
    dark = browser.screenshot(pictures / "dark.png")
    night = browser.evaluate("getComputedStyle(document.body).backgroundColor")
    assert (day, night) == ("rgb(255, 255, 255)", "rgb(13, 17, 23)")
    browser.open(pages["usual"], *PHONE, phone=True)
    phone = browser.screenshot(pictures / "phone.png")
    assert is_png(light, 1280) and is_png(dark, 1280) and is_png(phone, 390)
    assert light.read_bytes() != dark.read_bytes()
    # Whoever reads in the dark still prints on white paper, without buttons.
    browser.open(pages["usual"], *DESKTOP, dark=True)
    pdf = browser.pdf(pictures / "print.pdf").read_bytes()
    assert pdf.startswith(b"%PDF") and len(re.findall(rb"/Type\s*/Page\b", pdf)) >= 2
    browser.call(
        "Emulation.setEmulatedMedia", media="print", features=[{"name": "prefers-color-scheme", "value": "dark"}]
    )
    assert browser.evaluate("getComputedStyle(document.body).backgroundColor") == day
    assert browser.evaluate("[...document.querySelectorAll('button')].some((b) => b.checkVisibility())") is False


def test_the_order_of_headings_and_the_tables(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"])
    levels = browser.evaluate("[...document.querySelectorAll('h1,h2,h3,h4')].map((h) => Number(h.tagName[1]))")
    assert levels[0] == 1 and levels.count(1) == 1
    assert all(after <= before + 1 for before, after in zip(levels, levels[1:])), levels
    headings = browser.evaluate("[...document.querySelectorAll('h2')].map((h) => h.textContent)")
    assert headings == ["What is wrong, and what to do", "Hosts", "Unknown", "Warnings", "Waived", "Host by host"]
    captions = browser.evaluate(
        "[...document.querySelectorAll('table.matrix caption')].map((c) => c.textContent.trim())"
    )
    assert captions == [
        "Granted by the driver",
        "Topology",
        "Proven by the probe",
        "Bandwidth (GB/s)",
        "Latency of a 12 KiB copy (µs)",
    ]
    ragged = (
        "[...document.querySelectorAll('table')].filter((t) => new Set([...t.rows].map((r) => "
        "r.cells.length)).size > 1).length"
    )
    assert browser.evaluate(ragged) == 0
    bare = "[...document.querySelectorAll('table')].filter((t) => !t.querySelector('thead th[scope=col]')).length"
    assert browser.evaluate(bare) == 0


def test_a_bad_pair_is_told_without_colour(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"])
    cells = browser.evaluate(
        "[...document.querySelectorAll('table.matrix td.bad, table.matrix td.doubt')].map((c) => "
        "[c.textContent, getComputedStyle(c).fontWeight, getComputedStyle(c).boxShadow !== 'none'])"
    )
    assert cells == [["HOST", "700", True], ["30.0", "700", True], ["13.7", "700", True]]


def test_commands_are_copied_as_they_are(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["usual"])
    assert browser.evaluate(
        "document.querySelectorAll('button.copy').length === document.querySelectorAll('pre.commands').length"
    )
    browser.evaluate("document.querySelector('button.copy').click()")
    deadline = time.monotonic() + 10
    while (
        browser.evaluate("document.querySelector('button.copy').textContent") == "Copy" and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    said = browser.evaluate("document.querySelector('button.copy').textContent")
    copied = browser.evaluate(
        "getSelection().toString()" if said == "Selected" else "document.querySelector('pre.commands code').textContent"
    )
    assert said in ("Copied", "Selected")
    assert copied.strip() == "qm set 101 --machine q35\nqm stop 101 && qm start 101"


def test_a_link_opens_the_host(browser: chromium.Browser, pages: dict[str, Path]) -> None:
    browser.open(pages["fleet"])
    assert browser.evaluate("document.querySelector('#host-9').closest('details').open") is False
    browser.evaluate("document.querySelector('.hosts a[href=\"#host-9\"]').click()")
    assert (
        browser.evaluate(
            "new Promise((done) => setTimeout(() => "
            "done(document.querySelector('#host-9').closest('details').open), 300))"
        )
        is True
    )


def test_the_report_of_a_real_run(play: Any, browser: chromium.Browser, pictures: Path) -> None:
    run = play("validate.yml")
    browser.open(run.reports / "report.html", *PHONE, phone=True)
    assert browser.complaints() == []
    assert browser.evaluate("document.documentElement.scrollWidth") <= PHONE[0]
    assert browser.evaluate("document.querySelector('.verdict').textContent").strip() == "✗ 1 of 4 hosts not ready."
    assert browser.evaluate("document.querySelector('.finding .seen').textContent").strip()
    assert browser.evaluate("document.querySelectorAll('table.matrix').length") >= 3
    assert is_png(browser.screenshot(pictures / "fleet-phone.png"), PHONE[0])
    # h200-x2 holds a recorded probe: its figures come all the way.
    assert run.report["hosts"]["h200-x2"]["facts"]["probe"]["verdicts"] == {"pairs": 2, "ok": 2}
    cells = browser.evaluate(
        "[...[...document.querySelectorAll('details.host')].find((d) => d.querySelector('h3').textContent === "
        "'h200-x2')"
        ".querySelectorAll('table.matrix')[3].querySelectorAll('caption, td')].map((cell) => cell.textContent.trim())"
    )
    assert cells[0] == "Bandwidth (GB/s)" and len([cell for cell in cells if re.fullmatch(r"3\d\d", cell)]) == 2, cells
    assert "report.html" in run.text and "report.md" in run.text
    assert "✗ 1 of 4 hosts not ready" in (run.reports / "report.md").read_text()
