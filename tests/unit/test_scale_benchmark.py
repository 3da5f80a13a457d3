"""What the benchmark of scale makes of its runs: ratios to ping, a straight line, memory for each further host."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="module")
def scale() -> Any:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import scale
    finally:
        sys.path.pop(0)
    return scale


def judge(scale: Any, each: float, mib: float, bend: float = 1.0) -> dict[bool, int]:
    """How many targets are met and missed where a further host costs `each` times ping's second and `mib`; from 100
    hosts on `bend` times as much."""
    measured = {}
    for count in (1, 10, 100, 500):
        further = min(count, 100) + bend * max(count - 100, 0)
        ping = scale.Run(1.0 + count, 1.0 + count, 0.0, 50.0)
        ours = scale.Run(each * (1 + further), each * (1 + further), 0.0, 60.0 + mib * count)
        measured[count] = ([ping], [ours])
    verdicts = [record["met"] for record in scale.judge_kind("recorded", measured)]
    return {met: verdicts.count(met) for met in (True, False)}


def test_all_targets_are_met_by_a_run_that_meets_them(scale: Any) -> None:
    assert judge(scale, 1.2, 0.9) == {True: 4 + 3 + 2, False: 0}


@pytest.mark.parametrize(
    ("cost", "missed"),
    [((1.3, 0.9, 1.0), 4), ((1.2, 1.1, 1.0), 3), ((1.0, 0.5, 1.4), 2)],
    ids=["slow at every size", "memory", "a line that bends"],
)
def test_what_is_missed_is_told(scale: Any, cost: tuple[float, float, float], missed: int) -> None:
    assert judge(scale, *cost)[False] == missed


def test_what_a_run_leaves_behind_counts_and_is_ended(scale: Any, tmp_path: Path) -> None:
    # Each in a process of its own: who adopts orphans does it for good.
    (tmp_path / "work.py").write_text(
        "import os, time\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    if os.fork() == 0:\n"
        "        began = time.process_time()\n"
        "        while time.process_time() - began < 0.3: pass\n"
        "        time.sleep(60)\n"
        "    os._exit(0)\n"
        "time.sleep(1.5)\n"
    )
    code = (
        "import sys; sys.path.insert(0, 'benchmarks'); import scale; from pathlib import Path\n"
        "scale.adopt_orphans()\n"
        "here = Path(%r)\n"
        "took = scale.take_run([sys.executable, str(here / 'work.py')], here, lambda: '', set())\n"
        "print(took[1], scale.find_children())" % str(tmp_path)
    )
    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True, timeout=60
    )
    processor, children = done.stdout.split(maxsplit=1)
    assert float(processor) >= 0.25 and children.strip() == "[]"
