"""Files that are there whole or not at all."""

from __future__ import annotations

import contextlib
import os
import tempfile


def write_file(path: str, data: bytes, mode: int = 0o644, durable: bool = True) -> None:
    """`data` as the content of `path`, through a temporary file beside it and a rename.

    Not `durable`: one of hundreds that the next run writes anew, for which the disk is not waited for. OSError if it
    cannot be done.
    """
    directory = os.path.dirname(os.path.abspath(path))
    os.makedirs(directory, exist_ok=True)
    descriptor, temporary = tempfile.mkstemp(dir=directory, prefix="." + os.path.basename(path) + ".")
    try:
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
            handle.flush()
            os.fchmod(handle.fileno(), mode)
            if durable:
                os.fsync(handle.fileno())
        os.replace(temporary, path)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def read_or_none(path: str) -> bytes | None:
    """The content of `path`; None where it cannot be read."""
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None
