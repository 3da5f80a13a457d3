"""Ctrl-C in the middle of a run: what is known by then is reported, and called incomplete."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import pytest
import yaml

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
LONGEST_SECONDS = 120  # until the first verdict, on a busy machine
ENDS_WITHIN_SECONDS = 60


@pytest.fixture
def inventory(tmp_path: Path) -> Path:
    """A recorded host that fails at once, one that is ready, and one whose Python does not come back."""
    python = tmp_path / "python"
    python.write_text("#!/bin/sh\nexec sleep 600\n")
    python.chmod(0o755)
    slow = {"ansible_connection": "local", "ansible_python_interpreter": str(python)}
    hosts = {name: {"gpu_host_bundle": str(HOSTS / (name + ".jsonl.gz"))} for name in ("kvm-story", "bare-metal")}
    path = tmp_path / "hosts.yml"
    path.write_text(yaml.safe_dump({"all": {"hosts": {**hosts, "slow": slow}}}))
    return path


def interrupt_after_verdicts(inventory: Path, reports: Path) -> tuple[int, str]:
    """(exit status, output) of a run that gets SIGINT, as a terminal sends it to all its processes, as soon as both
    recorded hosts have their verdict."""
    environment = {**os.environ, "GPU_HOST_REPORTS_DIR": str(reports), "ANSIBLE_NOCOLOR": "1", "LC_ALL": "C.UTF-8"}
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-v", "validate.yml", "-i", str(inventory)]
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=ROOT, env=environment, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, start_new_session=True,
    ) as run:  # fmt: skip
        assert run.stdout is not None
        reader = threading.Thread(target=lambda: lines.extend(run.stdout or ()), daemon=True)
        reader.start()
        try:
            until = time.monotonic() + LONGEST_SECONDS
            while time.monotonic() < until and run.poll() is None and not both_judged("".join(lines)):
                time.sleep(0.1)
            time.sleep(0.5)  # what is printed first is taken into the report a moment later
            os.killpg(run.pid, signal.SIGINT)
            run.wait(ENDS_WITHIN_SECONDS)
        finally:
            if run.poll() is None:
                os.killpg(run.pid, signal.SIGKILL)
        reader.join(ENDS_WITHIN_SECONDS)
    return run.returncode, " ".join("".join(lines).split())


def both_judged(output: str) -> bool:
    return "[kvm-story] 2 failed" in " ".join(output.split()) and "[bare-metal] ready" in output


def test_ctrl_c_leaves_a_report_of_what_is_known(inventory: Path, tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    status, output = interrupt_after_verdicts(inventory, reports)
    assert both_judged(output), output[-2000:]
    assert status not in (0, -signal.SIGKILL)
    assert output.count("THE RUN WAS INTERRUPTED: this is what was known by then.") == 2
    assert "NOT READY kvm-story: 2 failed: chipset_supports_p2p, p2p_granted" in output
    assert "NO RESULT slow: the run was interrupted before its checks" in output
    report: dict[str, Any] = json.loads((reports / "report.json").read_text())
    states = {name: host["state"] for name, host in report["hosts"].items()}
    assert states == {"kvm-story": "not_ready", "bare-metal": "ready", "slow": "not_validated"}
    assert report["run"]["complete"] is False and report["ready"] is False
    for name in ("report.md", "report.html", "junit.xml"):
        assert "The run was interrupted: this is what was known by then." in (reports / name).read_text(), name
