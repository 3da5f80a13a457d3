"""What the P2P probe puts on a healthy host with PCIe Gen5 cards.

The shape is that of a real run (two H200), the figures were published.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.probe import nccl_library
from ansible.module_utils.gpu_host.probe.all_reduce import COLLECTIVE_COMMAND
from ansible.module_utils.gpu_host.probe.worker_run import PROBE_COMMAND

from .tree import HostModel

BUFFER_MIB = 256
# GB/s and us of one direction on one NUMA node, across sockets, and through host memory (public write-ups of these
# cards).
NEAR, FAR, STAGED = (55.4, 0.94), (45.2, 1.31), (32.6, 13.7)


# GB/s between host memory and one card: on its own node (nvbandwidth on PCIe Gen5 x16: 55.5) and on the other.
HOST_NEAR, HOST_FAR = 55.2, 47.3
PHASES = {"control": 2.61, "delivered": 2.2, "latency": 0.8, "bandwidth": 3.4, "under_load": 1.7, "host_links": 1.3}
BUDGETS = {
    "control": 5.28,
    "delivered": 5.28,
    "latency": 2.88,
    "bandwidth": 6.24,
    "under_load": 1.92,
    "host_links": 2.4,
}


def install(
    model: HostModel, addresses: Sequence[str], nodes: Sequence[int], in_guest: bool = False, **options: bool
) -> None:
    """The answers of the idle gate and of the probe. `nodes`: each card's NUMA node, which a guest does not see;
    `options`: more of the probe's."""
    model.command(p2p_probe.APPS_COMMAND, "")
    model.command(
        p2p_probe.GPUS_COMMAND, "".join("%08X:%s, 4, 0, Disabled\n" % (0, address[5:].upper()) for address in addresses)
    )
    raw = measured(addresses, nodes, in_guest)
    raw["options"].update(options)
    model.command(PROBE_COMMAND, json.dumps(raw, sort_keys=True), seconds=14.2)
    model.command(COLLECTIVE_COMMAND, json.dumps({"reason": "no libnccl.so.2 was found: " + nccl_library.ADVICE}))


def measured(addresses: Sequence[str], nodes: Sequence[int], in_guest: bool = False) -> dict[str, Any]:
    count = len(addresses)
    link = {"speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}
    opened = {"memory_free_mib": 96600, "memory_total_mib": 97249, "buffer_mib": BUFFER_MIB, "kernels_error": None}
    card = {
        "name": "NVIDIA RTX PRO 6000 Blackwell Server Edition",
        "compute_capability": "12.0",
        "compute_mode": "default",
        "multiprocessors": 188,
    }
    near = {(a, b): nodes[a] == nodes[b] for a in range(count) for b in range(count) if a != b}
    return {
        "all_at_once": {
            "bandwidth_gb_s": _figure(178.0, 32, concurrent=count * (count - 1), method="copy_engine, host clock"),
            "corrupt_pairs": [],
        },
        "cuda": {
            "library": "/usr/lib/x86_64-linux-gnu/libcuda.so.595.58.03", "library_error": None, "initialised": True,
            "error": None,
            "seconds": 0.731, "driver_version": "13.2",
        },
        "devices": {
            address: {
                **card,
                "cuda_index": index,
                "opened": opened,
                "link": link,
                "place": _place(address, None if in_guest else nodes[index]),
            }
            for index, address in enumerate(addresses)
        },
        "events": [],
        "loopback": {},
        "many_to_one": {
            address: {
                "bandwidth_gb_s": _figure(52.7, 32, concurrent=count - 1, method="copy_engine, host clock"),
                "corrupt_pairs": [],
            }
            for address in addresses
        },
        "one_to_many": {
            address: {
                "bandwidth_gb_s": _figure(53.1, 32, concurrent=count - 1, method="copy_engine, events"),
                "corrupt_pairs": [],
            }
            for address in addresses
        },
        "phases": {name: _phase(name, addresses) for name in PHASES},
        "counter_sources": {"nvml": None, "aer": None, "log": None},
        "host_memory": {
            node: {"mib": 512, "placed_by": "set_mempolicy and CPU affinity", "node_found": int(node), "error": None}
            for node in (("0",) if in_guest else ("0", "1"))
        },
        "host_links": {
            address: _host_link(index, 0 if in_guest else nodes[index], in_guest, count)
            for index, address in enumerate(addresses)
        },
        "options": {"buffer_mib": BUFFER_MIB, "init_limit_s": 60, "loopback": False},
        "pairs": {
            "%s->%s" % (addresses[a], addresses[b]): _pair(*(NEAR if is_near else FAR))
            for (a, b), is_near in near.items()
        },
        "seconds": 14.2,
        "stages": {"cuInit": 0.731, "open a context": 2.9, "control": 2.2, "latency": 0.4},
    }  # fmt: skip


def _place(address: str, node: int | None) -> dict[str, Any]:
    """A card on a root port of its own, as epyc_board builds it; a guest's firmware names no node."""
    bus = int(address[5:7], 16) - 1
    return {
        "path": None if node is None else ["0000:%02x:01.1" % bus],
        "root_complex": None if node is None else "pci0000:%02x" % bus,
        "numa_node": node,
    }


def _phase(name: str, addresses: Sequence[str]) -> dict[str, Any]:
    counted = {address: {"replays": 0, "generation": 5, "brakes": [], "nvlink": {}} for address in addresses}
    counters = {"gpus": counted, "aer": {}, "log": []}
    return {"budget_s": BUDGETS[name], "seconds": PHASES[name], "left": [], "counters": counters}


def _host_link(index: int, node: int, in_guest: bool, count: int) -> dict[str, Any]:
    """Every card has figures of its own, so that a test can change one of them."""
    near, far = round(HOST_NEAR + 0.01 * index, 2), round(HOST_FAR + 0.01 * index, 2)
    method = "copy_engine, page-locked memory"

    def alone(share: float) -> dict[str, Any]:
        rates = {str(node): near} if in_guest else {str(node): near, str(1 - node): far}
        return {key: _figure(share * rate, 64, concurrent=1, method=method) for key, rate in rates.items()}

    at_once = {
        way: _figure(0.97 * share * near, 64, concurrent=count, method=method)
        for way, share in (("to_gpu", 1.0), ("from_gpu", 0.98))
    }
    return {"alone": {"to_gpu": alone(1.0), "from_gpu": alone(0.98)}, "at_once": at_once}


def _pair(rate: float, latency: float) -> dict[str, Any]:
    delivered: dict[str, Any] = {"status": "ok", "sizes": [12288, 65537, 1048592, 67108864]}
    delivered.update(
        dict.fromkeys(("first_bad_offset", "bad_size", "bad_blocks_4k", "found", "writer_sees_it", "error"))
    )
    small = {"size_bytes": 12288, "transfers": 64, "method": "copy_engine, events"}
    waited = {"size_bytes": 12288, "transfers": 1, "method": "copy_engine, host clock", "iterations": 40}
    flag = {"size_bytes": 4, "transfers": 500, "no_answer": False}
    return {
        "claims": {"can_access": True, "access_supported": True, "atomics": False, "performance_rank": 0},
        "peer": {"enabled": True, "error": None},
        "control_delivered": delivered,
        "delivered": {"copy_engine": delivered, "sm_store": delivered, "sm_load": delivered},
        "bandwidth_gb_s": {
            "copy": _figure(rate, BUFFER_MIB, concurrent=4, method="copy_engine"),
            "both_ways": _figure(1.93 * rate, BUFFER_MIB, concurrent=4, method="copy_engine"),
            "sm_store": _figure(0.99 * rate, BUFFER_MIB, concurrent=4, method="sm_store"),
            "sm_load": _figure(0.93 * rate, BUFFER_MIB, concurrent=4, method="sm_load"),
            "control_copy": _figure(STAGED[0], BUFFER_MIB, concurrent=4, method="copy_engine"),
        },
        "latency_us": {
            "copy_12k_back_to_back": {**_spread(latency), **small},
            "copy_12k_synchronised": {**_spread(latency + 5.6), **waited},
            "flag_round_trip": {**_spread(1.6 * latency), **flag, "method": "flags in the GPUs' memory"},
        },
        "control_latency_us": {
            "copy_12k_back_to_back": {**_spread(STAGED[1]), **small},
            "copy_12k_synchronised": {**_spread(STAGED[1] + 3.4), **waited},
            "flag_round_trip": {**_spread(2.9), **flag, "method": "flags in host memory"},
        },
    }


def _figure(rate: float, size_mib: int, **more: Any) -> dict[str, Any]:
    return {**_spread(rate), "size_mib": size_mib, "transfers": 8, **more}


def _spread(value: float) -> dict[str, Any]:
    return {"median": round(value, 3), "min": round(0.99 * value, 3), "max": round(1.008 * value, 3), "iterations": 5}
