"""What the actions of this project have in common. No task names it: its ActionModule is the base of theirs.

Loading this file puts module_utils/ in reach of the code that runs on the controller: Ansible sends that folder to the
hosts but does not add it to its own import path. The one way in which one plugin file finds another, wherever
ansible-playbook or ansible-runner was started, is Ansible's plugin loader, so every other plugin begins with
``action_loader.get("gpu_host_action", class_only=True)``.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib
import shlex
import signal
import sys
import threading
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.plugins.loader import module_loader
from ansible.utils.display import Display

_OURS = Path(__file__).resolve().parents[2] / "module_utils"
# In a collection (`make collection`) it is not there: those packages are in reach by their whole name.
if _OURS.is_dir() and str(_OURS) not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(str(_OURS))

apt_parsing = importlib.import_module("ansible.module_utils.gpu_provision.apt_parsing")
installation = importlib.import_module("ansible.module_utils.gpu_checks.installation")
host_failures = importlib.import_module("ansible.module_utils.gpu_report.host_failures")
kept_payloads = importlib.import_module("ansible.module_utils.gpu_checks.kept_payloads")
display = Display()
FIRST_LOOK_SECONDS, LAST_LOOK_SECONDS = 0.3, 5.0
TAIL_BYTES = 6000
_LIBC = ctypes.CDLL(None, use_errno=True) if sys.platform == "linux" else None  # loaded once, before the workers
_PR_SET_PDEATHSIG = 1  # prctl(2)


def _end_with_run() -> None:
    """Where ansible-playbook is killed, its worker for this host ends as well, and with it the connection. By itself it
    would wait for the module, which would wait for whatever it measures."""
    if _LIBC is not None:
        with contextlib.suppress(AttributeError, OSError):
            _LIBC.prctl(_PR_SET_PDEATHSIG, signal.SIGTERM)


class ActionModule(ActionBase):
    """Begins a task, shows lines while it runs and follows what it started on the host."""

    _supports_check_mode = True
    _supports_async = False
    FIRST_WAIT_SECONDS, NEXT_WAIT_SECONDS = 6.0, 10.0
    BROKEN_LOOKS = 12  # in a row: a package may restart sshd or the network, and what was started runs on

    def begin_task(
        self, tmp: Any, task_vars: dict[str, Any] | None, argument_spec: dict[str, Any]
    ) -> tuple[dict[str, Any], dict[str, Any]]:
        """(the result so far, the validated arguments). AnsibleActionFail says which argument is wrong."""
        result: dict[str, Any] = ActionBase.run(self, tmp, task_vars)
        self._vars = task_vars or {}
        self._host = self._vars.get("inventory_hostname", "?")
        _validation, arguments = self.validate_argument_spec(argument_spec=argument_spec)
        return result, arguments

    def _execute_module(self, module_name: str | None = None, *args: Any, **more: Any) -> dict[str, Any]:
        """Run a module: one of ours is named by one word, whether it stands in a clone or in a collection."""
        name = installation.qualify_name(module_name) if module_name else None
        _end_with_run()
        source = module_loader.find_plugin(name, mod_type=".py") if name else None
        kept_payloads.carry_in(source)
        answer: dict[str, Any] = super()._execute_module(name, *args, **more)
        kept_payloads.carry_out(source)
        if answer.get("failed") and answer.get("_ansible_parsed") is False:  # it did not come to its end
            answer["msg"] = host_failures.explain_failure(answer)
        return answer

    def show_line(self, text: str) -> None:
        """Print one line for this host while the task runs."""
        display.display("  [%s] %s" % (self._host, text))

    @contextmanager
    def show_waiting(self, describe: Callable[[float], str]) -> Iterator[None]:
        """While the block waits for a module, show ``describe(seconds)`` now and then, the first time after a few
        seconds."""
        over = threading.Event()
        began = time.monotonic()

        def show() -> None:
            wait = self.FIRST_WAIT_SECONDS
            while not over.wait(wait):
                self.show_line(describe(time.monotonic() - began))
                wait = self.NEXT_WAIT_SECONDS

        shower = threading.Thread(target=show, daemon=True)
        shower.start()
        try:
            yield
        finally:
            over.set()
            shower.join()

    def follow_detached(
        self, directory: str, *, output: str, end: str, label: str, limit: float, look: Callable[[str, float], None]
    ) -> tuple[str, str | None]:
        """Look at a detached process until it has ended: (the tail of its output, the content of its end file).

        `directory` on the host holds the process id in the file ``pid``, what it prints or how far it is in the file
        `output`, and as soon as it has ended the file `end`, which was moved there whole. Each look renews the file
        ``alive`` and calls ``look(tail of the output, seconds)``. The second value is None where the process did not
        end within `limit` seconds; it still runs then. AnsibleActionFail where it ended without an end file.
        """
        mark = "state-%s:" % uuid.uuid4().hex  # in no output
        ask = (
            f"if cd {shlex.quote(directory)}; then touch alive; tail -c {TAIL_BYTES} {output}; echo; "
            f"if [ -e {end} ]; then echo {mark}ended; cat {end}; "
            f"elif kill -0 $(cat pid) || [ -e {end} ]; then echo {mark}runs; else echo {mark}gone; fi; "
            f"else echo {mark}gone; fi 2>/dev/null"
        )
        began = time.monotonic()
        wait, broken, gone = FIRST_LOOK_SECONDS, 0, 0
        while True:
            time.sleep(wait)
            wait = min(wait * 1.5, LAST_LOOK_SECONDS)
            try:
                answer = (self._low_level_execute_command(ask).get("stdout") or "").replace("\r\n", "\n")
                broken = 0
            except AnsibleConnectionFailure:
                broken += 1
                if broken > self.BROKEN_LOOKS:
                    raise
                continue
            text, _mark, rest = answer.rpartition(mark)
            state, _newline, content = rest.partition("\n")
            if state == "ended":
                return text.strip(), content
            # Twice: an answer may have been cut off, or the end file may have come after the looks for it.
            gone = gone + 1 if state.strip() == "gone" else 0
            if gone > 1:
                why = "%s was ended from outside (a kill, or the memory ran out): %s"
                raise AnsibleActionFail(why % (label, self.find_reason(text)))
            seconds = time.monotonic() - began
            if seconds > limit:
                return text.strip(), None
            look(text, seconds)

    def remove_directory(self, directory: str) -> None:
        """Remove what a detached process left on the host."""
        self._low_level_execute_command("rm -rf -- %s" % shlex.quote(directory))

    @staticmethod
    def find_reason(text: str) -> str:
        """What a program's output says of its failure: what a package's script printed, the lines marked as errors, or
        the last lines."""
        script = apt_parsing.find_failed_script(text)
        if script:
            return script[:1200]
        lines = [line.strip() for line in text.splitlines() if line.strip()]
        marked = [line for line in lines if line.startswith(("E:", "dpkg: error", "ERROR")) or "No space left" in line]
        return " ".join((marked or lines[-3:])[-4:])[:800] or "it printed nothing"
