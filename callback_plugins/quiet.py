"""Ansible's own output without the floods: what our modules return is for the report, not for the screen."""

from __future__ import annotations

DOCUMENTATION = r"""
name: quiet
type: stdout
short_description: default output, short for the tasks of this project
description:
  - The output of P(ansible.builtin.default#callback), except that facts and checks print one line where something is
    wrong, and nothing else.
  - C(-v) prints one line for every host; C(-vv) prints everything.
extends_documentation_fragment:
  - default_callback
  - result_format_callback
requirements:
  - set as stdout_callback in ansible.cfg
"""

import importlib
from typing import Any

from ansible import constants as C
from ansible.plugins.callback.default import CallbackModule as Default
from ansible.plugins.loader import action_loader

action_loader.get("gpu_host_action", class_only=True)  # which puts our module_utils in reach
host_failures = importlib.import_module("ansible.module_utils.gpu_report.host_failures")

SHORT = {
    "run_checks",
    "host_facts",
    "gpu_facts",
    "p2p_facts",
    "proxmox_facts",
    "inference_server_facts",
    "validate_argument_spec",
}


# Plays of which there is nothing to say: they go on with what an earlier one began, and often have no host.
LATER_PLAYS = {"Validate guests whose Proxmox host took longer", "Measure hosts together that serve one model"}


class CallbackModule(Default):
    """One line per host for our tasks; the default for all others."""

    CALLBACK_VERSION = 2.0
    CALLBACK_TYPE = "stdout"
    CALLBACK_NAME = "quiet"

    def __init__(self) -> None:
        super().__init__()
        self._checked = False
        self._play_banner = True

    def _is_short(self, result: Any) -> bool:
        name = str(result.task.action).rpartition(".")[2]
        self._checked = self._checked or name == "run_checks"
        return name in SHORT and self._display.verbosity < 2

    def _dump_results(self, result: Any, *args: Any, **more: Any) -> str:
        """What a facts module recorded (`capture=true`) is a file, and nothing for a screen at any -v."""
        if isinstance(result, dict) and result.get("bundle_text"):
            result = {**result, "bundle_text": "%d characters of evidence, not shown" % len(result["bundle_text"])}
        return str(super()._dump_results(result, *args, **more))

    def _line(self, status: str, result: Any, color: str, explain: Any = None) -> None:
        said = str(result.result.get("msg", ""))
        explained = explain(result.result) if explain else said
        lines = (said if " ".join(said.split()) == explained else explained).strip().splitlines() or ["done"]
        words = " ".join(lines[:2]) + (" …" if len(lines) > 2 else "")
        self._display.display("%s: [%s] %s" % (status, result.host.get_name(), words), color=color)

    def v2_playbook_on_task_start(self, task: Any, is_conditional: bool) -> None:
        if self._display.verbosity or str(task.action).rpartition(".")[2] not in SHORT:
            super().v2_playbook_on_task_start(task, is_conditional)

    def v2_playbook_on_play_start(self, play: Any) -> None:
        self._play_banner = str(play.get_name()).strip() not in LATER_PLAYS or bool(self._display.verbosity)
        if self._play_banner:
            super().v2_playbook_on_play_start(play)

    def v2_playbook_on_no_hosts_matched(self) -> None:
        if self._play_banner:
            super().v2_playbook_on_no_hosts_matched()

    def v2_runner_on_skipped(self, result: Any) -> None:
        if self._display.verbosity or not self._is_short(result):
            super().v2_runner_on_skipped(result)

    def v2_runner_on_ok(self, result: Any) -> None:
        if not self._is_short(result):
            super().v2_runner_on_ok(result)
        elif (
            self._display.verbosity or result.is_changed()
        ):  # `result.result` is a copy of everything, made when it is asked for
            changed = result.is_changed()
            self._line("changed" if changed else "ok", result, C.COLOR_CHANGED if changed else C.COLOR_OK)

    def v2_runner_on_failed(self, result: Any, ignore_errors: bool = False) -> None:
        if self._is_short(result):
            self._line("failed", result, C.COLOR_ERROR, host_failures.explain_failure)
        else:
            super().v2_runner_on_failed(result, ignore_errors=ignore_errors)

    def v2_runner_on_unreachable(self, result: Any) -> None:
        if self._display.verbosity < 2:
            self._line("unreachable", result, C.COLOR_UNREACHABLE, host_failures.explain_unreachable)
        else:
            super().v2_runner_on_unreachable(result)

    def v2_playbook_on_stats(self, stats: Any) -> None:
        if not self._checked or self._display.verbosity:  # the report of the checks says more than the recap
            super().v2_playbook_on_stats(stats)
