"""What the role inference_server refuses by looking at its variables, before it changes anything."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow
ROOT = Path(__file__).resolve().parents[2]
PLAY = """
- hosts: all
  connection: local
  gather_facts: false
  strategy: free
  tasks:
    - ansible.builtin.include_role: {name: inference_server, tasks_from: preconditions}
"""
IMAGE = {"inference_server_image": "lmsysorg/sglang:v1"}
# Host -> (variables, what is said; "" where nothing is refused).
CASES: dict[str, tuple[dict[str, Any], str]] = {
    "plain": ({"inference_server_writable": ["/srv/cache", "-/opt/x_y.z"], "inference_server_name": "glm-5.a@1"}, ""),
    "name": ({"inference_server_name": "my server"}, 'inference_server_name is "my server"'),
    "name-line": ({"inference_server_name": "server\n"}, "inference_server_name is"),
    "name-path": ({"inference_server_name": "../etc"}, "inference_server_name is"),
    "user": ({"inference_server_user": "in ference"}, 'inference_server_user is "in ference"'),
    "variable": ({"inference_server_environment": {"MY VAR": "1"}}, '"MY VAR"'),
    "secret": ({"inference_server_secrets": {"A KEY": "do-not-show-this"}}, '"A KEY"'),
    "argument": ({"inference_server_arguments": {"tp size": 2}}, '"tp size"'),
    "percent": ({"inference_server_model": "/srv/models/50%"}, "takes a percent sign for a specifier"),
    "writable": ({"inference_server_writable": ["/srv/a b"]}, '"/srv/a b"'),
    "writable-relative": ({"inference_server_writable": ["cache"]}, '"cache"'),
    "writable-percent": ({"inference_server_writable": ["/srv/%h"]}, '"/srv/%h"'),
    "writable-quote": ({"inference_server_writable": ["/srv/it's"]}, "is an absolute path without blanks"),
    "image": ({"inference_server_image": "sglang; ls"}, "which is no name of an image"),
    "image-packages": ({**IMAGE, "inference_server_packages": ["sglang"]}, "set one of them"),
    "image-name": ({**IMAGE, "inference_server_name": "glm@1"}, "it names the container as well"),
    "image-shm": ({**IMAGE, "inference_server_shm_size": "lots"}, 'inference_server_shm_size is "lots"'),
    "image-readable": ({**IMAGE, "inference_server_readable": ["/srv/a:b"]}, '"/srv/a:b"'),
    "image-model": ({**IMAGE, "inference_server_model": "/srv/a,b"}, '"/srv/a,b"'),
    "image-option": ({**IMAGE, "inference_server_container_options": ["--user", "0"]}, "is one word"),
    "image-line": ({**IMAGE, "inference_server_image_command": ["a\nb"]}, "have no line breaks"),
}


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> subprocess.CompletedProcess[str]:
    """All cases in one run: each is a host."""
    place = tmp_path_factory.mktemp("input")
    common = {"inference_server_model": "/srv/m", "ansible_python_interpreter": sys.executable}
    hosts = {name: {**common, **variables} for name, (variables, _said) in CASES.items()}
    (place / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    (place / "play.yml").write_text(PLAY)
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        ANSIBLE_NOCOLOR="1",
        ANSIBLE_ROLES_PATH=str(ROOT / "roles"),
    )
    argv = [
        str(Path(sys.executable).parent / "ansible-playbook"),
        "-i",
        str(place / "hosts.yml"),
        str(place / "play.yml"),
    ]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=300)


@pytest.mark.xdist_group("server_input")
@pytest.mark.parametrize("host", CASES)
def test_input(run: subprocess.CompletedProcess[str], host: str) -> None:
    output = run.stdout + run.stderr
    said = CASES[host][1]
    failed = re.search(r"^%s +:.* failed=(\d)" % re.escape(host), run.stdout, re.M)
    assert failed and failed[1] == ("1" if said else "0"), output
    message = " ".join(re.findall(r"fatal: \[%s\].*" % re.escape(host), output)).replace('\\"', '"')
    assert said in message, message
    assert "Nothing was changed" in message or not said
    assert "do-not-show-this" not in output and "Traceback" not in output
