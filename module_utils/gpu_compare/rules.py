"""How one fact is compared: a rule per path, in a tree that the facts and the rules are walked through together.

A path is written with dots; its segments may be ``<card>`` (the PCI address of a GPU), ``<pair>`` (``A->B``),
``<device>`` (the address of another PCI device) or ``*`` (a name). A rule holds for the whole value at its path, unless
a longer path has one of its own.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

# How a fact is compared.
SETTING = "setting"  # as it stands
SET = "set"  # a list whose order means nothing; of mappings, their `fields`
MEASURED = "measured"  # a number, or a figure with median, min and max: beyond `floor` and the spread
ENTRY = "entry"  # a mapping that may appear or go, and whose members have rules of their own
DERIVED = "derived"  # computed from the facts `of`, which are compared
NOISE = "noise"  # differs from run to run, or says nothing of the host; `label` is the reason

CARD, PAIR, DEVICE, NAME = "<card>", "<pair>", "<device>", "*"
WILD = (CARD, PAIR, DEVICE, NAME)
COMPARED = (SETTING, SET, MEASURED)

Path = tuple[str, ...]


@dataclass(frozen=True)
class Rule:
    """How the fact at `path` is compared, and what it is called.

    `label` may hold {0}, {1}, ... for the names that ``*`` stands for. `unit` follows the values. `alike`: hosts of one
    kind should agree in it. `floor`: the part of a measured value below which a difference is none. `fields`: of a
    list of mappings, what is compared; `left`: what is not. `of`: what a derived fact is computed from. `null_answers`:
    null may also say that there is none, so that a value which becomes null is not told as one that is not known now.
    """

    path: Path
    how: str
    label: str = ""
    unit: str = ""
    alike: bool = False
    floor: float = 0.0
    fields: tuple[str, ...] = ()
    left: tuple[str, ...] = ()
    of: tuple[Path, ...] = ()
    null_answers: bool = False

    @property
    def name(self) -> str:
        """The path with a * for every segment that differs between hosts."""
        return ".".join("*" if part in WILD else part for part in self.path)


@dataclass
class Node:
    """One segment of the paths: its rule, and what may follow."""

    rule: Rule | None = None
    members: dict[str, Node] = field(default_factory=dict)

    @functools.cached_property
    def compares(self) -> bool:
        """Whether anything at or below it is compared."""
        if self.members:
            return any(member.compares for member in self.members.values())
        return self.rule is not None and self.rule.how in COMPARED

    @functools.cached_property
    def alike(self) -> bool:
        """Whether hosts of one kind should agree in anything at or below it."""
        if self.members:
            return any(member.alike for member in self.members.values())
        return self.rule is not None and self.rule.alike

    def find_member(self, name: str) -> tuple[str, Node] | None:
        """(the segment of the rule, what follows it) for the member `name` of a mapping."""
        if name in self.members:
            return name, self.members[name]
        for wild in WILD:
            if wild in self.members and _is_like(wild, name):
                return wild, self.members[wild]
        return None


def _is_like(wild: str, name: str) -> bool:
    if wild == PAIR:
        return "->" in name
    return True


def split_path(text: str) -> Path:
    """The segments of a path written with dots."""
    return tuple(text.split("."))


def build_tree(rules: Iterable[Rule]) -> Node:
    """The tree of `rules`. ValueError where two have one path, or one lies below another that is no entry."""
    root = Node()
    for rule in rules:
        node = root
        for part in rule.path:
            node = node.members.setdefault(part, Node())
        if node.rule is not None:
            raise ValueError("two rules for %s" % ".".join(rule.path))
        node.rule = rule
    _refuse_hidden_rules(root)
    return root


def _refuse_hidden_rules(node: Node) -> None:
    if node.rule is not None and node.members and node.rule.how != ENTRY:
        raise ValueError("%s has a rule, and so has something below it" % ".".join(node.rule.path))
    for member in node.members.values():
        _refuse_hidden_rules(member)


def find_unknown(value: Any, node: Node, path: Path = ()) -> Iterator[str]:
    """The paths in `value` that no rule covers; of a list of mappings also the members that its rule does not name."""
    if isinstance(value, dict) and (node.members or node.rule is None):
        for name, part in value.items():
            member = node.find_member(str(name))
            if member is None:
                yield ".".join((*path, str(name)))
            else:
                yield from find_unknown(part, member[1], (*path, str(name)))
    elif node.rule is None or node.rule.how == ENTRY:
        if value is not None:
            yield ".".join(path)
    elif node.rule.how == SET and isinstance(value, list):
        known = (*node.rule.fields, *node.rule.left)
        rows = [row for row in value if isinstance(row, dict)]
        unnamed = {name: None for row in rows for name in row if name not in known}
        yield from (".".join((*path, "[]", name)) for name in unnamed)


def list_alike(value: Any, node: Node, keys: Path = ()) -> Iterator[tuple[Rule, Path, Any]]:
    """(rule, the keys that stand for wild segments, value) of every fact in which hosts of one kind should agree."""
    if node.members and isinstance(value, dict):
        for name, part in value.items():
            member = node.find_member(str(name))
            if member is not None and member[1].alike:
                segment, following = member
                yield from list_alike(part, following, (*keys, str(name)) if segment in WILD else keys)
    elif node.rule is not None and node.rule.alike:
        yield node.rule, keys, value


def keep_compared(value: Any, node: Node) -> Any:
    """`value` with what is compared and nothing else; what a rule does not name is left out."""
    if node.members and isinstance(value, dict):
        kept = {}
        for name, part in value.items():
            member = node.find_member(str(name))
            if member is not None and member[1].compares:
                kept[str(name)] = keep_compared(part, member[1])
        return kept
    rule = node.rule
    if rule is None or value is None:
        return None
    if rule.how == SET and rule.fields and isinstance(value, list):
        rows = [row for row in value if isinstance(row, dict)]
        return [{name: row.get(name) for name in rule.fields} for row in rows]
    if rule.how == MEASURED and isinstance(value, dict):
        return {name: value[name] for name in FIGURE if name in value}
    return value if rule.how in COMPARED else None


# What of a figure is kept: its value, its spread, and what it was measured with.
FIGURE = ("median", "min", "max", "size_mib", "size_bytes", "method")


def is_covered_by(path: Path, other: Path) -> bool:
    """Whether one of two paths of rules is the other or stands below it."""
    return all(a == b or a in WILD or b in WILD for a, b in zip(path, other))
