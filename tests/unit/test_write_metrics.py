"""library/write_metrics.py: the file is there whole or not at all, for everybody to read."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest
import write_metrics  # type: ignore[import-not-found]
from ansible.module_utils.testing import patch_module_args

TEXT = "# HELP a_info Always 1.\n# TYPE a_info gauge\na_info 1\n"


def run(capsys: pytest.CaptureFixture[str], path: Path, check_mode: bool = False) -> dict[str, Any]:
    arguments = {"path": str(path), "content": TEXT, "_ansible_check_mode": check_mode}
    with patch_module_args(arguments), pytest.raises(SystemExit):
        write_metrics.main()
    answer: dict[str, Any] = json.loads(capsys.readouterr().out)
    return answer


def test_the_file_is_whole_and_for_everybody(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    path = tmp_path / "gpu.prom"
    before = os.umask(0o077)
    try:
        assert run(capsys, path)["changed"] is True
    finally:
        os.umask(before)
    assert path.read_text() == TEXT and path.stat().st_mode & 0o777 == 0o644
    assert [one.name for one in tmp_path.iterdir()] == ["gpu.prom"]


def test_check_mode_writes_nothing_and_still_sees_what_is_wrong(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    assert run(capsys, tmp_path / "gpu.prom", check_mode=True)["changed"] is True
    assert list(tmp_path.iterdir()) == []
    assert run(capsys, tmp_path / "none" / "gpu.prom", check_mode=True)["failed"] is True


def test_a_directory_that_is_not_there_is_named_and_not_made(
    capsys: pytest.CaptureFixture[str], tmp_path: Path
) -> None:
    answer = run(capsys, tmp_path / "none" / "gpu.prom")
    assert answer["failed"] and str(tmp_path / "none" / "gpu.prom") in answer["msg"] and "is not there" in answer["msg"]
    assert list(tmp_path.iterdir()) == []


def test_the_file_of_before_stays_where_writing_fails(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "gpu.prom"
    path.write_text("of before\n")
    seen: list[list[str]] = []

    def full(_descriptor: int) -> None:
        seen.append(sorted(one.name for one in tmp_path.iterdir()))
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(write_metrics.os, "fsync", full)
    answer = run(capsys, path)
    assert answer["failed"] and "No space left on device" in answer["msg"]
    assert path.read_text() == "of before\n" and [one.name for one in tmp_path.iterdir()] == ["gpu.prom"]
    # node_exporter reads every file whose name ends with .prom, also one that is not whole yet
    assert len(seen[0]) == 2 and [name for name in seen[0] if name.endswith(".prom")] == ["gpu.prom"]


def test_what_stands_in_the_way_is_no_traceback(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    (tmp_path / "gpu.prom").mkdir()
    assert "cannot be written" in run(capsys, tmp_path / "gpu.prom")["msg"]
    (tmp_path / "file").write_text("")
    assert "cannot be written" in run(capsys, tmp_path / "file" / "gpu.prom")["msg"]
