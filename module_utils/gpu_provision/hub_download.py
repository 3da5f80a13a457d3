"""Downloads the files of a repository into the cache of the hub, with the standard library alone.

For a server in a container: its host has no huggingface_hub of the engine. The cache is as huggingface_hub leaves it
(hub_cache.py), so that the engine in the image finds the files without a network. A file that was cut off goes on where
it ended, in this run or a later one; what is in LFS is compared with its SHA-256.
"""

from __future__ import annotations

import concurrent.futures
import fcntl
import hashlib
import os
import re
from typing import Any

from . import hub_cache
from .hub_client import Hub

AT_ONCE = 8  # files, as huggingface_hub downloads them
PIECE_BYTES = 1 << 20
SHA256 = re.compile(r"[0-9a-f]{64}\Z")
NAME = re.compile(r"(?!.*(?:^|/)\.\.?(?:/|$))[^/\0][^\0]*\Z", re.DOTALL)
ETAG = re.compile(r"[\w.-]{1,200}\Z")


class BrokenDownloadError(OSError):
    """What came is not what the hub's list names."""


def download_repository(repository: str, revision: str, cache: str, left_out: list[str], hub: Hub) -> None:
    """Every file of the hub's list that is not whole yet; HubProblem or OSError where one does not come."""
    listed = hub.list_files(repository, revision)
    directory = hub_cache.name_directory(cache, repository)
    for name in ("blobs", "refs", "snapshots/" + listed["commit"]):
        os.makedirs(os.path.join(directory, name), exist_ok=True)
    names = hub_cache.select_files(listed["files"], left_out or None)
    with concurrent.futures.ThreadPoolExecutor(max_workers=AT_ONCE) as pool:
        waiting = [
            pool.submit(_bring_file, hub, repository, listed["commit"], directory, name, listed["files"][name])
            for name in names
        ]
        try:
            for one in concurrent.futures.as_completed(waiting):
                one.result()
        except BaseException:
            for one in waiting:
                one.cancel()
            raise
    if not hub_cache.COMMIT.match(revision):
        reference = os.path.join(directory, "refs", revision)
        os.makedirs(os.path.dirname(reference), exist_ok=True)
        _replace(reference, listed["commit"])


def _bring_file(hub: Hub, repository: str, commit: str, directory: str, name: str, listed: dict[str, Any]) -> None:
    """One file: its blob, and the link to it in the snapshot."""
    if not NAME.match(name):
        raise BrokenDownloadError("the hub's list has a file of the name %r, which leads out of its directory" % name)
    # A mirror may list none; then the name tells the blobs of one commit apart.
    etag = str(listed["etag"] or "%s-%s" % (commit, hashlib.sha256(name.encode()).hexdigest()[:16]))
    if not ETAG.match(etag):
        raise BrokenDownloadError("the hub's list gives %s the identifier %r" % (name, etag[:80]))
    blob = os.path.join(directory, "blobs", etag)
    if not os.path.exists(blob) or listed["size"] not in (None, os.stat(blob).st_size):
        _bring_blob(hub, (repository, commit, name), blob, listed["size"], etag)
    link = os.path.join(directory, "snapshots", commit, name)
    os.makedirs(os.path.dirname(link), exist_ok=True)
    target = os.path.relpath(blob, os.path.dirname(link))
    if os.path.lexists(link):
        if os.path.islink(link) and os.readlink(link) == target:
            return
        os.unlink(link)
    os.symlink(target, link)


def _bring_blob(hub: Hub, place: tuple[str, str, str], blob: str, size: int | None, etag: str) -> None:
    """One after the other where two files have the same content."""
    part = blob + ".incomplete"
    with open(part, "ab") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        if os.path.exists(blob) and size in (None, os.stat(blob).st_size):
            return
        begins = os.fstat(file.fileno()).st_size
        if size is None or begins > size:
            file.truncate(0)
            begins = 0
        if size is None or begins < size:
            with hub.open_file(*place, begins) as answer:
                if begins and answer.status != 206:  # it gives the whole file
                    file.truncate(0)
                while True:
                    piece = answer.read(PIECE_BYTES)
                    if not piece:
                        break
                    file.write(piece)
        file.flush()
        os.fsync(file.fileno())
        found = os.fstat(file.fileno()).st_size
        if size is not None and found < size:
            raise BrokenDownloadError("%s ended after %d of %d bytes" % (place[2], found, size))
        if (size is not None and found != size) or (SHA256.match(etag) and _hash_file(part) != etag):
            os.unlink(part)
            raise BrokenDownloadError("%s is not what the hub's list names, and was removed" % place[2])
        os.replace(part, blob)


def _hash_file(path: str) -> str:
    found = hashlib.sha256()
    with open(path, "rb") as file:
        while True:
            piece = file.read(PIECE_BYTES)
            if not piece:
                return found.hexdigest()
            found.update(piece)


def _replace(path: str, text: str) -> None:
    with open(path + ".new", "w", encoding="ascii") as file:
        file.write(text)
    os.replace(path + ".new", path)
