"""What the probe's transfers of many GPUs at once mean: wrong data, and a switch or a root port that collapses."""

from __future__ import annotations

from typing import Any

from ..evidence import values
from . import pair_verdict, shared_ports


def judge_load(result: dict[str, Any]) -> None:
    """Fill ``corrupt_under_load`` and ``collapsed_under_load`` of the facts of the probe."""
    pairs = result["pairs"]
    rates = {
        name: pair_verdict.find_median(pair.get("bandwidth_gb_s"), "copy_alone", "copy") for name, pair in pairs.items()
    }
    paths = shared_ports.read_paths(result["devices"])
    parts: tuple[tuple[str, int, str], ...] = (
        ("many_to_one", 1, "all others to %s"),
        ("one_to_many", 0, "%s to all others"),
    )
    for part, end, words in parts:
        collapsed = {}
        for address, found in sorted(result[part].items()):
            result["corrupt_under_load"] += found.get("corrupt_pairs") or []
            alone = [rate for name, rate in rates.items() if rate and name.split("->")[end] == address]
            total = pair_verdict.find_median(found, "bandwidth_gb_s")
            if alone and total is not None and total < pair_verdict.MANY_TO_ONE_SHARE * max(alone):
                figures = (_with_spread(found["bandwidth_gb_s"]), max(alone))
                collapsed[address] = (words + ": %s together, one alone %.3g") % (address, *figures)
        groups, rest = shared_ports.group_by_port(collapsed, paths)
        for port, members in groups:
            name = shared_ports.name_port(port, paths)
            result["collapsed_under_load"] += [
                "%s; so it is with all %d GPUs below %s" % (collapsed[members[0]], len(members), name)
            ]
        result["collapsed_under_load"] += [collapsed[address] for address in rest]
    for event in result["events"]:
        if event["stage"] in ("all write to one", "one writes to all", "all pairs at once"):
            result["collapsed_under_load"].append(
                "%s: %s after %s s" % (event["stage"], event["kind"], event["seconds"])
            )
    every = result["all_at_once"] or {}
    result["corrupt_under_load"] = sorted(set(result["corrupt_under_load"]) | set(every.get("corrupt_pairs") or []))
    known = sorted(rate for rate in rates.values() if rate)
    total = pair_verdict.find_median(every, "bandwidth_gb_s")
    gpus = len({pair["source"] for pair in pairs.values()})
    if (
        known
        and total is not None
        and gpus > 2
        and total < pair_verdict.ALL_AT_ONCE_SHARE * gpus * known[len(known) // 2]
    ):
        result["collapsed_under_load"].append(
            "all pairs at once: %s together, one pair alone %.3g"
            % (_with_spread(every["bandwidth_gb_s"]), known[len(known) // 2])
        )


def _with_spread(figure: dict[str, Any]) -> str:
    """'52.7 GB/s (52.1 to 53.0)'."""
    low, high = (values.decimal_number(figure.get(name)) for name in ("min", "max"))
    spread = "" if low is None or high is None else " (%.3g to %.3g)" % (low, high)
    return "%.3g GB/s%s" % (figure["median"], spread)
