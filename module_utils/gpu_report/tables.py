"""The facts of one host in words and rows, for the HTML and the Markdown report. What is not known reads "unknown"."""

from __future__ import annotations

import statistics
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

from ..gpu_host.virtualization import PLACEMENTS
from . import handed_in, matrix, phrases

UNKNOWN = "unknown"
_WAYS = {
    "bandwidth_gb_s": {
        "copy_alone": "copy engine, one way, alone",
        "copy": "copy engine, one way",
        "both_ways": "copy engine, both ways at once",
        "sm_store": "kernel stores",
        "sm_load": "kernel loads",
        "control_copy": "copy engine, peer access off",
    },
    "latency_us": {
        "copy_12k_back_to_back": "12 KiB copies back to back",
        "copy_12k_synchronised": "one 12 KiB copy, synchronised",
        "flag_round_trip": "flag there and back, by kernels",
        "control_flag_round_trip": "flag there and back, through host memory",
    },
}
_REASONS, _PAIRS = 8, 3  # reasons that are told, and pairs that are named for each


@dataclass(frozen=True)
class Table:
    """`numbers`: columns that are set to the right."""

    head: tuple[str, ...]
    rows: Sequence[tuple[str, ...]]
    numbers: tuple[int, ...] = ()


def format_fact(value: Any, unit: str = "") -> str:
    """A fact as a word: None is unknown, True is on, "n/a" stays."""
    if value is None:
        return UNKNOWN
    if isinstance(value, bool):
        return "on" if value else "off"
    if isinstance(value, float):
        value = "%g" % value
    return "%s %s" % (value, unit) if unit and value != "n/a" else str(value)


def list_overview(facts: dict[str, Any]) -> list[tuple[str, str]]:
    """(what, value) lines about the machine; only those of which something is known."""
    virtual, driver, gpus = (facts.get(name) or {} for name in ("virtualization", "driver", "gpus"))
    dmi, cpu = virtual.get("dmi") or {}, virtual.get("cpu") or {}
    evidence = facts.get("evidence") or {}
    models = gpus.get("models") or sorted(
        {str(gpu.get("name")) for gpu in ((facts.get("pci") or {}).get("gpus") or {}).values()}
    )
    count = gpus.get("count")
    lines = [
        ("Placement", PLACEMENTS.get(str(virtual.get("placement")), virtual.get("placement"))),
        ("Machine", " ".join(str(dmi[name]) for name in ("sys_vendor", "product_name") if dmi.get(name))),
        ("CPU", cpu.get("model_name")),
        (
            "GPUs",
            "%s × %s" % (format_fact(count), ", ".join(models)) if models else None if count is None else str(count),
        ),
        ("Driver", _driver(driver, gpus)),
        ("Chipset", virtual.get("chipset")),
        ("IOMMU", (facts.get("iommu") or {}).get("state")),
        ("P2P", summarise_p2p(facts) if facts.get("p2p") else None),
    ]
    loose = handed_in.find_pieces({"facts": facts})
    if loose:
        kind = (
            "a recorded bundle and loose pieces"
            if loose.get("capture")
            else "loose pieces that were handed in, not a capture"
        )
        lines.append(("Evidence", kind + ", not the live host"))
        lines.append(("Recognised", handed_in.shorten_list(handed_in.list_recognised(loose), 60)))
        lines.append(("Not read", handed_in.shorten_list(handed_in.list_unrecognised(loose), 30)))
    elif evidence.get("recorded"):
        lines.append(
            (
                "Evidence",
                "a recorded bundle, not the live host" + (" (reconstructed)" if evidence.get("reconstructed") else ""),
            )
        )
    return [(name, str(value)) for name, value in lines if value]


def _driver(driver: dict[str, Any], gpus: dict[str, Any]) -> str | None:
    version = driver.get("version") or gpus.get("driver_version")
    if not version:
        return "not loaded" if driver.get("loaded") is False else None
    notes = [str(driver[name]) for name in ("flavor",) if driver.get(name)]
    cuda = gpus.get("cuda_version")
    return "%s%s" % (
        version,
        " (%s)" % ", ".join([*notes, *(["CUDA up to %s" % cuda] if cuda else [])]) if notes or cuda else "",
    )


def summarise_p2p(facts: dict[str, Any]) -> str:
    """One phrase: '56 of 56 pairs proven', '56 of 56 pairs granted (not proven)', 'one GPU', 'no nvidia-smi',
    'unknown'."""
    state, probe = facts.get("p2p") or {}, facts.get("probe") or {}
    verdicts = probe.get("verdicts") or {}
    if probe.get("ran") and verdicts.get("pairs"):
        return "%d of %s proven" % (verdicts.get("ok", 0), _pairs(verdicts["pairs"]))
    count = state.get("gpu_count")
    if count is None:
        return "no nvidia-smi" if (facts.get("gpus") or {}).get("installed") is False else UNKNOWN
    if count < 2:
        return "no GPU" if count == 0 else "one GPU"
    total = state.get("pair_count")
    granted = len(state.get("granted_pairs") or ())
    why = ", ".join(str(entry.get("status")) for entry in state.get("blocked_by_status") or ())
    unknown = len(state.get("unknown_pairs") or ())
    unmeasured = "not proven" if granted else ""
    notes = ", ".join(filter(None, (why, "%d unknown" % unknown if unknown else "", unmeasured)))
    return "%d of %s granted%s" % (granted, _pairs(total), " (%s)" % notes if notes else "")


def _pairs(total: Any) -> str:
    return "%s pairs" % total


def build_gpu_table(facts: dict[str, Any]) -> Table | None:
    """The GPU table: those of nvidia-smi in its order, then those that only the PCI bus shows.

    None where there is none.
    """
    seen, on_bus = (facts.get("gpus") or {}).get("devices") or {}, (facts.get("pci") or {}).get("gpus") or {}
    if not seen and not on_bus:
        return None
    in_order = sorted(
        seen, key=lambda address: (seen[address].get("index") is None, seen[address].get("index") or 0, address)
    )
    rows = [_gpu(address, seen[address], on_bus.get(address) or {}, facts) for address in in_order]
    for address in sorted(set(on_bus) - set(seen)):
        bound = on_bus[address].get("driver")
        name = "%s (not shown by nvidia-smi; driver: %s)" % (
            format_fact(on_bus[address].get("name")),
            UNKNOWN if bound is None else bound or "none",
        )
        rows.append(("–", address, describe_link(on_bus[address].get("link")), *["–"] * 6, name))
    head = ("GPU", "PCI address", "PCIe link", "BAR1", "Memory used", "ECC", "Temp.", "Power", "NUMA node", "Name")
    return Table(head, rows, (3, 4, 6, 7, 8))


def _gpu(address: str, gpu: dict[str, Any], bus: dict[str, Any], facts: dict[str, Any]) -> tuple[str, ...]:
    if gpu.get("lost"):
        return (
            format_fact(gpu.get("index")),
            address,
            describe_link(bus.get("link")),
            *["–"] * 6,
            "LOST: %s" % format_fact(gpu.get("name") or bus.get("name")),
        )
    generation, width = (gpu.get("link_" + name) for name in ("generation", "width"))
    most = gpu.get("link_generation_max"), gpu.get("link_width_max")
    in_topology = ((facts.get("topology") or {}).get("gpus") or {}).get(address) or {}
    node = in_topology.get("numa_node") if bus.get("numa_node") is None else bus["numa_node"]
    ecc = format_fact(gpu.get("ecc"))
    errors = [(gpu.get("ecc_volatile") or {}).get(kind) for kind in ("correctable", "uncorrectable")]
    if any(isinstance(number, int) and number for number in errors):
        ecc += ", errors: %s corrected, %s not" % tuple(format_fact(number) for number in errors)
    return (
        format_fact(gpu.get("index")),
        address,
        UNKNOWN
        if generation is None and width is None
        else "gen %s, x%s" % (_of(generation, most[0]), _of(width, most[1])),
        _gib(gpu.get("bar1_mib")),
        _part(_gib(gpu.get("memory_used_mib")), _gib(gpu.get("memory_total_mib"))),
        ecc,
        format_fact(gpu.get("temperature_c"), "°C"),
        _part(_watts(gpu.get("power_draw_w")), _watts(gpu.get("power_limit_w"))),
        format_fact(node),
        format_fact(gpu.get("name")),
    )


def _of(value: Any, most: Any) -> str:
    return format_fact(value) if value is None or most is None or value == most else "%s of %s" % (value, most)


def _part(value: str, whole: str) -> str:
    return UNKNOWN if value == whole == UNKNOWN else "%s of %s" % (value, whole)


def _gib(mib: Any) -> str:
    return (
        "%.1f GiB" % (mib / 1024)
        if isinstance(mib, (int, float)) and mib % 1024
        else "%d GiB" % (mib // 1024)
        if _number(mib)
        else format_fact(mib)
    )


def _watts(value: Any) -> str:
    return "%.0f W" % value if _number(value) else format_fact(value)


def _number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def describe_link(state: dict[str, Any] | None) -> str:
    """'2.5 of 32 GT/s, x8 of x16' from a link of the PCI facts."""
    state = state or {}
    speed, width, fastest, widest = (state.get(name) for name in ("speed_gt_s", "width", "max_speed_gt_s", "max_width"))
    if speed is None and width is None:
        return UNKNOWN
    slow = " of %g" % fastest if fastest is not None and fastest != speed else ""
    narrow = " of x%s" % widest if widest is not None and widest != width else ""
    return "%s%s GT/s, %s%s" % (
        "unknown" if speed is None else "%g" % speed,
        slow,
        "x%s" % width if width is not None else UNKNOWN,
        narrow,
    )


def build_figure_table(facts: dict[str, Any]) -> Table | None:
    """What the probe measured, over all pairs: lowest, median and highest of the pairs' medians, and how."""
    probe = facts.get("probe") or {}
    measured = [*(probe.get("pairs") or {}).values()] or [*(probe.get("loopback") or {}).values()]
    methods = probe.get("methods") or {}
    rows = [
        row
        for group in ("bandwidth_gb_s", "latency_us", "control_latency_us")
        for row in _figure_rows(measured, group, methods)
    ]
    return Table(("Figure", "Lowest", "Median", "Highest", "Unit", "Method"), rows, (1, 2, 3)) if rows else None


def _figure_rows(measured: list[dict[str, Any]], group: str, methods: dict[str, str]) -> Iterator[tuple[str, ...]]:
    found: dict[str, list[float]] = {}
    for pair in measured:
        for name, figure in (pair.get(group) or {}).items():
            found.setdefault(name, []).append(float(figure["median"]))
    control = group.startswith("control_")
    known = _WAYS["latency_us" if control else group]
    for name in [*(way for way in known if way in found), *(way for way in found if way not in known)]:
        values = found[name]
        title = known.get(name, name) + (", peer access off" if control else "")
        ends = (matrix.format_figure(value) for value in (min(values), statistics.median(values), max(values)))
        yield (title, *ends, "GB/s" if group == "bandwidth_gb_s" else "µs", methods.get("%s.%s" % (group, name), ""))


def build_all_reduce_table(facts: dict[str, Any]) -> Table | None:
    """The all-reduce, size by size: with P2P as configured, and without it and in one process beside that."""
    arms = ((facts.get("probe") or {}).get("collective") or {}).get("arms") or {}
    titles = {"configured": "", "p2p_disabled": ", P2P off", "one_process": ", one process"}
    shown = {
        name: (arms.get(name) or {}).get("sizes") or {} for name in titles if name != "one_process" or name in arms
    }
    rows = []
    for size in sorted({size for sizes in shown.values() for size in sizes}, key=int):
        found = [sizes.get(size) or {} for sizes in shown.values()]
        wrong = ", ".join(format_fact(arm.get("wrong")) for arm in found)
        rows.append((_bytes(int(size)), *(cell for arm in found for cell in _all_reduce(arm)), wrong))
    head = ["Size"]
    for name in shown:
        head += ["Time" + titles[name], "Bus bandwidth" + titles[name]]
    wrong = "Wrong values (with, without P2P%s)" % (", in one process" if "one_process" in shown else "")
    return Table((*head, wrong), rows, tuple(range(1, len(head) + 1))) if rows else None


def _all_reduce(figures: dict[str, Any]) -> tuple[str, ...]:
    median, rate = (figures.get("latency_us") or {}).get("median"), figures.get("bus_bandwidth_gb_s")
    return tuple(
        "%s %s" % (matrix.format_figure(value), unit) if value is not None else UNKNOWN
        for value, unit in ((median, "µs"), (rate, "GB/s"))
    )


def _bytes(size: int) -> str:
    return "%d MiB" % (size >> 20) if size >= 1 << 20 else "%d KiB" % (size >> 10)


def list_probe_notes(facts: dict[str, Any]) -> list[str]:
    """What else the probe says, in sentences: that it did not run and why, CUDA's state, load, faults."""
    probe = facts.get("probe")
    if not probe:
        return []
    return list(_notes(probe, {gpu.address: gpu.label for gpu in matrix.list_gpus(facts)}))


def _notes(probe: dict[str, Any], labels: dict[str, str]) -> Iterator[str]:
    cuda = probe.get("cuda") or {}
    if not probe.get("ran"):
        yield "The probe did not run: %s." % (probe.get("skipped_reason") or "no reason was given")
    elif probe.get("seconds") is not None:
        gpus = phrases.format_count(len(probe.get("devices") or ()), "GPU")
        alone = (
            ""
            if probe.get("pairs")
            else "; with one there is no pair, so it copied to itself"
            if probe.get("loopback")
            else ""
        )
        yield "Measured on %s in %g s%s." % (gpus, probe["seconds"], alone)
    if cuda.get("initialised") is False:
        causes = "; ".join(map(str, cuda.get("causes") or ()))
        yield "CUDA does not initialise: %s.%s" % (
            cuda.get("result_name") or "no answer",
            " Causes: %s." % causes if causes else "",
        )
    into = {target: value for target, value in (probe.get("many_to_one_gb_s") or {}).items() if value is not None}
    if into:
        least, most = (choose(into, key=lambda target: into[target]) for choose in (min, max))
        low, high = matrix.format_figure(into[least]), matrix.format_figure(into[most])
        spread = (
            "%s GB/s together" % low
            if low == high
            else "%s to %s GB/s together, least into GPU %s" % (low, high, labels.get(least, least))
        )
        yield "All others into one GPU at once: %s." % spread
    if probe.get("all_at_once_gb_s") is not None:
        yield "All pairs at once: %s GB/s together." % matrix.format_figure(probe["all_at_once_gb_s"])
    for name, text in (
        ("corrupt_under_load", "Corrupt under load"),
        ("collapsed_under_load", "Collapsed under load"),
        ("skipped_gpus", "Left out"),
    ):
        if probe.get(name):
            yield "%s: %s." % (text, "; ".join(map(str, probe[name])))
    all_reduce = probe.get("collective") or {}
    if all_reduce.get("pairs_without_p2p"):
        yield "NCCL does not use P2P: %s." % phrases.join_names([str(pair) for pair in all_reduce["pairs_without_p2p"]])
    if all_reduce.get("verdict"):
        because = all_reduce.get("explanation")
        yield "All-reduce: %s%s." % (str(all_reduce["verdict"]).replace("_", " "), ": %s" % because if because else "")
        for arm, state in (all_reduce.get("arms") or {}).items():
            if state.get("state") != "finished":
                yield "All-reduce, %s: %s, %s." % (
                    arm.replace("_", " "),
                    format_fact(state.get("state")),
                    state.get("detail") or "no reason was given",
                )
    elif all_reduce.get("reason"):
        yield "All-reduce: not run (%s)." % all_reduce["reason"]
    own = probe.get("engine_all_reduce") or {}
    if own.get("ran") and own.get("verdict"):
        yield "The all-reduce of %s %s: %s." % (own.get("engine"), own.get("version"), _name_engine_verdict(own))
    elif own.get("reason"):
        yield "The engine's own all-reduce: not run (%s)." % own["reason"]


def _name_engine_verdict(own: dict[str, Any]) -> str:
    """'right (CustomAllReduceV2)', 'not used here: ...', 'needs --disable-custom-all-reduce: ...'."""
    if own["verdict"] == "ok":
        return "right (%s)" % own.get("kind")
    if own["verdict"] == "not_used":
        return "not used here: %s" % (own.get("why_not") or "no reason was given")
    because = str(own.get("explanation") or str(own["verdict"]).replace("_", " "))
    return "needs --disable-custom-all-reduce: %s" % because


def list_faulty_pairs(facts: dict[str, Any]) -> list[str]:
    """A sentence for each verdict and reason that keeps pairs from being proven, with the pairs that share it.

    Those of most pairs first.
    """
    probe = facts.get("probe") or {}
    labels = {gpu.address: gpu.label for gpu in matrix.list_gpus(facts)}
    groups: dict[tuple[str, str], list[str]] = {}
    for name, pair in (probe.get("pairs") or {}).items():
        if probe.get("ran") and pair.get("verdict") != "ok":
            source, _arrow, target = name.partition("->")
            ends = "GPU %s to GPU %s (%s to %s)" % (labels.get(source, "?"), labels.get(target, "?"), source, target)
            key = (str(pair.get("verdict")).replace("_", " "), str(pair.get("reason") or "no reason was given"))
            groups.setdefault(key, []).append(ends)
    ordered = sorted(groups.items(), key=lambda group: -len(group[1]))
    told = [
        "%s, %s: %s" % (verdict, reason, phrases.join_names(pairs, _PAIRS))
        for (verdict, reason), pairs in ordered[:_REASONS]
    ]
    rest = sum(len(pairs) for _key, pairs in ordered[_REASONS:])
    return [*told, "and %s with other figures" % phrases.format_count(rest, "more pair")] if rest else told
