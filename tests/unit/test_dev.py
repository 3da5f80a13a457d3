"""scripts/dev.py: the exit status of the example fleet, and what each tier hands to pytest."""

from __future__ import annotations

import importlib.util
import json
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
spec = importlib.util.spec_from_file_location("dev", ROOT / "scripts" / "dev.py")
assert spec and spec.loader
dev = importlib.util.module_from_spec(spec)
spec.loader.exec_module(dev)


def report(failed: dict[str, set[str]]) -> dict[str, Any]:
    """A report in which these checks fail, and one that decides passes everywhere, beside a warning."""
    names = {"gpus_found", "gpu_persistence_on", *(check for checks in failed.values() for check in checks)}
    severities = {name: {"severity": "warning" if name == "gpu_persistence_on" else "error"} for name in names}
    hosts = {
        host: {
            "results": [
                {"id": "gpus_found", "status": "pass"},
                {"id": "gpu_persistence_on", "status": "fail"},
                *({"id": check, "status": "fail"} for check in checks),
            ]
        }
        for host, checks in failed.items()
    }
    return {"checks": severities, "hosts": hosts}


@pytest.fixture
def example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`example(status, report)` is the exit status of `make validate` where ansible-playbook ends so."""
    monkeypatch.setenv("GPU_HOST_REPORTS_DIR", str(tmp_path))

    def run(status: int, found: dict[str, Any] | None) -> int:
        def playbook(_environment: Path, command: list[str]) -> int:
            assert command == ["ansible-playbook", "validate.yml"]
            if found is not None:
                (tmp_path / "report.json").write_text(json.dumps(found))
            return status

        monkeypatch.setattr(dev, "run_in", playbook)
        return int(dev.show_example(tmp_path))

    return run


def test_the_expected_verdict_is_a_success(example: Any, capsys: pytest.CaptureFixture[str]) -> None:
    assert example(2, report(dev.EXAMPLE)) == 0
    assert "llm-vm, fails on purpose" in capsys.readouterr().out


@pytest.mark.parametrize(
    ("status", "changed"),
    [
        (0, {"llm-vm": set()}),  # it should fail and does not
        (2, {"llm-vm": {"p2p_granted"}}),  # it fails for another reason
        (2, {"pve1": {"gpus_found_twice"}}),  # another host fails too
        (0, {}),  # the run says ready, the report does not
    ],
)
def test_another_verdict_is_a_failure(example: Any, status: int, changed: dict[str, set[str]]) -> None:
    assert example(status, report({**dev.EXAMPLE, **changed})) != 0


def test_a_report_of_an_earlier_run_does_not_count(example: Any, tmp_path: Path) -> None:
    path = tmp_path / "report.json"
    path.write_text(json.dumps(report(dev.EXAMPLE)))
    os.utime(path, (1e9, 1e9))
    assert example(2, None) == 2
    assert example(0, None) == 1


def test_a_host_that_was_not_validated_is_no_success(example: Any) -> None:
    found = report(dev.EXAMPLE)
    found["hosts"]["pve1"]["results"] = []
    assert example(2, found) == 2


@pytest.mark.parametrize("status", [0, 2, 4])
def test_a_fleet_of_one_s_own_has_its_own_exit_status(example: Any, status: int) -> None:
    assert example(status, report({"gpu1": set()})) == status


def test_a_tier_is_chosen_unless_files_are_named() -> None:
    assert dev.tier_arguments("fast", []) == ["-n", "3", "--dist", "loadgroup", "--tier", "fast"]
    assert dev.tier_arguments("fast", ["tests/vm"]) == ["tests/vm"]
    assert dev.tier_arguments("all", ["tests/unit/test_dev.py::test_x", "-q"]) == [
        "tests/unit/test_dev.py::test_x",
        "-q",
    ]
    assert dev.tier_arguments("all", ["-q", "-n", "2", "--tier", "rest"]) == ["-q", "-n", "2", "--tier", "rest"]
    assert dev.tier_arguments("all", ["--durations", "5"])[-4:] == ["--tier", "all", "--durations", "5"]


def test_packages_bring_no_service_that_starts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Prometheus would listen on all addresses, now and after the next boot."""
    policy, commands = tmp_path / "policy-rc.d", []

    def run(command: list[str], **_more: Any) -> Any:
        commands.append((command, policy.read_text() if policy.exists() else ""))
        shown = "/usr/bin/prometheus\n/lib/systemd/system/prometheus.service\n" if command[0] == "dpkg" else ""
        return SimpleNamespace(returncode=0, stdout=shown)

    monkeypatch.setattr(dev, "POLICY", policy)
    monkeypatch.setattr(dev.subprocess, "run", run)
    monkeypatch.setattr(dev.shutil, "which", lambda name: "/usr/bin/" + name)
    monkeypatch.setattr(dev.os, "geteuid", lambda: 0)
    dev.install_system_packages()
    held = [text for command, text in commands if command[:2] == ["apt-get", "install"]]
    assert held == ["#!/bin/sh\nexit 101\n"] and not policy.exists()
    assert commands[-1][0] == ["systemctl", "disable", "--quiet", "prometheus.service"]
    policy.write_text("of the machine")
    dev.install_system_packages()
    assert policy.read_text() == "of the machine"
