"""Writes what was found on a host to a file on the controller, whole or not at all. library/write_baseline.py documents
it."""

from __future__ import annotations

import importlib
import json
import os
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_OURS = str(Path(__file__).resolve().parents[2] / "module_utils")
if _OURS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OURS)

files = importlib.import_module("ansible.module_utils.gpu_report.files")


class ActionModule(ActionBase):
    """Runs on the controller only, in check mode too: a baseline is a look, not a change."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(
            argument_spec={"dest": {"type": "path", "required": True}, "content": {"type": "dict", "required": True}}
        )
        path = os.path.abspath(os.path.expanduser(arguments["dest"]))
        data = json.dumps(arguments["content"], indent=1, sort_keys=True, ensure_ascii=False) + "\n"
        try:
            files.write(path, data.encode("utf-8", "surrogatepass"), mode=0o600)
        except OSError as error:
            raise AnsibleActionFail("%s cannot be written: %s" % (path, error.strerror or error)) from None
        result.update(changed=False, dest=path, msg=path)
        return result
