"""What the probe's transfers of many GPUs at once mean: wrong data, and a switch or a root port that collapses."""

from __future__ import annotations

from typing import Any

from ..evidence import values
from . import pair_verdict, shared_ports

# A load goes from or to every GPU, so that what collapses at one port slows all of them. It is slowest for the GPUs
# below that port; a load that is faster than the slowest by this factor is slowed down, and no fault of its own.
SLOWED_BY = 1.5
_LOADS = (("many_to_one", 1, "all others to %s"), ("one_to_many", 0, "%s to all others"))

Loads = dict[str, tuple[float, str]]  # the GPU that all write to, or that writes to all -> GB/s, what was measured


def judge_load(result: dict[str, Any]) -> None:
    """Fill ``corrupt_under_load`` and ``collapsed_under_load`` of the facts of the probe; its host links are judged."""
    pairs = result["pairs"]
    rates = {
        name: pair_verdict.find_median(pair.get("bandwidth_gb_s"), "copy_alone", "copy") for name, pair in pairs.items()
    }
    paths = shared_ports.read_paths(result["devices"])
    collapsed = {part: _find_collapsed(result[part], end, words, rates) for part, end, words in _LOADS}
    groups = {part: shared_ports.group_by_port(loads, paths)[0] for part, loads in collapsed.items()}
    ports = _find_ports(collapsed, groups, result, paths)
    for part, _end, _words in _LOADS:
        for found in result[part].values():
            result["corrupt_under_load"] += found.get("corrupt_pairs") or []
        result["collapsed_under_load"] += _describe_loads(collapsed[part], groups[part], ports, paths)
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
        crossed = " or ".join(shared_ports.name_port(port, paths) for port in ports)
        result["collapsed_under_load"].append(
            "all pairs at once: %s together, one pair alone %.3g%s"
            % (
                _with_spread(every["bandwidth_gb_s"]),
                known[len(known) // 2],
                "; they cross %s, as the loads that collapse there do" % crossed if crossed else "",
            )
        )


def _find_collapsed(raw: dict[str, Any], end: int, words: str, rates: dict[str, float | None]) -> Loads:
    """The loads that reach less than one pair of the same GPU does. `end`: at which end of a pair that GPU stands."""
    found = {}
    for address, load in sorted(raw.items()):
        alone = [rate for name, rate in rates.items() if rate and name.split("->")[end] == address]
        total = pair_verdict.find_median(load, "bandwidth_gb_s")
        if alone and total is not None and total < pair_verdict.MANY_TO_ONE_SHARE * max(alone):
            figures = (_with_spread(load["bandwidth_gb_s"]), max(alone))
            found[address] = (total, (words + ": %s together, one alone %.3g") % (address, *figures))
    return found


def _find_ports(
    collapsed: dict[str, Loads],
    groups: dict[str, list[tuple[str, list[str]]]],
    result: dict[str, Any],
    paths: shared_ports.Paths,
) -> list[str]:
    """The ports that the collapse is blamed on: below them the loads of every kind are slowest.

    Two switches look alike to pairs that cross both; where only one of them collapses with host memory too, it is that.
    """
    blamed: set[str] | None = None
    for part, members_by_port in groups.items():
        slowest = {port: min(collapsed[part][gpu][0] for gpu in members) for port, members in members_by_port}
        kept = {port for port, rate in slowest.items() if rate < SLOWED_BY * min(slowest.values())}
        if kept:
            blamed = kept if not blamed or not blamed & kept else blamed & kept
    links = result.get("host_links") or {}
    with_host = [gpu for gpu, link in links.items() if (link or {}).get("verdict") == "collapsed"]
    there = {port for port, _members in shared_ports.group_by_port(with_host, paths)[0]}
    return sorted((blamed or set()) & there or blamed or ())


def _describe_loads(
    loads: Loads, groups: list[tuple[str, list[str]]], ports: list[str], paths: shared_ports.Paths
) -> list[str]:
    """A sentence for each port that is blamed, with the loads that cross it and are slowed, and for each other load."""
    blamed = [(port, members) for port, members in groups if port in ports]
    told = {gpu for _port, members in blamed for gpu in members}
    sentences = [
        "%s; so it is with all %d GPUs below %s"
        % (loads[members[0]][1], len(members), shared_ports.name_port(port, paths))
        for port, members in blamed
    ]
    slowest = min((loads[gpu][0] for gpu in told), default=0.0)
    grouped = {gpu for _port, members in groups for gpu in members}
    others = sorted(set(loads) - told)
    slowed = [gpu for gpu in others if blamed and (gpu in grouped or loads[gpu][0] >= SLOWED_BY * slowest)]
    if slowed:
        rates = sorted(loads[gpu][0] for gpu in slowed)
        sentences[-1] += " (the loads of %d other GPUs, which cross it too, reach %.3g to %.3g GB/s)" % (
            len(slowed),
            rates[0],
            rates[-1],
        )
    return sentences + [loads[gpu][1] for gpu in others if gpu not in slowed]


def _with_spread(figure: dict[str, Any]) -> str:
    """'52.7 GB/s (52.1 to 53.0)'."""
    low, high = (values.decimal_number(figure.get(name)) for name in ("min", "max"))
    spread = "" if low is None or high is None else " (%.3g to %.3g)" % (low, high)
    return "%.3g GB/s%s" % (figure["median"], spread)
