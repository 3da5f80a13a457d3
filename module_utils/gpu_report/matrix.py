"""Everything that is known of pairs of GPUs, as square tables.

It is the one model that every report draws its P2P tables from.

Rows are sources, columns are destinations. A cell says in words or figures what its `level` says in colour. Nothing is
judged here: the levels follow the statuses of the driver, the verdicts of the probe and the limits in its facts.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Callable

from ..gpu_host.p2p import MEANINGS

# Levels: what a cell means. HEAT are shares of the best figure in the table, best last.
SELF, GOOD, DOUBT, BAD, UNKNOWN, NEUTRAL = "self", "good", "doubt", "bad", "unknown", "neutral"
HEAT = ("h1", "h2", "h3", "h4", "h5")
_SHARES = (0.4, 0.6, 0.8, 0.95)  # below the first: h1
NO_VALUE = "?"
LEAST = "GB/s at least are expected of a healthy pair"

# The probe's verdict on a pair: in at most four letters, and in words.
VERDICTS = {
    "ok": ("OK", "bytes verified, at full speed"),
    "not_granted": ("NO", "the driver grants no peer access"),
    "not_usable": ("DENY", "peer access cannot be enabled"),
    "not_delivered": ("BAD", "wrong bytes arrived, or none"),
    "hung": ("HUNG", "the transfer hung"),
    "staged": ("HOST", "as slow as through host memory"),
    "slow": ("SLOW", "below the least bandwidth of a healthy link"),
    "error": ("ERR", "CUDA returned an error"),
    "unknown": (NO_VALUE, "unknown"),
}
_DOUBTFUL_VERDICTS = ("slow", "error", "staged")


@dataclass(frozen=True)
class Gpu:
    """`label` is the index of nvidia-smi where it is known."""

    label: str
    address: str


@dataclass(frozen=True)
class Cell:
    text: str
    level: str


@dataclass(frozen=True)
class Matrix:
    """`key`: granted | topology | verdict | bandwidth | expected | latency, and of other tools measured |
    measured_bandwidth | measured_latency. `legend`: (text of a cell, its meaning)."""

    key: str
    title: str
    unit: str
    gpus: tuple[Gpu, ...]
    rows: tuple[tuple[Cell, ...], ...]
    legend: tuple[tuple[str, str], ...] = ()

    def others(self) -> list[tuple[Gpu, Gpu, Cell]]:
        """(source, destination, cell) of every directed pair."""
        return [
            (source, target, cell)
            for source, row in zip(self.gpus, self.rows)
            for target, cell in zip(self.gpus, row)
            if source.address != target.address
        ]


def list_gpus(facts: dict[str, Any]) -> list[Gpu]:
    """The GPUs that are part of a pair, in the order of nvidia-smi, those without an index last by address."""
    indices = {address: gpu.get("index") for address, gpu in ((facts.get("gpus") or {}).get("devices") or {}).items()}
    indices.update(
        {
            a: gpu.get("index")
            for a, gpu in ((facts.get("topology") or {}).get("gpus") or {}).items()
            if indices.get(a) is None
        }
    )
    for address, number in ((facts.get("measurements") or {}).get("devices") or {}).items():
        if indices.get(address) is None:
            indices[address] = number  # as CUDA numbers them, where nvidia-smi does not say
    addresses = {*_rows(facts, "p2p", "read"), *_rows(facts, "p2p", "write"), *_rows(facts, "topology", "links")}
    for subject in ("probe", "measurements"):
        for name in (facts.get(subject) or {}).get("pairs") or {}:
            addresses.update(name.split("->", 1))
    addresses -= set(_rows(facts, "topology", "nics"))  # the matrix of nvidia-smi has rows for them too

    def place(address: str) -> tuple[bool, int, str]:
        index = indices.get(address)
        return (index is None, index or 0, address)

    return [Gpu(NO_VALUE if indices.get(a) is None else str(indices[a]), a) for a in sorted(addresses, key=place)]


def build_matrices(facts: dict[str, Any]) -> list[Matrix]:
    """The tables of one host (facts as report.json keeps them).

    Granted and topology, and where the probe ran verdict, bandwidth, latency.
    """
    gpus = list_gpus(facts)
    if len(gpus) < 2:
        return []
    found = [build_granted_matrix(facts, gpus)]
    if _rows(facts, "topology", "links"):
        found.append(_square("topology", "Topology", "", gpus, lambda a, b: _path(facts, a, b), meanings=_PATHS))
    pairs = (facts.get("probe") or {}).get("pairs") or {}
    if pairs and (facts.get("probe") or {}).get("ran"):
        proven = _square(
            "verdict",
            "Proven by the probe",
            "",
            gpus,
            lambda a, b: _verdict(facts, pairs.get(_name(a, b)), a, b),
            meanings=_LADDER,
        )
        found.append(proven)
        found += _figures(gpus, pairs)
    return found + _measured(facts, gpus)


# What other tools found of a pair. None of the words says that bytes were verified: most tools do not look.
_MEASURED = {
    "ok": ("OK", "peer access, and copies go directly", GOOD),
    "not_usable": ("NO", "CUDA offers no peer access", BAD),
    "staged": ("HOST", "as slow as through host memory", BAD),
    "slow": ("SLOW", "slower than its link, or than without peer access", DOUBT),
}


def _measured(facts: dict[str, Any], gpus: list[Gpu]) -> list[Matrix]:
    """The tables of other tools: what they found of each pair, and each one's figures with its method."""
    measurements = facts.get("measurements") or {}
    pairs = measurements.get("pairs") or {}
    if not pairs:
        return []

    def verdict(source: str, target: str) -> Cell:
        text, _meaning, level = _MEASURED.get(
            str((pairs.get(_name(source, target)) or {}).get("verdict")), (NO_VALUE, "", UNKNOWN)
        )
        return Cell(text, level)

    meanings = [(text, meaning) for text, meaning, _level in _MEASURED.values()]
    found = [_square("measured", "Measured by other tools", "", gpus, verdict, meanings=meanings)]
    for one in measurements.get("figures") or ():
        if one["pairs"] and one["kind"] in ("bandwidth", "latency") and one["peer"] is not False:
            found.append(_of_a_tool(one, pairs, gpus))
    return found


def _of_a_tool(one: dict[str, Any], pairs: dict[str, Any], gpus: list[Gpu]) -> Matrix:
    values = [value for value in one["pairs"].values() if value]
    bandwidth = one["kind"] == "bandwidth"
    best = (max if bandwidth else min)(values, default=1.0)

    def cell(source: str, target: str) -> Cell:
        name = _name(source, target)
        value = one["pairs"].get(name)
        if not value:
            return Cell(NO_VALUE, UNKNOWN)
        verdict = (pairs.get(name) or {}).get("verdict")
        share = value / best if bandwidth else best / value
        bad = verdict in ("staged", "not_usable") or (bandwidth and verdict == "slow")
        return Cell(format_figure(value), BAD if bad else HEAT[sum(share >= limit for limit in _SHARES)])

    title = "%s by %s (%s)" % ("Bandwidth" if bandwidth else "Latency", one["tool"], one["method"])
    return _square("measured_" + one["kind"], title, "GB/s" if bandwidth else "µs", gpus, cell)


def build_granted_matrix(facts: dict[str, Any], gpus: list[Gpu]) -> Matrix:
    """What the driver grants, pair by pair.

    NV# or OK where reading and writing are, else the status (`read/write` where they differ).
    """
    return _square(
        "granted", "Granted by the driver", "", gpus, lambda a, b: _granted(facts, a, b), meanings=MEANINGS.items()
    )


def _square(
    key: str,
    title: str,
    unit: str,
    gpus: list[Gpu],
    cell: Callable[[str, str], Cell],
    *,
    meanings: Iterable[tuple[str, str]] = (),
) -> Matrix:
    rows = tuple(tuple(Cell("·", SELF) if a == b else cell(a.address, b.address) for b in gpus) for a in gpus)
    seen = {part for row in rows for one in row for part in (one.text, *one.text.split("/"))}
    return Matrix(
        key,
        title,
        unit,
        tuple(gpus),
        rows,
        tuple((text, meaning) for text, meaning in meanings if text in seen or meaning == LEAST),
    )


def _rows(facts: dict[str, Any], subject: str, name: str) -> dict[str, Any]:
    return (facts.get(subject) or {}).get(name) or {}


def _name(source: str, target: str) -> str:
    return "%s->%s" % (source, target)


def _granted(facts: dict[str, Any], source: str, target: str) -> Cell:
    read, write = (_rows(facts, "p2p", name).get(source, {}).get(target) for name in ("read", "write"))
    refused = [status for status in (read, write) if status not in (None, "OK")]
    if refused:
        text = refused[0] if read == write or None in (read, write) else "%s/%s" % (read, write)
        return Cell(text, BAD)
    if read is None or write is None:
        return Cell(NO_VALUE, UNKNOWN)
    path = str(_rows(facts, "topology", "links").get(source, {}).get(target) or "")
    return Cell(path if path.startswith("NV") else "OK", GOOD)


# The legend of `nvidia-smi topo -m`.
_PATHS = (
    ("PIX", "at most one PCIe bridge"),
    ("PXB", "several PCIe bridges"),
    ("PHB", "a PCIe host bridge (the CPU)"),
    ("NODE", "host bridges of one NUMA node"),
    ("SYS", "between NUMA nodes"),
)
_NEARNESS = {"SYS": "h1", "NODE": "h2", "PHB": "h3", "PXB": "h4", "PIX": "h4"}
_LADDER = tuple(VERDICTS.values())


def _path(facts: dict[str, Any], source: str, target: str) -> Cell:
    path = _rows(facts, "topology", "links").get(source, {}).get(target)
    if path is None:
        return Cell(NO_VALUE, UNKNOWN)
    return Cell(str(path), "h5" if str(path).startswith("NV") else _NEARNESS.get(str(path), NEUTRAL))


def _verdict(facts: dict[str, Any], pair: dict[str, Any] | None, source: str, target: str) -> Cell:
    verdict = (pair or {}).get("verdict") or "unknown"
    text = VERDICTS.get(verdict, (str(verdict), ""))[0]
    if verdict == "not_granted":
        refused = _granted(facts, source, target)
        return Cell(refused.text if refused.level == BAD else text, BAD)
    if verdict == "ok":
        return Cell(text, GOOD)
    return Cell(text, UNKNOWN if verdict == "unknown" else DOUBT if verdict in _DOUBTFUL_VERDICTS else BAD)


def _figures(gpus: list[Gpu], pairs: dict[str, Any]) -> list[Matrix]:
    def bandwidth(pair: dict[str, Any]) -> float | None:
        figures = pair.get("bandwidth_gb_s") or {}
        return next((figures[name]["median"] for name in ("copy_alone", "copy") if name in figures), None)

    def latency(pair: dict[str, Any]) -> float | None:
        return ((pair.get("latency_us") or {}).get("copy_12k_back_to_back") or {}).get("median")

    def too_little(pair: dict[str, Any]) -> bool:
        least, rate = pair.get("least_gb_s"), bandwidth(pair)
        return pair.get("verdict") in ("slow", "staged") or (least is not None and rate is not None and rate < least)

    def too_long(pair: dict[str, Any]) -> bool:
        return bool(pair.get("high_latency")) or pair.get("verdict") == "staged"

    rates, delays = ([v for v in map(value, pairs.values()) if v] for value in (bandwidth, latency))
    found = []
    if rates:
        best = max(rates)
        found.append(
            _square(
                "bandwidth",
                "Bandwidth",
                "GB/s",
                gpus,
                _figure(pairs, bandwidth, too_little, lambda value: value / best),
                meanings=_tell_least(pairs),
            )
        )
    wanted = {pair["least_gb_s"] for pair in pairs.values() if pair.get("least_gb_s") is not None}
    if rates and len(wanted) > 1:
        most = max(wanted)

        def expected(source: str, target: str) -> Cell:
            value = (pairs.get(_name(source, target)) or {}).get("least_gb_s")
            if value is None:
                return Cell(NO_VALUE, UNKNOWN)
            return Cell(format_figure(value), HEAT[sum(value / most >= limit for limit in _SHARES)])

        found.append(_square("expected", "Least bandwidth of a healthy pair", "GB/s", gpus, expected))
    if delays:
        least = min(delays)
        found.append(
            _square(
                "latency",
                "Latency of a 12 KiB copy",
                "µs",
                gpus,
                _figure(pairs, latency, too_long, lambda value: least / value),
            )
        )
    return found


def _tell_least(pairs: dict[str, Any]) -> list[tuple[str, str]]:
    """The expectation where it is the same for every pair; where it is not, a table of its own holds it."""
    wanted = {pair["least_gb_s"] for pair in pairs.values() if pair.get("least_gb_s") is not None}
    return [(format_figure(wanted.pop()), LEAST)] if len(wanted) == 1 else []


def _figure(
    pairs: dict[str, Any],
    value: Callable[[dict[str, Any]], float | None],
    doubtful: Callable[[dict[str, Any]], bool],
    share: Callable[[float], float],
) -> Callable[[str, str], Cell]:
    def cell(source: str, target: str) -> Cell:
        pair = pairs.get(_name(source, target)) or {}
        seen = value(pair)
        if not seen:
            return Cell(NO_VALUE, UNKNOWN)
        return Cell(
            format_figure(seen), BAD if doubtful(pair) else HEAT[sum(share(seen) >= limit for limit in _SHARES)]
        )

    return cell


def format_figure(value: float) -> str:
    """Three digits that say something: 0.94, 13.7, 394, 2092."""
    return "%.0f" % value if value >= 100 else "%.1f" % value if value >= 10 else "%.2f" % value
