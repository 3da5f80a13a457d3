"""The matrices of ``nvidia-smi topo``: a header of labels, then one row a label, then a legend.

Seen in the field: tabs or blanks between cells, terminal codes around the header (also without their ESC byte), an
indented block, a prompt line above, no legend, no blank line before it, a header whose labels ran together, rows cut
off.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

from ..evidence import values
from . import smi_values

_LINES_LIMIT = 2000
_LINE_LIMIT = 20_000
LABELS_LIMIT = 256
_GPU = re.compile(r"GPU(\d{1,3})")
_NVLINK = re.compile(r"NV\d{1,3}")
_NIC_LEGEND = re.compile(r"\s*(NIC\d{1,3}):\s+(\S{1,64})\s*")


@dataclass
class Matrix:
    """`columns`: labels of the header in order (GPUs, then NICs).

    `rows`: label -> its cells, split at tabs if there are tabs.
    """

    columns: list[str] = field(default_factory=list)
    rows: dict[str, list[str]] = field(default_factory=dict)
    nics: dict[str, str] = field(default_factory=dict)
    headings: bool = False  # whether the header names the CPU affinity
    legend: bool = False  # whether the legend of the classes is there
    legend_nvlink: bool = False  # whether it explains NV#: the one of `topo -mp` does not, which leaves NVLink out

    @property
    def shows_nvlink(self) -> bool | None:
        """Whether a cell would say NV# where GPUs are joined by NVLink; None if the text does not tell."""
        if any(_NVLINK.fullmatch(cell) for cells in self.rows.values() for cell in cells):
            return True
        return self.legend_nvlink if self.legend else None

    @property
    def gpus(self) -> list[int]:
        """Indices of the GPUs that the header or a row names, in order."""
        named = [_GPU.fullmatch(label) for label in (*self.columns, *self.rows)]
        return sorted({values.number_in_name(match.group(1)) for match in named if match})


def parse_matrix(data: bytes) -> Matrix | None:
    """The matrix in `data`, or None if it holds none."""
    matrix = Matrix()
    legend = False
    for raw in smi_values.strip_codes(data.decode("utf-8", "replace")).split("\n")[:_LINES_LIMIT]:
        line = raw[:_LINE_LIMIT]
        words = line.split()
        if not words:
            continue
        if legend:
            matrix.legend_nvlink = matrix.legend_nvlink or words[0] == "NV#"
            matrix.legend = matrix.legend or words[:2] == ["X", "="]
            named = _NIC_LEGEND.fullmatch(line)
            if named and len(matrix.nics) < LABELS_LIMIT:
                matrix.nics[named.group(1)] = named.group(2)
        elif line.strip().lower() in ("legend:", "nic legend:"):
            legend = True
        elif not matrix.columns:
            matrix.columns = _header(words)
            matrix.headings = bool(matrix.columns) and "Affinity" in words
        elif words[0] in matrix.columns and words[0] not in matrix.rows:
            cells = line.strip(" ").split("\t") if "\t" in line.strip() else words
            matrix.rows[words[0]] = [cell.strip() for cell in cells[1:]]
    return matrix if matrix.columns else None


def _header(words: list[str]) -> list[str]:
    """The labels of a header line; empty if the line is none.

    Labels that ran together (``GPU0GPU1mlx5_0``) are taken apart.
    """
    labels: list[str] = []
    for word in words:
        if word in ("CPU", "NUMA", "GPU", "Affinity"):
            break
        if not labels and not _GPU.match(word):
            return []
        parts = _GPU.findall(word)
        rest = _GPU.sub("", word)
        labels += ["GPU" + part for part in parts] + ([rest] if rest else [])
    # A row looks like a header only in its first word: its cells are no labels.
    first_cells = {"X", "OK", "PIX", "PXB", "PHB", "NODE", "SYS", "SOC", "NS", "CNS", "GNS", "TNS", "DR", "U"}
    if len(labels) > 1 and (labels[1] in first_cells or re.fullmatch(r"NV\d+", labels[1])):
        return []
    return labels[:LABELS_LIMIT]
