"""A fleet spread over real machines by SSH: two workers, and two that are lost, one in the middle of its run."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import ansible
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from ssh_host import ask_over_ssh

# The release whose Python is that of the tests, so that their compiled packages work there.
RELEASES = {(3, 11): "bookworm", (3, 13): "trixie"}
PROGRAMS = {
    "ansible-playbook": '#!/bin/sh\nPYTHONPATH=/opt/site exec /usr/bin/python3 -m ansible playbook "$@"\n',
    "ansible-runner": '#!/bin/sh\nPYTHONPATH=/opt/site exec /usr/bin/python3 -m ansible_runner "$@"\n',
}
BUNDLE = "/opt/fixtures/hosts/%s.jsonl.gz"
# The worker's own machine, as a host that is looked at for real.
ITSELF = {"ansible_connection": "local", "ansible_python_interpreter": "/usr/bin/python3"}
pytestmark = [
    pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("ssh-workers"),
    pytest.mark.skipif(sys.version_info[:2] not in RELEASES, reason="no test host has the Python of the tests"),
]  # fmt: skip


@pytest.fixture(scope="module")
def workers(make_host: Callable[..., dict[str, Any]]) -> list[dict[str, Any]]:
    """Nothing of this project is on them but the recordings."""
    site, fixtures = Path(ansible.__file__).parent.parent, ROOT / "tests" / "fixtures"
    binds = ("--bind-ro=%s:/opt/site" % site, "--bind-ro=%s:/opt/fixtures" % fixtures)
    made = [make_host(name, RELEASES[sys.version_info[:2]], *binds) for name in ("worker-a", "worker-b")]
    for host in made:
        for name, text in PROGRAMS.items():
            ask_over_ssh(host, "cat > /usr/local/bin/%s; chmod 755 /usr/local/bin/%s" % (name, name), text)
    return made


def reach(host: dict[str, Any], program: str = "ansible-runner worker") -> str:
    options = "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR -o ConnectTimeout=5"
    return "ssh -i %s %s root@%s %s" % (host["key"], options, host["address"], shlex.quote(program))


def test_a_fleet_over_ssh(workers: list[dict[str, Any]], tmp_path: Path) -> None:
    hosts = {"gpu%d" % number: {"gpu_host_bundle": BUNDLE % "h200-x2"} for number in (1, 2, 5, 6)}
    hosts |= {"itself-3": ITSELF, "itself-4": ITSELF}
    (tmp_path / "group_vars").mkdir()
    (tmp_path / "group_vars" / "all.yml").write_text(yaml.safe_dump({"gpu_host_expected": {"gpus": {"count": 2}}}))
    (tmp_path / "hosts.yml").write_text(yaml.safe_dump({"all": {"hosts": hosts}}))
    nowhere = {**workers[0], "address": "10.231.0.254"}
    dying = "timeout --signal=KILL 4 ansible-runner worker"
    commands = [reach(workers[0]), reach(workers[1]), reach(nowhere), reach(workers[1], dying)]
    words = [word for command in commands for word in ("--worker", command)]
    done = subprocess.run(
        [sys.executable, str(ROOT / "scripts" / "validate_on_workers.py"), "-i", "hosts.yml", *words],
        cwd=tmp_path, env={**os.environ, "GPU_HOST_REPORTS_DIR": str(tmp_path / "reports")},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    output = done.stdout + done.stderr
    assert done.returncode == 2 and "Traceback" not in output, output
    report = json.loads((tmp_path / "reports" / "report.json").read_text())
    parts = [part["problem"] for part in report["run"]["parts"]]
    assert parts[:2] == ["", ""] and "10.231.0.254" in parts[2] and "status 255" in parts[2], parts
    assert "it ended with exit status" in parts[3], parts
    states = {name: host["state"] for name, host in report["hosts"].items()}
    # The largest share first: six hosts over four workers.
    assert sorted(states) == sorted(hosts)
    lost = {name for name, host in report["hosts"].items() if "not looked at: worker" in host["message"]}
    assert len(lost) == 2 and {states[name] for name in lost} == {"not_validated"}, states
    looked = {name: state for name, state in states.items() if name not in lost}
    assert {state for name, state in looked.items() if name.startswith("gpu")} == {"ready"}, states
    assert {state for name, state in looked.items() if name.startswith("itself")} <= {"not_ready"}, states
    assert len([name for name in looked if name.startswith("gpu")]) >= 2 or "itself-3" in looked
    left = ask_over_ssh(workers[0], "ls /tmp | grep -v ^systemd-private- || true")
    assert left == "", "a worker that ended leaves nothing behind"
