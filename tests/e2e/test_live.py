"""This machine as a live host: with or without GPUs, as root and as an ordinary user, captured and replayed."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path
from typing import Any

import pytest

from .conftest import LOCAL

pytestmark = pytest.mark.slow

together = pytest.mark.xdist_group("bundle")
HAS_DRIVER = Path("/proc/driver/nvidia/version").exists()
without_gpus = pytest.mark.skipif(HAS_DRIVER, reason="this machine has NVIDIA GPUs")


def here(variables: dict[str, Any]) -> dict[str, Any]:
    return {"all": {"hosts": {"here": variables}}}


def test_the_short_form_for_this_machine(command: Any) -> None:
    """`ansible-playbook validate.yml -i localhost, -c local`, with no setting of an interpreter."""
    run = command("-i", "localhost,", "-c", "local")
    assert run.rc in ((0, 2) if HAS_DRIVER else (2,)) and "Traceback" not in run.text
    assert set(run.report["hosts"]) == {"localhost"}


@without_gpus
def test_a_host_without_gpus_is_not_ready_unless_it_should_have_none(play: Any, local: dict[str, Any]) -> None:
    none = {**local, "gpu_host_expected": {"gpus": {"count": 0}}}
    run = play("validate.yml", {"all": {"hosts": {"here": local, "none": none}}})
    assert run.rc == 2
    bad = {
        check["id"]: check
        for check in run.results("here")
        if check["status"] == "fail" and check["severity"] == "error"
    }
    assert "gpus_found" in bad and len(bad) <= 3, sorted(bad)
    assert [
        check["id"] for check in run.results("none") if check["status"] == "fail" and check["severity"] == "error"
    ] == []


def test_an_ordinary_user_learns_what_needs_root(play: Any, local: dict[str, Any], ordinary_python: str) -> None:
    run = play("validate.yml", here({**local, "ansible_python_interpreter": ordinary_python}))
    assert run.results("here") and "Traceback" not in run.text
    assert all(check["status"] != "error" for check in run.results("here"))
    captured = play(
        "capture.yml",
        here({**local, "ansible_python_interpreter": ordinary_python}),
        capture_dir=str(run.reports.parent / "bundles"),
    )
    records = [
        json.loads(line)
        for line in gzip.decompress((run.reports.parent / "bundles" / "here.jsonl.gz").read_bytes())
        .decode()
        .splitlines()
    ]
    assert captured.rc == 0 and records[0]["uid"] != 0


@pytest.fixture(scope="module")
def bundle(play_once: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This machine, captured once for all tests that look at a bundle; with secrets in the environment."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("HF_TOKEN", "hf_" + "x" * 30)
        patch.setenv("VLLM_API_KEY", "plantedplantedplanted")
        return captured(play_once, here(LOCAL), tmp_path_factory.mktemp("bundles"))


def captured(play: Any, inventory: dict[str, Any], directory: Path) -> Path:
    run = play("capture.yml", inventory, capture_dir=str(directory))
    assert run.rc == 0, run.text
    return directory / "here.jsonl.gz"


@together
def test_a_bundle_gives_the_verdict_of_the_host(play: Any, bundle: Path) -> None:
    hosts = {"here": LOCAL, "replayed": {"gpu_host_bundle": str(bundle)}}
    # Servers come and go on this machine: other tests start some meanwhile.
    run = play("validate.yml", {"all": {"hosts": hosts}}, host_validation_server="false")
    assert run.statuses("replayed") == run.statuses("here")
    assert ("here" in run.failed_hosts()) is ("replayed" in run.failed_hosts()) is (run.rc != 0)
    manifest = json.loads(gzip.decompress(bundle.read_bytes()).split(b"\n")[0])
    assert manifest["uid"] == os.geteuid() and not manifest.get("reconstructed")


@together
def test_a_captured_bundle_captured_again_is_the_same_evidence(play: Any, bundle: Path, tmp_path: Path) -> None:
    second = captured(play, {"all": {"hosts": {"here": {"gpu_host_bundle": str(bundle)}}}}, tmp_path / "two")
    one, two = (sorted(gzip.decompress(path.read_bytes()).decode().splitlines()[1:]) for path in (bundle, second))
    assert one == two


@together
def test_a_bundle_is_its_owners_alone_and_holds_no_environment(bundle: Path) -> None:
    assert bundle.stat().st_mode & 0o777 == 0o600
    text = gzip.decompress(bundle.read_bytes())
    assert b"plantedplanted" not in text and b"hf_xxxx" not in text


def test_check_mode_writes_no_bundle(play: Any, local: dict[str, Any], tmp_path: Path) -> None:
    run = play("capture.yml", here(local), "--check", capture_dir=str(tmp_path / "bundles"))
    assert "Traceback" not in run.text
    assert not list(tmp_path.glob("bundles/*"))
