"""How the GPUs are connected:

``nvidia-smi topo -m`` (path class of each pair, NICs, CPU and NUMA affinity) and NVLink links.

In a virtual machine the classes are those of the emulated machine, not of the hardware. Whether P2P works must not be
read from them.
"""

from __future__ import annotations

import re
from typing import Any

from . import gpus
from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import OK, Evidence, Outcome
from .smi import nvlink, smi_values, topo_matrix
from .smi.topo_matrix import Matrix

MATRIX = ("nvidia-smi", "topo", "-m")
NVLINK = ("nvidia-smi", "nvlink", "-s")
NVLINK_ERRORS = ("nvidia-smi", "nvlink", "-e")
LIMIT_SECONDS = 30.0
COMMANDS = [(MATRIX, LIMIT_SECONDS), (NVLINK, LIMIT_SECONDS)]

# From near to far. NV#: # bonded NVLinks. SOC and PSB are the older names of SYS and PIX (on one board).
CLASSES = ("NV", "PIX", "PXB", "PHB", "NODE", "SYS")
_OLD_NAMES = {"SOC": "SYS", "PSB": "PIX"}
_CELL = re.compile(r"NV(\d{1,3})")
_NUMBERS = re.compile(r"[0-9]{1,5}(-[0-9]{1,5})?(,[0-9]{1,5}(-[0-9]{1,5})?)*")


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts ``topology``: those of ``summary``; ``nvlink``: ``{address: …}`` as ``nvlink.summarise`` has it, or None;
    ``nvlink_whole``: whether all of that answer was read, so that a GPU which it does not name has no active link;
    ``nvlink_errors``: ``[{gpu, index, link, counts}]`` of links that made errors which a good one never makes."""
    names = gpus.read_indices(evidence)
    answer = evidence.run(MATRIX, LIMIT_SECONDS)
    matrix = topo_matrix.parse_matrix(answer.stdout) if answer.status == OK and answer.rc == 0 else None
    if matrix is None:
        _unanswered(answer, errors)
    else:
        errors.unanswered(answer)  # where it was cut off
        _name_odd_cells(matrix, errors)
    facts = summarise_topology(matrix, names)
    if facts["unknown_pairs"]:
        errors.add(" ".join(MATRIX), "is cut off or damaged: %d pairs cannot be read" % len(facts["unknown_pairs"]))
    if matrix is not None and matrix.shows_nvlink is False:
        errors.add(
            " ".join(MATRIX), "its legend has no NV#, as that of topo -mp: whether NVLink joins a pair is not shown"
        )
    links = _nvlink(evidence, names, errors)
    return {**facts, **links, "nvlink_errors": _nvlink_errors(evidence, names, links, errors)}


def _nvlink_errors(
    evidence: Evidence, names: dict[int, str], links: dict[str, Any], errors: Errors
) -> list[dict[str, Any]] | None:
    """Asked for only where a link is active."""
    expected = {name: one["active"] for name, one in (links["nvlink"] or {}).items() if one["active"]}
    whole_links = links["nvlink_whole"] and not any(one["unknown"] for one in (links["nvlink"] or {}).values())
    if not expected:
        return [] if whole_links else None
    answer = evidence.run(NVLINK_ERRORS, LIMIT_SECONDS)
    shown = nvlink.parse_nvlink_errors(answer.stdout) if answer.status == OK else None
    if shown is None:
        _unanswered(answer, errors)
        return None
    found = [
        {"gpu": _name("GPU%d" % index, names), "index": index, **entry}
        for index, of_gpu in sorted(shown.items())
        for entry in nvlink.list_link_errors(of_gpu)
    ]
    by_name = {_name("GPU%d" % index, names): of_gpu for index, of_gpu in shown.items()}
    counted = {name: sum(1 for counters in of_gpu.values() if counters) for name, of_gpu in by_name.items()}
    whole = answer.succeeded and all(counted.get(name, 0) >= active for name, active in expected.items())
    if not whole:
        errors.add(" ".join(NVLINK_ERRORS), "does not show the counters of every active link")
    return found if found or (whole and whole_links) else None


def _unanswered(answer: Outcome, errors: Errors) -> None:
    if answer.ok:
        said = " ".join((answer.text + " " + answer.error_text).split())[:200]
        errors.add(" ".join(answer.argv), "%s: %s" % (answer.ending, said or "no output"))
    else:
        errors.unanswered(answer, absent_is_fine=True)


def _nvlink(evidence: Evidence, names: dict[int, str], errors: Errors) -> dict[str, Any]:
    answer = evidence.run(NVLINK, LIMIT_SECONDS)
    found = nvlink.parse_nvlink(answer.stdout) if answer.status == OK else None
    if answer.succeeded and not answer.stdout.strip():
        found = {}  # where no link is active, driver 580 prints nothing at all (seen on a single H200)
    if found is None:
        _unanswered(answer, errors)
        return {"nvlink": None, "nvlink_whole": None}
    whole = answer.succeeded
    if not whole:
        errors.add(
            " ".join(NVLINK),
            "is cut off" if answer.rc == 0 else "%s: what it printed may not be all" % answer.ending,
        )
    by_name = {_name("GPU%d" % index, names): nvlink.summarise_nvlink(links) for index, links in found.items()}
    if not whole and by_name:
        by_name[list(by_name)[-1]]["unknown"] += 1  # the block in which it ended
    for name, links in by_name.items():
        for sentence in links["said"][:2]:
            errors.add(" ".join(NVLINK), "%s: %s" % (name, sentence))
    return {"nvlink": by_name, "nvlink_whole": whole}


def summarise_topology(matrix: Matrix | None, names: dict[int, str]) -> dict[str, Any]:
    """The facts of a matrix and GPU index -> address; every value None if there is no matrix.

    ``links``: ``{address: {address or NIC: class}}``. ``pairs``: ``[{a, b, class, nvlinks}]``, each pair once, `class`
    one of CLASSES;
    ``unknown_pairs``; ``class_counts``; ``worst_class``; ``pairs_beyond``: class -> the pairs that are farther apart.
    ``nvlink_shown``: whether the matrix names NVLink where there is one (``topo -mp`` does not); where that is not so,
    `nvlinks` is None, and what depends on the nearest path too; None where the legend is missing.
    ``nics``: label -> device name. ``gpus``: ``{address: {index, cpu_affinity, numa_node, gpu_numa_node}}``: a node is
    a number, ``"n/a"`` or None. ``gpu_numa_nodes``: the nodes that the GPUs are on; ``gpus_without_numa_node``.
    """
    if matrix is None:
        return dict.fromkeys(_KEYS)
    cells = {label: _cells(matrix, label) for label in matrix.rows}
    indices = sorted({*matrix.gpus, *names})
    pairs: list[dict[str, Any]] = []
    unknown: list[dict[str, str]] = []
    for position, first in enumerate(indices):
        for second in indices[position + 1 :]:
            # Both halves of the matrix say it; a pair counts as known only if the one that is readable is not
            # contradicted.
            seen = {cells.get("GPU%d" % a, {}).get("GPU%d" % b) for a, b in ((first, second), (second, first))} - {None}
            where = {"a": _name("GPU%d" % first, names), "b": _name("GPU%d" % second, names)}
            if len(seen) != 1:
                unknown.append(where)
                continue
            cell = str(seen.pop())
            links = _CELL.fullmatch(cell)
            count = values.whole_number(links.group(1)) if links else 0 if matrix.shows_nvlink else None
            pairs.append({**where, "class": "NV" if links else cell, "nvlinks": count})
    affinity = {_name("GPU%d" % index, names): _affinity(matrix, index) for index in indices}
    ranks = {name: rank for rank, name in enumerate(CLASSES)}
    nodes = [facts["numa_node"] for facts in affinity.values()]
    hidden = matrix.shows_nvlink is False
    return {
        "links": {
            _name(label, names): {_name(other, names): cell for other, cell in row.items()}
            for label, row in cells.items()
        },
        "pairs": pairs,
        "unknown_pairs": unknown,
        "nvlink_shown": matrix.shows_nvlink,
        "class_counts": {
            name: sum(1 for pair in pairs if pair["class"] == name)
            for name in CLASSES
            if any(pair["class"] == name for pair in pairs)
        },
        "worst_class": None
        if unknown or hidden or not pairs
        else max((pair["class"] for pair in pairs), key=lambda name: ranks[name]),
        "pairs_beyond": None
        if unknown or hidden
        else {name: [pair for pair in pairs if ranks[pair["class"]] > ranks[name]] for name in CLASSES},
        "nics": {label: matrix.nics.get(label, label) for label in matrix.columns if not label.startswith("GPU")},
        "gpus": affinity,
        "gpu_numa_nodes": None if None in nodes else sorted({node for node in nodes if isinstance(node, int)}),
        "gpus_without_numa_node": [name for name, facts in affinity.items() if not isinstance(facts["numa_node"], int)],
    }


_KEYS = (
    "links",
    "pairs",
    "unknown_pairs",
    "nvlink_shown",
    "class_counts",
    "worst_class",
    "pairs_beyond",
    "nics",
    "gpus",
    "gpu_numa_nodes",
    "gpus_without_numa_node",
)


def _name(label: str, names: dict[int, str]) -> str:
    index = values.whole_number(label[3:]) if label.startswith("GPU") else None
    return label if index is None else names.get(index, label)


def _cells(matrix: Matrix, label: str) -> dict[str, str]:
    """Other label -> class, for one row; empty if its diagonal is not in its place."""
    row = matrix.rows[label]
    if label not in matrix.columns or len(row) < len(matrix.columns) or row[matrix.columns.index(label)] != "X":
        return {}
    found = {}
    for other, printed in zip(matrix.columns, row):
        cell = _OLD_NAMES.get(printed, printed)
        if other != label and (cell in CLASSES[1:] or _CELL.fullmatch(cell)):
            found[other] = cell
    return found


def _affinity(matrix: Matrix, index: int) -> dict[str, Any]:
    """What stands behind the cells of a row.

    With tabs, empty cells keep their place; the row has one tab more than its headings.
    """
    rest = matrix.rows.get("GPU%d" % index, [])[len(matrix.columns) :] if matrix.headings else []
    cpus, numa = [*rest, "", ""][:2]
    own = next((cell for cell in reversed(rest[2:]) if cell), "")
    return {
        "index": index,
        "cpu_affinity": cpus if _NUMBERS.fullmatch(cpus) else None,
        "numa_node": _node(numa),
        "gpu_numa_node": _node(own),
    }


def _name_odd_cells(matrix: Matrix, errors: Errors) -> None:
    """Cells behind those of the pairs that are neither numbers, nor ranges of them, nor empty."""
    for index in matrix.gpus if matrix.headings else ():
        for cell in matrix.rows.get("GPU%d" % index, [])[len(matrix.columns) :]:
            if cell and not smi_values.is_not_applicable(cell) and not _NUMBERS.fullmatch(cell):
                errors.odd(" ".join(MATRIX), "GPU%d has an affinity that is no number" % index, cell)


def _node(cell: str) -> int | str | None:
    if smi_values.is_not_applicable(cell):
        return smi_values.NOT_APPLICABLE
    # A GPU near several nodes reads "0-1" or "0,1": no single node.
    return smi_values.parse_whole(cell)
