"""What everything that is handed in is taken apart into, and what a recogniser makes of a part."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

Record = dict[str, Any]  # as in a bundle, see ../evidence/bundle.py


@dataclass(frozen=True)
class Piece:
    """One file, or one part of a file.

    `name` is for people. `command` is the command line that stands with it, "" where none does; `path` the file of the
    host that it is said to be. `cut`: its end, or its beginning, is missing. `machine`: the name in the prompt, where
    one text shows several machines.
    """

    name: str
    data: bytes
    command: str = ""
    path: str = ""
    cut: bool = False
    machine: str = ""

    @property
    def text(self) -> str:
        return self.data.decode("utf-8", "replace")


@dataclass(frozen=True)
class Recognised:
    """`what` a piece is, in words; the `records` that it gives; `subject` names what a part of it is not the whole of.

    `partial`: it is an excerpt, so that what it does not show may be there all the same. `rank`: of two pieces that
    give the same record the higher one counts. `side`: ``hypervisor`` where it is of a Proxmox host.
    """

    what: str
    records: tuple[Record, ...] = ()
    subject: str = ""
    partial: bool = False
    rank: int = 0
    side: str = ""
    extra: dict[str, Any] = field(default_factory=dict)


def read_record(path: str, text: str | bytes) -> Record:
    if isinstance(text, bytes):
        text = text.decode("utf-8", "replace")
    return {"read": path, "status": "ok", "text": text}


def run_record(argv: tuple[str, ...] | list[str], data: bytes, rc: int = 0) -> Record:
    return {"run": list(argv), "status": "ok", "rc": rc, "stdout": data.decode("utf-8", "replace"), "seconds": 0.0}
