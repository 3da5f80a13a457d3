"""Plans the remedy of one check on one host. library/remedy_plan.py documents the arguments and the result."""

from __future__ import annotations

import importlib
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
check_cache = importlib.import_module("ansible.module_utils.gpu_checks.check_cache")
check_files = importlib.import_module("ansible.module_utils.gpu_checks.check_files")
remedy_plan = importlib.import_module("ansible.module_utils.gpu_checks.remedy_plan")
subject = importlib.import_module("ansible.module_utils.gpu_checks.subject")
ARGUMENT_SPEC = {
    "check": {"type": "str", "required": True},
    "checks": {"type": "list", "elements": "dict", "required": True},
    "checks_dir": {"type": "path", "default": check_cache.OWN},
}


class ActionModule(Base):  # type: ignore[misc]
    """Runs on the controller only, in check mode too."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, arguments = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        try:
            known = [check.id for check in check_cache.load_checks_cached(arguments["checks_dir"])]
            host = subject.build_subject(self._vars, self._templar.template)
        except (check_files.ChecksError, ValueError) as error:
            raise AnsibleActionFail(str(error)) from error
        machines = list(self._vars.get("hostvars") or ())
        plan = remedy_plan.plan_remedy(arguments["check"], arguments["checks"], host, self._host, known, machines)
        result.update(changed=False, **plan)
        return result
