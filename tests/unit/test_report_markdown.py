"""The Markdown report, read by a CommonMark parser with GitHub's tables.

What was captured is text there, and it fits into a ticket.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Any

import pytest
from ansible.module_utils.gpu_report import markdown_report
from markdown_it import MarkdownIt
from markdown_it.token import Token

from . import hostile_report
from . import report_samples as samples
from .test_report_matrix import host, pair, probed

PARSER = MarkdownIt("commonmark").enable("table").enable("strikethrough")
OWN_HTML = {"<details>", "</details>", "<summary>", "</summary>", "<!-- -->"}


def text_of(report: dict[str, Any]) -> str:
    return markdown_report.render_markdown(report).decode()


def tokens(text: str) -> Iterator[Token]:
    for token in PARSER.parse(text):
        yield token
        yield from token.children or ()


def shown(text: str) -> str:
    """What a reader sees."""
    return "".join(token.content if token.type in ("text", "code_inline", "fence") else "\n" for token in tokens(text))


def test_what_is_wrong_comes_first() -> None:
    text = shown(text_of(samples.report()))
    assert text.index("2 of 3 hosts not ready") < text.index("gpu10") < text.index("What is wrong")
    text = text[text.index("What is wrong") :]
    order = ["chipset_supports_p2p", "i440FX", "p2p_granted", "on the hypervisor", "The guest is stopped.",
             "qm set 101 --machine q35\nqm stop 101", "Then verify", "Warnings", "Unknown", "--become", "Waived",
             "ticket 4711"]  # fmt: skip
    places = [text.find(words) for words in order]
    assert -1 not in places, order[places.index(-1)]
    assert places == sorted(places), list(zip(order, places))


def test_captured_text_is_text() -> None:
    text = text_of(hostile_report.report())
    found = list(tokens(text))
    html = {
        tag
        for token in found
        if token.type in ("html_block", "html_inline")
        for tag in re.findall(r"<!--.*?-->|<[^>]*>", token.content)
    }
    assert html <= OWN_HTML, html - OWN_HTML
    kinds = {token.type for token in found}
    assert not kinds & {"link_open", "image", "hr", "blockquote_open", "s_open", "em_open", "code_block"}, kinds
    headings = [found[number + 1].content for number, token in enumerate(found) if token.type == "heading_open"]
    assert not [heading for heading in headings if heading.startswith("heading")]
    plain = re.sub(r"(?<!`)(`+)(?!`).+?(?<!`)\1(?!`)", "", re.sub(r"(?s)(`{3,}).*?\n\1", "", text))
    assert re.search(r"[@#]\w", plain) is None  # in plain text it would notify a person, or link to an issue
    seen = shown(text)
    assert "[link](javascript:attacked)" in seen
    assert "**strong**" in seen and "&lt;" in seen and "{{ 7 * 191 }}" in seen
    assert "\x1b" not in text and "\u202e" not in text


def test_tables_keep_their_columns() -> None:
    rows: list[int] = []
    tables: list[set[int]] = []
    for token in PARSER.parse(text_of(hostile_report.report())):
        if token.type == "table_open":
            tables.append(set())
        elif token.type == "tr_open":
            rows.append(0)
        elif token.type in ("td_open", "th_open"):
            rows[-1] += 1
        elif token.type == "tr_close":
            tables[-1].add(rows[-1])
    assert tables and all(len(widths) == 1 for widths in tables), tables
    assert {17} in tables  # the P2P tables of 16 GPUs


def test_a_row_is_not_cut_by_what_it_holds() -> None:
    """A parser fills short rows up and cuts long ones, so the pipes are counted, too."""
    lines = text_of(hostile_report.report()).splitlines()
    heads = [number for number, line in enumerate(lines) if re.fullmatch(r"\|(-+:?\|)+", line)]
    assert heads
    for number in heads:
        wanted = lines[number].count("|")
        for line in lines[number + 1 :]:
            if not line.startswith("|"):
                break
            assert len(re.findall(r"(?<!\\)(?:\\\\)*\|", line)) == wanted, line[:200]


@pytest.mark.parametrize("commands", ["```", "a ```` b", "``\x1b[0m`", "~~~", "`", "x\n```sh\nrm -rf /\n```"])
def test_a_fence_is_not_ended_from_inside(commands: str) -> None:
    found = list(PARSER.parse(markdown_report.code_block(commands, "sh") + "\n\nafter"))
    assert [token.type for token in found] == ["fence", "paragraph_open", "inline", "paragraph_close"]
    assert found[0].content == markdown_report.phrases.strip_controls(commands) + "\n"


@pytest.mark.parametrize("text", ["a`b", "``", "`", "", "a``b`", "plain", " "])
def test_a_code_span_holds_its_text(text: str) -> None:
    children = PARSER.parse(markdown_report.code_span(text) + " after")[1].children or []
    assert [child.type for child in children] == ["code_inline", "text"]
    assert children[0].content.strip() == " ".join(text.split())


@pytest.mark.parametrize(
    "text",
    [
        "# h",
        "- item",
        "+ item",
        "1. one",
        "1) one",
        "> quote",
        "= =",
        "a_b_c",
        "<b>",
        "&amp;",
        "a  b",
        "x | y",
        "$1$",
        "\\",
        "![a](b)",
        "12 34",
    ],
)
def test_an_escaped_text_reads_as_it_was(text: str) -> None:
    found = PARSER.parse("x\n\n%s" % markdown_report.escape_markdown(text))
    assert [token.type for token in found] == ["paragraph_open", "inline", "paragraph_close"] * 2
    assert "".join(child.content for child in found[4].children or []) == " ".join(text.split())


@pytest.mark.slow
def test_it_fits_into_a_ticket() -> None:
    report = samples.report()
    record = {**report["hosts"]["gpu10"], "facts": probed(host(16), p0_1=pair(30.0, 13.7, "staged"))}
    report["hosts"] = {"gpu%d" % number: record for number in range(100)}
    text = text_of(report)
    assert len(text) < 65_536
    assert "Left out for length: the tables of" in text
    assert text.count("<details>") == text.count("</details>") > 0


def test_findings_that_do_not_fit_are_left_out_whole() -> None:
    report = hostile_report.report()
    name = next(iter(report["hosts"]))
    one = next(result for result in report["hosts"][name]["results"] if result.get("remedy"))
    more = [
        {**one, "id": "check_%d" % number, "remedy": {**one["remedy"], "commands": ["x" * 9_000]}}
        for number in range(20)
    ]
    report["checks"].update((result["id"], report["checks"][one["id"]]) for result in more)
    report["hosts"][name]["results"] += more
    text = text_of(report)
    assert len(text) < 65_536
    fences = [token.content for token in PARSER.parse(text) if token.type == "fence"]
    assert len(fences) > 3 and not any("Left out for length" in content for content in fences)
    assert re.search(r"Left out for length: \d+ sections below", text)


def test_a_host_of_which_nothing_is_known_and_a_run_without_hosts() -> None:
    report = samples.report()
    report["hosts"] = {}
    report["totals"]["hosts"] = dict.fromkeys(report["totals"]["hosts"], 0)
    assert "nothing was validated" in text_of(report)
