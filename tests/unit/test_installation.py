"""Where our files and plugins are found, and where reports go: in a clone, and in a collection made of it."""

from __future__ import annotations

import importlib.util
from pathlib import Path
from types import ModuleType

import pytest
from ansible import constants
from ansible.module_utils.gpu_checks import check_cache, installation, run_options

ROOT = Path(__file__).resolve().parents[2]


def load_as(name: str, path: Path) -> ModuleType:
    spec = importlib.util.spec_from_file_location(name, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_in_a_clone() -> None:
    assert installation.ROOT == ROOT and str(ROOT / "checks") == check_cache.OWN
    assert installation.qualify_name("gpu_facts") == "gpu_facts"
    assert installation.find_output_directory() == str(ROOT)


def test_in_a_collection(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    inside = tmp_path / "a" / "b" / "plugins" / "module_utils" / "gpu_checks"
    inside.mkdir(parents=True)
    (tmp_path / "a" / "b" / "checks").mkdir()
    (tmp_path / "a" / "b" / "checks" / "check.schema.json").write_text("{}")
    copy = inside / "installation.py"
    copy.write_bytes((ROOT / "module_utils" / "gpu_checks" / "installation.py").read_bytes())
    found = load_as("ansible_collections.a.b.plugins.module_utils.gpu_checks.installation", copy)
    assert found.COLLECTION == "a.b" and tmp_path / "a" / "b" == found.ROOT
    assert found.qualify_name("gpu_facts") == "a.b.gpu_facts"
    assert found.qualify_name("ansible.builtin.copy") == "ansible.builtin.copy"
    monkeypatch.chdir(tmp_path)
    assert found.find_output_directory() == str(tmp_path)


def test_a_run_without_the_report_says_what_to_set(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(constants, "CALLBACKS_ENABLED", ["other"])
    [problem] = run_options.find_problems([], str(ROOT / "playbooks"))
    assert "The ansible.cfg of this project is not in force" in problem
    monkeypatch.setattr(installation, "COLLECTION", "a.b")
    [problem] = run_options.find_problems([], str(ROOT / "playbooks"))
    assert "callbacks_enabled = a.b.check_report" in problem and "ANSIBLE_CALLBACKS_ENABLED=a.b.check_report" in problem
    assert run_options.find_problems([], "/somewhere/else") == []
    monkeypatch.setattr(constants, "CALLBACKS_ENABLED", ["a.b.check_report"])
    assert run_options.find_problems([], str(ROOT / "playbooks")) == []
