"""What somebody hands in, in one run of the playbook: each input a host, each with its verdict on one screen."""

from __future__ import annotations

import gzip
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import loose_inputs
from ansible.module_utils.gpu_host.evidence import bundle

ROOT = Path(__file__).resolve().parents[2]
LOOSE = ROOT / "tests" / "fixtures" / "loose"
HOSTS = ROOT / "tests" / "fixtures" / "hosts"


@pytest.mark.slow
def test_many_forms_in_one_run(play: Any, tmp_path: Path) -> None:
    report = loose_inputs.bug_report(bundle.load_bundle(str(HOSTS / "kvm-story.jsonl.gz")))
    (tmp_path / "nvidia-bug-report.log.gz").write_bytes(gzip.compress(report.encode()))
    healthy = loose_inputs.bug_report(bundle.load_bundle(str(HOSTS / "bare-metal.jsonl.gz")))
    (tmp_path / "healthy.log").write_text(healthy)
    with tarfile.open(tmp_path / "case.tgz", "w:gz") as archive:
        archive.add(LOOSE / "folder", arcname="case")
    (tmp_path / "with tools").mkdir()
    (tmp_path / "with tools" / "bundle.jsonl.gz").write_bytes((HOSTS / "bare-metal.jsonl.gz").read_bytes())
    (tmp_path / "with tools" / "bench.txt").write_bytes((LOOSE / "p2p-test.txt").read_bytes())
    (tmp_path / "junk.bin").write_bytes(b"\x00\xff\x13junk" * 50)
    inputs = {
        "matrix": LOOSE / "matrix-blocked.txt",
        "paste": LOOSE / "pasted-session.txt",
        "folder": LOOSE / "folder",
        "tgz": tmp_path / "case.tgz",
        "report": tmp_path / "nvidia-bug-report.log.gz",
        "healthy": tmp_path / "healthy.log",
        "pve": LOOSE / "pve",
        "server": LOOSE / "server.log",
        "tools": tmp_path / "with tools",
        "junk": tmp_path / "junk.bin",
        "gone": tmp_path / "gone.txt",
    }
    run = play(
        "validate.yml", {"all": {"hosts": {name: {"gpu_host_bundle": str(path)} for name, path in inputs.items()}}}
    )
    assert run.rc == 2 and "Traceback" not in run.text
    assert run.failed_hosts() >= {"junk", "gone"}
    failed = {
        name: {check for check, status in run.statuses(name).items() if status == "fail"}
        for name in inputs
        if name not in ("junk", "gone")
    }
    assert failed["matrix"] == {"p2p_granted"} and failed["paste"] == {"p2p_granted", "log_no_gpu_off_bus"}
    assert failed["folder"] == failed["tgz"] == set() and run.statuses("tgz")["p2p_granted"] == "pass"
    assert "chipset_supports_p2p" in failed["report"] and failed["healthy"] == set()
    assert failed["pve"] == {"pve_vms_ready_for_p2p"} and failed["server"] == {"server_started"}
    # The two cards of that output are none of this host's: they are judged on their own, and stand beside its own.
    assert "measured_p2p_fast" in failed["tools"] and run.statuses("tools")["p2p_delivered"] == "pass"
    assert "p2p_granted" not in run.statuses("pve")  # only the checks of a hypervisor
    for part in (
        "matrix, loose pieces, not a capture: matrix-blocked.txt: nvidia-smi topo -p2p r: taken for reads",
        "not read folder: notes.txt",
        "tools, a capture and more: ",
        "junk.bin: not a bundle: neither gzip nor JSON",
        "NOT HANDED IN: what would decide more",
        "systemd-detect-virt; cat /sys/class/dmi/id/product_name",
    ):
        assert part in run.text, part
    assert "UNKNOWN: could not be decided" not in run.text


@pytest.mark.slow
def test_one_matrix_is_one_screen(play: Any) -> None:
    run = play("validate.yml", {"all": {"hosts": {"case": {"gpu_host_bundle": str(LOOSE / "matrix-granted.txt")}}}})
    assert "the driver's answer for reads is at hand (OK on every pair), not the other" in run.text
    assert "nvidia-smi topo -p2p w" in run.text and "Traceback" not in run.text
    terminal = [event["stdout"] for event in run.events if event.get("stdout")]
    assert sum(text.count("\n") + 1 for text in terminal) <= 45
    markdown = (run.reports / "report.md").read_text()
    assert "Recognised: matrix-granted.txt" in markdown and "loose pieces" in (run.reports / "report.html").read_text()


@pytest.mark.slow
def test_pieces_can_be_captured(play: Any, tmp_path: Path) -> None:
    inventory = {"all": {"hosts": {"case": {"gpu_host_bundle": str(LOOSE / "pasted-session.txt")}}}}
    captured = play("capture.yml", inventory, capture_dir=str(tmp_path))
    assert captured.rc == 0, captured.text
    again = play("validate.yml", {"all": {"hosts": {"case": {"gpu_host_bundle": str(tmp_path / "case.jsonl.gz")}}}})
    assert {check for check, status in again.statuses("case").items() if status == "fail"} == {
        "p2p_granted",
        "log_no_gpu_off_bus",
    }
    assert "case, loose pieces, not a capture: pasted-session.txt: uname" in again.text
