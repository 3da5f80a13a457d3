"""Runs one load to its end, detached from whoever asked.

The generator, the samples of the GPUs beside it, a file that says how far it is.

A load takes minutes, and a connection that is silent that long may be cut. So the module returns at once with the name
of a directory, and whoever asked looks into it: `progress` and, at the end, `result.json`. Each look renews `alive`;
without looks the load ends by itself, for an interrupted playbook must not leave a load on a server.
"""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import signal
import stat
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Mapping
from typing import IO, Any

from ...gpu_host.evidence import commands
from ...gpu_host.linux import detached
from . import benchmark, generators, request_load, result_files
from .generator_find import make_environment, make_workplace, popen_as_user
from .generators import BUILTIN, GENERATORS
from .job import Job

ALONE_SECONDS = 180.0
LOOK_SECONDS = 0.5
LOG_BYTES = 32 * 1024
RESULT_BYTES = 512 << 20
PROGRESS, RESULT, ALIVE, LOG = "progress", "result.json", "alive", "log"


def run_detached(work: Callable[[str], None]) -> str:
    """Run `work(directory)` in a process of its own that outlives this one; the directory."""
    directory = tempfile.mkdtemp(prefix="benchmark-")
    detached.write_whole(directory, ALIVE, "")

    def run() -> None:
        os.umask(0o077)
        work(directory)
        _tidy(directory)

    detached.run_detached(directory, run)
    return directory


def _tidy(directory: str) -> None:
    """Who fetches a result removes its directory; what nobody fetches is removed here."""
    watch = _Watch(directory)
    while watch.wanted():
        time.sleep(LOOK_SECONDS)
    shutil.rmtree(directory, ignore_errors=True)


@dataclasses.dataclass(frozen=True)
class Order:
    """A load and how it is made: `how` is Found.facts() of generator_find.py, `server` generators.describe_server."""

    job: Job
    how: Mapping[str, Any]
    server: Mapping[str, Any]
    key: str | None = None


def run_load(directory: str, order: Order) -> None:
    """Put the load on the server and write the result: ``{cell, command}``.

    `cell` says so where it did not end well.
    """
    sampler = _Sampler()
    try:
        done = (_builtin if order.how["name"] == BUILTIN else _generator)(directory, order, sampler)
    except Exception as error:  # there is nobody to see a traceback
        done = {
            "cell": result_files.make_failed_cell(order.job, "%s: %s" % (type(error).__name__, error)),
            "command": [],
        }
    finally:
        sampler.stop()
    if not os.path.isdir(directory):
        return
    done["cell"]["problems"] = [generators.redact_key(text, order.key) for text in done["cell"]["problems"]]
    done["cell"]["gpus"] = sampler.samples()
    detached.write_whole(directory, RESULT, json.dumps(done))


def _builtin(directory: str, order: Order, sampler: _Sampler) -> dict[str, Any]:
    job = order.job
    ours = request_load.Load(job.base, job.model, order.key, seed=job.seed)
    cells: list[dict[str, Any]] = []

    def work() -> None:
        cells.append(ours.run(job.concurrency, job.requests, job.prompt_tokens, job.output_tokens, job.time_limit))

    watch = _Watch(directory)
    thread = threading.Thread(target=work, daemon=True)
    sampler.start()
    thread.start()
    while thread.is_alive() and watch.wanted():
        watch.show(ours.done, job.requests, "")
        thread.join(LOOK_SECONDS)
    return {
        "cell": cells[0] if cells else result_files.make_failed_cell(job, "it was ended: nobody looked at it any more"),
        "command": [],
    }


def _generator(directory: str, order: Order, sampler: _Sampler) -> dict[str, Any]:
    generator, how, key = GENERATORS[order.how["name"]], order.how, order.key
    place = make_workplace(directory, how["user"])
    job = dataclasses.replace(order.job, result=os.path.join(place, "generated.json"))
    words = generators.make_command(generator, how["start"], how["known"], job)
    settings = make_environment(order.server, how["user"], place)
    if key:
        settings[generator.key_variable] = key
    log_path = os.path.join(directory, LOG)
    with open(log_path, "wb") as log:
        process = subprocess.Popen(
            words, cwd=place, stdin=subprocess.DEVNULL, stdout=log, stderr=subprocess.STDOUT, env=settings,
            start_new_session=True,
            **popen_as_user(how["user"]),
        )  # fmt: skip
    sampler.start()
    try:
        ended = _follow(process, job, _Watch(directory), sampler, lambda: generators.redact_key(_tail(log_path), key))
    finally:  # the directory may have gone, with whoever asked
        _end(process)
        sampler.stop()
    said = generators.select_last_lines(generators.redact_key(_tail(log_path), key))
    if ended:
        problem = "%s %s; its last lines: %s" % (generator.name, ended, said)
    elif process.returncode != 0:
        how_it_ended = "signal %d" % -process.returncode if process.returncode < 0 else "%d" % process.returncode
        problem = "%s ended with %s; its last lines: %s" % (generator.name, how_it_ended, said)
    else:
        try:
            return {"cell": result_files.parse_result(generator.parse, _result(job.result), job), "command": words}
        except (OSError, ValueError) as error:
            problem = "%s ended well, but its result cannot be read: %s; its last lines: %s" % (
                generator.name,
                error,
                said,
            )
    return {"cell": result_files.make_failed_cell(job, problem), "command": words}


def _follow(
    process: subprocess.Popen[bytes], job: Job, watch: _Watch, sampler: _Sampler, log: Callable[[], str]
) -> str | None:
    """Until the generator ends by itself (None), or must be ended: why."""
    seen: int | None = None
    while process.poll() is None:
        text = log()
        count = generators.parse_progress(text, job.requests)
        if count is not None and seen is None:
            # anew: until now the generator imported its libraries and made prompts, and the GPUs rested
            sampler.start()
        if count == job.requests:
            sampler.stop()
        seen = count if count is not None else seen
        watch.show(seen, job.requests, generators.select_last_lines(text) if text else "")
        if watch.seconds > job.time_limit:
            how_far = " (%d of %d requests)" % (seen, job.requests) if seen is not None else ""
            return "did not end within %d s%s" % (job.time_limit, how_far)
        if not watch.wanted():
            return "was ended: nobody looked at it any more"
        time.sleep(LOOK_SECONDS)
    return None


def _result(path: str) -> str:
    """The result file; perhaps another user's, so no link is followed."""
    with os.fdopen(os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK), "rb") as file:
        seen = os.fstat(file.fileno())
        if not stat.S_ISREG(seen.st_mode) or seen.st_size > RESULT_BYTES:
            raise ValueError("it is no file, or one of more than %d MiB" % (RESULT_BYTES >> 20))
        return file.read().decode("utf-8", "replace").strip()


def _end(process: subprocess.Popen[bytes]) -> None:
    """With everything that it started."""
    for number in (signal.SIGTERM, signal.SIGKILL):
        with contextlib.suppress(OSError):
            os.killpg(process.pid, number)
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(5.0)
            return


def _tail(path: str) -> str:
    with contextlib.suppress(OSError), open(path, "rb") as file:
        file.seek(max(0, os.fstat(file.fileno()).st_size - LOG_BYTES))
        return file.read().decode("utf-8", "replace")
    return ""


class _Watch:
    """How far the load is, and whether anybody still wants to know."""

    def __init__(self, directory: str) -> None:
        self._directory, self._shown = directory, ""
        self._began = self._looked = time.monotonic()
        self._stamp = 0.0

    @property
    def seconds(self) -> float:
        return time.monotonic() - self._began

    def show(self, done: int | None, requests: int, line: str) -> None:
        text = json.dumps({"done": done, "requests": requests, "line": line.rpartition(" | ")[2]})
        if text != self._shown:
            self._shown = text
            detached.write_whole(self._directory, PROGRESS, text)

    def wanted(self) -> bool:
        try:
            stamp = os.stat(os.path.join(self._directory, ALIVE)).st_mtime
        except OSError:
            return False  # the directory was removed
        if stamp != self._stamp:
            self._stamp, self._looked = stamp, time.monotonic()
        return time.monotonic() - self._looked < ALONE_SECONDS


class _Sampler:
    """`nvidia-smi dmon` beside a load. A host without it is measured all the same."""

    def __init__(self) -> None:
        self._process: subprocess.Popen[bytes] | None = None
        self._out: IO[bytes] | None = None

    def start(self) -> None:
        """Samples from now on; those before are dropped."""
        self.stop()
        self._out = commands.open_output()  # lives as long as the load
        with contextlib.suppress(OSError):
            self._process = subprocess.Popen(
                benchmark.DMON_COMMAND, stdout=self._out, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL
            )

    def stop(self) -> None:
        if self._process:
            self._process.kill()
            self._process.wait()
            self._process = None

    def samples(self) -> dict[str, Any] | None:
        if not self._out:
            return None
        self._out.seek(0)
        return benchmark.parse_samples(self._out.read().decode("utf-8", "replace"))
