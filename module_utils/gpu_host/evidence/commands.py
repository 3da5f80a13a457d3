"""A command under a time limit that holds whatever the command does, and what is known of one that cannot be ended."""

from __future__ import annotations

import contextlib
import os
import re
import resource
import shutil
import signal
import subprocess
import tempfile
import time
from typing import IO

from . import secrets
from .interface import ABSENT, DENIED, FAILED, HUNG, OK, TIMEOUT, Outcome, status_of

OUTPUT_LIMIT_BYTES = 16 * 1024 * 1024
# A child that writes more than this is stopped by the kernel (SIGXFSZ) instead of filling the disk.
CHILD_FILE_LIMIT_BYTES = 64 * 1024 * 1024
KILL_GRACE_SECONDS = 2.0
SHORT_GRACE_SECONDS = 0.1  # for the commands of a program of which one has hung already
# Programs that only carry out another one: that `sh -c A` hung says nothing about `sh -c B`.
_CARRIERS = re.compile(r"(?:ba|da|z)?sh|env|timeout|nice|sudo|find|python[\d.]*")
# Programs that administrators expect although an ordinary user's PATH lacks their directory.
SYSTEM_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin:/usr/local/nvidia/bin"


class Command:
    """A running command.

    Output goes to files, not pipes: a pipe held open by an unkillable grandchild would hang us as surely as the driver
    hung it.
    """

    def __init__(
        self, argv: tuple[str, ...], process: subprocess.Popen[bytes], out: IO[bytes], err: IO[bytes], timeout: float
    ) -> None:
        self._argv = argv
        self._process = process
        self._out = out
        self._err = err
        self._timeout = timeout
        self._began = time.monotonic()

    @classmethod
    def begin(cls, argv: tuple[str, ...], timeout: float) -> Command | Outcome:
        """The running child, or the outcome that there is none."""
        path = _search_path()
        program = shutil.which(argv[0], path=path)
        if program is None:
            return Outcome(argv, ABSENT, reason="no program %s on the search path" % argv[0])
        try:
            out, err = open_output(), open_output()  # finish() or end() closes them
        except OSError as error:
            return Outcome(argv, FAILED, reason="no file for its output: %s" % (error.strerror or error))
        environment = dict(os.environ, LC_ALL="C", LANGUAGE="", PATH=path)
        try:
            process = subprocess.Popen(
                [program, *argv[1:]],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                env=environment,
                cwd="/",
                start_new_session=True,
                preexec_fn=_limit_file_size,  # noqa: PLW1509  one system call, and no thread of ours holds a lock
            )
        except (
            OSError,
            ValueError,
            subprocess.SubprocessError,
        ) as error:  # not for this processor, too long, no more processes
            out.close()
            err.close()
            status = status_of(error) if isinstance(error, OSError) else FAILED
            reason = "%s cannot be run: %s" % (program, getattr(error, "strerror", None) or error)
            return Outcome(argv, DENIED if status == DENIED else FAILED, reason=reason)
        return cls(argv, process, out, err, timeout)

    def finish(self, patient: bool = True) -> Outcome:
        """The outcome, once the command has ended or its time is over. Not `patient`: it has no more time now."""
        status, reason = OK, ""
        try:
            self._process.wait(max(0.0, self._timeout - (time.monotonic() - self._began)) if patient else 0.0)
        except subprocess.TimeoutExpired:
            status, reason = self._kill(KILL_GRACE_SECONDS if patient else SHORT_GRACE_SECONDS)
        except BaseException:  # this process is to end (caller.py): nothing of it may stay
            self.end(patient=False)
            raise
        stdout, cut_out = _file_content(self._out)
        stderr, cut_err = _file_content(self._err)
        return Outcome(
            self._argv,
            status,
            rc=self._process.returncode,
            stdout=secrets.redact_output(self._argv, stdout),
            stderr=secrets.redact_text(stderr),
            seconds=round(time.monotonic() - self._began, 3),
            truncated=cut_out or cut_err,
            reason=reason,
        )

    def end(self, patient: bool = True) -> None:
        """Kill the child and forget its output."""
        self._kill(KILL_GRACE_SECONDS if patient else SHORT_GRACE_SECONDS)
        self._out.close()
        self._err.close()

    def _kill(self, grace: float) -> tuple[str, str]:
        pid = self._process.pid
        waited_in = describe_stuck(pid)  # before the signal: afterwards there is nothing to see
        with contextlib.suppress(OSError):  # gone already, or another user's by setuid
            os.killpg(pid, signal.SIGKILL)
        try:
            self._process.wait(grace)
        except subprocess.TimeoutExpired:
            return HUNG, "pid %d ignores SIGKILL after %g s; %s" % (pid, self._timeout, describe_stuck(pid))
        return TIMEOUT, "no answer within %g s; %s" % (self._timeout, waited_in)


def open_output() -> IO[bytes]:
    """A file without a name, in memory: on a full disk a program's output would be cut, and few programs say so.

    OSError where there is neither memory nor a directory for one.
    """
    with contextlib.suppress(AttributeError, OSError):  # no Linux, or forbidden
        return os.fdopen(os.memfd_create("gpu-host-output"), "w+b")
    return tempfile.TemporaryFile()


def name_program(argv: tuple[str, ...]) -> str:
    """What to know a hang by: the program, or the whole command where the program only carries out another one."""
    program = argv[0].rpartition("/")[2]
    return " ".join(argv) if _CARRIERS.fullmatch(program) else program


def _search_path() -> str:
    """PATH and where administrators' programs are.

    Nothing relative: the working directory must not decide what runs.
    """
    named = [directory for directory in os.environ.get("PATH", "").split(":") if directory.startswith("/")]
    return ":".join([*named, SYSTEM_PATH])


def _limit_file_size() -> None:
    resource.setrlimit(resource.RLIMIT_FSIZE, (CHILD_FILE_LIMIT_BYTES, CHILD_FILE_LIMIT_BYTES))


def _file_content(handle: IO[bytes]) -> tuple[bytes, bool]:
    with handle:
        handle.seek(0)
        data = handle.read(OUTPUT_LIMIT_BYTES + 1)
    return data[:OUTPUT_LIMIT_BYTES], len(data) > OUTPUT_LIMIT_BYTES


def describe_stuck(pid: int) -> str:
    """Where in the kernel a process waits, in one line, from /proc/PID/{stat,wchan,stack}."""
    after_name = _of_process(pid, "stat").rpartition(")")[2].split()
    state = after_name[0] if after_name else "?"
    wait_channel = _of_process(pid, "wchan").strip() or "unknown"
    # Of one that can be killed the stack says nothing: it waits for a child or for a file.
    lines = _of_process(pid, "stack").splitlines() if state == "D" else []
    where = " <- ".join([line.split()[-1] for line in lines if line.split()][:6])
    return "state %s, waits in %s%s" % (state, wait_channel, ": " + where if where else "")


def _of_process(pid: int, name: str) -> str:
    with contextlib.suppress(OSError), open("/proc/%d/%s" % (pid, name), encoding="utf-8", errors="replace") as handle:
        return handle.read()
    return ""
