"""Samples of each GPU: what it is, its link, its temperatures, its errors."""

from __future__ import annotations

import itertools
from typing import Any

from ...gpu_host.evidence.values import parse_mapping
from .exposition import NOT_APPLICABLE, Samples, parse_number

Facts = dict[str, Any]
MIB = 2.0**20
SEVERITIES = ("fatal", "application", "notice")
# metric, fact of a GPU, factor
_VALUES = (
    ("gpu_lost", "lost", 1.0),
    ("gpu_memory_bytes", "memory_total_mib", MIB),
    ("gpu_bar1_bytes", "bar1_mib", MIB),
    ("gpu_power_limit_watts", "power_limit_w", 1.0),
    ("gpu_pcie_link_width_lanes", "link_width", 1.0),
    ("gpu_pcie_link_max_width_lanes", "link_width_max", 1.0),
    ("gpu_pcie_link_generation", "link_generation", 1.0),
    ("gpu_pcie_link_max_generation", "link_generation_max", 1.0),
    ("gpu_pcie_replays_total", "link_replays", 1.0),
)
_ERRORS = (
    ("gpu_ecc_volatile_errors_total", "ecc_volatile"),
    ("gpu_ecc_aggregate_errors_total", "ecc_aggregate"),
    ("gpu_remapped_rows", "remapped_rows"),
)
_SENSORS = (("gpu", "temperature_c"), ("memory", "memory_temperature_c"))


def add_gpu_samples(samples: Samples, facts: Facts) -> None:
    """The GPUs that the driver shows, and the Xids of the kernel log."""
    gpus = parse_mapping(facts.get("gpus"))
    if gpus.get("count") is not None or gpus.get("installed") is not False:
        samples.add_value("gpus", gpus.get("count"))  # without nvidia-smi nothing shows any, as on a Proxmox host
    devices = parse_mapping(gpus.get("devices"))
    for address, found in devices.items():
        _add_gpu(samples, str(address), parse_mapping(found))
    if isinstance(facts.get("kernel_log"), dict):
        _add_xids(samples, facts["kernel_log"], [str(address) for address in devices])


def _add_gpu(samples: Samples, gpu: str, found: Facts) -> None:
    index, name, uuid, vbios = (found.get(key) for key in ("index", "name", "uuid", "vbios_version"))
    samples.add_info("gpu_info", gpu=gpu, index=index, name=name, uuid=uuid, vbios=vbios)
    for metric, key, factor in _VALUES:
        samples.add_value(metric, found.get(key), factor, gpu=gpu)
    for sensor, key in _SENSORS:
        samples.add_value("gpu_temperature_celsius", found.get(key), gpu=gpu, sensor=sensor)
    for metric, key in _ERRORS:
        counts = found.get(key)
        if counts == NOT_APPLICABLE:
            continue
        for error in ("correctable", "uncorrectable"):
            samples.add_value(metric, parse_mapping(counts).get(error), gpu=gpu, error=error)


def _add_xids(samples: Samples, log: Facts, gpus: list[str]) -> None:
    """Xids by GPU. That there was none is known of a log that reaches back to the boot only."""
    xids = log.get("xids")
    counts: dict[tuple[str, str], float] = {}
    for item in xids if isinstance(xids, list) else ():
        gpu, severity = str(item.get("address") or ""), str(item.get("severity") or "")
        counts[gpu, severity] = counts.get((gpu, severity), 0.0) + (parse_number(item.get("count")) or 1.0)
        samples.add_info("gpu_xid_info", gpu=gpu, xid=item.get("xid"), severity=severity)
    whole = isinstance(xids, list) and log.get("covers_boot") is True
    missing = [key for key in itertools.product(gpus, SEVERITIES) if key not in counts]
    if whole:
        counts.update(dict.fromkeys(missing, 0.0))
    else:
        samples.count_unknown("gpu_xid_events_total", len(missing))
    for (gpu, severity), count in counts.items():
        samples.add_value("gpu_xid_events_total", count, gpu=gpu, severity=severity)
