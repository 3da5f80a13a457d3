"""What the probe does in which order, how long each part may take, and which pairs of GPUs work at the same time.

Pure functions, without a GPU.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Sequence
from typing import Any

# Their share of the whole budget. What a phase leaves over, the next ones may use.
SHARES = {
    "control": 0.22,
    "delivered": 0.22,
    "latency": 0.12,
    "bandwidth": 0.26,
    "under_load": 0.08,
    "host_links": 0.10,
}
PHASES = tuple(SHARES)
LEAST_S, EIGHT_GPUS_S, SIXTEEN_GPUS_S = 16.0, 24.0, 50.0  # the contexts of 8 GPUs take some 4 s more, of 16 some 8 s


def choose_budget(gpus: int) -> float:
    """Seconds for all phases together: with the time that contexts take, 30 s for 8 GPUs and 60 s for 16."""
    if gpus <= 2:
        return LEAST_S
    if gpus <= 8:
        return LEAST_S + (gpus - 2) * (EIGHT_GPUS_S - LEAST_S) / 6
    return EIGHT_GPUS_S + (gpus - 8) * (SIXTEEN_GPUS_S - EIGHT_GPUS_S) / 8


def split_budget(total_s: float) -> dict[str, float]:
    """Seconds by phase."""
    return {phase: round(share * total_s, 2) for phase, share in SHARES.items()}


def list_links(
    source: dict[str, Any] | None, target: dict[str, Any] | None, ends: tuple[str, str], own_fabric: bool
) -> frozenset[Hashable]:
    """The links that a transfer from one GPU to another occupies, each in one direction.

    `source` and `target` are places as `places.read_place` gives them, `ends` both addresses. `own_fabric`: the pair is
    joined by NVLink, whose links are the two GPUs' own. Over PCI Express: up from the source to the bridge below which
    both hang, and down to the target; where they hang below different root complexes of different NUMA nodes, the way
    from one socket to the other too. Where a place is not known, only the two ends.
    """
    up, down = (ends[0], "up"), (ends[1], "down")
    one, other = (source or {}).get("path"), (target or {}).get("path")
    if own_fabric or one is None or other is None:
        return frozenset((up, down))
    shared = 0
    for first, second in zip(one, other):
        if first != second:
            break
        shared += 1
    links: set[Hashable] = {up, down}
    links.update((bridge, "up") for bridge in one[shared:])
    links.update((bridge, "down") for bridge in other[shared:])
    nodes = (source or {}).get("numa_node"), (target or {}).get("numa_node")
    if not shared and None not in nodes and nodes[0] != nodes[1]:
        links.add(("sockets", *nodes))
    return frozenset(links)


def plan_rounds(
    pairs: Iterable[tuple[Any, Any]], links: dict[tuple[Any, Any], frozenset[Hashable]]
) -> list[list[tuple[Any, Any]]]:
    """The pairs in rounds: each exactly once, no GPU twice in a round, no link of `links` twice in a round.

    Each goes into the first round that has room. With pairs in the order of `order_pairs` and no shared links these are
    the fewest rounds there can be.
    """
    rounds: list[list[tuple[Any, Any]]] = []
    taken: list[set[Hashable]] = []
    for pair in pairs:
        needed = {("gpu", end) for end in pair} | {("link", link) for link in links.get(pair, ())}
        place = next((at for at, used in enumerate(taken) if not used & needed), None)
        if place is None:
            rounds.append([])
            taken.append(set())
            place = len(rounds) - 1
        rounds[place].append(pair)
        taken[place] |= needed
    return rounds


def order_pairs(ends: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Unordered pairs in the order of a tournament (the circle method): n-1 times n/2 disjoint ones."""
    seats: list[Any] = list(ends)
    if len(seats) % 2:
        seats.append(None)
    found = []
    for _ in range(len(seats) - 1):
        half = len(seats) // 2
        couples = zip(seats[:half], reversed(seats[half:]))
        found += [(one, other) for one, other in couples if one is not None and other is not None]
        seats = [seats[0], seats[-1], *seats[1:-1]]
    return found


def order_directed_pairs(ends: Sequence[Any]) -> list[tuple[Any, Any]]:
    """Both directions of every pair: all of one direction of the tournament's round, then all of the other."""
    found: list[tuple[Any, Any]] = []
    half = max(1, len(ends) // 2)
    ordered = order_pairs(ends)
    for begin in range(0, len(ordered), half):
        turn = ordered[begin : begin + half]
        found += [*turn, *((other, one) for one, other in turn)]
    return found
