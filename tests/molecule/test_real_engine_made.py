"""The role makes the engine's environment itself, from pinned packages, on a host that has nothing.

`make real-engine` runs this after test_real_engine.py, which makes its model.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import apt_proxy  # type: ignore[import-not-found]

TOOL = [sys.executable, str(ROOT / "tests" / "hosts" / "make_hosts.py")]
ENVIRONMENT = [sys.executable, str(ROOT / "molecule" / "inference_server_real" / "environment.py")]
PLAY = """
- hosts: all
  gather_facts: false
  environment: {PIP_NO_INDEX: '1', PIP_FIND_LINKS: /srv/wheels}
  vars:
    inference_server_engine: transformers
    inference_server_packages: ['torch==2.13.0', 'transformers[serving]==5.24.0']
    inference_server_model: /srv/models/known
    inference_server_arguments: {device: cpu}
    inference_server_environment: {HF_HUB_OFFLINE: 1}
    inference_server_expected_text: ^ ?Paris and Rome
    inference_server_poll_interval: 0.5
  roles: [inference_server]
"""
pytestmark = [pytest.mark.hosts, pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.fixture
def inventory(tmp_path: Path) -> Iterator[Path]:
    models = ROOT / ".cache" / "engine" / "models"
    if not (models / "known").exists():
        pytest.skip("the scenario inference_server_real makes the model, and has not run: `make real-engine`")
    wheels = subprocess.run([*ENVIRONMENT, "wheels"], stdout=subprocess.PIPE, text=True, check=True).stdout.strip()
    mounts = ["--bind-ro=%s:/srv/wheels" % wheels, "--bind-ro=%s:/srv/models" % models]
    path = tmp_path / "hosts.yml"
    path.write_text(
        subprocess.run(
            [*TOOL, "up", "made-env=bookworm", *mounts], stdout=subprocess.PIPE, text=True, check=True
        ).stdout
    )
    yield path
    subprocess.run([*TOOL, "down", "made-env"], check=True)


def test_the_environment_is_made_and_serves_and_is_not_made_again(inventory: Path, tmp_path: Path) -> None:
    (tmp_path / "play.yml").write_text(PLAY)
    binaries = Path(sys.executable).parent
    environment = dict(
        os.environ, PATH="%s:%s" % (binaries, os.environ["PATH"]), ANSIBLE_CONFIG=str(ROOT / "ansible.cfg")
    )
    environment.update(ANSIBLE_NOCOLOR="1", ANSIBLE_STDOUT_CALLBACK="default", ANSIBLE_HOST_KEY_CHECKING="False")

    def run(*command: str) -> str:
        words = [str(binaries / command[0]), "-i", str(inventory), *command[1:]]
        done = subprocess.run(words, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, (done.stdout + done.stderr)[-6000:]
        return done.stdout

    with apt_proxy.running() as proxy:
        lines = "echo 'Acquire::http::Proxy \"%s\";' > /etc/apt/apt.conf.d/proxy; apt-get update -qq" % proxy
        run("ansible", "all", "-m", "ansible.builtin.raw", "-a", lines)
        first = run("ansible-playbook", str(tmp_path / "play.yml"))
        assert "it answers 'Paris and Rome" in first
        assert "changed=0 " in run("ansible-playbook", str(tmp_path / "play.yml"))
