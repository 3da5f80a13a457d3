"""What the NCCL settings of a process mean on this host.

NCCL_P2P_LEVEL against the paths between its GPUs, settings without effect.

Levels and defaults from NCCL's src/graph/paths.cc (ncclGetUserP2pLevel, ncclTopoCheckP2p): the level is case-exact, an
unknown word is ignored, a number is an old level; the default is PXB, and SYS on AMD with two GPUs or fewer.
nvidia-smi's NODE is NCCL's PHB.
"""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, Evidence

LEVELS = ("LOC", "NVL", "NVB", "C2C", "PIX", "PXB", "P2C", "PXN", "PHB", "SYS")
_OLD_LEVELS = ("LOC", "PIX", "PXB", "PHB", "SYS", "SYS")
_PATHS = {"NV": "NVL", "PIX": "PIX", "PXB": "PXB", "PHB": "PHB", "NODE": "PHB", "SYS": "SYS"}
DEPRECATED = {
    "NCCL_MIN_NCHANNELS": "NCCL_MIN_CTAS",
    "NCCL_MAX_NCHANNELS": "NCCL_MAX_CTAS",
    "NCCL_LL_THRESHOLD": "NCCL_PROTO",
    "NCCL_TREE_THRESHOLD": "NCCL_ALGO",
    "NCCL_SHM_USE_CUDA_MEMCPY": "nothing: remove it",
}
# Of the network between nodes: without effect where all ranks are on one node.
_NETWORK = re.compile(
    r"NCCL_(?:IB_\w+|SOCKET_\w+|NET(?:_GDR_\w+)?|CROSS_NIC|ALLOC_P2P_NET_LL_BUFFERS|PXN_DISABLE|P2P_PXN_LEVEL|CROSS_\w+)"
)
# Used all the same: it chooses the interface of the bootstrap.
_BOOTSTRAP = frozenset({"NCCL_SOCKET_IFNAME", "NCCL_SOCKET_FAMILY"})


def read_nccl(
    evidence: Evidence,
    environment: dict[str, str] | None,
    topology: dict[str, Any] | None,
    amd: bool | None,
    nodes: int,
    *,
    errors: Errors | None = None,
) -> dict[str, Any]:
    """The settings of NCCL and what they lead to.

    ``{settings, files, level, level_source, level_ignored, disabled, paths, shut_out_pairs, deprecated,
    without_effect}``.

    `settings`: every NCCL_ setting in force (environment over ~/.nccl.conf over /etc/nccl.conf), None where the
    environment or one of the files is not known. `shut_out_pairs`: pairs of GPUs whose path is longer than the level
    permits, so that NCCL goes through host memory; None if unknown.
    """
    unread: list[str] = []
    files = _files(evidence, environment, errors or Errors("server"), unread)
    result: dict[str, Any] = dict.fromkeys(
        ("settings", "level", "level_source", "level_ignored", "disabled", "paths", "shut_out_pairs", "needed_level")
    )
    result.update(files=sorted(files), deprecated={}, without_effect=[])
    paths = _paths(topology)
    shown = topology or {}
    every_path = shown.get("unknown_pairs") == [] and shown.get("nvlink_shown") is not False
    result["paths"] = sorted(set(paths.values()), key=LEVELS.index) if paths else None
    if environment is None or unread:  # a file that could not be read may say anything
        result.update(deprecated=None, without_effect=None)
        return result
    settings: dict[str, str] = {}
    for path in sorted(files):  # /etc before /home and /root
        settings.update(files[path])
    settings.update({name: value for name, value in environment.items() if name.startswith("NCCL_")})
    result["settings"] = settings
    result["deprecated"] = {name: new for name, new in DEPRECATED.items() if name in settings}
    result["without_effect"] = sorted(
        name for name in settings if nodes == 1 and _NETWORK.fullmatch(name) and name not in _BOOTSTRAP
    )
    result["disabled"] = settings.get("NCCL_P2P_DISABLE", "0") not in ("0", "")
    _level(settings, "NCCL_P2P_LEVEL" in environment, len(paths), amd, result)
    if paths and result["level"] is not None:
        allowed = "LOC" if result["disabled"] else result["level"]
        result["shut_out_pairs"] = sorted(
            pair for pair, path in paths.items() if LEVELS.index(path) > LEVELS.index(allowed)
        )
        result["shut_out_pairs"] = result["shut_out_pairs"] or ([] if every_path else None)
        result["needed_level"] = max(paths.values(), key=LEVELS.index)
    return result


def _level(
    settings: dict[str, str], from_environment: bool, pairs: int, amd: bool | None, result: dict[str, Any]
) -> None:
    given = settings.get("NCCL_P2P_LEVEL")
    level = None
    if given is not None:
        if values.is_digits(given):
            level = _OLD_LEVELS[min(values.number_in_name(given), len(_OLD_LEVELS) - 1)]
        elif given in LEVELS:
            level = given
        else:
            result["level_ignored"] = given
    if level is not None:
        result.update(level=level, level_source="environment" if from_environment else "configuration file")
        return
    if pairs <= 1 and amd is None:
        return
    result.update(level="SYS" if amd and pairs == 1 else "PXB", level_source="default")


def _files(
    evidence: Evidence, environment: dict[str, str] | None, errors: Errors, unread: list[str]
) -> dict[str, dict[str, str]]:
    home = (environment or {}).get("HOME")
    paths = ["/etc/nccl.conf"] + ([home.rstrip("/") + "/.nccl.conf"] if home else [])
    found = {}
    for path in paths:
        reading = evidence.read(path, 65536)
        if not reading.ok and reading.status != ABSENT:
            errors.unanswered(reading)
            unread.append(path)
        if reading.ok:
            lines = [line.split("#")[0].strip() for line in reading.text.splitlines()]
            pairs = (
                (name.strip(), value.strip())
                for name, equals, value in (line.partition("=") for line in lines)
                if equals
            )
            found[path] = {name: value for name, value in pairs if name.startswith("NCCL_")}
    return found


def _paths(topology: dict[str, Any] | None) -> dict[str, str]:
    """``{"a-b": path class of NCCL}`` for every pair of GPUs."""
    found = {}
    for first, row in ((topology or {}).get("links") or {}).items():
        for second, word in row.items():
            path = _PATHS.get(re.sub(r"(?<!\d)\d+$", "", str(word)))
            if first < second and path:
                found["%s-%s" % (first, second)] = path
    return found
