"""docs/checks.md and docs/facts.md say what the checks and the readers say: run `make docs` after a change."""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_docs_are_current() -> None:
    done = subprocess.run(
        [sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_fact_that_a_check_reads_is_documented() -> None:
    read = {
        match
        for path in sorted((ROOT / "checks").glob("*.yml"))
        for match in re.findall(r"\bhost\.(\w+)\.(\w+)", path.read_text())
    }
    words = set(re.findall(r"\w+", (ROOT / "docs/facts.md").read_text()))
    assert len(read) > 100 and sorted("%s.%s" % fact for fact in read if fact[1] not in words) == []


def test_every_check_has_the_anchor_that_its_results_point_to() -> None:
    text = (ROOT / "docs/checks.md").read_text()
    ids = [line.split()[1] for line in text.split("\n") if line.startswith("### ")]
    assert len(ids) == len(set(ids)) > 50
