"""Runs a command that takes minutes on the host and shows that it moves.

It shows the elapsed time and the last line that was printed.

The command runs detached, so a connection that breaks for a moment does not end it half way through.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
ARGUMENT_SPEC = {
    "argv": {"type": "list", "elements": "str", "required": True},
    "label": {"type": "str", "required": True},
    "environment": {"type": "dict", "default": {}},
    "timeout": {"type": "int", "default": 3600},
    "interval": {"type": "int", "default": 10},
    "hint": {"type": "str", "default": ""},
}


class ActionModule(Base):  # type: ignore[misc]
    """The long_step action; its documentation stands in library/long_step.py."""

    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, args = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        command = " ".join(shlex.quote(word) for word in args["argv"])
        if self._task.check_mode:
            return {**result, "changed": True, "msg": "would run: " + command, "cmd": command}
        directory = self._start(command, args["environment"])
        began = time.monotonic()
        code, text = self._follow(directory, args)
        seconds = round(time.monotonic() - began, 1)
        self.remove_directory(directory)
        result.update(changed=True, cmd=command, rc=code, seconds=seconds, stdout=text)
        if code != 0:
            hint = " " + args["hint"] if args["hint"] else ""
            why = (
                "did not end within %d s and was stopped" % args["timeout"]
                if code is None
                else "ended with %d after %.0f s" % (code, seconds)
            )
            result.update(failed=True, msg="%s %s: %s%s" % (args["label"], why, self.find_reason(text), hint))
        else:
            result["msg"] = "%s: %.0f s" % (args["label"], seconds)
        return result

    def _start(self, command: str, environment: dict[str, Any]) -> str:
        """Start the command detached.

        The directory that holds its log, its process id and, at the end, its exit code.
        """
        settings = " ".join("%s=%s" % (name, shlex.quote(str(value))) for name, value in environment.items())
        inner = "%s %s > log 2>&1; echo $? > code.new; mv code.new code" % (
            "env " + settings if settings else "",
            command,
        )
        # With a terminal (ssh -tt) the end of this shell hangs up on its children: ignored from here on, and the step
        # runs before we go.
        script = (
            'trap "" HUP; d=$(mktemp -d "${TMPDIR:-/tmp}/long-step.XXXXXX") && cd "$d" && '
            "{ setsid sh -c %s </dev/null >/dev/null 2>&1 & echo $! > pid; while [ ! -e log ]; do sleep 0.05; done; "
            'echo "$d"; }'
        )
        answer = self._low_level_execute_command(script % shlex.quote(inner))
        directory = (answer.get("stdout") or "").strip().splitlines()[-1:]
        if answer.get("rc") != 0 or not directory:
            raise AnsibleActionFail(
                "the command could not be started: %s"
                % ((answer.get("stderr") or answer.get("stdout") or "no reason given").strip())
            )
        return directory[0]

    def _follow(self, directory: str, args: dict[str, Any]) -> tuple[int | None, str]:
        """(the exit code, the end of what was printed); None where it took too long and was ended."""
        shown = 0.0

        def look(text: str, seconds: float) -> None:
            nonlocal shown
            if seconds - shown >= args["interval"]:
                shown = seconds
                self.show_line("%s: %d s: %s" % (args["label"], seconds, _last_line(text)[:100]))

        text, code = self.follow_detached(
            directory, output="log", end="code", label=args["label"], limit=args["timeout"], look=look
        )
        if code is None:
            self._low_level_execute_command("kill -TERM -- -$(cat %s/pid)" % shlex.quote(directory))
        return None if code is None else int(code), text


def _last_line(text: str) -> str:
    # Progress bars rewrite their line with carriage returns.
    lines = [line.rsplit("\r", 1)[-1].strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "no output yet")
