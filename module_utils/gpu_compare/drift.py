"""What changed on a host since its baseline, and which findings that explains.

The result is a dictionary::

    {state: same | changed | other_machine | unreadable | none, message, saved_at, taken_at,
     changes: [{fact, what, text, before, now, count, explains: [ids of checks]}], in the order of fact_table.py,
     unknown_now: [what was known at the baseline and is not now],
     new_findings, unexplained, mended: [ids of checks]}

Changes that explain a finding come first.

`before` and `now` are those of the largest change where several measured values are told together.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

from . import baseline as baselines
from . import cards, differences, explaining, fact_table, wording
from .differences import Difference
from .rules import MEASURED, Path, Rule

SAME, CHANGED, OTHER, UNREADABLE, NONE = "same", "changed", "other_machine", "unreadable", "none"
_MOST_CHANGES = 500
_CARDS: Path = ("gpus", "devices")


def describe_drift(
    baseline: dict[str, Any], host: dict[str, Any], results: Sequence[dict[str, Any]], checks: Iterable[Any]
) -> dict[str, Any]:
    """What changed since `baseline` (a decoded one). `checks`: gpu_checks.check_files.Check."""
    record: dict[str, Any] = {
        "state": SAME,
        "message": "",
        "saved_at": baseline["saved_at"],
        "taken_at": baseline.get("taken_at"),
        "changes": [],
        "unknown_now": [],
        "new_findings": [],
        "unexplained": [],
        "mended": [],
    }
    identity = baselines.describe_identity(host)
    other = baselines.explain_other_machine(baseline, identity)
    if other:
        message = "the baseline is of another machine (%s): nothing is compared with it" % other
        return {**record, "state": OTHER, "message": message}
    paired = baselines.compare_identity(baseline, identity)
    missing = {card.address for card in paired.missing}
    before = differences.follow_cards(baseline["facts"], paired.addresses, missing, fact_table.TREE)
    found = differences.compare_facts(before, host, fact_table.TREE)
    labels = {card.address: card.label for card in cards.list_cards(identity["cards"] or ())}
    changes = [*_tell_board(baseline, identity), *_tell_cards(paired), *_tell_differences(found.found, labels)]
    statuses = baselines.list_statuses(baseline)
    new = explaining.list_new_findings(statuses, results)
    _add_explained(changes, new, {check.id: check for check in checks})
    changes.sort(key=lambda change: not change["explains"])
    symptoms = {result["id"] for result in results if result.get("caused_by")}
    explained = {name for change in changes for name in change["explains"]}
    record.update(
        state=CHANGED if changes else SAME,
        changes=[{name: value for name, value in change.items() if name != "paths"} for change in changes],
        unknown_now=_tell_lost(found.lost),
        new_findings=new,
        unexplained=[name for name in new if name not in explained and name not in symptoms],
        mended=explaining.list_mended(statuses, results),
    )
    return record


def _tell_board(baseline: dict[str, Any], identity: dict[str, Any]) -> list[dict[str, Any]]:
    """The board's ids, where they changed and the cards say that the machine is the same."""
    before = baseline["identity"]
    return [
        _change("virtualization.identity." + name, words, before[name], identity[name], 1, "%s: %s -> %s")
        for name, words in (("product_uuid", "DMI UUID"), ("board_serial", "serial number of the board"))
        if before.get(name) and identity[name] and before[name] != identity[name]
    ]


def _change(fact: str, what: str, before: Any, now: Any, count: int, text: str) -> dict[str, Any]:
    if "%s" in text:
        text %= what, wording.format_value(before), wording.format_value(now)
    return {
        "fact": fact,
        "what": what,
        "text": text,
        "before": before,
        "now": now,
        "count": count,
        "explains": [],
        "paths": [tuple(fact.split("."))],
    }


def _tell_cards(paired: cards.Paired) -> list[dict[str, Any]]:
    """Cards that moved, were replaced, are missing or new."""

    def tell(what: str, verb: str, listed: list[str], before: Any, now: Any) -> dict[str, Any]:
        text = "%s %s: %s" % (what if len(listed) == 1 else "%d GPUs" % len(listed), verb, wording.join_shown(listed))
        return _change(".".join(_CARDS), "GPU " + verb, before, now, len(listed), text.replace("%", "%%") % ())

    found: list[dict[str, Any]] = []
    if paired.missing:
        listed = [card.label + _id_of(card) for card in paired.missing]
        found.append(tell("GPU", "missing", listed, [card.address for card in paired.missing], None))
    if paired.replaced:
        listed = [
            "%s%s -> %s" % (now.label, _id_of(then), _id_of(now).strip(" ,") or now.name)
            for then, now in paired.replaced
        ]
        found.append(
            tell(
                "GPU",
                "replaced",
                listed,
                [_id_of(then) for then, _ in paired.replaced],
                [_id_of(now) for _, now in paired.replaced],
            )
        )
    if paired.moved:
        listed = ["%s -> %s" % (then.address, now.address) for then, now in paired.moved]
        found.append(
            tell(
                "GPU",
                "moved",
                listed,
                [then.address for then, _ in paired.moved],
                [now.address for _, now in paired.moved],
            )
        )
    if paired.added:
        listed = [card.label + _id_of(card) for card in paired.added]
        found.append(tell("GPU", "added", listed, None, [card.address for card in paired.added]))
    return found


def _id_of(card: cards.Card) -> str:
    return ", serial %s" % card.serial if card.serial else ", %s" % card.uuid if card.uuid else ""


def _tell_differences(found: Sequence[Difference], labels: dict[str, str]) -> list[dict[str, Any]]:
    """One change for all differences that are told in one line: the same fact with the same values, or measured values
    of one fact that went the same way."""
    groups: dict[tuple[Any, ...], list[Difference]] = {}
    for entry in sorted(found, key=lambda entry: fact_table.ORDER[entry.rule.path]):
        what = wording.name_fact(entry)
        measured = entry.rule.how == MEASURED
        values = (entry.change < 0,) if measured else (repr(entry.before), repr(entry.now))
        groups.setdefault((what, *values), []).append(entry)
    changes = []
    for group in list(groups.values())[:_MOST_CHANGES]:
        first = max(group, key=lambda entry: abs(entry.change))
        text = wording.describe_change(group, labels)
        count = len({entry.keys for entry in group})
        change = _change(first.rule.name, wording.name_fact(first), first.before, first.now, count, "")
        changes.append({**change, "text": text, "paths": list(dict.fromkeys(entry.path for entry in group))})
    return changes


def _add_explained(changes: list[dict[str, Any]], new: Sequence[str], checks: dict[str, Any]) -> None:
    """Fill in `explains` of every change."""
    paths = list(dict.fromkeys(path for change in changes for path in change["paths"]))
    for name in new:
        if name not in checks:
            continue
        explaining_paths = set(explaining.find_explaining(checks[name], paths))
        for change in changes:
            if explaining_paths & set(change["paths"]):
                change["explains"].append(name)


def _tell_lost(lost: Sequence[tuple[Rule, Path]]) -> list[str]:
    """What was known and is not now, each once, in the order of the table."""
    ordered = sorted(lost, key=lambda entry: fact_table.ORDER[entry[0].path])
    return list(dict.fromkeys(wording.name_fact(Difference(rule, keys, None, None)) for rule, keys in ordered))
