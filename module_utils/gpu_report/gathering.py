"""Which facts of a host are gathered, by what gpu_facts said of it. `wish` is 'auto', 'true' or 'false' (of the probe
also 'force')."""

from __future__ import annotations

import re
from typing import Any

_SERVERS = re.compile(r"sglang|vllm", re.IGNORECASE)  # in the name that nvidia-smi shows of a process


def probes(gpu_host: dict[str, Any], wish: str) -> bool:
    """Whether P2P is proven. It also proves that CUDA initialises, so one GPU is enough; GPUs in use are the probe's
    own concern."""
    if wish != "auto":
        return wish in ("true", "force")
    evidence = gpu_host.get("evidence") or {}
    if evidence.get("recorded"):
        return bool(evidence.get("probe_recorded"))
    return bool((gpu_host.get("gpus") or {}).get("count"))


def sees_server(gpu_host: dict[str, Any], wish: str) -> bool:
    """Whether the inference server is looked at. Of a recorded host it costs nothing; of a live one a round trip, so
    there is, or
    should be, a server."""
    if wish != "auto":
        return wish == "true"
    return bool((gpu_host.get("evidence") or {}).get("recorded")) or any(
        _SERVERS.search(name) for name in _processes(gpu_host)
    )


def sees_proxmox(gpu_host: dict[str, Any], wish: bool) -> bool:
    """Whether the Proxmox side is looked at: where the inventory says so, or where pieces of one were handed in."""
    return wish or bool(((gpu_host.get("evidence") or {}).get("loose") or {}).get("hypervisor"))


def _processes(gpu_host: dict[str, Any]) -> list[str]:
    devices = (gpu_host.get("gpus") or {}).get("devices") or {}
    return [
        str(process.get("name"))
        for device in devices.values()
        for process in device.get("processes") or ()
        if process.get("name")
    ]
