"""The linters are clean, and every module documents itself."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent.parent
BIN = Path(sys.executable).parent
MODULES = sorted(path.stem for path in (ROOT / "library").glob("*.py"))


def run(*command: str) -> str:
    environment = dict(os.environ, PATH="%s%s%s" % (BIN, os.pathsep, os.environ["PATH"]), LC_ALL="C.UTF-8")
    done = subprocess.run(
        [str(BIN / command[0]), *command[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


def test_ruff() -> None:
    run("ruff", "check", ".")


def test_mypy_of_what_runs_on_hosts() -> None:
    run("mypy", "module_utils", "library")


def test_mypy_of_what_runs_on_the_controller() -> None:
    run("mypy", "plugins", "callback_plugins", "scripts", "benchmarks", "roles/inference_server/filter_plugins")


def test_yamllint() -> None:
    run("yamllint", "--strict", ".")


def test_ansible_lint() -> None:
    run("ansible-lint", "-q")


def test_ansible_doc() -> None:
    documented = json.loads(run("ansible-doc", "--json", "-t", "module", *MODULES))
    assert sorted(documented) == MODULES
    assert [
        name for name, found in documented.items() if not found["doc"]["description"] or not found["examples"]
    ] == []
