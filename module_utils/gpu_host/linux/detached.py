"""A process that outlives the module which starts it, and the directory in which it says how far it is.

A connection that is silent for minutes may be cut. So a module starts what takes long, returns at once, and whoever
asked looks into the directory.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Callable, Collection

from ..evidence import values

PID = "pid"  # the file with the number of the process


def run_detached(directory: str, work: Callable[[], None]) -> None:
    """Run `work()` in a session of its own, without any open file of the caller; `directory`/pid is there on return."""
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:  # nothing of the module may run on in a child, not even its clean-up
        os.setsid()
        worker = os.fork()
        if worker:
            write_whole(directory, PID, str(worker))
        else:
            leave_caller()
            work()
    finally:
        os._exit(0)


def leave_caller(keep: Collection[int] = ()) -> None:
    """Let go of what a forked process has of its caller: its terminal and every open file but those of `keep`.

    Whoever reads the other end of a pipe that the caller had open would else wait until this process ends too.
    """
    signal.signal(signal.SIGHUP, signal.SIG_IGN)
    nothing = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(nothing, number)
    for name in os.listdir("/proc/self/fd"):
        opened = values.whole_number(name)
        if opened is not None and opened > 2 and opened not in keep:
            with contextlib.suppress(OSError):  # the one that listed the directory is closed already
                os.close(opened)


def write_whole(directory: str, name: str, text: str) -> None:
    """Whole or not at all; nothing where the directory has been removed."""
    path = os.path.join(directory, name)
    with contextlib.suppress(OSError):
        with open(path + ".new", "w", encoding="utf-8") as handle:
            handle.write(text)
        os.replace(path + ".new", path)
