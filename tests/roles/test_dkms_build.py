"""Real DKMS builds: Debian's own open module against Debian's kernel headers, and what the facts and remedies say.

The kernel that runs is not Debian's: the host says that it runs the one of Debian's headers, and the programs that ask
the kernel itself (uname, modinfo, modprobe) are told the same. DKMS, make, the compiler and the headers are real.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests" / "hosts"), str(ROOT / "tests" / "roles")]
from driver_host import Machine
from remedies_run import BUILDS
from ssh_host import run_over_ssh

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("dkms")]
MAKE_HOSTS = [sys.executable, str(ROOT / "tests/hosts/make_hosts.py")]
CHECK = "driver_built_for_kernel"
COMPONENTS = "main contrib non-free non-free-firmware"
# Name -> what it does with the release of the kernel that this host says it runs.
TOLD = {
    "uname": '[ "$*" = -r ] && exec cat /proc/sys/kernel/osrelease\nexec /usr/bin/uname "$@"',
    "modinfo": 'exec /usr/sbin/modinfo -k "$(cat /proc/sys/kernel/osrelease)" "$@"',
    "modprobe": 'exec /usr/sbin/modprobe -n -S "$(cat /proc/sys/kernel/osrelease)" "$@"',
}
# One card of the bus, as the check asks for the driver only where there is one.
LAID_OVER = {
    "pci": {"gpus": {"0000:01:00.0": {"name": "RTX PRO 6000"}}, "vfio_gpus": []},
    "virtualization": {"host_facts": False},
    "joined": {"driver_expected": True},
}
PLAY = """
- hosts: all
  gather_facts: false
  tasks:
    - gpu_facts:
    - set_fact: {gpu_host: "{{ ansible_facts.gpu_host | combine(laid_over, recursive=true) }}", cacheable: true}
    - run_checks: {only: [%s]}
      register: judged
      failed_when: false
    - copy: {content: "{{ {'facts': ansible_facts.gpu_host, 'checks': judged.checks} | to_json }}", dest: "{{ out }}"}
      delegate_to: localhost
"""


class Debian(Machine):
    """A Debian 12 that has the driver's module as sources, a kernel of Debian's, and not yet that kernel's headers."""

    kernel = ""

    def look(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """(facts of the driver, the result of the check)."""
        out = self.work / "seen.json"
        (self.work / "look.yml").write_text(PLAY % CHECK)
        given = json.dumps({"laid_over": LAID_OVER, "out": str(out)})
        done = self.run_playbook(str(self.work / "look.yml"), "-e", given)
        assert done.returncode == 0, done.stdout + done.stderr
        seen = json.loads(out.read_text())
        return seen["facts"]["driver"], seen["checks"][0]

    def type_commands(self, result: dict[str, Any]) -> str:
        """The commands of the remedy, letter for letter, each question answered with yes; what they printed."""
        said = ""
        for command in result["remedy"]["commands"]:
            done = run_over_ssh(self.host, command, "y\n" * 5, timeout=3600)
            said += "$ %s\n%s%s-> %d\n" % (command, done.stdout, done.stderr, done.returncode)
        return said


@pytest.fixture
def debian(make_host: Callable[..., dict[str, Any]], tmp_path: Path) -> Iterator[Debian]:
    import apt_proxy
    import rootfs

    host = Debian(make_host("dkms-deb12", "bookworm"), tmp_path, tmp_path)
    with apt_proxy.running() as proxy:
        host.ssh(
            "rm -rf /etc/apt/sources.list.d/*; echo 'deb %s bookworm %s' > /etc/apt/sources.list; "
            "echo 'Acquire::http::Proxy \"%s\";' > /etc/apt/apt.conf.d/proxy; apt-get -q update"
            % (rootfs.mirror(), COMPONENTS, proxy)
        )
        depends = host.ssh("apt-cache depends linux-headers-amd64").split()
        host.kernel = next(
            word.partition("headers-")[2] for word in depends[1:] if word.startswith("linux-headers-") and "." in word
        )
        host.ssh("echo %s > /etc/release" % host.kernel)
        tool = [*MAKE_HOSTS, "enter", "dkms-deb12"]
        subprocess.run([*tool, "mount", "--bind", "/etc/release", "/proc/sys/kernel/osrelease"], check=True)
        for name, script in TOLD.items():
            host.ssh("tee /usr/local/bin/%s /usr/local/sbin/%s" % (name, name), input="#!/bin/sh\n%s\n" % script)
            host.ssh("chmod +x /usr/local/bin/%s /usr/local/sbin/%s" % (name, name))
        host.ssh(
            "DEBIAN_FRONTEND=noninteractive apt-get -y -q install --no-install-recommends nvidia-open-kernel-dkms "
            "nvidia-smi libcuda1"
        )
        yield host
    subprocess.run([*MAKE_HOSTS, "down", "dkms-deb12"], capture_output=True, check=False)


def test_the_three_states_of_a_build_and_their_remedies(debian: Debian) -> None:
    # Headers missing: not built.
    facts, result = debian.look()
    assert facts["built_for_running_kernel"] is False and facts["dkms"][0]["state"] == "added", facts["dkms"]
    failure = facts["build_failure"]
    assert (failure["kernel"], failure["headers"], failure["error"]) == (debian.kernel, False, None)
    assert result["status"] == "fail" and facts["on_disk"]["version"] is None
    assert (CHECK, result["remedy"]["number"]) == BUILDS["the headers are missing"]
    said = debian.type_commands(result)

    # Built for it.
    facts, result = debian.look()
    assert facts["built_for_running_kernel"] is True and facts["build_failure"] is None, said
    assert result["status"] == "pass", said
    [built] = facts["dkms"]
    assert (built["kernel"], built["state"]) == (debian.kernel, "installed")
    assert facts["on_disk"]["known"] is True and facts["on_disk"]["flavor"] == "open"
    assert facts["on_disk"]["version"] == built["version"] and "nvidia-current-open" in facts["on_disk"]["path"]
    assert "-> 0" in said.splitlines()[-1], said

    # Build failed: the kernel's headers lack a part.
    name = "%s/%s" % (built["module"], built["version"])
    debian.ssh("dkms unbuild %s -k %s" % (name, debian.kernel))
    debian.ssh("rm /usr/src/linux-headers-%s/include/generated/autoconf.h" % debian.kernel)
    assert debian.ssh("dkms autoinstall -k %s >/dev/null 2>&1; echo $?" % debian.kernel).strip() != "0"
    facts, result = debian.look()
    assert facts["built_for_running_kernel"] is False and result["status"] == "fail"
    failure = facts["build_failure"]
    assert failure["headers"] is True and failure["error"] == "ERROR: Kernel configuration is invalid.", failure
    assert failure["error"] in result["found"] and failure["log"].endswith("/build/make.log")
    assert (CHECK, result["remedy"]["number"]) == BUILDS["the build failed"]
    said = debian.type_commands(result)
    facts, result = debian.look()
    assert facts["built_for_running_kernel"] is True and result["status"] == "pass", said


def test_debian_13_s_driver_is_planned_whole(make_host: Callable[..., dict[str, Any]], tmp_path: Path) -> None:
    """Its nvidia-modprobe is 570, and the driver's branch 550: the pin lets both in."""
    import apt_proxy
    import rootfs

    (tmp_path / "fingerprint").write_text("")
    host = Machine(make_host("dkms-deb13", "trixie"), tmp_path, tmp_path)
    with apt_proxy.running() as proxy:
        host.ssh(
            "rm -rf /etc/apt/sources.list.d/*; echo 'deb %s trixie main' > /etc/apt/sources.list; "
            "echo 'Acquire::http::Proxy \"%s\";' > /etc/apt/apt.conf.d/proxy; apt-get -q update"
            % (rootfs.mirror(), proxy)
        )
        before = host.picture()
        done = host.play(
            "nvidia_driver", "--check", nvidia_driver_source="distribution", nvidia_driver_branch="550",
            nvidia_driver_headers=False, nvidia_driver_repository={},
        )  # fmt: skip
    assert done.rc == 0, done.output
    for words in ("install nvidia-open-kernel-dkms 550.", "install nvidia-modprobe 570.", "install nvidia-smi 550."):
        assert words in done.text, (words, done.output)
    assert host.picture() == before
