"""What an NVLink fabric of the fifth generation (Blackwell) needs beside the driver.

An HGX or DGX board (B200, B300) has its switches on board: the Fabric Manager starts the NVLink subnet manager
(nvlsm), which talks to them through InfiniBand management datagrams (ib_umad). Source: NVIDIA Fabric Manager user
guide, "Getting started", and the messages of its start script ("/opt/nvidia/nvlsm/sbin/nvlsm does not exist"). On a
rack (GB200 and GB300 NVL72) both run on the switch trays, and the hosts run the IMEX service instead, for memory that
is shared between hosts. Source: NVIDIA Multi-Node NVLink Systems, IMEX guide.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from .driver_services import parse_units, read_unit

BOARD, RACK, NONE = "board", "rack", "none"
NVLSM_DIRECTORY = "/opt/nvidia/nvlsm/sbin"
IMEX_CHANNELS = "/dev/nvidia-caps-imex-channels"
IMEX_UNIT = "nvidia-imex.service"
IMEX_COMMAND = (
    "systemctl", "show", IMEX_UNIT, "--property=Id,LoadState,ActiveState,SubState,UnitFileState,Result", "--no-pager",
)  # fmt: skip
GRIDD_UNIT = "nvidia-gridd.service"
GRIDD_COMMAND = (*IMEX_COMMAND[:2], GRIDD_UNIT, *IMEX_COMMAND[3:])
_ON_BOARD = re.compile(r"\bB[123]00\b")
_ON_RACK = re.compile(r"\bGB[123]00\b")


def gather(
    evidence: Evidence,
    errors: Errors,
    names: Iterable[str] | None,
    modules: Iterable[str] | None,
    fabric_manager: dict[str, Any],
) -> dict[str, Any]:
    """`names`: of the GPUs, as nvidia-smi has them; `modules`: the loaded ones; each None if unknown.

    `nvlink5`: board, rack, none (another generation), None if unknown. Of a board: `nvlsm_installed`, `ib_umad_loaded`,
    `missing` (what of its services is not there, in words; [] for others, None if unknown). Of a rack: `imex` (as a
    unit of driver_services) and `imex_channels` (how many device nodes; None if unknown, and for others).
    """
    kind = None if names is None else classify_nvlink5(names)
    facts: dict[str, Any] = {
        "nvlink5": kind,
        "nvlsm_installed": None,
        "ib_umad_loaded": None,
        "missing": None if kind is None else [],
        "imex": read_unit(None),
        "imex_channels": None,
    }
    if kind == BOARD:
        facts["nvlsm_installed"] = _has_nvlsm(evidence, errors)
        facts["ib_umad_loaded"] = _has_ib_umad(evidence, modules)
        facts["missing"] = _list_missing(facts, fabric_manager)
    elif kind == RACK:
        facts["imex"] = ask_unit(evidence, errors, IMEX_COMMAND, IMEX_UNIT)
        channels = evidence.list(IMEX_CHANNELS)
        errors.unanswered(channels, absent_is_fine=True)
        if channels.ok or channels.status == ABSENT:
            facts["imex_channels"] = sum(1 for name in channels.entries if name.startswith("channel"))
    return facts


def classify_nvlink5(names: Iterable[str]) -> str:
    names = list(names)
    if any(_ON_RACK.search(name) for name in names):
        return RACK
    return BOARD if any(_ON_BOARD.search(name) for name in names) else NONE


def ask_unit(evidence: Evidence, errors: Errors, command: tuple[str, ...], unit: str) -> dict[str, Any]:
    """The state of one unit, asked for by itself."""
    outcome = evidence.run(command, 10.0)
    errors.unsuccessful(outcome)
    return read_unit(parse_units(outcome.text).get(unit) if outcome.succeeded else None)


def _has_nvlsm(evidence: Evidence, errors: Errors) -> bool | None:
    listing = evidence.list(NVLSM_DIRECTORY)
    errors.unanswered(listing, absent_is_fine=True)
    return "nvlsm" in listing.entries if listing.ok or listing.status == ABSENT else None


def _has_ib_umad(evidence: Evidence, modules: Iterable[str] | None) -> bool | None:
    """A kernel may have it built in; then it stands in /sys/module only."""
    if modules is None:
        return None
    return True if "ib_umad" in modules else evidence.list("/sys/module/ib_umad").ok


def _list_missing(facts: dict[str, Any], fabric_manager: dict[str, Any]) -> list[str] | None:
    found = []
    if fabric_manager["installed"] is False:
        found.append("nvidia-fabricmanager is not installed (LoadState=%s)" % fabric_manager["load_state"])
    elif fabric_manager["active"] is False:
        found.append(
            "nvidia-fabricmanager is %s, Result=%s" % (fabric_manager["state"], fabric_manager["result"] or "unknown")
        )
    if facts["nvlsm_installed"] is False:
        found.append("the subnet manager nvlsm is not installed")
    if facts["ib_umad_loaded"] is False:
        found.append("the module ib_umad is not loaded")
    known = (fabric_manager["active"], facts["nvlsm_installed"], facts["ib_umad_loaded"])
    return found or (None if None in known else [])
