"""The README shows what the commands really print, and names only files that are there."""

from __future__ import annotations

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
    return subprocess.run(
        [str(BIN / words[0]), *words[1:]], cwd=ROOT, env=environment, capture_output=True, text=True, check=False
    )


def test_the_report_is_real() -> None:
    shown = re.search(r"```text\n(.*?)```", README, re.S)
    assert shown
    printed = run("ansible-playbook", "validate.yml").stdout
    start = printed.index("1 of 4 hosts NOT READY")
    assert shown[1].strip() == printed[start:].strip(), "put what `make validate` prints into README.md"


@pytest.mark.parametrize("command", [words for words in COMMANDS if words.startswith("ansible-playbook")])
def test_playbooks_take_these_arguments(command: str) -> None:
    words = command.split()
    if "-i" not in words:
        words = [word for word in words if word not in ("-l", "gpu1")]  # a host of yours
    done = run(*words, "--syntax-check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_links_lead_somewhere() -> None:
    links = [link for link in re.findall(r"\]\(([^)#]+)", README) if "://" not in link]
    assert links
    assert [link for link in links if not (ROOT / link).exists()] == []


def test_make_targets_are_there() -> None:
    targets = re.findall(r"(?:^|`)make ([a-z-]+)", README, re.M)
    makefile = (ROOT / "Makefile").read_text()
    assert targets and [target for target in targets if not re.search("^%s:" % target, makefile, re.M)] == []
