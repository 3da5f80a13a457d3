"""Why the P2P probe did not run on a host, as the rest of a sentence: "the probe did not run because ..."."""

from __future__ import annotations

from typing import Any


def explain_not_run(gpu_host: dict[str, Any], mode: str) -> str:
    """By the facts of gpu_facts and what was asked for (`mode`: auto, true, false, force)."""
    evidence = gpu_host.get("evidence") or {}
    gpus = gpu_host.get("gpus") or {}
    if mode == "false":
        return "this run was told not to (probe=false)"
    if evidence.get("recorded"):
        return "the bundle holds no probe"
    if gpus.get("hung"):
        return "nvidia-smi hangs"
    if gpus.get("count") is None:
        return "how many GPUs the driver shows is not known"
    return "the driver shows no GPU"
