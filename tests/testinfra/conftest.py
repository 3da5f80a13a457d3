"""Brings the checks of this project to pytest: one validation of all hosts, then one test case per check and host.

    pytest tests/testinfra --hosts=ansible://gpu_hosts --ansible-inventory=inventory

The facts and the verdicts are those of `ansible-playbook validate.yml`; nothing is judged a second time here.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]


def pytest_addoption(parser: pytest.Parser) -> None:
    group = parser.getgroup("checks of GPU hosts")
    group.addoption("--check-tags", default="", help="only checks with one of these tags, as in validate.yml --tags")
    group.addoption(
        "--validate-arguments",
        default="",
        help="further arguments for ansible-playbook, such as '--become -e @site.yml'",
    )


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """These tests are about the hosts that the user names; without any there is nothing to test."""
    return True if collection_path.name.startswith("test_") and not config.getoption("hosts", None) else None


def all_checks() -> list[dict[str, Any]]:
    """The checks of checks/*.yml: their ids name the test cases."""
    return [
        check for path in sorted((ROOT / "checks").glob("*.yml")) for check in yaml.safe_load(path.read_text()) or []
    ]


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    if "check" in metafunc.fixturenames:
        tags = {tag for tag in metafunc.config.getoption("check_tags").split(",") if tag}
        chosen = [check["id"] for check in all_checks() if not tags or tags & set(check["tags"])]
        metafunc.parametrize("check", chosen)


@pytest.fixture(scope="session")
def report(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The report of one run of validate.yml over the inventory.

    A run that wrote none fails every test with its words.
    """
    directory = tmp_path_factory.mktemp("reports")
    inventory = request.config.getoption("ansible_inventory", None)
    tags = request.config.getoption("check_tags")
    argv = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "validate.yml",
        *(["-i", os.path.abspath(inventory)] if inventory else []),
    ]
    argv += ["--tags", tags] if tags else []
    argv += request.config.getoption("validate_arguments").split()
    environment = dict(os.environ, GPU_HOST_REPORTS_DIR=str(directory), ANSIBLE_NOCOLOR="1")
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    try:
        return json.loads((directory / "report.json").read_text())  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        pytest.fail("validate.yml wrote no report (%s):\n%s" % (error, (done.stdout + done.stderr)[-3000:]))


@pytest.fixture
def results(host: Any, report: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Check id -> result, of the host that testinfra is at."""
    name = host.backend.get_hostname()
    own = report["hosts"].get(name)
    assert own is not None, "%s is not in the inventory that was validated; it holds %s" % (
        name,
        ", ".join(sorted(report["hosts"])),
    )
    assert own["results"], "%s was not validated: %s" % (name, own["message"])
    return {result["id"]: {**report["checks"].get(result["id"], {}), **result} for result in own["results"]}
