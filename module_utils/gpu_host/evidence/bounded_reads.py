"""Reads that can block for ever, made by a child that is left behind when it does not answer.

The kernel takes a process's memory lock for /proc/PID/cmdline and environ. A process that is stuck with that lock held
(in the driver, on a dead file server) blocks whoever reads them, and a thread of ours that waits there would keep this
process from ending as well. The driver's own files below /proc/driver/nvidia take its lock, which a hung driver keeps.
"""

from __future__ import annotations

import contextlib
import errno
import json
import os
import re
import select
import signal
import subprocess
import sys
import time

DRIVER_FILES = "/proc/driver/nvidia"
NEEDED = re.compile(r"/proc/(?P<pid>\d+)/(?:task/\d+/)?(?:cmdline|environ|maps|smaps\w*)$|%s/" % DRIVER_FILES)
SECONDS = 5.0
SHORTEST_SECONDS = 0.5
START_SECONDS = 20.0  # a Python, on a host that is short of everything
# One request a line, [path, limit]; the answer is [error number, length], a line, and then the bytes.
_CHILD = """
import json, sys
ask, answer = sys.stdin.buffer, sys.stdout.buffer
answer.write(b"\\n"); answer.flush()
for line in ask:
    path, limit = json.loads(line)
    number, data = 0, b""
    try:
        with open(path, "rb", 0) as handle:
            while len(data) <= limit:
                piece = handle.read(limit + 1 - len(data))
                if not piece:
                    break
                data += piece
    except OSError as error:
        number, data = error.errno or 5, b""
    answer.write(json.dumps([number, len(data)]).encode() + b"\\n" + data); answer.flush()
"""


class ReadTimeout(Exception):
    """No answer in time; the text says how long it was waited for."""


class BoundedReader:
    """Reads files through one child, which is started when it is first needed and again after one was left behind."""

    def __init__(self, seconds: float = SECONDS) -> None:
        self._seconds = seconds
        self._child: subprocess.Popen[bytes] | None = None
        self._unanswered: set[str] = set()
        self._buffer = b""

    def read(self, path: str, limit: int) -> bytes:
        """At most `limit` + 1 bytes. Raises OSError as the kernel does, ReadTimeout where it does not answer."""
        directory, of_driver = path.rpartition("/")[0], DRIVER_FILES + "/" in path
        if of_driver:  # one lock for all of them
            directory = DRIVER_FILES
        if directory in self._unanswered:
            whose = "driver" if of_driver else "process"
            raise ReadTimeout("another read of the same %s was not answered" % whose)
        try:
            child = self._started()
            assert child.stdin is not None  # for mypy: it is a pipe
            child.stdin.write(json.dumps([path, limit]).encode() + b"\n")
            child.stdin.flush()
            # Many such processes must not make a run endless: each one that does not answer shortens the wait for the
            # next.
            number, length = json.loads(
                self._take_line(max(SHORTEST_SECONDS, self._seconds / (1 + len(self._unanswered))))
            )
            data = self._take(length, self._seconds)
        except ReadTimeout:
            self._unanswered.add(directory)
            self.close()
            raise
        except (BrokenPipeError, ValueError) as error:
            self.close()
            raise OSError(errno.EIO, "the child that reads it ended") from error
        if number:
            raise OSError(number, os.strerror(number))
        return data

    def close(self) -> None:
        """End the child.

        One that cannot be killed holds nothing of ours: its pipes are closed, it has its own session.
        """
        child, self._child, self._buffer = self._child, None, b""
        if child is None:
            return
        for pipe in (child.stdin, child.stdout):
            if pipe:
                with contextlib.suppress(OSError):
                    pipe.close()
        with contextlib.suppress(OSError):
            child.send_signal(signal.SIGKILL)
        with contextlib.suppress(subprocess.TimeoutExpired):
            child.wait(SHORTEST_SECONDS)

    def __del__(self) -> None:
        self.close()

    def _started(self) -> subprocess.Popen[bytes]:
        if self._child is None:
            words = [sys.executable or "python3", "-I", "-S", "-c", _CHILD]
            self._child = subprocess.Popen(
                words,
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                cwd="/",
                start_new_session=True,
            )
            self._take_line(START_SECONDS)
        return self._child

    def _take_line(self, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        while b"\n" not in self._buffer:
            self._fill(end, seconds)
        line, _newline, self._buffer = self._buffer.partition(b"\n")
        return line

    def _take(self, length: int, seconds: float) -> bytes:
        end = time.monotonic() + seconds
        while len(self._buffer) < length:
            self._fill(end, seconds)
        data, self._buffer = self._buffer[:length], self._buffer[length:]
        return data

    def _fill(self, end: float, seconds: float) -> None:
        assert self._child is not None and self._child.stdout is not None  # for mypy
        descriptor = self._child.stdout.fileno()
        # poll, not select: a module may run with more than 1024 open files
        poll = select.poll()
        poll.register(descriptor, select.POLLIN)
        if not poll.poll(max(0.0, end - time.monotonic()) * 1000):
            raise ReadTimeout("no answer within %g s" % round(seconds, 1))
        piece = os.read(descriptor, 1 << 20)
        if not piece:
            raise BrokenPipeError
        self._buffer += piece
