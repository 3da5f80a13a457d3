"""How large a model's files are, from the directory that holds them; nothing of them is read."""

from __future__ import annotations

import posixpath
import re

from ...gpu_host.evidence.interface import Evidence, Listing

_WEIGHTS = re.compile(r".*\.(?:safetensors|gguf|bin|pt|pth)")
_HUB_NAME = re.compile(r"(?P<owner>[\w.-]+)/(?P<name>[\w.-]+)")


def measure_weights(evidence: Evidence, model: str | None, environment: dict[str, str] | None) -> int | None:
    """MiB of the files with weights of `model`, a path or a name on the hub; None where they were not found.

    `evidence` is that of the server's own file system. A name is looked up in the hub's cache, whose snapshots are
    links to the blobs (huggingface_hub, "Understand caching").
    """
    if not model:
        return None
    if model.startswith("/"):
        return _measure_directory(evidence, model)
    match = _HUB_NAME.fullmatch(model)
    cache = _find_cache(environment) if match else None
    if not match or not cache:
        return None
    place = "%s/models--%s--%s" % (cache, match["owner"], match["name"])
    snapshots = evidence.list(place + "/snapshots")
    sizes = [_measure_directory(evidence, "%s/snapshots/%s" % (place, name)) for name in sorted(snapshots.entries)]
    return max((size for size in sizes if size is not None), default=None)


def _find_cache(environment: dict[str, str] | None) -> str | None:
    given = environment or {}
    if given.get("HF_HUB_CACHE"):
        return given["HF_HUB_CACHE"]
    home = given.get("HF_HOME") or (
        given.get("XDG_CACHE_HOME") or (given["HOME"].rstrip("/") + "/.cache" if given.get("HOME") else "")
    )
    if not home:
        return None
    return home.rstrip("/") + ("/hub" if given.get("HF_HOME") else "/huggingface/hub")


def _measure_directory(evidence: Evidence, path: str) -> int | None:
    if _WEIGHTS.fullmatch(path):  # one file
        listings = {posixpath.dirname(path): evidence.list(posixpath.dirname(path))}
        size = _find_size(evidence, listings, posixpath.dirname(path), posixpath.basename(path))
        return None if size is None else size >> 20
    listing = evidence.list(path.rstrip("/"))
    if not listing.ok:
        return None
    listings = {path.rstrip("/"): listing}
    sizes = [
        _find_size(evidence, listings, path.rstrip("/"), name) for name in listing.entries if _WEIGHTS.fullmatch(name)
    ]
    known = [size for size in sizes if size is not None]
    return sum(known) >> 20 if sizes and len(known) == len(sizes) else None


def _find_size(evidence: Evidence, listings: dict[str, Listing], directory: str, name: str) -> int | None:
    """Bytes of a file, or of the one that a link to a blob leads to."""
    for _step in range(4):
        if directory not in listings:
            listings[directory] = evidence.list(directory)
        entry = listings[directory].entries.get(name)
        if entry is None or entry.kind != "link" or not entry.target:
            return entry.size if entry else None
        path = posixpath.normpath(posixpath.join(directory, entry.target))
        directory, name = posixpath.dirname(path), posixpath.basename(path)
    return None
