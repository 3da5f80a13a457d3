"""Runs the loads of a benchmark one after the other and says what they mean.

Library/inference_server_load.py documents it.
"""

from __future__ import annotations

import importlib
import json
import os
import time
from pathlib import Path
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
benchmark = importlib.import_module("ansible.module_utils.gpu_server.load.benchmark")
generators = importlib.import_module("ansible.module_utils.gpu_server.load.generators")
files = importlib.import_module("ansible.module_utils.gpu_report.files")
SHOW_SECONDS, REPEAT_SECONDS = 10.0, 30.0  # what changed is shown after the first, what did not after the second
END_SECONDS = 60  # beyond its limit, for the generator to be ended
ARGUMENT_SPEC = {
    **generators.ARGUMENTS,
    "targets": {"type": "dict", "default": {}},
    "baseline": {"type": "path"},
    "report": {"type": "path"},
}


class ActionModule(Base):  # type: ignore[misc]
    """The module is asked once which generator there is, and once a load; what is printed and judged is done here."""

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result, args = self.begin_task(tmp, task_vars, ARGUMENT_SPEC)
        if self._task.check_mode:
            return {
                **result,
                "changed": False,
                "msg": "would put %d loads on %s" % (len(args["cells"]), args["base"]),
                "cells": [],
                "findings": [],
            }
        before = self._baseline(args["baseline"])
        generator = self._find(args)
        before, notes = benchmark.choose_baseline(before, generator)
        for note in notes:
            self.show_line(note)
        cells = self._measure(args, generator, before)
        findings = benchmark.find_shortfalls(cells, args["targets"], before)
        if len(cells) < len(args["cells"]):
            findings.append(
                {
                    "severity": "error",
                    "text": "the loads after it were not run (%d)" % (len(args["cells"]) - len(cells)),
                }
            )
        report = {
            "host": self._host, "model": args["model"], "at": time.time(),
            "generator": {**generator, "command": cells[-1]["command"]},
            "targets": args["targets"], "notes": notes, "cells": cells, "findings": findings,
        }  # fmt: skip
        if args["report"]:
            self._write(args["report"], report)
        result.update(
            changed=False,
            generator=report["generator"],
            cells=cells,
            findings=findings,
            notes=notes,
            failed=bool(findings),
        )
        result["msg"] = "; ".join(finding["text"] for finding in findings) or "every target is reached"
        return result

    def _find(self, args: dict[str, Any]) -> dict[str, Any]:
        """Which generator measures, shown with what spoke against better ones."""
        self.show_line("looking for a load generator (%s)" % args["generator"])
        found: dict[str, Any] = self._call(args, step="find", cells=args["cells"])["generator"]
        for one in found["passed_over"]:
            self.show_line("not %s: %s" % (one["name"], one["why"]))
        self.show_line("load generator: %s" % benchmark.generator_name(found))
        return found

    def _measure(
        self, args: dict[str, Any], generator: dict[str, Any], before: dict[str, Any] | None
    ) -> list[dict[str, Any]]:
        """The cells, up to and with the first of which the generator gave no figures."""
        cells: list[dict[str, Any]] = []
        for number, cell in enumerate(args["cells"], start=1):
            name = "load %d of %d" % (number, len(args["cells"]))
            self.show_line("%s: %s" % (name, ", ".join("%s %s" % item for item in cell.items())))
            directory = self._call(args, step="run", how=generator, cells=[cell])["directory"]
            try:
                done = self._follow(name, directory, args["time_limit"])
            finally:
                self.remove_directory(directory)
            cells.append({**done["cell"], "command": done["command"]})
            for line in benchmark.render_table(cells[-1:], before):
                self.show_line(line)
            if cells[-1]["seconds"] is None:
                break
        return cells

    def _call(self, args: dict[str, Any], **more: Any) -> dict[str, Any]:
        names = ("base", "model", "api_key", "generator", "generator_python", "server", "time_limit")
        given = {
            name: value for name, value in {**{name: args[name] for name in names}, **more}.items() if value is not None
        }
        answer = self._execute_module(module_name="inference_server_load", module_args=given, task_vars=self._vars)
        if "generator" not in answer and "directory" not in answer:
            raise AnsibleActionFail("The load could not be put on the server: %s" % (answer.get("msg") or answer))
        return dict(answer)

    def _follow(self, name: str, directory: str, limit: int) -> dict[str, Any]:
        """Look at a load until it has ended. Each look also tells it that it is still wanted."""
        shown, last = 0.0, ""

        def look(text: str, seconds: float) -> None:
            nonlocal shown, last
            line = self._progress(text)
            if seconds - shown >= (SHOW_SECONDS if line != last else REPEAT_SECONDS):
                shown, last = seconds, line
                self.show_line("%s: %s, %d s" % (name, line, seconds))

        _progress, content = self.follow_detached(
            directory, output="progress", end="result.json", label=name, limit=limit + END_SECONDS, look=look
        )
        if content is None:
            raise AnsibleActionFail("%s: no result %d s after its time limit" % (name, END_SECONDS))
        return self._read(content)

    @staticmethod
    def _progress(text: str) -> str:
        try:
            seen = json.loads(text)
            if seen["done"] is not None:
                return "%d of %d requests" % (seen["done"], seen["requests"])
            return "starting: %s" % seen["line"][:100] if seen["line"] else "starting"
        except (ValueError, KeyError, TypeError):
            return "starting"

    @staticmethod
    def _read(text: str) -> dict[str, Any]:
        try:
            found = json.loads(text)
            return {"cell": found["cell"], "command": found["command"]}
        except (ValueError, KeyError, TypeError) as error:
            raise AnsibleActionFail("The result of the load cannot be read: %s" % text[:300]) from error

    @staticmethod
    def _baseline(path: str | None) -> dict[str, Any] | None:
        if not path or not os.path.exists(path):
            return None
        try:
            content = json.loads(Path(path).read_text(encoding="utf-8"))
        except (OSError, ValueError) as error:
            raise AnsibleActionFail("%s is no baseline: %s. Remove it to start anew." % (path, error)) from error
        if not benchmark.is_report(content):
            raise AnsibleActionFail("%s is no baseline: it holds no loads. Remove it to start anew." % path)
        return dict(content)

    @staticmethod
    def _write(path: str, report: dict[str, Any]) -> None:
        try:
            files.write_file(path, (json.dumps(report, indent=1) + "\n").encode())
        except OSError as error:
            raise AnsibleActionFail("The report %s cannot be written: %s" % (path, error.strerror)) from error
