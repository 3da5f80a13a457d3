"""Writes what was found on a host to a file on the controller, whole or not at all.

library/write_baseline.py documents it.
"""

from __future__ import annotations

import importlib
import json
import os
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
files = importlib.import_module("ansible.module_utils.gpu_report.files")
ARGUMENT_SPEC = {"dest": {"type": "path", "required": True}, "content": {"type": "dict", "required": True}}


class ActionModule(Base):  # type: ignore[misc]
    """Runs on the controller only, in check mode too: a baseline is a look, not a change."""

    _requires_connection = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, arguments = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        path = os.path.abspath(os.path.expanduser(arguments["dest"]))
        data = json.dumps(arguments["content"], indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        try:
            files.write_file(path, data.encode("utf-8", "surrogatepass"), mode=0o600)
        except OSError as error:
            raise AnsibleActionFail("%s cannot be written: %s" % (path, error.strerror or error)) from None
        result.update(changed=False, dest=path, msg=path)
        return result
