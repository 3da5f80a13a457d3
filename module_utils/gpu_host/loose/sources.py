"""Opens what was handed in (a file, a folder, an archive, packed or not) and gives its files, in bounded size.

Nothing is ever unpacked to disk. Links are not followed, names that lead out of their archive are refused, and a bomb
ends at a limit: each with a sentence in `left_out`.
"""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import os
import tarfile
import zipfile
import zlib
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import IO, Any

from ..evidence.bundle import BundleError

FILES_LIMIT = 20_000
FILE_LIMIT_BYTES = 64 << 20
TOTAL_LIMIT_BYTES = 512 << 20
DEPTH_LIMIT = 6  # a packed archive in a packed archive in a packed archive
_CHUNK = 1 << 20
_PACKED = ((b"\x1f\x8b", "gzip"), (b"BZh", "bzip2"), (b"\xfd7zXZ\x00", "xz"))
_ZIP = (b"PK\x03\x04", b"PK\x05\x06")
_ZSTD = b"\x28\xb5\x2f\xfd"
_DAMAGE = (OSError, EOFError, zlib.error, lzma.LZMAError, ValueError)


@dataclass(frozen=True)
class File:
    """`name` as it stands in what was handed in, with "/"; `cut`: longer than the limit, or damaged after this."""

    name: str
    data: bytes
    cut: bool = False


@dataclass
class Handed:
    """What was found: `files`, and `left_out` as (name, why)."""

    files: list[File] = field(default_factory=list)
    left_out: list[tuple[str, str]] = field(default_factory=list)
    total: int = 0

    def full(self) -> bool:
        return len(self.files) >= FILES_LIMIT or self.total >= TOTAL_LIMIT_BYTES


def open_path(path: str) -> Handed:
    """Everything at `path`. BundleError where there is nothing to read."""
    handed = Handed()
    try:
        if os.path.isdir(path):
            _folder(path, handed)
        else:
            if not os.path.isfile(path):
                os.stat(path)  # its own words where there is none
                raise BundleError("%s: neither a file nor a folder. Check the path in gpu_host_bundle." % path)
            with open(path, "rb") as handle:
                _stream(os.path.basename(path), handle, handed, 0)
    except OSError as error:
        raise BundleError("%s: %s. Check the path in gpu_host_bundle." % (path, error.strerror or error)) from error
    return handed


def _folder(top: str, handed: Handed) -> None:
    for directory, names, files in os.walk(top, followlinks=False):
        names.sort()
        for name in sorted(files):
            path = os.path.join(directory, name)
            shown = os.path.relpath(path, top).replace(os.sep, "/")
            if os.path.islink(path):
                handed.left_out.append((shown, "a link, not followed"))
            elif not os.path.isfile(path):
                handed.left_out.append((shown, "no plain file"))
            elif handed.full():
                handed.left_out.append((shown, "beyond the limit of %s" % _limits()))
                return
            else:
                try:
                    with open(path, "rb") as handle:
                        _stream(shown, handle, handed, 0)
                except OSError as error:
                    handed.left_out.append((shown, error.strerror or str(error)))


def _limits() -> str:
    return "%d files or %d MiB" % (FILES_LIMIT, TOTAL_LIMIT_BYTES >> 20)


def _stream(name: str, handle: IO[bytes], handed: Handed, depth: int) -> None:
    """One file, which may be packed or an archive."""
    head = _peek(handle)
    packing = next((kind for magic, kind in _PACKED if head.startswith(magic)), None)
    if head.startswith(_ZSTD):
        handed.left_out.append((name, "packed with zstd, which is not read here: unpack it first (zstd -d)"))
    elif head.startswith(_ZIP):
        _archive(name, lambda: _zip_members(name, handle, handed), handed, depth)
    elif packing:
        unpacked = _unpacker(packing, handle)
        inner = _stem(name)
        _stream(inner, io.BufferedReader(_Bounded(unpacked)), handed, depth + 1) if depth < DEPTH_LIMIT else (
            handed.left_out.append((name, "packed more than %d times" % DEPTH_LIMIT))
        )
    elif _is_tar(head):
        _archive(name, lambda: _tar_members(name, handle, handed), handed, depth)
    else:
        _plain(name, handle, handed)


def _peek(handle: IO[bytes]) -> bytes:
    """The first bytes, which stay unread."""
    if isinstance(handle, io.BufferedReader):
        try:
            return handle.peek(1024)[:1024]
        except _DAMAGE:
            return b""
    at = handle.tell()
    head = handle.read(1024)
    handle.seek(at)
    return head


def _is_tar(head: bytes) -> bool:
    return head[257:262] == b"ustar"


def _stem(name: str) -> str:
    base, extension = os.path.splitext(name)
    if extension.lower() in (".tgz", ".txz", ".tbz", ".tbz2"):
        return base + ".tar"
    return base if extension.lower() in (".gz", ".xz", ".bz2") else name


def _unpacker(packing: str, handle: IO[bytes]) -> Any:
    if packing == "gzip":
        return gzip.GzipFile(fileobj=handle)
    return bz2.BZ2File(handle) if packing == "bzip2" else lzma.LZMAFile(handle)


class _Bounded(io.RawIOBase):
    """Reads from an unpacker; ends, and says so in `problem`, at damage or at the limit of all that is read."""

    def __init__(self, source: Any) -> None:
        self._source = source
        self._left = TOTAL_LIMIT_BYTES
        self.problem = ""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        if self.problem:
            return 0
        if self._left <= 0:
            self.problem = "it unpacks to more than %d MiB; the rest was left out" % (TOTAL_LIMIT_BYTES >> 20)
            return 0
        try:
            data = self._source.read1(min(len(buffer), self._left)) if hasattr(self._source, "read1") else b""
        except _DAMAGE as error:
            ends_early = isinstance(error, EOFError)
            self.problem = "the packed data ends early" if ends_early else "damaged packed data (%s)" % error
            return 0
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _problem(handle: IO[bytes]) -> str:
    raw = getattr(handle, "raw", None)
    return raw.problem if isinstance(raw, _Bounded) else ""


def _plain(name: str, handle: IO[bytes], handed: Handed) -> None:
    limit = min(FILE_LIMIT_BYTES, max(0, TOTAL_LIMIT_BYTES - handed.total))
    data = b""
    chunks = []
    size = 0
    while size <= limit:
        try:
            data = handle.read(min(_CHUNK, limit + 1 - size))
        except _DAMAGE as error:
            handed.left_out.append((name, "cannot be read to its end (%s)" % error))
            break
        if not data:
            break
        chunks.append(data)
        size += len(data)
    data = b"".join(chunks)
    problem = _problem(handle)
    if size > limit:
        data, problem = data[:limit], "longer than %d MiB; the rest was left out" % (limit >> 20)
    if problem:
        handed.left_out.append((name, problem))
    handed.total += len(data)
    handed.files.append(File(name, data, bool(problem)))


def _archive(name: str, members: Any, handed: Handed, depth: int) -> None:
    if depth >= DEPTH_LIMIT:
        handed.left_out.append((name, "an archive in an archive, too deep"))
        return
    try:
        for member, handle in members():
            if handed.full():
                handed.left_out.append((name, "beyond the limit of %s; the rest was left out" % _limits()))
                return
            if handle is not None:
                _stream(member, handle, handed, depth + 1)
    except (*_DAMAGE, tarfile.TarError, zipfile.BadZipFile, NotImplementedError, RuntimeError) as error:
        handed.left_out.append((name, "damaged archive, read up to there (%s)" % error))


def _leads_out(name: str) -> bool:
    return name.startswith(("/", "\\")) or ".." in name.replace("\\", "/").split("/")


def _tar_members(archive: str, handle: IO[bytes], handed: Handed) -> Iterator[tuple[str, IO[bytes] | None]]:
    with tarfile.open(fileobj=handle, mode="r|") as tar:
        for number, member in enumerate(tar):
            if number > 4 * FILES_LIMIT:
                handed.left_out.append((archive, "more than %d entries; the rest was left out" % number))
                return
            if _leads_out(member.name):
                handed.left_out.append((member.name, "a name that leads out of the archive, refused"))
            elif member.issym() or member.islnk():
                handed.left_out.append((member.name, "a link, not followed"))
            elif member.isfile():
                yield member.name, io.BufferedReader(tar.extractfile(member))  # type: ignore[arg-type,type-var]
    if problem := _problem(handle):
        handed.left_out.append((archive, problem))


def _zip_members(archive: str, handle: IO[bytes], handed: Handed) -> Iterator[tuple[str, IO[bytes] | None]]:
    if not handle.seekable():  # inside another archive
        data = handle.read(FILE_LIMIT_BYTES + 1)
        if len(data) > FILE_LIMIT_BYTES:
            handed.left_out.append((archive, "longer than %d MiB" % (FILE_LIMIT_BYTES >> 20)))
            return
        handle = io.BytesIO(data)
    with zipfile.ZipFile(handle) as packed:
        for info in packed.infolist()[: 4 * FILES_LIMIT]:
            if info.is_dir():
                continue
            if _leads_out(info.filename):
                handed.left_out.append((info.filename, "a name that leads out of the archive, refused"))
            elif (info.external_attr >> 16) & 0o170000 == 0o120000:
                handed.left_out.append((info.filename, "a link, not followed"))
            elif info.flag_bits & 1:
                handed.left_out.append((info.filename, "encrypted"))
            else:
                with packed.open(info) as member:
                    yield info.filename, io.BufferedReader(member)  # type: ignore[arg-type,type-var]
