"""The two guests, booted once beside each other, and gpu_facts run in them by Ansible over SSH."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

HERE = Path(__file__).resolve().parent
ROOT = HERE.parents[1]
for folder in (HERE, ROOT / "tests" / "checks"):
    sys.path.insert(0, str(folder))

import guests
import vm_image
from vm import QEMU, Vm

STATE = Path(os.environ.get("GPU_TEST_HOSTS") or ROOT / ".test-hosts")
BOOT_SECONDS = 300  # 20 on two cores that do nothing else, 120 on two with a load of 15


class Guests(NamedTuple):
    i440fx: Vm
    q35: Vm
    gather: Callable[[str, str], dict[str, dict[str, Any]]]  # (hosts, module arguments) -> results by host


def why_not() -> str:
    """The reason why this machine cannot boot the guests; empty if it can."""
    if sys.platform != "linux" or os.geteuid() != 0:
        return "virtual machines are made as root on Linux (their disk is a Debian that mmdebstrap makes)"
    missing = [
        name
        for name in (QEMU, "mmdebstrap", "mke2fs", "dpkg-deb", "ssh", "ssh-keygen", "timeout")
        if not shutil.which(name)
    ]
    return (
        "virtual machines need %s: apt-get install qemu-system-x86 mmdebstrap e2fsprogs openssh-client"
        % ", ".join(missing)
        if missing
        else ""
    )


@pytest.fixture(scope="session")
def machines(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guests]:
    reason = why_not()
    if reason:
        pytest.skip(reason)
    image = vm_image.ensure(STATE)
    directory = tmp_path_factory.mktemp("vm")
    started: list[Vm] = []
    try:
        for guest in (guests.I440FX, guests.Q35):
            started.append(Vm(guest, image, directory))
        deadline = time.monotonic() + BOOT_SECONDS
        for machine in started:
            machine.wait_ready(deadline)
        inventory = directory / "hosts.ini"
        inventory.write_text("".join(machine.inventory_line() + "\n" for machine in started))
        yield Guests(*started, lambda hosts, arguments: gather(inventory, hosts, arguments))
    finally:
        for machine in started:
            machine.stop()


def gather(inventory: Path, hosts: str, arguments: str) -> dict[str, dict[str, Any]]:
    """What `ansible HOSTS -m gpu_facts -a ARGUMENTS` returned, by host."""
    program = Path(sys.executable).with_name("ansible")
    argv = [str(program), "-i", str(inventory), hosts, "-m", "gpu_facts", "-a", arguments]
    # A control connection of its own for each run: it ends with the run instead of outliving the guest.
    settings = {
        "ANSIBLE_CONFIG": str(ROOT / "ansible.cfg"),
        "ANSIBLE_SSH_ARGS": "-o ControlMaster=no",
        "ANSIBLE_NOCOLOR": "1",
    }
    environment = {**os.environ, **settings}
    result = subprocess.run(
        argv,
        cwd=ROOT,
        env=environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=400,
        check=False,
    )
    found: dict[str, dict[str, Any]] = {}
    decoder = json.JSONDecoder()
    for name in hosts.split(","):
        marker = "%s | SUCCESS => " % name
        assert marker in result.stdout, "gpu_facts failed on %s:\n%s\n%s" % (
            name,
            result.stdout[-3000:],
            result.stderr[-3000:],
        )
        found[name] = decoder.raw_decode(result.stdout, result.stdout.index(marker) + len(marker))[0]
    return found


@pytest.fixture(scope="session")
def results(machines: Guests) -> dict[str, dict[str, Any]]:
    """The module's results with the evidence, of both guests as they booted."""
    return machines.gather("i440fx,q35", "capture=true")


@pytest.fixture(scope="session")
def i440fx(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return dict(results["i440fx"]["ansible_facts"]["gpu_host"])


@pytest.fixture(scope="session")
def q35(results: dict[str, dict[str, Any]]) -> dict[str, Any]:
    return dict(results["q35"]["ansible_facts"]["gpu_host"])
