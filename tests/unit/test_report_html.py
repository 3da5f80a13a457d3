"""The HTML report: one file, nothing from elsewhere, captured text stays text.

How a browser shows it: tests/e2e/test_html_in_chromium.py.
"""

from __future__ import annotations

import base64
import hashlib
import re
from html.parser import HTMLParser
from typing import Any

import pytest
from ansible.module_utils.gpu_report import digest, html_report, pcie_tree, tables, writers

from . import hostile_report
from . import report_samples as samples
from .test_report_matrix import host, pair, probed

VOID = {"meta", "link", "br"}


class Page(HTMLParser):
    """Reads a page and checks that every element is closed in order."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.count: dict[str, int] = {}
        self.attributes: list[tuple[str, str, str | None]] = []
        self.texts: list[str] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.count[tag] = self.count.get(tag, 0) + 1
        self.attributes += [(tag, name, value) for name, value in attrs]
        if tag not in VOID:
            self.open.append(tag)

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open[-1] == tag, "</%s> ends %s" % (tag, self.open[-3:])
        self.open.pop()

    def handle_data(self, data: str) -> None:
        if not set(self.open) & {"script", "style"}:
            self.texts.append(data)

    @property
    def text(self) -> str:
        return " ".join(" ".join(self.texts).split())


def page(report: dict[str, Any]) -> Page:
    return Page(html_report.render_html(report).decode())


def test_what_is_wrong_comes_first_with_what_to_do() -> None:
    text = page(samples.report()).text
    order = ["2 of 3 hosts not ready", "i440FX chipset", "p2p_granted : 56 of 56", "What to do, on the "
                                                                                   "hypervisor", "The guest is "
                                                                                                 "stopped.",
             "qm set 101", "Then verify:", "Connection refused", "Unknown", "Warnings",
             "persistence mode is off", "Waived", "ticket 4711", "Host by host"]  # fmt: skip
    places = [text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places), list(zip(order, places))
    assert "--become" in text


def test_a_good_run_says_so() -> None:
    report = samples.report()
    report["hosts"] = {"gpu2": report["hosts"]["gpu2"]}
    report.update(
        ready=True, totals={**report["totals"], "hosts": {"total": 1, "ready": 1, "not_ready": 0, "not_validated": 0}}
    )
    shown = page(report)
    assert "✓ The host is ready." in shown.text
    assert "What is wrong" not in shown.text
    report["hosts"], report["totals"]["hosts"]["total"] = {}, 0
    assert "Nothing was validated" in page({**report, "ready": False}).text


def test_nothing_is_loaded_from_elsewhere() -> None:
    text = html_report.render_html(hostile_report.report()).decode()
    shown = Page(text)
    assert [
        value for _tag, name, value in shown.attributes if name in ("src", "srcset", "action", "background", "poster")
    ] == []
    targets = {value for _tag, name, value in shown.attributes if name == "href"}
    assert all(value == "data:," or (value or "").startswith("#") for value in targets), targets
    assert "url(" not in text[: text.index("</style>")]
    assert not [name for _tag, name, _value in shown.attributes if name.startswith("on") or name == "style"]


def test_only_our_own_script_and_style_may_run() -> None:
    text = html_report.render_html(hostile_report.report()).decode()
    policy = re.search(r'Content-Security-Policy" content="([^"]*)"', text)
    assert policy
    allowed = policy[1].replace("&#39;", "'")
    assert allowed.startswith("default-src 'none';")
    assert "unsafe" not in allowed
    for tag, directive in (("style", "style-src"), ("script", "script-src")):
        blocks = re.findall("<%s>(.*?)</%s>" % (tag, tag), text, re.DOTALL)
        assert len(blocks) == 1
        digest = base64.b64encode(hashlib.sha256(blocks[0].encode()).digest()).decode()
        assert "%s 'sha256-%s'" % (directive, digest) in allowed


def test_captured_text_is_text() -> None:
    shown = page(hostile_report.report())
    assert shown.count.get("img", 0) == shown.count.get("i", 0) == 0
    assert shown.count["script"] == 1
    assert " ".join(hostile_report.SCRIPT.split()) in shown.text
    assert "{{ 7 * 191 }}" in shown.text and "1337" not in shown.text
    assert "\x1b" not in shown.text and "\u202e" not in shown.text
    assert shown.text.count(hostile_report.LONG) == 1  # the command, to be copied whole; elsewhere it is cut
    assert "(cut here; whole in report.json)" in shown.text


def test_every_table_has_headers() -> None:
    shown = page(hostile_report.report())
    scopes = [value for tag, name, value in shown.attributes if (tag, name) == ("th", "scope")]
    assert len(scopes) == shown.count["th"]
    assert shown.count["table"] >= 5
    assert shown.count["h1"] == 1
    identifiers = [value for _tag, name, value in shown.attributes if name == "id"]
    assert len(identifiers) == len(set(identifiers))
    assert {(value or "")[1:] for tag, name, value in shown.attributes if (tag, name) == ("a", "href")} <= set(
        identifiers
    )


def test_size() -> None:
    report = samples.report()
    record = {**report["hosts"]["gpu10"], "facts": probed(host(16), p0_1=pair(30.0, 13.7, "staged", reason="30 GB/s"))}
    record["results"] = record["results"] * 20
    report["hosts"] = {"gpu%d" % number: record for number in range(40)}
    assert len(html_report.render_html(report)) < 40 * 100_000


@pytest.mark.parametrize(
    "facts",
    [
        {},
        {"gpus": None, "p2p": None, "pci": None, "topology": None, "probe": {}},
        {"pci": {"gpus": {"0000:01:00.0": {}}}},
    ],
)
def test_hosts_of_which_little_is_known(facts: dict[str, Any]) -> None:
    report = samples.report()
    report["hosts"]["gpu10"]["facts"] = facts
    assert "gpu10" in page(report).text


def test_unknown_is_called_unknown() -> None:
    table = tables.build_gpu_table(
        {"gpus": {"devices": {"0000:01:00.0": {"index": 0, "link_width": 8, "link_width_max": 16, "bar1_mib": "n/a"}}}}
    )
    assert table
    row = dict(zip(table.head, table.rows[0]))
    assert row["Memory used"] == row["ECC"] == row["Power"] == row["NUMA node"] == "unknown"
    assert (row["PCIe link"], row["BAR1"]) == ("gen unknown, x8 of 16", "n/a")


def test_gpus_that_only_the_bus_shows_and_lost_ones() -> None:
    slow = {"speed_gt_s": 16.0, "max_speed_gt_s": 32.0}
    facts = {
        "gpus": {"devices": {"0000:01:00.0": {"index": 0, "lost": True, "name": "NVIDIA H200"}}},
        "pci": {"gpus": {"0000:01:00.0": {}, "0000:02:00.0": {"name": "H200 SXM 141GB", "driver": "", "link": slow}}},
    }
    table = tables.build_gpu_table(facts)
    assert table
    assert table.rows[0][-1] == "LOST: NVIDIA H200"
    assert table.rows[1][1:3] == ("0000:02:00.0", "16 of 32 GT/s, unknown")
    assert table.rows[1][-1] == "H200 SXM 141GB (not shown by nvidia-smi; driver: none)"
    assert {len(row) for row in table.rows} == {len(table.head)}


def test_the_pcie_tree() -> None:
    bridges: dict[str, Any] = {
        "0000:00:01.0": {"kind": "root_port", "acs": {"present": False}},
        "0000:01:00.0": {"kind": "upstream", "acs": {"present": None, "redirects": None}},
        "0000:02:00.0": {"kind": "downstream", "acs": {"present": True, "redirects": True, "control_raw": "001d"}},
    }
    path = list(bridges)
    narrow = {"speed_gt_s": 32.0, "max_speed_gt_s": 32.0, "width": 8, "max_width": 16}
    gpus = {
        "0000:03:00.0": {"root_complex": "pci0000:00", "path": path, "link": narrow, "numa_node": 0},
        "0000:04:00.0": {"root_complex": "pci0000:00", "path": path[:2], "bound": False},
        "0000:05:00.0": {"root_complex": None, "path": None},
    }
    pci: dict[str, Any] = {"gpus": gpus, "bridges": bridges, "width_reduced": [{"address": "0000:03:00.0"}]}
    pci["redirecting_switch_ports"] = [{"address": "0000:02:00.0"}]
    first, second = pcie_tree.build_pcie_trees({"pci": pci, "gpus": {"devices": {"0000:03:00.0": {"index": 0}}}})
    switch = first.children[0].children[0]
    assert (first.name, first.children[0].marks, switch.marks) == (
        "root complex pci0000:00",
        [("no ACS", False)],
        [("ACS unknown", False)],
    )
    assert switch.children[0].marks == [("ACS redirects P2P (ACSCtl 0x001d)", True)]
    assert switch.children[0].children[0].marks == [("32 GT/s, x8 of x16", True), ("NUMA node 0", False)]
    assert ("no driver bound", True) in switch.children[1].marks
    assert second.children[0].name == "path unknown"
    assert pcie_tree.build_pcie_trees({"pci": None}) == []


def test_a_report_that_cannot_be_made_is_told(tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "report.html").mkdir()  # a rename cannot replace a directory
    written, problems = writers.write_all(samples.report(), str(tmp_path))
    assert [problem.split(" ")[0] for problem in problems] == [str(tmp_path / "report.html")]
    assert {path.rpartition("/")[2] for path in written} == set(writers.WRITERS) - {"report.html"}
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(writers.WRITERS)


def test_the_all_reduce_stands_beside_its_control() -> None:
    def arm(median: float, rate: float, **more: Any) -> dict[str, Any]:
        sizes = {
            "67108864": {"wrong": 0, "latency_us": {"median": median}, "bus_bandwidth_gb_s": rate},
            "12288": {"wrong": 2},
        }
        return {"state": "finished", "sizes": sizes, **more}

    hung = arm(2524.5, 26.58, state="hung", detail="no end within 90 s")
    arms = {"configured": arm(274.8, 244.2), "p2p_disabled": hung}
    found = {"verdict": "wrong_values", "explanation": "12288 bytes: 2 wrong elements", "arms": arms}
    probe = digest.digest_probe({"ran": True, "seconds": 2.1, "devices": {"a": {}, "b": {}}, "collective": found})
    table = tables.build_all_reduce_table({"probe": probe})
    assert table
    assert table.rows == [
        ("12 KiB", "unknown", "unknown", "unknown", "unknown", "2, 2"),
        ("64 MiB", "275 µs", "244 GB/s", "2524 µs", "26.6 GB/s", "0, 0"),
    ]
    notes = tables.list_probe_notes({"probe": probe})
    assert notes[0] == "Measured on 2 GPUs in 2.1 s."
    assert "All-reduce: wrong values: 12288 bytes: 2 wrong elements." in notes
    assert "All-reduce, p2p disabled: hung, no end within 90 s." in notes


def test_a_single_gpu_was_probed_against_itself() -> None:
    figure = {
        "median": 2092.0,
        "min": 2089.0,
        "max": 2092.0,
        "size_mib": 256,
        "iterations": 5,
        "transfers": 24,
        "method": "copy_engine",
    }
    device = "0000:00:06.0"
    probe = digest.digest_probe(
        {
            "ran": True,
            "seconds": 1.12,
            "devices": {device: {}},
            "loopback": {device: {"bandwidth_gb_s": {"copy": figure}}},
        }
    )
    facts = {"probe": probe, "p2p": {"gpu_count": 1}}
    assert (
        tables.list_probe_notes(facts)[0]
        == "Measured on 1 GPU in 1.12 s; with one there is no pair, so it copied to itself."
    )
    table = tables.build_figure_table(facts)
    assert table
    assert table.rows == [
        ("copy engine, one way", "2092", "2092", "2092", "GB/s", "copy_engine, 256 MiB, 5 x 24 transfers")
    ]
    assert tables.summarise_p2p(facts) == "one GPU"
    report = samples.report()
    report["hosts"]["gpu10"]["facts"] = facts
    assert "All figures of the probe" in page(report).text
