"""Runs the loads of a benchmark one after the other and says what they mean; library/inference_server_load.py documents it."""
from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.plugins.action import ActionBase
from ansible.utils.display import Display

_OURS = str(Path(__file__).resolve().parents[2] / "module_utils")
if _OURS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OURS)

benchmark = importlib.import_module("ansible.module_utils.gpu_server.benchmark")
display = Display()


class ActionModule(ActionBase):
    """One call of the module is one load."""

    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        _spec, args = self.validate_argument_spec(
            argument_spec={
                "base": {"type": "str", "required": True},
                "model": {"type": "str", "required": True},
                "api_key": {"type": "str", "no_log": True},
                "cells": {"type": "list", "elements": "dict", "required": True},
                "targets": {"type": "dict", "default": {}},
                "baseline": {"type": "path"},
                "report": {"type": "path"},
                "time_limit": {"type": "int", "default": 600},
            }
        )
        if self._task.check_mode:
            return {**result, "changed": False, "msg": "would put %d loads on %s" % (len(args["cells"]), args["base"]), "cells": [], "findings": []}
        host = (task_vars or {}).get("inventory_hostname", "?")
        before = self._baseline(args["baseline"])
        cells = []
        for number, cell in enumerate(args["cells"], start=1):
            display.display("  [%s] load %d of %d: %s" % (host, number, len(args["cells"]), ", ".join("%s %s" % item for item in cell.items())))
            cells.append(self._measure({**cell, **{name: args[name] for name in ("base", "model", "api_key", "time_limit")}}, task_vars or {}))
            for line in benchmark.table(cells[-1:], before):
                display.display("  [%s] %s" % (host, line))
        findings = benchmark.findings(cells, args["targets"], before)
        report = {"host": host, "model": args["model"], "at": time.time(), "targets": args["targets"], "cells": cells, "findings": findings}
        if args["report"]:
            self._write(args["report"], report)
        result.update(changed=False, cells=cells, findings=findings, failed=bool(findings))
        result["msg"] = "; ".join(finding["text"] for finding in findings) or "every target is reached"
        return result

    def _measure(self, arguments: dict[str, Any], task_vars: dict[str, Any]) -> dict[str, Any]:
        given = {name: value for name, value in arguments.items() if value is not None}
        answer = self._execute_module(module_name="inference_server_load", module_args=given, task_vars=task_vars)
        if "cell" not in answer:
            raise AnsibleActionFail("The load could not be put on the server: %s" % (answer.get("msg") or answer))
        return dict(answer["cell"])

    @staticmethod
    def _baseline(path: str | None) -> dict[str, Any] | None:
        if not path or not os.path.exists(path):
            return None
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AnsibleActionFail("%s is no baseline: %s. Remove it to start anew." % (path, error)) from error
        return content if isinstance(content, dict) else None

    @staticmethod
    def _write(path: str, report: dict[str, Any]) -> None:
        target = Path(path)
        try:
            target.parent.mkdir(parents=True, exist_ok=True)
            temporary = target.with_suffix(".tmp")
            temporary.write_text(json.dumps(report, indent=1) + "\n", encoding="utf-8")
            os.replace(temporary, target)
        except OSError as error:
            raise AnsibleActionFail("The report %s cannot be written: %s" % (path, error.strerror)) from error
