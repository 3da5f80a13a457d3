"""The stand-in for libnccl.so.2, compiled once for the tests, and what runs the real ranks on it."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path
from typing import Any

import probe_library
import pytest
from ansible.module_utils.gpu_host.probe import all_reduce

SOURCE = Path(__file__).resolve().parents[1] / "fixtures" / "libnccl" / "libnccl.c"
ADDRESSES = [probe_library.A, probe_library.B]
SMALL, LARGE = 4096, 128 * 1024
STEP_LIMIT_S = 1.5


def compiled(directory: Path, *flags: str) -> Path:
    """The directory that holds both stand-ins."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    probe_library.compiled(directory)
    always = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC", *flags)
    target = str(directory / "libnccl.so.2")
    subprocess.run([compiler, *always, "-o", target, str(SOURCE), "-ldl", "-lrt"], check=True)
    return directory


def run(
    library: Path,
    monkeypatch: pytest.MonkeyPatch,
    arms: tuple[str, ...] = ("configured", "p2p_disabled"),
    **steered: str,
) -> tuple[dict[str, Any], dict[str, Any]]:
    """(the raw result, its facts) of an all-reduce over the stand-in's first two GPUs."""
    monkeypatch.setattr(all_reduce, "STEP_LIMIT_S", STEP_LIMIT_S)
    monkeypatch.setattr(all_reduce, "ARMS", {name: all_reduce.ARMS[name] for name in arms})
    gpus = ADDRESSES[: int(steered.pop("gpus", "2"))]
    with probe_library.environment(LD_LIBRARY_PATH=str(library), **steered):
        raw = all_reduce.run_all_reduce(str(library / "libnccl.so.2"), gpus, {}, sizes=(SMALL, LARGE))
    monkeypatch.undo()
    return raw, all_reduce.summarise_all_reduce(raw, None)
