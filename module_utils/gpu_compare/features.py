"""What of one host is compared with others of its kind: a small record, kept instead of the facts.

``{kind: {models: {PCI id: count}, names: {PCI id: name}, placement}, values: {label: [rule, text or
null]}, maps: [names of mappings that were read], figures: {label: [rule, value]}}``, `rule` the number of the rule in
fact_table.RULES; None where the host is of no kind: it has no GPU, or it is unknown which and where.
"""

from __future__ import annotations

import hashlib
import statistics
from collections import Counter
from collections.abc import Sequence
from typing import Any

from ..gpu_host.evidence.values import parse_mapping
from . import fact_table, measures, wording
from .differences import Difference, write_row
from .rules import MEASURED, NAME, SET, Path, Rule, list_alike

MEDIAN_PAIR = ", median pair"
# The mappings by name: where one was read, a name that is not in it is absent.
_MAPS = [rule.name for rule in fact_table.RULES if rule.alike and rule.path[-1] == NAME and NAME not in rule.path[:-1]]
_LONGEST = 240  # characters of one value
PROXMOX = "proxmox"
PLACEMENTS = {PROXMOX: "Proxmox VE host"}


def extract_features(host: dict[str, Any]) -> dict[str, Any] | None:
    """The record of one host."""
    kind = describe_kind(host)
    if kind is None:
        return None
    gathered: dict[str, tuple[Rule, list[Any]]] = {}
    for rule, keys, value in list_alike(host, fact_table.TREE):
        gathered.setdefault(_name_feature(rule, keys, value), (rule, []))[1].append(value)
    values: dict[str, list[Any]] = {}
    figures: dict[str, list[Any]] = {}
    for label, (rule, found) in gathered.items():
        number = fact_table.ORDER[rule.path]
        if rule.how == MEASURED:
            figures.update(_summarise_figures(label, number, rule, found))
        elif all(value is not None for value in found):
            values[label] = [number, _summarise_values(rule, found)]
        elif rule.path[-1] == NAME:
            values[label] = [number, None]  # it is there, and unknown
    maps = [name for name in _MAPS if _is_read(host, name)]
    return {"kind": kind, "values": values, "maps": maps, "figures": figures}


def describe_kind(host: dict[str, Any]) -> dict[str, Any] | None:
    """Which GPUs the host has and where it runs, by its evidence; None where that is unknown or it has none.

    The PCI bus counts before nvidia-smi, because it shows a card whose driver does not.
    """
    virtualization = parse_mapping(host.get("virtualization"))
    placement = virtualization.get("placement")
    if virtualization.get("hypervisor_is_proxmox") is True:
        placement = PROXMOX
    devices = {address: parse_mapping(card) for address, card in parse_mapping(_pick(host, "gpus", "devices")).items()}
    on_bus = {address: parse_mapping(card) for address, card in parse_mapping(_pick(host, "pci", "gpus")).items()}
    found = {
        address: ("%s:%s" % (card.get("vendor_id"), card.get("device_id")), card.get("name"))
        for address, card in on_bus.items()
    } or {address: (str(card.get("pci_id")), card.get("name")) for address, card in devices.items()}
    if not found or placement is None or any("None" in model for model, _name in found.values()):
        return None
    names = {
        model: str(devices.get(address, {}).get("name") or name or model) for address, (model, name) in found.items()
    }
    return {
        "models": dict(sorted(Counter(model for model, _name in found.values()).items())),
        "names": names,
        "placement": str(placement),
    }


def _pick(host: dict[str, Any], subject: str, name: str) -> Any:
    return parse_mapping(host.get(subject)).get(name)


def _is_read(host: dict[str, Any], name: str) -> bool:
    value: Any = host
    for part in name.split(".")[:-1]:
        value = parse_mapping(value).get(part)
    return isinstance(value, dict)


def _name_feature(rule: Rule, keys: Path, value: Any) -> str:
    label = wording.name_fact(Difference(rule, keys, None, None))
    size = value.get("size_mib") if rule.how == MEASURED and isinstance(value, dict) else None
    return "%s of %g MiB" % (label, size) if isinstance(size, (int, float)) else label


def _summarise_values(rule: Rule, found: Sequence[Any]) -> str:
    """One text for the values of all cards: 'A', or '7 x A, 1 x B'."""
    counted = Counter(_write_value(rule, value) for value in found)
    if len(counted) == 1:
        return next(iter(counted))
    return _shorten(", ".join("%d x %s" % (count, text) for text, count in sorted(counted.items())))


def _write_value(rule: Rule, value: Any) -> str:
    if rule.how == SET and isinstance(value, list):
        return _shorten(", ".join(sorted({write_row(row, rule.fields) for row in value})) or "none")
    if isinstance(value, (dict, list)):
        return _shorten(str(value))
    return _shorten(wording.format_value(value, rule.unit) if not isinstance(value, str) else value or "none")


def _shorten(text: str) -> str:
    """`text`, bounded; two long ones stay as different as they are."""
    if len(text) <= _LONGEST:
        return text
    return "%s … (%s)" % (text[: _LONGEST - 20], hashlib.sha256(text.encode("utf-8", "replace")).hexdigest()[:8])


def _summarise_figures(label: str, number: int, rule: Rule, found: Sequence[Any]) -> dict[str, list[Any]]:
    """The worst and the median of the pairs: the slowest for a bandwidth, the highest for a latency."""
    numbers = [value for value in map(measures.take_value, found) if value is not None]
    if not numbers:
        return {}
    if len(found) == 1:
        return {label: [number, numbers[0]]}
    worst = max(numbers) if is_better_low(rule) else min(numbers)
    words = "highest" if is_better_low(rule) else "lowest"
    return {
        "%s, %s pair" % (label, words): [number, worst],
        label + MEDIAN_PAIR: [number, statistics.median(numbers)],
    }


def is_better_low(rule: Rule) -> bool:
    """Whether the lower value of a measurement is the better one."""
    return rule.unit in ("us", "s")
