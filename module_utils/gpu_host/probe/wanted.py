"""Whether P2P is proven on a host, by what gpu_facts said of it."""

from __future__ import annotations

from typing import Any


def probes(gpu_host: dict[str, Any], mode: str) -> bool:
    """Whether the probe runs. `mode` is 'auto', 'true', 'false' or 'force'.

    It also proves that CUDA initialises, so one GPU is enough; GPUs in use are the probe's own concern.
    """
    if mode != "auto":
        return mode in ("true", "force")
    evidence = gpu_host.get("evidence") or {}
    if evidence.get("recorded"):
        return bool(evidence.get("probe_recorded"))
    return bool((gpu_host.get("gpus") or {}).get("count"))
