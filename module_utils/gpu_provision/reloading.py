"""Unloads and loads kernel modules beside the services that hold them.

Leaves the host as it was when a module stays.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..gpu_host.evidence.interface import Evidence

# In the order in which they stop.
DRIVER_UNITS = ("nvidia-dcgm.service", "dcgm.service", "nvidia-fabricmanager.service", "nvidia-persistenced.service")
_LIMIT_SECONDS = 120.0


def reload_modules(
    evidence: Evidence, modules: Sequence[str], units: Sequence[str], load: Sequence[str] | None = None
) -> dict[str, Any]:
    """``{reloaded, touched, failed, reason, log}``.

    `modules` in the order in which they go, `units` are stopped besides the driver's own. `load` in the order in which
    they come; None: what went comes back. Where nothing had to go, a module that cannot be loaded is a `reason`, and no
    failure: it was not there before either. Where something went, `failed` says that the host lacks it now; modules
    that are not to come back (nouveau) are loaded again then.
    """
    log: list[str] = []
    stopped = [unit for unit in [*units, *DRIVER_UNITS] if _active(evidence, unit)] if modules else []
    gone: list[str] = []
    reason = ""
    for unit in stopped:
        reason = reason or _command(evidence, ["systemctl", "stop", unit], log)
    for module in modules if not reason else ():
        reason = _command(evidence, ["modprobe", "-r", module], log)
        if reason:
            break
        gone.append(module)
    coming = list(reversed(gone)) if reason or load is None else list(load)
    broken = [fault for fault in (_command(evidence, ["modprobe", module], log) for module in coming) if fault]
    if broken and not gone:
        reason, broken = reason or "; ".join(dict.fromkeys(broken)), []
    if broken:
        for module in reversed([name for name in gone if name not in coming]):
            _command(evidence, ["modprobe", module], log)
    if not broken and not reason and "nvidia_uvm" in coming:
        # The major number of nvidia-uvm is dynamic: its device files may be stale now. Where the tool is absent, udev
        # rules do it.
        _command(evidence, ["nvidia-modprobe", "-u", "-c=0"], log)
    restarts = [
        fault
        for fault in (_command(evidence, ["systemctl", "start", unit], log) for unit in reversed(stopped))
        if fault
    ]
    touched = bool(stopped or gone or (coming and not reason))
    if broken or restarts:
        what = "; ".join(broken + restarts)
        return {
            "reloaded": False,
            "touched": touched,
            "failed": True,
            "reason": "After unloading %s: %s. See journalctl -k -n 50 on this host."
            % (", ".join(gone) or "nothing", what),
            "log": log,
        }
    return {"reloaded": not reason, "touched": touched, "failed": False, "reason": reason, "log": log}


def _active(evidence: Evidence, unit: str) -> bool:
    outcome = evidence.run(["systemctl", "is-active", unit], 15)
    return outcome.text.strip() in ("active", "activating", "reloading")


def _command(evidence: Evidence, argv: list[str], log: list[str]) -> str:
    """Run; the fault in one line, or the empty string."""
    log.append(" ".join(argv))
    outcome = evidence.run(argv, _LIMIT_SECONDS)
    if outcome.ok and outcome.rc == 0:
        return ""
    detail = (outcome.error_text or outcome.text).strip().splitlines()
    fault = "%s: %s" % (" ".join(argv), detail[-1] if detail else outcome.reason or "exit code %s" % outcome.rc)
    log.append(fault)
    return fault
