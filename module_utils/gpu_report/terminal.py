"""The report on the terminal, for a tired person at night: what is wrong, why, and what to type, in that order.

Gives (text, tone) lines; the callback turns tones into the user's colours.
"""

from __future__ import annotations

import textwrap
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

from . import alike_text, changes, findings, handed_in, matrix_text, phrases
from .collector import NOT_READY, NOT_VALIDATED, READY
from .findings import Finding, Folded, Unknown

GOOD, BAD, DOUBT, MUTED, PLAIN, STRONG = "good", "bad", "doubt", "muted", "plain", "strong"
Line = tuple[str, str]

_LABEL = 10  # width of the labels in front of a finding's lines
_VARIANTS = 4  # different readings of one finding that are shown
_TABLES = 4  # different P2P tables that are shown
_DRIFTS = 6  # groups of hosts with the same changes since their baselines
_ODD = 8  # hosts of one kind that differ in the same way
_FEW = 12  # of anything else, of which more are told by their number; on a fleet a screen or two decide first
_BRIEF = 40  # causes that are named in one line each, where there are too many to tell in full


def render_terminal(
    report: dict[str, Any], width: int = 100, verbosity: int = 0, written: tuple[str, ...] = ()
) -> list[Line]:
    """The lines of the report. `written`: the files that hold the rest."""
    shown = _Report(report, max(width, 40), verbosity)
    lines = list(shown.lines())
    lines += [(line, MUTED) for line in _wrapped("reports: ", ", ".join(written), width)] if written else []
    lines += shown.unfinished()  # last, so that nothing older is the last word
    return [(phrases.strip_controls(text).rstrip(), tone) for text, tone in lines]


def _wrapped(first: str, text: str, width: int, indent: int | None = None) -> list[str]:
    rest = " " * (len(first) if indent is None else indent)
    lines: list[str] = []
    for paragraph in str(text).split("\n") or [""]:
        lines += textwrap.wrap(
            paragraph,
            width,
            initial_indent=rest if lines else first,
            subsequent_indent=rest,
            break_long_words=False,
            break_on_hyphens=False,
        ) or ([] if lines else [first.rstrip()])
    return lines


class _Report:
    def __init__(self, report: dict[str, Any], width: int, verbosity: int) -> None:
        self._report = report
        self._hosts: dict[str, dict[str, Any]] = report["hosts"]
        self._found = findings.group_findings(report)
        self._width = width
        self._verbosity = verbosity

    def lines(self) -> Iterator[Line]:
        yield "", PLAIN
        yield from self._verdict()
        yield from self._state_of_hosts()
        yield from self._causes()
        yield from self._section("COMPARED WITH THE BASELINES", self._changes())
        yield from self._section("HOSTS OF ONE KIND THAT DIFFER: for information", self._alike())
        yield from self._section("P2P, PAIR BY PAIR", self._pairs())
        yield from self._section("BROKEN CHECKS: a fault of the check, not of the host", self._broken())
        yield from self._section("UNKNOWN: could not be decided, so not taken for good", self._unknown())
        yield from self._section("NOT HANDED IN: what would decide more", self._asked())
        yield from self._section("WARNINGS: these do not make a host unready", self._warnings())
        yield from self._section("WAIVED", self._waived())
        if self._verbosity:
            yield from self._section("EVERY CHECK", self._every_check())
        yield "", PLAIN
        yield from self._totals()

    def _in_state(self, state: str) -> list[str]:
        return [name for name, host in self._hosts.items() if host["state"] == state]

    def _recorded(self) -> list[str]:
        return [
            name
            for name, host in self._hosts.items()
            if (host["facts"].get("evidence") or {}).get("recorded") and name not in self._loose()
        ]

    def _loose(self, only_pieces: bool = False) -> list[str]:
        """Hosts of which pieces were handed in; `only_pieces`: and no capture among them."""
        return [
            name
            for name, host in self._hosts.items()
            if (loose := handed_in.find_pieces(host)) and not (only_pieces and loose.get("capture"))
        ]

    def unfinished(self) -> list[Line]:
        """That the run did not come to its end, and where it ended; empty where it did."""
        incomplete = phrases.describe_incomplete(self._report["run"])
        if incomplete and any(part.get("problem") for part in self._report["run"].get("parts") or ()):
            return [(line, BAD) for line in _wrapped("", "THE REPORT IS NOT WHOLE. " + incomplete, self._width, 2)]
        if incomplete:
            return [("THE RUN WAS INTERRUPTED: this is what was known by then.", BAD)]
        cut = [name for name, host in self._hosts.items() if host.get("before")]
        if not cut:
            return []
        text = "THE RUN DID NOT FINISH on %s: %s" % (phrases.join_names(cut), self._hosts[cut[0]]["message"])
        again = (
            "Mend that and run it again: steps that are done change nothing. What was seen before the change is "
            "no verdict."
        )
        return [(line, BAD) for line in _wrapped("", text, self._width, 2) + _wrapped("  ", again, self._width)]

    def _verdict(self) -> Iterator[Line]:
        yield from self.unfinished()
        if not self._hosts:
            yield "NOTHING WAS VALIDATED: no host matched. Check the inventory (-i) and the limit (--limit).", BAD
            return
        total, ready = len(self._hosts), len(self._in_state(READY))
        if ready == total:
            warnings = len(self._found.warnings)
            also = ", with %s" % phrases.format_count(warnings, "warning") if warnings else ""
            yield "%s ready%s." % ("The host is" if total == 1 else "All %d hosts are" % total, also), GOOD
            return
        parts = []
        if self._found.causes:
            number = len(self._found.causes)
            number = number if number <= _FEW else len(findings.fold_findings(self._found.causes))
            parts.append(phrases.format_count(number, "cause"))
        if self._found.symptoms:
            parts.append(phrases.format_count(self._found.symptoms, "symptom"))
        blocking = sum(len(unknown.checks) for unknown in self._found.unknown if unknown.blocking)
        if blocking:
            parts.append("%s undecided" % phrases.format_count(blocking, "check"))
        if self._found.broken:
            parts.append("%s broken" % phrases.format_count(len(self._found.broken), "check"))
        if self._in_state(NOT_VALIDATED):
            parts.append("%s not validated" % phrases.format_count(len(self._in_state(NOT_VALIDATED)), "host"))
        unready = total - ready
        text = "%d of %s NOT READY" % (unready, phrases.format_count(total, "host"))
        for line in _wrapped("", text + (": " + ", ".join(parts) if parts else "") + ".", self._width, 2):
            yield line, BAD

    def _state_of_hosts(self) -> Iterator[Line]:
        if len(self._hosts) > 1 and self._in_state(READY):
            for line in _wrapped("  ready      ", phrases.join_names(self._in_state(READY), 30), self._width):
                yield line, GOOD
        yield from self._not_ready()
        groups: dict[tuple[bool, str], list[str]] = {}
        for name in self._in_state(NOT_VALIDATED):
            groups.setdefault((self._hosts[name]["unreachable"], self._hosts[name]["message"]), []).append(name)
        for (unreachable, message), names in self._first(groups.items()):
            why = "unreachable: " if unreachable else ""
            for line in _wrapped("  NO RESULT  ", "%s: %s%s" % (phrases.join_names(names), why, message), self._width):
                yield line, BAD
            for name in self._first(names):
                before = self._hosts[name].get("before")
                if before:
                    state = "ready" if before["state"] == READY else "not ready"
                    for line in _wrapped("  before     ", "%s: %s: %s" % (name, state, before["message"]), self._width):
                        yield line, MUTED
        yield from self._more("  NO RESULT  ", groups, "other reason", BAD)
        unproven = findings.group_unproven(self._report)
        for text, names in self._first(unproven):
            for line in _wrapped("  unproven   ", "%s: %s" % (phrases.join_names(names, 30), text), self._width):
                yield line, DOUBT
        yield from self._more("  unproven   ", unproven, "other sentence", DOUBT)
        recorded = self._recorded()
        if recorded:
            for line in _wrapped(
                "  recorded   ",
                "%s (read from a bundle, not from the host)" % phrases.join_names(recorded, 30),
                self._width,
            ):
                yield line, MUTED
        rebuilt = [name for name in recorded if self._hosts[name]["facts"]["evidence"].get("reconstructed")]
        if rebuilt:
            text = "%s (reconstructed from what others wrote down, not captured on a host)" % phrases.join_names(
                rebuilt, 30
            )
            for line in _wrapped("  rebuilt    ", text, self._width):
                yield line, MUTED

        yield from self._handed_in()

    def _not_ready(self) -> Iterator[Line]:
        """A line per host; of many, those with the same verdict together, the most first."""
        groups: dict[str, list[str]] = {}
        names = self._in_state(NOT_READY)
        loose = set(self._loose(only_pieces=True))
        for name in names:
            message = _without_unknown(self._hosts[name]["message"]) if name in loose else self._hosts[name]["message"]
            groups.setdefault(message if len(names) > _FEW and not self._verbosity else name, []).append(name)
        listed = sorted(groups.items(), key=lambda group: -len(group[1]))
        for _same, together in self._first(listed):
            message = self._hosts[together[0]]["message"]
            message = _without_unknown(message) if together[0] in loose else message
            for line in _wrapped("  NOT READY  ", "%s: %s" % (phrases.join_names(together), message), self._width):
                yield line, BAD
        rest = [name for _same, together in listed[len(self._first(listed)) :] for name in together]
        if rest:
            text = "and %s with other findings: %s" % (
                phrases.format_count(len(rest), "more host"),
                phrases.join_names(rest, 12),
            )
            for line in _wrapped("  NOT READY  ", text, self._width):
                yield line, BAD

    def _first(self, found: Iterable[Any]) -> list[Any]:
        """As many of `found` as are told in full: all with -v."""
        listed = list(found)
        return listed if self._verbosity else listed[:_FEW]

    def _more(self, label: str, found: Collection[Any], noun: str, tone: str) -> Iterator[Line]:
        """How many were not told."""
        more = len(found) - len(self._first(found))
        if more:
            yield "%sand %s, in report.html" % (label, phrases.format_count(more, noun)), tone

    def _causes(self) -> Iterator[Line]:
        """Each cause in full; of many, by their check, those first of which the most results depend, the others in a
        line each."""
        causes = self._found.causes
        if len(causes) <= _FEW or self._verbosity:
            for number, finding in enumerate(causes, 1):
                yield from self._finding(number, finding, finding.hosts)
            return
        folded = findings.fold_findings(causes)
        for number, one in enumerate(folded[:_FEW], 1):
            yield from self._finding(number, one.first, one.hosts)
            others = len(one.hosts) - len(one.first.hosts)
            if others > 0:
                yield from self._labelled(
                    "also",
                    "on %s, with other commands; see the page of each" % phrases.format_count(others, "more host"),
                    MUTED,
                )
        yield from self._section("OTHER CAUSES: each in full in report.html", self._other_causes(folded[_FEW:]))

    def _other_causes(self, folded: list[Folded]) -> Iterator[Line]:
        for number, one in enumerate(folded[:_BRIEF], _FEW + 1):
            text = "%d. %s (%s): %s" % (
                number,
                one.first.check,
                phrases.join_names(one.hosts, 3),
                phrases.take_sentences(next(iter(one.first.found)), self._width),
            )
            yield phrases.cut_text(" ".join(text.split()), self._width), BAD
        if len(folded) > _BRIEF:
            yield "and %s" % phrases.format_count(len(folded) - _BRIEF, "more cause"), BAD

    def _handed_in(self) -> Iterator[Line]:
        """What the pieces of a host are: the kind of evidence that its verdict rests on."""
        limit = 1000 if self._verbosity else 6
        for name in self._first(self._loose()):
            loose = handed_in.find_pieces(self._hosts[name])
            known, unknown = handed_in.list_recognised(loose), handed_in.list_unrecognised(loose)
            kind = "a capture and more" if loose.get("capture") else "loose pieces, not a capture"
            text = "%s, %s: %s" % (name, kind, handed_in.shorten_list(known, limit))
            for line in _wrapped("  handed in  ", text, self._width):
                yield line, MUTED
            if unknown:
                for line in _wrapped(
                    "  not read   ", "%s: %s" % (name, handed_in.shorten_list(unknown, limit)), self._width
                ):
                    yield line, DOUBT
        yield from self._more("  handed in  ", self._loose(), "more host", MUTED)

    def _section(self, title: str, lines: Iterator[Line]) -> Iterator[Line]:
        first = next(lines, None)
        if first is None:
            return
        yield "", PLAIN
        yield title, STRONG
        yield first
        yield from lines

    def _labelled(self, label: str, text: str, tone: str = PLAIN) -> Iterator[Line]:
        for line in _wrapped("  " + label.ljust(_LABEL), text, self._width, _LABEL + 2):
            yield line, tone

    def _finding(self, number: int, finding: Finding, hosts: list[str]) -> Iterator[Line]:
        """`hosts`: all on which the check fails, also those with another remedy."""
        yield "", PLAIN
        head = "%d. %s  %s" % (number, finding.check, phrases.join_names(hosts))
        for line in _wrapped("", head, self._width, 3):
            yield line, BAD
        yield from self._labelled("wanted", finding.title)
        yield from self._seen(finding)
        if finding.why:
            yield from self._labelled("why", phrases.take_sentences(finding.why), MUTED)
        behind = changes.find_changes_behind(self._report, finding.check, finding.hosts)
        for place, text in enumerate(behind[:_VARIANTS]):
            yield from self._labelled("" if place else "changed", text, DOUBT)
        for cause in finding.caused_by:
            yield from self._labelled("because of", "%s, which is waived" % cause, MUTED)
        yield from self._expired(finding)
        yield from self._explains(finding)
        yield from self._remedy(finding)

    def _seen(self, finding: Finding) -> Iterator[Line]:
        several = len(finding.hosts) > 1 and len(finding.found) > 1
        for number, (text, hosts) in enumerate(finding.found.items()):
            if number == _VARIANTS:
                yield from self._labelled(
                    "", "and %d more readings, in report.json" % (len(finding.found) - _VARIANTS), MUTED
                )
                return
            yield from self._labelled(
                "found" if number == 0 else "",
                ("%s: " % phrases.join_names(hosts, 3) if several else "") + text,
                STRONG,
            )

    def _explains(self, finding: Finding) -> Iterator[Line]:
        label = "explains"
        for entry in finding.explained:
            of = " on %s" % phrases.join_names(entry.hosts, 3) if entry.hosts != finding.hosts else ""
            text = textwrap.shorten(entry.text, 160, placeholder=" …")
            more = " (differs between hosts)" if entry.differs else ""
            yield from self._labelled(label, "%s%s: %s%s" % (phrases.join_names(entry.symptoms), of, text, more))
            label = ""

    def _expired(self, finding: Finding) -> Iterator[Line]:
        if finding.waiver and finding.waiver.get("expired"):
            yield from self._labelled(
                "waiver", "expired on %s (it said: %s)" % (finding.waiver["expires"], finding.waiver["reason"]), DOUBT
            )

    def _remedy(self, finding: Finding) -> Iterator[Line]:
        remedy = finding.remedy
        if not remedy:
            yield from self._labelled("do", "no remedy is known for this placement; see %s" % finding.docs)
            return
        yield from self._labelled("do", "%s: %s" % (phrases.name_machine(remedy, finding.hosts), remedy["text"]))
        if remedy["risk"]:  # before the commands: it must be read first
            yield from self._labelled("risk", remedy["risk"], DOUBT)
        yield from self._copyable(remedy["commands"])
        if remedy["verify"]:
            if len(remedy["verify"]) + _LABEL + 2 <= self._width:
                yield "  " + "verify".ljust(_LABEL) + remedy["verify"], PLAIN
            else:
                yield "  verify", PLAIN
                yield from self._copyable([remedy["verify"]])

    @staticmethod
    def _copyable(commands: Sequence[str]) -> Iterator[Line]:
        """Each on lines of its own, unindented and unwrapped."""
        if commands:
            yield "", PLAIN
            for command in commands:
                for line in str(command).split("\n"):
                    yield line, STRONG
            yield "", PLAIN

    def _pairs(self) -> Iterator[Line]:
        """One table for all hosts with the same one.

        Of hosts that were probed or on which something about P2P failed, with -v of all.
        """
        tables: dict[tuple[str, ...], list[str]] = {}
        for name, host in self._hosts.items():
            probed = host["facts"].get("probe") is not None  # that it did not run, and why, is worth knowing too
            failed = any(
                r["status"] == "fail" and "p2p" in self._report["checks"][r["id"]]["tags"] for r in host["results"]
            )
            if self._verbosity or probed or failed or handed_in.find_pieces(host):
                lines = tuple(matrix_text.describe_p2p(host["facts"], self._width - 4, bool(self._verbosity)))
                if lines:
                    tables.setdefault(lines, []).append(name)
        for number, (lines, names) in enumerate(tables.items()):
            if number == _TABLES and not self._verbosity:
                yield from self._item(
                    "and on %s, in report.html"
                    % phrases.format_count(sum(map(len, list(tables.values())[number:])), "more host"),
                    MUTED,
                )
                return
            yield from self._item("%s:" % phrases.join_names(names), STRONG)
            for line in lines:
                yield "    " + line, PLAIN

    def _changes(self) -> Iterator[Line]:
        """What changed since the baselines, hosts with the same changes once."""
        drifts = changes.group_drift(self._report)
        shown = drifts if self._verbosity else drifts[:_DRIFTS]
        for item in shown:
            yield from self._item(item.title, STRONG if item.changes else MUTED)
            for line in item.list_lines():
                for wrapped in _wrapped("    ", line, self._width, 6):
                    yield wrapped, PLAIN
        rest = sum(len(item.hosts) for item in drifts[len(shown) :])
        if rest:
            yield from self._item("and %s, in report.html" % phrases.format_count(rest, "more host"), MUTED)

    def _alike(self) -> Iterator[Line]:
        """The odd ones out among hosts of one kind, on one screen."""
        said = alike_text.list_said(self._report, 50 if self._verbosity else 3)
        shown = said if self._verbosity else said[:_ODD]
        for number, item in enumerate(shown):
            yield from self._item(item.text, PLAIN)
            if number + 1 == len(shown) or shown[number + 1].do != item.do:  # the same advice once
                for line in _wrapped("    do: ", item.do, self._width):
                    yield line, MUTED
        if len(said) > len(shown):
            yield from self._item("and %d more, in report.html" % (len(said) - len(shown)), MUTED)

    def _broken(self) -> Iterator[Line]:
        for finding in self._first(self._found.broken):
            yield from self._item(
                "%s (%s): %s" % (finding.check, phrases.join_names(finding.hosts, 3), next(iter(finding.found))), BAD
            )
        yield from self._more("  - ", self._found.broken, "more", BAD)

    def _item(self, text: str, tone: str = PLAIN) -> Iterator[Line]:
        for line in _wrapped("  - ", text, self._width):
            yield line, tone

    def _unknown(self) -> Iterator[Line]:
        loose = set() if self._verbosity else set(self._loose(only_pieces=True))
        # Most of all checks of hosts of which pieces were handed in: what would decide them is asked for instead.
        told = [unknown for unknown in self._found.unknown if not set(unknown.hosts) <= loose]
        for unknown in self._first(told):
            yield from self._item(self._why_unknown(unknown), DOUBT if unknown.blocking else MUTED)
        yield from self._more("  - ", told, "other reason", DOUBT)

    def _why_unknown(self, unknown: Unknown) -> str:
        checks = phrases.format_count(len(unknown.checks), "check")
        on = phrases.join_names(unknown.hosts, 3)
        listed = phrases.join_names(unknown.checks, 12 if self._verbosity == 0 else 1000)
        if unknown.needs_root:
            verb = "needs" if len(unknown.checks) == 1 else "need"
            again = "capture" if set(unknown.hosts) <= set(self._recorded()) else "run"
            return "%s %s root on %s: %s again with --become (-b). %s" % (checks, verb, on, again, listed)
        return "%s on %s: %s. %s" % (checks, on, unknown.reason, listed)

    def _asked(self) -> Iterator[Line]:
        for name in self._first(self._loose(only_pieces=True)):
            host = self._hosts[name]
            wanted = handed_in.list_wanted(name, host)
            undecided = sum(1 for result in host["results"] if result["status"] == "unknown")
            if not wanted:
                continue
            yield from self._item(
                "%s: %s undecided. Add the output of these to what was handed in:"
                % (name, phrases.format_count(undecided, "check")),
                DOUBT,
            )
            for command, decides in wanted:
                yield "    " + command, STRONG
                for line in _wrapped("        ", decides, self._width):
                    yield line, MUTED

    def _warnings(self) -> Iterator[Line]:
        warnings = [(finding, finding.hosts) for finding in self._found.warnings]
        if len(warnings) > _FEW and not self._verbosity:
            warnings = [(one.first, one.hosts) for one in findings.fold_findings(self._found.warnings)]
        for finding, hosts in self._first(warnings):
            note = " [info]" if finding.severity == "info" else ""
            yield from self._item(
                "%s%s (%s): %s" % (finding.check, note, phrases.join_names(hosts, 3), next(iter(finding.found))),
                DOUBT,
            )
            if finding.remedy:
                for line in _wrapped(
                    "    do: ",
                    "%s: %s" % (phrases.name_machine(finding.remedy, finding.hosts), finding.remedy["text"]),
                    self._width,
                ):
                    yield line, PLAIN
                if self._verbosity:
                    for command in finding.remedy["commands"]:
                        yield command, STRONG
        yield from self._more("  - ", warnings, "more warning", DOUBT)

    def _waived(self) -> Iterator[Line]:
        for finding in self._first(self._found.waived):
            waiver = finding.waiver or {}
            text = "%s (%s), until %s: %s" % (
                finding.check,
                phrases.join_names(finding.hosts, 3),
                waiver.get("expires"),
                waiver.get("reason"),
            )
            yield from self._item(text, MUTED)
        yield from self._more("  - ", self._found.waived, "more", MUTED)

    def _every_check(self) -> Iterator[Line]:
        for name, host in self._hosts.items():
            for result in host["results"]:
                note = result.get("found") or result.get("reason") or ""
                yield from self._item(
                    "%s: %s %s%s" % (name, result["status"], result["id"], ": " + note if note else ""), MUTED
                )

    def _totals(self) -> Iterator[Line]:
        checks = self._report["totals"]["checks"]
        parts = ["%d %s" % (checks[status], word) for status, word in _STATUS_WORDS if checks[status]]
        text = "%s on %s: %s." % (
            phrases.format_count(checks["total"], "check result"),
            phrases.format_count(len(self._hosts), "host"),
            ", ".join(parts) or "none ran",
        )
        for line in _wrapped("", text, self._width, 2):
            yield line, MUTED
        if self._found.causes:
            example = self._found.causes[0].check
            yield "to accept a finding for a while, in the inventory:", MUTED
            yield "gpu_host_waivers: [{check: %s, reason: WHY, expires: YYYY-MM-DD}]" % example, MUTED


def _without_unknown(message: str) -> str:
    """The verdict without the checks that nothing was handed in for: '1 failed: p2p_granted; the rest is undecided'."""
    parts = [part for part in message.split("; ") if " unknown: " not in part]
    return "; ".join([*parts, "the rest is undecided"] if parts else ["undecided by what was handed in"])


_STATUS_WORDS = (
    ("pass", "passed"),
    ("fail", "failed"),
    ("unknown", "unknown"),
    ("error", "broken"),
    ("waived", "waived"),
    ("skip", "not applicable"),
)
