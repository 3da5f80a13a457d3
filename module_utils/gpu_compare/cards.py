"""Which card of one look is which of another: by UUID, else by serial number, else by the place in which it is."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ..gpu_host.evidence.values import parse_mapping

# What capture_anonymous puts in the place of UUIDs and serial numbers (gpu_host/evidence/anonymise.py): numbers in the
# order in which they come, so that the first card of every host has the same.
_STAND_IN = re.compile(r"(?:GPU-)?0{8}-0{4}-0{4}-0{4}-[0-9a-f]{12}|10{6}\d{6}")


@dataclass(frozen=True)
class Card:
    """One GPU: its PCI address, its label, its name, its PCI id, and what tells it from others, "" where unknown or a
    stand-in."""

    address: str
    label: str
    name: str
    pci_id: str
    uuid: str
    serial: str


@dataclass
class Paired:
    """The cards of two looks. `addresses`: address before -> address now, of cards that are still there."""

    addresses: dict[str, str] = field(default_factory=dict)
    moved: list[tuple[Card, Card]] = field(default_factory=list)
    replaced: list[tuple[Card, Card]] = field(default_factory=list)
    missing: list[Card] = field(default_factory=list)
    added: list[Card] = field(default_factory=list)


def is_stand_in(value: Any) -> bool:
    """Whether an id is one that anonymising has made, so that it tells nothing apart."""
    return isinstance(value, str) and _STAND_IN.fullmatch(value) is not None


def describe_cards(host: dict[str, Any]) -> list[dict[str, Any]] | None:
    """``[{address, index, name, pci_id, uuid, serial}]`` of the GPUs of a host; None where it is unknown which it has.

    As nvidia-smi shows them, where it showed all; else as the PCI bus does, without UUID and serial number.
    """
    gpus = parse_mapping(host.get("gpus"))
    devices = gpus.get("devices")
    if isinstance(devices, dict) and gpus.get("complete") is not False:
        members = {str(address): parse_mapping(device) for address, device in devices.items()}
        if members and not any(device.get("lost") for device in members.values()):
            names = ("index", "name", "pci_id", "uuid", "serial")
            return [{"address": key, **{name: device.get(name) for name in names}} for key, device in members.items()]
    on_bus = parse_mapping(host.get("pci")).get("gpus")
    if not isinstance(on_bus, dict):
        return None
    return [_describe_on_bus(str(address), parse_mapping(card)) for address, card in on_bus.items()]


def _describe_on_bus(address: str, card: dict[str, Any]) -> dict[str, Any]:
    ids = card.get("vendor_id"), card.get("device_id")
    pci_id = "%s:%s" % ids if all(ids) else None
    return {"address": address, "index": None, "name": card.get("name"), "pci_id": pci_id, "uuid": None, "serial": None}


def list_cards(described: Iterable[Any]) -> list[Card]:
    """The cards of what describe_cards gave, or of what a baseline has kept of it."""
    return [_card(entry) for entry in described if isinstance(entry, dict) and entry.get("address")]


def _card(entry: dict[str, Any]) -> Card:
    def name_id(name: str) -> str:
        value = entry.get(name)
        return value.strip() if isinstance(value, str) and value not in ("n/a", "0") and not is_stand_in(value) else ""

    index = entry.get("index")
    address = str(entry["address"])
    label = address if index is None else "GPU %s (%s)" % (index, address)
    name, pci_id = (str(entry.get(key) or "") for key in ("name", "pci_id"))
    return Card(address, label, name, pci_id, name_id("uuid"), name_id("serial"))


def pair_cards(before: list[Card], now: list[Card]) -> Paired:
    """Pair the cards of two looks."""
    found = Paired()
    old, new = {card.address: card for card in before}, {card.address: card for card in now}
    for key in ("uuid", "serial"):
        by_id = {getattr(card, key): card for card in new.values() if getattr(card, key)}
        for card in list(old.values()):
            same = by_id.get(getattr(card, key) or None)
            if same is None or same.address not in new:
                continue
            found.addresses[card.address] = same.address
            if card.address != same.address:
                found.moved.append((card, same))
            del old[card.address], new[same.address]
    for address in sorted(set(old) & set(new)):
        one, other = old.pop(address), new.pop(address)
        found.addresses[address] = address
        if _differ(one, other):
            found.replaced.append((one, other))
    found.missing, found.added = list(old.values()), list(new.values())
    return found


def _differ(one: Card, other: Card) -> bool:
    """Whether two cards in one place are known to be two: by ids that both have, or as they are of two models. The
    name tells nothing: nvidia-smi and the list of PCI ids spell it differently."""
    if one.uuid and other.uuid:
        return one.uuid != other.uuid
    if one.serial and other.serial:
        return one.serial != other.serial
    return bool(one.pci_id and other.pci_id and one.pci_id != other.pci_id)


def count_common(before: list[Card], now: list[Card]) -> tuple[int, int, int]:
    """(cards known by id on both sides, cards with an id before, cards with an id now)."""
    first = {card.uuid or card.serial for card in before} - {""}
    second = {card.uuid or card.serial for card in now} - {""}
    return len(first & second), len(first), len(second)
