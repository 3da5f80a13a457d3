"""A run that is killed while a host is looked at: nothing of it stays on the host, and the next run works.

And a controller whose own disk is full or whose home cannot be written. docs/faults.md lists them.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))

from faulty_host import NO_DEVICES, PLAYBOOK, FaultyHost, is_clean, validate, wait_until

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("killed_runs")]
HEALTHY = ROOT / "tests" / "fixtures" / "hosts" / "bare-metal.jsonl.gz"
HANGS = "#!/bin/sh\nexec sleep 600\n"
SIGNALS = {"SIGKILL": signal.SIGKILL, "SIGTERM": signal.SIGTERM, "SIGINT": signal.SIGINT, "SIGHUP": signal.SIGHUP}


@pytest.fixture(scope="module")
def host(faulty_hosts: Callable[..., FaultyHost]) -> FaultyHost:
    """Its nvidia-smi does not answer, so that every run is in the middle of its facts."""
    return faulty_hosts("slow", smi=HANGS)


def begin(directory: Path, host: FaultyHost) -> subprocess.Popen[str]:
    variables = {host.name: host.describe_connection(), "recorded": {"gpu_host_bundle": str(HEALTHY)}}
    inventory = directory / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": variables}}))
    environment = dict(os.environ, ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8", ANSIBLE_HOME=str(directory / "home"))
    environment["GPU_HOST_REPORTS_DIR"] = str(directory / "reports")
    return subprocess.Popen(
        [PLAYBOOK, "-v", "validate.yml", "-i", str(inventory)], cwd=ROOT, env=environment, stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    )  # fmt: skip


def list_left(directory: Path) -> list[str]:
    """What still runs on the controller of the run in `directory`; ssh's shared connection may stay by design."""
    found = []
    for path in Path("/proc").glob("[0-9]*/environ"):
        try:
            if str(directory).encode() in path.read_bytes():
                words = path.with_name("cmdline").read_bytes().replace(b"\0", b" ").decode()
                found += [words] if words and "[mux]" not in words else []
        except OSError:
            continue
    return found


@pytest.mark.parametrize("name", SIGNALS)
def test_nothing_is_left_behind(host: FaultyHost, tmp_path: Path, name: str) -> None:
    assert is_clean(host)
    lines: list[str] = []
    with begin(tmp_path, host) as run:
        assert run.stdout
        for line in run.stdout:
            lines.append(line)
            if "[recorded] ready" in line:
                break
        assert wait_until(lambda: "sleep 600" in host.list_processes(), 60), "".join(lines)
        os.kill(run.pid, SIGNALS[name])  # it alone: its workers and their connections have to follow
        rest = ""
        if name != "SIGKILL":  # whose workers keep the pipe for a moment
            rest, _none = run.communicate(timeout=60)
        run.wait(60)
    assert run.returncode not in (0, 2), "no exit status of a verdict"
    assert wait_until(lambda: is_clean(host)), host.list_processes()
    assert wait_until(lambda: not list_left(tmp_path)), list_left(tmp_path)
    reports = sorted(path.name for path in (tmp_path / "reports").iterdir())
    if name == "SIGKILL":
        assert reports == [".in-use"]
        return
    said = " ".join(("".join(lines) + rest).split())
    assert "THE RUN WAS INTERRUPTED: this is what was known by then." in said and "Traceback" not in said
    report: dict[str, Any] = json.loads((tmp_path / "reports/report.json").read_text())
    assert report["ready"] is False and report["run"]["complete"] is False
    assert {key: row["state"] for key, row in report["hosts"].items()} == {"recorded": "ready", "slow": "not_validated"}
    assert [path for path in reports if path.startswith(".")] == [".in-use"], "no half-written file"


def test_the_next_run_works(host: FaultyHost, tmp_path: Path) -> None:
    host.write("/usr/bin/nvidia-smi", NO_DEVICES)
    run = validate(tmp_path, [host], "--tags", "driver")
    assert run.rc == 0 and run.report["ready"] is True, run.text


CONTROLLERS = {
    "reports-disk-full": (
        "mkdir reports; mount -t tmpfs -o size=64k tmpfs reports",
        1,
        "reports/report.json cannot be written: No space left on device",
    ),
    "home-read-only": ("mkdir home; mount -t tmpfs -o ro tmpfs home; export HOME=$PWD/home", 0, "The host is ready."),
    "tmp-full": ("mount -t tmpfs -o size=64k tmpfs /tmp; cat /dev/zero > /tmp/fill", 0, "The host is ready."),
}


@pytest.mark.parametrize("name", CONTROLLERS)
def test_a_controller_in_trouble(tmp_path_factory: pytest.TempPathFactory, name: str) -> None:
    prepare, status, says = CONTROLLERS[name]
    work = Path("/var/tmp") / tmp_path_factory.mktemp(name).name  # /tmp is taken away
    work.mkdir()
    try:
        script = "cd %s; { %s; } 2>/dev/null; cd %s; %s validate.yml -i bare-metal, -e gpu_host_bundle=%s; status=$?; "
        script += "ls -A %s/reports; exit $status"
        environment = dict(os.environ, ANSIBLE_NOCOLOR="1", GPU_HOST_REPORTS_DIR=str(work / "reports"))
        environment["ANSIBLE_HOME"] = str(work / "ansible")  # what docs/faults.md says to set where a home is read-only
        ran = subprocess.run(
            ["unshare", "--mount", "sh", "-c", script % (work, prepare, ROOT, PLAYBOOK, HEALTHY, work)],
            env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False, timeout=120,
        )  # fmt: skip
        said = " ".join((ran.stdout + ran.stderr).split())
        assert (ran.returncode, says in said, "Traceback" in said) == (status, True, False), said[-2000:]
        assert ".report" not in said, "no half-written file"
    finally:
        subprocess.run(["rm", "-rf", str(work)], check=True)
