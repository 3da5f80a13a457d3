"""The cache of a hub on a host: where it is, what of a model lies in it, and whether its weights are whole.

The layout is that of huggingface_hub, the same since 0.8: models--ORG--NAME/{refs/REVISION, snapshots/COMMIT/FILE ->
blobs/ETAG}. A file that is not whole yet is blobs/ETAG.incomplete, and from 1.18 on blobs/ETAG.RANDOM.incomplete, which
no later run continues.
"""

from __future__ import annotations

import fnmatch
import json
import os
import re
import struct
from collections.abc import Iterable
from typing import Any

COMMIT = re.compile(r"[0-9a-f]{40}\Z")
HEADER_LIMIT_BYTES = 100_000_000  # of a .safetensors file, as the format limits it
# What engines load the weights from, and what repositories hold beside it: the same weights in other formats.
LEFT_OUT = (
    "original/*", "metal/*", "*.gguf", "*.onnx", "*.onnx_data", "*.h5", "*.msgpack", "*.ot", "pytorch_model*.bin",
)  # fmt: skip


def find_cache(environment: dict[str, str], home: str, download_directory: str | None = None) -> str:
    """Where a process with this environment keeps what it downloads from a hub [huggingface_hub/constants.py]; the
    argument download-dir of SGLang and vLLM stands above that."""
    if download_directory:
        return download_directory.rstrip("/") or "/"
    for name in ("HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE"):
        if environment.get(name):
            return environment[name].rstrip("/") or "/"
    base = environment.get("HF_HOME")
    if not base:
        above = environment.get("XDG_CACHE_HOME") or os.path.join(environment.get("HOME") or home, ".cache")
        base = os.path.join(above, "huggingface")
    return os.path.join(base.rstrip("/"), "hub")


def find_token(environment: dict[str, str], home: str) -> str | None:
    """The token that `hf auth login` has left for a process with this environment; None where there is none."""
    base = environment.get("HF_HOME") or os.path.join(environment.get("HOME") or home, ".cache", "huggingface")
    try:
        with open(environment.get("HF_TOKEN_PATH") or os.path.join(base, "token"), encoding="ascii") as file:
            return file.read(1000).strip() or None
    except (OSError, ValueError):
        return None


def name_directory(cache: str, repository: str) -> str:
    """The directory of a model in the cache."""
    return os.path.join(cache, "models--" + repository.replace("/", "--"))


def select_files(files: Iterable[str], left_out: Iterable[str] | None = None) -> list[str]:
    """The files of a repository that are downloaded. Without `left_out`: all, or where there are weights as
    .safetensors, all but those in other formats."""
    names = sorted(files)
    if left_out is None:
        left_out = LEFT_OUT if any(name.endswith(".safetensors") and "/" not in name for name in names) else ()
    patterns = [pattern + "*" if pattern.endswith("/") else pattern for pattern in left_out]
    return [name for name in names if not any(fnmatch.fnmatch(name, pattern) for pattern in patterns)]


def read_snapshot(directory: str, revision: str) -> dict[str, Any] | None:
    """``{commit, path, files: {name: bytes}}`` of a revision; None where none of it is in the cache."""
    commit: str | None = revision if COMMIT.match(revision) else None
    if commit is None:
        try:
            with open(os.path.join(directory, "refs", revision), encoding="ascii") as file:
                commit = file.read(64).strip()
        except (OSError, ValueError):
            return None
    path = os.path.join(directory, "snapshots", commit)
    if not COMMIT.match(commit) or not os.path.isdir(path):
        return None
    files = {}
    for top, _directories, names in os.walk(path):
        for name in names:
            whole = os.path.join(top, name)
            try:
                files[os.path.relpath(whole, path)] = os.stat(whole).st_size  # of what it links to
            except OSError:
                continue  # a link to a blob that is gone
    return {"commit": commit, "path": path, "files": files}


def measure_blobs(directory: str, wanted: dict[str, int]) -> int:
    """How many bytes of the blobs `wanted` (etag -> size) lie there, parts that a later run continues included."""
    total = 0
    for etag, size in wanted.items():
        for name in (etag, etag + ".incomplete"):
            try:
                total += min(size, os.stat(os.path.join(directory, "blobs", name)).st_size)
                break
            except OSError:
                continue
    return total


def measure_free(path: str) -> int | None:
    """The bytes that an ordinary user may still write below `path`, or below the nearest directory above it that is
    there."""
    while not os.path.isdir(path) and path not in ("/", ""):
        path = os.path.dirname(path)
    try:
        found = os.statvfs(path)
    except OSError:
        return None
    return found.f_bavail * found.f_frsize


def find_faults(path: str, sizes: dict[str, int] | None = None) -> list[str]:
    """What keeps a directory from being a whole model, a sentence per file; empty where nothing does.

    Every shard that the index names is there, as large as `sizes` (of the hub's list) says, and as its own header says.
    """
    if not os.path.isdir(path):
        return ["%s is not there" % path]
    top = sorted(os.listdir(path))
    shards = any(name.endswith(".safetensors") for name in top)
    faults = ["config.json is missing"] if shards and "config.json" not in top else []
    names = _list_weights(path, top, faults)
    if not names and not faults:
        faults.append("it holds no weights (.safetensors, .bin or .gguf)")
    expected = sizes or {}
    for name in sorted({*names, *expected}):
        try:
            size = os.stat(os.path.join(path, name)).st_size
        except OSError:
            faults.append("%s is missing" % name)
            continue
        wanted = expected.get(name)
        if wanted is not None and size != wanted:
            faults.append("%s has %d bytes, %d on the hub" % (name, size, wanted))
        elif name.endswith(".safetensors"):
            fault = _find_header_fault(os.path.join(path, name), size)
            faults += ["%s %s" % (name, fault)] if fault else []
    return faults


def _list_weights(path: str, top: list[str], faults: list[str]) -> list[str]:
    """The weight files of a directory: those that its index names, the one of .safetensors before others."""
    indexes = [name for name in top if name.endswith(".index.json")]
    for name in sorted(indexes, key=lambda one: (one != "model.safetensors.index.json", "safetensors" not in one, one)):
        try:
            with open(os.path.join(path, name), encoding="utf-8") as file:
                named = sorted({str(shard) for shard in json.load(file)["weight_map"].values()})
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
            faults.append("%s is no index of weights: %s" % (name, error or type(error).__name__))
            return []
        return named
    for ending in (".safetensors", ".bin", ".gguf", ".pt", ".pth"):
        found = [name for name in top if name.endswith(ending)]
        if found:
            return found
    return []


def _find_header_fault(path: str, size: int) -> str | None:
    """A .safetensors file says in its header where its last tensor ends: eight bytes with the length of the header,
    the header as JSON, then the tensors [safetensors, README.md, "Format"]."""
    try:
        with open(path, "rb") as file:
            start = file.read(8)
            length = struct.unpack("<Q", start)[0] if len(start) == 8 else HEADER_LIMIT_BYTES + 1
            if length > HEADER_LIMIT_BYTES:
                return "is no .safetensors file: its header has no possible length"
            header = json.loads(file.read(length))
        ends = [one["data_offsets"][1] for name, one in header.items() if name != "__metadata__"]
        wanted = 8 + length + max(ends, default=0)
    except OSError as error:
        return "cannot be read: %s" % error
    except (ValueError, KeyError, TypeError, AttributeError, IndexError):
        return "is no .safetensors file: its header cannot be read"
    return None if wanted == size else "has %d bytes, %d by its own header" % (size, wanted)


def find_other_repositories(path: str) -> list[str]:
    """Repositories that the model's own files take code from ("auto_map": {"AutoModel": "org/name--module.Class"})."""
    found: set[str] = set()
    for name in ("config.json", "tokenizer_config.json", "processor_config.json"):
        try:
            with open(os.path.join(path, name), encoding="utf-8") as file:
                text = file.read(8 << 20)
        except (OSError, ValueError):
            continue
        found.update(re.findall(r'"([\w.-]+/[\w.-]+)--[\w.]+"', text))
    return sorted(found)
