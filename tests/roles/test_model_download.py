"""The role's own download program with the real huggingface_hub, against a hub on this machine."""

from __future__ import annotations

import contextlib
import os
import re
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "unit"))
import hub_standin
from ansible.module_utils.gpu_provision import hub_cache, model_plan
from hub_standin import Hub

MODEL = "lukealonso/GLM-5-NVFP4"
PROGRAM = ROOT / "roles" / "inference_server" / "files" / "download_model.py"
# The last but some with requests, and one with httpx: they continue in different ways.
VERSIONS = ("0.36.0", "2.4.0")
FIRST, SECOND = "model-00001-of-00002.safetensors", "model-00002-of-00002.safetensors"
MIB = 1 << 20  # a client takes 10 of them at a time, and continues after the last whole one
pytestmark = [pytest.mark.engine, pytest.mark.xdist_group("engine")]


@pytest.fixture(scope="module", params=VERSIONS)
def library(request: pytest.FixtureRequest) -> Path:
    """A directory with huggingface_hub of this version, made once."""
    place = ROOT / ".cache" / "hub" / ("%s-%d.%d" % (request.param, *sys.version_info[:2]))
    if not (place / "huggingface_hub").exists():
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--target", str(place)]
        done = subprocess.run([*pip, "huggingface_hub==" + request.param], capture_output=True, text=True, check=False)
        if done.returncode:
            pytest.skip("pip could not install huggingface_hub %s: %s" % (request.param, done.stderr[-300:]))
    return place


class Download:
    """The program as the role starts it, without the sandbox."""

    def __init__(self, library: Path, hub: Hub, cache: Path) -> None:
        self.hub, self.cache = hub, cache
        self.environment = {"HF_ENDPOINT": hub.address, "HOME": str(cache), "PYTHONPATH": str(library)}

    def command(self) -> list[str]:
        plan = model_plan.plan_download(MODEL, None, self.environment, cache=str(self.cache))
        assert plan["state"] == "missing"
        named = {name.replace("_", "-"): plan[name] for name in ("repository", "revision", "cache", "files")}
        named.update({name.replace("_", "-"): plan[name] for name in ("present_files", "total_bytes", "present_bytes")})
        words = ["--%s=%s" % item for item in named.items()] + ["--left-out=" + name for name in plan["left_out"]]
        return [sys.executable, str(PROGRAM), "--interval=0.2", "--patience=5", *words]

    @contextlib.contextmanager
    def started(self, *more: str) -> Iterator[subprocess.Popen[str]]:
        process = subprocess.Popen(
            [*self.command(), *more], env={"PATH": os.environ["PATH"], **self.environment}, text=True,
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        )  # fmt: skip
        try:
            yield process
        finally:
            process.kill()
            process.communicate()

    def finish(self) -> str:
        with self.started() as process:
            text, _none = process.communicate(timeout=120)
            assert process.returncode == 0, text
        return text

    def prove(self) -> None:
        found = model_plan.plan_download(MODEL, None, self.environment, cache=str(self.cache))
        assert found["state"] == "complete"
        assert hub_cache.find_faults(found["directory"], found["sizes"]) == []
        assert not (Path(found["directory"]) / "original").exists()
        assert list(self.cache.rglob("*.incomplete")) == []


@pytest.fixture
def download(library: Path, tmp_path: Path) -> Iterator[Download]:
    hub = Hub({MODEL: hub_standin.make_model(shards=2, size=24 * MIB)})
    with hub_standin.running(hub):
        yield Download(library, hub, tmp_path)


def ranges(hub: Hub, name: str) -> list[int]:
    """Where each request for the rest of a file began."""
    found = [begins for method, path, begins in hub.requests if method == "GET" and path.endswith("/" + name)]
    return [int(begins.partition("=")[2].partition("-")[0]) for begins in found if begins]


def test_a_connection_that_breaks_goes_on_where_it_broke(download: Download) -> None:
    download.hub.cut[SECOND] = 15 * MIB
    text = download.finish()
    assert ranges(download.hub, SECOND) == [10 * MIB]
    assert max(download.hub.count_files().values()) == 1, "a file came twice"
    assert re.search(r"50\.3 MB of 50\.3 MB \(100 %\), 4 of 4 files, ", text), text
    download.prove()


def test_a_run_that_was_killed_is_gone_on_with(download: Download, library: Path) -> None:
    download.hub.bytes_per_s[SECOND] = 8 * MIB
    with download.started() as process:
        until = time.monotonic() + 60
        blobs = download.cache / ("models--" + MODEL.replace("/", "--")) / "blobs"
        while time.monotonic() < until:
            sizes = {
                path.name.endswith(".incomplete"): path.stat().st_size for path in blobs.glob("*") if path.exists()
            }
            if sizes.get(True) == 10 * MIB and any(path.stat().st_size > 24 * MIB for path in blobs.glob("*")):
                break
            time.sleep(0.05)
        process.kill()
    before = dict(download.hub.count_files())
    assert before[FIRST] == 1
    download.hub.bytes_per_s.clear()
    download.hub.requests.clear()
    download.finish()
    assert FIRST not in download.hub.count_files(), "a file that was whole came twice"
    # From 1.18 on a file that was cut off begins anew; up to 1.17 it goes on.
    assert ranges(download.hub, SECOND) == ([10 * MIB] if "0.36" in library.name else [])
    download.prove()


def test_a_hub_that_goes_away_is_waited_for_and_then_given_up(download: Download) -> None:
    command = download.command()
    download.hub.refusal = (503, {})
    environment = {"PATH": os.environ["PATH"], **download.environment}
    done = subprocess.run(
        [*command, "--patience=0.1"], env=environment, capture_output=True, text=True, timeout=120, check=False
    )
    assert done.returncode == 1
    assert "ERROR: " in done.stdout
    assert "503" in done.stdout


def test_a_hub_that_refuses_is_not_asked_again(download: Download) -> None:
    command = download.command()
    download.hub.refusal = (403, {"X-Error-Code": "GatedRepo"})
    began = time.monotonic()
    environment = {"PATH": os.environ["PATH"], **download.environment}
    done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 1
    assert "ERROR: GatedRepoError" in done.stdout
    assert time.monotonic() - began < 30


def test_a_program_of_the_hub_does_it_where_python_has_no_library(download: Download, library: Path) -> None:
    with download.started("--program", str(library / "bin" / "hf")) as process:
        text, _none = process.communicate(timeout=120)
        assert process.returncode == 0, text
    assert max(download.hub.count_files().values()) == 1
    download.prove()
