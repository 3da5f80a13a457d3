"""provision.yml on real systemd hosts: the whole plan shown, done once, nothing left to do.

A fleet stops at the host that comes out worse.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HOSTS = ROOT / "tests" / "hosts"
sys.path.insert(0, str(HOSTS))
pytestmark = [pytest.mark.hosts, pytest.mark.xdist_group("hosts")]
Ansible = Callable[..., subprocess.CompletedProcess[str]]


def tool(*words: str) -> str:
    done = subprocess.run(
        [sys.executable, str(HOSTS / "make_hosts.py"), *words], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    reason = tool("why-not").strip()
    if reason:
        pytest.skip(reason)
    import repository

    return repository.build(tmp_path_factory.mktemp("packages") / "nvidia")


@pytest.fixture
def ansible(tmp_path: Path, packages: Path) -> Iterator[Ansible]:
    """`ansible("provision.yml", "e2e-a=bookworm", …, arguments=[…], **variables)`.

    It boots what is named and not there yet, runs, returns.
    """
    names: list[str] = []
    inventory = tmp_path / "hosts.yml"

    def run(
        playbook: str, *pairs: str, arguments: tuple[str, ...] = (), **variables: Any
    ) -> subprocess.CompletedProcess[str]:
        if pairs:
            names.extend(pair.partition("=")[0] for pair in pairs)
            inventory.write_text(tool("up", *pairs, "--bind-ro=%s:/srv/nvidia" % packages))
            shell("rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*")
        own = {"uris": "file:/srv/nvidia/repo", "suites": "/", "key_url": "file:/srv/nvidia/key.asc"}
        own["fingerprints"] = [(packages / "fingerprint").read_text().strip()]  # type: ignore[assignment]
        given = {
            "nvidia_driver_mode": "full",
            "nvidia_driver_repository": own,
            "provision_reports": str(tmp_path),
            **variables,
        }
        return command("ansible-playbook", playbook, *arguments, "-e", json.dumps(given))

    def command(program: str, *words: str) -> subprocess.CompletedProcess[str]:
        environment = dict(
            os.environ,
            ANSIBLE_CONFIG=str(ROOT / "ansible.cfg"),
            GPU_HOST_REPORTS_DIR=str(tmp_path),
            ANSIBLE_NOCOLOR="1",
        )
        argv = [str(Path(sys.executable).parent / program), "-i", str(inventory), *words]
        return subprocess.run(argv, cwd=ROOT, env=environment, capture_output=True, text=True, check=False)

    def shell(text: str, host: str = "all") -> str:
        done = command("ansible", host, "-m", "ansible.builtin.shell", "-a", text)
        assert done.returncode == 0, done.stdout + done.stderr
        return done.stdout

    run.shell = shell  # type: ignore[attr-defined]
    yield run
    if names:
        tool("down", *names)


def changed(done: subprocess.CompletedProcess[str]) -> list[str]:
    """The tasks that changed something."""
    task, found = "", []
    for line in done.stdout.splitlines():
        task = line if line.startswith("TASK") else task
        found += [task] if line.startswith("changed:") else []
    return found


def results(tmp_path: Path, host: str) -> dict[str, dict[str, Any]]:
    report = json.loads((tmp_path / "report.json").read_text())
    return {result["id"]: result for result in report["hosts"][host]["results"]}


def test_from_a_bare_host_to_nothing_left_to_do(ansible: Any, tmp_path: Path) -> None:
    before = "find /etc/apt /etc/modprobe.d -type f -exec sha256sum {} + | sort | sha256sum; dpkg-query -W | sha256sum"
    plan = ansible("provision.yml", "e2e-prov=trixie", arguments=("--check", "--diff"), cuda_toolkit_versions=["12.8"])
    picture = ansible.shell(before)
    told = (
        "driver none -> 580.95.05",
        "+URIs: file:/srv/nvidia/repo",
        "+Pin: version 580.*",
        "+blacklist nouveau",
        "install cuda-toolkit-12-8 12.8.0-1",
        "install nvidia-driver-cuda 580.95.05-1",
    )
    for words in told:
        assert words in plan.stdout, words
    assert ansible.shell(before) == picture, "check mode changed the host"

    done = ansible("provision.yml", cuda_toolkit_versions=["12.8"])
    # No GPU in such a host: provisioning works, and the validation at its end says what is missing, so the run is not a
    # success.
    assert done.returncode == 2 and changed(done), done.stdout + done.stderr
    assert "came out worse than it went in:" not in done.stdout
    assert results(tmp_path, "e2e-prov")["gpus_found"]["status"] == "fail"
    assert results(tmp_path, "e2e-prov")["driver_packages_held"]["status"] in ("pass", "skip")
    baseline = json.loads((tmp_path / "baseline-e2e-prov.json").read_text())
    assert baseline["host"] == "e2e-prov" and baseline["facts"]["driver"]["packaging"]["packages"] == []
    assert "cuda-12.8" in ansible.shell("ls /usr/local; apt-mark showhold")

    again = ansible("provision.yml", cuda_toolkit_versions=["12.8"])
    assert changed(again) == [], again.stdout


@pytest.mark.long
def test_a_fleet_stops_at_the_host_that_comes_out_worse(ansible: Any, tmp_path: Path) -> None:
    checks = tmp_path / "checks"
    checks.mkdir()
    # A check of the test's own that the change itself breaks.
    (checks / "own.yml").write_text("""---
- id: no_toolkit
  title: No toolkit is installed
  why: A test.
  severity: error
  tags: [driver]
  that: [host.driver.toolkits | length == 0]
  found: "{{ host.driver.toolkits | length }} toolkits"
  remedy: [{on: host, text: Remove it., commands: [apt-get remove], verify: ls /usr/local}]
""")
    done = ansible(
        "provision.yml",
        "e2e-one=bookworm",
        "e2e-two=bookworm",
        cuda_toolkit_versions=["12.8"],
        host_validation_checks_dir=str(checks),
    )
    assert done.returncode == 2, done.stdout
    assert (
        "e2e-one came out worse than it went in: no_toolkit. The hosts that would follow were left alone"
        in " ".join(done.stdout.split())
    )
    assert "cuda-12.8" in ansible.shell("ls /usr/local", "e2e-one")
    assert "cuda" not in ansible.shell("ls /usr/local", "e2e-two").replace("e2e-two", "")


@pytest.mark.long
def test_debian_s_own_user_space_and_what_the_validation_says_of_it(ansible: Any, tmp_path: Path) -> None:
    import apt_proxy

    tool_output = tool("up", "e2e-debian=trixie")
    (tmp_path / "hosts.yml").write_text(tool_output)
    try:
        with apt_proxy.running() as proxy:
            ansible.shell("echo 'Acquire::http::Proxy \"%s\";' > /etc/apt/apt.conf.d/proxy" % proxy)
            done = ansible(
                "provision.yml",
                nvidia_driver_mode="userspace",
                nvidia_driver_source="distribution",
                nvidia_driver_version="550",
                nvidia_driver_repository={},
            )
        assert "came out worse than it went in:" not in done.stdout, done.stdout
        held = ansible.shell(
            "apt-mark showhold; dpkg-query -W nvidia-smi; nvidia-smi || true; ls /var/lib/dpkg/info | grep -c dkms || "
            "true"
        )
        assert "libcuda1" in held and "nvidia-smi\t550." in held, done.stdout + held
        assert "communicate with the NVIDIA driver" in held
        found = results(tmp_path, "e2e-debian")
        bad = {name for name, result in found.items() if result["status"] in ("fail", "unknown", "error")}
        assert "gpus_found" in bad and not bad & {"driver_versions_agree"}, bad
    finally:
        tool("down", "e2e-debian")
