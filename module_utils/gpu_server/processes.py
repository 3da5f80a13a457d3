"""The processes of an inference server, from /proc.

The one that was started, its ranks, the compilers that it runs, its environment.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..gpu_host.evidence import values
from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import ABSENT, Evidence
from ..gpu_host.linux import hidden_processes
from . import engines
from .containers import cgroups
from .engines import Engine
from .launch import WRAPPERS

FIRST = 1  # on every system
TICKS_A_SECOND = 100  # USER_HZ, the unit of /proc/PID/stat; 100 wherever NVIDIA's driver runs
COMPILERS = frozenset(
    {"nvcc", "cicc", "ptxas", "fatbinary", "cudafe++", "ninja", "cc1plus", "nvlink", "c++", "g++", "ptxas_cl"}
)


@dataclass(frozen=True)
class Process:
    pid: int
    parent: int
    name: str
    state: str  # R, S, D (uninterruptible), Z, T
    cpu_s: float | None  # None, as what follows: /proc/PID/stat holds no such number
    started_at: float | None
    threads: int | None


class Table(dict[int, Process]):
    """Every process by its id. `unread`: processes that are there and of which nothing could be read; `hidden`: those
    of other users are not shown at all, so that a server that is not seen may still be there."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = False
        self.unread: list[int] = []


def read_processes(evidence: Evidence, errors: Errors) -> Table | None:
    """Every process; None where /proc cannot be read or was not captured."""
    listing = evidence.list("/proc")
    if not listing.ok:
        errors.unanswered(listing)
        return None
    boot = read_boot_time(evidence, errors)
    found = Table()
    if hidden_processes.hides_processes(evidence, listing):
        errors.add("/proc", "shows no process %d: the mount option hidepid hides those of other users" % FIRST)
        found.unread.append(FIRST)
        found.hidden = True
    for pid in filter(None, (values.whole_number(name) for name in listing.entries if values.is_digits(name))):
        reading = evidence.read("/proc/%d/stat" % pid, 4096)
        process = _process(pid, reading.text, boot, errors) if reading.ok else None
        if process:
            found[pid] = process
        elif reading.status != ABSENT:  # one that has ended meanwhile is none
            errors.unanswered(reading)
            if reading.ok:
                errors.odd(reading.path, "is no line of proc_pid_stat(5)", reading.text)
            found.unread.append(pid)
    return found


def read_boot_time(evidence: Evidence, errors: Errors) -> float | None:
    """Seconds since the epoch; None where /proc/stat does not say."""
    match = re.search(r"^btime (.+)$", evidence.read("/proc/stat").text, re.MULTILINE)
    return errors.read_decimal("/proc/stat", "btime", match[1]) if match else None


def _process(pid: int, stat: str, boot: float | None, errors: Errors) -> Process | None:
    """From the text of /proc/PID/stat, proc_pid_stat(5): the name in parentheses may hold anything, so fields count
    from the last one."""
    before, found, after = stat.rpartition(")")
    fields = after.split()
    if not found or len(fields) < 20 or values.whole_number(fields[1]) is None:
        return None
    numbers = {}
    for name, at in (("utime", 11), ("stime", 12), ("num_threads", 17), ("starttime", 19)):
        numbers[name] = values.whole_number(fields[at])
        if numbers[name] is None:
            errors.odd("/proc/%d/stat" % pid, "%s is no number" % name, fields[at])
    user, system, started = numbers["utime"], numbers["stime"], numbers["starttime"]
    return Process(
        pid,
        values.whole_number(fields[1]) or 0,
        before.partition("(")[2],
        fields[0],
        None if user is None or system is None else (user + system) / TICKS_A_SECOND,
        None if started is None or boot is None else boot + started / TICKS_A_SECOND,
        numbers["num_threads"],
    )


def read_arguments(evidence: Evidence, pid: int, errors: Errors) -> list[str] | None:
    """The command line, secrets masked; empty for a kernel thread or a process that has ended, None where it could not
    be read."""
    reading = evidence.read("/proc/%d/cmdline" % pid, 256 * 1024)
    if reading.status != ABSENT and not reading.ok:
        errors.unanswered(reading)
        return None
    words = reading.text.split("\0")
    while words and not words[-1]:
        words.pop()
    return words


def find_servers(
    evidence: Evidence, processes: dict[int, Process], errors: Errors
) -> tuple[list[tuple[Process, list[str], Engine]], list[Process]]:
    """What started an engine and was not itself started by such a process, oldest first.

    And processes that may be one, and do not say.
    """
    found, silent = {}, []
    for process in processes.values():
        if engines.may_run_engine(process.name) and process.state != "Z":
            words = read_arguments(evidence, process.pid, errors)
            if words is None:
                silent.append(process)
                continue
            engine = engines.find_engine_of_command(words)
            if engine and not _starts_another(words):
                found[process.pid] = (process, words, engine)
    tops = [entry for entry in found.values() if not any(pid in found for pid in _ancestors(entry[0], processes))]
    return sorted(tops, key=lambda entry: (entry[0].started_at or 0.0, entry[0].pid)), silent


def _starts_another(words: list[str]) -> bool:
    """A shell, timeout, numactl or the like whose words hold the command of the engine."""
    program = words[0].rpartition("/")[2] if words else ""
    return program in WRAPPERS


def _ancestors(process: Process, processes: dict[int, Process]) -> list[int]:
    found: list[int] = []
    parent = process.parent
    while parent in processes and parent not in found:
        found.append(parent)
        parent = processes[parent].parent
    return found


def find_descendants(root: int, processes: dict[int, Process]) -> list[Process]:
    """Every process below `root`, by id."""
    children: dict[int, list[Process]] = {}
    for process in processes.values():
        children.setdefault(process.parent, []).append(process)
    found, todo = [], [root]
    while todo:
        for child in children.pop(todo.pop(), ()):
            found.append(child)
            todo.append(child.pid)
    return sorted(found, key=lambda process: process.pid)


def find_rank(engine: Engine, title: str) -> int | None:
    """The rank that a process has by its title: 0 where the title names none, as that of the only one.

    None for a process that is no rank, and where the engine's titles tell none.
    """
    match = engine.rank.search(title) if engine.rank else None
    return values.whole_number(next((group for group in match.groups() if group is not None), 0)) if match else None


def describe_process(evidence: Evidence, process: Process, errors: Errors) -> dict[str, Any]:
    """``{pid, name, state, cpu_s, threads, wait_channel, read_bytes}`` of one worker.

    None for what only root may read.
    """
    channel = evidence.read("/proc/%d/wchan" % process.pid, 4096)
    counters = evidence.read("/proc/%d/io" % process.pid, 4096)
    match = re.search(r"^read_bytes: (\S+)", counters.text, re.MULTILINE)
    return {
        "pid": process.pid,
        "name": process.name,
        "state": process.state,
        "cpu_s": None if process.cpu_s is None else round(process.cpu_s, 2),
        "threads": process.threads,
        "wait_channel": channel.text.strip().strip("0") or None if channel.ok else None,
        "read_bytes": errors.read_whole(counters.path, "read_bytes", match[1]) if match else None,
    }


def read_environment(evidence: Evidence, pid: int, errors: Errors) -> dict[str, str] | None:
    """The allowed names of the process's environment, as they were when it started.

    None without the right to read it.
    """
    reading = evidence.read("/proc/%d/environ" % pid, 1024 * 1024)
    if not reading.ok:
        errors.unanswered(reading)
        return None
    pairs = (item.partition("=") for item in reading.text.split("\0") if "=" in item)
    return {name: value for name, _equals, value in pairs}


def read_limits(evidence: Evidence, pid: int, errors: Errors) -> dict[str, Any]:
    """``{memlock_kib, open_files}``: soft limits, 'unlimited' or a number; None if unreadable."""
    reading = evidence.read("/proc/%d/limits" % pid, 16384)
    errors.unanswered(reading)
    text = reading.text if reading.ok else ""
    return {
        "memlock_kib": _limit(reading.path, text, "Max locked memory", 1024, errors),
        "open_files": _limit(reading.path, text, "Max open files", 1, errors),
    }


def _limit(path: str, text: str, name: str, unit: int, errors: Errors) -> int | str | None:
    match = re.search(r"^%s\s+(\S+)" % name, text, re.MULTILINE)
    if not match or match[1] == "unlimited":
        return match and match[1]
    number = errors.read_whole(path, name, match[1])
    return None if number is None else number // unit


def read_status(evidence: Evidence, pid: int, errors: Errors) -> dict[str, Any]:
    """``{uid, rss_mib}`` from /proc/PID/status."""
    status = evidence.read("/proc/%d/status" % pid, 16384)
    uid = re.search(r"^Uid:\s+(\S+)", status.text, re.MULTILINE)
    rss = re.search(r"^VmRSS:\s+(\S+) kB", status.text, re.MULTILINE)
    resident = errors.read_whole(status.path, "VmRSS", rss[1]) if rss else None
    return {
        "uid": errors.read_whole(status.path, "Uid", uid[1]) if uid else None,
        "rss_mib": None if resident is None else resident // 1024,
    }


def find_unit(evidence: Evidence, pid: int) -> str | None:
    """The systemd service that the process belongs to, that of its container where it is in one; None for a session."""
    text = evidence.read("/proc/%d/cgroup" % pid, 16384).text
    return cgroups.parse_membership(text).service


def make_slice_name(unit: str) -> str:
    """The slice that holds the container of a unit whose processes are another's children: docker's.

    The role inference_server gives it to docker; no dash, which would make it a slice within another.
    """
    return re.sub(r"[^A-Za-z0-9_.]", "_", unit[: -len(".service")] if unit.endswith(".service") else unit) + ".slice"


def is_of_unit(evidence: Evidence, pid: int, unit: str) -> bool:
    """Whether the process belongs to the systemd service, itself or in the container that the service runs."""
    if find_unit(evidence, pid) == unit:
        return True
    text = evidence.read("/proc/%d/cgroup" % pid, 16384).text
    return "/%s/" % make_slice_name(unit) in text


def is_in_container(evidence: Evidence, pid: int) -> bool:
    """Whether the process is one of an LXC container: Proxmox VE names its cgroup /lxc/CTID, LXC itself
    /lxc.payload.NAME."""
    return re.search(r"[:/]lxc(?:\.payload)?[./]", evidence.read("/proc/%d/cgroup" % pid, 16384).text) is not None


def find_output(evidence: Evidence, pid: int, errors: Errors) -> tuple[str | None, bool]:
    """(the file that standard error goes to, or else standard output: where progress is shown; whether that is known).

    The path is None for a pipe, a socket, a terminal."""
    listing = evidence.list("/proc/%d/fd" % pid)
    if not listing.ok:
        errors.unanswered(listing)
        return None, False
    for number in ("2", "1"):
        target = listing.entries[number].target if number in listing.entries else None
        if target and target.startswith("/") and not target.startswith("/dev/"):
            return target, True
    return None, True
