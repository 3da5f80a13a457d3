"""One run measures on a host at a time: two at once would each find idle GPUs, and then slow ones.

The name of a socket, not a file: it is there on a full or read-only disk and for every user, and is gone with the
process that holds it. unix(7), abstract sockets. A container with a network of its own has names of its own; there the
GPUs that work are seen by nvidia-smi alone, as before.
"""

from __future__ import annotations

import errno
import socket

NAME = "\0ansible-gpu-host-probe"
TAKEN = "another run measures on this host at this moment; validate it again when that one has ended"
_held: list[socket.socket] = []  # until this process ends


def take_turn() -> str | None:
    """None where this process is the only one now that measures; else why it should not."""
    holder = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    try:
        holder.bind(NAME)
    except OSError as error:
        holder.close()
        return TAKEN if error.errno == errno.EADDRINUSE else None
    _held.append(holder)
    return None
