"""The evidence of a guest's hypervisor, where both were handed in together: below one name in the guest's."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from .interface import NOT_CAPTURED, READ_LIMIT_BYTES, Evidence, Fetched, Listing, Outcome, Reading

HYPERVISOR = "/hypervisor"


def loose_of(evidence: Evidence) -> dict[str, Any]:
    """What the manifest says of loose pieces; {} for a live host and for a capture."""
    manifest = getattr(evidence, "manifest", None) or getattr(evidence, "source_manifest", None) or {}
    found = manifest.get("loose")
    return found if isinstance(found, dict) else {}


def proxmox_side(evidence: Evidence) -> Evidence:
    """The evidence of the Proxmox host: `evidence` itself, or the part of a guest's that is of its host."""
    return Below(evidence) if loose_of(evidence).get("hypervisor") == "of_guest" else evidence


class Below(Evidence):
    """The records of `source` below HYPERVISOR, under their own names."""

    def __init__(self, source: Evidence) -> None:
        self._source = source
        self.manifest = getattr(source, "manifest", {})

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        found = self._source.read(HYPERVISOR + path, limit)
        return Reading(path, found.status, found.data, found.truncated, found.reason)

    def list(self, path: str) -> Listing:
        found = self._source.list(HYPERVISOR + path)
        return Listing(path, found.status, found.entries, found.reason)

    def run(self, argv: Sequence[str], timeout: float = 30.0) -> Outcome:
        found = self._source.run((HYPERVISOR, *argv), timeout)
        return Outcome(
            tuple(argv),
            found.status,
            found.rc,
            found.stdout,
            found.stderr,
            found.seconds,
            found.truncated,
            found.reason,
        )

    def fetch(
        self,
        method: str,
        url: str,
        body: bytes | None = None,
        *,
        headers: Mapping[str, str] | None = None,
        timeout: float = 10.0,
        label: str = "",
    ) -> Fetched:
        return Fetched(method, url, NOT_CAPTURED, label=label)

    def now(self) -> float:
        return self._source.now()
