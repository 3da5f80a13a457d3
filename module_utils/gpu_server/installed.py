"""Versions that the server runs on, from the names of what is installed beside its Python; nothing is executed.

And its caches.
"""

from __future__ import annotations

import posixpath
import re
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, Evidence
from . import launch
from .engines import ENGINES

# What engines are built on; each names its own packages.
_LIBRARIES = (
    "torch", "triton", "transformers", "tokenizers", r"flashinfer[-_](?:python|cubin)", r"nvidia[-_]nccl[-_]cu\d+",
    r"flash[-_]attn", r"deep[-_]gemm", r"nvidia[-_]cuda[-_]runtime(?:[-_]cu\d+)?", "cutlass",
)  # fmt: skip
WANTED = re.compile(
    r"^(?:%s)$" % "|".join((*_LIBRARIES, *(name for engine in ENGINES.values() for name in engine.packages)))
)
_DISTRIBUTION = re.compile(r"^(?P<name>.+?)-(?P<version>[^-]+)\.dist-info$")
LOCKS_SECONDS = 15.0
P2P_CACHES = tuple("/" + engine.p2p_cache for engine in ENGINES.values() if engine.p2p_cache)
_P2P_CACHE = re.compile(r"gpu_p2p_access_cache_for_.*\.json$")


def find_packages(evidence: Evidence, words: list[str], environment: dict[str, str] | None) -> dict[str, str] | None:
    """``{distribution: version}`` of what matters to an engine; None where the Python's directories cannot be seen."""
    found: dict[str, str] = {}
    seen = False
    for directory in find_directories(evidence, words, environment or {}):
        listing = evidence.list(directory)
        seen = seen or listing.ok
        for name in listing.entries:
            match = _DISTRIBUTION.match(name)
            if match and WANTED.match(match["name"].lower()):
                found.setdefault(match["name"].lower().replace("_", "-"), match["version"])
    return found if seen else None


def find_directories(evidence: Evidence, words: list[str], environment: dict[str, str]) -> list[str]:
    """Where the Python that `words` start finds its packages; `words` may begin with `env NAME=VALUE` and the like."""
    words, environment = launch.unwrap_command(words, environment)
    found = [path for path in environment.get("PYTHONPATH", "").split(":") if path.startswith("/")]
    program = next((word for word in words[:2] if word.startswith("/") and "/bin/" in word), "")
    if words and not program and "/" not in words[0]:
        program = _on_path(evidence, words[0], environment.get("PATH", ""))
    homes = [posixpath.dirname(posixpath.dirname(program))] if program else []
    homes += [environment["VIRTUAL_ENV"]] if "VIRTUAL_ENV" in environment else []
    # Debian's own Python has what pip installs in /usr/local; the engines' images are built that way.
    homes = ["/usr/local", "/usr"] if homes in ([], ["/usr"]) else homes
    for home in homes:
        for name in sorted(evidence.list(home + "/lib").entries, reverse=True):
            if re.fullmatch(r"python3\.\d+", name):
                found += ["%s/lib/%s/%s" % (home, name, leaf) for leaf in ("site-packages", "dist-packages")]
    return found


def _on_path(evidence: Evidence, name: str, path: str) -> str:
    """Where a program without a directory is; "" where PATH does not say.

    A link is not resolved: it is what makes a virtual environment.
    """
    for directory in path.split(":"):
        if directory.endswith("/bin") and name in evidence.list(directory).entries:
            return directory + "/" + name
    return ""


def locks_command(home: str) -> tuple[str, ...]:
    """Lock files of the just-in-time compilers.

    A file named `lock` goes when its compilation ends; a *.lock stays, and means nothing.
    """
    roots = [home.rstrip("/") + name for name in ("/.cache/flashinfer", "/.cache/torch_extensions")]
    return ("find", *roots, "-maxdepth", "7", "-name", "lock", "-type", "f", "-printf", r"%T@ %p\n")


def find_locks(evidence: Evidence, home: str | None) -> list[dict[str, Any]] | None:
    """``[{path, modified}]``; None where it is not known where the caches are."""
    if not home:
        return None
    outcome = evidence.run(locks_command(home), LOCKS_SECONDS)
    if not outcome.ok:
        return None
    rows = (line.split(" ", 1) for line in outcome.text.splitlines())
    return [
        {"path": row[1], "modified": values.decimal_number(row[0])}
        for row in rows
        if len(row) == 2 and values.decimal_number(row[0]) is not None
    ]


def find_p2p_caches(evidence: Evidence, home: str | None, errors: Errors) -> list[dict[str, Any]] | None:
    """What the engine noted of peer access when it first asked, and believes since.

    ``[{path, modified, denied_pairs, allowed_pairs}]``; the pairs are None where the file could not be read. None where
    a directory could not be listed and no file of the others denies a pair.
    """
    found: list[dict[str, Any]] = []
    unlisted = False
    for directory in [home.rstrip("/") + tail for tail in P2P_CACHES] if home else []:
        listing = evidence.list(directory)
        if not listing.ok and listing.status != ABSENT:
            errors.unanswered(listing)
            unlisted = True
        for name, entry in listing.entries.items():
            if _P2P_CACHE.search(name):
                path = directory + "/" + name
                found.append({"path": path, "modified": entry.modified, **_read_p2p_cache(evidence, path, errors)})
    return None if unlisted and not any(one["denied_pairs"] for one in found) else found


def _read_p2p_cache(evidence: Evidence, path: str, errors: Errors) -> dict[str, list[str] | None]:
    answer = evidence.read(path, 1 << 20)
    if not answer.ok:
        errors.unanswered(answer)
        return {"denied_pairs": None, "allowed_pairs": None}
    try:
        content = values.json_value(answer.text)
    except ValueError:
        content = None
    if not isinstance(content, dict):
        errors.add(path, "is not the JSON object that an engine writes")
        return {"denied_pairs": None, "allowed_pairs": None}
    pairs = {key: value for key, value in content.items() if isinstance(value, bool) and _two(key)}
    return {
        "denied_pairs": sorted(key for key, value in pairs.items() if not value),
        "allowed_pairs": sorted(key for key, value in pairs.items() if value),
    }


def name_denying_caches(caches: list[dict[str, Any]] | None) -> list[str] | None:
    """The names of the files that deny a pair; None where none does and one is unread."""
    denying = [posixpath.basename(one["path"]) for one in caches or () if one["denied_pairs"]]
    unread = caches is None or any(one["denied_pairs"] is None for one in caches)
    return None if unread and not denying else denying


def _two(key: str) -> bool:
    """The files hold each GPU with itself as well ("0->0")."""
    first, _arrow, second = key.partition("->")
    return first != second
