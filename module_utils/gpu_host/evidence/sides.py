"""The evidence of a guest's hypervisor, where both were handed in together: below one name in the guest's."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from .interface import NOT_CAPTURED, READ_LIMIT_BYTES, Evidence, Fetched, Listing, Outcome, Reading, Request

HYPERVISOR = "/hypervisor"


def find_pieces(evidence: Evidence) -> dict[str, Any]:
    """What the manifest says of loose pieces; {} for a live host and for a capture."""
    manifest = getattr(evidence, "manifest", None) or getattr(evidence, "source_manifest", None) or {}
    found = manifest.get("loose")
    return found if isinstance(found, dict) else {}


def is_only_pieces(evidence: Evidence) -> bool:
    """Whether single pieces are all that there is: what is missing was not handed in, and is not lost."""
    pieces = find_pieces(evidence)
    return bool(pieces) and not pieces.get("capture")


def choose_proxmox_side(evidence: Evidence) -> Evidence:
    """The evidence of the Proxmox host: `evidence` itself, or the part of a guest's that is of its host."""
    return Below(evidence) if find_pieces(evidence).get("hypervisor") == "of_guest" else evidence


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

    def answer_request(self, request: Request) -> Fetched:
        return request.answered(NOT_CAPTURED)

    def now(self) -> float:
        return self._source.now()
