"""Hosts in trouble, all in one run over SSH: each says what is wrong and what to do, and none costs another its verdict.

docs/faults.md lists them.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

import faulty_host
import make_hosts
from faulty_host import USER, FaultyHost

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("faulty_hosts")]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
FILL = "mount -t tmpfs -o size=%s,mode=1777 tmpfs %s; dd if=/dev/zero of=%s/fill bs=4k 2>/dev/null || true; "
BECOME = {"ansible_become": True}
# A Python that says that it is older: the oldest that Ansible itself takes on a host, where it takes one that we do not.
OLD_PYTHON = {
    "/opt/old/sitecustomize.py": "import collections, sys\n"
    "sys.version_info = collections.namedtuple('V', 'major minor micro releaselevel serial')(3, 8, 18, 'final', 0)\n",
    "/opt/old/python3": '#!/bin/sh\nPYTHONPATH=/opt/old exec /usr/bin/python3 "$@"\n',
}
# In place of nvidia-smi. The first ends the connection of its own run, as a network does that goes away, and hangs on.
CUT = """#!/bin/sh
of() { cut -d' ' -f"$2" "/proc/$1/stat"; }
pid=$$
while [ "$pid" -gt 1 ]; do
  parent=$(of "$pid" 4)
  case $(tr '\\0' ' ' < "/proc/$pid/cmdline") in sshd*) kill -KILL "$pid" ;; esac
  pid=$parent
done
exec sleep 600
"""
POWER_CUT = "#!/bin/sh\nkill -KILL -1\n"
# Name -> how the host is made, and words of what is said of it; no words: it is ready.
FAULTS: dict[str, tuple[dict[str, Any], tuple[str, ...]]] = {
    "healthy": ({}, ()),
    "tmp-full-home-read-only": ({"mounts": FILL % ("256k", "tmp", "tmp") + "mount -t tmpfs -o ro tmpfs root"}, ()),
    "tmp-noexec-ordinary-user": (
        {"user": USER, "mounts": "for d in tmp var/tmp dev/shm; do mount -t tmpfs -o noexec,mode=1777 tmpfs $d; done"},
        (),
    ),
    "tmp-missing": ({"mounts": "rm -r tmp var/tmp"}, ()),
    "disks-full": (
        {"mounts": "".join(FILL % ("256k", place, place) for place in ("tmp", "var/tmp", "root"))},
        ("no directory for temporary files that can be written", "/var/tmp", "df -h"),
    ),
    "disk-fills-up": (
        {"mounts": "mount -t tmpfs -o size=64k tmpfs tmp"},
        ("a disk of the host is full (No space left on device)", "make room"),
    ),
    "all-read-only": (
        {"mounts": "mount -o remount,ro ."},
        ("no directory for temporary files that can be written", "read-only"),
    ),
    "python-missing": (
        {"mounts": "rm usr/bin/python3*"},
        ("the host has no Python at /usr/bin/python3", "Install Python 3.9 or newer"),
    ),
    "python-old": (
        {"variables": {"ansible_python_interpreter": "/opt/old/python3"}},
        ("3.9 or newer is needed", "3.8", "ansible_python_interpreter"),
    ),
    "sudo-missing": ({"user": USER, "variables": BECOME}, ("the host has no sudo", "leave out -b")),
    "shutting-down": (
        {"user": USER, "mounts": "echo System is going down. > etc/nologin"},
        ("the host refuses logins", "Validate it again when it is up"),
    ),
    "connection-cut": ({"smi": CUT}, ("The connection was cut", "validate it again")),
    "power-cut": ({"smi": POWER_CUT}, ("The connection was cut", "look whether the host is up")),
}
UNREACHABLE = {"connection-cut", "power-cut"}


@dataclass
class Run:
    rc: int
    text: str
    report: dict[str, Any]


@pytest.fixture(scope="module")
def hosts(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Callable[..., FaultyHost]]:
    """`hosts(name, **how it is made)` starts one; all go when the tests of this file have ended."""
    reason = make_hosts.why_not()
    if reason:
        pytest.skip(reason)
    made: list[FaultyHost] = []
    directory = tmp_path_factory.mktemp("hosts")

    def start(name: str, files: dict[str, str] | None = None, **how: Any) -> FaultyHost:
        host = FaultyHost(name, directory / name, **how)
        made.append(host)
        host.make()
        for path, text in (files or {}).items():
            host.write(path, text)
        host.start()
        return host

    yield start
    for host in made:
        host.remove()


def validate(directory: Path, hosts: list[FaultyHost], *arguments: str, **more: dict[str, Any]) -> Run:
    """`validate.yml`, as a user runs it; `more`: other hosts of the inventory."""
    variables = {**{host.name: host.describe_connection() for host in hosts}, **more}
    inventory = directory / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": variables}}))
    environment = dict(os.environ, ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8", ANSIBLE_HOME=str(directory / "home"))
    environment["GPU_HOST_REPORTS_DIR"] = str(directory / "reports")
    ran = subprocess.run(
        [PLAYBOOK, "validate.yml", "-i", str(inventory), *arguments], cwd=ROOT, env=environment, timeout=300,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = " ".join((ran.stdout + ran.stderr).split())
    return Run(ran.returncode, text, json.loads((directory / "reports/report.json").read_text()))


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not condition():
        time.sleep(0.2)
    return condition()


def is_clean(host: FaultyHost) -> bool:
    """Nothing runs on the host, and nothing lies there, that a run would have brought."""
    return not host.list_processes() and not host.look("ls -A /tmp /var/tmp | grep -i ansible").strip()


@pytest.fixture(scope="module")
def fleet(
    hosts: Callable[..., FaultyHost], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, FaultyHost], Run]:
    made = {
        name: hosts(name, OLD_PYTHON if name == "python-old" else None, **how) for name, (how, _says) in FAULTS.items()
    }
    return made, validate(tmp_path_factory.mktemp("fleet"), list(made.values()), "--tags", "driver,system")


@pytest.mark.parametrize("name", FAULTS)
def test_a_host_in_trouble_says_what_and_what_to_do(fleet: tuple[dict[str, FaultyHost], Run], name: str) -> None:
    made, run = fleet
    host, says = run.report["hosts"][name], FAULTS[name][1]
    if not says:
        assert host["state"] == "ready", host["message"]
        assert [result["id"] for result in host["results"]] == [
            result["id"] for result in run.report["hosts"]["healthy"]["results"]
        ]
        assert is_clean(made[name])
        return
    assert host["state"] == "not_validated" and not host["results"]
    assert host["unreachable"] is (name in UNREACHABLE)
    for words in says:
        assert words in host["message"], host["message"]
    if name != "power-cut":
        assert wait_until(lambda: is_clean(made[name])), made[name].list_processes()


def test_the_run_as_a_whole(fleet: tuple[dict[str, FaultyHost], Run]) -> None:
    _made, run = fleet
    assert run.rc == 4 and run.report["ready"] is False
    for word in ("Traceback", "deserialization", "Errno", "is not subscriptable"):
        assert word not in run.text
    ready = {name for name, host in run.report["hosts"].items() if host["state"] == "ready"}
    assert ready == {name for name, (_how, says) in FAULTS.items() if not says}


def test_a_host_that_is_back_is_validated(fleet: tuple[dict[str, FaultyHost], Run], tmp_path: Path) -> None:
    """After a cut connection and after a power cut, with nothing done but waiting."""
    made, _run = fleet
    back = [made[name] for name in UNREACHABLE]
    for host in back:
        host.stop()
        host.write("/usr/bin/nvidia-smi", faulty_host.NO_DEVICES)
        host.start()
    run = validate(tmp_path, back, "--tags", "driver")
    assert run.rc == 0 and run.report["ready"] is True, run.text
