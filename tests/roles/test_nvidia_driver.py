"""The role on real systemd hosts: the order of driver and services, steps that fail or are killed, mirrors down.

The kernel's modules are a directory over /sys/module and a modprobe that works on it; packages, apt, dpkg, systemd and
the programs that build an initramfs are real.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests" / "hosts"))
from driver_host import KERNEL, MODPROBE, Machine

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("drv-roles")]
CARD = "0000:01:00.0"


@pytest.fixture(scope="module")
def packages(tmp_path_factory: pytest.TempPathFactory) -> Path:
    import repository

    return repository.build(tmp_path_factory.mktemp("packages") / "nvidia")


@pytest.fixture
def machine(
    make_host: Callable[..., dict[str, Any]], packages: Path, tmp_path: Path, request: pytest.FixtureRequest
) -> Iterator[Machine]:
    """A fresh host for each test: what one leaves is no help to the next."""
    number = Machine.count = getattr(Machine, "count", 0) + 1  # type: ignore[attr-defined]
    modules = tmp_path / "modules"
    modules.mkdir()
    name = "drv-role-%d" % number
    binds = ["--bind-ro=%s:/srv/nvidia" % packages, "--bind=%s:/sys/module" % modules]
    made = Machine(make_host(name, getattr(request, "param", "trixie"), *binds), tmp_path, packages)
    made.ssh(KERNEL)
    made.ssh("cat > /usr/local/sbin/modprobe; chmod +x /usr/local/sbin/modprobe; : > /var/log/modprobe", input=MODPROBE)
    yield made
    subprocess.run(
        [sys.executable, str(ROOT / "tests/hosts/make_hosts.py"), "down", name], capture_output=True, check=False
    )


ONE_CARD = {"gpus": {CARD: {"modules": "both"}}}
NOUVEAU = {**ONE_CARD, "nouveau_loaded": True}


def test_nouveau_goes_then_the_driver_comes_then_its_daemon_starts(machine: Machine) -> None:
    machine.ssh("mkdir /sys/module/nouveau")
    done = machine.play("nvidia_driver", driver=NOUVEAU)
    assert done.rc == 0, done.output
    asked = machine.ssh("cat /var/log/modprobe").splitlines()
    assert asked[:3] == ["modprobe -r nouveau", "modprobe nvidia", "modprobe nvidia_uvm"], asked
    assert machine.ssh("systemctl is-active nvidia-persistenced").strip() == "active"
    assert machine.ssh("systemctl is-enabled nvidia-persistenced").strip() == "enabled"
    assert "pending: []" in done.text
    again = machine.play("nvidia_driver", driver={**ONE_CARD, "persistenced": {"active": True, "enabled": True}})
    assert (again.rc, again.changed) == (0, 0), again.output


def test_nouveau_that_stays_is_named_and_the_daemon_waits_for_the_boot(machine: Machine) -> None:
    machine.ssh("mkdir -p /sys/module/nouveau /run/busy; touch /run/busy/nouveau")
    done = machine.play("nvidia_driver", driver=NOUVEAU)
    assert done.rc == 0, done.output
    assert "reload or reboot needed, because nouveau holds the GPUs until it is gone" in done.text, done.output
    assert "Module nouveau is in use" in done.text
    assert machine.ssh("systemctl is-active nvidia-persistenced", check=False).strip() == "inactive"
    assert machine.ssh("systemctl is-enabled nvidia-persistenced").strip() == "enabled"
    # The reboot that cures it, without nouveau.
    done = machine.play("nvidia_driver", driver=NOUVEAU, gpu_host_allow_reboot=True)
    assert "Reboot" in done.output and "pending: []" in done.text, done.output


def test_a_daemon_that_does_not_start_is_quoted_and_the_next_run_starts_it(machine: Machine) -> None:
    machine.ssh("touch /run/no-node")
    done = machine.play("nvidia_driver", driver=ONE_CARD)
    assert done.rc == 2 and "nvidia-persistenced.service did not start" in done.text, done.output
    assert "Failed to query NVIDIA devices" in done.text, done.output
    machine.ssh("rm /run/no-node; mknod /dev/nvidia0 c 1 3")
    done = machine.play("nvidia_driver", driver=ONE_CARD)
    assert done.rc == 0, done.output
    assert machine.ssh("systemctl is-active nvidia-persistenced").strip() == "active"


NOUVEAU_FILE = "/etc/modprobe.d/gpu-host-nouveau.conf"


def break_builder(machine: Machine, reason: str = "exit 7") -> None:
    """update-initramfs works for the first kernel and fails, or kills itself, at the second."""
    machine.ssh(
        "mv /usr/sbin/update-initramfs /usr/sbin/real-update-initramfs; cat > /usr/sbin/update-initramfs; "
        "chmod +x /usr/sbin/update-initramfs",
        input='#!/bin/sh\ncase "$*" in *6.1.0-test*) echo "gzip: stdout: No space left on device"; %s ;; esac\n'
        'exec real-update-initramfs "$@"\n' % reason,
    )


def mend_builder(machine: Machine) -> None:
    machine.ssh("mv /usr/sbin/real-update-initramfs /usr/sbin/update-initramfs")


@pytest.mark.parametrize("reason", ["exit 7", "kill -9 $$"])
def test_an_initramfs_that_could_not_be_built_is_built_by_the_next_run(machine: Machine, reason: str) -> None:
    break_builder(machine, reason)
    done = machine.play("nvidia_driver")
    assert done.rc == 2 and "initramfs of 6.1.0-test" in done.text, done.output
    assert not machine.held("6.1.0-test", NOUVEAU_FILE)
    mend_builder(machine)
    done = machine.play("nvidia_driver")
    assert done.rc == 0 and done.changed > 0, done.output
    assert machine.held("6.1.0-test", NOUVEAU_FILE) and machine.held("6.1.0-other", NOUVEAU_FILE)
    again = machine.play("nvidia_driver")
    assert (again.rc, again.changed) == (0, 0), again.output


def test_options_too(machine: Machine) -> None:
    wanted = {"nvidia_module_options_wanted": {"nvidia_uvm": {"uvm_disable_hmm": 1}}}
    wanted["nvidia_module_options_on"] = machine.host["name"]  # type: ignore[assignment]  # it looks like a container
    break_builder(machine)
    done = machine.play("nvidia_module_options", **wanted)
    assert done.rc == 2 and "No space left on device" in done.text, done.output
    mend_builder(machine)
    done = machine.play("nvidia_module_options", **wanted)
    assert done.rc == 0 and done.changed > 0, done.output
    assert machine.held("6.1.0-test", "/etc/modprobe.d/gpu-host-nvidia.conf")
    again = machine.play("nvidia_module_options", **wanted)
    assert (again.rc, again.changed) == (0, 0), again.output


def test_options_of_a_container_whose_host_is_not_named_are_refused(machine: Machine) -> None:
    before = machine.picture()
    done = machine.play("nvidia_module_options", nvidia_module_options_wanted={"nvidia_uvm": {"uvm_disable_hmm": 1}})
    assert done.rc == 2 and "Set proxmox_host" in done.text.replace("set proxmox_host", "Set proxmox_host"), done.output
    assert "uvm_disable_hmm" in done.text and machine.picture() == before
    done = machine.play(
        "nvidia_module_options", nvidia_module_options_wanted={"nvidia": {"a": 1}}, proxmox_host="not-there"
    )
    assert done.rc == 2 and "not-there, which is no host of the inventory" in done.text, done.output


def test_a_mirror_that_is_down_costs_seconds_and_changes_nothing(machine: Machine) -> None:
    """NVIDIA's repository answers; a package that it needs comes from a mirror whose lists were read earlier."""
    machine.ssh(
        "mkdir /srv/mirror; cd /srv/mirror; cp /srv/nvidia/repo/dkms_*.deb .; "
        "python3 - <<'END'\nimport glob, hashlib, os, subprocess\n"
        "name = glob.glob('*.deb')[0]\n"
        "control = subprocess.run(['dpkg-deb', '-f', name], capture_output=True, text=True).stdout\n"
        "control = control.replace('Version: 3.0.12-1', 'Version: 3.9.0-1')\n"
        "data = open(name, 'rb').read()\n"
        "open('Packages', 'w').write(control + 'Filename: ./%s\\nSize: %d\\nSHA256: %s\\n' % (name, len(data), "
        "hashlib.sha256(data).hexdigest()))\nEND\n"
        "python3 -m http.server 8099 >/dev/null 2>&1 & sleep 1; "
        "echo 'deb [trusted=yes] http://127.0.0.1:8099/ ./' > /etc/apt/sources.list; apt-get update -q; kill %1"
    )
    before = machine.picture()
    done = machine.play("nvidia_driver")
    assert done.rc == 2 and "download of driver 580.95.05 ended with" in done.text, done.output
    assert "Nothing was changed" in done.text and "127.0.0.1:8099" in done.text
    assert "dpkg --configure -a" not in done.text
    seconds = float(re.search(r"download of driver \S+ ended with \d+ after (\d+) s", done.text).group(1))  # type: ignore[union-attr]
    assert seconds < 30, seconds
    assert machine.picture() == before
    assert machine.ssh("ls -d /tmp/gpu-host-apt-* 2>/dev/null || true") == ""
    machine.ssh("rm /etc/apt/sources.list; rm -f /var/lib/apt/lists/127*")
    assert machine.play("nvidia_driver").rc == 0


def test_a_run_that_ended_between_the_source_and_its_lists_goes_on(machine: Machine) -> None:
    done = machine.play("nvidia_driver")
    assert done.rc == 0, done.output
    # As if the run had been cut off after the files were written.
    machine.ssh(
        "apt-mark unhold '*' >/dev/null; apt-get -y -q purge nvidia-driver-cuda nvidia-smi nvidia-kernel-open-dkms "
        "libcuda1 libnvidia-ml1 libnvidia-ptxjitcompiler1 nvidia-persistenced; rm -rf /var/lib/apt/lists/*"
    )
    done = machine.play("nvidia_driver")
    assert done.rc == 0, done.output
    assert "libcuda1" in machine.ssh("apt-mark showhold")
    again = machine.play("nvidia_driver")
    assert (again.rc, again.changed) == (0, 0), again.output


def test_a_script_of_a_package_that_fails_is_quoted_and_so_it_is_by_the_next_run(machine: Machine) -> None:
    machine.ssh("mkdir -p /var/lib/dkms/status")  # a directory where the script writes its file
    done = machine.play("nvidia_driver")
    assert done.rc == 2, done.output
    assert "nvidia-kernel-open-dkms: Building module" in done.text and "Is a directory" in done.text, done.output
    again = machine.play("nvidia_driver")
    assert again.rc == 2 and "dpkg was interrupted" in again.text and "Is a directory" in again.text, again.output
    machine.ssh("rmdir /var/lib/dkms/status; dpkg --configure -a")
    assert machine.play("nvidia_driver").rc == 0


def test_a_toolkit_that_could_not_be_unpacked_comes_with_the_next_run(machine: Machine) -> None:
    wanted: dict[str, Any] = {"cuda_toolkit_versions": ["12.8"], "cuda_toolkit_default": "12.8"}
    machine.ssh("mkdir /usr/local/cuda-12.8; mount -t tmpfs -o ro none /usr/local/cuda-12.8")
    done = machine.play("cuda_toolkit", **wanted)
    assert done.rc == 2 and "Read-only file system" in done.text, done.output
    machine.ssh("umount /usr/local/cuda-12.8")
    done = machine.play("cuda_toolkit", **wanted)
    assert done.rc == 2 and "dpkg was interrupted" in done.text, done.output
    command = re.search(r"`(apt-get install --reinstall [^`]*)`", done.text)
    assert command, done.output
    machine.ssh(command[1])
    done = machine.play("cuda_toolkit", **wanted)
    assert done.rc == 0, done.output
    assert machine.ssh("readlink -f /usr/local/cuda; dpkg-query -W -f '${db:Status-Status}' cuda-toolkit-12-8") == (
        "/usr/local/cuda-12.8\ninstalled"
    )
    again = machine.play("cuda_toolkit", **wanted)
    assert (again.rc, again.changed) == (0, 0), again.output


@pytest.mark.parametrize("machine", ["bookworm", "trixie"], indirect=True)
def test_dracut_in_the_place_of_initramfs_tools(machine: Machine) -> None:
    """Debian's own dracut; where the mirror gives none, the test says so."""
    import apt_proxy

    with apt_proxy.running() as proxy:
        machine.ssh(
            "echo 'deb %s %s main' > /etc/apt/sources.list; apt-get -q -o Acquire::http::Proxy=%s update; "
            "DEBIAN_FRONTEND=noninteractive apt-get -y -q -o Acquire::http::Proxy=%s install --no-install-recommends "
            "dracut; rm -rf /etc/apt/sources.list /var/lib/apt/lists/*"
            % (mirror(), machine.host["release"], proxy, proxy)
        )
    machine.ssh("rm -f /boot/init*; for r in 6.1.0-test 6.1.0-other; do echo old > /boot/initrd.img-$r; done")
    machine.ssh("test ! -e /usr/sbin/update-initramfs || dpkg -S /usr/sbin/update-initramfs", check=False)
    done = machine.play("nvidia_driver")
    assert done.rc == 0, done.output
    for release in ("6.1.0-test", "6.1.0-other"):
        assert NOUVEAU_FILE.lstrip("/") in machine.ssh("lsinitrd /boot/initrd.img-%s" % release)
    again = machine.play("nvidia_driver")
    assert (again.rc, again.changed) == (0, 0), again.output


def mirror() -> str:
    import rootfs

    return rootfs.mirror()
