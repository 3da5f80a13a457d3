"""The services of an NVLink fabric of the fifth generation."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.nvidia import fabric_services
from ansible.module_utils.gpu_host.nvidia.driver_services import read_unit
from host_evidence import Host

RUNS = read_unit({"LoadState": "loaded", "ActiveState": "active", "SubState": "running", "Result": "success"})
FAILED = read_unit({"LoadState": "loaded", "ActiveState": "failed", "SubState": "failed", "Result": "exit-code"})
NOT_THERE = read_unit({"LoadState": "not-found", "ActiveState": "inactive", "SubState": "dead", "Result": "success"})
UNKNOWN = read_unit(None)
NVLSM = {"nvlsm": {"kind": "file"}}
IMEX = "Id=nvidia-imex.service\nLoadState=loaded\nActiveState=active\nSubState=running\nUnitFileState=enabled\n"


def gathered(host: Host, names: list[str] | None, modules: Any = (), manager: Any = RUNS) -> dict[str, Any]:
    return fabric_services.gather(host, Errors("driver"), names, modules, manager)


@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("NVIDIA B200", "board"),
        ("NVIDIA B300 SXM6 AC", "board"),
        ("NVIDIA GB200", "rack"),
        ("NVIDIA GB300", "rack"),
        ("NVIDIA H200", "none"),
        ("NVIDIA GeForce RTX 5090", "none"),
        ("NVIDIA RTX PRO 6000 Blackwell Server Edition", "none"),
        ("NVIDIA GB10", "none"),
    ],
)
def test_kinds(name: str, kind: str) -> None:
    assert fabric_services.classify_nvlink5([name, name]) == kind


def test_other_gpus_are_asked_nothing() -> None:
    assert gathered(Host(), ["NVIDIA H200"], None, UNKNOWN)["missing"] == []
    assert gathered(Host(), None)["missing"] is None


@pytest.mark.parametrize(
    ("manager", "nvlsm", "modules", "missing"),
    [
        (RUNS, NVLSM, ("ib_umad",), []),
        (RUNS, NVLSM, (), ["the module ib_umad is not loaded"]),
        (RUNS, {}, ("ib_umad",), ["the subnet manager nvlsm is not installed"]),
        (FAILED, NVLSM, ("ib_umad",), ["nvidia-fabricmanager is failed (failed), Result=exit-code"]),
        (NOT_THERE, NVLSM, ("ib_umad",), ["nvidia-fabricmanager is not installed (LoadState=not-found)"]),
        (UNKNOWN, NVLSM, ("ib_umad",), None),
        (RUNS, NVLSM, None, None),
        (UNKNOWN, {}, None, ["the subnet manager nvlsm is not installed"]),
    ],
)
def test_what_a_board_lacks(manager: Any, nvlsm: Any, modules: Any, missing: list[str] | None) -> None:
    host = Host().directory(fabric_services.NVLSM_DIRECTORY, nvlsm).directory("/sys/module", {})
    assert gathered(host, ["NVIDIA B200"], modules, manager)["missing"] == missing


def test_an_unread_directory_is_unknown() -> None:
    nothing = BundleEvidence({}, ())
    assert fabric_services.gather(nothing, Errors("driver"), ["NVIDIA B200"], ("ib_umad",), RUNS)["missing"] is None


def test_a_rack_runs_imex() -> None:
    host = Host().command(fabric_services.IMEX_COMMAND, IMEX)
    host.directory(fabric_services.IMEX_CHANNELS, {"channel0": {"kind": "char"}, "channel1": {"kind": "char"}})
    facts = gathered(host, ["NVIDIA GB200"])
    assert facts["imex"]["active"] is True and facts["imex_channels"] == 2 and facts["missing"] == []
    facts = gathered(Host().directory("/dev", {}), ["NVIDIA GB200"])
    assert facts["imex"]["active"] is None
