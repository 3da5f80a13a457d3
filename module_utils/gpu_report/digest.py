"""The part of the facts that a report keeps, so that it can be read without the host and stays small."""

from __future__ import annotations

from typing import Any

from ..gpu_host.evidence.values import parse_mapping
from . import watched_facts

# Subjects of gpu_facts, whole.
SUBJECTS = ("gpus", "p2p", "topology", "driver", "virtualization", "pci", "iommu", "measurements", "evidence", "errors")
_OF_THE_PROBE = (
    "ran", "skipped_reason", "seconds", "complete", "lowest_bandwidth_gb_s", "verdicts", "explanations", "skipped_gpus",
    "corrupt_under_load",
    "collapsed_under_load", "path_classes", "class_outliers", "ports_of_bad_pairs", "shared_uplinks",
    "unfinished_phases", "link_errors_in_phases", "throttled_in_phases", "kernel_lines_in_phases", "errors",
)  # fmt: skip
_OF_A_HOST_LINK = (
    "node", "near_gb_s", "far_gb_s", "at_once_gb_s", "full_gb_s", "least_gb_s", "basis", "verdict", "reason",
)  # fmt: skip
_OF_A_PHASE = ("budget_s", "seconds", "left")
_OF_A_PAIR = ("path", "path_class", "driver_status", "verdict", "failed_rung", "reason", "least_gb_s", "least_basis")
_OF_CUDA = ("initialised", "result_name", "hung", "detail", "causes", "driver_version")
_OF_THE_COLLECTIVE = (
    "ran", "reason", "verdict", "explanation", "gpus", "wrong", "pairs_without_p2p", "library", "nccl", "diagnostics",
)  # fmt: skip
_OF_THE_ENGINE = ("ran", "reason", "engine", "version", "kind", "used", "why_not", "verdict", "needed", "explanation")
_OF_A_FIGURE = ("median", "min", "max")


def digest_facts(host: dict[str, Any]) -> dict[str, Any]:
    """What is kept of `host` as the checks see it (subject.py).

    The part of gpu_facts, ``probe`` where p2p_facts ran, ``server`` and ``kernel_log`` where they were looked at.
    """
    probe = host.get("probe")
    probed = {"probe": digest_probe(probe)} if isinstance(probe, dict) else {}
    return {**digest_host(host), **probed, **watched_facts.digest_watched(host)}


def digest_host(gpu_host: dict[str, Any]) -> dict[str, Any]:
    """What is kept of the facts of gpu_facts."""
    return {subject: gpu_host.get(subject) for subject in SUBJECTS}


def digest_probe(probe: dict[str, Any]) -> dict[str, Any]:
    """What is kept of the facts of p2p_facts: every figure with its spread, its method once for all pairs (`methods`).

    ``pairs[name]``: path, path_class, driver_status, verdict, failed_rung, reason, least_gb_s, least_basis,
    high_latency, and the figures
    ``bandwidth_gb_s``, ``latency_us``, ``control_latency_us``: ``{name: {median, min, max}}``. ``loopback[address]``:
    the same two figures. ``host_links[address]`` and ``phases[name]``: without the single figures and the counters.
    """
    slow_answers = {str(entry).partition(" ")[0] for entry in probe.get("high_latency_pairs") or ()}
    methods: dict[str, str] = {}
    kept: dict[str, Any] = {name: probe.get(name) for name in _OF_THE_PROBE}
    kept["cuda"] = _some(probe.get("cuda"), _OF_CUDA)
    kept["pairs"] = {
        name: {**_some(pair, _OF_A_PAIR), **_figures(pair, methods), "high_latency": name in slow_answers}
        for name, pair in parse_mapping(probe.get("pairs")).items()
    }
    kept["loopback"] = {
        address: _figures(found, methods) for address, found in parse_mapping(probe.get("loopback")).items()
    }
    kept["many_to_one_gb_s"] = {
        target: _median(parse_mapping(found).get("bandwidth_gb_s"))
        for target, found in parse_mapping(probe.get("many_to_one")).items()
    }
    kept["all_at_once_gb_s"] = _median(parse_mapping(probe.get("all_at_once")).get("bandwidth_gb_s"))
    kept["one_to_many_gb_s"] = {
        source: _median(parse_mapping(found).get("bandwidth_gb_s"))
        for source, found in parse_mapping(probe.get("one_to_many")).items()
    }
    kept["host_links"] = {
        address: _some(link, _OF_A_HOST_LINK) for address, link in parse_mapping(probe.get("host_links")).items()
    }
    kept["phases"] = {name: _some(phase, _OF_A_PHASE) for name, phase in parse_mapping(probe.get("phases")).items()}
    kept["devices"] = sorted(probe.get("devices") or {})
    kept["collective"] = _collective(probe.get("collective"))
    kept["engine_all_reduce"] = _some(probe.get("engine_all_reduce"), _OF_THE_ENGINE)
    kept["between_hosts"] = watched_facts.digest_between_hosts(probe.get("between_hosts"))
    kept["methods"] = methods
    return kept


def _some(record: dict[str, Any] | None, names: tuple[str, ...]) -> dict[str, Any]:
    return {name: parse_mapping(record).get(name) for name in names}


def _median(figure: dict[str, Any] | None) -> Any:
    return parse_mapping(figure).get("median")


def _figures(record: dict[str, Any], methods: dict[str, str]) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for group in ("bandwidth_gb_s", "latency_us", "control_latency_us"):
        figures = {
            name: figure
            for name, figure in parse_mapping(parse_mapping(record).get(group)).items()
            if isinstance(figure, dict) and _median(figure) is not None
        }
        for name, figure in figures.items():
            methods.setdefault("%s.%s" % (group, name), _method(figure))
        if figures:
            found[group] = {name: _some(figure, _OF_A_FIGURE) for name, figure in figures.items()}
    return found


def _method(figure: dict[str, Any]) -> str:
    """'copy_engine, 256 MiB, 5 x 8 transfers, 4 pairs at a time'."""
    size = "%s MiB" % figure["size_mib"] if figure.get("size_mib") else "%s bytes" % figure.get("size_bytes")
    beside = ", %s pairs at a time" % figure["concurrent"] if (figure.get("concurrent") or 1) > 1 else ""
    return "%s, %s, %s x %s transfers%s" % (
        figure.get("method"),
        size,
        figure.get("iterations"),
        figure.get("transfers"),
        beside,
    )


def _collective(found: dict[str, Any] | None) -> dict[str, Any]:
    """The all-reduce: verdict, and of each arm its state and sizes.

    Sizes are ``{bytes: {latency_us, bus_bandwidth_gb_s, wrong}}``.
    """
    kept = _some(found, _OF_THE_COLLECTIVE)
    kept["arms"] = {
        name: {
            **_some(arm, ("state", "seconds", "detail", "torch", "nccl", "cuda")),
            "sizes": parse_mapping(parse_mapping(arm).get("sizes")),
        }
        for name, arm in parse_mapping(parse_mapping(found).get("arms")).items()
    }
    return kept
