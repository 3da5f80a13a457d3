"""The driver's services: nvidia-persistenced and, where NVSwitches are, the Fabric Manager."""

from __future__ import annotations

import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from ..linux.versions import DRIVER_VERSION
from ..smi.smi_values import NOT_APPLICABLE

UNITS = {"persistenced": "nvidia-persistenced.service", "fabric_manager": "nvidia-fabricmanager.service"}
SYSTEMCTL_COMMAND = (
    "systemctl",
    "show",
    *UNITS.values(),
    "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result",
    "--no-pager",
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """`persistenced` and `fabric_manager`: {installed, active, state, enabled, result, load_state}, each None where
    systemd did not answer. Where there is none to ask, `installed` is "n/a", and `active` of persistenced comes from
    its pid file. `fabric_manager.version` where it is installed."""
    outcome = evidence.run(SYSTEMCTL_COMMAND, 10.0)
    units: dict[str, dict[str, str]] = {}
    without_systemd = not outcome.succeeded
    if outcome.succeeded:
        units = parse_units(outcome.text)
    elif (
        outcome.status != ABSENT
        and "not been booted with systemd" not in outcome.error_text
        and "connect to bus" not in outcome.error_text
    ):
        errors.unsuccessful(outcome)
        without_systemd = False
    facts = {key: read_unit(units.get(name)) for key, name in UNITS.items()}
    if without_systemd:
        for unit in facts.values():
            unit["installed"] = NOT_APPLICABLE
    if facts["persistenced"]["active"] is None and without_systemd:
        running = evidence.list("/run/nvidia-persistenced")
        if running.ok or running.status == ABSENT:
            facts["persistenced"]["active"] = "nvidia-persistenced.pid" in running.entries
    facts["fabric_manager"]["version"] = None
    if facts["fabric_manager"]["installed"] is True:
        version = evidence.run(("nv-fabricmanager", "--version"), 10.0)
        errors.unsuccessful(version)
        match = DRIVER_VERSION.search(version.text) if version.succeeded else None
        facts["fabric_manager"]["version"] = match.group(1) if match else None
    return facts


def parse_units(text: str) -> dict[str, dict[str, str]]:
    """Unit -> its properties, from what `systemctl show` prints of several."""
    units = {}
    for block in re.split(r"\n\s*\n", text):
        fields = dict(line.partition("=")[::2] for line in block.splitlines() if "=" in line)
        units[fields.get("Id", "")] = fields
    return units


def read_unit(fields: dict[str, str] | None) -> dict[str, Any]:
    """The facts of one unit, all None where systemd did not show it."""
    if not fields or "LoadState" not in fields or "ActiveState" not in fields:
        return dict.fromkeys(("installed", "active", "state", "enabled", "result", "load_state"))
    installed = fields["LoadState"] == "loaded"
    return {
        "installed": installed,
        "active": fields.get("ActiveState") == "active",
        "state": "%s (%s)" % (fields.get("ActiveState", "?"), fields.get("SubState", "?")),
        "enabled": fields.get("UnitFileState", "").startswith("enabled") if installed else False,
        "result": fields.get("Result") or None,
        "load_state": fields["LoadState"],
    }
