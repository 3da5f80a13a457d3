"""Why a host may not take work, in one line: for the drain reason of a scheduler and the message of a node condition.

``HOST STATE REASON`` per host, separated by one space. STATE is ready, not_ready or not_validated; REASON is empty for
a host that is ready. Schedulers cut what is long (the table of events of Slurm's accounting holds 255 bytes), so the
reason is plain ASCII of at most ``LONGEST`` characters, begins with the check, and holds no character that a shell,
scontrol or a table of `sacctmgr -P` reads as its own.
"""

from __future__ import annotations

import re
from typing import Any

from . import findings, phrases

LONGEST = 200
# Further sentences of what was found are added as long as they fit into this many characters.
_SENTENCES = 100
# Letters that stand in what checks find, and what is written for them.
_PLAIN = str.maketrans({"µ": "u", "μ": "u", "°": " deg ", "–": "-", "—": "-", "…": "...", "→": "->", "×": "x"})
_NOT_SHOWN = re.compile(r"[^\x20-\x7e]|[\"'`$\\|;&<>*?!#{}\[\]]")


def render_reasons(report: dict[str, Any]) -> bytes:
    """The bytes of the file: one line per host."""
    return "".join(
        "%s %s %s\n" % (_plain(name).replace(" ", "_"), host["state"], summarise_reason(report, name))
        for name, host in report["hosts"].items()
    ).encode("ascii")


def summarise_reason(report: dict[str, Any], name: str) -> str:
    """What keeps the host from being ready: its first cause, and how many more there are. Empty where it is ready."""
    host = report["hosts"][name]
    if host["state"] == "ready":
        return ""
    parts = _list_reasons(report, name) if host["state"] == "not_ready" else []
    said = phrases.take_sentences(str(parts[0] if parts else host["message"]), _SENTENCES)
    first = _plain(said).rstrip(".") or "no reason was given"
    more = ", and %d more" % (len(parts) - 1) if len(parts) > 1 else ""
    room = LONGEST - len(more)
    return (first if len(first) <= room else first[: room - 3].rstrip() + "...") + more


def _list_reasons(report: dict[str, Any], name: str) -> list[str]:
    """What decides, the worst first: root causes, checks with a fault of their own, what could not be known."""
    found = findings.group_findings({**report, "hosts": {name: report["hosts"][name]}})
    reasons = ["%s: %s" % (cause.check, next(iter(cause.found), "")) for cause in (*found.causes, *found.broken)]
    reasons += [
        "%s unknown: %s" % (unknown.checks[0], "needs root" if unknown.needs_root else unknown.reason)
        for unknown in found.unknown
        if unknown.blocking
    ]
    return reasons + list(report["hosts"][name]["problems"])


def _plain(text: Any) -> str:
    shown = phrases.strip_controls(text).translate(_PLAIN)
    return " ".join(_NOT_SHOWN.sub(" ", shown).split())
