#!/usr/bin/env python3
"""Validates a large inventory from several machines at once, and makes one report.

    python scripts/validate_on_workers.py -i INVENTORY \
        --worker 'ssh node1 ansible-runner worker' --worker 'ssh node2 ansible-runner worker' -- -b -f 50

Each --worker is a command that starts `ansible-runner worker`, here or elsewhere; it needs ansible-core, ansible-runner
and a way to its hosts, and nothing of this project: the project, the inventory and the baselines are sent to it
(`ansible-runner transmit`), and its events and reports come back (`process`). What stands after -- goes to
ansible-playbook.

The report is the one that a single run would give. A worker that ends without a report is named, its hosts are not
validated, and the others go on. Exit status: 0 where every host is ready, 2 where one is not, 4 where one could not be
reached, 1 where nothing could be started or written.
"""

from __future__ import annotations

import argparse
import contextlib
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, TextIO

import ansible_runner
import merge_reports  # type: ignore[import-not-found]  # which puts module_utils in reach
import worker_shares  # type: ignore[import-not-found]
from ansible.module_utils.gpu_compare import baseline
from ansible.module_utils.gpu_report import files, merging, phrases

ROOT = Path(__file__).resolve().parents[1]
# What a run needs of the clone; not its tests, its documentation and what it wrote.
FOLDERS = ("callback_plugins", "checks", "library", "module_utils", "playbooks", "plugins", "roles")
# The same on every worker, because one directory is sent to all. Paths are relative to the project, where Ansible runs.
IDENT = "run"
ARTIFACTS = "../artifacts/" + IDENT
GRACE_SECONDS = 10
_LONGEST = 400


class Worker:
    """One worker: its command, its hosts, and what came of it."""

    def __init__(self, number: int, command: str, hosts: Sequence[str], work: Path) -> None:
        self.name = "worker %d (%s)" % (number, command)
        self.words = shlex.split(command)
        self.hosts = hosts
        self.limit = "limits/worker-%d" % number
        self.directory = work / ("worker-%d" % number)
        self.artifacts = self.directory / "artifacts" / IDENT
        self.problem = ""
        self._process: subprocess.Popen[bytes] | None = None
        self._said: list[str] = []  # the last line that Ansible printed, the last error where it printed one

    def run(self, private: Path, arguments: Sequence[str]) -> merging.Part:
        """Send, wait, and read the report."""
        self.directory.mkdir()
        began = time.monotonic()
        try:
            with open(self.directory / "stderr", "w+", encoding="utf-8", errors="replace") as errors:
                explained = self._talk(private, arguments, errors)
            report = self._read_report()
        except Exception as error:  # an answer can break off anywhere, in the middle of an archive too
            report, explained = None, "its answer cannot be read: %s: %s" % (type(error).__name__, error)
        if report is None:
            self.problem = self.problem or _shorten(explained)
        print(
            "%s: %s, %d s%s"
            % (self.name, phrases.format_count(len(self.hosts), "host"), time.monotonic() - began,
               ", no report: " + self.problem if report is None else ""),
            file=sys.stderr, flush=True,
        )  # fmt: skip
        return merging.Part(self.name, report, self.problem if report is None else "", self.hosts)

    def stop(self, why: str) -> None:
        """End the worker and what it started, unless it has ended."""
        process = self._process
        if process is None or process.poll() is not None:
            return
        self.problem = self.problem or why
        for number in (signal.SIGTERM, signal.SIGKILL):
            with contextlib.suppress(OSError):
                os.killpg(process.pid, number)
            with contextlib.suppress(subprocess.TimeoutExpired):
                process.wait(GRACE_SECONDS)
                return

    def _talk(self, private: Path, arguments: Sequence[str], errors: TextIO) -> str:
        """What the worker says of its end; "" where it says nothing."""
        explained: list[str] = []
        words = [*arguments, "-l", "@../" + self.limit]
        self._process = subprocess.Popen(
            self.words, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=errors, start_new_session=True
        )
        # The worker reads everything before it answers; one that ended at once answers with an end of file.
        # suppress_env_files: each worker has words of its own, and what is sent is one directory for all.
        with contextlib.suppress(BrokenPipeError):
            ansible_runner.run(
                streamer="transmit", _output=self._process.stdin, private_data_dir=str(private), ident=IDENT,
                playbook="validate.yml", cmdline=shlex.join(words),
                suppress_env_files=True,
                envvars={"ANSIBLE_CONFIG": "ansible.cfg", "GPU_HOST_REPORTS_DIR": ARTIFACTS + "/reports"},
            )  # fmt: skip
        with contextlib.suppress(BrokenPipeError):
            assert self._process.stdin is not None
            self._process.stdin.close()
        ansible_runner.run(
            streamer="process", _input=self._process.stdout, private_data_dir=str(self.directory), ident=IDENT,
            quiet=True, event_handler=self._note,
            status_handler=lambda status, runner_config: explained.append(status.get("job_explanation") or ""),
        )  # fmt: skip
        with contextlib.suppress(subprocess.TimeoutExpired):
            self._process.wait(GRACE_SECONDS)
        self.stop("it did not end after its answer")
        ended = "it ended with exit status %d" % self._process.returncode if self._process.returncode else ""
        errors.seek(0)
        last = errors.read().strip().splitlines()[-1:] or self._said[-1:]
        return ": ".join(filter(None, [ended, *last])) or "; ".join(filter(None, explained))

    def _note(self, event: dict[str, Any]) -> bool:
        lines = [*self._said, *filter(str.strip, str(event.get("stdout") or "").splitlines())]
        self._said = [line for line in lines if "error" in line.lower()][-1:] or lines[-1:]
        return False  # the artifacts hold the events anyway

    def _read_report(self) -> dict[str, Any] | None:
        data = files.read_or_none(str(self.artifacts / "reports" / "report.json"))
        if data is None:
            return None
        report: dict[str, Any] = merging.read_report(data)
        others = sorted(set(report["hosts"]) - set(self.hosts))
        if others:
            raise merging.MergeError("it tells of hosts that were not its own: %s" % phrases.join_names(others))
        return report


def _shorten(explained: str) -> str:
    """One line, for the report."""
    return str(phrases.cut_text(" ".join(phrases.strip_controls(explained).split()), _LONGEST) or "it gave no reason")


def main(arguments: list[str]) -> int:
    options, rest = parse_arguments(arguments)
    signal.signal(signal.SIGTERM, signal.default_int_handler)
    with tempfile.TemporaryDirectory(prefix="validate-on-workers-") as name:
        work = Path(name)
        try:
            vault = [options.vault_password_file] if options.vault_password_file else []
            ties = worker_shares.read_ties(options.inventory, options.limit, vault)
            shares = worker_shares.plan_shares(ties, len(options.worker))
            if not shares:
                raise worker_shares.FleetError("No host matched. Check the inventory (-i) and the limit (-l).")
            workers = [
                Worker(number, command, share, work)
                for number, (command, share) in enumerate(zip(options.worker, shares), 1)
            ]
            words = [*prepare_directory(work / "private", options, workers), *rest]
        except (ValueError, OSError, KeyboardInterrupt) as error:  # FleetError and MergeError say what is wrong
            print("Nothing was started. %s" % (error or "It was interrupted."), file=sys.stderr)
            return int(merging.NOT_WRITTEN)
        report = merging.merge_reports(run_workers(workers, work / "private", words, options.timeout))
        keep_baselines(workers, Path(options.baselines_dir))
        return int(merge_reports.publish_report(report, options.reports_dir))


def parse_arguments(arguments: list[str]) -> tuple[argparse.Namespace, list[str]]:
    """(our options, the words for ansible-playbook)."""
    own, rest = arguments, []
    if "--" in arguments:
        place = arguments.index("--")
        own, rest = arguments[:place], arguments[place + 1 :]
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("-i", "--inventory", action="append", required=True, help="as of ansible-playbook")
    parser.add_argument("-l", "--limit", default="", help="as of ansible-playbook")
    parser.add_argument("--worker", action="append", required=True, metavar="COMMAND", help="give one for each worker")
    parser.add_argument("--vault-password-file", help="sent to the workers, where it is removed at their end")
    parser.add_argument("--timeout", type=int, default=7200, help="seconds after which a worker is ended (%(default)s)")
    parser.add_argument("--baselines-dir", default=str(ROOT / "baselines" / "hosts"), help="(%(default)s)")
    merge_reports.add_directory_option(parser)
    options = parser.parse_args(own)
    for name, instead in (("gpu_host_pattern", "-l"), ("gpu_host_baseline_dir", "--baselines-dir")):
        if any(name in word for word in rest):
            parser.error("%s cannot be given to the workers; use %s before the --" % (name, instead))
    return options, rest


def prepare_directory(private: Path, options: argparse.Namespace, workers: Sequence[Worker]) -> list[str]:
    """Lay out what is sent to every worker; the words for ansible-playbook by which it finds its part of it."""
    project = private / "project"
    project.mkdir(parents=True, mode=0o700)
    for path in sorted(ROOT.iterdir()):
        if path.is_dir() and path.name in FOLDERS:
            shutil.copytree(path, project / path.name, symlinks=True, ignore=shutil.ignore_patterns("__pycache__"))
        elif path.name == "ansible.cfg" or path.suffix == ".yml":
            shutil.copy(path, project / path.name)
    words: list[str] = []
    for number, source in enumerate(options.inventory):
        words += ["-i", send_inventory(private, number, source)]
    for worker in workers:
        (private / worker.limit).parent.mkdir(exist_ok=True)
        (private / worker.limit).write_text("\n".join(worker.hosts) + "\n", encoding="utf-8")
    kept = private / "artifacts" / IDENT / "baselines"
    if Path(options.baselines_dir).is_dir():
        shutil.copytree(options.baselines_dir, kept)
    words += ["-e", "gpu_host_baseline_dir=%s/baselines" % ARTIFACTS]
    if options.vault_password_file:
        (private / "secrets").mkdir(mode=0o700)
        shutil.copy(options.vault_password_file, private / "secrets" / "vault")
        words += ["--vault-password-file", "../secrets/vault"]
    return words


def send_inventory(private: Path, number: int, source: str) -> str:
    """Copy an inventory, with the variables that lie beside a file; what -i is to be, seen from the project. A list of
    hosts stays one."""
    if "," in source:
        return source
    path = Path(source).expanduser().resolve()
    target = private / "sources" / str(number)
    if path.is_dir():
        shutil.copytree(path, target, symlinks=False)
        return "../sources/%d" % number
    target.mkdir(parents=True)
    shutil.copy(path, target / path.name)
    for name in ("group_vars", "host_vars"):
        if (path.parent / name).is_dir():
            shutil.copytree(path.parent / name, target / name)
    return "../sources/%d/%s" % (number, path.name)


def run_workers(workers: Sequence[Worker], private: Path, words: Sequence[str], timeout: int) -> list[merging.Part]:
    """All at once. Ctrl-C and the time limit end them; what came back by then is kept."""
    alarm = threading.Timer(timeout, stop_workers, (workers, "it did not end within %d s" % timeout))
    alarm.daemon = True
    alarm.start()
    with ThreadPoolExecutor(len(workers)) as pool:
        running = [pool.submit(worker.run, private, words) for worker in workers]
        try:
            return [each.result() for each in running]
        except KeyboardInterrupt:
            stop_workers(workers, "it was interrupted")
            return [each.result() for each in running]
        finally:
            alarm.cancel()


def stop_workers(workers: Sequence[Worker], why: str) -> None:
    with ThreadPoolExecutor(len(workers)) as pool:
        list(pool.map(lambda worker: worker.stop(why), workers))


def keep_baselines(workers: Sequence[Worker], directory: Path) -> None:
    """The baselines that the workers saved of their own hosts."""
    for worker in workers:
        for host in worker.hosts:
            own = baseline.name_file(host)
            for name in (baseline.name_previous(own), own):
                data = files.read_or_none(str(worker.artifacts / "baselines" / name))
                if data is not None and data != files.read_or_none(str(directory / name)):
                    files.write_file(str(directory / name), data, mode=0o600)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
