"""Facts of a live host by the module of the same name, or of a recorded one on the controller (argument `bundle`).

Every facts module of this project shares it; a plugin of another name is
``ActionModule = action_loader.get("gpu_facts", class_only=True)``.
"""

from __future__ import annotations

import importlib
import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from ansible.errors import AnsibleActionFail
from ansible.plugins.loader import action_loader

Base: Any = action_loader.get("gpu_host_action", class_only=True)
replay = importlib.import_module("ansible.module_utils.gpu_host.evidence.replay")
case = importlib.import_module("ansible.module_utils.gpu_host.loose.case")
plan = importlib.import_module("ansible.module_utils.gpu_probe.plan")
installation = importlib.import_module("ansible.module_utils.gpu_checks.installation")
# The readers are imported here because the strategy imports this file before it forks a worker for every host: once a
# run, not once a host.
for _reader in ("gpu_host.gather", "gpu_host.p2p_probe", "gpu_host.proxmox", "gpu_server.gather"):
    importlib.import_module("ansible.module_utils." + _reader)
importlib.import_module("ansible.module_utils.gpu_checks.kept_payloads").find_tree()  # once a run, too


class ActionModule(Base):  # type: ignore[misc]
    """Runs the module, or its `facts` function on a bundle without a connection to the host."""

    gpu_count: int | None = None  # where an action has gathered it before it runs the probe

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        arguments = dict(self._task.args)
        bundle = arguments.pop("bundle", None)
        result.update(self.facts_of(self._task.action.rpartition(".")[2], arguments, bundle, task_vars))
        return result

    def facts_of(
        self, name: str, arguments: dict[str, Any], bundle: str | None, task_vars: dict[str, Any]
    ) -> dict[str, Any]:
        """The result of the facts module `name`, on the host or for `bundle`."""
        if not bundle:
            with self._without_log(bool(arguments.get("capture"))), self._show_phases(name, arguments, task_vars):
                live: dict[str, Any] = self._execute_module(
                    module_name=name, module_args=arguments, task_vars=self._with_interpreter(task_vars)
                )
            return live
        path = replay.find_bundle(str(bundle), (task_vars.get("inventory_dir"), os.getcwd()))
        module = self._shared_loader_obj.module_loader.find_plugin(installation.qualify_name(name), mod_type=".py")
        if module is None:
            raise AnsibleActionFail(
                "the module %s is not on the library path; run from the directory that holds ansible.cfg, or see "
                "docs/in-your-own-playbooks.md" % name
            )
        try:
            recorded: dict[str, Any] = replay.replay_facts(module, arguments, path, case.load_case)
        except ValueError as error:
            raise AnsibleActionFail(
                str(error)
            ) from None  # Ansible would say what it came from as well: the same words again
        return recorded

    @contextmanager
    def _show_phases(self, name: str, arguments: dict[str, Any], task_vars: dict[str, Any]) -> Iterator[None]:
        """Of the probe, which takes up to a minute on many GPUs: how long it has run, and what it may take."""
        if name != "p2p_facts":
            yield
            return
        self._host = task_vars.get("inventory_hostname", "?")
        gpus = self.gpu_count
        total = arguments.get("budget") or (plan.choose_budget(gpus) if gpus else None)
        parts = ", ".join(
            "%s %.3g s" % (phase.replace("_", " "), seconds) for phase, seconds in plan.split_budget(total or 0).items()
        )

        def describe(seconds: float) -> str:
            count = "%d GPU%s" % (gpus, "" if gpus == 1 else "s") if gpus else "the GPUs"
            within = "; its phases may take %.3g s (%s), and an all-reduce may follow" % (total, parts) if total else ""
            return "the probe of %s has run for %d s%s" % (count, seconds, within)

        with self.show_waiting(describe):
            yield

    @contextmanager
    def _without_log(self, evidence: bool) -> Iterator[None]:
        """Where the module's answer holds the evidence: the connection does not print it (ssh does, from -vvv on)."""
        context = getattr(self._connection, "_play_context", None)
        if not evidence or context is None:
            yield
            return
        before, context.no_log = context.no_log, True
        try:
            yield
        finally:
            context.no_log = before

    def _with_interpreter(self, task_vars: dict[str, Any]) -> dict[str, Any]:
        """On the controller itself, the Python that runs the playbook.

        Discovery may find one that does not work (a version manager's).
        """
        if getattr(self._connection, "transport", "") != "local" or "ansible_python_interpreter" in task_vars:
            return task_vars
        return {**task_vars, "ansible_python_interpreter": task_vars.get("ansible_playbook_python") or sys.executable}
