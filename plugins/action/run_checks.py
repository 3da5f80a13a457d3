"""Judges one host by checks/*.yml, on the controller. library/run_checks.py documents the arguments and the result."""
from __future__ import annotations

import datetime
import importlib
import os
from pathlib import Path
from typing import Any

import ansible.module_utils
from ansible.errors import AnsibleActionFail
from ansible.parsing.dataloader import DataLoader
from ansible.plugins.action import ActionBase

_ROOT = Path(__file__).resolve().parents[2]
_OURS = str(_ROOT / "module_utils")
if _OURS not in ansible.module_utils.__path__:
    ansible.module_utils.__path__.append(_OURS)


def _ours(name: str) -> Any:
    return importlib.import_module("ansible.module_utils.gpu_report." + name)


checks, engine, evaluator, subject, verdict, waivers = map(_ours, ("checks", "engine", "evaluator", "subject", "verdict", "waivers"))

_CHECKS_DIR = str(_ROOT / "checks")
_LISTS = ("tags", "skip_tags", "only", "exclude", "run_tags", "run_skip_tags")
_ARGUMENT_SPEC = {
    "checks_dir": {"type": "path", "default": _CHECKS_DIR},
    "expected": {"type": "dict", "default": {}},
    "waivers": {"type": "raw", "default": []},
    **{name: {"type": "list", "elements": "str", "default": []} for name in _LISTS},
}


def _load(directory: str, loader: DataLoader) -> Any:
    return checks.load(directory, lambda path: loader.load_from_file(path, trusted_as_template=True))


def _preloaded() -> dict[str, Any]:
    """The checks of this project, read here because the strategy imports this file before it forks a worker for every host:
    what is read now is read once a run. A fault is kept and told by the task."""
    try:
        return {_CHECKS_DIR: _load(_CHECKS_DIR, DataLoader())}
    except checks.ChecksError as error:
        return {_CHECKS_DIR: error}


_LOADED = _preloaded()


class ActionModule(ActionBase):
    """One task judges one host by every check; nothing runs on the host."""

    _requires_connection = False
    _supports_check_mode = True
    _supports_async = False

    def run(self, tmp: Any = None, task_vars: dict[str, Any] | None = None) -> dict[str, Any]:
        result: dict[str, Any] = super().run(tmp, task_vars)
        task_vars = task_vars or {}
        _validation, arguments = self.validate_argument_spec(argument_spec=_ARGUMENT_SPEC)
        every = self._checks(arguments["checks_dir"])
        chosen, problems = verdict.choose(every, **{name: arguments[name] for name in _LISTS})
        waived, faults = waivers.parse(arguments["waivers"], [check.id for check in every], datetime.date.today())
        try:
            host = subject.host(task_vars, self._templar.template)
        except ValueError as error:
            raise AnsibleActionFail(str(error)) from error
        variables = engine.variables(host, arguments["expected"], task_vars.get("inventory_hostname", ""))
        templar = self._templar.copy_with_new_env(available_variables=variables)
        results = engine.evaluate(chosen, variables, evaluator.TemplarEvaluator(templar), waived)
        result.update(verdict.of(results, problems + faults))
        return result

    def _checks(self, directory: str) -> Any:
        directory = os.path.abspath(directory)
        loaded = _LOADED.get(directory)
        if loaded is None:
            try:
                loaded = _load(directory, self._loader)
            except checks.ChecksError as error:
                loaded = error
        if isinstance(loaded, Exception):
            raise AnsibleActionFail("The checks cannot be used:\n%s" % loaded)
        return loaded
