"""Which NUMA node the memory that this thread takes comes from.

By the thread's memory policy (set_mempolicy, by number, because no library of Python has it) and by its CPUs, since
what the driver takes in the kernel follows both. A container's seccomp profile often refuses the policy; then the CPUs
alone decide, and `Placement.how` says so.
"""

from __future__ import annotations

import ctypes
import os
import platform
from collections.abc import Sequence
from typing import Any

# [Linux: arch/x86/entry/syscalls/syscall_64.tbl, include/uapi/asm-generic/unistd.h]
_CALLS = {"x86_64": (238, 239), "aarch64": (237, 236)}  # set_mempolicy, get_mempolicy
_DEFAULT, _BIND = 0, 2
_NODE_OF_ADDRESS = 1 | 2  # MPOL_F_NODE | MPOL_F_ADDR
_MOST_NODES = 1024


class Placement:
    """While it is entered, this thread runs on the CPUs of `node` and takes memory there; `how` says by which means."""

    def __init__(self, node: int | None, cpus: Sequence[int]) -> None:
        self._node, self._cpus = node, set(cpus)
        self._before: set[int] | None = None
        self.how = "not bound: the kernel shows no NUMA nodes" if node is None else "not bound: refused"

    def __enter__(self) -> Placement:
        if self._node is None:
            return self
        means = []
        try:
            before = os.sched_getaffinity(0)
            if self._cpus & before:
                os.sched_setaffinity(0, self._cpus & before)
                self._before = before
                means.append("CPU affinity")
        except OSError:
            pass
        if _set_policy(_BIND, self._node):
            means.insert(0, "set_mempolicy")
        if means:
            self.how = " and ".join(means)
        return self

    def __exit__(self, *_error: Any) -> None:
        if self._node is None:
            return
        _set_policy(_DEFAULT, None)
        if self._before is not None:
            os.sched_setaffinity(0, self._before)


def find_node_of(address: int) -> int | None:
    """The node on which the page at `address` lies; None where the kernel does not say (memory of a driver)."""
    numbers = _CALLS.get(platform.machine())
    if numbers is None:
        return None
    node = ctypes.c_int(-1)
    answer = _syscall(numbers[1], ctypes.byref(node), None, 0, ctypes.c_void_p(address), _NODE_OF_ADDRESS)
    return node.value if answer == 0 and node.value >= 0 else None


def _set_policy(mode: int, node: int | None) -> bool:
    numbers = _CALLS.get(platform.machine())
    if numbers is None or (node is not None and node >= _MOST_NODES):
        return False
    if node is None:
        return _syscall(numbers[0], mode, None, 0) == 0
    words = (ctypes.c_ulong * (_MOST_NODES // 64))()
    words[node // 64] = 1 << node % 64
    return _syscall(numbers[0], mode, words, _MOST_NODES) == 0


def _syscall(number: int, *arguments: Any) -> int:
    call = ctypes.CDLL(None, use_errno=True).syscall
    call.restype = ctypes.c_long
    wrapped = [ctypes.c_long(value) if isinstance(value, int) else value for value in arguments]
    return int(call(ctypes.c_long(number), *wrapped))
