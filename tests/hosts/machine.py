"""One test host: a Debian system booted by systemd-nspawn on an overlay, in its own network namespace, reached by SSH.

Address book: each host takes a number below /run/gpu-test-hosts (made with mkdir, so two runs never share one), which
gives the address 10.231.0.NUMBER, the network namespace and the cgroup `gth-NUMBER`, and the link `gth-NUMBER`.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import shutil
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

BRIDGE = "br-gth"
NETWORK = "10.231.0"
NUMBERS = Path("/run/gpu-test-hosts")
HERE = Path(__file__).resolve().parent
SHUTDOWN_SECONDS = 15
CGROUPS = ("/sys/fs/cgroup/unified", "/sys/fs/cgroup")  # hybrid, pure cgroup 2


class HostError(Exception):
    """A host that cannot be made or reached; the message says what to do."""


@dataclass
class Host:
    """What is known of a running host; written to host.json in its state directory."""

    name: str
    number: int
    release: str
    key: str
    supervisor: int = 0

    @property
    def address(self) -> str:
        return "%s.%d" % (NETWORK, self.number)

    @property
    def tag(self) -> str:
        return "gth-%d" % self.number


def run(*argv: str, check: bool = True) -> str:
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if check and result.returncode:
        raise HostError("%s: %s" % (" ".join(argv), result.stdout.strip() or "exit code %d" % result.returncode))
    return result.stdout


def take_number() -> int:
    NUMBERS.mkdir(exist_ok=True)
    for number in range(10, 250):
        try:
            (NUMBERS / str(number)).mkdir()
        except FileExistsError:
            continue
        return number
    raise HostError("no free address in %s.0/24: stop hosts with `make_hosts.py down --all`" % NETWORK)


def ssh_key(state: Path) -> Path:
    key = state / "key"
    state.mkdir(parents=True, exist_ok=True)
    with open(state / "key.lock", "w") as lock:  # several test processes start at once, and both halves must be there
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not key.exists():
            run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key))
    return key


def bridge() -> None:
    if (
        run("ip", "link", "show", BRIDGE, check=False).startswith("Device")
        or not Path("/sys/class/net", BRIDGE).exists()
    ):
        run("ip", "link", "add", BRIDGE, "type", "bridge", check=False)
    run("ip", "addr", "replace", NETWORK + ".1/24", "dev", BRIDGE)
    run("ip", "link", "set", BRIDGE, "up")


def boot(name: str, release: str, rootfs: Path, state: Path, *, options: list[str], lifetime: int) -> Host:
    """Boot a host and return at once; `wait_ready` waits for its SSH."""
    directory = state / "hosts" / name
    if directory.exists():
        raise HostError("the host %s exists already: `make_hosts.py down %s` first" % (name, name))
    # systemd needs a few inotify instances in each host; the default of 128 is enough for about 20.
    instances = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(instances.read_text()) < 1024:
        instances.write_text("8192")
    key = ssh_key(state)
    host = Host(name, take_number(), release, str(key))
    for part in ("upper", "work", "root"):
        (directory / part).mkdir(parents=True)
    save(host, directory)
    try:
        root = directory / "root"
        run(
            "mount",
            "-t",
            "overlay",
            "overlay",
            "-o",
            "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (rootfs, directory, directory),
            str(root),
        )
        (root / "etc/hostname").write_text(name + "\n")
        (root / "etc/hosts").write_text("127.0.0.1 localhost %s\n" % name)
        authorized = root / "root/.ssh/authorized_keys"
        shutil.copyfile(str(key) + ".pub", authorized)
        authorized.chmod(0o600)
        _network(host)
        command = ["unshare", "-m", "--propagation", "private", str(HERE / "supervise.sh")]
        command += [name, str(directory), host.tag, str(lifetime), *options]
        environment = dict(os.environ, SYSTEMD_NSPAWN_API_VFS_WRITABLE="network")
        with open(directory / "console.log", "wb") as log:
            process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )
        host.supervisor = process.pid
        save(host, directory)
    except BaseException:
        remove(directory)
        raise
    return host


def _network(host: Host) -> None:
    bridge()
    run("ip", "netns", "add", host.tag)
    run("ip", "link", "add", host.tag, "type", "veth", "peer", "name", "host0", "netns", host.tag)
    run("ip", "link", "set", host.tag, "master", BRIDGE, "up")
    run("ip", "-n", host.tag, "link", "set", "lo", "up")
    run("ip", "-n", host.tag, "addr", "add", host.address + "/24", "dev", "host0")
    run("ip", "-n", host.tag, "link", "set", "host0", "up")
    run("ip", "-n", host.tag, "route", "add", "default", "via", NETWORK + ".1")


def save(host: Host, directory: Path) -> None:
    (directory / "host.json").write_text(json.dumps(host.__dict__) + "\n")


def load(directory: Path) -> Host | None:
    try:
        return Host(**json.loads((directory / "host.json").read_text()))
    except (OSError, ValueError, TypeError):
        return None


def running(state: Path) -> list[Host]:
    hosts = [load(path) for path in sorted((state / "hosts").glob("*"))]
    return [host for host in hosts if host]


def wait_ready(host: Host, state: Path, seconds: float = 60) -> None:
    """Wait until sshd greets and systemd has finished the boot."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        try:
            with socket.create_connection((host.address, 22), timeout=1) as link:
                link.settimeout(2)
                if link.recv(16).startswith(b"SSH-"):
                    return
        except OSError:
            pass
        if host.supervisor and not Path("/proc/%d" % host.supervisor).exists():
            break
        time.sleep(0.05)
    log = (state / "hosts" / host.name / "console.log").read_text(errors="replace")
    raise HostError(
        "the host %s does not answer on %s port 22. The end of its console:\n%s"
        % (host.name, host.address, log[-1500:])
    )


def leader(host: Host, state: Path) -> int | None:
    """The process id of the host's systemd (its process 1), seen from outside; None while it does not run."""
    try:
        parent = int((state / "hosts" / host.name / "nspawn.pid").read_text())
    except (OSError, ValueError):
        return None
    for _depth in range(2):  # timeout -> systemd-nspawn -> systemd
        children = run("ps", "-o", "pid=", "--ppid", str(parent), check=False).split()
        if not children:
            return None
        parent = int(children[0])
    return parent


def enter(host: Host, state: Path, argv: list[str]) -> int:
    """Run a command of this machine inside the mount namespace of the host (to lay a stand-in over /proc or /sys)."""
    process = leader(host, state)
    if process is None:
        raise HostError("the host %s does not run" % host.name)
    return subprocess.run(["nsenter", "-m", "-t", str(process), *argv], check=False).returncode


def remove(directory: Path) -> None:
    """Stop the host of a state directory and take away everything that it used. Never fails half way."""
    host = load(directory)
    if host:
        _stop(host, directory)
        for mount in _mounts_below(directory):
            run("umount", mount, check=False)
        run("ip", "netns", "del", host.tag, check=False)
        run("ip", "link", "del", host.tag, check=False)
        for base in CGROUPS:
            for path, _directories, _files in os.walk("%s/%s" % (base, host.tag), topdown=False):
                with contextlib.suppress(OSError):
                    os.rmdir(path)
        shutil.rmtree(NUMBERS / str(host.number), ignore_errors=True)
    if _mounts_below(directory):
        raise HostError("%s still holds mounts; not removed. Look with `findmnt -R`." % directory)
    shutil.rmtree(directory, ignore_errors=True)


def _stop(host: Host, directory: Path) -> None:
    process = leader(host, directory.parent.parent)
    if process is not None:
        os.kill(process, signal.SIGRTMIN + 4)  # systemd: power off
    deadline = time.monotonic() + SHUTDOWN_SECONDS
    while host.supervisor and _alive(host.supervisor) and time.monotonic() < deadline:
        time.sleep(0.05)
    for base in CGROUPS:
        kill = Path(base, host.tag, "cgroup.kill")  # the whole subtree at once, Linux 5.14
        if kill.exists():
            kill.write_text("1")
    while any(_populated(Path(base, host.tag)) for base in CGROUPS) and time.monotonic() < deadline + 5:
        time.sleep(0.05)


def _populated(group: Path) -> bool:
    try:
        return "populated 1" in (group / "cgroup.events").read_text()
    except OSError:
        return False


def _alive(pid: int) -> bool:
    try:
        state = Path("/proc/%d/stat" % pid).read_text().rpartition(")")[2].split()[0]
    except (OSError, IndexError):
        return False
    return state != "Z"


def _mounts_below(directory: Path) -> list[str]:
    lines = Path("/proc/mounts").read_text().splitlines()
    points = [line.split()[1] for line in lines if line.split()[1].startswith(str(directory) + "/")]
    return sorted(points, reverse=True)


def as_dict(host: Host, state: Path) -> dict[str, Any]:
    return {
        "name": host.name,
        "address": host.address,
        "release": host.release,
        "user": "root",
        "key": host.key,
        "root": str(state / "hosts" / host.name / "root"),
    }
