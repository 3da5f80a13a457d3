"""A baseline is saved, the hosts change, and the next run says what changed and what that explains."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from .conftest import HOSTS, ROOT

sys.path.insert(0, str(ROOT / "tests" / "checks"))

import harness  # type: ignore[import-not-found]
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.anonymise import anonymise_bundle

KERNEL = [
    {"read": "/proc/sys/kernel/osrelease", "text": "6.11.0-9-generic\n"},
    {"list": "/boot", "add": {"vmlinuz-6.11.0-9-generic": {"kind": "file"}}},
]
SMI = ["nvidia-smi", "-q", "-x"]


def changed(name: str, changes: list[dict[str, Any]], path: Path, anonymous: bool = False) -> dict[str, str]:
    """A recorded host with changes of its evidence, as an entry of an inventory."""
    evidence = harness.evidence_with(harness.base(name), changes, "test")
    text = bundle.dump_bundle(evidence.manifest, evidence.records())
    path.write_bytes(bundle.compress_bundle(anonymise_bundle(text) if anonymous else text))
    return {"gpu_host_bundle": str(path)}


def recorded(name: str) -> dict[str, str]:
    return {"gpu_host_bundle": str(HOSTS / (name + ".jsonl.gz"))}


@pytest.mark.slow
def test_save_change_validate(play: Any, tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    hosts = {"gpu1": recorded("bare-metal"), "gpu2": recorded("h200-x2"), "broken": recorded("kvm-story")}
    inventory = {"all": {"hosts": hosts}}
    saved = play("validate.yml", inventory, gpu_host_baseline="save", gpu_host_baseline_dir=str(baselines))
    assert saved.report["hosts"]["gpu1"]["drift"]["saving"].startswith("saved in ")
    assert "not saved: the host is not ready" in saved.text and "-e gpu_host_baseline=force" in saved.text
    assert sorted(path.name for path in baselines.iterdir()) == ["gpu1.json", "gpu2.json"]
    assert {path.stat().st_mode & 0o777 for path in baselines.iterdir()} == {0o600}

    vbios = {"run": SMI, "replace": {"98.02.67.00.0A": "98.02.99.00.01"}}
    hosts["gpu1"] = changed("bare-metal", [*KERNEL, vbios], tmp_path / "gpu1.jsonl.gz")
    hosts["gpu2"] = changed("h200-x2", [], tmp_path / "gpu2.jsonl.gz", anonymous=True)
    again = play("validate.yml", inventory, gpu_host_baseline_dir=str(baselines))
    drift = {name: host.get("drift") for name, host in again.report["hosts"].items()}
    assert drift["broken"] is None, "it has no baseline, and nobody asked for one"
    told = {change["text"]: change["explains"] for change in drift["gpu1"]["changes"]}
    assert "driver_built_for_kernel" in told["kernel: 6.8.0-64-generic -> 6.11.0-9-generic"]
    assert told["VBIOS of all 8 GPUs: 98.02.67.00.0A -> 98.02.99.00.01"] == []
    assert (drift["gpu2"]["state"], drift["gpu2"]["changes"]) == ("same", [])
    day = drift["gpu1"]["saved_at"][:10]
    assert "gpu1: changed since %s" % day in again.text and "gpu2: nothing changed since %s" % day in again.text
    assert "kernel: 6.8.0-64-generic -> 6.11.0-9-generic; explains driver_built_for_kernel" in again.text
    assert "changed kernel: 6.8.0-64-generic -> 6.11.0-9-generic (since %s)" % day in again.text, "in the finding"
    for name in ("report.html", "report.md"):
        text = (again.reports / name).read_text()
        assert "Compared with the baselines" in text and "6.11.0-9-generic" in text
    assert json.loads((baselines / "gpu1.json").read_text())["facts"]["kernel"]["release"] == "6.8.0-64-generic"


@pytest.mark.slow
@pytest.mark.long
def test_another_machine_a_part_and_a_damaged_file(play: Any, tmp_path: Path) -> None:
    baselines = tmp_path / "baselines"
    hosts: dict[str, Any] = {"gpu1": recorded("bare-metal"), "gpu2": recorded("rdma")}
    inventory = {"all": {"hosts": hosts}}
    options = {"gpu_host_baseline_dir": str(baselines)}
    part = play("validate.yml", inventory, "--tags p2p", gpu_host_baseline="save", **options)
    assert "not saved: only " in part.text and not baselines.exists()
    look = play("validate.yml", inventory, "--check", gpu_host_baseline="save", **options)
    assert "not saved: check mode" in look.text and not baselines.exists()
    none = play("validate.yml", inventory, gpu_host_baseline="diff", **options)
    assert "there is no baseline" in none.text
    saved = play("validate.yml", inventory, gpu_host_baseline="save", **options)
    assert saved.rc == 0 and len(list(baselines.iterdir())) == 2
    hosts["gpu1"], hosts["gpu2"] = hosts["gpu2"], hosts["gpu1"]
    (baselines / "gpu2.json").write_text("{")
    swapped = play("validate.yml", inventory, **options)
    assert swapped.rc == 0, "it is information"
    assert "gpu1: the baseline is of another machine (its DMI UUID" in swapped.text
    assert "is no baseline: it is no JSON" in swapped.text
    wrong = play("validate.yml", inventory, gpu_host_baseline="sava", **options)
    assert wrong.rc != 0 and "value of gpu_host_baseline must be one of" in wrong.text


@pytest.mark.slow
def test_the_odd_one_out_of_three(play: Any, tmp_path: Path) -> None:
    odd = [{"run": SMI, "replace": {"98.02.67.00.0A": "98.02.99.00.01"}}]
    hosts = {
        "gpu1": recorded("bare-metal"),
        "gpu2": recorded("bare-metal"),
        "gpu3": changed("bare-metal", odd, tmp_path / "gpu3.jsonl.gz"),
    }
    run = play("validate.yml", {"all": {"hosts": hosts}}, gpu_host_baseline="off")
    assert run.rc == 0
    assert "gpu3 differs from 2 alike: VBIOS 98.02.99.00.01 (others 98.02.67.00.0A)" in run.text
    assert [kind["hosts"] for kind in run.report["alike"]["kinds"]] == [["gpu1", "gpu2", "gpu3"]]
    page = (run.reports / "report.html").read_text()
    assert "gpu3 differs from 2 alike" in page and '<figure class="plot"' in page
