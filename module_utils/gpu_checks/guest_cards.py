"""What the checks find on a Proxmox host about the cards of one of its guests: the guest does not see it, and suffers.

The same checks that judge the Proxmox host are asked, so whatever they learn to find is joined to the guest as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from .check_files import Check
from .engine import FAIL, evaluate_checks, make_variables
from .evaluator import Evaluator

# Of what the Proxmox host shows: what concerns one card and its path, not how the host is set up.
_TAGS = {"log", "pci", "health"}


def choose_checks_of_cards(every: Iterable[Check]) -> list[Check]:
    """The checks whose failure on a Proxmox host is the guest's trouble."""
    return [
        check for check in every if check.severity == "error" and _TAGS & set(check.tags) and "guest" not in check.tags
    ]


def list_cards(guest: dict[str, Any] | None, proxmox: dict[str, Any]) -> list[str]:
    """The PCI addresses of the cards that `guest` of a Proxmox host has or is to get, those that vanished from the bus
    too. A container with a node of which the driver names no card may have any that no VM has."""
    guest = guest or {}
    named = [*(guest.get("gpus") or ()), *(guest.get("claims") or ())]
    for entry in (guest.get("next_start") or {}).get("hostpci") or ():
        named += entry.get("addresses") or ()
    if guest.get("type") == "lxc" and any(name.startswith("/") for name in named):
        for address, card in (proxmox.get("gpus") or {}).items():
            if all(claim["type"] != "vm" for claim in card["claimed_by"]):
                named.append(address)
    return sorted({name for name in named if not name.startswith("/")})


def find_on_cards(
    every: Iterable[Check], host: dict[str, Any], cards: Sequence[str], evaluator: Any
) -> list[dict[str, str]]:
    """``[{check, found}]``: what fails on the Proxmox host with facts `host` and names one of `cards` (PCI addresses).

    `evaluator` makes an Evaluator of the variables of a check.
    """
    if not cards:
        return []
    seen = make_variables(host)
    judge: Evaluator = evaluator(seen)
    failed = [
        result for result in evaluate_checks(choose_checks_of_cards(every), seen, judge) if result["status"] == FAIL
    ]
    return [
        {"check": result["id"], "found": result["found"]}
        for result in failed
        if any(_name(card).search(result["found"]) for card in cards)
    ]


def _name(card: str) -> re.Pattern[str]:
    """The ways in which messages write a card: 0000:61:00.0, 0000:61:00, 61:00.0; not one of its other functions."""
    domain, bus, slot = card.partition(".")[0].split(":")
    domains = "(?:%s:)?" % domain if domain == "0000" else domain + ":"
    return re.compile(
        r"(?<![0-9a-f.])(?<![0-9a-f]:)%s%s:%s(?:\.0)?(?![0-9a-f:.]*[0-9a-f])" % (domains, bus, slot), re.IGNORECASE
    )
