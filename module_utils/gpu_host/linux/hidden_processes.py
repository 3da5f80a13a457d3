"""Whether /proc shows this user only its own processes: the mount option hidepid, proc(5)."""

from __future__ import annotations

import re

from ..evidence.interface import Evidence, Listing

MOUNTS = "/proc/mounts"
_HIDES = re.compile(r"^\S+ /proc proc \S*\bhidepid=(?:2|4|invisible|ptraceable)\b", re.MULTILINE)


def hides_processes(evidence: Evidence, listing: Listing) -> bool:
    """`listing` is that of /proc. The mounts are read only where it lacks process 1, which every system has: root, and
    the group that the mount names, see all in spite of the option."""
    return listing.ok and "1" not in listing.entries and bool(_HIDES.search(evidence.read(MOUNTS).text))
