"""The table that plain ``nvidia-smi`` prints, for bundles that hold nothing better.

Three lines per GPU; MIG rows are no GPUs.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

from ..evidence import values
from . import log_fields, smi_values

_LINES_LIMIT = 5000
_LINE_LIMIT = 200
_DRIVER = re.compile(r"(?:Driver|KMD) Version: *([0-9.]+)")
_CUDA = re.compile(r"CUDA (?:UMD )?Version: *([0-9.]+)")
_FIRST = re.compile(
    r"\|\s{1,4}(?P<index>\d{1,3})\s{1,3}(?P<name>\S.{0,40}?)\s{1,40}(?P<persistence>On|Off|N/A|ERR!)\s{0,4}"
    r"\|\s{1,6}(?P<address>[0-9A-Fa-f]{4,8}:[0-9A-Fa-f]{2}:[0-9A-Fa-f]{2}\.[0-7])\s+(?P<display>\S{1,10})\s*\|\s*(?P<ecc>\S{1,12})\s*\|"
)
_SECOND = re.compile(
    r"\|\s{0,4}(?P<fan>N/A|ERR!|\d{1,3}%)\s{1,6}(?P<temperature>N/A|ERR!|\d{1,3}C)\s{1,6}(?P<state>P\d{1,2}|N/A|ERR!)\s{1,14}"
    r"(?P<draw>\S{1,8})\s*/\s*(?P<limit>\S{1,8})\s*\|\s*(?P<used>\S{1,12})\s*/\s*(?P<total>\S{1,12})\s*\|"
    r"\s*(?P<load>\S{1,8})\s+(?P<compute>[A-Za-z][A-Za-z. ]{0,18}?)\s*\|"
)
_THIRD = re.compile(r"\|\s+\|\s+\|\s*(?P<mig>N/A|Enabled\*?|Disabled\*?|ERR!)\s*\|")
_PROCESS = re.compile(
    r"\|\s{1,5}(?P<gpu>\d{1,3})\s{1,6}(?:(?:N/A|\d{1,4})\s{1,6}(?:N/A|\d{1,4})\s{1,20})?"
    r"(?P<pid>\d{1,10})\s{1,8}(?P<type>C\+G|[CGM](?:\+C)?)\s{1,4}(?P<name>\S.{0,60}?)\s{1,60}(?P<memory>\d{1,9}MiB|N/A)\s{0,4}\|"
)
_COMPUTE_MODES = {"e. process": "Exclusive_Process", "e. thread": "Exclusive_Thread"}


@dataclass
class Table:
    driver_version: str | None = None
    cuda_version: str | None = None
    devices: dict[str, dict[str, Any]] = field(default_factory=dict)
    closed: bool = False


def parse_plain_table(data: bytes) -> Table | None:
    """The table in `data`, or None if there is none."""
    text = smi_values.strip_codes(data.decode("utf-8", "replace"))
    if "NVIDIA-SMI" not in text or "+--" not in text:
        return None
    table = Table()
    for name, pattern in (("driver_version", _DRIVER), ("cuda_version", _CUDA)):
        found = pattern.search(text)
        setattr(table, name, found.group(1) if found else None)
    head, _mark, tail = text.partition("Processes:")
    current: dict[str, Any] | None = None
    for raw in head.split("\n")[:_LINES_LIMIT]:
        line = raw[:_LINE_LIMIT]
        if line.startswith("| MIG devices"):
            break
        first = _FIRST.match(line)
        if first is not None:
            current = _first(first)
            table.devices[smi_values.parse_address(first.group("address")) or ""] = current
            table.closed = False
        elif current is not None and line.startswith("+--"):
            table.closed = True  # the rule under a GPU: its three lines are all there
        elif current is not None:
            _further(line, current)
    _processes(table, tail if _mark else None)
    return table


def _first(found: re.Match[str]) -> dict[str, Any]:
    facts = log_fields.make_empty_device()
    name = found.group("name").strip()
    # A long name ends in dots: what is cut off is not known, so it must not be compared.
    facts.update(index=values.whole_number(found.group("index")), name=None if name.endswith("..") else name)
    facts["persistence"] = smi_values.parse_boolean(found.group("persistence"))
    ecc = found.group("ecc")
    if values.is_digits(ecc):
        facts["ecc"] = True
        facts["ecc_volatile"] = {"correctable": None, "uncorrectable": values.whole_number(ecc)}
    elif ecc in ("Off", "N/A"):
        facts["ecc"] = False if ecc == "Off" else smi_values.NOT_APPLICABLE
        facts["ecc_volatile"] = {"correctable": smi_values.NOT_APPLICABLE, "uncorrectable": smi_values.NOT_APPLICABLE}
    return facts


def _further(line: str, facts: dict[str, Any]) -> None:
    second = _SECOND.match(line)
    if second is not None:
        cells = second.groupdict()
        compute = " ".join(cells["compute"].split())
        facts.update(
            fan_percent=_amount(cells["fan"], "%"),
            temperature_c=_amount(cells["temperature"], "C"),
            performance_state=smi_values.parse_word(cells["state"]),
            power_draw_w=_amount(cells["draw"], "W"),
            power_limit_w=_amount(cells["limit"], "W"),
            memory_used_mib=_amount(cells["used"], "MiB"),
            memory_total_mib=_amount(cells["total"], "MiB"),
            utilization_percent=_amount(cells["load"], "%"),
            compute_mode=_COMPUTE_MODES.get(compute.lower(), compute),
        )
        return
    third = _THIRD.match(line)
    if third is not None:
        facts["mig"] = smi_values.parse_boolean(third.group("mig").rstrip("*"))


def _amount(cell: str, unit: str) -> smi_values.Number:
    return smi_values.parse_number(cell, unit)


def _processes(table: Table, tail: str | None) -> None:
    """Fill in the processes of each GPU.

    They stay unknown where the table has no such section, or only a part of it.
    """
    if tail is None or not re.search(r"(?m)^\+-{20,}\+\s*$", tail):
        return
    by_index = {facts["index"]: facts for facts in table.devices.values()}
    for facts in table.devices.values():
        facts["processes"] = []
    for line in tail.split("\n")[:_LINES_LIMIT]:
        found = _PROCESS.match(line[:_LINE_LIMIT])
        owner = by_index.get(values.whole_number(found.group("gpu"))) if found else None
        if found is not None and owner is not None:
            memory = smi_values.parse_number(found.group("memory"), "MiB")
            process = {
                "pid": values.whole_number(found.group("pid")),
                "type": found.group("type"),
                "name": found.group("name").strip(),
                "memory_mib": memory,
            }
            owner["processes"].append(process)
