#!/usr/bin/env python3
"""What a host that hangs, floods, talks nonsense or is not there costs the others: `python benchmarks/mixed_fleet.py`.

Live hosts on this machine, each with an nvidia-smi of its own (tests/e2e/mixed_fleet.py). validate.yml runs on the
healthy ones alone, beside the bad ones, and beside as many more healthy ones: the work of more hosts takes the
processors of this machine, whatever they are, and only what is beyond that is the bad hosts' fault. Printed is when the
last verdict on a healthy host came. Exit status 1 where a bound is missed.
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
HOST_SECONDS = 45.0  # a host whose nvidia-smi hangs, beyond what a healthy one takes
# How much later the verdicts on the healthy hosts may come beside bad hosts than beside as many healthy ones.
LATER, LATER_SECONDS = 1.25, 2.0


def time_verdicts(directory: Path, healthy: int, bad: tuple[str, ...]) -> dict[str, float]:
    """Host -> seconds until its verdict."""
    directory.mkdir()
    inventory = directory / "hosts.yml"
    inventory.write_text(yaml.safe_dump(make_inventory(directory, healthy, bad)))
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


def find_last(found: dict[str, float]) -> float:
    """Seconds until the last of the verdicts on the healthy hosts that every run has."""
    return max(found["healthy%d" % number] for number in range(1, HEALTHY + 1))


def main() -> int:
    with tempfile.TemporaryDirectory() as temporary:
        alone = find_last(time_verdicts(Path(temporary) / "alone", HEALTHY, ()))
        mixed = time_verdicts(Path(temporary) / "mixed", HEALTHY, BAD)
        more = find_last(time_verdicts(Path(temporary) / "more", HEALTHY + len(BAD), ()))
    last, hanging = find_last(mixed), mixed["hanging"]
    prompt = last <= LATER * more + LATER_SECONDS
    bounded = hanging <= HOST_SECONDS + last
    print("last verdict on %d healthy hosts: %.1f s alone" % (HEALTHY, alone))
    print("  beside %s: %.1f s, %.2f times that" % (", ".join(BAD), last, last / alone))
    print("  beside %d more healthy ones: %.1f s, %.2f times that" % (len(BAD), more, more / alone))
    print(
        "%s  beside bad hosts it takes %.2f times as long as beside as many healthy ones (bound: %.2f times and %.0f s)"
        % (verdict(prompt), last / more, LATER, LATER_SECONDS)
    )
    print(
        "%s  the host whose nvidia-smi hangs has its verdict after %.1f s (bound: %.0f s after the healthy ones)"
        % (verdict(bounded), hanging, HOST_SECONDS)
    )
    return 0 if prompt and bounded else 1


def verdict(good: bool) -> str:
    return "met    " if good else "MISSED "


if __name__ == "__main__":
    sys.exit(main())
