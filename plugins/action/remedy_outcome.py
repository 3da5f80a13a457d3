"""Says whether a remedy helped, by a second look. library/remedy_outcome.py documents the arguments."""

from __future__ import annotations

import importlib
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
remedy_plan = importlib.import_module("ansible.module_utils.gpu_checks.remedy_plan")
subject = importlib.import_module("ansible.module_utils.gpu_checks.subject")
ARGUMENT_SPEC = {
    "check": {"type": "str", "required": True},
    "checks": {"type": "list", "elements": "dict", "required": True},
    "machine": {"type": "str", "required": True},
    "reboot_left_out": {"type": "bool", "default": False},
    "pending": {"type": "list", "elements": "str", "default": []},
}


class ActionModule(Base):  # type: ignore[misc]
    """Fails unless the check passes now."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, arguments = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        try:
            host = subject.build_subject(self._vars, self._templar.template)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        found = next((item for item in arguments["checks"] if item["id"] == arguments["check"]), None)
        outcome = remedy_plan.judge_outcome(
            arguments["check"],
            found,
            host,
            reboot_left_out=arguments["reboot_left_out"],
            on=arguments["machine"],
            pending=arguments["pending"],
        )
        self.show_line(outcome["message"])
        result.update(
            changed=False,
            failed=not outcome["passes"],
            msg=outcome["message"],
            passes=outcome["passes"],
            takes_reboot=outcome["takes_reboot"],
        )
        return result
