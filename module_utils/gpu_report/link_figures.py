"""What the probe found of links, in words and rows: path classes, host links, phases, and the ladder of pairs."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from . import matrix
from .tables import UNKNOWN, Table, format_fact

Facts = dict[str, Any]
_WAYS = {"to_gpu": "host to GPU", "from_gpu": "GPU to host"}
_GOOD = ("ok", "shared_uplink")
_BAR = 24  # characters
_FULL, _EMPTY = "█", "·"
# How far a pair came on the ladder, by the rung that failed.
_RUNGS = ("granted", "usable", "delivered", "fast")
_COLLECTIVE = {"ok": "yes", "wrong_values": "WRONG", "hangs": "HANGS", "fails": "FAILS", "inconclusive": "fails anyway"}
_ENGAGED = {"pass": "yes", "fail": "NO", "unknown": UNKNOWN, "error": UNKNOWN, "waived": "NO (waived)"}
_PHASES = ("control", "delivered", "latency", "bandwidth", "under_load", "host_links")  # in the order of the probe
NOT_ASKED = "–"


@dataclass(frozen=True)
class Bar:
    """One direction of one GPU's link to the host. `value` and `full` in GB/s; None where it is not known."""

    label: str
    address: str
    way: str
    value: float | None
    full: float | None
    at_once: float | None
    verdict: str

    def draw(self) -> str:
        """The bar as text, against what a good link reaches (or, where that is not known, empty)."""
        share = 0.0 if not self.value or not self.full else min(1.0, self.value / self.full)
        filled = round(share * _BAR)
        return _FULL * filled + _EMPTY * (_BAR - filled)

    def describe(self) -> str:
        """'55.2 of 55.4 GB/s, 53.5 with all GPUs at once'."""
        if self.value is None:
            return "not measured"
        of = " of %s" % matrix.format_figure(self.full) if self.full else ""
        beside = ", %s with all GPUs at once" % matrix.format_figure(self.at_once) if self.at_once else ""
        return "%s%s GB/s%s" % (matrix.format_figure(self.value), of, beside)


def list_bars(facts: Facts) -> list[Bar]:
    """Both directions of each GPU that the probe measured, in the order of nvidia-smi."""
    probe = facts.get("probe") or {}
    links = probe.get("host_links") or {}
    labels = _labels(facts)
    bars = []

    def place(one: str) -> tuple[bool, str, str]:
        label = labels.get(one, "")
        return (not label.isdigit(), label.zfill(4), one)

    for address in sorted(links, key=place):
        link = links[address]
        for way in _WAYS:
            near, beside = (link.get(name) or {} for name in ("near_gb_s", "at_once_gb_s"))
            figures = (near.get(way), link.get("full_gb_s"), beside.get(way))
            bars.append(Bar(labels.get(address, "?"), address, way, *figures, str(link.get("verdict"))))
    return bars


def is_all_well(facts: Facts) -> bool:
    """Whether nothing that the probe found of links needs a closer look."""
    probe = facts.get("probe") or {}
    links = probe.get("host_links") or {}
    told = ("class_outliers", "unfinished_phases", "link_errors_in_phases", "throttled_in_phases")
    return all(link.get("verdict") in _GOOD for link in links.values()) and not any(probe.get(name) for name in told)


def describe_links(facts: Facts, verbose: bool) -> list[str]:
    """The sentences of one host for the terminal: one where all is well, else (or `verbose`) one for each thing."""
    probe = facts.get("probe") or {}
    if not probe.get("ran"):
        return []
    classes, bars = describe_classes(probe), list_bars(facts)
    short = [text for text in (classes if len(probe.get("path_classes") or {}) > 1 else "", _sum_up(bars)) if text]
    if is_all_well(facts) and not verbose:
        return ["; ".join(short)] if short else []
    lines = ["by path: " + classes.partition(": ")[2]] if classes else []
    lines += list(_explain(probe))
    if bars:
        lines.append("host links, with page-locked memory, against what a good link reaches:")
        lines += [_describe_bar(bar) for bar in bars]
    if verbose:
        lines += ["%s: %s" % (row[0], ", ".join(filter(None, row[1:]))) for row in _phase_rows(probe)]
    return lines


def _describe_bar(bar: Bar) -> str:
    verdict = "" if bar.verdict == "ok" else " (%s)" % _words(bar)
    label = "%s GPU %s" % ("to  " if bar.way == "to_gpu" else "from", bar.label)
    return "%s %s %s%s" % (label, bar.draw(), bar.describe(), verdict)


def describe_classes(probe: Facts) -> str:
    """'by path: NODE 55.4 GB/s (24 pairs), SYS 45.2 (32 pairs, 18.4 % slower)'; "" where no class is known."""
    told: list[str] = []
    for name, found in (probe.get("path_classes") or {}).items():
        if found.get("median_gb_s") is None:
            continue
        slower = found.get("slower_percent") or 0
        beside = ", %g %% slower" % slower if slower >= 1 else ""
        unit = " GB/s" if not told else ""
        figure = matrix.format_figure(found["median_gb_s"])
        told.append("%s %s%s (%d pairs%s)" % (name, figure, unit, found.get("pairs") or 0, beside))
    return "by path: %s" % ", ".join(told) if told else ""


def _sum_up(bars: list[Bar]) -> str:
    """'host links 55.2 to 55.3 GB/s to the GPUs, 54.1 to 54.2 from them (a good link: 55.4)'."""
    parts: list[str] = []
    for way, words in (("to_gpu", "to the GPUs"), ("from_gpu", "from them")):
        known = [bar.value for bar in bars if bar.way == way and bar.value is not None]
        if not known:
            return ""
        low, high = (matrix.format_figure(choose(known)) for choose in (min, max))
        unit = " GB/s" if not parts else ""
        parts.append("%s%s %s" % (low if low == high else "%s to %s" % (low, high), unit, words))
    full = {bar.full for bar in bars if bar.full}
    of = " (a good link: %s)" % matrix.format_figure(full.pop()) if len(full) == 1 else ""
    return "host links %s%s" % (", ".join(parts), of)


def _explain(probe: Facts) -> list[str]:
    explanations = probe.get("explanations") or {}
    told = [*(explanations.get("class_outliers") or ())][:4]
    told += ["only bad pairs cross %s" % port for port in probe.get("ports_of_bad_pairs") or ()]
    for name in ("link_errors_in_phases", "throttled_in_phases", "kernel_lines_in_phases", "unfinished_phases"):
        told += [str(text) for text in probe.get(name) or ()][:4]
    told += [str(text) for text in probe.get("shared_uplinks") or ()][:4]
    return told


def _words(bar: Bar) -> str:
    return bar.verdict.replace("_", " ")


def build_path_table(facts: Facts) -> Table | None:
    """The classes of path, from near to far, with what each reaches."""
    rows = []
    for name, found in ((facts.get("probe") or {}).get("path_classes") or {}).items():
        figures = (found.get(key) for key in ("median_gb_s", "lowest_gb_s", "highest_gb_s", "mad_gb_s"))
        shown = [UNKNOWN if value is None else matrix.format_figure(value) for value in figures]
        slower = found.get("slower_percent")
        pairs = "%s of %s" % (format_fact(found.get("measured")), format_fact(found.get("pairs")))
        less = UNKNOWN if slower is None else "%g %%" % slower
        rows.append(("%s: %s" % (name, format_fact(found.get("meaning"))), pairs, *shown, less))
    head = ("Path", "Pairs measured", "Median GB/s", "Lowest", "Highest", "MAD", "Slower than the fastest path")
    return Table(head, rows, (1, 2, 3, 4, 5, 6)) if rows else None


def build_host_link_table(facts: Facts) -> Table | None:
    """Each GPU's link to the host, both ways, with the bar as text."""
    probe = facts.get("probe") or {}
    rows = [
        (
            bar.label,
            bar.address,
            _WAYS[bar.way],
            bar.draw(),
            bar.describe(),
            "%s: %s" % (_words(bar), format_fact((probe["host_links"].get(bar.address) or {}).get("reason"))),
        )
        for bar in list_bars(facts)
    ]
    return Table(("GPU", "Address", "Way", "Against a good link", "Measured", "Verdict"), rows) if rows else None


def build_phase_table(facts: Facts) -> Table | None:
    """How long each phase of the probe took, of how long it was given."""
    rows = _phase_rows(facts.get("probe") or {})
    return Table(("Phase", "Took", "Of its budget of", "Left out"), rows, (1, 2)) if rows else None


def _phase_rows(probe: Facts) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = []
    phases = probe.get("phases") or {}
    order = [name for name in _PHASES if name in phases]
    for name in [*order, *(name for name in phases if name not in order)]:
        phase = phases[name]
        took, budget, left = phase.get("seconds"), phase.get("budget_s"), phase.get("left") or ()
        rows.append(
            (
                "phase '%s'" % str(name).replace("_", " "),
                "did not end" if took is None else "%.2f s" % took,
                UNKNOWN if budget is None else "of %.3g s" % budget,
                "%d left out" % len(left) if left else "",
            )
        )
    return rows


def build_ladder_table(facts: Facts, results: list[Facts]) -> Table | None:
    """Every directed pair on every rung, from the driver's grant to the server's own use of it: a row for all pairs of
    one path that came equally far, with the range of their figures. The pairs of the fewest rungs come first."""
    probe = facts.get("probe") or {}
    if not probe.get("ran") or not probe.get("pairs"):
        return None
    labels = _labels(facts)
    collective = probe.get("collective") or {}
    proven = _COLLECTIVE.get(str(collective.get("verdict")), NOT_ASKED if collective.get("reason") else UNKNOWN)
    status = next((one.get("status") for one in results if one.get("id") == "p2p_engaged"), None)
    engaged = _ENGAGED.get(str(status), NOT_ASKED)
    groups: dict[tuple[str, ...], list[str]] = {}
    for name, pair in sorted(probe["pairs"].items(), key=lambda item: _place(item[0], labels)):
        rungs = _climb(pair)
        upper = (proven, engaged) if rungs[-1] == "yes" else (NOT_ASKED, NOT_ASKED)
        path = str(pair.get("path") or pair.get("path_class") or UNKNOWN)
        groups.setdefault((path, *rungs, *upper), []).append(name)
    rows = []
    for key, names in sorted(groups.items(), key=lambda group: (group[0].count("yes"), group[0])):
        pairs = [probe["pairs"][name] for name in names]
        ends = [tuple(labels.get(end, end) for end in name.split("->")) for name in names]
        figures = (
            _range([_rate(pair) for pair in pairs]),
            _range([pair.get("least_gb_s") for pair in pairs]),
            _range([_latency(pair) for pair in pairs]),
        )
        rows.append((key[0], str(len(names)), *key[1:5], *figures, *key[5:], ", ".join("%s→%s" % end for end in ends)))
    head = ("Path", "Pairs", "Granted", "Usable", "Delivered", "Fast", "GB/s", "At least", "µs for 12 KiB")
    return Table((*head, "Collective", "Engaged", "From GPU → to GPU"), rows, (1, 6, 7, 8))


def _range(values: list[Any]) -> str:
    """'45.2 to 55.4'; "unknown" where no value is known."""
    known = [value for value in values if value is not None]
    if not known:
        return UNKNOWN
    low, high = matrix.format_figure(min(known)), matrix.format_figure(max(known))
    return low if low == high else "%s to %s" % (low, high)


def _latency(pair: Facts) -> float | None:
    median: float | None = ((pair.get("latency_us") or {}).get("copy_12k_back_to_back") or {}).get("median")
    return median


def _climb(pair: Facts) -> list[str]:
    """A word for each rung: yes up to the one that failed, NO there, and nothing is said beyond it."""
    failed = pair.get("failed_rung")
    if pair.get("verdict") == "ok":
        return ["yes"] * len(_RUNGS)
    if failed not in _RUNGS:
        return [UNKNOWN] * len(_RUNGS)
    at = _RUNGS.index(failed)
    return ["yes"] * at + ["NO"] + [NOT_ASKED] * (len(_RUNGS) - at - 1)


def _rate(pair: Facts) -> float | None:
    figures = pair.get("bandwidth_gb_s") or {}
    return next((figures[name]["median"] for name in ("copy_alone", "copy") if name in figures), None)


def _labels(facts: Facts) -> dict[str, str]:
    found = {gpu.address: gpu.label for gpu in matrix.list_gpus(facts)}
    devices = (facts.get("gpus") or {}).get("devices") or {}
    found.update({address: str(gpu["index"]) for address, gpu in devices.items() if gpu.get("index") is not None})
    return found


def _place(name: str, labels: dict[str, str]) -> tuple[tuple[str, str], ...]:
    return tuple((labels.get(end, "").zfill(4), end) for end in name.split("->"))
