"""What the checks find on a Proxmox host about the cards of one of its guests: the guest does not see it, and suffers.

The same checks that judge the Proxmox host are asked, so whatever they learn to find is joined to the guest as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from typing import Any

from . import expressions, unknowns
from .check_files import Check
from .engine import ERROR, FAIL, UNKNOWN, evaluate_checks, make_variables
from .evaluator import Evaluator

# Of what the Proxmox host shows: what concerns one card and its path, not how the host is set up.
_TAGS = {"log", "pci", "health"}
_ANY_CARD = re.compile(r"(?i)[0-9a-f]{2}:[0-9a-f]{2}(?:\.[0-7]|\b)")


def choose_checks_of_cards(every: Iterable[Check]) -> list[Check]:
    """The checks whose failure on a Proxmox host is the guest's trouble."""
    return [
        check for check in every if check.severity == "error" and _TAGS & set(check.tags) and "guest" not in check.tags
    ]


def list_cards(guest: dict[str, Any] | None, proxmox: dict[str, Any]) -> list[str] | None:
    """The PCI addresses of the cards that `guest` of a Proxmox host has or is to get, those that vanished from the bus
    too; None where they are not known. A container with a node of which the driver names no card may have any that no
    VM has."""
    guest = guest or {}
    if guest.get("gpus", ()) is None:
        return None
    named = [*guest.get("gpus", ()), *(guest.get("claims") or ())]
    for entry in (guest.get("next_start") or {}).get("hostpci") or ():
        named += entry.get("addresses") or ()
    if guest.get("type") == "lxc" and any(name.startswith("/") for name in named):
        if proxmox.get("gpus") is None:
            return None
        for address, card in proxmox["gpus"].items():
            if all(claim["type"] != "vm" for claim in card["claimed_by"]):
                named.append(address)
    return sorted({name for name in named if not name.startswith("/")})


def add_findings(view: dict[str, Any], every: Iterable[Check], host: dict[str, Any] | None, evaluator: Any) -> None:
    """Fill in what `view`, the ``host.hypervisor`` of a guest, says of its cards:

    `card_findings`: ``[{check, found}]``, what fails on the Proxmox host with facts `host` and names a card of the
    guest; None where nothing was found, and something that would show it is unknown. `cards_unjudged`: the reasons of
    that, as entries of ``Errors``.

    `host` is None where that machine's own facts were not gathered. `evaluator` makes an Evaluator of the variables of
    a check.
    """
    cards = list_cards(view["guest"], view if host is None else host.get("proxmox") or {})
    if cards == []:
        view["card_findings"] = []
    elif cards is None:
        _leave_unknown(view, "%s on %s" % (view["vmid"], view["name"]), "has GPUs that are not known one by one")
    elif host is None:
        _leave_unknown(view, view["name"], "its own facts (gpu_facts) were not gathered in this run")
    else:
        _judge_cards(view, cards, choose_checks_of_cards(every), make_variables(host), evaluator)


def _judge_cards(
    view: dict[str, Any], cards: Sequence[str], checks: Sequence[Check], variables: dict[str, Any], evaluator: Any
) -> None:
    judge: Evaluator = evaluator(variables)
    results = evaluate_checks(checks, variables, judge)
    found = [
        {"check": result["id"], "found": result["found"]}
        for result in results
        if result["status"] == FAIL and any(_name(card).search(result["found"]) for card in cards)
    ]
    view["card_findings"] = found
    by_id = {check.id: check for check in checks}
    for result in results if not found else ():
        source = "%s on %s" % (result["id"], view["name"])
        if result["status"] in (UNKNOWN, ERROR):
            _leave_unknown(view, source, "is %s: %s" % (result["status"], result["reason"]), result["needs_root"])
        elif result["status"] == FAIL:
            problem, needs_root = _explain_doubt(by_id[result["id"]], result, view["guest"] or {}, variables["host"])
            if problem:
                _leave_unknown(view, source, problem, needs_root)


def _explain_doubt(
    check: Check, result: dict[str, Any], guest: dict[str, Any], host: dict[str, Any]
) -> tuple[str, bool]:
    """Why a failure that names other cards may be the guest's trouble all the same, "" where it is not; and whether
    root would see it."""
    paths = [path for text in (*check.needs, *check.that) for path in _read_paths(text)]
    # A value that is no list of offenders (a flag, a number) is known or not; it names nobody.
    lists = [path for path in paths if isinstance(expressions.look_up_path({"host": host}, path), (list, dict))]
    unread = unknowns.explain_partly_read(host, lists)
    if unread:
        return "fails for others, and what could not be read may name a GPU of this guest: %s" % unread[0], unread[1]
    # A card in a virtual machine has no driver on the Proxmox host that could say anything of it.
    if not _ANY_CARD.search(result["found"]) and (guest.get("type") == "lxc" or "driver" not in check.tags):
        return "fails and names no GPU: %s" % result["found"], False
    return "", False


def _read_paths(text: Any) -> tuple[tuple[str, ...], ...]:
    return (text,) if isinstance(text, tuple) else expressions.find_reads(str(text)).paths


def _leave_unknown(view: dict[str, Any], source: str, problem: str, needs_root: bool = False) -> None:
    view["card_findings"] = None
    entry = {"subject": "hypervisor", "source": source, "problem": problem, "needs_root": needs_root}
    view["cards_unjudged"].append(entry)


def _name(card: str) -> re.Pattern[str]:
    """The ways in which messages write a card: 0000:61:00.0, 0000:61:00, 61:00.0; not one of its other functions."""
    domain, bus, slot = card.partition(".")[0].split(":")
    domains = "(?:%s:)?" % domain if domain == "0000" else domain + ":"
    return re.compile(
        r"(?<![0-9a-f.])(?<![0-9a-f]:)%s%s:%s(?:\.0)?(?![0-9a-f:.]*[0-9a-f])" % (domains, bus, slot), re.IGNORECASE
    )
