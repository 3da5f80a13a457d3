"""Checks and a Templar for tests of the engine."""

from __future__ import annotations

import copy
from pathlib import Path
from typing import Any

import yaml
from ansible.module_utils.gpu_checks import check_files, engine
from ansible.module_utils.gpu_checks.evaluator import TemplarEvaluator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar

ITEM: dict[str, Any] = {
    "id": "hmm_off",
    "title": "HMM is off",
    "why": "It hangs.",
    "severity": "error",
    "tags": ["driver"],
    "that": ["host.hmm == false"],
    "found": "hmm is {{ host.hmm }}",
    "remedy": [{"on": "host", "text": "Switch it off."}],
}


def item(**more: Any) -> dict[str, Any]:
    """A check with some keys changed; a key given as None is left out."""
    return {key: value for key, value in copy.deepcopy({**ITEM, **more}).items() if value is not None}


def load(directory: Path, *items: Any) -> list[check_files.Check]:
    """The checks as the action loads them: written to a file, read by Ansible's loader."""
    (directory / "some.yml").write_text(yaml.safe_dump(list(items)))
    loader = DataLoader()
    return check_files.load_checks(str(directory), lambda path: loader.load_from_file(path, trusted_as_template=True))


def judge(
    directory: Path, host: dict[str, Any], *items: Any, expected: dict[str, Any] | None = None, waived: Any = ()
) -> list[dict[str, Any]]:
    """The results of `items` on `host`."""
    variables = engine.make_variables(host, expected, "gpu1")
    evaluator = TemplarEvaluator(Templar(loader=DataLoader()), variables)
    return engine.evaluate_checks(load(directory, *items), variables, evaluator, waived)
