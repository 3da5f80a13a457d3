"""The recorded hosts in tests/fixtures/hosts are what their generator writes, small, and read without a fault."""

from __future__ import annotations

import gzip
import sys
from pathlib import Path

import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.gather import gather

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
sys.path.insert(0, str(ROOT / "scripts"))
import make_recorded_hosts

NAMES = sorted(path.name.split(".")[0] for path in HOSTS.glob("*.jsonl.gz"))


@pytest.mark.parametrize("name", sorted(make_recorded_hosts.all_hosts()))
def test_the_generator_writes_the_same_again(name: str) -> None:
    made = make_recorded_hosts.record(make_recorded_hosts.all_hosts()[name]())
    assert made == gzip.decompress((HOSTS / (name + ".jsonl.gz")).read_bytes()).decode(), (
        "run scripts/make_recorded_hosts.py"
    )


@pytest.mark.parametrize("name", NAMES)
def test_every_recorded_host_says_where_it_is_from(name: str) -> None:
    manifest = bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz"))).manifest
    assert manifest["host"] == name and len(manifest["note"]) > 40
    assert bool(manifest.get("reconstructed")) == (name in make_recorded_hosts.all_hosts())


@pytest.mark.parametrize("name", NAMES)
def test_nothing_is_wrong_with_the_evidence(name: str) -> None:
    """Each file and command that the readers ask for is in the bundle, and is understood."""
    errors = gather(bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz"))))["errors"]
    without_driver = {
        ("nvidia-smi -q -x", "is not there"),
        ("nvidia-smi", "is not there, so nothing shows which pairs the driver grants"),
    }
    # Read since; the recordings of real machines are from before.
    later = {"/sys/bus/pci/devices/*/aer_dev_*", "nvidia-smi nvlink -e"} if name.startswith("h200") else set()
    errors = [entry for entry in errors if entry["source"] not in later]
    odd = [entry for entry in errors if (entry["source"], entry["problem"]) not in without_driver]
    assert [entry for entry in odd if not (name == "unprivileged" and entry["needs_root"])] == []


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in HOSTS.glob("*")) < 2_000_000
