"""The stand-in for libcuda.so.1, compiled once for the tests that run the real worker on it."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host import gpus, p2p_probe, topology
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import Outcome
from ansible.module_utils.gpu_host.probe.worker_run import Probe, ProbeEvidence

SOURCE = Path(__file__).resolve().parents[1] / "fixtures" / "libcuda" / "libcuda.c"
A, B, C = "0000:01:00.0", "0000:11:00.0", "0000:21:00.0"  # the stand-in's first three GPUs
AB, BA = "%s->%s" % (A, B), "%s->%s" % (B, A)
IDLE = {
    gpus.INDEX: "index, pci.bus_id\n0, 00000000:01:00.0\n1, 00000000:11:00.0\n2, 00000000:21:00.0\n",
    topology.MATRIX: "\tGPU0\tGPU1\tGPU2\nGPU0\tX\tPHB\tPHB\nGPU1\tPHB\tX\tPHB\nGPU2\tPHB\tPHB\tX\n",
    p2p_probe.APPS_COMMAND: "",
    p2p_probe.GPUS_COMMAND: "00000000:01:00.0, 4, 0, Disabled\n00000000:11:00.0, 4, 0, Disabled\n",
}


def compiled(directory: Path) -> Path:
    """The directory that holds the compiled library."""
    compiler = shutil.which("gcc") or shutil.which("cc")
    if compiler is None:
        pytest.skip("no C compiler")
    flags = ("-O2", "-Wall", "-Wextra", "-Werror", "-shared", "-fPIC")
    subprocess.run([compiler, *flags, "-o", str(directory / "libcuda.so.1"), str(SOURCE), "-lpthread"], check=True)
    (directory / "libnvidia-ml.so.1").symlink_to("libcuda.so.1")  # one library in the process, with one memory
    return directory


@contextmanager
def environment(**variables: str) -> Iterator[None]:
    before = dict(os.environ)
    os.environ.update(variables)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Host(ProbeEvidence):
    """A live host whose nvidia-smi says what the test wants, and whose libcuda is the stand-in."""

    def __init__(
        self, library: Path, answers: dict[tuple[str, ...], str] | None = None, limit_s: float = 60, **steered: str
    ) -> None:
        super().__init__({"buffer_mib": 1, "init_limit_s": 30}, limit_s)
        self._variables = {"LD_LIBRARY_PATH": str(library), **steered}
        self._answers = IDLE if answers is None else answers

    def run(self, argv: Any, timeout: float = 30.0) -> Outcome:
        if tuple(argv) in self.commands:
            with environment(**self._variables):
                return super().run(argv, timeout)
        said = self._answers.get(tuple(argv))
        return (
            Outcome(tuple(argv), "absent") if said is None else Outcome(tuple(argv), "ok", rc=0, stdout=said.encode())
        )

    def facts(self, **params: Any) -> dict[str, Any]:
        return p2p_probe.gather(
            self, {"when_busy": "skip", "collective": "false", **params}, Errors("probe"), self.only_initialise
        )


def run_probe(
    library: Path, limit_s: float = 60, options: dict[str, Any] | None = None, **steered: str
) -> dict[str, Any]:
    """The raw result of one probe on the stand-in."""
    with environment(LD_LIBRARY_PATH=str(library), **steered):
        return Probe({"buffer_mib": 1, "init_limit_s": 30, **(options or {})}, limit_s).run()
