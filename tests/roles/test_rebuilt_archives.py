"""Ubuntu 22.04 and 24.04, Proxmox VE 8 and 9: apt's real plan on a host that says it is one, and its installation.

The archives are rebuilt (tests/hosts/rebuilt.py), as the real ones cannot be reached.
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
import rebuilt
from driver_host import KERNEL, MODPROBE, Machine

pytestmark = [pytest.mark.hosts, pytest.mark.long, pytest.mark.xdist_group("rebuilt")]
SYSTEMS = {
    "ubuntu2204": ("bookworm", 'ID=ubuntu\nVERSION_ID="22.04"\nVERSION_CODENAME=jammy\nPRETTY_NAME="Ubuntu 22.04"\n'),
    "ubuntu2404": ("bookworm", 'ID=ubuntu\nVERSION_ID="24.04"\nVERSION_CODENAME=noble\nPRETTY_NAME="Ubuntu 24.04"\n'),
    "pve8": ("bookworm", 'ID=debian\nVERSION_ID="12"\nVERSION_CODENAME=bookworm\nPRETTY_NAME="Debian 12"\n'),
    "pve9": ("trixie", 'ID=debian\nVERSION_ID="13"\nVERSION_CODENAME=trixie\nPRETTY_NAME="Debian 13"\n'),
}
REPOSITORY = {
    "ubuntu2204": "nvidia-ubuntu",
    "ubuntu2404": "nvidia-ubuntu",
    "pve8": "nvidia-debian12",
    "pve9": "nvidia-debian13",
}


@pytest.fixture(scope="module")
def archives(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return rebuilt.build(tmp_path_factory.mktemp("archives") / "rebuilt")


Boot = Callable[[str], "System"]


class System(Machine):
    """A host that says it is another system, with that system's sources and kernel names."""

    key = ""

    def drive(self, *options: str, **variables: Any) -> Any:
        repository = {
            "uris": "file:/srv/rebuilt/" + REPOSITORY[self.key],
            "suites": "./",
            "key_url": "file:/srv/rebuilt/key.asc",
            "fingerprints": [(self.packages / "fingerprint").read_text().strip()],
        }
        return self.play("nvidia_driver", *options, nvidia_driver_repository=repository, **variables)

    def versions(self) -> dict[str, str]:
        lines = self.ssh("dpkg-query -W -f '${Package} ${Version} ${db:Status-Status}\\n'").splitlines()
        return {line.split()[0]: line.split()[1] for line in lines if line.endswith(" installed")}


@pytest.fixture
def boot(make_host: Callable[..., dict[str, Any]], archives: Path, tmp_path: Path) -> Iterator[Boot]:
    names = []

    def make(key: str) -> System:
        release, os_release = SYSTEMS[key]
        modules = tmp_path / "modules"
        modules.mkdir()
        name = "rb-" + key
        names.append(name)
        binds = ["--bind-ro=%s:/srv/rebuilt" % archives, "--bind=%s:/sys/module" % modules]
        host = System(make_host(name, release, *binds), tmp_path, archives)
        host.key = key
        host.ssh(KERNEL)
        host.ssh("cat > /usr/local/sbin/modprobe; chmod +x /usr/local/sbin/modprobe", input=MODPROBE)
        host.ssh("rm /etc/os-release; cat > /etc/os-release", input=os_release)
        own = "pve" if key.startswith("pve") else "ubuntu"
        host.ssh("echo 'deb [trusted=yes] file:/srv/rebuilt/%s ./' > /etc/apt/sources.list; apt-get -q update" % own)
        kernel = "linux-image-generic"
        if own == "pve":
            kernel = "pve-manager=%s proxmox-default-kernel proxmox-kernel-%s" % (
                ("8.4.1", "6.8") if key == "pve8" else ("9.1.2", "6.17")
            )
        host.ssh(
            "apt-get -y -q --no-install-recommends install %s; echo %s > /etc/release" % (kernel, rebuilt.KERNELS[key])
        )
        tool = [sys.executable, str(ROOT / "tests/hosts/make_hosts.py"), "enter", name]
        subprocess.run([*tool, "mount", "--bind", "/etc/release", "/proc/sys/kernel/osrelease"], check=True)
        return host

    yield make
    for name in names:
        subprocess.run([sys.executable, str(ROOT / "tests/hosts/make_hosts.py"), "down", name], check=False)


def asked_first_then_installed(host: System, **variables: Any) -> dict[str, str]:
    """A run without a word for it shows the plan and changes nothing; with it, the plan is what is installed."""
    before = host.picture()
    asked = host.drive(**variables)
    assert asked.rc == 2 and "-e nvidia_driver_plan_accepted=true" in asked.text, asked.output
    assert "Nothing was changed" in asked.text and host.picture() == before
    planned = dict(re.findall(r'"install (\S+) (\S+)"', asked.output))
    assert planned, asked.output
    done = host.drive(nvidia_driver_plan_accepted=True, **variables)
    assert done.rc == 0, done.output
    found = host.versions()
    assert {name: found.get(name) for name in planned} == planned
    again = host.drive(**variables)
    assert (again.rc, again.changed) == (0, 0), again.output
    return found


@pytest.mark.parametrize("key", ["ubuntu2204", "ubuntu2404"])
def test_ubuntu_with_nvidia_s_repository(boot: Boot, key: str) -> None:
    """Names with the branch; Ubuntu's newer packages of the same names, and its older dkms, are not taken."""
    found = asked_first_then_installed(boot(key))
    for name in ("libnvidia-compute-580", "nvidia-utils-580", "nvidia-dkms-580-open", "nvidia-kernel-source-580-open"):
        assert found[name] == "580.95.05-0ubuntu1", name
    assert found["nvidia-persistenced"] == found["nvidia-modprobe"] == "580.95.05-1"
    assert found["dkms"] == "1:3.4.0-1"
    assert "linux-headers-" + rebuilt.KERNELS[key] in found and "linux-headers-generic" in found
    assert not [name for name in found if "nvidia" in name and "-server" in name]


def test_ubuntu_from_branch_590_on(boot: Boot) -> None:
    found = asked_first_then_installed(
        boot("ubuntu2404"), nvidia_driver_branch="595", nvidia_driver_fabric_manager="true"
    )
    for name in ("libnvidia-compute", "nvidia-dkms-open"):
        assert found[name] == "595.45.04-1ubuntu1"
    assert found["nvidia-persistenced"] == found["nvidia-fabricmanager"] == "595.45.04-1"
    assert not [name for name in found if name.endswith("-595")]


# As the facts of an HGX B200 before its first driver say it.
BOARD = {"gpus": {"0000:1b:00.0": {"modules": "open"}}, "fabric_services": {"nvlink5": "board"}}


def test_ubuntu_across_the_change_of_names_and_back(boot: Boot) -> None:
    """Nothing ties libnvidia-compute to libnvidia-compute-580: the role sees to it that one of them goes."""
    host = boot("ubuntu2404")
    variables = {"driver": BOARD, "nvidia_driver_fabric_manager": "true"}
    old = asked_first_then_installed(host, **variables)
    fabric = {"nvlsm", "infiniband-diags", "libibumad3", "nvidia-fabricmanager"}
    fabric.add("linux-modules-extra-" + rebuilt.KERNELS["ubuntu2404"])
    assert fabric <= set(old) and old["nvlsm"] == "2025.10.14-1", old
    assert "ib_umad" in host.ssh("cat /etc/modules-load.d/gpu-host-nvlink.conf")

    new = asked_first_then_installed(host, nvidia_driver_branch="595", **variables)
    assert new["libnvidia-compute"] == new["nvidia-dkms-open"] == "595.45.04-1ubuntu1"
    assert new["nvidia-fabricmanager"] == "595.45.04-1" and fabric <= set(new)
    assert not of_branch(new, rebuilt.OLD), "packages of the branch before are left over"

    refused = host.drive(**variables)
    assert refused.rc == 2 and "go back from 595.45.04 to 580.95.05" in refused.text, refused.output
    back = asked_first_then_installed(host, nvidia_driver_allow_downgrade=True, **variables)
    assert back["libnvidia-compute-580"] == "580.95.05-0ubuntu1" and not of_branch(back, rebuilt.NEW)


def of_branch(found: dict[str, str], version: str) -> list[str]:
    return sorted(name for name, own in found.items() if version in own)


def test_ubuntu_s_own_packages_with_their_fabric_manager(boot: Boot) -> None:
    """Its Fabric Manager fits the -server driver of exactly its version, and has the branch in its name."""
    host = boot("ubuntu2404")
    found = asked_first_then_installed(
        host, nvidia_driver_source="distribution", nvidia_driver_fabric_manager="true", nvidia_driver_persistenced=False
    )
    own = "580.126.09-0ubuntu0.24.04.1"
    for name in ("libnvidia-compute-580-server", "nvidia-dkms-580-server-open", "nvidia-fabricmanager-580"):
        assert found[name] == own, name
    assert "nvidia-fabricmanager" not in found and "nvidia-persistenced" not in found


def test_proxmox_ve_8(boot: Boot) -> None:
    found = asked_first_then_installed(boot("pve8"))
    assert found["nvidia-driver-cuda"] == found["nvidia-kernel-open-dkms"] == "580.95.05-1"
    assert {"proxmox-headers-" + rebuilt.KERNELS["pve8"], "proxmox-headers-6.8", "proxmox-default-headers"} <= set(
        found
    )
    assert not [name for name in found if name.startswith(("linux-headers", "linux-image"))]


def test_proxmox_ve_9_has_nothing_before_590(boot: Boot) -> None:
    host = boot("pve9")
    refused = host.drive()
    assert refused.rc == 2 and "fits 580. The repository offers: 595.45.04" in refused.text, refused.output
    found = asked_first_then_installed(host, nvidia_driver_branch="595")
    assert found["nvidia-driver-cuda"] == "595.45.04-1"
    assert "proxmox-headers-" + rebuilt.KERNELS["pve9"] in found
    assert not [name for name in found if name.startswith(("linux-headers", "linux-image"))]
