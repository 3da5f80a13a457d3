"""docs/checks.md and docs/facts.md say what the checks and the readers say: run `make docs` after a change."""
from __future__ import annotations

import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]


def test_docs_are_current() -> None:
    done = subprocess.run([sys.executable, "scripts/generate_docs.py", "--check"], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_check_has_the_anchor_that_its_results_point_to() -> None:
    text = (ROOT / "docs/checks.md").read_text()
    ids = [line.split()[1] for line in text.split("\n") if line.startswith("### ")]
    assert len(ids) == len(set(ids)) > 50
