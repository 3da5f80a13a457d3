"""What Ansible made of a module is carried from run to run: by our code, and by Ansible itself as it is installed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from ansible import constants
from ansible.module_utils.gpu_checks import kept_payloads

ROOT = Path(__file__).resolve().parents[2]
SOURCE = str(ROOT / "library" / "gpu_facts.py")
NAME = "ansible.legacy.gpu_facts-ZIP_DEFLATED-none"


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Where Ansible has what it made in this run."""
    monkeypatch.setattr(kept_payloads, "KEPT", str(tmp_path / "kept"))
    return next_run(tmp_path, monkeypatch)


def next_run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    here = tmp_path / ("run%d" % len(list(tmp_path.iterdir())))
    (here / "ansiballz_cache").mkdir(parents=True)
    monkeypatch.setattr(constants, "DEFAULT_LOCAL_TMP", str(here))
    return here / "ansiballz_cache"


def keep(run: Path, content: bytes = b"made") -> Path:
    (run / NAME).write_bytes(content)
    kept_payloads.carry_out(SOURCE)
    (kept,) = Path(kept_payloads.KEPT).iterdir()
    return kept


def test_the_next_run_has_what_was_made(run: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("other.gpu_facts_of_others-x", NAME + ".lock", NAME + "-part"):
        (run / name).write_bytes(b"")
    keep(run)
    new = next_run(tmp_path, monkeypatch)
    kept_payloads.carry_in(SOURCE)
    assert {path.name: path.read_bytes() for path in new.iterdir()} == {NAME: b"made"}


def test_what_this_run_made_stays(run: Path) -> None:
    keep(run)
    (run / NAME).write_bytes(b"made by this run")
    kept_payloads.carry_in(SOURCE)
    assert (run / NAME).read_bytes() == b"made by this run"


@pytest.mark.parametrize(
    "fault", ["cut off", "empty", "written by others", "another module", "other code", "no module"]
)
def test_anything_else_is_made_anew(run: Path, fault: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = keep(run)
    source: str | None = SOURCE
    if fault == "cut off":
        kept.write_bytes(kept.read_bytes()[:-1])
    elif fault == "empty":
        kept.write_bytes(b"")
    elif fault == "written by others":
        kept.chmod(0o666)
    elif fault == "another module":
        source = str(ROOT / "library" / "p2p_facts.py")
    elif fault == "other code":
        monkeypatch.setattr(kept_payloads, "find_tree", lambda: b"other")
    else:
        source = None
    new = next_run(tmp_path, monkeypatch)
    kept_payloads.carry_in(source)
    assert list(new.iterdir()) == []


def test_a_module_of_somebody_else_is_left_to_ansible(run: Path, tmp_path: Path) -> None:
    source = next((ROOT / ".venv").glob("*/lib/*/site-packages/ansible/modules/stat.py"), tmp_path / "stat.py")
    source.touch()
    (run / "ansible.modules.stat-ZIP_DEFLATED-none").write_bytes(b"made")
    (run / NAME).write_bytes(b"made")
    kept_payloads.carry_out(str(source))
    assert not os.path.exists(kept_payloads.KEPT)


def test_where_nothing_can_be_kept_nothing_is_said(run: Path, tmp_path: Path) -> None:
    (tmp_path / "kept").write_text("in the way")
    (run / NAME).write_bytes(b"made")
    kept_payloads.carry_out(SOURCE)
    kept_payloads.carry_in(SOURCE)


def test_ansible_makes_it_once_for_two_runs(tmp_path: Path) -> None:
    """On every release that we support: where one keeps what it makes elsewhere, this says so."""
    prefix = kept_payloads._find_prefix(SOURCE)
    for kept in Path(kept_payloads.KEPT).glob(prefix + "*"):
        kept.unlink()
    for seen in ("ANSIBALLZ: Creating module", "ANSIBALLZ: using cached module"):
        command = [str(Path(sys.executable).parent / "ansible"), "localhost", "-c", "local", "-m", "gpu_facts"]
        done = subprocess.run(
            [*command, "-i", "localhost,", "-a", "gather_subset=system"],
            cwd=ROOT,
            env={**os.environ, "ANSIBLE_DEBUG": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        output = done.stdout + done.stderr
        assert "SUCCESS" in output, output[-3000:]
        assert seen in output
    assert [path.name for path in Path(kept_payloads.KEPT).glob(prefix + "*.gpu_facts-*")]
