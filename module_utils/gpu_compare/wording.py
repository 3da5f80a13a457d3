"""How changes are told: values, cards and pairs in words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .differences import Difference
from .rules import ENTRY, MEASURED, SET

OCTAL = "octal"  # the unit of a file's mode
_LONGEST = 80  # of one value
_SHOWN = 3  # cards, pairs, entries of a list


def format_value(value: Any, unit: str = "") -> str:
    """'yes', '16', '45.2 GB/s', 'a, b'; null is 'unknown'."""
    if value is None:
        return "unknown"
    if unit == OCTAL and isinstance(value, int):
        return "0%o" % value
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, float):
        value = "%.3g" % value if abs(value) < 1000 else "%.0f" % value
    if isinstance(value, dict):
        value = ", ".join("%s=%s" % (name, format_value(part)) for name, part in sorted(value.items())) or "none"
    if isinstance(value, (list, tuple)):
        value = join_shown([format_value(part) for part in value]) or "none"
    text = " ".join(str(value).split()) or "none"
    if len(text) > _LONGEST:
        text = text[: _LONGEST - 2] + " …"
    return "%s %s" % (text, unit) if unit and text not in ("absent", "n/a") else text


def join_shown(texts: Sequence[str], shown: int = _SHOWN) -> str:
    """'a, b, c and 5 more'."""
    more = len(texts) - shown
    return ", ".join(texts) if more <= 1 else "%s and %d more" % (", ".join(texts[:shown]), more)


def name_places(places: Sequence[str], labels: dict[str, str]) -> str:
    """'all 8 GPUs', 'GPU 2', '56 pairs': the cards, pairs or devices of one change. `labels`: address -> label."""
    if not places:
        return ""
    if any("->" in place for place in places):
        names = ["->".join(_short(end, labels) for end in place.split("->")) for place in places]
        return names[0] if len(names) == 1 else "%d pairs (%s)" % (len(names), join_shown(names, 2))
    if len(places) > 1 and set(places) == set(labels):
        return "all %d GPUs" % len(places)
    names = [labels.get(place, place) for place in places]
    return names[0] if len(names) == 1 else join_shown(names, 2)


def _short(address: str, labels: dict[str, str]) -> str:
    return labels.get(address, address).partition(" (")[0]


def describe_change(group: Sequence[Difference], labels: dict[str, str]) -> str:
    """'VBIOS of all 8 GPUs: 96.00.A5 -> 96.00.B0'. `group`: differences of one fact with the same values, or measured
    values of one fact."""
    first = group[0]
    what = name_fact(first)
    places = name_places(list(dict.fromkeys("->".join(entry.places) for entry in group if entry.places)), labels)
    joined = " " if first.rule.how == ENTRY else " of "
    subject = what + joined + places if places else what
    if first.rule.how == MEASURED:
        worst = max(group, key=lambda entry: abs(entry.change))
        values = "%s -> %s" % (format_value(worst.before), format_value(worst.now, first.rule.unit))
        share = "%+.0f %%" % (100 * worst.change)
        most = " at most" if len(group) > 1 else ""
        return "%s: %s (%s%s)" % (subject, values, share, most)
    if first.rule.how == SET and isinstance(first.before, list) and isinstance(first.now, list):
        return "%s: %s" % (subject, _describe_lists(first.before, first.now))
    return "%s: %s -> %s" % (
        subject,
        format_value(first.before, _unit_before(first.rule.unit)),
        format_value(first.now, first.rule.unit),
    )


def _unit_before(unit: str) -> str:
    """The unit stands behind the second value only."""
    return unit if unit == OCTAL else ""


def name_fact(difference: Difference) -> str:
    """The label of a fact, its names filled in."""
    label = difference.rule.label or difference.rule.name
    for number, name in enumerate(difference.names):
        label = label.replace("{%d}" % number, name)
    return label


def _describe_lists(before: Sequence[str], now: Sequence[str]) -> str:
    gone, new = [part for part in before if part not in now], [part for part in now if part not in before]
    if len(gone) == len(new) == 1:
        return "%s -> %s" % (format_value(gone[0]), format_value(new[0]))
    parts = ["%s %s" % (word, format_value(part)) for word, part in (("without", gone), ("new", new)) if part]
    return "; ".join(parts) or "the same entries, another number of times"
