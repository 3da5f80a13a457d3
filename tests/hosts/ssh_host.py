"""A test host of make_hosts.py as a test reaches it: a shell over SSH, and an inventory that Ansible reaches it by."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import yaml

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
_OPTIONS = ["-o", "StrictHostKeyChecking=no", "-o", "UserKnownHostsFile=/dev/null", "-o", "LogLevel=ERROR"]


def run_over_ssh(
    host: dict[str, Any], command: str, text: str | None = None, timeout: int = 300
) -> subprocess.CompletedProcess[str]:
    """`command` in a shell of the host; `text` is its standard input, which is empty otherwise."""
    argv = ["ssh", "-i", host["key"], *_OPTIONS, "root@" + host["address"], command]
    given: dict[str, Any] = {"stdin": subprocess.DEVNULL} if text is None else {"input": text}
    return subprocess.run(argv, capture_output=True, text=True, check=False, timeout=timeout, **given)


def ask_over_ssh(host: dict[str, Any], command: str, text: str | None = None) -> str:
    """What `command` prints; a failure fails the test."""
    done = run_over_ssh(host, command, text)
    assert done.returncode == 0, ("%s\n%s%s" % (command[:200], done.stdout, done.stderr))[-4000:]
    return done.stdout


def describe_connection(host: dict[str, Any]) -> dict[str, str]:
    """The variables of the host in an inventory."""
    return {
        "ansible_host": host["address"],
        "ansible_user": "root",
        "ansible_ssh_private_key_file": host["key"],
        "ansible_ssh_common_args": " ".join(_OPTIONS),
        "ansible_python_interpreter": "/usr/bin/python3",
    }


class SshHost:
    """One host, alone in an inventory of its own in `work`."""

    def __init__(self, host: dict[str, Any], work: Path, group: str = "all") -> None:
        self.host, self.work = host, work
        self.inventory = work / "inventory.yml"
        self.inventory.write_text(yaml.safe_dump({group: {"hosts": {host["name"]: describe_connection(host)}}}))

    def environment(self) -> dict[str, str]:
        """Of a run of ansible-playbook."""
        return {
            **os.environ,
            "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
            "NO_COLOR": "1",
            "GPU_HOST_REPORTS_DIR": str(self.work / "reports"),
        }

    def run_playbook(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        """ansible-playbook on this host, from the root of the project, without a terminal."""
        return subprocess.run(
            [PLAYBOOK, "-i", str(self.inventory), *arguments], cwd=ROOT, env=self.environment(), timeout=900,
            capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL,
        )  # fmt: skip
