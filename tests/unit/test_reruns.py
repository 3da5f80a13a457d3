"""Every role has a test in which a step of it fails or is killed and the next run does that step.

Those tests need real hosts; this one only holds that there is one for each role, and that it runs the role again.
"""

from __future__ import annotations

import ast
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
ROLES = sorted(path.name for path in (ROOT / "roles").iterdir() if path.is_dir())
# Role -> where that is tried: FILE::TEST, or FILE::TASK of a scenario.
TRIED = {
    "cuda_toolkit": "tests/roles/test_nvidia_driver.py::"
    "test_a_toolkit_that_could_not_be_unpacked_comes_with_the_next_run",
    "gpu_host_guard": "tests/roles/test_nvidia_driver.py::"
    "test_an_initramfs_that_could_not_be_built_is_built_by_the_next_run",
    "inference_server": "molecule/inference_server/side_effect.yml::Go on where it ended",
    "nvidia_apt": "tests/roles/test_nvidia_driver.py::test_a_run_that_ended_between_the_source_and_its_lists_goes_on",
    "nvidia_driver": "tests/roles/test_nvidia_driver.py::"
    "test_a_daemon_that_does_not_start_is_quoted_and_the_next_run_starts_it",
    "nvidia_module_options": "tests/roles/test_nvidia_driver.py::test_options_too",
    "pci_acs": "tests/roles/test_pci_acs.py::test_what_a_run_that_was_cut_off_did_not_clear_is_cleared_by_the_next",
    "proxmox_passthrough": "tests/roles/test_proxmox_passthrough.py::"
    "test_a_boot_loader_that_could_not_be_refreshed_is_refreshed_by_the_next_run",
    "scheduled_validation": "tests/roles/test_scheduled_validation.py::"
    "test_an_inventory_that_the_account_cannot_read_is_named_and_the_next_run_goes_on",
}
# Roles that change nothing, so that no step can be left undone -> the modules that they may use.
READS_ONLY = {"host_validation": {"host_facts", "run_checks", "ansible.builtin.import_tasks"}}
RUNS = {"play", "role", "drive"}


def test_every_role_is_tried() -> None:
    assert sorted([*TRIED, *READS_ONLY]) == ROLES


@pytest.mark.parametrize("role", TRIED)
def test_it_runs_the_role_once_more(role: str) -> None:
    name, _colons, what = TRIED[role].partition("::")
    text = (ROOT / name).read_text()
    if name.endswith(".yml"):
        assert role in [task.get("ansible.builtin.include_role", {}).get("name") for task in find_tasks(text, what)]
        return
    [test] = [node for node in ast.parse(text).body if isinstance(node, ast.FunctionDef) and node.name == what]
    called = [node.func for node in ast.walk(test) if isinstance(node, ast.Call)]
    runs = [one for one in called if getattr(one, "attr", getattr(one, "id", "")) in RUNS]
    assert len(runs) >= 2, "%s runs the role %d times" % (what, len(runs))


def find_tasks(text: str, name: str) -> list[dict[str, Any]]:
    """The tasks of that name, in blocks too."""
    found: list[dict[str, Any]] = []
    waiting = [task for play in yaml.safe_load(text) for task in play.get("tasks", [])]
    while waiting:
        task = waiting.pop()
        waiting += [inner for key in ("block", "rescue", "always") for inner in task.get(key, [])]
        found += [task] if task.get("name") == name else []
    return found


@pytest.mark.parametrize("role", READS_ONLY)
def test_a_role_that_leaves_nothing_undone_changes_nothing(role: str) -> None:
    words = {"name", "when", "tags", "register", "vars", "timeout"}
    for path in sorted((ROOT / "roles" / role / "tasks").glob("*.yml")):
        for task in yaml.safe_load(path.read_text()):
            assert set(task) - words <= READS_ONLY[role], path.name
