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
_CARDS: tuple[Path, ...] = (("gpus", "devices"), ("pci", "gpus"))  # what a card that comes or goes changes


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
    changes = []
    for name, words in (("product_uuid", "DMI UUID"), ("board_serial", "serial number of the board")):
        then, now = baseline["identity"].get(name), identity[name]
        if then and now and then != now:
            path: Path = ("virtualization", "identity", name)
            changes.append(_make_change([path], words, then, now, 1, "%s: %s -> %s" % (words, then, now)))
    return changes


def _make_change(paths: list[Path], what: str, before: Any, now: Any, count: int, text: str) -> dict[str, Any]:
    """One change; `paths` is what it is of, in the words of the rules, and is no part of the result."""
    told = {"what": what, "text": text, "before": before, "now": now, "count": count, "explains": []}
    return {"fact": ".".join(paths[0]), **told, "paths": paths}


def _tell_cards(paired: cards.Paired) -> list[dict[str, Any]]:
    """Cards that are missing, were replaced, moved or are new: one change for each of these."""
    events: tuple[tuple[str, list[tuple[cards.Card | None, cards.Card | None]]], ...] = (
        ("missing", [(card, None) for card in paired.missing]),
        ("replaced", [*paired.replaced]),
        ("moved", [*paired.moved]),
        ("added", [(None, card) for card in paired.added]),
    )
    changes = []
    for verb, both in events:
        if not both:
            continue
        before, now = ([card and card.address + _id_of(card) for card in side] for side in zip(*both))
        listed = wording.join_shown([_describe_card(verb, then, later) for then, later in both])
        subject = "GPU" if len(both) == 1 else "%d GPUs" % len(both)
        text = "%s %s: %s" % (subject, verb, listed)
        changes.append(_make_change([*_CARDS], "GPU " + verb, before, now, len(both), text))
    return changes


def _describe_card(verb: str, then: cards.Card | None, now: cards.Card | None) -> str:
    """'GPU 1 (0000:02:00.0), serial 1 -> serial 2', '0000:01:00.0 -> 0000:02:00.0'."""
    if then is None or now is None:
        return "".join(card.label + _id_of(card) for card in (then, now) if card is not None)
    if verb == "moved":
        return "%s -> %s" % (then.address, now.address)
    return "%s%s -> %s" % (now.label, _id_of(then), _id_of(now).strip(" ,") or now.name)


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
        paths = list(dict.fromkeys(entry.path for entry in group))
        change = _make_change(paths, wording.name_fact(first), first.before, first.now, count, text)
        changes.append({**change, "fact": first.rule.name})
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
