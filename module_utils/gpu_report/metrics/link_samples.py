"""Samples of each directed pair of GPUs, of the links to the host, and of the all-reduces."""

from __future__ import annotations

from typing import Any

from ...gpu_host.evidence.values import parse_mapping
from .. import matrix
from .exposition import Samples

Facts = dict[str, Any]
GIGA, MICRO = 1e9, 1e-6
# The verdicts of an all-reduce that say something about P2P; of others, and of one that did not run, nothing is known.
_CORRECT = {"ok": 1, "wrong_values": 0, "hangs": 0, "fails": 0, "no_connection": 0}


def add_pair_samples(samples: Samples, facts: Facts) -> None:
    """Every directed pair of the GPUs that are known: granted by the driver, proven and measured by the probe."""
    gpus = list_all_gpus(facts)
    probe = parse_mapping(facts.get("probe"))
    pairs = parse_mapping(probe.get("pairs")) if probe.get("ran") else {}
    for source in gpus:
        for target in gpus:
            if source.address != target.address:
                name = "%s->%s" % (source.address, target.address)
                _add_pair(samples, facts, source, target, parse_mapping(pairs.get(name)))


def list_all_gpus(facts: Facts) -> list[matrix.Gpu]:
    """The GPUs that are part of a pair, and after them those that the driver shows and of whose pairs nothing is
    known."""
    found = matrix.list_gpus(facts)
    known = {gpu.address for gpu in found}
    devices = parse_mapping(parse_mapping(facts.get("gpus")).get("devices"))
    for address, gpu in devices.items():
        if address not in known:
            index = parse_mapping(gpu).get("index")
            found.append(matrix.Gpu(matrix.NO_VALUE if index is None else str(index), str(address)))
    return found


def _add_pair(samples: Samples, facts: Facts, source: matrix.Gpu, target: matrix.Gpu, pair: Facts) -> None:
    ends: Facts = {"source": source.address, "destination": target.address}
    read, write = (_look_up(facts, "p2p", name, ends) for name in ("read", "write"))
    told = [str(status) for status in (read, write) if status is not None]
    status = told[0] if len(set(told)) == 1 and len(told) == 2 else "/".join(told)
    verdict = pair.get("verdict")
    samples.add_info(
        "p2p_pair_info",
        **ends,
        source_index=source.label if source.label != matrix.NO_VALUE else None,
        destination_index=target.label if target.label != matrix.NO_VALUE else None,
        path=_look_up(facts, "topology", "links", ends) or pair.get("path"),
        driver_status=status,
        verdict=verdict,
    )
    refused = any(one != "OK" for one in told)
    samples.add_value("p2p_pair_granted", 0 if refused else 1 if len(told) == 2 else None, **ends)
    samples.add_value("p2p_pair_proven", None if verdict in (None, "unknown") else verdict == "ok", **ends)
    bandwidth, latency = parse_mapping(pair.get("bandwidth_gb_s")), parse_mapping(pair.get("latency_us"))
    copy = bandwidth.get("copy_alone") or bandwidth.get("copy")
    samples.add_value("p2p_pair_bandwidth_bytes_per_second", parse_mapping(copy).get("median"), GIGA, **ends)
    median = parse_mapping(latency.get("copy_12k_back_to_back")).get("median")
    samples.add_value("p2p_pair_latency_seconds", median, MICRO, **ends)


def _look_up(facts: Facts, subject: str, name: str, ends: Facts) -> Any:
    rows = parse_mapping(parse_mapping(facts.get(subject)).get(name))
    return parse_mapping(rows.get(ends["source"])).get(ends["destination"])


def add_host_link_samples(samples: Samples, facts: Facts) -> None:
    """The links between the GPUs and the memory of the host, as the probe measured them."""
    probe = parse_mapping(facts.get("probe"))
    if not probe.get("ran"):
        return
    for gpu, found in parse_mapping(probe.get("host_links")).items():
        link = parse_mapping(found)
        for direction in ("to_gpu", "from_gpu"):
            for metric, key in (
                ("host_link_bandwidth_bytes_per_second", "near_gb_s"),
                ("host_link_concurrent_bandwidth_bytes_per_second", "at_once_gb_s"),
            ):
                value = parse_mapping(link.get(key)).get(direction)
                samples.add_value(metric, value, GIGA, gpu=gpu, direction=direction)
        samples.add_value("host_link_least_bandwidth_bytes_per_second", link.get("least_gb_s"), GIGA, gpu=gpu)


def add_all_reduce_samples(samples: Samples, facts: Facts) -> None:
    """The all-reduce on the host where there are GPUs enough for one, and the one between hosts where it was asked
    for."""
    probe = parse_mapping(facts.get("probe"))
    collective = parse_mapping(probe.get("collective"))
    if len(list_all_gpus(facts)) > 1:
        samples.add_value("all_reduce_correct", _CORRECT.get(str(collective.get("verdict"))))
    for arm, found in parse_mapping(collective.get("arms")).items():
        for size, figures in parse_mapping(parse_mapping(found).get("sizes")).items():
            labels = {"arm": arm, "size_bytes": size}
            right = figures if isinstance(figures, dict) and figures.get("wrong") == 0 else {}
            rate, median = right.get("bus_bandwidth_gb_s"), parse_mapping(right.get("latency_us")).get("median")
            samples.add_value("all_reduce_bus_bandwidth_bytes_per_second", rate, GIGA, **labels)
            samples.add_value("all_reduce_duration_seconds", median, MICRO, **labels)
    between = parse_mapping(probe.get("between_hosts"))
    if between.get("asked"):
        _add_group(samples, between)


def _add_group(samples: Samples, between: Facts) -> None:
    figure, group = parse_mapping(between.get("bus_bandwidth_gb_s")), between.get("group")
    correct, rate = _CORRECT.get(str(between.get("verdict"))), figure.get("median")
    if group is None:
        correct = rate = None
    size = figure.get("size_bytes")
    samples.add_value("group_all_reduce_correct", correct, group=group)
    name = "group_all_reduce_bus_bandwidth_bytes_per_second"
    samples.add_value(name, None if size is None else rate, GIGA, group=group, size_bytes=size)
