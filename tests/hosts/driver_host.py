"""A test host that the role nvidia_driver runs on, and how such a run ends.

The kernel's modules are a directory over /sys/module and a modprobe that works on it.
"""

from __future__ import annotations

import json
import re
import sys
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
from ssh_host import SshHost, ask_over_ssh, run_over_ssh

ROOT = Path(__file__).resolve().parents[2]
MODPROBE = r"""#!/bin/sh
echo "modprobe $*" >> /var/log/modprobe
case "$1" in
  -r)
    if [ -e "/run/busy/$2" ]; then echo "modprobe: FATAL: Module $2 is in use." >&2; exit 1; fi
    rm -rf "/sys/module/$2"
    if [ "$2" = nvidia ]; then rm -f /dev/nvidia0; fi ;;
  -*) exec /usr/sbin/modprobe "$@" ;;
  *)
    version=$(sed -n 's|^nvidia/\([0-9.]*\),.*|\1|p' /var/lib/dkms/status 2>/dev/null)
    if [ -z "$version" ]; then echo "modprobe: FATAL: Module $1 not found in directory /lib/modules" >&2; exit 1; fi
    mkdir -p "/sys/module/$1"
    if [ "$1" = nvidia ]; then
      echo "$version" > /sys/module/nvidia/version
      [ -e /run/no-node ] || [ -e /dev/nvidia0 ] || mknod /dev/nvidia0 c 1 3
    fi ;;
esac
"""
# A kernel that the real update-initramfs makes an image for, as molecule/shared/prepare.yml does it.
KERNEL = """
rm -rf /etc/apt/sources.list /etc/apt/sources.list.d/* /var/lib/apt/lists/*
for release in 6.1.0-test 6.1.0-other; do
  mkdir -p /boot /lib/modules/$release/kernel
  printf 'CONFIG_RD_GZIP=y\\nCONFIG_BLK_DEV_INITRD=y\\n' > /boot/config-$release
  touch /boot/vmlinuz-$release
  (cd /lib/modules/$release && touch modules.order modules.builtin modules.builtin.modinfo)
  depmod $release
done
printf 'MODULES=list\\nCOMPRESS=gzip\\n' > /etc/initramfs-tools/conf.d/test
for release in 6.1.0-test 6.1.0-other; do update-initramfs -c -k $release; done
"""


class Machine(SshHost):
    """One host; `play` runs roles on it, and prints as Ansible does by itself."""

    def __init__(self, host: dict[str, Any], work: Path, packages: Path, group: str = "all") -> None:
        super().__init__(host, work, group)
        self.packages = packages

    def ssh(self, command: str, check: bool = True, input: str | None = None) -> str:
        return ask_over_ssh(self.host, command, input) if check else run_over_ssh(self.host, command, input).stdout

    def environment(self) -> dict[str, str]:
        own = {"ANSIBLE_STDOUT_CALLBACK": "default", "ANSIBLE_ROLES_PATH": str(ROOT / "roles")}
        return {**super().environment(), **own}

    def play(self, role: str, *options: str, driver: dict[str, Any] | None = None, **variables: Any) -> Played:
        """The role alone; `driver` is laid over what the facts say of the driver, as no card is in a test host."""
        own = {"uris": "file:/srv/nvidia/repo", "suites": "/", "key_url": "file:/srv/nvidia/key.asc"}
        own["fingerprints"] = [(self.packages / "fingerprint").read_text().strip()]  # type: ignore[assignment]
        given = {"nvidia_driver_mode": "full", "nvidia_driver_repository": own, **variables}
        tasks: list[dict[str, Any]] = [
            {"gpu_facts": {"gather_subset": ["driver", "modules", "virtualization", "pci"]}},
            {
                "set_fact": {
                    "gpu_host": "{{ ansible_facts.gpu_host | combine({'driver': laid_over}, recursive=true) }}",
                    "cacheable": True,
                },
                "vars": {"laid_over": driver or {}},
            },
            {"include_role": {"name": role}},
            {"debug": {"msg": "pending: {{ gpu_host_guard_pending | default([]) }}"}},
        ]
        play = self.work / "play.yml"
        play.write_text(yaml.safe_dump([{"hosts": "all", "gather_facts": False, "tasks": tasks}]))
        done = self.run_playbook(str(play), "-e", json.dumps(given), *options)
        return Played(done.returncode, done.stdout + done.stderr, self.host["name"])

    def picture(self) -> str:
        """What a refusal must leave as it was."""
        return self.ssh(
            "(find /etc/apt /etc/modprobe.d -type f -exec sha256sum {} + | sort; dpkg-query -W; apt-mark showhold) | "
            "sha256sum"
        )

    def held(self, release: str, path: str) -> bool:
        """Whether the image of a kernel holds the file, as the real lister says."""
        return path.lstrip("/") in self.ssh("lsinitramfs /boot/initrd.img-%s" % release)


class Played:
    """How a run ended: exit status, number of changed tasks, text with one blank for every break."""

    def __init__(self, rc: int, output: str, name: str) -> None:
        self.rc, self.output = rc, output
        self.text = " ".join(output.split())
        recap = re.search(r"^%s\s+:.*changed=(\d+)" % re.escape(name), output, re.MULTILINE)
        self.changed = int(recap.group(1)) if recap else -1
