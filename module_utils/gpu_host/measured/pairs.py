"""The figures of other tools by pair of GPUs, judged by what the probe's figures are judged by."""

from __future__ import annotations

from typing import Any

from ..probe.pair_verdict import SAME_AS_CONTROL, STAGED_LATENCY_US, expect_bandwidth, name_impossible
from .output import BANDWIDTH, LATENCY, PAIR_KINDS, Figures, Output

Facts = dict[str, Any]
# GB/s one way. Through host memory a copy crosses PCI Express, which gives 121 on 16 lanes of its sixth generation.
BEYOND_PCI_EXPRESS = 130.0
SLOWER_SHARE = 0.9  # of the bandwidth without peer access: below it, switching it on made the copy slower
_GT_S = {1: 2.5, 2: 5.0, 3: 8.0, 4: 16.0, 5: 32.0, 6: 64.0}
UNITS = {"bandwidth": "GB/s", "both_ways": "GB/s", "latency": "us", "access_latency": "us"}


def complete_pairs(measurements: Facts, outputs: list[tuple[str, Output]], facts: Facts) -> None:
    """Add ``figures``, ``pairs`` and the lists of offenders to the facts `measurements`.

    ``pairs``: "SOURCE->TARGET" -> {can_access, bandwidth_gb_s, bandwidth_without_peer_gb_s, latency_us,
    latency_without_peer_us, tool, least_gb_s, least_basis, verdict (ok | not_usable | staged | slow | unknown),
    reason}.
    ``devices``: GPU -> the tools' number of it. ``data_checked``: whether one of them compared data. ``disagreements``
    with the probe (agreement.py): None where there is nothing to compare. ``lowest_bandwidth_gb_s``.
    ``all_usable``, ``all_fast``: None while a pair is not known. Lists of sentences: ``refused_pairs``,
    ``waived_peer_tests``, ``staged_pairs``, ``slower_with_peer_access``, ``slow_pairs``, ``impossible_pairs`` (faster
    than PCI Express can be).
    """
    pairs: dict[str, Facts] = {}
    ends: set[str] = set()
    numbers: dict[str, int] = {}  # as the tools number the GPUs: CUDA's order
    for tool, output in outputs:
        names = _names(output, facts)
        for figures in output.figures:
            measurements["figures"].append(_described(tool, figures, names))
        of_pairs = [figures for figures in output.figures if figures.kind in PAIR_KINDS and figures.pairs]
        seen = {
            index for pair in [*output.can_access, *(pair for one in of_pairs for pair in one.pairs)] for index in pair
        }
        ends |= {names(index) for index in (seen | set(output.devices) if of_pairs or output.can_access else seen)}
        for (first, second), can in output.can_access.items():
            pairs.setdefault("%s->%s" % (names(first), names(second)), {})["can_access"] = can
        numbers.update({names(index): index for index in seen | set(output.devices)})
        for figures in of_pairs:
            _take(tool, figures, names, pairs)
    for name, pair in pairs.items():
        source, target = name.split("->", 1)
        pair.update(_least(source, target, facts))
        pair.update(_verdict(pair))
    measurements["pairs"] = {name: {key: pair.get(key) for key in _KEYS} for name, pair in sorted(pairs.items())}
    measurements["devices"] = numbers
    impossible = {
        name: name_impossible(pair.get("bandwidth_gb_s"), pair.get("most_gb_s")) for name, pair in sorted(pairs.items())
    }
    measurements["impossible_pairs"] = ["%s: %s" % (name, said) for name, said in impossible.items() if said]
    _sum_up(measurements, len(ends), outputs)


_KEYS = (
    "can_access", "bandwidth_gb_s", "bandwidth_without_peer_gb_s", "latency_us", "latency_without_peer_us",
    "tool", "least_gb_s",
    "least_basis", "verdict", "reason",
)  # fmt: skip


def _names(output: Output, facts: Facts) -> Any:
    """The PCI address of a tool's device number; GPU0 where neither the tool nor nvidia-smi says which that is."""
    devices = (facts.get("gpus") or {}).get("devices") or {}
    of_smi = {gpu["index"]: where for where, gpu in devices.items() if gpu.get("index") is not None}
    alike = len({gpu.get("name") for gpu in devices.values()}) == 1

    def name(index: int) -> str:
        known = (output.devices.get(index) or {}).get("address")
        # CUDA numbers the fastest first: only among equal cards are its numbers those of nvidia-smi.
        return str(known or (of_smi.get(index) if alike else None) or "GPU%d" % index)

    return name


def _described(tool: str, figures: Figures, names: Any) -> Facts:
    return {
        "tool": tool,
        "kind": figures.kind,
        "method": figures.method,
        "peer": figures.peer,
        "unit": UNITS.get(figures.kind, "GB/s"),
        "size_bytes": figures.size_bytes,
        "value": figures.value,
        "pairs": {"%s->%s" % (names(a), names(b)): round(value, 3) for (a, b), value in sorted(figures.pairs.items())},
    }


def _take(tool: str, figures: Figures, names: Any, pairs: dict[str, Facts]) -> None:
    """Of several figures the best one counts: two methods, or a write and a read, need not be equally fast."""
    if figures.kind not in (BANDWIDTH, LATENCY):
        return
    key = ("bandwidth_%sgb_s" if figures.kind == BANDWIDTH else "latency_%sus") % (
        "without_peer_" if figures.peer is False else ""
    )
    better = max if figures.kind == BANDWIDTH else min
    for (source, target), value in figures.pairs.items():
        pair = pairs.setdefault("%s->%s" % (names(source), names(target)), {})
        before = pair.get(key)
        pair[key] = value if before is None else better(before, value)
        if figures.peer is not False:
            pair["tool"] = tool if pair[key] == value or "tool" not in pair else pair["tool"]


def _least(source: str, target: str, facts: Facts) -> Facts:
    devices, topology = (facts.get("gpus") or {}).get("devices") or {}, facts.get("topology") or {}
    path = ((topology.get("links") or {}).get(source) or {}).get(target)
    speed = ((topology.get("nvlink") or {}).get(source) or {}).get("speed_gb_s")
    ends = tuple({"link": _link(devices.get(where) or {})} for where in (source, target))
    virtual = (facts.get("virtualization") or {}).get("vm")
    # Without the path an NVLink is not known: then the PCI Express link is the least that there is.
    least = expect_bandwidth(path, (ends[0], ends[1]), speed, virtual)
    return {"least_gb_s": least["gb_s"], "least_basis": least["basis"], "most_gb_s": least["most_gb_s"]}


def _link(gpu: Facts) -> Facts:
    """The link as it runs under load: what both ends can do, on the lanes that it has now."""
    generations = [gpu.get(name) for name in ("link_generation_max", "link_generation_host_max")]
    known = [one for one in generations if isinstance(one, int)]
    width = gpu.get("link_width")
    most = gpu.get("link_width_max")
    return {
        "speed_gt_s": _GT_S.get(min(known)) if known else None,
        "width": width if isinstance(width, int) else None,
        "max_width": most if isinstance(most, int) else None,
    }


def _verdict(pair: Facts) -> Facts:
    """`verdict` and `reason`, a sentence with the figures."""
    rate, latency = pair.get("bandwidth_gb_s"), pair.get("latency_us")
    control, control_latency = pair.get("bandwidth_without_peer_gb_s"), pair.get("latency_without_peer_us")
    if pair.get("can_access") is False:
        return {"verdict": "not_usable", "reason": "CUDA offers no peer access (CANNOT Access Peer)"}
    if latency is not None and latency > STAGED_LATENCY_US:
        return {
            "verdict": "staged",
            "reason": "a copy takes %.3g us with peer access on, as through host memory" % latency,
        }
    faster = latency is not None and control_latency is not None and latency * SAME_AS_CONTROL < control_latency
    if rate is not None and control is not None and rate < SLOWER_SHARE * control:
        return {
            "verdict": "slow",
            "reason": "%.3g GB/s with peer access on, %.3g with it off: slower with it" % (rate, control),
        }
    if rate is not None and control is not None and latency is None and rate < SAME_AS_CONTROL * control:
        return {
            "verdict": "unknown",
            "reason": "%.3g GB/s with peer access on, %.3g with it off: only the latency would tell" % (rate, control),
        }
    least = pair.get("least_gb_s")
    if rate is not None and least is not None and rate < least:
        return {"verdict": "slow", "reason": "%.3g GB/s of at least %.3g (%s)" % (rate, least, pair.get("least_basis"))}
    if rate is None and latency is None:
        return {"verdict": "unknown", "reason": "no figure with peer access on"}
    if not faster and latency is None and least is None and (rate or 0.0) < BEYOND_PCI_EXPRESS:
        return {
            "verdict": "unknown",
            "reason": "%.3g GB/s: nothing is known of the link that it should be as fast as" % (rate or 0.0),
        }
    told = ["%.3g GB/s" % rate] if rate is not None else []
    told += ["%.3g us" % latency] if latency is not None else []
    return {"verdict": "ok", "reason": ", ".join(told)}


def _sum_up(measurements: Facts, gpus: int, outputs: list[tuple[str, Output]]) -> None:
    pairs: dict[str, Facts] = measurements["pairs"]

    def sentences(test: Any) -> list[str]:
        return ["%s: %s" % (name, pair["reason"]) for name, pair in pairs.items() if test(pair)]

    peers = [
        test
        for tool, output in outputs
        for test in output.waived
        if "device_to_device" in test and len(output.devices) != 1
    ]
    measurements.update(
        refused_pairs=sentences(lambda pair: pair["verdict"] == "not_usable"),
        waived_peer_tests=list(dict.fromkeys(peers)),
        staged_pairs=sentences(lambda pair: pair["verdict"] == "staged"),
        slower_with_peer_access=sentences(
            lambda pair: pair["verdict"] == "slow" and "slower with it" in pair["reason"]
        ),
        slow_pairs=sentences(lambda pair: pair["verdict"] == "slow" and "slower with it" not in pair["reason"]),
    )
    rates = [
        pair["bandwidth_gb_s"]
        for pair in pairs.values()
        if pair["bandwidth_gb_s"] is not None and pair["can_access"] is not False
    ]
    measurements["lowest_bandwidth_gb_s"] = min(rates, default=None)
    whole = bool(pairs) and len(pairs) == gpus * (gpus - 1)
    usable = [
        pair["can_access"] is True or (pair["can_access"] is None and pair["verdict"] in ("ok", "slow"))
        for pair in pairs.values()
    ]
    measurements["all_usable"] = _all(measurements["refused_pairs"] + peers, whole and all(usable))
    bad = measurements["staged_pairs"] + measurements["slower_with_peer_access"] + measurements["slow_pairs"]
    measurements["all_fast"] = _all(bad, whole and all(pair["verdict"] == "ok" for pair in pairs.values()))
    measurements["data_checked"] = any(output.checks_data for _tool, output in outputs)


def _all(offenders: list[str], known: bool) -> bool | None:
    return False if offenders else True if known else None


def list_undecided(measurements: Facts) -> list[tuple[str, str]]:
    """(tool, why) of pairs about which the figures do not decide; one entry for each reason."""
    pairs = measurements.get("pairs") or {}
    found = {
        (str(pair.get("tool") or "other tools"), str(pair["reason"]))
        for pair in pairs.values()
        if pair["verdict"] == "unknown"
    }
    if measurements["refused_pairs"] and measurements["all_fast"] is None:
        found.add(("other tools", "found pairs without peer access, which are not judged by their speed"))
    elif pairs and not found and measurements["all_fast"] is None:
        found.add(
            ("other tools", "did not measure every pair: their output is cut off, or they saw a part of the GPUs")
        )
    return sorted(found)[:4]
