"""Writes the bundle of one host to a file on the controller, whole or not at all. library/write_bundle.py documents it."""

from __future__ import annotations

import importlib
import os
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase

_OURS = str(Path(__file__).resolve().parents[2] / "module_utils")
if _OURS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OURS)

bundles = importlib.import_module("ansible.module_utils.gpu_host.evidence.bundle")
files = importlib.import_module("ansible.module_utils.gpu_report.files")
anonymiser = importlib.import_module("ansible.module_utils.gpu_host.evidence.anonymise")


class ActionModule(ActionBase):
    """Runs on the controller only."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _validation, arguments = self.validate_argument_spec(
            argument_spec={
                "text": {"type": "str", "required": True},
                "dest": {"type": "path", "required": True},
                "anonymous": {"type": "bool", "default": False},
            }
        )
        path = os.path.abspath(os.path.expanduser(arguments["dest"]))
        try:
            sent = bundles.parse(arguments["text"].encode("utf-8", "surrogatepass"), path)
        except ValueError as error:
            raise AnsibleActionFail("What the host sent is no bundle, nothing was written: %s" % error) from None
        # What two modules read stands in it twice: once is enough, and a replay takes the later one.
        records = len(sent.records())
        text = bundles.dump(sent.manifest, sent.records())
        text = anonymiser.anonymise(text) if arguments["anonymous"] else text
        data = bundles.compress(text)
        old = _content(path)
        result.update(changed=old != data, dest=path, size_bytes=len(data), records=records)
        result["msg"] = "%s: %d answers, %d KiB" % (path, records, len(data) // 1024)
        if self._task.check_mode or not result["changed"]:
            return result
        try:
            files.write(path, data, mode=0o600)
        except OSError as error:
            raise AnsibleActionFail("%s cannot be written: %s" % (path, error.strerror or error)) from None
        return result


def _content(path: str) -> bytes | None:
    try:
        with open(path, "rb") as handle:
            return handle.read()
    except OSError:
        return None
