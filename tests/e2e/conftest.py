"""Runs the playbooks as a user does, through ansible-runner, and shows what came of it."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import ansible_runner
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
# This machine as a live host, with the Python that runs the tests. Pipelining: no file that an ordinary user could not
# read.
LOCAL = {"ansible_connection": "local", "ansible_python_interpreter": sys.executable, "ansible_pipelining": True}


@dataclass
class Finished:
    """One run of a playbook.

    Exit status, what stood on the terminal (one space for every break), the events, and the reports.
    """

    rc: int
    status: str
    text: str
    events: list[dict[str, Any]]
    reports: Path
    report: dict[str, Any] = field(default_factory=dict)

    def statuses(self, host: str) -> dict[str, str]:
        return {check["id"]: check["status"] for check in self.results(host)}

    def results(self, host: str) -> list[dict[str, Any]]:
        return [event["event_data"]["res"]["checks"] for event in self.events if _is_verdict(event, host)][-1]

    def messages(self) -> dict[str, str]:
        """Host -> what its last failed task said."""
        return {
            event["event_data"]["host"]: event["event_data"]["res"]["msg"]
            for event in self.events
            if event["event"] == "runner_on_failed"
        }

    def failed_hosts(self) -> set[str]:
        return {event["event_data"]["host"] for event in self.events if event["event"] == "runner_on_failed"}


def _is_verdict(event: dict[str, Any], host: str) -> bool:
    data = event.get("event_data") or {}
    return (
        event["event"] in ("runner_on_ok", "runner_on_failed")
        and data.get("host") == host
        and "checks" in (data.get("res") or {})
    )


class Play(Protocol):
    def __call__(self, playbook: str, inventory: Any = None, arguments: str = "", **variables: Any) -> Finished: ...


@pytest.fixture
def blocked_reports() -> bool:
    """Ask for this fixture to have a file stand where the reports should go."""
    return True


@pytest.fixture
def play(tmp_path: Path, request: pytest.FixtureRequest) -> Iterator[Play]:
    """`play("validate.yml", inventory, "--check", name=value)`. An inventory is a path, a host list, or a dictionary of
    YAML."""
    with pytest.MonkeyPatch.context() as patch:
        yield player(tmp_path, patch, "blocked_reports" in request.fixturenames)


@pytest.fixture(scope="module")
def play_once(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Play]:
    """`play` for a fixture whose run several tests of a file look at."""
    with pytest.MonkeyPatch.context() as patch:
        yield player(tmp_path_factory.mktemp("once"), patch)


def player(tmp_path: Path, patch: pytest.MonkeyPatch, blocked: bool = False) -> Play:
    patch.setenv("PATH", "%s:%s" % (Path(sys.executable).parent, os.environ["PATH"]))
    count = 0

    def run(playbook: str, inventory: Any = None, arguments: str = "", **variables: Any) -> Finished:
        nonlocal count
        count += 1
        private = tmp_path / ("run%d" % count)
        private.mkdir()
        if isinstance(inventory, dict):
            path = private / "hosts.yml"
            path.write_text(yaml.safe_dump(inventory))
            inventory = path
        reports = private / "reports"
        if blocked:
            reports.write_text("in the way")
        settings = {
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "GPU_HOST_REPORTS_DIR": str(reports),
            "ANSIBLE_NOCOLOR": "1",
            "LC_ALL": "C.UTF-8",
            "ANSIBLE_HOME": str(tmp_path / "home"),
        }
        ran = ansible_runner.run(
            private_data_dir=str(private),
            project_dir=str(ROOT),
            playbook=playbook,
            inventory=str(inventory or ROOT / "inventory"),
            cmdline=arguments,
            extravars=variables,
            envvars=settings,
            quiet=True,
            suppress_env_files=True,
            timeout=300,
        )
        events = list(ran.events)
        path = reports / "report.json"
        return Finished(
            ran.rc,
            ran.status,
            " ".join("\n".join(event["stdout"] for event in events if event.get("stdout")).split()),
            events,
            reports,
            json.loads(path.read_text()) if path.exists() else {},
        )

    return run


@pytest.fixture
def command(tmp_path: Path) -> Any:
    """`command("-i", "gpu1,")` is ansible-playbook validate.yml itself.

    For what ansible-runner does otherwise: its own display.
    """

    def run(*arguments: str) -> Finished:
        reports = tmp_path / "reports"
        settings = dict(
            os.environ,
            GPU_HOST_REPORTS_DIR=str(reports),
            ANSIBLE_NOCOLOR="1",
            LC_ALL="C.UTF-8",
            ANSIBLE_HOME=str(tmp_path / "home"),
        )
        program = Path(sys.executable).parent / "ansible-playbook"
        ran = subprocess.run(
            [str(program), "validate.yml", *arguments],
            cwd=ROOT,
            env=settings,
            capture_output=True,
            text=True,
            check=False,
            timeout=300,
        )
        path = reports / "report.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        return Finished(ran.returncode, "", " ".join((ran.stdout + ran.stderr).split()), [], reports, report)

    return run


@pytest.fixture
def local() -> dict[str, Any]:
    return dict(LOCAL)


@pytest.fixture
def ordinary_python(tmp_path: Path) -> str:
    """An interpreter that runs as an ordinary user.

    As root: a wrapper that gives up every privilege before Python starts.
    """
    if os.geteuid() != 0:
        return sys.executable
    setpriv = shutil.which("setpriv")
    for python in (sys.executable, "/usr/bin/python3"):
        drop = [str(setpriv), "--reuid=65534", "--regid=65534", "--clear-groups", "--inh-caps=-all", python]
        tried = subprocess.run(
            [*drop, "-c", "import sys; sys.exit(sys.version_info < (3, 9))"], check=False, capture_output=True, cwd="/"
        )
        if setpriv and tried.returncode == 0:
            wrapper = tmp_path / "python-of-nobody"
            wrapper.write_text('#!/bin/sh\ncd /\nexec %s "$@"\n' % " ".join(drop))
            wrapper.chmod(0o755)
            return str(wrapper)
    pytest.skip("no Python 3.9 or newer that an ordinary user can run")
