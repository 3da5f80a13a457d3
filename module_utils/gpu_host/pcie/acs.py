"""How each pair of GPUs is connected over PCI, and which ports' Access Control Services send its traffic elsewhere.

A peer-to-peer request climbs from the source and turns round at one place: inside the switch that both GPUs hang from,
or, without one, in the root complex. Only the two ports at the turn decide: the first port of each GPU's path below
what the paths share. With Request Redirect (RR) or Completion Redirect (CR) set, such a port sends peer traffic up to
the root complex instead (PCI Express Base 6.0, 6.12.1): half the bandwidth below a switch, and through the IOMMU where
that translates.
"""

from __future__ import annotations

import itertools
from typing import Any

REDIRECTS = ("request_redirect", "completion_redirect")
SAME_SWITCH = "same_switch"
SAME_BRIDGE = "same_bridge"  # a conventional PCI bridge
SAME_ROOT_COMPLEX = "same_root_complex"
DIFFERENT_ROOT_COMPLEX = "different_root_complex"


def describe_acs(acs: Any) -> dict[str, Any]:
    """The `acs` fact of a bridge from pci_config's: {present, control, control_raw, redirects}.

    All None if unreadable.
    """
    if acs is None:
        return {"present": None, "control": None, "control_raw": None, "redirects": None}
    if acs is False:
        return {"present": False, "control": None, "control_raw": None, "redirects": False}
    control = acs["control"]
    return {
        "present": True,
        "control": control,
        "control_raw": acs["control_raw"],
        "redirects": any(control[name] for name in REDIRECTS),
    }


def list_pairs(gpus: dict[str, dict[str, Any]], bridges: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """Every unordered pair of GPUs: {gpus: [a, b], relation, common, turn_ports}.

    `relation` and `common` (the deepest shared bridge, or the root complex) are None where a path is unknown;
    `turn_ports` are the ports whose ACS decides about this pair.
    """
    return [_pair(a, b, gpus, bridges) for a, b in itertools.combinations(sorted(gpus), 2)]


def list_pairs_between(
    gpus: dict[str, dict[str, Any]], others: dict[str, dict[str, Any]], bridges: dict[str, dict[str, Any]]
) -> list[dict[str, Any]]:
    """As list_pairs, of each GPU with each of the other devices; `gpus` of a pair holds both addresses, GPU first."""
    return [_pair(a, b, {**gpus, **others}, bridges) for a in sorted(gpus) for b in sorted(others)]


def _pair(a: str, b: str, gpus: dict[str, dict[str, Any]], bridges: dict[str, dict[str, Any]]) -> dict[str, Any]:
    pair: dict[str, Any] = {"gpus": [a, b], "relation": None, "common": None, "turn_ports": []}
    first, second = gpus[a]["path"], gpus[b]["path"]
    if first is None or second is None:
        return pair
    shared = 0
    for one, other in zip(first, second):
        if one != other:
            break
        shared += 1
    pair["turn_ports"] = sorted({path[shared] for path in (first, second) if len(path) > shared})
    if shared:
        pair["common"] = first[shared - 1]
        kind = (bridges.get(pair["common"]) or {}).get("kind")
        pair["relation"] = SAME_BRIDGE if kind == "pci_bridge" else SAME_SWITCH
        return pair
    one, other = gpus[a]["root_complex"], gpus[b]["root_complex"]
    if one is not None and other is not None:
        pair["relation"] = SAME_ROOT_COMPLEX if one == other else DIFFERENT_ROOT_COMPLEX
        pair["common"] = one if one == other else None
    return pair


def find_redirecting(
    pairs: list[dict[str, Any]], bridges: dict[str, dict[str, Any]], below_switch: bool, unknown: bool = False
) -> list[dict[str, Any]] | None:
    """Ports at a turn that redirect: [{address, kind, control_raw, redirects: [names], pairs: ["a b", …]}].

    `below_switch` chooses pairs under one switch (True) or those that meet in the root complex (False). None: none was
    found, but the path or the ACS control of some port is unknown, or (`unknown`) whether these are all pairs.
    """
    affected: dict[str, list[str]] = {}
    for pair in pairs:
        if pair["relation"] is None:
            unknown = True
            continue
        if (pair["relation"] in (SAME_SWITCH, SAME_BRIDGE)) != below_switch:
            continue
        for port in pair["turn_ports"]:
            state = (bridges.get(port) or {}).get("acs") or {}
            unknown = unknown or state.get("redirects") is None
            if state.get("redirects"):
                affected.setdefault(port, []).append(" ".join(pair["gpus"]))
    found = [
        {
            "address": port,
            "kind": bridges[port]["kind"],
            "control_raw": bridges[port]["acs"]["control_raw"],
            "redirects": [name for name in REDIRECTS if bridges[port]["acs"]["control"][name]],
            "pairs": names,
        }
        for port, names in sorted(affected.items())
    ]
    return found or (None if unknown else [])
