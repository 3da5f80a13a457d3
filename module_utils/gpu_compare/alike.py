"""The fleet as its own yardstick: hosts of one kind are compared with one another, without a baseline.

A kind is the same GPUs (models and count) in the same placement. From three hosts on, one that differs from most of
them is told; of two, that the two differ. It is information: nothing says that the odd one is the wrong one.

The result is ``{kinds: [{name, hosts, odd, split, measured}], alone: [{host, text}]}``:

- `odd`: ``[{hosts, differs: [{what, value, others, alike}], do}]``, `alike` the number of hosts that agree, the hosts
  of most differences first
- `split`: ``[{what, values: [{value, hosts}]}]``, what no more than half of the hosts agree in (of two hosts: what they
  differ in)
- `measured`: ``[{what, unit, better, median, limit, values: {host: value}, outliers: [host]}]``
- `alone`: a host that has some of the GPUs of a kind, in another number or with others
"""

from __future__ import annotations

from collections import Counter
from typing import Any

from ..gpu_host.virtualization import PLACEMENTS
from . import features, measures, wording
from .fact_table import RULES

_LEAST = 3  # hosts that make a yardstick
_ABSENT = "absent"
# What to do, by where the fact stands.
_ADVICE = (
    ("driver.secure_boot", "Set Secure Boot alike in the firmware setup."),
    ("driver.", "Install the same driver: ansible-playbook provision.yml -b -l HOST."),
    ("modules.", "Set the same module options: ansible-playbook provision.yml -b -l HOST --tags module_options."),
    ("kernel.", "Install the same kernel, give it the same command line, and reboot."),
    ("virtualization.dmi.", "Bring the firmware of the board to the same version, by its maker's means."),
    ("gpus.devices.*.vbios", "Ask the maker of the card for the VBIOS that the others have."),
    ("gpus.devices.*.gsp", "The GSP firmware comes with the driver: install the same one."),
    ("gpus.devices.*.bar1", "Compare the VBIOS, and resizable BAR and above-4G decoding in the firmware setup."),
    ("pci.gpus.*.bars", "Compare the VBIOS, and resizable BAR and above-4G decoding in the firmware setup."),
    ("gpus.devices.*.link", "Look at the slot: its width in the firmware setup, the riser, the seat of the card."),
    ("pci.gpus.*.link", "Look at the slot: its width in the firmware setup, the riser, the seat of the card."),
    ("probe.", "Measure again with nothing else on the GPUs; then compare links, ACS and IOMMU of the two."),
    ("iommu.", "Compare the kernel command line and the IOMMU in the firmware setup."),
)
OTHERWISE = "Make them the same, or know why they are not."


def compare_alike(hosts: dict[str, dict[str, Any] | None]) -> dict[str, Any]:
    """Compare the hosts of each kind; `hosts`: name -> the record of features.extract_features."""
    kinds: dict[tuple[Any, ...], dict[str, dict[str, Any]]] = {}
    for name, record in hosts.items():
        if record is not None:
            kinds.setdefault(_key_of(record["kind"]), {})[name] = record
    compared = [_compare_kind(members) for members in kinds.values() if len(members) > 1]
    compared.sort(key=lambda kind: -len(kind["hosts"]))
    return {"kinds": compared, "alone": _find_alone(kinds)}


def _key_of(kind: dict[str, Any]) -> tuple[Any, ...]:
    return (kind["placement"], *sorted(kind["models"].items()))


def name_kind(kind: dict[str, Any]) -> str:
    """'8 x NVIDIA H200, bare metal'."""
    cards = " and ".join(
        "%d x %s" % (count, kind["names"].get(model, model)) for model, count in kind["models"].items()
    )
    placement = kind["placement"]
    return "%s, %s" % (cards, features.PLACEMENTS.get(placement) or PLACEMENTS.get(placement, placement))


def _name_cards(kind: dict[str, Any]) -> str:
    return " and ".join("%d x %s" % (count, kind["names"].get(model, model)) for model, count in kind["models"].items())


def _compare_kind(members: dict[str, dict[str, Any]]) -> dict[str, Any]:
    differs: dict[str, list[dict[str, Any]]] = {}
    split: list[tuple[int, dict[str, Any]]] = []
    for label, (number, read) in _gather_values(members).items():
        values = {host: value for host, value in read.items() if value is not None}
        counted = Counter(values.values())
        if len(counted) < 2:
            continue
        most, count = counted.most_common(1)[0]
        if len(values) < _LEAST or count * 2 <= len(values):
            by_value: dict[str, list[str]] = {}
            for host, value in values.items():
                by_value.setdefault(value, []).append(host)
            listed = [{"value": value, "hosts": found} for value, found in by_value.items()]
            split.append((number, {"what": label, "values": sorted(listed, key=lambda entry: -len(entry["hosts"]))}))
            continue
        for host, value in values.items():
            if value != most:
                entry = {"what": label, "value": value, "others": most, "alike": count, "rule": number}
                differs.setdefault(host, []).append(entry)
    measured = _compare_figures(members, differs)
    return {
        "name": name_kind(next(iter(members.values()))["kind"]),
        "hosts": list(members),
        "odd": _group_odd(differs),
        "split": [entry for _number, entry in sorted(split, key=lambda pair: pair[0])],
        "measured": measured,
    }


def _gather_values(members: dict[str, dict[str, Any]]) -> dict[str, tuple[int, dict[str, str | None]]]:
    """Label -> (rule, host -> value); where a mapping was read and a name is not in it, the value is 'absent'."""
    found: dict[str, tuple[int, dict[str, str | None]]] = {}
    for name, record in members.items():
        for label, (number, text) in record["values"].items():
            found.setdefault(label, (number, {}))[1][name] = text
    for number, values in found.values():
        if len(values) < len(members) and RULES[number].path[-1] == "*":
            for name, record in members.items():
                if name not in values and RULES[number].name in record["maps"]:
                    values[name] = _ABSENT
    return found


def _compare_figures(
    members: dict[str, dict[str, Any]], differs: dict[str, list[dict[str, Any]]]
) -> list[dict[str, Any]]:
    """The measured values of one kind; what stands out among three hosts and more is added to `differs`."""
    figures: dict[str, tuple[int, dict[str, float]]] = {}
    for name, record in members.items():
        for label, (number, value) in record["figures"].items():
            figures.setdefault(label, (number, {}))[1][name] = value
    told = []
    for label, (number, values) in figures.items():
        if len(values) < 2:
            continue
        rule = RULES[number]
        middle, limit, outliers = measures.find_outliers(values, rule.floor)
        outliers = outliers if len(values) >= _LEAST else []
        for host in outliers:
            if label.endswith(features.MEDIAN_PAIR) and any(entry["rule"] == number for entry in differs.get(host, ())):
                continue  # its worst pair says it already
            entry = {
                "what": label,
                "value": wording.format_value(values[host], rule.unit),
                "others": "median %s" % wording.format_value(middle, rule.unit),
                "alike": len(values) - len(outliers),
                "rule": number,
            }
            differs.setdefault(host, []).append(entry)
        told.append({
            "what": label,
            "unit": rule.unit,
            "better": "lower" if features.is_better_low(rule) else "higher",
            "median": middle,
            "limit": limit,
            "values": values,
            "outliers": outliers,
        })  # fmt: skip
    return told


def _group_odd(differs: dict[str, list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """Hosts that differ in the same way, once."""
    groups: dict[tuple[Any, ...], dict[str, Any]] = {}
    for host, entries in differs.items():
        entries.sort(key=lambda entry: entry["rule"])
        key = tuple((entry["what"], entry["value"]) for entry in entries)
        group = groups.setdefault(key, {"hosts": [], "differs": entries, "do": _advise(entries)})
        group["hosts"].append(host)
    for group in groups.values():
        group["differs"] = [
            {name: value for name, value in entry.items() if name != "rule"} for entry in group["differs"]
        ]
    return sorted(groups.values(), key=lambda group: (-len(group["differs"]), len(group["hosts"])))


def _advise(entries: list[dict[str, Any]]) -> str:
    """What to do, in one sentence per place of the differences, two at most."""
    found = []
    for entry in entries:
        name = RULES[entry["rule"]].name
        found.append(next((text for start, text in _ADVICE if name.startswith(start)), OTHERWISE))
    return " ".join(list(dict.fromkeys(found))[:2])


def _find_alone(kinds: dict[tuple[Any, ...], dict[str, dict[str, Any]]]) -> list[dict[str, str]]:
    """A host that is the only one of its kind, and has some of the GPUs of a kind of three hosts or more: it has lost
    a card, or another one was put in. Two such hosts are meant to be so."""
    found = []
    for key, members in kinds.items():
        models = {model for model, _count in key[1:]}
        near = [
            other
            for other, more in kinds.items()
            if len(more) >= _LEAST and other[0] == key[0] and models & {model for model, _count in other[1:]}
        ]
        if len(members) > 1 or not near:
            continue
        kind = max(near, key=lambda other: len(kinds[other]))
        (name, own), other = next(iter(members.items())), next(iter(kinds[kind].values()))
        words = (_name_cards(own["kind"]), len(kinds[kind]), _name_cards(other["kind"]))
        found.append({"host": name, "text": "%s; %d other hosts have %s" % words})
    return found
