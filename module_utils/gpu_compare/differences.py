"""What differs between two sets of facts of one host, by the rules of fact_table.py.

Unknown is never a difference: where one side is null, or does not have the fact at all (an older version of the
project), nothing is compared. What was known and is unknown now is told apart from what differs.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from . import measures
from .rules import CARD, ENTRY, MEASURED, NAME, PAIR, SET, WILD, Node, Path, Rule

ABSENT = "absent"
_NOT_TOLD = (CARD, PAIR)  # what comes and goes with a card is told as the card's


@dataclass(frozen=True)
class Difference:
    """One fact that differs. `keys`: what the wild segments of its path stand for; `segments`: which these are."""

    rule: Rule
    keys: Path
    before: Any
    now: Any
    change: float = 0.0  # of a measured value: the part by which it changed, negative where it fell

    @property
    def path(self) -> Path:
        """The path with the names that it stands for; cards, pairs and devices stay wild."""
        names = iter(self.names)
        return tuple(next(names) if part == NAME else part for part in self.rule.path)

    @property
    def names(self) -> list[str]:
        """The keys that stand for a name."""
        wild = [part for part in self.rule.path if part in WILD]
        return [key for part, key in zip(wild, self.keys) if part == NAME]

    @property
    def places(self) -> list[str]:
        """The keys that stand for a card, a pair or a device."""
        wild = [part for part in self.rule.path if part in WILD]
        return [key for part, key in zip(wild, self.keys) if part != NAME]


@dataclass
class Differences:
    """What differs, and which facts were known before and are not now: ``(rule, keys)``."""

    found: list[Difference] = field(default_factory=list)
    lost: list[tuple[Rule, Path]] = field(default_factory=list)


def compare_facts(before: Any, now: Any, tree: Node) -> Differences:
    """The differences between two sets of facts; addresses are those of `now` already (rename_addresses)."""
    result = Differences()
    _compare(before, now, tree, (), result)
    return result


def _compare(before: Any, now: Any, node: Node, keys: Path, result: Differences) -> None:
    if not node.compares:
        return
    if not node.members:
        assert node.rule is not None
        _compare_leaf(before, now, node.rule, keys, result)
        return
    if not isinstance(before, dict):
        return
    if not isinstance(now, dict):
        result.lost += _find_lost(node, before, keys)
        return
    for name in dict.fromkeys((*before, *now)):
        member = node.find_member(str(name))
        if member is None:
            continue
        segment, following = member
        here = (*keys, str(name)) if segment in WILD else keys
        if name in before and name in now:
            _compare(before[name], now[name], following, here, result)
        elif segment in WILD and segment not in _NOT_TOLD:
            _add_entry(before.get(name), now.get(name), name in before, following, here, result)


def _find_lost(node: Node, before: dict[str, Any], keys: Path) -> list[tuple[Rule, Path]]:
    """The compared facts below `node` that were known."""
    found: list[tuple[Rule, Path]] = []
    for name, value in before.items():
        segment, following = node.find_member(str(name)) or ("", Node())
        if value is None or not following.compares:
            continue
        here = (*keys, str(name)) if segment in WILD else keys
        if isinstance(value, dict) and following.members:
            found += _find_lost(following, value, here)
        elif following.rule is not None and not following.rule.null_answers:
            found.append((following.rule, here))
    return found


def _add_entry(before: Any, now: Any, gone: bool, node: Node, keys: Path, result: Differences) -> None:
    """A member of a mapping that only one side has."""
    rule = node.rule
    if rule is None or not (node.compares or rule.how == ENTRY):
        return
    if rule.how == ENTRY:
        result.found.append(Difference(rule, keys, *(("present", ABSENT) if gone else (ABSENT, "present"))))
    elif gone and before is not None:
        result.found.append(Difference(rule, keys, _plain(before, rule), ABSENT))
    elif not gone and now is not None:
        result.found.append(Difference(rule, keys, ABSENT, _plain(now, rule)))


def _compare_leaf(before: Any, now: Any, rule: Rule, keys: Path, result: Differences) -> None:
    if before is None:
        return
    if now is None:
        if not rule.null_answers:
            result.lost.append((rule, keys))
        return
    if rule.how == MEASURED:
        change = measures.find_change(before, now, rule.floor)
        if change is not None:
            values = measures.take_value(before), measures.take_value(now)
            result.found.append(Difference(rule, keys, *values, change))
        return
    one, other = _plain(before, rule), _plain(now, rule)
    if one != other:
        result.found.append(Difference(rule, keys, one, other))


def _plain(value: Any, rule: Rule) -> Any:
    """`value` as it is compared: of a SET, a sorted list of texts."""
    if rule.how != SET or not isinstance(value, (list, tuple)):
        return value
    return sorted(write_row(row, rule.fields) for row in value)


def write_row(row: Any, fields: tuple[str, ...]) -> str:
    """A member of a list in one text: 'libnvidia-compute 595.58.03 not held'."""
    if not (fields and isinstance(row, dict)):
        return str(row)
    words = {name: row.get(name) for name in fields}
    return " ".join(
        (name if value else "not " + name) if isinstance(value, bool) else "-" if value is None else str(value)
        for name, value in words.items()
    )


def follow_cards(facts: Any, addresses: dict[str, str], missing: set[str], node: Node) -> Any:
    """`facts` with the addresses of cards as keys replaced by those that the cards have now (`addresses`), and without
    what is of cards that are `missing`."""
    table: dict[str, str | None] = {old: new for old, new in addresses.items() if old != new}
    table.update(dict.fromkeys(missing - set(table)))
    return _follow(facts, table, node) if table else facts


def _follow(value: Any, table: dict[str, str | None], node: Node) -> Any:
    if not isinstance(value, dict):
        return value
    kept: dict[str, Any] = {}
    for name, part in value.items():
        segment, following = node.find_member(str(name)) or ("", Node())
        ends = [table.get(end, end) for end in (str(name).split("->") if segment == PAIR else [str(name)])]
        key = "->".join(end for end in ends if end is not None)
        if None not in ends:
            kept[key] = _follow(part, table, following)
    return kept
