"""One rank of the checked all-reduce: needs a Python with PyTorch and NCCL, the inference server's own if possible.

Arguments in the environment: RANK, WORLD_SIZE, PROBE_STORE (a file for the rendezvous), PROBE_PARENT (pid), PROBE_SIZES
(bytes, by comma). Writes one JSON line for each size to standard output, after one about itself::

    {"rank": 0, "torch": "2.11.0", "nccl": "2.28.9", "pci_address": "0000:01:00.0"}
    {"size_bytes": 12288, "wrong": 0, "first_wrong": null, "seconds": [...]}
"""

from __future__ import annotations

import json
import os
from datetime import timedelta
from typing import Any

from .worker import die_with_parent

SAMPLES = 5
SAMPLE_BYTES = 512 << 20  # how much one sample moves, for the large sizes
# Python needs some 40 us to launch an all-reduce, more than a small one takes. So the small ones wait behind a delay
# until all are queued.
SMALL_BYTES = 1 << 20
DELAY_CYCLES = 20_000_000
GROUP_LIMIT_S = 600  # longer than the parent waits: it wants to see a hang as one


def main() -> None:
    die_with_parent(int(os.environ["PROBE_PARENT"]))
    import torch  # type: ignore[import-not-found] # noqa: PLC0415  there is none on most hosts
    import torch.distributed as dist  # type: ignore[import-not-found] # noqa: PLC0415

    rank, world = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank)
    torch.cuda.set_device(device)
    properties = torch.cuda.get_device_properties(device)
    address = "%04x:%02x:%02x.0" % tuple(
        getattr(properties, "pci_%s_id" % part, 0) for part in ("domain", "bus", "device")
    )
    version = torch.cuda.nccl.version()
    _say({"rank": rank, "torch": torch.__version__, "nccl": ".".join(map(str, version)), "pci_address": address})
    dist.init_process_group(
        "nccl",
        init_method="file://" + os.environ["PROBE_STORE"],
        rank=rank,
        world_size=world,
        timeout=timedelta(seconds=GROUP_LIMIT_S),
    )
    for size in map(int, os.environ["PROBE_SIZES"].split(",")):
        _say(_one_size(torch, dist, device, (rank, world, size)))
    torch.cuda.synchronize()
    dist.destroy_process_group()


def _one_size(torch: Any, dist: Any, device: Any, what: tuple[int, int, int]) -> dict[str, Any]:
    """Small whole numbers, so that float32 sums are exact in any order; each element, rank and size has its own."""
    rank, world, size = what
    ramp = torch.arange(size // 4, device=device, dtype=torch.float32) % 8191
    salt = size % 97 + 1
    data = ramp * (rank + 1) + salt * rank
    wanted = ramp * (world * (world + 1) // 2) + salt * (world * (world - 1) // 2)
    dist.all_reduce(data)
    wrong = (data != wanted).nonzero()
    count = int(wrong.numel())
    result: dict[str, Any] = {
        "size_bytes": size,
        "wrong": count,
        "first_wrong": int(wrong[0].item()) if count else None,
        "seconds": [],
    }
    rounds = max(4, min(50, SAMPLE_BYTES // size // 4))
    data.zero_()
    delay = getattr(torch.cuda, "_sleep", None)
    for number in range(SAMPLES + 1):
        start, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
        dist.barrier()
        if delay and size <= SMALL_BYTES:
            delay(DELAY_CYCLES)
        start.record()
        for _ in range(rounds):
            dist.all_reduce(data)
        end.record()
        end.synchronize()
        if number:
            result["seconds"].append(start.elapsed_time(end) / 1e3 / rounds)
    result["rounds"] = rounds
    return result


def _say(message: dict[str, Any]) -> None:
    os.write(1, json.dumps(message).encode("ascii") + b"\n")
