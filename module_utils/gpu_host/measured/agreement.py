"""Where the probe and another tool say different things of one pair, by more than their figures are spread."""

from __future__ import annotations

from typing import Any

from ..probe.pair_verdict import HIGH_LATENCY_US, STAGED_LATENCY_US, find_median

Facts = dict[str, Any]
MARGIN = 0.10  # two runs of one tool differ by up to this
COLLECTIVE_MARGIN = 0.25  # and all-reduces of different programs by this


def find_disagreements(probe: Facts | None, measurements: Facts | None) -> list[str] | None:
    """Sentences, [] where all agree; None where there is nothing to compare."""
    if not probe or not probe.get("ran") or not (measurements or {}).get("tools"):
        return None
    assert measurements is not None
    found = []
    for name, pair in (measurements.get("pairs") or {}).items():
        ours = (probe.get("pairs") or {}).get(name)
        if ours:
            found += ["%s: %s" % (name, sentence) for sentence in _of_a_pair(ours, pair)]
    found += _bandwidths(probe.get("pairs") or {}, measurements.get("figures") or ())
    found += _collectives(probe.get("collective") or {}, measurements.get("figures") or ())
    return found


def _of_a_pair(ours: Facts, theirs: Facts) -> list[str]:
    found = []
    enabled = (ours.get("peer") or {}).get("enabled")
    if theirs.get("can_access") is False and enabled:
        found.append(
            "the probe enabled peer access, %s says CANNOT Access Peer" % (theirs.get("tool") or "the other tool")
        )
    if theirs.get("can_access") is True and ours.get("verdict") in ("not_granted", "not_usable"):
        found.append("the probe had no peer access, the other tool says CAN Access Peer")
    latency, other = find_median(ours.get("latency_us"), "copy_12k_back_to_back"), theirs.get("latency_us")
    if latency is not None and other is not None:
        direct, staged = min(latency, other) < HIGH_LATENCY_US, max(latency, other) > STAGED_LATENCY_US
        if direct and staged:
            found.append(
                "a copy takes %.3g us by the probe, %.3g us by %s: one of them went through host memory"
                % (latency, other, theirs.get("tool"))
            )
    return found


def _bandwidths(pairs: Facts, figures: Any) -> list[str]:
    """Each tool's one-way copies with peer access on; both directions of a pair are its spread."""
    found = []
    for one in figures:
        if one["kind"] != "bandwidth" or one["peer"] is False or not str(one["method"]).startswith("copy engine"):
            continue
        for name, value in one["pairs"].items():
            ours = (pairs.get(name) or {}).get("bandwidth_gb_s") or {}
            figure = ours.get("copy_alone") or ours.get("copy")
            if not figure or figure.get("median") is None:
                continue
            source, target = name.split("->", 1)
            theirs = [value, one["pairs"].get("%s->%s" % (target, source), value)]
            low, high = (figure.get(key) or figure["median"] for key in ("min", "max"))
            if min(theirs) > high * (1 + MARGIN) or max(theirs) < low * (1 - MARGIN):
                found.append(
                    "%s: %.3g GB/s by the probe, %.3g by %s (%s)"
                    % (name, figure["median"], value, one["tool"], one["method"])
                )
    return found


def _collectives(collective: Facts, figures: Any) -> list[str]:
    sizes = ((collective.get("arms") or {}).get("configured") or {}).get("sizes") or {}
    found = []
    for one in figures:
        if one["kind"] != "collective" or one["method"] not in ("all_reduce", "allreduce") or one["peer"] is False:
            continue
        ours = (sizes.get(str(one["size_bytes"])) or {}).get("bus_bandwidth_gb_s")
        if ours and one["value"] and not 1 - COLLECTIVE_MARGIN <= one["value"] / ours <= 1 + COLLECTIVE_MARGIN:
            found.append(
                "all-reduce of %d MiB: %.3g GB/s by the probe, %.3g by %s"
                % (one["size_bytes"] >> 20, ours, one["value"], one["tool"])
            )
    return found
