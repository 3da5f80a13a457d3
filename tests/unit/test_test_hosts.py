"""The test hosts' own tools: what several test processes share is made once."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

HOSTS = Path(__file__).resolve().parents[1] / "hosts"
MAKE_KEY = (
    "import sys; sys.path.insert(0, sys.argv[1]); import machine, pathlib; "
    "print(machine.ssh_key(pathlib.Path(sys.argv[2])))"
)


@pytest.mark.skipif(not shutil.which("ssh-keygen"), reason="ssh-keygen is not installed")
def test_processes_that_start_together_share_one_key(tmp_path: Path) -> None:
    command = [sys.executable, "-c", MAKE_KEY, str(HOSTS), str(tmp_path / "state")]
    started = [subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) for _ in range(6)]
    ended = [process.communicate() for process in started]
    assert [process.returncode for process in started] == [0] * 6, ended
    assert (tmp_path / "state/key.pub").read_text().startswith("ssh-ed25519 ")
