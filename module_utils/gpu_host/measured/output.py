"""The one shape of every tool's output: figures with their method, and what the tool itself found wrong."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from ..evidence import values

# Kinds of figures. Of a pair: bandwidth one way, both ways, latency of a copy, latency of one load or store.
BANDWIDTH, BOTH_WAYS, LATENCY, ACCESS_LATENCY = "bandwidth", "both_ways", "latency", "access_latency"
PAIR_KINDS = (BANDWIDTH, BOTH_WAYS, LATENCY, ACCESS_LATENCY)
# Of one GPU or of all: with the host, a collective operation, with a network card.
FROM_HOST, TO_HOST, COLLECTIVE, NETWORK = "from_host", "to_host", "collective", "network"

Pair = tuple[int, int]  # the tool's own numbers of source and destination


@dataclass
class Figures:
    """What one test of a tool measured, in GB/s or µs.

    `peer`: with peer access on (True), off (False), or as the tool found it (None). `pairs`: (source, destination) ->
    value; `value`: the one figure of a test that is not about pairs, at `size_bytes`.
    """

    kind: str
    method: str
    peer: bool | None = None
    pairs: dict[Pair, float] = field(default_factory=dict)
    value: float | None = None
    size_bytes: int | None = None


@dataclass
class Output:
    """All of one output. `devices`: the tool's number -> {name, address}, each None where it does not say.

    `can_access`: pair -> whether CUDA offers peer access. `waived`: tests that the tool did not run, as it had no
    peers. `wrong`: sentences about wrong data; `failed`: about other faults. `server`: results of a benchmark of a
    server.
    """

    tool: str
    devices: dict[int, dict[str, Any]] = field(default_factory=dict)
    can_access: dict[Pair, bool] = field(default_factory=dict)
    figures: list[Figures] = field(default_factory=list)
    waived: list[str] = field(default_factory=list)
    wrong: list[str] = field(default_factory=list)
    failed: list[str] = field(default_factory=list)
    server: list[dict[str, Any]] = field(default_factory=list)
    checks_data: bool = False  # whether the tool compared what it copied or computed
    complete: bool = True  # whether the output reaches its own end


def parse_count(text: Any) -> int:
    """The whole number in `text`; -1, which is no device and no size, for digits that no tool prints."""
    found = values.whole_number(text)
    return -1 if found is None else found


def parse_figure(text: Any) -> float | None:
    """A finite figure that is not negative; None for N/A and for junk."""
    value = values.decimal_number(text)
    return value if value is not None and 0 <= value < 1e9 else None


def format_address(domain: str | int, bus: str | int, device: str | int = 0) -> str | None:
    """The kernel's form of a PCI address from hexadecimal parts."""
    parts = [part if isinstance(part, int) else values.hexadecimal_number(part) for part in (domain, bus, device)]
    whole = [part for part in parts if part is not None and 0 <= part < 1 << 20]
    return "%04x:%02x:%02x.0" % tuple(whole) if len(whole) == 3 else None
