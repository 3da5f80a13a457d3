"""Runs the commands of a remedy, in order. library/remedy_run.py documents the arguments and the result."""

from __future__ import annotations

import shlex
from typing import Any

from ansible.plugins.loader import action_loader

LongStep: Any = action_loader.get("long_step", class_only=True)
ARGUMENT_SPEC = {
    "steps": {"type": "list", "elements": "dict", "required": True},
    "timeout": {"type": "int", "default": 3600},
    "interval": {"type": "int", "default": 10},
}
# A package's script must not wait for an answer that nobody gives.
ENVIRONMENT = {"DEBIAN_FRONTEND": "noninteractive", "LC_ALL": "C.UTF-8"}


class ActionModule(LongStep):  # type: ignore[misc]
    """Each command runs detached in bash, as it is shown, and without a terminal.

    One that only looks may fail (grep finds nothing); the first other one that fails ends it.
    """

    def run(self, tmp: str | None = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, arguments = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        done: list[str] = []
        reboot_left_out = False
        result.update(changed=False, done=done, reboot_left_out=False)
        for number, step in enumerate(arguments["steps"], 1):
            if step["reboots"]:  # the playbook does so, and waits for the machine
                reboot_left_out = True
                continue
            if self._task.check_mode:
                continue
            self.show_line("%d. %s" % (number, step["command"]))
            code, text = self._carry_out(step, number, arguments)
            for line in text.splitlines()[-12:]:
                self.show_line("   " + line)
            result["changed"] = result["changed"] or not step["looks"]
            if code != 0 and not step["looks"]:
                return {**result, "failed": True, "msg": _tell_failure(number, step, code, text, done, arguments)}
            done.append(step["command"])
        result.update(reboot_left_out=reboot_left_out, msg="%d commands were run" % len(done))
        return result

    def _carry_out(self, step: dict[str, Any], number: int, arguments: dict[str, Any]) -> tuple[int | None, str]:
        directory = self._start("bash -c " + shlex.quote(step["command"]), ENVIRONMENT)
        follow = {"interval": arguments["interval"], "label": "command %d" % number, "timeout": arguments["timeout"]}
        code, text = self._follow(directory, follow)
        self.remove_directory(directory)
        return code, text


def _tell_failure(
    number: int, step: dict[str, Any], code: int | None, text: str, done: list[str], arguments: dict[str, Any]
) -> str:
    late = "did not end within %d s and was stopped" % arguments["timeout"]
    how = late if code is None else "ended with %d" % code
    last = " | ".join(line.strip() for line in text.splitlines()[-4:] if line.strip()) or "it printed nothing"
    before = "Done before it: %s." % "; ".join(done) if done else "Nothing was done before it."
    return "Command %d %s: %s. Its last lines: %s. %s What follows it was not run." % (
        number, how, step["command"], last, before,
    )  # fmt: skip
