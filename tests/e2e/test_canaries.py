"""No secret reaches the terminal at any -v, a bundle or a report: two runs of the playbooks over planted secrets."""

from __future__ import annotations

import gzip
import json
import sys
from pathlib import Path
from typing import Any

from .conftest import LOCAL

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "unit"))

import canaries
import pytest
from ansible.module_utils.gpu_host.evidence import bundle

pytestmark = pytest.mark.slow

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "fixtures" / "hosts"
KEY = canaries.value_of(3)


def plant(name: str, path: Path) -> dict[str, str]:
    """A recorded host with every form of a secret in every record, as somebody else could have written it."""
    original = bundle.load_bundle(str(HOSTS / (name + ".jsonl.gz")))
    manifest = {"bundle": 1, **original.manifest, "note": canaries.lines()}
    records = canaries.seed_records(original.records())
    path.write_text("".join(json.dumps(line) + "\n" for line in (manifest, *records)))
    assert len(canaries.find_leaks(path.read_text())) == len(canaries.planted())
    return {"gpu_host_bundle": str(path)}


@pytest.mark.slow
def test_two_runs_show_none(play: Any, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("HF_TOKEN", canaries.value_of(1))
    monkeypatch.setenv("VLLM_API_KEY", canaries.value_of(2))
    session = (ROOT / "tests/fixtures/loose/pasted-session.txt").read_text()
    (tmp_path / "post.txt").write_text(session + canaries.lines())
    hosts: dict[str, dict[str, Any]] = {
        "here": {**LOCAL, "host_validation_server_api_key": KEY},
        "post": {"gpu_host_bundle": str(tmp_path / "post.txt")},
        "serving": plant("serving", tmp_path / "serving.jsonl"),
        "pve": plant("pve-kvm", tmp_path / "pve.jsonl"),
    }
    inventory = {"all": {"hosts": hosts}}
    bundles = tmp_path / "bundles"
    captured = play("capture.yml", inventory, "-vvvv", capture_dir=str(bundles))
    assert captured.rc == 0 and "Look at it before you send it: make show F=" in captured.text
    assert canaries.find_leaks(captured.text) == []
    assert '{"bundle"' not in captured.text and '\\"bundle\\": 1' not in captured.text
    for name in hosts:
        assert canaries.find_leaks(gzip.decompress((bundles / (name + ".jsonl.gz")).read_bytes()).decode()) == []
    baselines = tmp_path / "baselines"
    validated = play(
        "validate.yml", inventory, "-vvvv", gpu_host_baseline="force", gpu_host_baseline_dir=str(baselines)
    )
    assert "Traceback" not in validated.text and set(validated.report["hosts"]) == set(hosts)
    assert canaries.find_leaks(validated.text) == []
    kept = {path.name.partition(".")[0]: path for path in baselines.iterdir()}
    assert set(kept) == set(hosts)
    written = sorted(path for path in (*validated.reports.rglob("*"), *kept.values()) if path.is_file())
    assert {path.name for path in written} >= {"report.json", "report.html", "report.md", "junit.xml"}
    assert any(path.name.endswith(".json.gz") for path in written), "the history"
    leaks = {path.name: canaries.find_leaks(read_text(path)) for path in written}
    assert {name: found for name, found in leaks.items() if found} == {}
    for events in (captured.events, validated.events):
        assert canaries.find_leaks(json.dumps([event.get("stdout", "") for event in events])) == []


def read_text(path: Path) -> str:
    data = path.read_bytes()
    return (gzip.decompress(data) if path.suffix == ".gz" else data).decode()
