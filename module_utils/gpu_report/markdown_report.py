"""The report as GitHub-flavoured Markdown, to paste into a ticket.

Findings come first, the tables of each host are folded below.

Captured text is data: whatever could be markup, HTML, a mention or a link to another ticket is escaped, and a fence is
longer than any run of backticks inside it. A ticket holds 65,536 characters at most (GitHub), so what does not fit is
left out by name.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Any

from . import alike_text, changes, findings, link_figures, matrix, phrases, tables
from .collector import NOT_VALIDATED, READY
from .findings import Finding, Unknown
from .tables import Table

LIMIT = 60_000  # characters; leaves room for what the user writes above
_LONGEST = 2_000  # of one captured text
_VARIANTS = 4
_NAMES = 40  # checks that are named in one line
_CHANGES = 30  # since a baseline, that are listed
_SAID = 30  # differences of hosts of one kind
_STATES = {READY: "✓ ready", "not_ready": "✗ not ready", NOT_VALIDATED: "? not validated"}
_MARKUP = re.compile(r"([\\`*_{}\[\]<>|~$])")
_AT_START = re.compile(r"^(\s*)([#+=-]|\d+(?=[.)]\s))")


def render_markdown(report: dict[str, Any]) -> bytes:
    """The bytes of report.md."""
    found = findings.group_findings(report)
    parts = list(_parts(report, found))
    room = LIMIT - sum(map(len, parts))
    if room < 0:
        parts = _shortened(parts)
        room = 0
    left_out = []
    for name, host in report["hosts"].items():
        section = "\n".join(_host(name, host))
        if not section:
            continue
        if len(section) + 1 > room:
            left_out.append(name)
        else:
            parts.append(section)
            room -= len(section) + 1
    if left_out:
        parts.append(
            "*Left out for length: the tables of %s. They are in report.html.*\n"
            % escape_markdown(phrases.join_names(left_out))
        )
    return "\n".join(parts).encode("utf-8", "replace")


def _shortened(parts: list[str]) -> list[str]:
    """As many whole parts as fit: a cut inside one could open a fence that nothing closes."""
    kept: list[str] = []
    room = LIMIT
    for part in parts:
        if len(part) > room:
            return [
                *kept,
                "*Left out for length: %s below this. It is in report.html.*\n"
                % phrases.format_count(len(parts) - len(kept), "section"),
            ]
        kept.append(part)
        room -= len(part)
    return kept


def escape_markdown(text: Any) -> str:
    """`text` in one line, as text and nothing else: no markup, no HTML, no mention, no link to an issue."""
    flat = " ".join(phrases.strip_controls(text).split())
    if len(flat) > _LONGEST:
        flat = flat[:_LONGEST] + " …"
    flat = _MARKUP.sub(r"\\\1", flat.replace("&", "&amp;"))
    flat = re.sub(r"([@#])(?=\w)", r"\1<!-- -->", flat)  # @name and #12 would notify and link
    flat = re.sub(r"(?i)\b(https?|ftp)://", r"\1:<!-- -->//", flat)
    return (
        _AT_START.sub(r"\1\\\2", flat)
        if not re.match(r"\s*\d", flat)
        else re.sub(r"^(\s*\d+)([.)]\s)", r"\1\\\2", flat)
    )


def code_span(text: Any) -> str:
    """A code span; in a table too, where GitHub asks for an escaped pipe even inside one."""
    flat = " ".join(phrases.strip_controls(text).split()).replace("|", "\\|")
    ticks = "`" * (_longest_run(flat) + 1)
    return "%s%s%s" % (ticks, " %s " % flat if flat.startswith("`") or flat.endswith("`") else flat or " ", ticks)


def code_block(text: str, language: str = "") -> str:
    """A fenced block that nothing inside can end."""
    text = phrases.strip_controls(text)  # first: what it removes may stand between backticks
    ticks = "`" * max(3, _longest_run(text) + 1)
    return "%s%s\n%s\n%s" % (ticks, language, text, ticks)


def _longest_run(text: str) -> int:
    return max((len(run) for run in re.findall("`+", text)), default=0)


def _table(head: Sequence[str], rows: Sequence[Sequence[str]], numbers: Sequence[int] = ()) -> str:
    """Cells are Markdown already."""
    lines = [
        "| %s |" % " | ".join(head),
        "|%s|" % "|".join("--:" if number in numbers else "---" for number in range(len(head))),
    ]
    return "\n".join([*lines, *("| %s |" % " | ".join(row) for row in rows)]) + "\n"


def _facts_table(data: Table) -> str:
    return _table(
        [escape_markdown(name) for name in data.head],
        [[escape_markdown(cell) for cell in row] for row in data.rows],
        data.numbers,
    )


def _parts(report: dict[str, Any], found: findings.Findings) -> Iterator[str]:
    """The report but for the tables of the hosts, in parts that stand alone."""
    run, totals = report["run"], report["totals"]
    counts = totals["checks"]
    said = [
        "%d %s" % (counts[status], status)
        for status in ("pass", "fail", "unknown", "error", "waived", "skip")
        if counts[status]
    ]
    yield "# GPU host validation: %s\n" % _verdict(totals["hosts"])
    yield "%s, %s, %s s, ansible-core %s. %s: %s.\n" % (
        escape_markdown(run["playbook"]), escape_markdown(run["started_at"]), run["seconds"],
        escape_markdown(run["ansible_core"]),
        phrases.format_count(counts["total"], "check"), ", ".join(said) or "none ran",
    )  # fmt: skip
    incomplete = phrases.describe_incomplete(run)
    if incomplete:
        yield "**%s**\n" % escape_markdown(incomplete)
    unproven = [
        "- **Not proven** on %s: %s" % (escape_markdown(phrases.join_names(hosts)), escape_markdown(text))
        for text, hosts in findings.group_unproven(report)
    ]
    if unproven:
        yield "\n".join(unproven) + "\n"
    if len(report["hosts"]) > 1 or any(host["state"] == NOT_VALIDATED for host in report["hosts"].values()):
        yield _summary(report["hosts"])
    if found.causes:
        yield "## What is wrong, and what to do\n"
    for number, finding in enumerate(found.causes, 1):
        yield "\n".join(
            _finding(
                finding,
                "### %d. %s on %s"
                % (number, code_span(finding.check), escape_markdown(phrases.join_names(finding.hosts))),
            )
        )
    for title, group in (
        ("## Broken checks: a fault of the check, not of the host\n", found.broken),
        ("## Warnings\n", found.warnings),
    ):
        if group:
            yield title
        for finding in group:
            yield "\n".join(
                _finding(
                    finding,
                    "### %s on %s" % (code_span(finding.check), escape_markdown(phrases.join_names(finding.hosts))),
                )
            )
    yield from _compared(report)
    if found.unknown:
        yield "## Unknown: could not be decided, so not taken for good\n"
        yield "\n".join(_unknown(unknown) for unknown in found.unknown) + "\n"
    if found.waived:
        yield "## Waived\n"
        yield "\n".join(_waived(finding) for finding in found.waived) + "\n"


def _compared(report: dict[str, Any]) -> Iterator[str]:
    """What changed since the baselines, and in what hosts of one kind differ."""
    drifts = changes.group_drift(report)
    if drifts:
        yield "## Compared with the baselines\n"
    for item in drifts:
        lines = ["- %s" % escape_markdown(line) for line in item.list_lines(_CHANGES)]
        yield "\n".join(["**%s**\n" % escape_markdown(item.title), *lines]) + "\n"
    said = alike_text.list_said(report)
    if said:
        yield "## Hosts of one kind that differ\n"
        more = ["- and %d more, in report.json" % (len(said) - _SAID)] if len(said) > _SAID else []
        lines = ["- %s. %s" % (escape_markdown(item.text), escape_markdown(item.do)) for item in said[:_SAID]]
        yield "\n".join(lines + more) + "\n"


def _verdict(hosts: dict[str, int]) -> str:
    if not hosts["total"]:
        return "nothing was validated, no host matched"
    unready = hosts["total"] - hosts["ready"]
    if not unready:
        return "✓ the host is ready" if hosts["total"] == 1 else "✓ all %d hosts are ready" % hosts["total"]
    return "✗ %d of %s not ready" % (unready, phrases.format_count(hosts["total"], "host"))


def _summary(hosts: dict[str, dict[str, Any]]) -> str:
    rows = []
    for name, host in sorted(hosts.items(), key=lambda item: bool(item[1]["state"] == READY)):
        count = (host["facts"].get("gpus") or {}).get("count")
        p2p = tables.summarise_p2p(host["facts"]) if host["facts"].get("p2p") else ""
        result = ("unreachable: " if host["unreachable"] else "") + "; ".join([*host["problems"], host["message"]])
        rows.append(
            (
                escape_markdown(name),
                _STATES[host["state"]],
                "" if count is None else str(count),
                escape_markdown(p2p),
                escape_markdown(result),
            )
        )
    return _table(("Host", "State", "GPUs", "P2P", "Result"), rows, (2,))


def _finding(finding: Finding, title: str) -> Iterator[str]:
    yield title + ("" if finding.severity == "error" else " (%s)" % finding.severity) + "\n"
    several = len(finding.found) > 1
    for number, (text, hosts) in enumerate(finding.found.items()):
        if number == _VARIANTS:
            yield "- and %d more readings, in report.json" % (len(finding.found) - _VARIANTS)
            break
        yield "- **Found:** %s%s" % (
            escape_markdown(phrases.join_names(hosts, 3)) + ": " if several else "",
            escape_markdown(text),
        )
    yield "- **Wanted:** %s" % escape_markdown(finding.title)
    if finding.why:
        yield "- **Why:** %s" % escape_markdown(phrases.take_sentences(finding.why))
    for cause in finding.caused_by:
        yield "- **Because of:** %s, which is waived" % code_span(cause)
    if finding.waiver and finding.waiver.get("expired"):
        yield "- **Waiver:** expired on %s (it said: %s)" % (
            escape_markdown(finding.waiver["expires"]),
            escape_markdown(finding.waiver["reason"]),
        )
    for entry in finding.explained:
        named = ", ".join(code_span(symptom) for symptom in entry.symptoms[:_NAMES])
        yield "- **Explains:** %s: %s" % (named, escape_markdown(entry.text))
    if finding.status == "fail":
        yield from _remedy(finding)
    yield ""


def _remedy(finding: Finding) -> Iterator[str]:
    remedy = finding.remedy
    if not remedy:
        yield "- **Do:** no remedy is known for this placement; see %s" % code_span(finding.docs)
        return
    yield "- **Do**, %s: %s" % (
        escape_markdown(phrases.name_machine(remedy, finding.hosts)),
        escape_markdown(remedy["text"]),
    )
    if remedy["risk"]:
        yield "- **Risk:** %s" % escape_markdown(remedy["risk"])
    if remedy["commands"]:
        yield "\n" + code_block("\n".join(remedy["commands"]), "sh")
    if remedy["verify"]:
        yield "\nThen verify:\n\n" + code_block(remedy["verify"], "sh")


def _unknown(unknown: Unknown) -> str:
    reason = (
        "root is needed: run (or capture) again with `--become`"
        if unknown.needs_root
        else escape_markdown(unknown.reason)
    )
    named = ", ".join(code_span(name) for name in unknown.checks[:_NAMES])
    more = len(unknown.checks) - _NAMES
    note = " (makes the host not ready)" if unknown.blocking else ""
    return "- %s%s: %s. %s%s" % (
        escape_markdown(phrases.join_names(unknown.hosts, 3)),
        note,
        reason,
        named,
        " and %d more" % more if more > 0 else "",
    )


def _waived(finding: Finding) -> str:
    waiver = finding.waiver or {}
    hosts = escape_markdown(phrases.join_names(finding.hosts, 3))
    return "- %s on %s, until %s: %s" % (
        code_span(finding.check),
        hosts,
        escape_markdown(waiver.get("expires")),
        escape_markdown(waiver.get("reason")),
    )


def _host(name: str, host: dict[str, Any]) -> Iterator[str]:
    """The tables of one host, folded."""
    facts = host["facts"]
    overview, gpus, squares = tables.list_overview(facts), tables.build_gpu_table(facts), matrix.build_matrices(facts)
    if not overview and gpus is None and not squares:
        return
    # Inside the HTML element only HTML escapes count.
    yield "<details><summary>%s: GPUs and P2P</summary>\n" % phrases.strip_controls(name).replace("&", "&amp;").replace(
        "<", "&lt;"
    ).replace(">", "&gt;")
    for what, value in overview:
        yield "- %s: %s" % (what, escape_markdown(value))
    yield ""
    if gpus:
        yield _facts_table(gpus)
    for note in tables.list_probe_notes(facts):
        yield "- %s" % escape_markdown(note)
    for reason in tables.list_faulty_pairs(facts):
        yield "- **%s**" % escape_markdown(reason)
    for square in squares:
        yield "\n**%s**%s, rows are sources:\n" % (square.title, " (%s)" % square.unit if square.unit else "")
        labels = [escape_markdown(gpu.label) for gpu in square.gpus]
        rows = [["**%s**" % label, *(_cell(cell) for cell in row)] for label, row in zip(labels, square.rows)]
        yield _table(["", *labels], rows, range(1, len(labels) + 1))
        if square.legend:
            yield (
                "; ".join(
                    "%s %s" % (escape_markdown(text), escape_markdown(meaning)) for text, meaning in square.legend
                )
                + "\n"
            )
    for title, table in (
        ("By path", link_figures.build_path_table(facts)),
        ("Links to the host's memory", link_figures.build_host_link_table(facts)),
        ("Every pair on the ladder", link_figures.build_ladder_table(facts, host["results"])),
        ("The phases of the probe", link_figures.build_phase_table(facts)),
    ):
        if table:
            yield "\n**%s**\n" % title
            yield _facts_table(table)
    yield "</details>\n"


def _cell(cell: matrix.Cell) -> str:
    text = escape_markdown(cell.text)
    return "**%s**" % text if cell.level in (matrix.BAD, matrix.DOUBT, matrix.UNKNOWN) else text
