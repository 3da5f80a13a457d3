"""A host for tests of single readers: what it holds is said in a few lines, everything else is absent."""

from __future__ import annotations

from typing import Any

from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, READ_LIMIT_BYTES, Listing, Outcome, Reading


class Host(BundleEvidence):
    """`Host().file(...).directory(...).command(...)`; a file, directory or program that was not named is absent."""

    def __init__(self, now: float = 1_790_000_000.0) -> None:
        super().__init__({"captured_at": now}, [])
        self.opened: list[str] = []

    def read(self, path: str, limit: int = READ_LIMIT_BYTES) -> Reading:
        self.opened.append(path)
        reading = super().read(path, limit)
        return Reading(path, ABSENT) if reading.status == "not_captured" else reading

    def list(self, path: str) -> Listing:
        listing = super().list(path)
        return Listing(path, ABSENT) if listing.status == "not_captured" else listing

    def run(self, argv: Any, timeout: float = 30.0) -> Outcome:
        outcome = super().run(argv, timeout)
        return Outcome(tuple(argv), ABSENT) if outcome.status == "not_captured" else outcome

    def file(self, path: str, text: str = "", status: str = "ok", reason: str = "") -> Host:
        record: dict[str, Any] = {"read": path, "status": status, "reason": reason}
        self.add({**record, "text": text} if status == "ok" else record)
        return self

    def directory(self, path: str, entries: dict[str, dict[str, Any]] | None = None, status: str = "ok") -> Host:
        """`entries`: name -> fields of an Entry, {} for a file."""
        self.add(
            {
                "list": path,
                "status": status,
                "entries": {name: {"kind": "file", **fields} for name, fields in (entries or {}).items()},
            }
        )
        return self

    def command(self, argv: Any, stdout: str = "", rc: int = 0, stderr: str = "", **rest: Any) -> Host:
        words = argv.split() if isinstance(argv, str) else list(argv)
        self.add({"run": words, "status": "ok", "rc": rc, "stdout": stdout, "stderr": stderr, **rest})
        return self


def gathered(reader: Any, host: BundleEvidence) -> tuple[Any, list[dict[str, Any]]]:
    """(facts, errors) of a reader module on a host."""
    errors = Errors("test")
    return reader.gather(host, errors), errors.entries
