"""Fingerprints of the OpenPGP keys in a key file, armored or binary, without GnuPG (a minimal host has none).

A package repository is only as good as the check of its key: the file that was downloaded must hold the keys that were
expected and no other, because apt accepts a signature by any key of the file. RFC 4880 section 4.2 (packets), 12.2
(fingerprints).
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import re

_PUBLIC_KEY = 6
_ARMOR = re.compile(r"-----BEGIN PGP PUBLIC KEY BLOCK-----\r?\n(.*?)\r?\n-----END PGP PUBLIC KEY BLOCK-----", re.DOTALL)


class KeyFileError(ValueError):
    """The bytes are no OpenPGP key file; the message says why."""


def read_fingerprints(data: bytes) -> list[str]:
    """Fingerprints of the primary keys in `data`, upper-case hexadecimal, in order. KeyFileError if there is none."""
    found = [_fingerprint(body) for tag, body in _packets(dearmor_key(data)) if tag == _PUBLIC_KEY]
    if not found:
        raise KeyFileError("holds no OpenPGP public key")
    return found


def dearmor_key(data: bytes) -> bytes:
    """The binary form of an armored key file (several blocks are joined); binary data as it is."""
    if b"-----BEGIN PGP" not in data:
        return data
    blocks = _ARMOR.findall(data.decode("ascii", "replace"))
    if not blocks:
        raise KeyFileError("holds no complete PGP PUBLIC KEY BLOCK")
    try:
        return b"".join(base64.b64decode(_armored_body(block), validate=True) for block in blocks)
    except (binascii.Error, ValueError) as error:
        raise KeyFileError("holds damaged armor (%s)" % error) from error


def _armored_body(block: str) -> str:
    """The base64 text of a block, without its headers and its checksum line."""
    lines = [line.strip() for line in block.split("\n")]
    if "" in lines:  # headers end at the first empty line
        lines = lines[lines.index("") + 1 :]
    return "".join(line for line in lines if not line.startswith("="))


def _packets(data: bytes) -> list[tuple[int, bytes]]:
    found = []
    position = 0
    while position < len(data):
        header = data[position]
        if not header & 0x80:
            raise KeyFileError("is not OpenPGP data")
        position += 1
        if header & 0x40:
            tag, (length, used) = header & 0x3F, _new_length(data, position)
        else:
            tag, (length, used) = (header >> 2) & 0x0F, _old_length(data, position, header & 3)
        position += used
        if position + length > len(data):
            raise KeyFileError("is cut off")
        found.append((tag, data[position : position + length]))
        position += length
    return found


def _new_length(data: bytes, position: int) -> tuple[int, int]:
    first = _byte(data, position)
    if first < 192:
        return first, 1
    if first < 224:
        return ((first - 192) << 8) + _byte(data, position + 1) + 192, 2
    if first == 255:
        return int.from_bytes(data[position + 1 : position + 5], "big"), 5
    raise KeyFileError("has a packet of unknown length")


def _old_length(data: bytes, position: int, kind: int) -> tuple[int, int]:
    if kind == 3:
        return len(data) - position, 0
    size = 1 << kind
    _byte(data, position + size - 1)
    return int.from_bytes(data[position : position + size], "big"), size


def _byte(data: bytes, position: int) -> int:
    if position >= len(data):
        raise KeyFileError("is cut off")
    return data[position]


def _fingerprint(body: bytes) -> str:
    version = _byte(body, 0)
    if version == 4:
        # SHA-1 is what defines a version 4 fingerprint; nothing is protected by it here beyond what OpenPGP itself
        # does.
        return hashlib.sha1(b"\x99" + len(body).to_bytes(2, "big") + body).hexdigest().upper()  # noqa: S324
    if version in (5, 6):
        prefix = b"\x9a" if version == 5 else b"\x9b"
        return hashlib.sha256(prefix + len(body).to_bytes(4, "big") + body).hexdigest().upper()
    raise KeyFileError("holds a key of version %d, which is not supported" % version)
