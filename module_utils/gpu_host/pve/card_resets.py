"""Cards that did not come back from a reset or from sleep, as the kernel log of a Proxmox host says.

Proxmox resets a card when its VM starts and stops; one that fails it stays dead until the power is cut. Wording:
pci_dev_wait, pci_power_up and pcie_flr in drivers/pci/pci.c, vfio_pci_core.c.
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import Evidence
from ..log import log_sources
from .card_claims import label_claim

_ADDRESS = r"(?P<address>[0-9a-f]{4,8}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7])"
_STUCK = re.compile(
    _ADDRESS + r": (?P<text>not ready \d+ms after [\w ]+; giving up"
    r"|Unable to change power state from (?:D3cold|D3hot|unknown) to D0, device inaccessible)"
)
_WAITING = re.compile(_ADDRESS + r": (?P<text>not ready \d{5,}ms after [\w ]+; waiting)")
# What takes it back: the card answered in the end, or was found anew after its slot was switched.
_BACK = re.compile(_ADDRESS + r": (?:ready \d+ms after |\[[0-9a-f]{4}:[0-9a-f]{4}\] type \d+ class )")


def failed_resets(evidence: Evidence, errors: Errors, cards: dict[str, dict[str, Any]]) -> list[dict[str, Any]] | None:
    """[{address, text (the last word of the kernel), count, owners [VM 101 "llm" (running)], power_state,
    d3cold_allowed, reset_methods (of its GPU)}] of GPUs and their other functions whose last reset in this log failed;
    None if the log cannot be read. `cards`: card_claims.list_gpus."""
    text, whole = log_sources.read_first_log(evidence, errors)
    found = find_failed_resets(text, cards)
    return found if found or whole else None


def find_failed_resets(text: str, cards: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    slots = {address.rpartition(".")[0]: address for address in cards}
    found: dict[str, dict[str, Any]] = {}
    for line in text.split("\n"):
        if ": " not in line:
            continue
        back = _BACK.search(line)
        if back:
            found.pop(back.group("address"), None)
            continue
        match = _STUCK.search(line) or _WAITING.search(line)
        if not match:
            continue
        address = match.group("address")
        card = slots.get(address.rpartition(".")[0])
        if card is None:
            continue
        entry = found.setdefault(
            address,
            {
                **{name: cards[card].get(name) for name in ("power_state", "d3cold_allowed", "reset_methods")},
                **{"address": address, "count": 0},
                "owners": [label_claim(claim) for claim in cards[card]["claimed_by"]],
            },
        )
        entry.update(text=match.group("text"), count=entry["count"] + 1)
    return [found[address] for address in sorted(found)]
