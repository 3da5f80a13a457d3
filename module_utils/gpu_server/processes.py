"""The processes of an inference server, from /proc: the one that was started, its ranks, the compilers that it runs,
its environment."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Any

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import DENIED, TIMEOUT, Evidence
from . import engines
from .engines import Engine
from .launch import WRAPPERS

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
    cpu_s: float
    started_at: float
    threads: int


def table(evidence: Evidence, errors: Errors) -> dict[int, Process] | None:
    """Every process by its id; None where /proc cannot be read or was not captured."""
    listing = evidence.list("/proc")
    if not listing.ok:
        errors.unanswered(listing)
        return None
    boot = boot_time(evidence)
    found = {}
    for name in listing.entries:
        if name.isdigit():
            process = _process(int(name), evidence.read("/proc/%s/stat" % name, 4096).text, boot)
            if process:
                found[process.pid] = process
    return found


def boot_time(evidence: Evidence) -> float:
    """Seconds since the epoch; 0 where /proc/stat does not say."""
    match = re.search(r"^btime (\d+)", evidence.read("/proc/stat").text, re.MULTILINE)
    return float(match[1]) if match else 0.0


def _process(pid: int, stat: str, boot: float) -> Process | None:
    """From the text of /proc/PID/stat, proc_pid_stat(5): the name in parentheses may hold anything, so fields count
    from the last one."""
    before, found, after = stat.rpartition(")")
    fields = after.split()
    if not found or len(fields) < 20:
        return None
    try:
        cpu = (int(fields[11]) + int(fields[12])) / TICKS_A_SECOND
        started = boot + int(fields[19]) / TICKS_A_SECOND
        return Process(pid, int(fields[1]), before.partition("(")[2], fields[0], cpu, started, int(fields[17]))
    except ValueError:
        return None


def arguments(evidence: Evidence, pid: int, errors: Errors) -> list[str] | None:
    """The command line, secrets masked; empty for a kernel thread or a process that has ended, None where the kernel
    does not answer."""
    reading = evidence.read("/proc/%d/cmdline" % pid, 256 * 1024)
    if reading.status == TIMEOUT:
        errors.unanswered(reading)
        return None
    words = reading.text.split("\0")
    while words and not words[-1]:
        words.pop()
    return words


def servers(
    evidence: Evidence, processes: dict[int, Process], errors: Errors
) -> tuple[list[tuple[Process, list[str], Engine]], list[Process]]:
    """What started an engine and was not itself started by such a process, oldest first; and processes that may be one,
    and do not say."""
    found, silent = {}, []
    for process in processes.values():
        if engines.may_run_engine(process.name) and process.state != "Z":
            words = arguments(evidence, process.pid, errors)
            if words is None:
                silent.append(process)
                continue
            engine = engines.recognise_command(words)
            if engine and not _starts_another(words):
                found[process.pid] = (process, words, engine)
    tops = [entry for entry in found.values() if not any(pid in found for pid in _ancestors(entry[0], processes))]
    return sorted(tops, key=lambda entry: (entry[0].started_at, entry[0].pid)), silent


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


def descendants(root: int, processes: dict[int, Process]) -> list[Process]:
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


def rank_of(engine: Engine, title: str) -> int | None:
    match = engine.rank.search(title)
    return int(next(group for group in match.groups() if group is not None)) if match else None


def describe(evidence: Evidence, process: Process) -> dict[str, Any]:
    """``{pid, name, state, cpu_s, threads, wait_channel, read_bytes}`` of one worker; None for what only root may read."""
    channel = evidence.read("/proc/%d/wchan" % process.pid, 4096)
    counters = evidence.read("/proc/%d/io" % process.pid, 4096)
    match = re.search(r"^read_bytes: (\d+)", counters.text, re.MULTILINE)
    return {
        "pid": process.pid,
        "name": process.name,
        "state": process.state,
        "cpu_s": round(process.cpu_s, 2),
        "threads": process.threads,
        "wait_channel": channel.text.strip().strip("0") or None if channel.ok else None,
        "read_bytes": int(match[1]) if match else None,
    }


def environment(evidence: Evidence, pid: int, errors: Errors) -> dict[str, str] | None:
    """The allowed names of the process's environment, as they were when it started; None without the right to read it."""
    reading = evidence.read("/proc/%d/environ" % pid, 1024 * 1024)
    if not reading.ok:
        errors.unanswered(reading)
        return None
    pairs = (item.partition("=") for item in reading.text.split("\0") if "=" in item)
    return {name: value for name, _equals, value in pairs}


def limits(evidence: Evidence, pid: int) -> dict[str, Any]:
    """``{memlock_kib, open_files}``: soft limits, 'unlimited' or a number; None if unreadable."""
    text = evidence.read("/proc/%d/limits" % pid, 16384).text
    return {"memlock_kib": _limit(text, "Max locked memory", 1024), "open_files": _limit(text, "Max open files", 1)}


def _limit(text: str, name: str, unit: int) -> int | str | None:
    match = re.search(r"^%s\s+(\S+)" % name, text, re.MULTILINE)
    if not match:
        return None
    return int(match[1]) // unit if match[1].isdigit() else match[1]


def status(evidence: Evidence, pid: int) -> dict[str, Any]:
    """``{uid, rss_mib}`` from /proc/PID/status."""
    text = evidence.read("/proc/%d/status" % pid, 16384).text
    uid = re.search(r"^Uid:\s+(\d+)", text, re.MULTILINE)
    rss = re.search(r"^VmRSS:\s+(\d+) kB", text, re.MULTILINE)
    return {"uid": int(uid[1]) if uid else None, "rss_mib": int(rss[1]) // 1024 if rss else None}


def unit(evidence: Evidence, pid: int) -> str | None:
    """The systemd service that the process belongs to; None for a session or a container's own tree."""
    text = evidence.read("/proc/%d/cgroup" % pid, 16384).text
    parts = [part for line in text.splitlines() for part in line.rpartition(":")[2].split("/")]
    return next((part for part in reversed(parts) if part.endswith(".service") and not part.startswith("user@")), None)


def output(evidence: Evidence, pid: int, errors: Errors) -> str | None:
    """The file that standard error goes to, or else standard output: where progress is shown. None for a pipe, a
    socket, a terminal."""
    listing = evidence.list("/proc/%d/fd" % pid)
    if not listing.ok:
        if listing.status == DENIED:
            errors.unanswered(listing)
        return None
    for number in ("2", "1"):
        target = listing.entries[number].target if number in listing.entries else None
        if target and target.startswith("/") and not target.startswith("/dev/"):
            return target
    return None
