"""The roles on real Debian 12 and 13 hosts: every molecule scenario, from nothing to nothing."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
# One that makes an environment of its own takes minutes of a processor: see test_real_engine.py.
SCENARIOS = sorted(
    path.parent.name
    for path in (ROOT / "molecule").glob("*/molecule.yml")
    if not (path.parent / "environment.py").exists()
)
# Three to six minutes each; tests/e2e/test_provision_hosts.py and tests/roles run all but the container's role, too.
LONG = {"nvidia_driver", "nvidia_module_options", "inference_server_container", "proxmox_passthrough"}
MAKE_HOSTS = ROOT / "tests" / "hosts" / "make_hosts.py"


def _why_not(scenario: str) -> str:
    """Why it cannot run here: no hosts, or what the scenario needs beyond them cannot be had."""
    programs = [MAKE_HOSTS, *(ROOT / "molecule" / scenario).glob("environment.py")]
    answers = (
        subprocess.run(
            [sys.executable, str(path), "why-not"], capture_output=True, text=True, check=True
        ).stdout.strip()
        for path in programs
    )
    return next((answer for answer in answers if answer), "")


def _in_its_group(scenario: str) -> Any:
    """Two scenarios at a time beside the other tests: those of servers wait for their servers most of the time."""
    group = "servers" if scenario.startswith("inference_server") else "hosts"
    marks = [pytest.mark.xdist_group(group), *([pytest.mark.long] if scenario in LONG else [])]
    return pytest.param(scenario, marks=marks, id=scenario)


@pytest.mark.hosts
@pytest.mark.parametrize("scenario", [_in_its_group(scenario) for scenario in SCENARIOS])
def test_scenario(scenario: str, tmp_path: Path) -> None:
    run_scenario(scenario, tmp_path)


def run_scenario(scenario: str, tmp_path: Path) -> None:
    reason = _why_not(scenario)
    if reason:
        pytest.skip(reason)
    tools = Path(sys.executable).parent
    environment = dict(
        os.environ,
        PATH="%s:%s" % (tools, os.environ["PATH"]),
        NO_COLOR="1",
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_FORCE_COLOR="0",
    )
    environment.pop("ANSIBLE_CONFIG", None)
    environment["MOLECULE_EPHEMERAL_DIRECTORY"] = str(tmp_path / "molecule")
    result = subprocess.run(
        [str(tools / "molecule"), "test", "-s", scenario],
        cwd=ROOT,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert result.returncode == 0, (result.stdout + result.stderr)[-8000:]
    assert "changed=0" in result.stdout, "the scenario ran without its idempotence step"


def test_every_role_that_changes_a_host_is_in_a_scenario() -> None:
    text = "\n".join(path.read_text() for path in (ROOT / "molecule").glob("*/*.yml"))
    assert [name for name in ("nvidia_driver", "nvidia_module_options", "cuda_toolkit") if name not in text] == []
