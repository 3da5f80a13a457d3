"""Which part of which log is read: the unit's journal, the file that a process writes to, across rotations, in bounded
size."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server import units
from ansible.module_utils.gpu_server.engines import ENGINES
from ansible.module_utils.gpu_server.log import log_reader, log_source

START = (
    "[2026-04-09 22:13:40] server_args=ServerArgs(model_path='x')\n[2026-04-09 22:13:56 TP0] sglang is using "
    "nccl==2.28.9\n"
)
READY = "[2026-04-09 22:20:41] The server is fired up and ready to roll!\n"
DECODE = (
    "[2026-04-09 23:00:00 TP0] Decode batch, #running-req: 1, #token: 9, token usage: 0.00, cuda graph: True, "
    "gen throughput (token/s): 9.00, #queue-req: 0\n"
)
NOW = 1775780000.0


def read(path: Path) -> dict[str, Any]:
    errors = Errors("server")
    found = log_source.read(LiveEvidence(), None, str(path), ENGINES["sglang"], errors)
    return {**found, "errors": errors.entries}


def test_a_file_is_read_whole(tmp_path: Path) -> None:
    path = tmp_path / "server.log"
    path.write_text(START + READY)
    found = read(path)
    assert (found["text"], found["gap"], found["rotated"], found["errors"]) == (START + READY, False, False, [])


def test_a_start_that_was_rotated_away_is_found(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(DECODE)
    (tmp_path / "server.log.1").write_text(START + READY)
    found = read(tmp_path / "server.log")
    assert found["rotated"] is True
    log = log_reader.read(found["text"], NOW)
    assert (log["ready"], log["decode"]["running"]) == (True, 1)


def test_a_rotated_file_without_a_start_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / "server.log").write_text(DECODE)
    (tmp_path / "server.log.1").write_text("nothing of a server\n")
    assert read(tmp_path / "server.log")["text"] == DECODE


def test_of_a_long_file_the_last_start_and_the_end_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log_source, "PART_BYTES", 65536)
    path = tmp_path / "server.log"
    filler = DECODE * 3000
    failed = (
        "[2026-04-09 20:00:00] server_args=ServerArgs(model_path='old')\n[2026-04-09 20:00:09 TP0] "
        "torch.OutOfMemoryError: CUDA out of memory.\n"
    )
    path.write_text(filler + failed + START + READY + filler + DECODE.replace("9.00", "42.50"))
    found = read(path)
    assert found["gap"] is True
    assert len(found["text"]) < 3 * 65536
    log = log_reader.read(found["text"], NOW)
    assert (log["ready"], log["fatal"], log["decode"]["tokens_per_s"]) == (True, None, 42.5)


def test_a_file_that_is_not_there_is_an_error_and_no_log(tmp_path: Path) -> None:
    found = read(tmp_path / "missing.log")
    assert found["text"] is None
    assert "missing.log" in found["errors"][0]["source"]


def unit(**other: Any) -> dict[str, Any]:
    return {"name": "sglang.service", "loaded": True, "output": "journal", "invocation": "ab12", **other}


def test_the_journal_is_asked_for_the_last_start_of_the_unit() -> None:
    text = "".join(
        "1775773%03d.000000 gpu1 python3[400]: %s\n" % (number, line)
        for number, line in enumerate((START + READY).splitlines())
    )
    records = [
        {"run": list(log_source.journal_command("sglang.service", "ab12")), "status": "ok", "rc": 0, "stdout": text}
    ]
    errors = Errors("server")
    found = log_source.read(BundleEvidence({}, records), unit(), None, ENGINES["sglang"], errors)
    log = log_reader.read(found["text"], NOW)
    assert (found["kind"], log["phase"], log["ready_at"], errors.entries) == ("journal", "ready", 1775773002.0, [])


def test_a_journal_that_may_not_be_read_is_said() -> None:
    command = list(log_source.journal_command("sglang.service", "ab12"))
    records = [
        {
            "run": command,
            "status": "ok",
            "rc": 1,
            "stdout": "",
            "stderr": "No journal files were opened due to insufficient permissions.\n",
        }
    ]
    errors = Errors("server")
    assert log_source.read(BundleEvidence({}, records), unit(), None, ENGINES["sglang"], errors)["text"] is None
    assert "insufficient permissions" in errors.entries[0]["problem"]


def test_the_path_of_an_appended_log_is_taken_from_the_units_files() -> None:
    shown = "Id=sglang.service\nLoadState=loaded\nStandardOutput=append\nStandardError=append\nFragmentPath=/a.service\nDropInPaths=/b.conf\n"
    records = [
        {"run": list(units.show_command("sglang.service")), "status": "ok", "rc": 0, "stdout": shown},
        {"read": "/a.service", "status": "ok", "text": "[Service]\nStandardOutput=append:/var/log/a.log\n"},
        {"read": "/b.conf", "status": "ok", "text": "[Service]\nStandardError=append:/var/log/b b.log \n"},
    ]
    found = units.read(BundleEvidence({}, records), "sglang.service", Errors("server"))
    assert found is not None
    assert found["output"] == "append:/var/log/b b.log"
