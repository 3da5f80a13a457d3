"""Every target of the Makefile really runs, whatever files and folders have its name; the tiers of the tests are
disjoint."""

from __future__ import annotations

import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
TARGETS = re.findall(r"^([a-z-]+):", (ROOT / "Makefile").read_text(), re.M)


@pytest.mark.skipif(not shutil.which("make"), reason="make is not installed")
@pytest.mark.parametrize("target", TARGETS)
def test_the_target_runs(target: str) -> None:
    done = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "up to date" not in done.stdout and "Nothing to be done" not in done.stdout
    assert "scripts/dev.py" in done.stdout or target == "clean", done.stdout
    named = re.findall(r"\btests/[\w/.]+", done.stdout)
    assert [path for path in named if not (ROOT / path).exists()] == []


def test_every_target_says_what_it_is_for() -> None:
    text = (ROOT / "Makefile").read_text()
    assert set(TARGETS) == set(re.findall(r"^([a-z-]+):  ## .", text, re.M))
    assert set(TARGETS) == set(re.search(r"^\.PHONY: (.*)$", text, re.M)[1].split())  # type: ignore[index]


@pytest.mark.slow
def test_the_tiers_share_no_test_and_leave_none_out() -> None:
    def collected(tier: str) -> set[str]:
        argv = [sys.executable, "-m", "pytest", "-q", "--collect-only", "-p", "no:cacheprovider", "-p", "no:randomly"]
        argv += [
            "--tier",
            tier,
            "tests/e2e/test_html_in_chromium.py",
            "tests/e2e/test_kinds.py",
            "tests/lint",
            "tests/vm",
        ]
        done = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
        return {line for line in done.stdout.splitlines() if "::" in line}

    fast, rest = collected("fast"), collected("rest")
    assert fast and rest and not fast & rest
    assert fast | rest == collected("all")
    assert {name.split("/")[1] for name in fast} == {"e2e"}
    assert any("test_html_in_chromium" in name for name in rest)
