"""The checks as test cases of a user's own pytest, on the recorded example fleet."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TOOLS = Path(sys.executable).parent


def run_pytest(*words: str) -> subprocess.CompletedProcess[str]:
    environment = dict(os.environ, PATH="%s:%s" % (TOOLS, os.environ["PATH"]), NO_COLOR="1")
    environment.pop("GPU_HOST_TESTS_FORBID_SKIPS", None)
    argv = [sys.executable, "-m", "pytest", "-p", "no:cacheprovider", "-q", "tests/testinfra", *words]
    return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)


@pytest.mark.slow
def test_a_case_for_each_check_and_host_with_the_report_s_words() -> None:
    done = run_pytest("--hosts=ansible://llm-vm,ansible://h200-x2", "--ansible-inventory=inventory")
    assert done.returncode == 1, done.stdout + done.stderr
    failed = {line.split("::")[1].split(" - ")[0] for line in done.stdout.splitlines() if line.startswith("FAILED")}
    assert failed == {
        "test_check[%s-ansible://llm-vm]" % check for check in ("vm_machine_q35", "chipset_supports_p2p", "p2p_granted")
    }
    assert "qm set 101 --machine q35" in done.stdout
    assert "Traceback" not in done.stdout


@pytest.mark.slow
def test_a_part_by_tag() -> None:
    done = run_pytest("--hosts=ansible://h200-x2", "--ansible-inventory=inventory", "--check-tags=p2p")
    assert done.returncode == 0, done.stdout + done.stderr
    assert " passed" in done.stdout


def test_nothing_is_tested_where_no_host_is_named() -> None:
    assert (
        run_pytest().returncode == 5
    )  # no tests collected: the suite of this project is not about the machine that it runs on
