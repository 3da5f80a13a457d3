"""A host in one particular trouble: an sshd of its own on 127.0.0.1, in a Debian root of its own.

Lighter than `machine.py` (no systemd, about 0.1 s): overlay, chroot, and namespaces of mounts and processes, so that a
test can fill its disks, take its /tmp away, hide its processes, look at everything that a run left there, and switch it
off. Needs root and what the other test hosts need; the programs on the host are those of the release.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import yaml

sys.path.insert(0, str(Path(__file__).resolve().parent))
import machine
import make_hosts
import rootfs

ROOT = Path(__file__).resolve().parents[2]
PLAYBOOK = str(Path(sys.executable).parent / "ansible-playbook")
USER, USER_ID = "ordinary", 1000
# In place of nvidia-smi. As it answers on a host that has the driver and no GPU.
NO_DEVICES = "#!/bin/sh\necho 'No devices were found'\nexit 6\n"
_NODES = {"null": 3, "zero": 5, "full": 7, "random": 8, "urandom": 9}
# A root of its own, with the devices that programs take for granted. $1 root, $2 options of /proc, $3 more commands.
_BEGIN = """
mount --make-rprivate /
mount -t tmpfs -o size=1m,mode=755 tmpfs "$1/dev"
mkdir "$1/dev/shm" "$1/dev/pts"
mount -t tmpfs -o size=64m,mode=1777 tmpfs "$1/dev/shm"
mount -t tmpfs -o size=64m,mode=755 tmpfs "$1/run"
mkdir "$1/run/sshd"
%s
ln -s /proc/self/fd "$1/dev/fd"
mount -t devpts -o newinstance,ptmxmode=0666 devpts "$1/dev/pts" && ln -s pts/ptmx "$1/dev/ptmx"
mount -t proc -o "$2" proc "$1/proc"
mount --bind /sys "$1/sys" && mount -o remount,bind,ro "$1/sys"
hostname "$4"
cd "$1" && eval "$3" && exec chroot "$1" /usr/sbin/sshd -D -e -f /etc/ssh/sshd_of_test
""" % "\n".join(
    'mknod -m 666 "$1/dev/%s" c 1 %d' % node for node in _NODES.items()
)  # fmt: skip
_SSH = ("StrictHostKeyChecking=no", "UserKnownHostsFile=/dev/null", "LogLevel=ERROR", "ConnectTimeout=5")
_SSHD = """
Port {port}
ListenAddress 127.0.0.1
HostKey /etc/ssh/host_key
PidFile none
StrictModes no
UsePAM no
PermitRootLogin yes
PasswordAuthentication no
AuthorizedKeysFile /etc/ssh/authorized_keys
"""


@dataclass
class FaultyHost:
    """`mounts`: shell commands in the new root directory before sshd starts (`mount -t tmpfs ... tmp`)."""

    name: str
    directory: Path
    release: str = "bookworm"
    mounts: str = "true"
    proc: str = "rw"
    user: str = "root"
    smi: str = NO_DEVICES
    variables: dict[str, Any] = field(default_factory=dict)
    port: int = 0
    process: subprocess.Popen[bytes] | None = None

    @property
    def root(self) -> Path:
        return self.directory / "root"

    def make(self) -> None:
        """The root of the host, not yet started. Whatever a test changes there belongs to this host alone."""
        tree = rootfs.ensure(self.release, make_hosts.STATE)
        for part in ("upper", "work", "root"):
            (self.directory / part).mkdir(parents=True)
        options = "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (tree, self.directory, self.directory)
        machine.run("mount", "-t", "overlay", "overlay", "-o", options, str(self.root))
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.port = taken.getsockname()[1]
        key = machine.ssh_key(make_hosts.STATE)
        etc = self.root / "etc"
        for source, name in ((key, "host_key"), (Path(str(key) + ".pub"), "authorized_keys")):
            shutil.copyfile(source, etc / "ssh" / name)
            (etc / "ssh" / name).chmod(0o600 if name == "host_key" else 0o644)
        (etc / "ssh/sshd_of_test").write_text(_SSHD.format(port=self.port))
        for name, line in (
            ("passwd", "%s:x:%d:%d::/home/%s:/bin/sh" % (USER, USER_ID, USER_ID, USER)),
            ("shadow", "%s:*:19000::::::" % USER),
            ("group", "%s:x:%d:" % (USER, USER_ID)),
        ):
            with open(etc / name, "a") as handle:
                handle.write(line + "\n")
        home = self.root / "home" / USER
        home.mkdir()
        os.chown(home, USER_ID, USER_ID)
        self.write("/usr/bin/nvidia-smi", self.smi)

    def write(self, path: str, text: str, mode: int = 0o755) -> None:
        place = self.root / path.lstrip("/")
        place.parent.mkdir(parents=True, exist_ok=True)
        place.write_text(text)
        place.chmod(mode)

    def start(self) -> None:
        command = ["unshare", "--mount", "--pid", "--uts", "--fork", "--kill-child", "sh", "-ec", _BEGIN, "sh"]
        command += [str(self.root), self.proc, self.mounts, self.name]
        with open(self.directory / "console.log", "ab") as log:
            self.process = subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=log, stderr=log)
        until = time.monotonic() + 20
        while time.monotonic() < until and self.process.poll() is None:
            with contextlib.suppress(OSError), socket.create_connection(("127.0.0.1", self.port), 1) as link:
                link.settimeout(5)
                if link.recv(4) == b"SSH-":
                    return
            time.sleep(0.02)
        raise machine.HostError("%s: %s" % (self.name, (self.directory / "console.log").read_text()[-2000:]))

    def stop(self) -> None:
        """As when the power goes: everything on the host ends at once."""
        if self.process and self.process.poll() is None:
            self.process.send_signal(signal.SIGKILL)
        if self.process:
            self.process.wait(10)

    def remove(self) -> None:
        self.stop()
        if not self.root.is_mount():
            return
        for _again in range(50):  # the mount namespace goes a moment after its last process
            if subprocess.run(["umount", str(self.root)], check=False, capture_output=True).returncode == 0:
                return
            time.sleep(0.05)
        subprocess.run(["umount", "-l", str(self.root)], check=False)

    def first_process(self) -> int:
        """The number of its sshd, seen from outside."""
        assert self.process
        return int(Path("/proc/%d/task/%d/children" % (self.process.pid, self.process.pid)).read_text().split()[0])

    def look(self, command: str) -> str:
        """What a shell command prints inside, not over SSH. It is none of the processes that it may list."""
        inside = ["nsenter", "-m", "-p", "-t", str(self.first_process()), "-r", "-w", "sh", "-c", command]
        return subprocess.run(inside, check=False, capture_output=True, text=True, timeout=60).stdout

    def list_processes(self) -> list[str]:
        """The command lines of all processes but sshd, and but zombies of which nobody has asked."""
        rows = self.look("ps -e -o pid=,ppid=,stat=,args=").splitlines()
        found = [row.split(None, 3) for row in rows]
        own = {row[0] for row in found if row[-1].startswith(("ps -e", "sh -c ps -e"))}
        return [row[-1] for row in found if row[0] not in own and not row[2].startswith("Z") and "sshd" not in row[-1]]

    def describe_connection(self) -> dict[str, Any]:
        """The variables of the host in an inventory."""
        ssh = " ".join(["-F none", *("-o " + option for option in _SSH)])
        return {
            "ansible_host": "127.0.0.1",
            "ansible_port": self.port,
            "ansible_user": self.user,
            "ansible_ssh_private_key_file": str(machine.ssh_key(make_hosts.STATE)),
            "ansible_ssh_common_args": ssh,
            "ansible_python_interpreter": "/usr/bin/python3",
            "gpu_host_expected": {"gpus": {"count": 0}},
            "host_validation_server": "false",
            **self.variables,
        }


@dataclass
class Run:
    rc: int
    text: str
    report: dict[str, Any]


def validate(directory: Path, hosts: list[FaultyHost], *arguments: str, **more: dict[str, Any]) -> Run:
    """`validate.yml`, as a user runs it; `more`: other hosts of the inventory."""
    variables = {**{host.name: host.describe_connection() for host in hosts}, **more}
    inventory = directory / "hosts.yml"
    inventory.write_text(yaml.safe_dump({"all": {"hosts": variables}}))
    environment = dict(os.environ, ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8", ANSIBLE_HOME=str(directory / "home"))
    environment["GPU_HOST_REPORTS_DIR"] = str(directory / "reports")
    ran = subprocess.run(
        [PLAYBOOK, "validate.yml", "-i", str(inventory), *arguments], cwd=ROOT, env=environment, timeout=300,
        stdin=subprocess.DEVNULL, capture_output=True, text=True, check=False,
    )  # fmt: skip
    text = " ".join((ran.stdout + ran.stderr).split())
    return Run(ran.returncode, text, json.loads((directory / "reports/report.json").read_text()))


def wait_until(condition: Callable[[], bool], seconds: float = 30) -> bool:
    until = time.monotonic() + seconds
    while time.monotonic() < until and not condition():
        time.sleep(0.2)
    return condition()


def is_clean(host: FaultyHost) -> bool:
    """Nothing runs on the host, and nothing lies there, that a run would have brought."""
    return not host.list_processes() and not host.look("ls -A /tmp /var/tmp | grep -i ansible").strip()
