"""The README shows what the commands really print, and names only files that are there."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
README = (ROOT / "README.md").read_text()
BIN = Path(sys.executable).parent
COMMANDS = [
    line.split("#")[0].strip()
    for block in re.findall(r"```console\n(.*?)```", README, re.S)
    for line in block.splitlines()
]


def run(*words: str) -> subprocess.CompletedProcess[str]:
    environment = dict(
        os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), LC_ALL="C.UTF-8", NO_COLOR="1", ANSIBLE_FORCE_COLOR="0"
    )
    environment.pop("ANSIBLE_STDOUT_CALLBACK", None)
    environment.pop("GPU_HOST_REPORTS_DIR", None)
    environment["GPU_HOST_HISTORY"] = "0"  # as of a first run, which has none yet
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_report_is_real() -> None:
    shown = re.search(r"```text\n(.*?)```", README, re.S)
    assert shown
    printed = run("ansible-playbook", "validate.yml").stdout
    start = printed.index("1 of 4 hosts NOT READY")
    assert shown[1].strip() == printed[start:].strip(), "put what `make validate` prints into README.md"


# Runs the command line of ansible-playbook for each of several commands, in a fork of one process: Ansible's imports
# take longer than a syntax check.
SEVERAL = """
import json, os, sys
from ansible.cli.playbook import PlaybookCLI
failed = []
for words in json.loads(sys.argv[1]):
    child = os.fork()
    if not child:
        try:
            os._exit(PlaybookCLI(words).run())
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        failed.append(" ".join(words))
print("RESULT " + json.dumps(failed))
"""


def failed_syntax_checks(commands: list[list[str]]) -> list[str]:
    done = run("python", "-c", SEVERAL, json.dumps([[*words, "--syntax-check"] for words in commands]))
    assert "RESULT " in done.stdout, done.stdout + done.stderr
    return list(json.loads(done.stdout.rpartition("RESULT ")[2]))


@pytest.mark.slow
def test_playbooks_take_these_arguments() -> None:
    commands = [command.split() for command in COMMANDS if command.startswith("ansible-playbook")]
    for words in commands:
        if "-i" not in words:
            words[:] = [word for word in words if word not in ("-l", "gpu1")]  # a host of yours
    assert len(commands) >= 10
    assert failed_syntax_checks(commands) == []


def test_wrong_arguments_would_be_seen(tmp_path: Path) -> None:
    (tmp_path / "bad.yml").write_text("- hosts: all\n  tasks: [{no_such_module: {}}]\n")
    bad = [["ansible-playbook", "validate.yml", "--no-such-option"], ["ansible-playbook", str(tmp_path / "bad.yml")]]
    good = ["ansible-playbook", "validate.yml"]
    assert failed_syntax_checks([good, *bad, good]) == [" ".join([*words, "--syntax-check"]) for words in bad]


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_are_there() -> None:
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert targets and [target for target in targets if not re.search("^%s:" % target, makefile, re.M)] == []
