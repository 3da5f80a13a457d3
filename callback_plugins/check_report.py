"""The report of a validation: on the terminal, and as files."""

from __future__ import annotations

DOCUMENTATION = r"""
name: check_report
type: aggregate
short_description: report what the checks found, root causes first
description:
  - Collects the results of C(run_checks) from every host, prints what is wrong and what to do, and writes
    C(report.json), C(junit.xml), C(report.html), C(report.md) and C(metrics.prom).
  - Writes a page per host into C(hosts) below that where there are more than ten.
  - Keeps the reports of the last runs in C(history) below that, with pages that show what they found and measured.
  - A host that could not be reached, or that failed before its checks, is reported as not validated.
  - Ends the run with exit status 1 where no host was validated or a report could not be written.
options:
  reports_dir:
    description:
      - Where the reports are written. A relative path is taken from the current directory.
      - The default is C(reports) beside this project's playbooks; in a collection, C(reports) in the current directory.
    type: path
    env:
      - name: GPU_HOST_REPORTS_DIR
    ini:
      - section: check_report
        key: reports_dir
  history:
    description:
      - How many runs are kept in C(history) below O(reports_dir), this one among them. V(0) keeps none.
      - The default is a run per day for a month; 500 hosts with eight GPUs each take about 2 MB per run.
    type: int
    default: 30
    env:
      - name: GPU_HOST_HISTORY
    ini:
      - section: check_report
        key: history
  reason_file:
    description:
      - A file for schedulers, with one line per host, C(HOST STATE REASON) (C(docs/recipes.md)). The state is C(ready),
        C(not_ready) or C(not_validated); the reason is short and plain, as for C(scontrol update).
      - A relative path is taken from the current directory.
      - It is written only where it is asked for.
    type: path
    env:
      - name: GPU_HOST_REASON_FILE
    ini:
      - section: check_report
        key: reason_file
requirements:
  - listed in callbacks_enabled in ansible.cfg
"""

import atexit
import contextlib
import datetime
import functools
import importlib
import os
import signal
import sys
import time
from typing import Any, Callable

import ansible.release
from ansible import constants as C
from ansible.plugins.callback import CallbackBase
from ansible.plugins.loader import action_loader

action_loader.get("gpu_host_action", class_only=True)  # which puts our module_utils in reach
collector = importlib.import_module("ansible.module_utils.gpu_report.collector")
installation = importlib.import_module("ansible.module_utils.gpu_checks.installation")
directories = importlib.import_module("ansible.module_utils.gpu_report.directories")
host_failures = importlib.import_module("ansible.module_utils.gpu_report.host_failures")
keeping = importlib.import_module("ansible.module_utils.gpu_report.history.keeping")
terminal = importlib.import_module("ansible.module_utils.gpu_report.terminal")
writers = importlib.import_module("ansible.module_utils.gpu_report.writers")

EXIT_STATUS = 1
# What reports a change and leaves the host as it is.
_CHANGES_NO_HOST = {"write_baseline", "write_bundle", "set_fact", "add_host", "group_by", "debug", "assert", "stat"}
_WIDTH = 100
_TONES = {
    terminal.GOOD: C.COLOR_OK,
    terminal.BAD: C.COLOR_ERROR,
    terminal.DOUBT: C.COLOR_WARN,
    terminal.MUTED: C.COLOR_VERBOSE,
    terminal.STRONG: C.COLOR_HIGHLIGHT,
}


def _kept(method: Callable[..., None]) -> Callable[..., None]:
    """Ansible turns an exception in a callback into a warning.

    Ours is kept, so that the run cannot end as if all were well. Ctrl-C waits meanwhile: a verdict that was printed
    is not lost to the report.
    """

    @functools.wraps(method)
    def wrapper(self: Any, *args: Any, **kwargs: Any) -> None:
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM, signal.SIGHUP})
        try:
            method(self, *args, **kwargs)
        except Exception as error:
            self.faults.append("%s: %s: %s" % (method.__name__, type(error).__name__, error))
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    return wrapper


def _end_as_by_ctrl_c() -> None:
    """SIGTERM (systemd, a scheduler, a job's time limit) and SIGHUP (the terminal is gone) end a run as Ctrl-C does:

    its workers end, and what is known by then is reported. By itself Ansible ends at once, without a word.
    """
    of_ansible = signal.getsignal(signal.SIGTERM)

    def interrupt(number: int, frame: Any) -> None:
        signal.signal(number, signal.SIG_DFL)  # the second one ends it at once
        if callable(of_ansible):
            of_ansible(signal.SIGINT, frame)
        raise KeyboardInterrupt

    signal.signal(signal.SIGTERM, interrupt)
    if signal.getsignal(signal.SIGHUP) is signal.SIG_DFL:  # otherwise nohup
        signal.signal(signal.SIGHUP, interrupt)


class CallbackModule(CallbackBase):
    """Collects while the run goes on, reports at its end."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "aggregate"
    CALLBACK_NAME = "check_report"
    CALLBACK_NEEDS_ENABLED = True

    def __init__(self, *args: Any, **kwargs: Any) -> None:
        super().__init__(*args, **kwargs)
        self._collector = collector.Collector()
        self._validating = False  # some play of this run has checks
        self._in_validation = False  # the present play has
        self._playbook = ""
        self._began = time.time()
        self._reported = False
        self._in_use: Any = None  # the open file by which another run sees that this one uses the directory
        self._apart = ""  # the directory of this run's reports, where another run uses the usual one
        self.faults: list[str] = []

    @_kept
    def v2_playbook_on_start(self, playbook: Any) -> None:
        self._playbook = os.path.basename(str(getattr(playbook, "_file_name", "")))
        self._began = time.time()

    @_kept
    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._in_validation = any(_name(task) == "run_checks" for block in play.compile() for task in _tasks(block))
        if self._in_validation:
            self._validate()

    @_kept
    def v2_runner_on_start(self, host: Any, task: Any) -> None:
        if self._in_validation:
            self._collector.seen(host.get_name())  # a run that is interrupted tells of it too

    @_kept
    def v2_runner_on_ok(self, result: Any) -> None:
        self._take(result)

    @_kept
    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        name = result.host.get_name()
        if _name(result.task) == "run_checks":
            self._take(result)
        elif not ignore_errors and self._concerns(name) and not _says_verdict(result.task):
            self._collector.failed(name, _message(result.result), step=result.task.get_name())

    @_kept
    def v2_runner_on_unreachable(self, result: Any) -> None:
        name = result.host.get_name()
        if self._concerns(name):
            step = result.task.get_name() if self._collector.judged(name) else ""
            why = host_failures.explain_unreachable(result.result)
            self._collector.failed(name, why, unreachable=True, step=step)

    def _concerns(self, host: str) -> bool:
        """Whether a failure leaves the host without a verdict: one that was to be judged, or was judged before."""
        return self._in_validation or self._collector.judged(host)

    def _take(self, result: Any) -> None:
        name, host = _name(result.task), result.host.get_name()
        if name == "run_checks":
            self._validate()  # also where it came by include_role, which the play does not show beforehand
            self._collector.results(host, result.result)
            return
        if self._in_validation:
            self._collector.seen(host)
        if result.is_changed() and name not in _CHANGES_NO_HOST:
            self._collector.changed(host, result.task.get_name(), _other_machine(result, host))

    def _validate(self) -> None:
        """From now on this run reports, whatever ends it, into a directory that no other run writes to meanwhile."""
        if self._validating:
            return
        self._validating = True
        atexit.register(self._at_exit, os.getpid())
        with contextlib.suppress(ValueError):  # not the main thread: somebody's own program runs the playbook
            _end_as_by_ctrl_c()
        self._in_use = directories.take_directory(self._directory())
        if self._in_use is directories.TAKEN:
            moment = time.strftime("%Y%m%d-%H%M%S", time.gmtime(self._began))
            self._apart = os.path.join(self._directory(), "run-%s-%d" % (moment, os.getpid()))

    def _at_exit(self, process: int) -> None:
        """Where the run was interrupted: what is known by then."""
        if self._reported or os.getpid() != process:
            return
        with contextlib.suppress(Exception):
            for problem in self._report(complete=False):
                self._display.display("[ERROR]: " + problem, color=C.COLOR_ERROR)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self._validating and not self.faults:
            return
        problems: list[str] = []
        try:
            problems = self._report()
        except Exception as error:
            self.faults.append("%s: %s" % (type(error).__name__, error))
        for fault in self.faults:
            problems.append("the report is incomplete, a fault of check_report: %s" % fault)
        for problem in problems:
            self._display.display("[ERROR]: " + problem, color=C.COLOR_ERROR)
        if problems:
            # The only way in which a callback can make the run fail: Ansible ends with this status after its own
            # clean-up.
            sys.exit(EXIT_STATUS)

    def _report(self, complete: bool = True) -> list[str]:
        self._reported = True
        report = self._collector.report({**self._run(), "complete": complete})
        directory, runs = self._apart or self._directory(), self.get_option("history")
        past = os.path.join(self._directory(), keeping.FOLDER)
        # The history is of the usual directory, also where the reports of this run are apart.
        written, problems = writers.write_all(
            report, directory, os.path.relpath(past, directory) + "/" if runs > 0 else ""
        )
        if runs > 0 and report["hosts"]:
            kept = keeping.keep_run(past, report, os.path.join(directory, "report.json"), runs)
            written += kept.pages if kept.runs > 1 else []  # of one run there is nothing to see yet
            problems += kept.problems
            for note in kept.notes:
                self._display.display("[WARNING]: " + note, color=C.COLOR_WARN)
        if self.get_option("reason_file"):
            problems += writers.write_reasons(report, os.path.abspath(self.get_option("reason_file")))
        if self._apart:
            self._display.warning(
                "Another run writes its reports to %s, so those of this one are in %s."
                % (self._directory(), self._apart)
            )
        columns = getattr(self._display, "columns", _WIDTH)
        width = min(_WIDTH, columns) if sys.stdout.isatty() else _WIDTH
        for text, tone in terminal.render_terminal(
            report, width, self._display.verbosity, tuple(_shown(path) for path in written)
        ):
            self._display.display(text, color=_TONES.get(tone))
        if not report["hosts"]:
            problems.append("no host was validated")
        return problems

    def _run(self) -> dict[str, Any]:
        ended = time.time()
        return {
            "playbook": self._playbook,
            "started_at": datetime.datetime.fromtimestamp(self._began, datetime.timezone.utc).isoformat(
                timespec="seconds"
            ),
            "seconds": round(ended - self._began, 1),
            "ansible_core": ansible.release.__version__,
        }

    def _directory(self) -> str:
        wanted = self.get_option("reports_dir") or os.path.join(installation.find_output_directory(), "reports")
        return os.path.abspath(os.path.expanduser(wanted))


def _name(task: Any) -> str:
    return str(task.action).rpartition(".")[2]


def _other_machine(result: Any, host: str) -> str:
    """The host that the task ran on, where that is another one than the one that it ran for."""
    delegated = (result.result.get("_ansible_delegated_vars") or {}).get("ansible_delegated_host") or ""
    return "" if delegated == host else str(delegated)


def _says_verdict(task: Any) -> bool:
    """A task with the variable `check_report_verdict` fails because of what the checks said, not before they could."""
    return bool((getattr(task, "vars", None) or {}).get("check_report_verdict"))


def _tasks(block: Any) -> list[Any]:
    found: list[Any] = []
    for part in (*block.block, *block.rescue, *block.always):
        found += _tasks(part) if hasattr(part, "block") else [part]
    return found


def _message(result: dict[str, Any]) -> str:
    return str(host_failures.explain_failure(result))


def _shown(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative
