"""The systemd unit of a server: its state, where its output goes, and whether what runs is what is written."""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, NOT_CAPTURED, Evidence
from ..gpu_host.evidence.values import whole_number
from .engines import is_server_unit

PROPERTIES = (
    "Id,LoadState,ActiveState,SubState,Result,ExecMainStatus,ExecMainCode,ExecMainPID,MainPID,NRestarts,InvocationID,ExecMainStartTimestampMonotonic,NeedDaemonReload,"
    "FragmentPath,DropInPaths,UnitFileState,StandardOutput,StandardError,ActiveEnterTimestamp,StateChangeTimestamp,User,LimitMEMLOCK,WorkingDirectory"
)
# All services: which of them serve models, their names say, and an engine more asks the host nothing else.
LIST_COMMAND = (
    "systemctl",
    "list-units",
    "--all",
    "--type=service",
    "--plain",
    "--no-legend",
    "--no-pager",
    "--full",
)
# What was asked up to 0.1.0, and stands in the bundles of that time.
FORMER_LIST_COMMAND = (*LIST_COMMAND, "sglang*.service", "vllm*.service", "inference-server*.service")
SECONDS = 15.0
_NO_SYSTEMD = r"not been booted with systemd|connect to bus"


def show_command(name: str) -> tuple[str, ...]:
    return ("systemctl", "show", name, "--no-pager", "--property=" + PROPERTIES)


def find_units(evidence: Evidence, errors: Errors) -> list[str] | None:
    """Units whose names say that they serve models, loaded on this host; empty without systemd, None where systemd did
    not answer."""
    outcome = evidence.run(LIST_COMMAND, SECONDS)
    if outcome.status == NOT_CAPTURED:
        outcome = evidence.run(FORMER_LIST_COMMAND, SECONDS)
    without_systemd = outcome.status == ABSENT or re.search(_NO_SYSTEMD, outcome.error_text)
    if not outcome.succeeded and not without_systemd:
        errors.unsuccessful(outcome)
        return None
    names = [line.replace("●", " ").split() for line in outcome.text.splitlines()]
    return [words[0] for words in names if words and is_server_unit(words[0]) and "not-found" not in words]


def read_unit(evidence: Evidence, name: str, errors: Errors) -> dict[str, Any] | None:
    """What systemd says of the unit.

    ``{name, loaded, active, sub, result, exit_status, restarts, invocation, needs_reload, file, enabled, output,
    main_pid, user, started_after_boot_s}``.

    None where systemd cannot be asked.
    """
    outcome = evidence.run(show_command(name), SECONDS)
    if not outcome.succeeded:
        errors.unsuccessful(outcome)
        return None
    values = dict(re.findall(r"^(\w+)=(.*)$", outcome.text, re.MULTILINE))
    if not values:
        return None
    if "NeedDaemonReload" not in values:
        errors.add("systemctl show %s" % name, "does not show NeedDaemonReload")
    return {
        "name": values.get("Id") or name,
        "loaded": values.get("LoadState") == "loaded",
        "active": values.get("ActiveState"),
        "sub": values.get("SubState"),
        "result": values.get("Result"),
        "exit_status": _integer(values.get("ExecMainStatus")),
        "restarts": _integer(values.get("NRestarts")),
        "invocation": values.get("InvocationID") or None,
        "needs_reload": {"yes": True, "no": False}.get(values.get("NeedDaemonReload", "")),
        "file": values.get("FragmentPath") or None,
        "enabled": values.get("UnitFileState") or None,
        "output": _output(evidence, values),
        "main_pid": _integer(values.get("MainPID")) or None,
        "user": values.get("User") or None,
        "started_after_boot_s": (_integer(values.get("ExecMainStartTimestampMonotonic")) or 0) / 1e6 or None,
    }


def _output(evidence: Evidence, values: dict[str, str]) -> str | None:
    """Where standard error goes, such as journal or append:/var/log/x.

    `systemctl show` leaves the path out; the unit's files have it.
    """
    kind = (
        values.get("StandardError")
        if values.get("StandardError") not in (None, "", "inherit")
        else values.get("StandardOutput")
    )
    if kind not in ("append", "file", "truncate"):
        return kind
    found = kind
    for path in [values.get("FragmentPath", ""), *values.get("DropInPaths", "").split()]:
        text = evidence.read(path, 1 << 20).text if path else ""
        for match in re.finditer(
            r"^Standard(?:Output|Error)=((?:append|file|truncate):/\S(?:.*\S)?)[ \t]*$", text, re.MULTILINE
        ):
            found = match[1]
    return found


def _integer(text: str | None) -> int | None:
    return whole_number(text)
