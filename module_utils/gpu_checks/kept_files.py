"""What a run keeps for the runs to come, in .cache of the clone or the collection: files that become code or templates.

So one is read only where nobody but root and we could have written it. A run is never worse for what it cannot keep.
"""

from __future__ import annotations

import contextlib
import os
import tempfile

from . import installation

DIRECTORY = str(installation.ROOT / ".cache")


def read_kept(path: str) -> bytes | None:
    """The content of `path`; None where it cannot be read, and where somebody else could have written it."""
    try:
        with open(path, "rb") as handle:
            status = os.fstat(handle.fileno())
            if status.st_uid not in (0, os.geteuid()) or status.st_mode & 0o022:
                return None
            return handle.read()
    except OSError:
        return None


def write_kept(path: str, data: bytes, most: int) -> bool:
    """Keep `data` as `path`, whole or not at all, and remove the oldest files beside it beyond `most`.

    False where it cannot be kept: a full disk, a directory of somebody else.
    """
    directory = os.path.dirname(path)
    temporary = ""
    try:
        os.makedirs(directory, exist_ok=True)
        descriptor, temporary = tempfile.mkstemp(dir=directory, prefix=".new.")
        with os.fdopen(descriptor, "wb") as handle:
            handle.write(data)
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except OSError:
        if temporary:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
        return False
    with contextlib.suppress(OSError):  # another run may remove the same ones
        files = [entry for entry in os.scandir(directory) if entry.is_file() and entry.path != path]
        for entry in sorted(files, key=lambda entry: -entry.stat().st_mtime)[most - 1 :]:
            os.unlink(entry.path)
    return True
