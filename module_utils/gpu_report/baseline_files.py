"""The files of the baselines on the controller: read, compared with what is found now, and written where it is asked
for."""

from __future__ import annotations

import datetime
import os
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from ..gpu_compare import baseline as baselines
from ..gpu_compare import drift
from ..gpu_compare.baseline import AUTO, DIFF, FORCE, OFF, SAVE
from . import files


@dataclass(frozen=True)
class Look:
    """One host as it was judged: its name, facts, results, verdict (verdict.summarise_verdict) and the checks.

    `part`: why this was only a part of the host, "" where it was all of it. `check_mode`: nothing is written.
    """

    name: str
    host: dict[str, Any]
    results: Sequence[dict[str, Any]]
    verdict: dict[str, Any]
    checks: Sequence[Any]
    part: str = ""
    check_mode: bool = False


def follow_baseline(mode: str, directory: str, look: Look) -> dict[str, Any] | None:
    """What changed since the baseline of the host in `directory` (drift.py), with `path`, `mode`, and `saving`: what
    became of the one that was to be saved, "" where none was.

    None where nothing is to be said: `mode` is off, or it is auto and there is no baseline.
    """
    if mode == OFF:
        return None
    path = os.path.join(directory, baselines.name_file(look.name))
    data, before, problem = _read(path)
    if problem:
        record = {"state": drift.UNREADABLE, "message": "%s is no baseline: %s" % (path, problem)}
    elif before is None:
        if mode == AUTO:
            return None
        record = {"state": drift.NONE, "message": ""}
        if mode == DIFF:
            record["message"] = "there is no baseline (%s). Save one with -e gpu_host_baseline=save" % path
    else:
        record = _compare(path, before, look)
    record.update(path=path, saving="", mode=mode)
    if mode in (SAVE, FORCE):
        record["saving"] = _save(path, data, before, record["state"], look, mode == FORCE)
    return record


def _compare(path: str, before: dict[str, Any], look: Look) -> dict[str, Any]:
    """The drift. It is information: whatever stands in a file that somebody may have edited, the verdict holds."""
    try:
        return drift.describe_drift(before, look.host, look.results, look.checks)
    except Exception as error:
        message = "%s cannot be compared: %s: %s" % (path, type(error).__name__, error)
        return {"state": drift.UNREADABLE, "message": message}


def _read(path: str) -> tuple[bytes, dict[str, Any] | None, str]:
    """(the bytes of the file, the baseline in it, what is wrong with it): no baseline and nothing wrong: no file."""
    try:
        with open(path, "rb") as handle:
            data = handle.read(baselines.LARGEST + 1)
    except FileNotFoundError:
        return b"", None, ""
    except OSError as error:
        return b"", None, error.strerror or str(error)
    try:
        return data, baselines.decode_baseline(data), ""
    except baselines.BaselineError as error:
        return data, None, str(error)


def _save(path: str, data: bytes, before: dict[str, Any] | None, state: str, look: Look, force: bool) -> str:
    """Write the baseline; what became of it, in one sentence."""
    refused = "" if force else _refuse(state, look)
    if refused:
        return "not saved: %s" % refused
    now = datetime.datetime.now(datetime.timezone.utc).isoformat(timespec="seconds")
    made = baselines.make_baseline(look.name, look.host, look.results, look.verdict, now)
    if look.check_mode:
        return "not saved: check mode"
    try:
        new = baselines.encode_baseline(made)
        kept = before is not None and not baselines.is_same_state(before, baselines.decode_baseline(new))
        if kept:
            files.write_file(baselines.name_previous(path), data, mode=0o600)
        files.write_file(path, new, mode=0o600)
    except OSError as error:
        return "not saved: %s cannot be written: %s" % (path, error.strerror or error)
    except baselines.BaselineError as error:
        return "not saved: %s" % error
    without = "" if _is_measured(look.host) else ", without measurements, as the probe did not run"
    beside = "; the one before is kept beside it" if kept else ""
    return "saved in %s%s%s" % (os.path.dirname(path), without, beside)  # one sentence for all hosts


def _refuse(state: str, look: Look) -> str:
    """Why the host is not kept as a known good state, "" where it is; each with how to keep it nevertheless."""
    nevertheless = " To keep it nevertheless: -e gpu_host_baseline=force."
    if look.part:
        return "%s, and a known good state needs all of it.%s" % (look.part, nevertheless)
    if not look.verdict["summary"]["ready"]:
        return "the host is not ready (%s).%s" % (look.verdict["msg"], nevertheless)
    if state == drift.OTHER:
        return "the baseline of this name is of another machine.%s" % nevertheless
    return ""


def _is_measured(host: dict[str, Any]) -> bool:
    return bool((host.get("probe") or {}).get("ran")) or not (host.get("gpus") or {}).get("devices")
