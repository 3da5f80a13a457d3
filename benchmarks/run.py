#!/usr/bin/env python3
"""Benchmarks with a verdict each: what validating costs against the least that Ansible does (`ansible all -m ping`).

    make bench                      # 100 recorded hosts, forks 25, on two processors
    make bench A='--hosts 25 --runs 1'
    make bench A=scale              # 1 to 500 hosts, recorded and over SSH (benchmarks/scale.py)

Times are wall-clock seconds of whole commands, the two run in turns so that a busy machine slows both; the ratio is
taken from the medians. Memory is the largest resident set of any process of a run (the controller's), from the kernel.
Exit status 1 where a target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
BUNDLES = ("bare-metal", "lxc-story", "kvm-q35", "h200-x2")
RATIO_TARGET = 1.6
MEMORY_TARGET_MIB = 2.0  # what one more host may cost the controller
FACTS_TARGET_SECONDS = 2.0
PROCESSORS = 2


@dataclass(frozen=True)
class Run:
    """One finished command."""

    seconds: float
    processor_seconds: float
    peak_mib: float
    status: int


def fleet(directory: Path, count: int) -> Path:
    """An inventory of `count` healthy recorded hosts, each with a bundle file of its own."""
    hosts = {}
    for number in range(count):
        name = BUNDLES[number % len(BUNDLES)]
        bundle = directory / ("host%03d.jsonl.gz" % number)
        shutil.copyfile(HOSTS / (name + ".jsonl.gz"), bundle)
        hosts["host%03d" % number] = {"gpu_host_bundle": str(bundle)}
    inventory = directory / ("hosts%d.json" % count)
    variables = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable}
    inventory.write_text(json.dumps({"all": {"hosts": hosts, "vars": variables}}))
    return inventory


def timed(command: list[str], directory: Path, **settings: str) -> Run:
    """Run `command` with these variables in its environment; what it printed is in DIRECTORY/output.txt."""
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        GPU_HOST_REPORTS_DIR=str(directory / "reports"),
        ANSIBLE_NOCOLOR="1",
    )
    environment.setdefault("LC_ALL", "C.UTF-8")
    environment.update(settings)
    with open(directory / "output.txt", "w") as output:
        began = time.monotonic()
        child = subprocess.Popen(
            command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=output, stderr=subprocess.STDOUT
        )
        _pid, status, usage = os.wait4(child.pid, 0)
        seconds = time.monotonic() - began
    child.returncode = os.waitstatus_to_exitcode(status)
    return Run(seconds, usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024, child.returncode)


def programs() -> tuple[str, str]:
    beside = Path(sys.executable).parent
    found = [
        str(beside / name) if (beside / name).exists() else shutil.which(name)
        for name in ("ansible-playbook", "ansible")
    ]
    if not all(found):
        sys.exit("ansible-core is not installed for %s; `make bench` sets it up." % sys.executable)
    return str(found[0]), str(found[1])


def checked(run: Run, directory: Path, what: str) -> Run:
    if run.status != 0:
        print((directory / "output.txt").read_text()[-3000:])
        sys.exit("%s ended with status %d; a benchmark of a failure says nothing." % (what, run.status))
    return run


def compare(directory: Path, hosts: int, forks: int, runs: int) -> tuple[bool, float]:
    """Whether the ratio of validate.yml to ping meets its target, and the peak of the controller in MiB."""
    playbook, adhoc = programs()
    inventory = str(fleet(directory, hosts))
    validate = [playbook, "validate.yml", "-i", inventory, "--forks", str(forks)]
    ping = [adhoc, "all", "-i", inventory, "-m", "ping", "--forks", str(forks), "-o"]
    ours, theirs = [], []
    for number in range(runs):
        theirs.append(checked(timed(ping, directory), directory, "ping"))
        ours.append(checked(timed(validate, directory), directory, "validate.yml"))
        words = "run %d  ping %.2f s (%.1f s of processor)  validate.yml %.2f s (%.1f s)"
        last = theirs[-1], ours[-1]
        print(
            words % (number + 1, *(value for run in last for value in (run.seconds, run.processor_seconds))), flush=True
        )
    ping_seconds = statistics.median(run.seconds for run in theirs)
    validate_seconds = statistics.median(run.seconds for run in ours)
    ratio = validate_seconds / ping_seconds
    print(
        "%d hosts, forks %d, medians of %d: ping %.2f s, validate.yml %.2f s"
        % (hosts, forks, runs, ping_seconds, validate_seconds)
    )
    processor = statistics.median(run.processor_seconds for run in ours) / statistics.median(
        run.processor_seconds for run in theirs
    )
    print(
        "processor time: validate.yml takes %.2f times what ping takes (this hardly depends on what else the machine "
        "does)" % processor
    )
    print(
        "%s  validate.yml takes %.2f times what ping takes (target: at most %.1f)"
        % (verdict(ratio <= RATIO_TARGET), ratio, RATIO_TARGET)
    )
    return ratio <= RATIO_TARGET, max(run.peak_mib for run in ours)


def memory(directory: Path, hosts: int, forks: int, peak_mib: float) -> bool:
    """Whether one more host costs the controller little.

    Compares the peak with all hosts with the peak with a quarter of them.
    """
    fewer = max(hosts // 4, 1)
    playbook, _adhoc = programs()
    command = [playbook, "validate.yml", "-i", str(fleet(directory, fewer)), "--forks", str(forks)]
    small = checked(timed(command, directory), directory, "validate.yml").peak_mib
    each = (peak_mib - small) / max(hosts - fewer, 1)
    print("controller's peak: %.0f MiB with %d hosts, %.0f MiB with %d hosts" % (small, fewer, peak_mib, hosts))
    good = each <= MEMORY_TARGET_MIB
    print(
        "%s  %.2f MiB for each further host (target: at most %.1f, whatever their number)"
        % (verdict(good), each, MEMORY_TARGET_MIB)
    )
    return good


def facts_here() -> bool:
    """The time of gpu_facts on this host, where it has GPUs."""
    if not Path("/proc/driver/nvidia/version").exists():
        print("skipped  gpu_facts on a real host: no NVIDIA driver here")
        return True
    code = (
        "import sys, time; sys.path.insert(0, 'module_utils'); from gpu_host.evidence.live import LiveEvidence; from "
        "gpu_host.gather import gather;"
        "began = time.monotonic(); gather(LiveEvidence()); print(time.monotonic() - began)"
    )
    runs = [
        float(subprocess.run([sys.executable, "-c", code], cwd=ROOT, check=True, capture_output=True, text=True).stdout)
        for _ in range(3)
    ]
    seconds = statistics.median(runs)
    good = seconds <= FACTS_TARGET_SECONDS
    print(
        "%s  gpu_facts takes %.2f s on this host (target: at most %.1f)"
        % (verdict(good), seconds, FACTS_TARGET_SECONDS)
    )
    return good


def verdict(good: bool) -> str:
    return "met    " if good else "MISSED "


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--hosts", type=int, default=100)
    parser.add_argument("--forks", type=int, default=25)
    parser.add_argument("--runs", type=int, default=3)
    parser.add_argument("--all-processors", action="store_true", help="do not keep to %d processors" % PROCESSORS)
    arguments = parser.parse_args()
    if arguments.hosts < 1 or arguments.runs < 1 or arguments.forks < 1:
        parser.error("hosts, forks and runs are at least 1")
    if not arguments.all_processors:
        os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:PROCESSORS])
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        fast, peak = compare(directory, arguments.hosts, arguments.forks, arguments.runs)
        small = memory(directory, arguments.hosts, arguments.forks, peak)
        here = facts_here()
    return 0 if fast and small and here else 1


if __name__ == "__main__":
    sys.exit(main())
