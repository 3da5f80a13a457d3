#!/usr/bin/env python3
"""What a run of provision.yml that finds nothing to do costs on one real systemd host.

It is compared with `ansible -m ping` on the same host.

    sudo .venv/3.*/bin/python benchmarks/provision.py --runs 5

Needs root and what tests/hosts needs. The two run in turns, so that a busy machine slows both; the ratio is taken from
the medians. Exit status 1 where the target is missed.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
HOSTS = ROOT / "tests" / "hosts"
NAME = "bench-provision"
RATIO_TARGET = 8.0


def tool(script: str, *words: str) -> str:
    return subprocess.run(
        [sys.executable, str(HOSTS / script), *words], check=True, stdout=subprocess.PIPE, text=True
    ).stdout


def seconds(argv: list[str], environment: dict[str, str], accepted: tuple[int, ...]) -> float:
    began = time.monotonic()
    done = subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)
    took = time.monotonic() - began
    if done.returncode not in accepted:
        sys.exit("%s ended with %d:\n%s" % (" ".join(argv[:4]), done.returncode, (done.stdout + done.stderr)[-2000:]))
    return took


def measure(directory: Path, runs: int) -> tuple[list[float], list[float]]:
    """(seconds of each ping, seconds of each no-change run)."""
    packages = directory / "nvidia"
    tool("repository.py", str(packages))
    inventory = directory / "hosts.yml"
    inventory.write_text(tool("make_hosts.py", "up", NAME + "=trixie", "--bind-ro=%s:/srv/nvidia" % packages))
    bin_directory = Path(sys.executable).parent
    environment = dict(
        os.environ,
        ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
        GPU_HOST_REPORTS_DIR=str(directory / "reports"),
        ANSIBLE_NOCOLOR="1",
    )
    repository = {"uris": "file:/srv/nvidia/repo", "suites": "/", "key_url": "file:/srv/nvidia/key.asc"}
    variables = {
        "nvidia_driver_mode": "full",
        "nvidia_driver_repository": {**repository, "fingerprints": [(packages / "fingerprint").read_text().strip()]},
        "cuda_toolkit_versions": ["12.8", "13.1"],
        "provision_reports": str(directory),
    }
    ping = [str(bin_directory / "ansible"), "-i", str(inventory), "all", "-m", "ping"]
    clean = [str(bin_directory / "ansible"), "-i", str(inventory), "all", "-m", "ansible.builtin.shell"]
    provision = [
        str(bin_directory / "ansible-playbook"),
        "-i",
        str(inventory),
        "provision.yml",
        "-e",
        json.dumps(variables),
    ]
    seconds(
        [*clean, "-a", "rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*"], environment, (0,)
    )
    # 2: such a host has no GPU, and the validation at the end says so.
    seconds(provision, environment, (0, 2))
    pairs = [(seconds(ping, environment, (0,)), seconds(provision, environment, (0, 2))) for _run in range(runs)]
    return [pair[0] for pair in pairs], [pair[1] for pair in pairs]


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--runs", type=int, default=5)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as directory:
        try:
            pings, provisions = measure(Path(directory), options.runs)
        finally:
            tool("make_hosts.py", "down", NAME)
    ratio = statistics.median(provisions) / statistics.median(pings)
    for name, values in (("ansible -m ping", pings), ("provision.yml, nothing to do", provisions)):
        print(
            "%-30s median %5.1f s, from %.1f to %.1f in %d runs"
            % (name, statistics.median(values), min(values), max(values), len(values))
        )
    print("ratio %.1f, target at most %.1f: %s" % (ratio, RATIO_TARGET, "met" if ratio <= RATIO_TARGET else "MISSED"))
    return 0 if ratio <= RATIO_TARGET else 1


if __name__ == "__main__":
    sys.exit(main())
