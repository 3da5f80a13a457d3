#!/usr/bin/env python3
"""What a host that hangs, floods, talks nonsense or is not there costs the others: `python benchmarks/mixed_fleet.py`.

Live hosts on this machine, each with an nvidia-smi of its own (tests/e2e/mixed_fleet.py). validate.yml runs on the
healthy ones alone and on all of them; printed is when the last healthy verdict came. Exit status 1 where a bound is
missed.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import yaml

ROOT = Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT / "tests" / "e2e"))
from mixed_fleet import BAD, make_inventory  # type: ignore[import-not-found]

HEALTHY = 4
HOST_SECONDS = 45.0  # a host whose nvidia-smi hangs
LATER = 1.25  # how much later the healthy verdicts may come, as a share: the bad hosts use the processors as well


def verdicts(directory: Path, bad: tuple[str, ...]) -> dict[str, float]:
    """Host -> seconds until its verdict."""
    directory.mkdir()
    inventory = directory / "hosts.yml"
    inventory.write_text(yaml.safe_dump(make_inventory(directory, HEALTHY, bad)))
    command = [str(Path(sys.executable).parent / "ansible-playbook"), "-v", "validate.yml", "-i", str(inventory)]
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1", "GPU_HOST_REPORTS_DIR": str(directory / "reports")}
    began, found = time.monotonic(), {}
    with subprocess.Popen(
        [*command, "-e", "probe=false"], cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True
    ) as run:
        assert run.stdout is not None
        for line in run.stdout:
            judged = re.match(r"(?:ok|failed): \[(\w+)\] (?:ready|\d+ (?:failed|unknown))", line)
            if judged:
                found[judged[1]] = time.monotonic() - began
    return found


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        alone = verdicts(Path(temporary) / "alone", ())
        mixed = verdicts(Path(temporary) / "mixed", BAD)
    last = [max(seconds for name, seconds in found.items() if name.startswith("healthy")) for found in (alone, mixed)]
    print("last of %d healthy verdicts: %.1f s alone, %.1f s beside %s" % (HEALTHY, last[0], last[1], ", ".join(BAD)))
    print("the host whose nvidia-smi hangs: %.1f s" % mixed["hanging"])
    good = last[1] <= LATER * last[0] + 2.0 and mixed["hanging"] <= HOST_SECONDS + last[0]
    print("%s  bounds: %.2f times and 2 s; %.0f s" % ("ok  " if good else "MISS", LATER, HOST_SECONDS))
    return 0 if good else 1


if __name__ == "__main__":
    sys.exit(main())
