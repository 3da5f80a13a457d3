"""Hosts over SSH of which some are not there, say nothing, talk nonsense or hang: they cost the others nothing.

One run has the healthy hosts alone, one has them beside the bad ones.
"""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import make_hosts
import ssh_fleet

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("ssh_fleet")]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
HEALTHY = ("healthy1", "healthy2")
# Words of the cause, and of what to do.
SAID = {
    "unreachable": (r"No route to host|timed out", r""),
    "silent": (r"timed out", r""),
    "junk_shell": (r"printed what is no result of a module.* Its login shell", r"ssh HOST true"),
    "junk_python": (r"printed what is no result of a module.* or its Python", r"ansible_python_interpreter"),
    "hanging": (r"gave no answer within \d+ s: a process of it hangs", r"wchan"),
}


@dataclass
class Ran:
    seconds: float
    verdicts: dict[str, float]  # host -> when its line came
    report: dict[str, Any]
    text: str


@pytest.fixture(scope="module")
def fleet(tmp_path_factory: pytest.TempPathFactory) -> Iterator[ssh_fleet.SshFleet]:
    reason = make_hosts.why_not()
    if reason:
        pytest.skip(reason)
    with ssh_fleet.SshFleet(tmp_path_factory.mktemp("fleet"), len(HEALTHY), make_hosts.STATE) as made:
        made.listen_silently()
        yield made


def validate(fleet: ssh_fleet.SshFleet, directory: Path, hosts: dict[str, Any], limit: int) -> Ran:
    directory.mkdir()
    inventory = directory / "hosts.yml"
    variables = {**fleet.common_variables(), "host_validation_server": "false", "host_validation_timeout": limit}
    variables["gpu_host_expected"] = {"gpus": {"count": 0}}
    inventory.write_text(yaml.safe_dump({"all": {"hosts": hosts, "vars": variables}}))
    environment = {
        **os.environ,
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_CONTROL_PATH_DIR": str(directory / "cp"),
        "GPU_HOST_REPORTS_DIR": str(directory / "reports"),
        "ANSIBLE_NOCOLOR": "1",
    }
    command = [PLAYBOOK, "-v", "validate.yml", "-i", str(inventory), "-e", "probe=false"]
    began, lines, verdicts = time.monotonic(), [], {}
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, errors="replace",
    ) as run:  # fmt: skip
        assert run.stdout is not None
        for line in run.stdout:
            lines.append(line)
            found = re.match(r"(?:ok|failed|fatal|unreachable): \[(\w+)\]", line)
            if found:  # the last line of a host is its verdict
                verdicts[found[1]] = time.monotonic() - began
    report = json.loads((directory / "reports" / "report.json").read_text())
    return Ran(time.monotonic() - began, verdicts, report, "".join(lines))


@pytest.fixture(scope="module")
def runs(fleet: ssh_fleet.SshFleet, tmp_path_factory: pytest.TempPathFactory) -> tuple[Ran, Ran, int]:
    """The healthy hosts alone, all hosts, and the limit of those: a busy machine has more time."""
    directory = tmp_path_factory.mktemp("runs")
    healthy = {name: fleet.host_variables(number) for number, name in enumerate(HEALTHY)}
    alone = validate(fleet, directory / "alone", healthy, 300)
    limit = int(5 + 3 * alone.seconds)
    bad = {kind: fleet.bad_variables(kind) for kind in ssh_fleet.BAD}
    noisy = {"noisy": {**fleet.host_variables(0), "ansible_user": "noisy"}}
    return alone, validate(fleet, directory / "mixed", {**bad, **healthy, **noisy}, limit), limit


def test_the_others_have_the_verdicts_that_they_have_alone(runs: tuple[Ran, Ran, int]) -> None:
    alone, mixed, _limit = runs
    for name in HEALTHY:
        one, other = alone.report["hosts"][name], mixed.report["hosts"][name]
        assert one["state"] == other["state"] == "ready", mixed.text[-3000:]
        assert [(result["id"], result["status"]) for result in one["results"]] == [
            (result["id"], result["status"]) for result in other["results"]
        ]


def test_the_others_wait_for_nobody(runs: tuple[Ran, Ran, int]) -> None:
    alone, mixed, limit = runs
    last = max(mixed.verdicts[name] for name in HEALTHY)
    assert last < limit <= mixed.verdicts["hanging"], mixed.verdicts
    assert mixed.seconds < limit + 2 * alone.seconds + 20, "and the run ends when the limit is over"


@pytest.mark.parametrize("name", list(ssh_fleet.BAD))
def test_a_bad_host_is_named_with_its_cause_and_what_to_do(runs: tuple[Ran, Ran, int], name: str) -> None:
    _alone, mixed, _limit = runs
    host = mixed.report["hosts"][name]
    assert host["state"] == "not_validated"
    assert host["unreachable"] is (name in ("unreachable", "silent"))
    for words in SAID[name]:
        assert re.search(words, host["message"]), host["message"]
    assert "Traceback" not in mixed.text and name in mixed.text


def test_a_login_shell_that_greets_is_no_fault(runs: tuple[Ran, Ran, int]) -> None:
    _alone, mixed, _limit = runs
    assert mixed.report["hosts"]["noisy"]["state"] == "ready", mixed.report["hosts"]["noisy"]["message"]
