"""A module whose caller is gone ends, with all that it started, instead of running on beside whatever comes next.

Where the run is killed or the connection is cut, ssh's server closes the pipe that the module's answer would go to and
lets the module run on: a probe would hold the GPUs for a minute more, while somebody starts the server.
"""

from __future__ import annotations

import contextlib
import glob
import os
import select
import signal
import threading
import time

from . import values

STANDARD_OUTPUT = 1
GRACE_SECONDS = 15.0  # for what ends the programs that run and removes the module's files


def end_with_caller() -> None:
    """From now on: when nobody can read what this process prints any more, it is interrupted, as by Ctrl-C.

    To be called in the main thread, before anything is started.
    """
    # What started us may ignore it (sh, for what runs in the background) or block it (unshare --fork).
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    threading.Thread(target=_watch, args=(threading.get_ident(),), daemon=True).start()


def end_children() -> None:
    """Kill what this process has started. An interrupt may come between a start and the line that remembers it."""
    for path in glob.glob("/proc/self/task/*/children"):
        with contextlib.suppress(OSError), open(path, encoding="ascii") as handle:
            for pid in handle.read().split():
                _kill_group(values.whole_number(pid) or 0)


def _kill_group(pid: int) -> None:
    if pid > 1:
        try:
            os.killpg(pid, signal.SIGKILL)  # each program that we start leads a session of its own
        except OSError:
            with contextlib.suppress(OSError):
                os.kill(pid, signal.SIGKILL)


def _watch(main: int) -> None:
    poll = select.poll()
    poll.register(STANDARD_OUTPUT, 0)  # only what cannot be left out: POLLERR of a pipe, POLLHUP of a socket
    while not any(event & (select.POLLERR | select.POLLHUP) for _number, event in poll.poll()):
        time.sleep(1)  # POLLNVAL: it was closed
    with contextlib.suppress(ProcessLookupError):
        signal.pthread_kill(main, signal.SIGINT)
    time.sleep(GRACE_SECONDS)
    end_children()  # the interrupt came where nothing hears it, as in a finalizer
    os._exit(1)
