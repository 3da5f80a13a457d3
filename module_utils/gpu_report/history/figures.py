"""The measured values of one host that are shown over the runs: a handful, each with its worst and its median."""

from __future__ import annotations

import statistics
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

from ...gpu_compare.measures import take_value
from ...gpu_host.evidence.values import parse_mapping


@dataclass(frozen=True)
class Plot:
    """One picture. `lines`: the last part of a figure's name -> what the line is, the one to look at first."""

    title: str
    unit: str
    better: str  # "higher", "lower"
    lines: dict[str, str]


# The part of a figure's name before the last dot -> its picture, in the order in which they are shown.
PLOTS = {
    "p2p_bandwidth": Plot(
        "P2P bandwidth, one way", "GB/s", "higher", {"lowest": "lowest pair", "median": "median pair"}
    ),
    "p2p_latency": Plot(
        "Latency of a 12 KiB copy", "µs", "lower", {"highest": "highest pair", "median": "median pair"}
    ),
    "all_pairs": Plot("All pairs at once", "GB/s", "higher", {"sum": "all pairs"}),
    "loopback": Plot("Bandwidth within a GPU", "GB/s", "higher", {"lowest": "lowest GPU", "median": "median GPU"}),
    "host_link": Plot(
        "Links to the host's memory",
        "GB/s",
        "higher",
        {"to_gpu": "to the GPUs, lowest", "from_gpu": "from them, lowest"},
    ),
    "all_reduce": Plot("All-reduce over all GPUs", "GB/s", "higher", {"configured": "as configured"}),
    "between_hosts": Plot("All-reduce between hosts", "GB/s", "higher", {"bus": "bus bandwidth"}),
    "server_log": Plot("Throughput in the server's log", "tokens/s", "higher", {"median": "median batch"}),
    "server_answer": Plot("Speed of one answer", "tokens/s", "higher", {"one": "one answer"}),
    "server_first_token": Plot("Time to the first token", "s", "lower", {"one": "one answer"}),
    "temperature": Plot(
        "Temperature when looked at", "°C", "lower", {"gpu": "hottest GPU", "memory": "hottest memory"}
    ),
}


def find_plot(prefix: str) -> Plot | None:
    """The picture of a figure's name without its last part; an all-reduce has the number of its bytes behind an @."""
    name, _at, size = prefix.partition("@")
    plot = PLOTS.get(name)
    if plot is None or not size:
        return plot
    count = int(size) if size.isdecimal() and len(size) < 19 else 0
    words = "%d MiB" % (count >> 20) if count >= 1 << 20 else "%d KiB" % (count >> 10)
    return Plot("%s, %s" % (plot.title, words), plot.unit, plot.better, plot.lines)


def measure_host(facts: dict[str, Any]) -> dict[str, float]:
    """``{PLOT.LINE: value}`` from the facts of a report (digest.py); what was not measured is not in it."""
    probe = parse_mapping(facts.get("probe"))
    pairs = [parse_mapping(pair) for pair in parse_mapping(probe.get("pairs")).values()]
    loops = [parse_mapping(found) for found in parse_mapping(probe.get("loopback")).values()]
    cards = [parse_mapping(card) for card in parse_mapping(parse_mapping(facts.get("gpus")).get("devices")).values()]
    found = {
        **_spread("p2p_bandwidth", [_bandwidth(pair) for pair in pairs], "lowest", min),
        **_spread("p2p_latency", [_pick(p, "latency_us", "copy_12k_back_to_back") for p in pairs], "highest", max),
        "all_pairs.sum": take_value(probe.get("all_at_once_gb_s")),
        **_spread("loopback", [_bandwidth(loop) for loop in loops], "lowest", min),
        **_host_links(probe),
        **_all_reduce(probe),
        "between_hosts.bus": _pick(probe, "between_hosts", "bus_bandwidth_gb_s"),
        **_server(parse_mapping(facts.get("server"))),
        "temperature.gpu": _extreme(max, (take_value(card.get("temperature_c")) for card in cards)),
        "temperature.memory": _extreme(max, (take_value(card.get("memory_temperature_c")) for card in cards)),
    }
    return {name: float("%.6g" % value) for name, value in found.items() if value is not None}


def _pick(record: Any, *names: str) -> float | None:
    for name in names:
        record = parse_mapping(record).get(name)
    return take_value(record)


def _bandwidth(record: dict[str, Any]) -> float | None:
    alone = _pick(record, "bandwidth_gb_s", "copy_alone")
    return alone if alone is not None else _pick(record, "bandwidth_gb_s", "copy")


def _spread(name: str, values: list[float | None], word: str, choose: Any) -> dict[str, float | None]:
    known = [value for value in values if value is not None]
    return {name + "." + word: choose(known), name + ".median": statistics.median(known)} if known else {}


def _extreme(choose: Any, values: Iterable[float | None]) -> float | None:
    return choose((value for value in values if value is not None), default=None)


def _host_links(probe: dict[str, Any]) -> dict[str, float | None]:
    links = list(parse_mapping(probe.get("host_links")).values())
    return {
        "host_link." + way: _extreme(min, (_pick(link, "near_gb_s", way) for link in links))
        for way in ("to_gpu", "from_gpu")
    }


def _all_reduce(probe: dict[str, Any]) -> dict[str, float | None]:
    """The largest size: what it reaches is the bandwidth, not the latency."""
    arms = parse_mapping(parse_mapping(probe.get("collective")).get("arms"))
    sizes = parse_mapping(parse_mapping(arms.get("configured")).get("sizes"))
    measured = {
        int(size): value
        for size, found in sizes.items()
        if str(size).isdecimal() and (value := _pick(found, "bus_bandwidth_gb_s")) is not None
    }
    return {"all_reduce@%d.configured" % (size := max(measured)): measured[size]} if measured else {}


def _server(server: dict[str, Any]) -> dict[str, float | None]:
    return {
        "server_log.median": _pick(server, "decode_tokens_per_s"),
        "server_answer.one": _pick(server, "generation", "tokens_per_s"),
        "server_first_token.one": _pick(server, "generation", "first_token_s"),
    }
