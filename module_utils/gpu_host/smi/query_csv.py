"""``nvidia-smi --query-gpu=… --format=csv``: columns by the name in the header line, never by position."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from . import log_fields, smi_values

_ROWS_LIMIT = 1024
# Column -> (fact, unit). The unit stands in the header (`memory.used [MiB]`) and, without `nounits`, in the cell too.
_COLUMNS = {
    "uuid": ("uuid", None),
    "gpu_uuid": ("uuid", None),
    "serial": ("serial", None),
    "name": ("name", None),
    "gpu_name": ("name", None),
    "vbios_version": ("vbios_version", None),
    "compute_mode": ("compute_mode", None),
    "addressing_mode": ("addressing_mode", None),
    "pstate": ("performance_state", None),
    "memory.total": ("memory_total_mib", "MiB"),
    "memory.used": ("memory_used_mib", "MiB"),
    "memory.reserved": ("memory_reserved_mib", "MiB"),
    "utilization.gpu": ("utilization_percent", "%"),
    "utilization.memory": ("memory_utilization_percent", "%"),
    "temperature.gpu": ("temperature_c", ""),
    "temperature.memory": ("memory_temperature_c", ""),
    "power.draw": ("power_draw_w", "W"),
    "power.limit": ("power_limit_w", "W"),
    "power.default_limit": ("power_limit_default_w", "W"),
    "power.max_limit": ("power_limit_max_w", "W"),
    "fan.speed": ("fan_percent", "%"),
    "pcie.link.gen.current": ("link_generation", ""),
    "pcie.link.gen.max": ("link_generation_max", ""),
    "pcie.link.gen.gpumax": ("link_generation_device_max", ""),
    "pcie.link.gen.hostmax": ("link_generation_host_max", ""),
    "pcie.link.width.current": ("link_width", ""),
    "pcie.link.width.max": ("link_width_max", ""),
    "fabric.state": ("fabric_state", None),
    "fabric.status": ("fabric_status", None),
}
_BOOLEANS = {
    "persistence_mode": "persistence",
    "mig.mode.current": "mig",
    "mig.mode.pending": "mig_pending",
    "ecc.mode.current": "ecc",
    "ecc.mode.pending": "ecc_pending",
}


def parse_rows(data: bytes, columns: Sequence[str] = ()) -> list[dict[str, str]]:
    """Each line as a dictionary by column name.

    Without `columns` the first line that has more than one cell is the header.

    A line with another number of cells than the header (cut off, a message in between) is left out.
    """
    lines = [
        line.split(",")
        for line in smi_values.strip_codes(data.decode("utf-8", "replace")).split("\n")[:_ROWS_LIMIT]
        if line.strip()
    ]
    cells = [[cell.strip() for cell in line] for line in lines]
    names = list(columns)
    if not names:
        start = next((number for number, line in enumerate(cells) if len(line) > 1), len(cells))
        names = [name.split(" [")[0].lower() for name in cells[start]] if start < len(cells) else []
        cells = cells[start + 1 :]
    return [dict(zip(names, line)) for line in cells if len(line) == len(names)]


def parse_indices(data: bytes) -> dict[int, str]:
    """NVML index -> PCI address, from the columns ``index`` and ``pci.bus_id``."""
    found = {}
    for row in parse_rows(data):
        index, where = smi_values.parse_whole(row.get("index")), smi_values.parse_address(row.get("pci.bus_id"))
        if index is not None and where is not None:
            found[index] = where
    return found


def driver_version(data: bytes) -> str | None:
    return next(
        (smi_values.parse_version(row.get("driver_version") or row.get("kmd_version")) for row in parse_rows(data)),
        None,
    )


def parse_devices(data: bytes) -> dict[str, dict[str, Any]]:
    """GPUs by address, as ``log_fields.read_device`` has them; what the query did not ask for is None."""
    found = {}
    for row in parse_rows(data):
        where = smi_values.parse_address(row.get("pci.bus_id"))
        if where is not None:
            found[where] = parse_device(row)
    return found


def parse_device(row: dict[str, str]) -> dict[str, Any]:
    """The facts in one row."""
    facts = log_fields.make_empty_device()
    facts["index"] = smi_values.parse_whole(row.get("index"))
    for column, (fact, unit) in _COLUMNS.items():
        if column in row:
            facts[fact] = smi_values.parse_word(row[column]) if unit is None else _amount(row[column], unit)
    for column, fact in _BOOLEANS.items():
        if column in row:
            facts[fact] = smi_values.parse_boolean(row[column])
    facts["lost"] = any("gpu is lost" in cell.lower() for cell in row.values())
    if any("requires reset" in cell.lower() for cell in row.values()):
        facts["reset_required"] = True
    facts["pci_id"] = smi_values.device_id(row.get("pci.device_id"))
    return facts


def _amount(cell: str, unit: str) -> smi_values.Number:
    with_unit = smi_values.parse_number(cell, unit)
    return with_unit if with_unit is not None else smi_values.parse_number(cell)
