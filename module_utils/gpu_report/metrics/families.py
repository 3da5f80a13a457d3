"""Every metric that can be written: its type, its labels and its one sentence. A sample of another one is a fault.

Names and units follow https://prometheus.io/docs/practices/naming/: base units (bytes, seconds, celsius), ``_total``
for counters only, ``_info`` for a gauge that is always 1 and says something in its labels. Every metric has the label
``host``, the name in the inventory, before those that stand here.
"""

from __future__ import annotations

from dataclasses import dataclass

GAUGE, COUNTER = "gauge", "counter"
PREFIX = "gpu_host_"
UNKNOWN_VALUES = PREFIX + "unknown_values"


@dataclass(frozen=True)
class Family:
    """One metric. `number`: how many samples there are per host, in words; `most`: the same for a host with 8 GPUs."""

    name: str
    help: str
    labels: tuple[str, ...]
    number: str
    most: int
    type: str = GAUGE


# Bounds for a host with 8 GPUs. Checks and settings have no natural bound; these leave room to grow.
GPUS, PAIRS, CHECKS, SETTINGS, SIZES = 8, 56, 400, 64, 12
_ONE, _CHECK, _GPU, _PAIR = ("1", 1), ("1 per check", CHECKS), ("1 per GPU", GPUS), ("1 per directed pair", PAIRS)
_WAY = ("2 per GPU", 2 * GPUS)
_ENDS = ("source", "destination")
_ARMS = ("1 per arm and size", 3 * SIZES)
_ROWS: tuple[tuple[str, str, tuple[str, ...], tuple[str, int]], ...] = (
    ("info", "What the host is: always 1.",
     ("placement", "driver", "gpu_model", "recorded", "schema"), _ONE),
    ("last_run_timestamp_seconds", "Unix time at which the run ended that wrote this.", (), _ONE),
    ("run_complete", "Whether that run came to its end (1) or was interrupted (0).", (), _ONE),
    ("reachable", "Whether the host could be reached (1) or not (0) in that run.", (), _ONE),
    ("validated", "Whether that run gave a verdict (1) or not (0).", (), _ONE),
    ("partial_validation", "Whether only a part was judged (1), chosen by tags for instance.", (), _ONE),
    ("ready", "The verdict: ready (1) or not (0). Without a verdict on the whole host there is no sample.", (), _ONE),
    ("evidence_timestamp_seconds", "Unix time at which the evidence of a recorded host was taken.", (), _ONE),
    ("unready_causes", "Checks that make the host unready and that no other finding explains.", (), _ONE),
    ("unproven", "Statements that nothing failed for, and that were not proven.", (), _ONE),
    ("problems", "Faults of the selection of checks, of the waivers or of a file that could not be written.", (), _ONE),
    ("baseline_changes", "Facts that changed since the baseline of the host.", (), _ONE),
    ("checks", "Checks by status.", ("status",), ("6", 6)),
    ("check_passed", "Whether the check passed (1) or failed (0). No sample: unknown, broken, waived or skipped.",
     ("check",), _CHECK),
    ("finding_info", "A check that failed, is unknown, broke or is waived: always 1.",
     ("check", "severity", "status", "root_cause"), ("1 per finding", CHECKS)),
    ("gpus", "GPUs that the driver shows.", (), _ONE),
    ("gpu_info", "What the GPU is: always 1.", ("gpu", "index", "name", "uuid", "vbios"), _GPU),
    ("gpu_lost", "Whether the driver lost the GPU (1).", ("gpu",), _GPU),
    ("gpu_temperature_celsius", "Temperature when the host was looked at.", ("gpu", "sensor"), _WAY),
    ("gpu_memory_bytes", "Memory of the GPU.", ("gpu",), _GPU),
    ("gpu_bar1_bytes", "Size of BAR1.", ("gpu",), _GPU),
    ("gpu_power_limit_watts", "Power limit in force.", ("gpu",), _GPU),
    ("gpu_pcie_link_width_lanes", "Lanes of the PCIe link in use.", ("gpu",), _GPU),
    ("gpu_pcie_link_max_width_lanes", "Lanes that GPU and slot could use.", ("gpu",), _GPU),
    ("gpu_pcie_link_generation", "PCIe generation of the link in use, lower while the GPU is idle.", ("gpu",), _GPU),
    ("gpu_pcie_link_max_generation", "PCIe generation that GPU and slot could use.", ("gpu",), _GPU),
    ("gpu_pcie_replays_total", "Replays on the PCIe link, by the counter of the driver.", ("gpu",), _GPU),
    ("gpu_ecc_volatile_errors_total", "ECC errors since the driver was loaded.", ("gpu", "error"), _WAY),
    ("gpu_ecc_aggregate_errors_total", "ECC errors in the life of the GPU.", ("gpu", "error"), _WAY),
    ("gpu_remapped_rows", "Rows of memory that were remapped.", ("gpu", "error"), _WAY),
    ("gpu_xid_events_total", "Xids in the kernel log of this boot.", ("gpu", "severity"),
     ("3 per GPU, and 3 without one", 3 * GPUS + 3)),
    ("gpu_xid_info", "An Xid that stands in the kernel log of this boot: always 1.", ("gpu", "xid", "severity"),
     ("1 per GPU and Xid", 8 * GPUS)),
    ("p2p_pair_info", "What is known of the pair: always 1. driver_status as nvidia-smi topo -p2p says it, verdict of "
     "the probe.", (*_ENDS, "source_index", "destination_index", "path", "driver_status", "verdict"), _PAIR),
    ("p2p_pair_granted", "Whether the driver grants reading and writing (1) or not (0).", _ENDS, _PAIR),
    ("p2p_pair_proven", "Whether the probe found the bytes delivered at full speed (1) or not (0).", _ENDS, _PAIR),
    ("p2p_pair_bandwidth_bytes_per_second", "Median bandwidth of copies from source to destination.", _ENDS, _PAIR),
    ("p2p_pair_latency_seconds", "Median latency of a copy of 12 KiB.", _ENDS, _PAIR),
    ("host_link_bandwidth_bytes_per_second", "Bandwidth between the near host memory and the GPU, one GPU at a time.",
     ("gpu", "direction"), _WAY),
    ("host_link_concurrent_bandwidth_bytes_per_second", "The same with all GPUs at once.", ("gpu", "direction"), _WAY),
    ("host_link_least_bandwidth_bytes_per_second", "The least that a good link of this kind reaches.", ("gpu",), _GPU),
    ("all_reduce_correct", "Whether the all-reduce by NCCL gave the exact sum (1), or was wrong, hung or failed (0).",
     (), _ONE),
    ("all_reduce_bus_bandwidth_bytes_per_second", "Bus bandwidth of the all-reduce. arm: configured, p2p_disabled, "
     "one_process.", ("arm", "size_bytes"), _ARMS),
    ("all_reduce_duration_seconds", "Median time of the all-reduce.", ("arm", "size_bytes"), _ARMS),
    ("group_all_reduce_correct", "The same as all_reduce_correct, between the hosts that serve one model together.",
     ("group",), _ONE),
    ("group_all_reduce_bus_bandwidth_bytes_per_second", "Median bus bandwidth of the largest all-reduce between those "
     "hosts.", ("group", "size_bytes"), _ONE),
    ("server_info", "The inference server: always 1.", ("engine", "version", "model", "in_container"), _ONE),
    ("server_state", "1 for the state that the server is in, 0 for the others.", ("state",), ("7", 7)),
    ("server_ready", "Whether the server is ready (1) or not (0). No sample where there is none.", (), _ONE),
    ("server_start_time_seconds", "Unix time at which the process of the server started.", (), _ONE),
    ("server_setting_info", "A setting on the command line of the server: always 1.", ("setting", "value"),
     ("1 per setting, 64 at most", SETTINGS)),
    ("server_setting_differences", "Settings that differ from those that the inventory means.", (), _ONE),
    ("server_generation_correct", "Whether the one answer that was asked for is sane (1) or not (0).", (), _ONE),
    ("server_generation_tokens_per_second", "Tokens per second of that one answer.", (), _ONE),
    ("server_first_token_seconds", "Time to the first token of that answer.", (), _ONE),
    ("server_decode_tokens_per_second", "Median decode throughput in the log of the server.", (), _ONE),
)  # fmt: skip

FAMILIES: dict[str, Family] = {
    PREFIX + name: Family(PREFIX + name, text, labels, *number, COUNTER if name.endswith("_total") else GAUGE)
    for name, text, labels, number in _ROWS
}
FAMILIES[UNKNOWN_VALUES] = Family(
    UNKNOWN_VALUES,
    "Samples of `metric` that are missing because their value is unknown.",
    ("metric",),
    "1 per metric with an unknown value",
    len(_ROWS),
)


def count_most_samples() -> int:
    """The samples that one host with 8 GPUs can have at most."""
    return sum(family.most for family in FAMILIES.values())


def list_table_lines() -> list[str]:
    """The table of docs/metrics.md."""
    lines = ["| metric | type | labels beside `host` | samples per host | what it says |", "|---|---|---|---|---|"]
    for family in FAMILIES.values():
        labels = ", ".join("`%s`" % label for label in family.labels) or "none"
        lines.append("| `%s` | %s | %s | %s | %s |" % (family.name, family.type, labels, family.number, family.help))
    return lines
