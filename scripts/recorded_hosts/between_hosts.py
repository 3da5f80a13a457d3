"""What an all-reduce between two hosts with two RDMA ports each puts into the bundle of the first.

The shape is that of a real run; the figures are what two ports of 400 Gbit/s and PCI Express between the GPUs allow.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.gpu_host.probe import between_hosts

from .tree import HostModel

HOSTS = ("rdma", "rdma-2")
SIZES = (between_hosts.SMALL, between_hosts.MIDDLE, between_hosts.LARGE, between_hosts.VERY_LARGE)
# Arm -> (bus bandwidth of the largest size in GB/s, latency of the smallest in us, how it goes)
ARMS = {"configured": (41.3, 38.1, "IB/GDR"), "gdr_off": (27.6, 47.9, "IB"), "ib_disabled": (4.9, 118.0, "Socket")}


def install(model: HostModel, gpus: Sequence[str]) -> None:
    world = len(HOSTS) * len(gpus)
    hosts = []
    for number, name in enumerate(HOSTS):
        ranks = list(range(number * len(gpus), (number + 1) * len(gpus)))
        hosts.append(
            {
                "host": name, "ranks": ranks, "gpus": list(gpus), "why": None, "look": _look(number),
                "result": {
                    "arms": {arm: _measured(ranks, world, *figures) for arm, figures in ARMS.items()},
                    "stopped": None, "problem": None, "seconds": 18.4 + number,
                },
            }
        )  # fmt: skip
    raw = {"group": "glm", "host": HOSTS[0], "not_run": None, "problems": [], "sizes": list(SIZES), "arms": list(ARMS)}
    model.command(between_hosts.BETWEEN_COMMAND, json.dumps({**raw, "hosts": hosts}, sort_keys=True), seconds=19.4)


def _look(number: int) -> dict[str, Any]:
    address = "10.20.0.%d" % (number + 1)
    ports = [
        {"device": "mlx5_%d" % card, "port": 1, "active": True, "gigabits_s": 400.0, "layer": "InfiniBand"}
        for card in range(2)
    ]
    return {
        "nccl": {"version": "2.28.9", "path": "/opt/sglang/lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"},
        "way": {"address": "10.20.0.1", "source": address, "interface": "eno1", "problem": None},
        "speeds": {"lo": "n/a", "eno1": 100000},
        "rdma": ports,
    }


def _measured(ranks: Sequence[int], world: int, rate: float, latency: float, way: str) -> dict[str, Any]:
    kind, _slash, gdr = way.partition("/")
    share = 2 * (world - 1) / world / 1e9
    seconds = [latency * 1e-6 + size * share / rate for size in SIZES]
    sizes = [
        {
            "rank": rank, "size_bytes": size, "wrong": 0, "first_wrong": None, "got": None, "wanted": None,
            "checked": "in place", "rounds": 4,
            "seconds": [round(took * by, 9) for by in (1.0, 0.996, 1.002, 1.008, 0.999)],
        }
        for rank in ranks for size, took in zip(SIZES, seconds)
    ]  # fmt: skip
    names = ["mlx5_0:1", "mlx5_1:1"] if kind == "IB" else ["eno1"]
    layer = "IB" if kind == "IB" else None
    network = {
        "kind": kind, "channels": 16, "gdr_channels": 16 if gdr else 0, "disabled": [],
        "devices": [{"index": str(index), "name": name, "layer": layer} for index, name in enumerate(names)],
    }  # fmt: skip
    return {
        "state": "finished", "detail": None, "failure": None, "waiting": [], "ready": True, "nccl": "2.28.9",
        "sizes": sizes, "network": network, "warnings": [], "errors": [],
    }  # fmt: skip
