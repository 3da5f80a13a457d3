#!/usr/bin/env python3
"""What validating costs at 1, 10, 100 and 500 hosts, against `ansible all -m ping` on the same hosts in the same run.

    make bench A=scale                                   # as root: recorded hosts and hosts over SSH; half an hour
    make bench A='scale --sizes 1,10 --kinds recorded'

ping and validate.yml run in turns, so that a busy machine slows both. Of each it takes the wall time, the processor
time and the controller's peak of memory, and prints validate.yml's as a ratio to ping's:

recorded  each host is a bundle of its own, read on the controller; ping's hosts are this machine.
ssh       each host is an address in a network namespace, with one real sshd behind all of them
          (tests/hosts/ssh_fleet.py: root on Debian or Ubuntu, and what tests/hosts needs). Every run opens its
          connections anew, with ControlPersist and pipelining as ansible.cfg has them.

Processor time is the controller's: of the command, of what it started, and of the ssh processes that ControlPersist
leaves. What sshd and the modules take on the hosts, which are on the same processors here, is told apart ("on the
hosts"); in the wall time it is contained, for ping and for validate.yml alike.

Targets: a ratio of processor time of at most 1.25 at every size; a straight line (a further host costs at most 1.25
times as much between the largest sizes as between those before); less than 1 MiB of the controller's memory for each
further host. Recorded hosts meet them. Over SSH the ratio is 1.5 (one host) to 2.3 (a hundred): ping asks one question
in one process per host, validate.yml asks all and judges the answers in two. Exit status 1 where one is missed.
`--json FILE` writes the records in the form of benchmarks/probe.py.
"""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import statistics
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import run as benchmark  # type: ignore[import-not-found]

ROOT = Path(__file__).resolve().parent.parent
SIZES = "1,10,100,500"
KINDS = ("recorded", "ssh")
RATIO, LINE, MEMORY_MIB = 1.25, 1.25, 1.0
_WHAT = {
    "processor": "processor time",
    "seconds": "wall time",
    "on_hosts": "processor time on the hosts",
    "peak_mib": "controller's peak of memory",
}
_PR_SET_CHILD_SUBREAPER = 36
_READY_WITHOUT_GPUS = {"gpu_host_expected": {"gpus": {"count": 0}}, "host_validation_server": "false"}


@dataclass(frozen=True)
class Run:
    """One finished command. Processor seconds of the controller, and of the hosts where they are apart."""

    seconds: float
    processor: float
    on_hosts: float
    peak_mib: float


def adopt_orphans() -> None:
    """From now on, what a child of ours leaves behind is ours to wait for: so the masters of ControlPersist count."""
    ctypes.CDLL(None, use_errno=True).prctl(_PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0)


def find_children() -> list[int]:
    return [int(pid) for pid in Path("/proc/self/task/%d/children" % os.getpid()).read_text().split()]


def take_run(command: list[str], directory: Path, accepted: Callable[[], str], kept: set[int]) -> tuple[float, ...]:
    """(wall seconds, processor seconds, peak in MiB) of `command` and of all that it leaves behind, which is ended.

    `accepted` says what is wrong with the run, if anything is; `kept` are children that have nothing to do with it.
    """
    # Where the second is set, no compiled Python is kept: it is the compiler that would be measured.
    settings = {"ANSIBLE_SSH_CONTROL_PATH_DIR": str(directory / "cp"), "PYTHONDONTWRITEBYTECODE": ""}
    done = benchmark.timed(command, directory, **settings)
    processor = done.processor_seconds
    for pid in set(find_children()) - kept:
        os.kill(pid, signal.SIGTERM)
        _pid, _status, usage = os.wait4(pid, 0)
        processor += usage.ru_utime + usage.ru_stime
    problem = "exit status %d" % done.status if done.status else accepted()
    if problem:
        print((directory / "output.txt").read_text()[-3000:])
        sys.exit("%s: %s; a benchmark of a failure says nothing." % (" ".join(command[:4]), problem))
    return done.seconds, processor, done.peak_mib


class Recorded:
    """Recorded hosts, as benchmarks/run.py has them."""

    def __init__(self, directory: Path, count: int) -> None:
        self.inventory = benchmark.fleet(directory, count)

    def __enter__(self) -> Recorded:
        return self

    def __exit__(self, *_why: object) -> None:
        pass

    def start(self) -> set[int]:
        return set()

    def stop(self) -> float:
        return 0.0


class OverSsh:
    """Hosts in a network namespace."""

    def __init__(self, directory: Path, count: int) -> None:
        sys.path.insert(0, str(ROOT / "tests" / "hosts"))
        # It needs root, and is needed for these hosts only.
        import ssh_fleet  # type: ignore[import-not-found]  # noqa: PLC0415

        self._fleet = ssh_fleet.SshFleet(directory / ("fleet%d" % count), count)
        (directory / ("fleet%d" % count)).mkdir()
        self.inventory = directory / ("ssh%d.json" % count)
        self._count = count

    def __enter__(self) -> OverSsh:
        self._fleet.__enter__()
        hosts = {"host%03d" % number: self._fleet.host_variables(number) for number in range(self._count)}
        variables = {**self._fleet.common_variables(), **_READY_WITHOUT_GPUS}
        self.inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
        self._fleet.stop()
        return self

    def __exit__(self, *why: object) -> None:
        self._fleet.__exit__(*why)

    def start(self) -> set[int]:
        self._fleet.start()
        return set(find_children())

    def stop(self) -> float:
        return float(self._fleet.stop())


def measure_size(kind: str, directory: Path, count: int, forks: int, runs: int) -> tuple[list[Run], list[Run]]:
    """The runs of ping and of validate.yml on `count` hosts of the kind."""
    playbook, adhoc = benchmark.programs()
    report = directory / "reports" / "report.json"

    def find_fault() -> str:
        states = [host["state"] for host in json.loads(report.read_text())["hosts"].values()]
        ready = states.count("ready")
        return "" if ready == count else "%d of %d hosts are ready" % (ready, count)

    found: tuple[list[Run], list[Run]] = ([], [])
    with (OverSsh if kind == "ssh" else Recorded)(directory, count) as hosts:
        common = ["-i", str(hosts.inventory), "--forks", str(forks)]
        commands = (
            ([adhoc, "all", "-m", "ping", "-o", *common], lambda: ""),
            ([playbook, "validate.yml", "-e", "probe=false", *common], find_fault),
        )
        for number in range(runs):
            for (command, accepted), into in zip(commands, found):
                report.unlink(missing_ok=True)
                kept = hosts.start()
                try:
                    seconds, processor, peak = take_run(command, directory, accepted, kept)
                finally:
                    on_hosts = hosts.stop()
                into.append(Run(seconds, processor, on_hosts, peak))
            words = "  %s, %d hosts, run %d: ping %.1f s, processor %.1f s; validate.yml %.1f s, processor %.1f s"
            values = [value for part in found for value in (part[-1].seconds, part[-1].processor)]
            print(words % (kind, count, number + 1, *values), flush=True)
    return found


def take_median(runs: list[Run], name: str) -> float:
    return float(statistics.median(getattr(run, name) for run in runs))


def judge_kind(kind: str, measured: dict[int, tuple[list[Run], list[Run]]]) -> list[dict[str, Any]]:
    """The records ``{target, measured, wanted, met}`` of one kind of hosts, from the smallest size to the largest."""
    records = []
    for count, (pings, validates) in measured.items():
        for name, wanted in (("processor", RATIO), ("seconds", None), ("on_hosts", None), ("peak_mib", None)):
            ours, theirs = take_median(validates, name), take_median(pings, name)
            if theirs:
                unit = "MiB" if name == "peak_mib" else "s"
                text = "%s, %d host%s: %s, validate.yml %.2f %s, ping %.2f %s" % (
                    kind, count, "" if count == 1 else "s", _WHAT[name], ours, unit, theirs, unit,
                )  # fmt: skip
                records.append(make_record(text, ours / theirs, wanted))
    further = [judge_further(kind, measured, sizes) for sizes in zip(list(measured), list(measured)[1:])]
    for (text, seconds, mib), before in zip(further, [None, *further]):
        records.append(make_record(text + "MiB of the controller's memory for each further host", mib, MEMORY_MIB))
        line = LINE if before and before[1] > 0 else None
        ratio = seconds / before[1] if before and before[1] > 0 else 1.0
        words = "%.3f s of processor time for each further host, as a ratio to the sizes before" % seconds
        records.append(make_record(text + words, ratio, line))
    return records


def judge_further(
    kind: str, measured: dict[int, tuple[list[Run], list[Run]]], sizes: tuple[int, int]
) -> tuple[str, float, float]:
    """(what is compared, processor seconds for each further host, MiB for each further host) of validate.yml."""
    few, many = sizes
    values = [
        (take_median(measured[many][1], name) - take_median(measured[few][1], name)) / (many - few)
        for name in ("processor", "peak_mib")
    ]
    return "%s, from %d to %d hosts: " % (kind, few, many), values[0], values[1]


def make_record(target: str, measured: float, limit: float | None) -> dict[str, Any]:
    return {
        "target": target,
        "measured": round(measured, 3),
        "wanted": "at most %s" % limit if limit is not None else "",
        "met": None if limit is None else measured <= limit,
    }


def main(words: list[str]) -> int:
    parser = argparse.ArgumentParser(
        prog="make bench A=scale", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--sizes", default=SIZES, help="numbers of hosts, by comma (%(default)s)")
    parser.add_argument("--kinds", default=",".join(KINDS), help="of hosts, by comma (%(default)s)")
    parser.add_argument("--runs", type=int, default=3, help="of each, from 100 hosts on a third of them")
    parser.add_argument("--forks", type=int, default=25)
    parser.add_argument("--json", metavar="FILE", help="write the records there")
    options = parser.parse_args(words)
    kinds = options.kinds.split(",")
    sizes = sorted({int(word) for word in options.sizes.split(",") if word.isdigit()})
    if not sizes or min(sizes) < 1 or options.runs < 1 or not set(kinds) <= set(KINDS):
        parser.error("sizes are numbers from 1 on, kinds are of %s, runs are at least 1" % ", ".join(KINDS))
    if "ssh" in kinds and os.geteuid() != 0:
        parser.error("hosts over SSH need root, for their network namespaces; --kinds recorded does not")
    adopt_orphans()
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[: benchmark.PROCESSORS])
    records: list[dict[str, Any]] = []
    with tempfile.TemporaryDirectory(prefix="scale") as name:
        directory = Path(name)
        for kind in kinds:
            measured = {}
            for count in sizes:
                runs = options.runs if count < 100 else max(options.runs // 3, 1)
                measured[count] = measure_size(kind, directory, count, options.forks, runs)
            records += judge_kind(kind, measured)
    for record in records:
        told = {None: "       ", True: "met    ", False: "MISSED "}[record["met"]]
        wanted = " (%s)" % record["wanted"] if record["wanted"] else ""
        print("%s%s: %s%s" % (told, record["target"], record["measured"], wanted))
    if options.json:
        Path(options.json).write_text(json.dumps(records, indent=1) + "\n")
    return 0 if all(record["met"] is not False for record in records) else 1


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
