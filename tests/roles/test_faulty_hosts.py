"""Hosts in trouble, all in one run over SSH: each says what is wrong and what to do.

None costs another its verdict. docs/faults.md lists them.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from faulty_host import NO_DEVICES, USER, FaultyHost, Run, is_clean, validate, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("faulty_hosts")]
FILL = "mount -t tmpfs -o size=%s,mode=1777 tmpfs %s; dd if=/dev/zero of=%s/fill bs=4k 2>/dev/null || true; "
BECOME = {"ansible_become": True}
# A Python that says that it is older. Ansible itself takes 3.8, up to its version 2.19.
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
# A real Python 3.9, where this machine has one in a directory of its own (pyenv): the oldest that a host may have.
for PYTHON in sorted(Path.home().glob(".pyenv/versions/3.9.*"))[-1:]:
    FAULTS["python-3.9"] = (
        {
            "mounts": f"mkdir -p .{PYTHON}; mount --bind {PYTHON} .{PYTHON}",
            "variables": {"ansible_python_interpreter": "%s/bin/python3" % PYTHON},
        },
        (),
    )
UNREACHABLE = {"connection-cut", "power-cut"}
# It says no and hangs up, mostly before all of the module was sent: then ssh knows only that.
REFUSING = {"shutting-down"}


@pytest.fixture(scope="module")
def fleet(
    faulty_hosts: Callable[..., FaultyHost], tmp_path_factory: pytest.TempPathFactory
) -> tuple[dict[str, FaultyHost], Run]:
    files = {"python-old": OLD_PYTHON}
    made = {name: faulty_hosts(name, files.get(name), **how) for name, (how, _says) in FAULTS.items()}
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
    if name in REFUSING and host["unreachable"]:
        says = ("Broken pipe", "validate it again")
    else:
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


@pytest.mark.long
def test_a_host_that_is_back_is_validated(fleet: tuple[dict[str, FaultyHost], Run], tmp_path: Path) -> None:
    """After a cut connection and after a power cut, with nothing done but waiting."""
    made, _run = fleet
    back = [made[name] for name in UNREACHABLE]
    for host in back:
        host.stop()
        host.write("/usr/bin/nvidia-smi", NO_DEVICES)
        host.start()
    run = validate(tmp_path, back, "--tags", "driver")
    assert run.rc == 0 and run.report["ready"] is True, run.text


# User of the host -> its line in sudoers, and words of what is said with -b; no words: it is ready.
SUDO_USERS: dict[str, tuple[str, tuple[str, ...]]] = {
    "trusted": ("trusted ALL=(root) NOPASSWD: ALL", ()),
    "asked": ("asked ALL=(root) ALL", ("sudo on the host wants a password", "-K")),
    "refused": ("", ("sudo on the host wants a password", "leave out -b")),
}
INSTALL = (
    "apt-get install -y -qq --no-install-recommends sudo || { apt-get update -qq && apt-get install -y -qq sudo; }"
)


@pytest.mark.long
def test_sudo(faulty_hosts: Callable[..., FaultyHost], tmp_path: Path) -> None:
    """Debian's own sudo, asked by three users of one host."""
    host = faulty_hosts("sudo")
    environment = dict(os.environ, DEBIAN_FRONTEND="noninteractive")
    done = subprocess.run(
        ["chroot", str(host.root), "sh", "-c", INSTALL], env=environment, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr
    for number, name in enumerate(SUDO_USERS):
        for path, line in (("passwd", "%s:x:%d:65534::/tmp:/bin/sh"), ("shadow", "%s:$6$x$%d:19000::::::")):
            with open(host.root / "etc" / path, "a") as handle:
                handle.write(line % (name, 2000 + number) + "\n")
    host.write("/etc/sudoers.d/test", "".join(line + "\n" for line, _says in SUDO_USERS.values()), 0o440)
    users = {name: {**host.describe_connection(), "ansible_user": name, **BECOME} for name in SUDO_USERS}
    wrong = {**users["asked"], "ansible_become_password": "wrong"}
    run = validate(tmp_path, [], "--tags", "driver", **users, wrong=wrong)
    for name, (_line, says) in SUDO_USERS.items():
        found = run.report["hosts"][name]
        assert found["state"] == ("not_validated" if says else "ready"), found["message"]
        assert all(words in found["message"] for words in says), found["message"]
    assert "does not take the password that was given" in run.report["hosts"]["wrong"]["message"]
    assert "Traceback" not in run.text


@pytest.mark.long
def test_with_hidepid_an_ordinary_user_does_not_know_whether_a_server_runs(
    faulty_hosts: Callable[..., FaultyHost], tmp_path: Path
) -> None:
    """And root does: it sees every process."""
    host = faulty_hosts("hidepid", proc="hidepid=2", user=USER)
    seen = {**host.describe_connection(), "host_validation_server": "true"}
    run = validate(tmp_path, [], "--tags", "server", hidden=seen, root={**seen, "ansible_user": "root"})
    hosts = run.report["hosts"]
    unknown = {result["id"] for result in hosts["hidden"]["results"] if result["status"] == "unknown"}
    assert "server_started" in unknown and hosts["hidden"]["state"] == "not_ready"
    assert not [result for result in hosts["root"]["results"] if result["status"] == "unknown"]
    assert "the mount option hidepid hides those of other users" in run.text
