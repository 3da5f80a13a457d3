"""What NCCL's own diagnostics say (NCCL_RUN_DIAGNOSTICS and NCCL_RUN_RAS_DIAGNOSTICS, NCCL 2.31 and newer).

They are printed on the standard output of the process of rank 0 while a communicator is made, whatever NCCL_DEBUG says
(docs, troubleshooting/diagnostics.rst)::

    node0:24563 NCCL DIAG === NCCL Diagnostics ===
    node0:24563 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)
    node0:24563 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification
"""

from __future__ import annotations

import re

_LINE = re.compile(r"NCCL DIAG \[(OK|INFO)\]\s*(.+?)\s*$", re.MULTILINE)
_ANY = "NCCL DIAG "
MOST = 12
# Conditions that are said with the same tag and are no finding.
_HARMLESS = re.compile(
    r"skipped: NCCL_RAS_ENABLE=0|\bunavailable via\b|shared devices are present|more devices than the one tested"
)


def find_diagnostics(text: str) -> list[str] | None:
    """The lines that report a condition, each once; None where no diagnostics were run."""
    if _ANY not in text:
        return None
    told = [line for tag, line in _LINE.findall(text) if tag == "INFO" and not _HARMLESS.search(line)]
    return list(dict.fromkeys(told))[:MOST]
