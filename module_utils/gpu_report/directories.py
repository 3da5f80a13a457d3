"""A directory of reports that one run uses at a time.

Two runs of one clone must not write over each other in silence.
"""

from __future__ import annotations

import fcntl
import os
from typing import IO

NAME = ".in-use"


class _Taken:
    """Another run has the directory."""


TAKEN = _Taken()


def take_directory(directory: str) -> IO[bytes] | _Taken | None:
    """An open file that keeps `directory` for this process and its children until it is closed; TAKEN where another run
    has it; None where it cannot be kept (then writing the reports will say why)."""
    try:
        os.makedirs(directory, exist_ok=True)
        handle = open(os.path.join(directory, NAME), "ab")  # noqa: SIM115  it is the caller's to keep
    except OSError:
        return None
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        handle.close()
        return TAKEN
    except OSError:  # a file system without locks
        handle.close()
        return None
    return handle
