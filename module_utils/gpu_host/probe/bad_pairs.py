"""What the pairs on which P2P goes wrong have in common, from the facts of the GPUs at their ends."""

from __future__ import annotations

from typing import Any

from ..smi.gpu_findings import label_gpu

Facts = dict[str, Any]
# Lists of the probe whose pairs work wrongly or slowly although the driver grants them.
BAD = ("undelivered_pairs", "hung_pairs", "staged_pairs", "slow_pairs")


def find_common_ground(probe: Facts, gpus: Facts) -> Facts:
    """``{gpus, small_bar1, display}``: labels, each [] where it is not so.

    `gpus`: those (at most two) without which no pair would be bad, where other pairs are good; `small_bar1`: the GPUs
    whose
    BAR1 does not cover their memory, where each bad pair has one of them; `display`: those that show a screen, where
    each bad pair has one of them and other pairs are good.
    """
    pairs = probe.get("pairs") or {}
    bad = [
        tuple(name.split("->", 1)) for name in {name for key in BAD for name in probe.get(key) or () if "->" in name}
    ]
    devices = gpus.get("devices") or {}
    nothing: Facts = {"gpus": [], "small_bar1": [], "display": []}
    if not bad:
        return nothing
    some_good = len(bad) < len(pairs)

    def cover(addresses: set[str]) -> list[str]:
        """The labels of those of `addresses` that are at an end of a bad pair, if every bad pair has one; else []."""
        if not all(set(pair) & addresses for pair in bad):
            return []
        used = {end for pair in bad for end in pair} & addresses
        return [label_gpu(where, (devices.get(where) or {}).get("index")) for where in sorted(used)]

    small = {entry["address"] for entry in gpus.get("bar1_smaller_than_memory") or ()}
    shown = {where for where, facts in devices.items() if facts.get("display_active") is True}
    return {
        "gpus": _shared(bad, cover) if some_good else [],
        "small_bar1": cover(small),
        "display": cover(shown) if some_good else [],
    }


def _shared(bad: list[Any], cover: Any) -> list[str]:
    ends = sorted({end for pair in bad for end in pair})
    if len({frozenset(pair) for pair in bad}) < 2:
        return []  # one pair has two ends, and nothing tells which of them it is
    alone = [cover({end}) for end in ends]
    found = [labels for labels in alone if labels]
    return list(found[0]) if len(found) == 1 else []
