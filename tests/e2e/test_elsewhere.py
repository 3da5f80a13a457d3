"""docs/running-it-elsewhere.md: each of its commands is run as it stands there, with paths and hosts of the test."""

from __future__ import annotations

import json
import os
import re
import shlex
import subprocess
import sys
import venv
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
PAGE = (ROOT / "docs" / "running-it-elsewhere.md").read_text()
BUNDLE = ROOT / "tests" / "fixtures" / "hosts"
BIN = Path(sys.executable).parent
SCRIPT = ROOT / "scripts" / "validate_on_workers.py"
# Command, by a part of it -> the test that runs it.
TRIED = {
    "validate_on_workers.py": "test_spread_over_workers",
    "merge_reports.py": "tests/unit/test_merging.py::test_the_command",
    "ansible-runner run": "test_by_ansible_runner",
    "ansible-runner transmit": "test_by_ansible_runner",
    "ansible-builder": "test_the_execution_environment",
    "scheduled_validation.yml": "tests/roles/test_scheduled_validation.py::test_a_run_that_is_started_by_hand",
}


def find_block(part: str, language: str = "console") -> str:
    [found] = [block for block in re.findall(r"```%s\n(.*?)```" % language, PAGE, re.S) if part in block]
    return str(found)


def write_inventory(path: Path, **hosts: str) -> dict[str, Any]:
    """Recorded hosts, and the host that is on the same machine as `vm`."""
    rows: dict[str, Any] = {
        name: {"gpu_host_bundle": str(BUNDLE / (file + ".jsonl.gz"))} for name, file in hosts.items()
    }
    if "pve" in rows:
        rows["vm"].update(proxmox_host="pve", proxmox_vmid=101)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(yaml.safe_dump({"all": {"hosts": rows}}))
    return rows


def run(command: str, cwd: Path, rc: int = 0, **settings: str) -> str:
    """A shell command of the page; `set -o pipefail`, so that no part of a pipe may fail."""
    environment = {**os.environ, "PATH": "%s:%s" % (BIN, os.environ["PATH"]), "NO_COLOR": "1", **settings}
    environment |= {"ANSIBLE_HOME": str(cwd / "home"), "LC_ALL": "C.UTF-8"}
    done = subprocess.run(
        ["bash", "-eo", "pipefail", "-c", command],
        cwd=cwd,
        env=environment,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == rc, done.stdout + done.stderr
    return done.stdout + done.stderr


def read_report(directory: Path) -> dict[str, Any]:
    return dict(json.loads((directory / "report.json").read_text()))


def test_every_command_of_the_page_is_run() -> None:
    blocks = re.findall(r"```console\n(.*?)```", PAGE, re.S)
    assert len(blocks) == len(TRIED)
    for part, where in TRIED.items():
        assert find_block(part)
        file, _colons, name = where.rpartition("::")
        assert "def %s(" % name in ((ROOT / file) if file else Path(__file__)).read_text()


@pytest.mark.slow
def test_spread_over_workers(tmp_path: Path) -> None:
    """Two that work, each with a part of the hosts of one kind, and one that cannot be reached."""
    write_inventory(tmp_path / "inventory" / "hosts.yml", a="h200-x2", b="h200-x2", c="h200-x2")
    command = find_block("validate_on_workers.py").strip()
    command = command.replace("scripts/", str(ROOT / "scripts") + "/").replace(
        "'ssh node1 ansible-runner worker'", "'ansible-runner worker'"
    )
    command = command.replace(
        "'ssh node2 ansible-runner worker'", "'ansible-runner worker' --worker 'sh -c \"echo no route >&2; exit 255\"'"
    )
    command = command.replace(" -- -b ", " --reports-dir reports -- ")
    said = run(command, tmp_path, rc=2)
    report = read_report(tmp_path / "reports")
    states = {name: host["state"] for name, host in report["hosts"].items()}
    assert states == {"a": "ready", "b": "ready", "c": "not_validated"} and report["ready"] is False
    lost = 'worker 3 (sh -c "echo no route >&2; exit 255"): it ended with exit status 255: no route'
    assert report["hosts"]["c"]["message"] == "not looked at: " + lost
    assert "THE REPORT IS NOT WHOLE. There is no report of " + lost in " ".join(said.split())
    assert report["alike"]["kinds"][0]["hosts"] == ["a", "b"], "compared over the workers"
    assert [part["problem"] == "" for part in report["run"]["parts"]] == [True, True, False]
    assert len(report["hosts"]["a"]["results"]) > 100 and (tmp_path / "reports" / "report.html").exists()


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["-l", "nobody"], "Nothing was started."),
        (["--", "-e", "gpu_host_pattern=x"], "use -l before the --"),
    ],
)
def test_what_cannot_be_spread(tmp_path: Path, words: list[str], said: str) -> None:
    write_inventory(tmp_path / "hosts.yml", a="h200-x2")
    command = shlex.join([sys.executable, str(SCRIPT), "-i", "hosts.yml", "--worker", "false", *words])
    assert said in run(command, tmp_path, rc=2 if "gpu_host_pattern" in command else 1)


@pytest.mark.long
@pytest.mark.slow
def test_the_merged_report_is_that_of_one_run(tmp_path: Path) -> None:
    fleet = tmp_path / "fleet" / "hosts.yml"
    write_inventory(
        fleet, a="h200-x2", b="h200-x2", vm="kvm-story", pve="pve-story", ct="lxc-story", metal="bare-metal"
    )
    save = "-e gpu_host_baseline=save"
    run("ansible-playbook validate.yml -i %s -e gpu_host_baseline_dir=%s %s" % (fleet, tmp_path / "kept1", save), ROOT,
        rc=2, GPU_HOST_REPORTS_DIR=str(tmp_path / "one"))  # fmt: skip
    workers = "--worker 'ansible-runner worker' --worker 'ansible-runner worker' --baselines-dir kept2"
    run("python %s -i %s %s --reports-dir many -- %s" % (SCRIPT, fleet, workers, save), tmp_path, rc=2)
    one, many = read_report(tmp_path / "one"), read_report(tmp_path / "many")
    for report in (one, many):
        del report["run"]
        for host in report["hosts"].values():
            del host["facts"]["evidence"]["seconds"]
            if "drift" in host:
                del host["drift"]["path"], host["drift"]["saving"]
    assert one["hosts"] == many["hosts"]
    assert {**one, "checks": sorted(one["checks"])} == {**many, "checks": sorted(many["checks"])}
    kept = [sorted(path.name for path in (tmp_path / name).iterdir()) for name in ("kept1", "kept2")]
    assert kept[0] == kept[1] and "a.json" in kept[0]


@pytest.mark.long
@pytest.mark.slow
def test_a_worker_that_dies_in_the_middle_and_one_that_never_ends(tmp_path: Path) -> None:
    write_inventory(tmp_path / "hosts.yml", a="h200-x2", b="h200-x2")
    script = "python %s -i hosts.yml --reports-dir reports --timeout 60" % SCRIPT
    dying = 'sh -c "ansible-runner worker | head -c 3000"'
    said = run("%s --worker '%s' --worker 'sleep 3600'" % (script, dying), tmp_path, rc=2)
    report = read_report(tmp_path / "reports")
    assert {host["state"] for host in report["hosts"].values()} == {"not_validated"}
    assert (
        "it did not end within 60 s" in report["hosts"]["b"]["message"]
        and "worker 1" in report["hosts"]["a"]["message"]
    )
    assert "Traceback" not in said


@pytest.mark.long
@pytest.mark.slow
def test_by_ansible_runner(tmp_path: Path) -> None:
    write_inventory(tmp_path / "fleet.yml", good="h200-x2")
    run(find_block("ansible-runner run").replace("/opt/gpu-host-validation", str(ROOT)), tmp_path)
    artifacts = tmp_path / "runner" / "artifacts" / "nightly"
    assert read_report(artifacts / "reports")["ready"] is True and (artifacts / "rc").read_text() == "0"
    assert "The host is ready." in (artifacts / "stdout").read_text()

    write_inventory(tmp_path / "runner" / "inventory" / "hosts.yml", good="h200-x2", bad="kvm-story")
    # What a survey of AWX hands over: strings.
    survey = json.loads((ROOT / "awx" / "survey.json").read_text())["spec"]
    answers = {question["variable"]: question["default"] for question in survey if question["default"]}
    (tmp_path / "runner" / "env" / "extravars").write_text(json.dumps(answers))
    run("rm -r runner/artifacts; " + find_block("ansible-runner transmit").replace("ssh node1 ", ""), tmp_path, rc=2)
    assert {name: host["state"] for name, host in read_report(artifacts / "reports")["hosts"].items()} == {
        "bad": "not_ready", "good": "ready",
    }  # fmt: skip
    assert (artifacts / "status").exists()

    program = find_block("ansible_runner", "python")
    done = subprocess.run([sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.stdout == "failed 2\n", done.stdout + done.stderr


@pytest.mark.long
@pytest.mark.slow
def test_the_execution_environment(tmp_path: Path) -> None:
    """ansible-builder's own schema takes the definition, and our versions reach the image. Needs a package index."""
    venv.create(tmp_path / "venv", with_pip=True)
    pip = [str(tmp_path / "venv" / "bin" / "pip"), "install", "--quiet", "ansible-builder>=3,<4"]
    installed = subprocess.run(pip, capture_output=True, text=True, check=False)
    if installed.returncode:
        pytest.skip("ansible-builder cannot be installed: %s" % installed.stderr.strip()[-300:])
    command = find_block("ansible-builder").replace("--context build", "--context %s" % (tmp_path / "build"))
    run("PATH=%s:$PATH; " % (tmp_path / "venv" / "bin") + command, ROOT)
    [made] = [path for path in (tmp_path / "build").iterdir() if path.name in ("Containerfile", "Dockerfile")]
    lines = made.read_text().splitlines()
    installs = next(number for number, line in enumerate(lines) if "pip install" in line)
    assert lines.index("ENV PIP_CONSTRAINT=/constraints.txt") < installs, "before anything is installed"
    pins = (tmp_path / "build" / "_build" / "configs" / "constraints.txt").read_text()
    assert pins == (ROOT / "constraints.txt").read_text()
