"""Peer-to-peer (P2P) as the driver grants it: ``nvidia-smi topo -p2p``, one matrix for each capability.

A granted pair is the first rung only: CUDA may still refuse it, and bytes may still not arrive (the probe looks at
those). Statuses are NVML's (``nvmlGpuP2PStatus_t``); a cell that is missing, cut off or in no known spelling is
unknown, never OK.
"""

from __future__ import annotations

from typing import Any

from . import gpus
from .evidence.errors import Errors
from .evidence.interface import ABSENT, OK, Evidence
from .smi import topo_matrix
from .smi.topo_matrix import Matrix

CAPABILITIES = {"read": "r", "write": "w", "nvlink": "n", "atomics": "a", "pcie": "p"}
LIMIT_SECONDS = 30.0
COMMANDS = [(("nvidia-smi", "topo", "-p2p", letter), LIMIT_SECONDS) for letter in CAPABILITIES.values()]

# Letters of `nvidia-smi topo -p2p` and NVML's meaning of each. Some drivers' legends leave DR out.
MEANINGS = {
    "OK": "granted",
    "CNS": "chipset not supported",
    "GNS": "GPU not supported",
    "TNS": "topology not supported",
    "DR": "disabled by regkey",
    "NS": "not supported",
    "U": "unknown",
}
Pairs = dict[tuple[int, int], "str | None"]


def read_statuses(matrix: Matrix | None) -> Pairs:
    """Directed pair of GPU indices -> status letter, None where the cell is missing or not one of NVML's."""
    if matrix is None:
        return {}
    columns = [label for label in matrix.columns if label.startswith("GPU")]
    found: Pairs = {}
    for source in matrix.gpus:
        cells = list(matrix.rows.get("GPU%d" % source, []))
        while cells and not cells[-1]:
            cells.pop()  # every row of this matrix ends in a tab
        # The diagonal shows that the cells stand where they belong; a row without it in its place was damaged.
        own = columns.index("GPU%d" % source) if "GPU%d" % source in columns else None
        sound = own is not None and len(cells) == len(columns) and cells[own] == "X"
        for destination in matrix.gpus:
            if source == destination:
                continue
            label = "GPU%d" % destination
            cell = cells[columns.index(label)] if sound and label in columns else None
            found[source, destination] = cell if cell in MEANINGS and cell != "U" else None
    return found


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts ``p2p``.

    ``read``, ``write``, ``nvlink``, ``atomics``, ``pcie``: ``{source address: {destination address: status}}``, None if
    the matrix is not known. And the computed facts of ``summary``. A GPU whose address is unknown is named by its label
    (``GPU3``).
    """
    names = gpus.read_indices(evidence)
    read: dict[str, Pairs | None] = {}
    for capability, letter in CAPABILITIES.items():
        answer = evidence.run(("nvidia-smi", "topo", "-p2p", letter), LIMIT_SECONDS)
        matrix = topo_matrix.parse_matrix(answer.stdout) if answer.status == OK and answer.rc == 0 else None
        read[capability] = None if matrix is None else read_statuses(matrix)
        if matrix is not None:
            names = {**{index: "GPU%d" % index for index in matrix.gpus}, **names}
            missing = [label for label in matrix.columns if label.startswith("GPU") and label not in matrix.rows]
            errors.unanswered(answer)  # where it was cut off
            if missing:
                errors.add(" ".join(answer.argv), "is cut off: no row of %s" % ", ".join(missing[:8]))
            damaged = sum(status is None for status in (read[capability] or {}).values())
            if damaged and not missing:
                errors.add(" ".join(answer.argv), "has no readable status for %d directed pairs" % damaged)
        elif answer.ok:
            said = (answer.text + " " + answer.error_text).split()
            errors.add(
                " ".join(answer.argv), "%s, no matrix: %s" % (answer.ending, " ".join(said)[:200] or "no output")
            )
        else:
            errors.unanswered(answer, absent_is_fine=True)
    if read["read"] is None and read["write"] is None and answer.status == ABSENT:
        errors.add("nvidia-smi", "is not there, so nothing shows which pairs the driver grants")
    return summarise_statuses(read, names)


def summarise_statuses(read: dict[str, Pairs | None], names: dict[int, str]) -> dict[str, Any]:
    """The facts, from statuses by capability (see ``statuses``) and GPU index -> address.

    ``gpu_count``, ``pair_count`` (directed); ``granted_pairs``, ``blocked_pairs``, ``unknown_pairs``: lists of
    ``{source, destination, …}``; a blocked one has ``capability`` (``read`` or ``write``), ``status`` and ``meaning``.
    A pair is granted if it may be read and written.
    ``unreadable_pairs``: the unknown ones that a matrix shows without a status; None while there is none, but a matrix
    that nobody has.
    ``blocked_by_status``: ``[{status, meaning, count}]``, most frequent first. ``all_granted``, ``all_nvlink``: None
    while a pair is unknown.
    ``nvlink_pairs``: pairs joined by NVLink.
    """
    every = (read.get("read"), read.get("write"))
    indices = sorted(
        {index for pairs in every if pairs for pair in pairs for index in pair} | (set(names) if any(every) else set())
    )
    facts: dict[str, Any] = {name: _by_address(read.get(name), names) for name in CAPABILITIES}
    if every == (None, None):
        # One GPU makes a matrix with no pair; no matrix at all leaves everything open.
        return {**facts, **dict.fromkeys(_COMPUTED)}
    if not indices:
        indices = sorted(names)
    pairs = [(source, destination) for source in indices for destination in indices if source != destination]
    granted, blocked, unknown = [], [], []
    for pair in pairs:
        where = {"source": _name(pair[0], names), "destination": _name(pair[1], names)}
        seen = {name: (read.get(name) or {}).get(pair) for name in ("read", "write")}
        refused = next(((name, status) for name, status in seen.items() if status not in (None, "OK")), None)
        if refused is not None:
            blocked.append(
                {**where, "capability": refused[0], "status": refused[1], "meaning": MEANINGS[refused[1] or "U"]}
            )
        elif all(status == "OK" for status in seen.values()):
            granted.append(where)
        else:
            unknown.append({**where, "unknown": [name for name, status in seen.items() if status is None]})
    nvlink = [(read.get("nvlink") or {}).get(pair) for pair in pairs]
    shown = {name for name in ("read", "write") if read.get(name) is not None}
    unreadable = [
        {**pair, "unknown": [name for name in pair["unknown"] if name in shown]}
        for pair in unknown
        if shown & set(pair["unknown"])
    ]
    return {
        **facts,
        "gpu_count": len(indices),
        "pair_count": len(pairs),
        "granted_pairs": granted,
        "blocked_pairs": blocked,
        "unknown_pairs": unknown,
        "unreadable_pairs": unreadable if unreadable or not unknown else None,
        "blocked_by_status": _by_status(blocked),
        "all_granted": _all(len(pairs), len(granted), len(blocked)),
        "nvlink_pairs": [
            {"source": _name(pair[0], names), "destination": _name(pair[1], names)}
            for pair, status in zip(pairs, nvlink)
            if status == "OK"
        ],
        "all_nvlink": _all(len(pairs), nvlink.count("OK"), sum(1 for status in nvlink if status not in (None, "OK"))),
    }


_COMPUTED = (
    "gpu_count",
    "pair_count",
    "granted_pairs",
    "blocked_pairs",
    "unknown_pairs",
    "unreadable_pairs",
    "blocked_by_status",
    "all_granted",
    "nvlink_pairs",
    "all_nvlink",
)


def _name(index: int, names: dict[int, str]) -> str:
    return names.get(index, "GPU%d" % index)


def _by_address(pairs: Pairs | None, names: dict[int, str]) -> dict[str, dict[str, str | None]] | None:
    if pairs is None:
        return None
    found: dict[str, dict[str, str | None]] = {}
    for (source, destination), status in sorted(pairs.items()):
        found.setdefault(_name(source, names), {})[_name(destination, names)] = status
    return found


def _by_status(blocked: list[dict[str, Any]]) -> list[dict[str, Any]]:
    counts: dict[str, int] = {}
    for pair in blocked:
        counts[pair["status"]] = counts.get(pair["status"], 0) + 1
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return [{"status": status, "meaning": MEANINGS[status], "count": count} for status, count in ordered]


def _all(pairs: int, good: int, bad: int) -> bool | None:
    """True if every pair is good, False if one is bad; None while one is unknown, or where there is no pair."""
    if bad:
        return False
    return True if pairs and good == pairs else None
