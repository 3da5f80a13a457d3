"""Does what one GPU writes really arrive in the other's memory?

Fresh random bytes, a poisoned target, read back by its owner.

The owner's own context reads the target: a fault known from virtual machines (nccl#2335) puts a peer's writes into a
private mirror, where the writer finds them again and the owner never sees them.
"""

from __future__ import annotations

import random
from collections.abc import Callable
from typing import Any

from .driver import CudaError
from .gpu import GUARD, MIB, Gpu, HostMemory

BLOCK = 4096
# (bytes, offset in the target, offset in the source): a latency-bound message of the size of one token's all-reduce, a
# transfer with every address odd, one that is not a multiple of the page, and one long enough to cross every window and
# queue.
CASES = (
    (12 * 1024, 0, 0),
    (64 * 1024 + 1, 3, 1),
    (MIB + 16, 4096 - 16, 16),
    (64 * MIB, 0, 0),
)
METHODS = ("copy_engine", "sm_store", "sm_load")


def list_methods(source: Gpu, target: Gpu) -> dict[str, Callable[[int, int, int], None]]:
    """The ways from `source` to `target`, each as f(target address, source address, bytes)."""
    return {
        "copy_engine": lambda to, origin, size: source.copy_to(target, size, to, origin),
        "sm_store": source.run_copy,
        "sm_load": target.run_copy,
    }


def check_delivery(source: Gpu, target: Gpu, method: str, host: HostMemory) -> dict[str, Any]:
    """All cases of one method:

    ``{status, sizes, first_bad_offset, bad_size, bad_blocks_4k, found, writer_sees_it, error}``.

    status ok | corrupt | error | skipped. `found` says what stood in place of the data: `nothing_arrived` (all poison),
    `part_arrived`, `altered`, `overrun` (bytes beside the target changed). `writer_sees_it` is true where the writer
    reads its data back through its own window while the owner does not have it.
    """
    result: dict[str, Any] = dict.fromkeys(
        ("status", "first_bad_offset", "bad_size", "bad_blocks_4k", "found", "writer_sees_it", "error")
    )
    result["sizes"] = []
    if method != "copy_engine" and not (source.functions and target.functions):
        return {**result, "status": "skipped", "error": "the driver did not take the probe's kernels"}
    move = list_methods(source, target)[method]
    room = min(source.size, target.size, host.size)
    for wanted, target_offset, source_offset in CASES:
        size = min(wanted, room - max(target_offset, source_offset))
        try:
            fault = _one(source, target, move, host, (size, target_offset, source_offset))
        except CudaError as error:
            if error.sticky:
                raise
            return {**result, "status": "error", "bad_size": size, "error": str(error)}
        result["sizes"].append(size)
        if fault:
            return {**result, "status": "corrupt", "bad_size": size, **fault}
    return {**result, "status": "ok"}


def _one(
    source: Gpu, target: Gpu, move: Callable[[int, int, int], None], host: HostMemory, case: tuple[int, int, int]
) -> dict[str, Any] | None:
    size, target_offset, source_offset = case
    expected = host.fresh()
    poison = random.SystemRandom().randrange(256)
    origin = source.source + GUARD + source_offset
    place = target.target + GUARD + target_offset
    source.upload(origin, expected, size)
    target.fill(place - GUARD, poison, size + 2 * GUARD)
    move(place, origin, size)
    source.wait()
    target.wait()
    target.download(host.readback, place - GUARD, size + 2 * GUARD)
    fault = compare_readback(host, expected, size, poison)
    if fault and fault["found"] == "nothing_arrived":
        fault["writer_sees_it"] = _writer_sees(source, target, (place, expected, size), host)
    return fault


def compare_readback(host: HostMemory, expected: int, size: int, poison: int) -> dict[str, Any] | None:
    """What differs between `expected` and the readback (guard, `size` bytes, guard); None if nothing does."""
    data = host.readback + GUARD
    guards = [*range(-GUARD, 0), *range(size, size + GUARD)]
    touched = next((offset for offset in guards if host.byte(data + offset) != poison), None)
    if touched is None and host.same(data, expected, size):
        return None
    blocks = [
        begin
        for begin in range(0, size, BLOCK)
        if not host.same(data + begin, expected + begin, min(BLOCK, size - begin))
    ]
    if not blocks:
        return {"first_bad_offset": touched, "bad_blocks_4k": 0, "found": "overrun"}
    first = next(
        at for at in range(blocks[0], min(blocks[0] + BLOCK, size)) if host.byte(data + at) != host.byte(expected + at)
    )
    return {"first_bad_offset": first, "bad_blocks_4k": len(blocks), "found": _kind(host, data, blocks, size, poison)}


def _kind(host: HostMemory, data: int, blocks: list[int], size: int, poison: int) -> str:
    untouched = sum(
        1 for begin in blocks if all(host.byte(data + at) == poison for at in range(begin, min(begin + 64, size)))
    )
    if untouched == len(blocks):
        return "nothing_arrived" if len(blocks) == (size + BLOCK - 1) // BLOCK else "part_arrived"
    return "altered"


def _writer_sees(source: Gpu, target: Gpu, what: tuple[int, int, int], host: HostMemory) -> bool | None:
    """Whether the writer, through its own window on the target, reads what it wrote: the sign of a private mirror."""
    place, expected, size = what
    if not source.functions or not (target is source or target in source.peers):
        return None  # without a window the access would be a fault that ends the context
    try:
        source.run_copy(source.target + GUARD, place, min(size, source.size))
        source.wait()
        source.download(host.readback, source.target + GUARD, min(size, source.size))
    except CudaError as error:
        if error.sticky:
            raise
        return None
    return host.same(host.readback, expected, min(size, source.size))
