"""The role downloads a model with the real huggingface_hub, on a systemd host, from a hub on this machine."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
sys.path.insert(0, str(ROOT / "tests" / "unit"))
import hub_standin
from hub_standin import Hub
from ssh_host import SshHost, ask_over_ssh, describe_connection

MODEL = "lukealonso/GLM-5-NVFP4"
VERSION = "2.4.0"
TOKEN = "hf_only-in-the-environment-file"
SHARD = "model-00002-of-00002.safetensors"
MIB = 1 << 20
PLAY = {"hosts": "all", "gather_facts": False, "roles": ["inference_server"]}
PREPARE = r"""
mkdir -p /srv/venv/bin
ln -sfn /usr/bin/python3 /srv/venv/bin/python
printf '#!/bin/sh\nexit 9\n' > /usr/local/bin/nvidia-smi
chmod 755 /usr/local/bin/nvidia-smi
"""
pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.fixture(scope="module")
def host(make_host: Callable[..., dict[str, Any]]) -> dict[str, Any]:
    place = ROOT / ".cache" / "hub" / (VERSION + "-3.11")  # the Python of Debian 12
    if not (place / "huggingface_hub").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(place)]
        pip += ["--python-version=3.11", "--only-binary=:all:", "huggingface_hub==" + VERSION]
        done = subprocess.run(pip, capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("pip could not install huggingface_hub %s: %s" % (VERSION, done.stderr[-300:]))
    mounts = ["--bind-ro=%s:/srv/engine" % (ROOT / "tests" / "fixtures" / "engine"), "--bind-ro=%s:/srv/hub" % place]
    made = make_host("model-host", "bookworm", *mounts)
    ask_over_ssh(made, "sh -s", PREPARE)
    return made


@pytest.fixture
def hub() -> Iterator[Hub]:
    """On this machine's side of the bridge to the test hosts."""
    model = hub_standin.make_model(shards=2, size=24 * MIB)
    with hub_standin.running(Hub({MODEL: model}, token=TOKEN), "10.231.0.1") as running:
        yield running


class Role(SshHost):
    def __init__(self, host: dict[str, Any], hub: Hub, work: Path) -> None:
        super().__init__(host, work)
        variables = {
            "inference_server_venv": "/srv/venv",
            "inference_server_model": MODEL,
            "inference_server_served_name": "glm-5",
            "inference_server_arguments": {"tp": 1},
            "inference_server_environment": {
                "PYTHONPATH": "/srv/engine:/srv/hub", "HF_ENDPOINT": hub.address, "HF_HOME": "/srv/hf",
                "STANDIN_SPEED": 60, "STANDIN_STATE": "/var/lib/inference-server",
            },
            "inference_server_secrets": {"HF_TOKEN": TOKEN},
            "inference_server_poll_interval": 0.5,
            "inference_server_patience_scale": 0.1,
            "inference_server_validate": False,
        }  # fmt: skip
        hosts = {host["name"]: describe_connection(host)}
        self.inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
        self.play = work / "play.yml"
        self.play.write_text(yaml.safe_dump([PLAY]))

    def run(self, *arguments: str) -> tuple[int, str]:
        done = self.run_playbook(str(self.play), *arguments)
        return done.returncode, " ".join((done.stdout + done.stderr).split())


def test_a_model_is_downloaded_once_and_the_server_needs_no_hub(host: dict[str, Any], hub: Hub, tmp_path: Path) -> None:
    role = Role(host, hub, tmp_path)
    code, text = role.run("--check")
    assert code == 0, text[-4000:]
    assert "would download %s (revision main, commit 0123456789ab): 4 of 4 files, 50.3 MB of 50.3 MB" % MODEL in text
    assert ask_over_ssh(host, "ls -d /srv/hf 2>/dev/null || true") == ""

    hub.cut[SHARD] = 15 * MIB
    code, text = role.run("-v")
    assert code == 0, text[-6000:]
    assert "50.3 MB of 50.3 MB (100 %), 4 of 4 files" in text
    assert ["bytes=%d-" % (10 * MIB) in str(begins) for _method, path, begins in hub.requests if begins] == [True]
    assert TOKEN not in text
    owners = ask_over_ssh(host, "stat -c %U /srv/hf/hub /srv/hf/hub/models--*/snapshots/*/config.json | sort -u")
    assert owners.split() == ["inference"]
    assert ask_over_ssh(host, "ls /etc/inference-server").split() == ["secrets.env"]
    unit = ask_over_ssh(host, "cat /etc/systemd/system/inference-server.service")
    assert '"HF_HUB_OFFLINE=1"' in unit
    assert "ReadWritePaths=/var/lib/inference-server /var/log/inference-server -/srv/hf" in unit

    hub.requests.clear()
    code, text = role.run()
    assert code == 0, text[-4000:]
    assert "changed=0" in text
    assert hub.requests == []


def test_a_token_that_is_refused_stops_before_anything(host: dict[str, Any], hub: Hub, tmp_path: Path) -> None:
    hub.token = "hf_another"
    hub.repositories["org/other"] = hub.repositories[MODEL]
    code, text = Role(host, hub, tmp_path).run("-e", "inference_server_model=org/other")
    assert code == 2, text[-3000:]
    assert "Nothing was changed. 10.231.0.1 refuses the token (HF_TOKEN)" in text
