"""Runs a command that takes minutes on the host and shows that it moves: elapsed time and the last line that it
printed.

The command runs detached, so a connection that breaks for a moment does not end it half way through.
"""

from __future__ import annotations

import shlex
import time
from typing import Any

from ansible.errors import AnsibleActionFail, AnsibleConnectionFailure
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

display = Display()
FIRST_POLL_SECONDS, LAST_POLL_SECONDS = 0.3, 5.0
BROKEN_POLLS = 12
TAIL_BYTES = 6000


class ActionModule(ActionBase):
    """The long_step action; its documentation stands in library/long_step.py."""

    _supports_check_mode = True
    _requires_connection = True

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "argv": {"type": "list", "elements": "str", "required": True},
                "label": {"type": "str", "required": True},
                "environment": {"type": "dict", "default": {}},
                "timeout": {"type": "int", "default": 3600},
                "interval": {"type": "int", "default": 10},
                "hint": {"type": "str", "default": ""},
            }
        )
        command = " ".join(shlex.quote(word) for word in args["argv"])
        if self._task.check_mode:
            return {**result, "changed": True, "msg": "would run: " + command, "cmd": command}
        self._host = (task_vars or {}).get("inventory_hostname", "?")
        directory = self._start(command, args["environment"])
        began = time.monotonic()
        code, text = self._follow(directory, args, began)
        seconds = round(time.monotonic() - began, 1)
        self._low_level_execute_command("rm -rf -- %s" % shlex.quote(directory))
        result.update(changed=True, cmd=command, rc=code, seconds=seconds, stdout=text)
        if code != 0:
            hint = " " + args["hint"] if args["hint"] else ""
            why = (
                "did not end within %d s and was stopped" % args["timeout"]
                if code is None
                else "ended with %d after %.0f s" % (code, seconds)
            )
            result.update(failed=True, msg="%s %s: %s%s" % (args["label"], why, _reason(text), hint))
        else:
            result["msg"] = "%s: %.0f s" % (args["label"], seconds)
        return result

    def _start(self, command: str, environment: dict[str, Any]) -> str:
        """Start the command detached; the directory that holds its log, its process id and, at the end, its exit code."""
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

    def _follow(self, directory: str, args: dict[str, Any], began: float) -> tuple[int | None, str]:
        wait, shown, broken, gone = FIRST_POLL_SECONDS, began, 0, 0
        state = "cat code 2>/dev/null || { kill -0 $(cat pid) 2>/dev/null || echo gone; }"
        ask = "cd %s && tail -c %d log 2>/dev/null; echo; echo code:$(%s)" % (shlex.quote(directory), TAIL_BYTES, state)
        while True:
            time.sleep(wait)
            wait = min(wait * 1.5, LAST_POLL_SECONDS)
            try:
                text, _mark, code = (self._low_level_execute_command(ask).get("stdout") or "").rpartition("code:")
                broken = 0
            except AnsibleConnectionFailure:
                broken += 1  # a package may restart sshd or the network
                if broken > BROKEN_POLLS:
                    raise
                continue
            # Twice: the step may have ended between the look for its exit code and the look for its process.
            gone = gone + 1 if code.strip() == "gone" else 0
            if gone > 1:
                raise AnsibleActionFail(
                    "%s was ended from outside (a kill, or the memory ran out): %s" % (args["label"], _reason(text))
                )
            if code.strip().isdigit():
                return int(code), text.replace("\r\n", "\n").strip()
            now = time.monotonic()
            if now - began > args["timeout"]:
                self._low_level_execute_command("kill -TERM -- -$(cat %s/pid)" % shlex.quote(directory))
                return None, text.strip()
            if now - shown >= args["interval"]:
                shown = now
                display.display(
                    "    %s: %s, %d s: %s" % (self._host, args["label"], now - began, _last_line(text)[:100])
                )


def _last_line(text: str) -> str:
    # Progress bars rewrite their line with carriage returns.
    lines = [line.rsplit("\r", 1)[-1].strip() for line in text.splitlines()]
    return next((line for line in reversed(lines) if line), "no output yet")


def _reason(text: str) -> str:
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [line for line in lines if line.startswith(("E:", "dpkg: error", "ERROR")) or "No space left" in line]
    return " ".join((marked or lines[-3:])[-4:])[:800] or "it printed nothing"
