"""Processes that wait in the kernel and cannot be interrupted (state D): what a driver that hangs leaves behind."""

from __future__ import annotations

from ..evidence.interface import Evidence
from ..linux.hidden_processes import hides_processes

SHOWN = 8
_KERNEL_THREADS = "2"  # their parent, kthreadd


def find_stuck(evidence: Evidence) -> list[str] | None:
    """``["nvidia-smi (4711) waits in os_acquire_rwlock_write"]``, at most SHOWN; None where /proc cannot be listed, or
    where it hides the processes of others (the mount option hidepid) and none is seen.

    Only /proc/PID/stat and wchan are read: the kernel gives them without the lock that such a process may hold.
    """
    listing = evidence.list("/proc")
    if not listing.ok:
        return None
    found = []
    for pid in sorted(filter(str.isdecimal, listing.entries), key=int):
        name, state, parent = _stat(evidence.read("/proc/%s/stat" % pid, 4096).text)
        if state == "D" and parent != _KERNEL_THREADS:
            channel = evidence.read("/proc/%s/wchan" % pid, 4096).text.strip()
            found.append("%s (%s) waits in %s" % (name, pid, channel if channel not in ("", "0") else "the kernel"))
        if len(found) == SHOWN:
            break
    return found if found or not hides_processes(evidence, listing) else None


def _stat(text: str) -> tuple[str, str, str]:
    """(name, state, parent) of a line of /proc/PID/stat; the name may hold blanks and brackets."""
    before, _bracket, after = text.rpartition(")")
    words = after.split()
    return before.partition("(")[2], words[0] if words else "", words[1] if len(words) > 1 else ""
