"""The probe and the plain loop take turns, and what is judged of their figures.

A machine has slow moments: a clock that is still low, another guest on the same host. One of them must not decide a
comparison, and nobody may choose a turn by its result. So the number of turns is fixed before, all of them count, each
ratio is of two turns that are neighbours in time, and their median is judged.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable, Sequence
from typing import Any

BANDWIDTH_TOLERANCE = 0.03
WALL_TARGETS_S = {1: 5.0, 2: 5.0, 4: 12.0, 8: 30.0, 16: 60.0}
WITH_COLLECTIVE_TARGET_S = 8.0  # two GPUs

Record = dict[str, Any]  # ``{target, measured, wanted, met}``, and of a ratio `ratios`: those of all turns


def take_turns(
    count: int, plain: Callable[[], dict[str, Any]], probe: Callable[[], dict[str, Any]]
) -> tuple[list[dict[str, Any]], list[dict[str, Any]]]:
    """The results of `count` turns of each. Every second time the probe goes first, so that a drift favours neither."""
    plains, probes = [], []
    for number in range(count):
        if number % 2:
            probes.append(probe())
            plains.append(plain())
        else:
            plains.append(plain())
            probes.append(probe())
    return plains, probes


def compare_pairs(plains: Sequence[dict[str, Any]], raws: Sequence[dict[str, Any]]) -> list[Record]:
    """One record for each pair of GPUs that the plain loop measured."""
    order = sorted(raws[0]["devices"], key=lambda address: raws[0]["devices"][address]["cuda_index"])
    return [
        _judge_ratio(
            "copy bandwidth %s" % name,
            [_copy_rate(raw, *(order[int(end)] for end in name.split("->"))) for raw in raws],
            [plain["pairs"].get(name) for plain in plains],
        )
        for name in plains[0]["pairs"]
    ]


def _copy_rate(raw: dict[str, Any], one: str, other: str) -> float | None:
    part = raw["loopback"].get(one) if one == other else raw["pairs"].get("%s->%s" % (one, other))
    figures = (part or {}).get("bandwidth_gb_s") or {}
    median: float | None = (figures.get("copy_alone") or figures.get("copy") or {}).get("median")
    return median


def compare_host_links(plains: Sequence[dict[str, Any]], raws: Sequence[dict[str, Any]]) -> list[Record]:
    """One record for each GPU and direction. Of the probe's nodes the best one counts: the loop's memory is near."""
    return [
        _judge_ratio(
            "host link %s %s" % (address, way),
            [_host_rate(raw, address, way) for raw in raws],
            [plain["host"].get(address, {}).get(way) for plain in plains],
        )
        for address, rates in plains[0]["host"].items()
        for way in rates
    ]


def _host_rate(raw: dict[str, Any], address: str, way: str) -> float | None:
    alone = ((raw.get("host_links") or {}).get(address) or {}).get("alone") or {}
    return max((figure["median"] for figure in (alone.get(way) or {}).values()), default=None)


def _judge_ratio(what: str, ours: Sequence[float | None], plain: Sequence[float | None]) -> Record:
    """The median of the turns' ratios against the tolerance. A turn without a figure has none, and is a miss."""
    ratios = [one / other for one, other in zip(ours, plain) if one and other]
    complete = len(ratios) == len(ours) == len(plain) > 0
    middle = statistics.median(ratios) if complete else None
    return {
        "target": "%s: probe %s, plain loop %s GB/s; ratios %s"
        % (what, _name_spread(ours), _name_spread(plain), _name_spread(ratios, "%.4f")),
        "measured": middle and round(middle, 4),
        "ratios": [round(ratio, 4) for ratio in ratios],
        "wanted": "the median of %d turns within %g %%" % (len(ours), 100 * BANDWIDTH_TOLERANCE),
        "met": middle is not None and abs(middle - 1) <= BANDWIDTH_TOLERANCE,
    }


def _name_spread(values: Sequence[float | None], form: str = "%.4g") -> str:
    """The lowest to the highest, as "52.1 to 55.4", and how many are missing."""
    known = sorted(value for value in values if value is not None)
    ends = sorted({form % value for value in (known[:1] + known[-1:])}, key=float)
    text = " to ".join(ends) or "none"
    return text if len(known) == len(values) else "%s in %d of %d turns" % (text, len(known), len(values))


def compare_time(raws: Sequence[dict[str, Any]], reduced: dict[str, Any] | None) -> list[Record]:
    """The wall time of the probe, the median of its turns; for two GPUs with its all-reduce too."""
    gpus = len(raws[0]["devices"])
    seconds = statistics.median(raw["seconds"] for raw in raws)
    spread = _name_spread([raw["seconds"] for raw in raws])
    limit = next((limit for count, limit in sorted(WALL_TARGETS_S.items()) if count >= gpus), 60.0)
    found = [_judge_time("wall time of the probe, %d GPUs (turns: %s s)" % (gpus, spread), seconds, limit)]
    if reduced is not None and gpus == 2:
        what = "wall time of the probe with its all-reduce, 2 GPUs"
        found.append(_judge_time(what, seconds + reduced["seconds"], WITH_COLLECTIVE_TARGET_S))
    return found


def _judge_time(what: str, seconds: float, limit: float) -> Record:
    return {"target": what, "measured": round(seconds, 2), "wanted": "at most %g s" % limit, "met": seconds <= limit}
