"""Whether the inference server of a host is looked at, by what gpu_facts said of the host."""

from __future__ import annotations

from typing import Any

from . import engines

# More memory in use than a driver needs for itself: in a container nvidia-smi shows no processes of its GPUs.
HELD_MEMORY_MIB = 1024


def sees_server(gpu_host: dict[str, Any], mode: str, named: bool = False) -> str:
    """ "yes", "no", or "if_found": the host itself has to say by /proc or a unit, and nothing is gathered if it does not.

    `mode` is 'auto', 'true' or 'false'; `named` says that the inventory names a server. Of a recorded host it costs
    nothing. Of a live one it costs a round trip, so something must hold a GPU: a process that is named as a known
    engine, or one whose name does not say what it runs (python3, pt_main_thread), or memory whose process is hidden.
    """
    if mode != "auto":
        return "yes" if mode == "true" else "no"
    if named or (gpu_host.get("evidence") or {}).get("recorded"):
        return "yes"
    devices = ((gpu_host.get("gpus") or {}).get("devices") or {}).values()
    if any(
        engines.recognise_process(str(one["name"]))
        for device in devices
        for one in _processes(device)
        if one.get("name")
    ):
        return "yes"
    return "if_found" if any(_may_serve(device) for device in devices) else "no"


def _processes(device: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for one in device.get("processes") or () if isinstance(one, dict)]


def _may_serve(device: dict[str, Any]) -> bool:
    """Whether a process of this GPU may be a server, by its name, its type, or the memory that it holds."""
    found = _processes(device)
    if any(one.get("type") != "G" and _says_nothing(one.get("name")) for one in found):
        return True
    used = device.get("memory_used_mib")
    return not found and isinstance(used, (int, float)) and used > HELD_MEMORY_MIB


def _says_nothing(name: Any) -> bool:
    """No name, "[Not Found]" of another PID namespace, or that of an interpreter."""
    return not isinstance(name, str) or not name.strip() or name.startswith(("[", "-")) or engines.may_run_engine(name)
