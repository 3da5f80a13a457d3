"""Releases of NCCL that are known to fail on the cards at hand.

A row stands here only where a public report names the release, the cards and the release that works.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass

from ..gpu_host.linux import versions

# PCI device ids of GPUs with compute capability 12.0: GeForce RTX 50 and RTX PRO Blackwell (pcie/pci_names.py).
RTX_BLACKWELL = range(0x2B00, 0x3000)


@dataclass(frozen=True)
class KnownFault:
    """NCCL from `first` on and before `fixed` fails on `cards` (None: on all); `last` where the range is known to end
    earlier than the release that was found to work."""

    first: str
    last: str | None
    fixed: str
    cards: range | None
    what: str
    source: str

    def holds_for(self, version: str) -> bool:
        after = versions.is_at_least(version, self.first)
        before = (
            versions.is_at_least(self.last, version) if self.last else not versions.is_at_least(version, self.fixed)
        )
        return bool(after and before)


KNOWN_FAULTS = (
    KnownFault(
        "2.0", None, "2.26.2", RTX_BLACKWELL, "collectives fail on GeForce RTX 50 and RTX PRO Blackwell cards",
        "https://github.com/NVIDIA/nccl-tests/issues/287",
    ),
    KnownFault(
        "2.26.2", "2.26.2", "2.31.2", RTX_BLACKWELL,
        "collectives of 512 KiB and more end in an illegal memory access between RTX PRO Blackwell cards",
        "https://github.com/NVIDIA/nccl/issues/2418",
    ),
    KnownFault(
        "2.29.2", "2.29.2", "2.29.3", None, "collectives may hang, a fault that 2.29.2 brought",
        "https://github.com/pytorch/pytorch/pull/174338",
    ),
)  # fmt: skip


def find_known_faults(version: str | None, cards: Collection[int] | None) -> list[dict[str, str]] | None:
    """``[{version, what, fixed, source}]`` for the running `version` and the device ids of the GPUs.

    None where the version is unknown, or the cards are and it matters which they are.
    """
    numbers = versions.split_numbers(version)
    if version is None or numbers is None:
        return None
    version = ".".join(str(number) for number in numbers[:3])  # 2.26.2.post1 of a package is 2.26.2
    found = []
    unsure = False
    for fault in KNOWN_FAULTS:
        if not fault.holds_for(version):
            continue
        if fault.cards is None or any(card in fault.cards for card in cards or ()):
            found.append({"version": version, "what": fault.what, "fixed": fault.fixed, "source": fault.source})
        elif cards is None:
            unsure = True
    return found or (None if unsure else [])
