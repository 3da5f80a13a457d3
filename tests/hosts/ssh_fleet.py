"""Many hosts for SSH at the cost of one: addresses in a network namespace, one sshd that listens on all of them.

Each host is an address that Ansible connects to on its own (its own connection, its own ControlPersist master), through
a real network device, into a root file system of tests/hosts/rootfs.py. The hosts share that file system, their
processes and their kernel. Needs root on Linux.

`Bad` holds what a host can be that is none: an address where nobody is, one that accepts and never answers, a login
shell or a Python that prints nonsense, a Python that hangs in the middle of a module.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
import rootfs

ROOT = Path(__file__).resolve().parents[2]
STATE = Path(os.environ.get("GPU_TEST_HOSTS") or ROOT / ".test-hosts")
RELEASE = "trixie"
# Of the addresses for benchmarks (RFC 2544); each fleet has one of sixteen parts of it.
_PARTS = 16
_LIMIT = 4000  # hosts of one part
CONFIGURATION = """\
HostKey /etc/ssh/fleet_key
AuthorizedKeysFile /etc/ssh/fleet_authorized
UsePAM no
PermitRootLogin prohibit-password
MaxStartups 1000
MaxSessions 1000
PidFile none
PrintMotd no
UseDNS no
"""
# What is laid into the root file system, by path. Each of the users is root with a shell of its own.
PROGRAMS = {
    "/usr/local/bin/shell-noisy": '#!/bin/sh\necho "Welcome {\\"to\\": this host}"; echo "[1, 2"\nexec /bin/sh "$@"\n',
    "/usr/local/bin/shell-junk": "#!/bin/sh\nhead -c 20000 /dev/urandom\nexit 0\n",
    "/usr/local/bin/python-junk": "#!/bin/sh\ncat >/dev/null\nhead -c 20000 /dev/urandom\nexit 0\n",
    # It takes the module and begins to run, as one does that waits for a file system that is gone.
    "/usr/local/bin/python-hangs": "#!/bin/sh\ncat >/dev/null\ntrap '' TERM HUP\nwhile :; do sleep 1; done\n",
}
BAD: dict[str, dict[str, Any]] = {
    "unreachable": {},
    "silent": {"ansible_port": 2222},
    "junk_shell": {"ansible_user": "junk"},
    "junk_python": {"ansible_python_interpreter": "/usr/local/bin/python-junk"},
    "hanging": {"ansible_python_interpreter": "/usr/local/bin/python-hangs"},
}


def _run(*argv: str) -> None:
    done = subprocess.run(argv, capture_output=True, text=True, check=False)
    if done.returncode:
        raise OSError("%s: %s" % (" ".join(argv), done.stderr.strip()))


class SshFleet:
    """`count` hosts in the namespace `name`; `directory` is for what it needs."""

    def __init__(self, directory: Path, count: int, state: Path = STATE) -> None:
        if not 1 <= count <= _LIMIT:
            raise ValueError("1 to %d hosts" % _LIMIT)
        self._directory = directory
        self._base = rootfs.ensure(RELEASE, state)
        self._count = count
        self._server: subprocess.Popen[bytes] | None = None
        self._silent: subprocess.Popen[bytes] | None = None
        self.root = directory / "root"
        self.key = directory / "key"
        self.name, self._part = "", 0

    def __enter__(self) -> SshFleet:
        try:
            self._make_root()
            self._make_network()
            self.start()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_why: object) -> None:
        self.stop()
        if self._silent:
            self._silent.kill()
            self._silent.wait()
        if self.name:
            subprocess.run(["ip", "netns", "del", self.name], check=False, capture_output=True)
        for path in (self.root, self._directory / "layer"):
            subprocess.run(["umount", "--lazy", str(path)], check=False, capture_output=True)

    def address(self, number: int) -> str:
        """Of the host `number`, from 0."""
        return "198.18.%d.%d" % (16 * self._part + (number + 10) // 250, (number + 10) % 250 + 1)

    def host_variables(self, number: int) -> dict[str, Any]:
        """The variables of the host in an inventory."""
        return {"ansible_host": self.address(number)}

    def common_variables(self) -> dict[str, Any]:
        return {
            "ansible_user": "root",
            "ansible_ssh_private_key_file": str(self.key),
            "ansible_ssh_common_args": "-o StrictHostKeyChecking=no -o UserKnownHostsFile=/dev/null -o LogLevel=ERROR",
            "ansible_python_interpreter": "/usr/bin/python3",
        }

    def bad_variables(self, kind: str) -> dict[str, Any]:
        """The variables of a host of BAD. One that is unreachable has an address that nobody has."""
        return {"ansible_host": self.address(self._count if kind == "unreachable" else 0), **BAD[kind]}

    def start(self) -> None:
        """The server, in namespaces of its own; process 1 there is sshd, which waits for all that it starts."""
        prepare = "mount --rbind /dev {0}/dev && mount --rbind /sys {0}/sys && exec chroot {0} /usr/sbin/sshd -D -f {1}"
        argv = ["ip", "netns", "exec", self.name, "unshare", "--mount", "--uts", "--pid", "--fork", "--kill-child"]
        argv += ["--propagation", "private", "--mount-proc=%s/proc" % self.root, "sh", "-c"]
        with open(self._directory / "sshd.log", "ab") as log:
            self._server = subprocess.Popen(
                [*argv, prepare.format(self.root, "/etc/ssh/fleet_config")],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
            )  # fmt: skip
        deadline = time.monotonic() + 20
        while True:
            try:
                with socket.create_connection((self.address(0), 22), timeout=1) as link:
                    link.settimeout(2)
                    if link.recv(4) == b"SSH-":
                        return
            except OSError:
                pass
            if self._server.poll() is not None or time.monotonic() > deadline:
                log_text = (self._directory / "sshd.log").read_text(errors="replace")
                raise OSError("sshd does not answer:\n%s" % log_text[-1000:])
            time.sleep(0.02)

    def stop(self) -> float:
        """End the server and every process of the hosts: seconds of processor time that they took.

        Of connections that are still open nothing is counted.
        """
        if self._server is None:
            return 0.0
        server, self._server = self._server, None
        children = Path("/proc/%d/task/%d/children" % (server.pid, server.pid))
        # Process 1 of the namespace, with which the others end. It is asked first: what is killed does not tell of its
        # children.
        inside = [int(child) for child in children.read_text().split()] if children.exists() else []
        deadline = time.monotonic() + 5
        number = signal.SIGTERM
        while True:
            for child in inside:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(child, number)
            pid, status, usage = os.wait4(server.pid, os.WNOHANG)
            if pid:
                server.returncode = os.waitstatus_to_exitcode(status)
                return usage.ru_utime + usage.ru_stime
            number = signal.SIGKILL if time.monotonic() > deadline else signal.SIGTERM
            time.sleep(0.05)

    def _make_root(self) -> None:
        layer = self._directory / "layer"
        for path in (layer, self.root):
            path.mkdir(parents=True)
        _run("mount", "-t", "tmpfs", "-o", "mode=755,size=256m", "tmpfs", str(layer))
        for part in ("upper", "work"):
            (layer / part).mkdir()
        options = "lowerdir=%s,upperdir=%s/upper,workdir=%s/work" % (self._base, layer, layer)
        _run("mount", "-t", "overlay", "overlay", "-o", options, str(self.root))
        for path in (self.key, self.root / "etc/ssh/fleet_key"):
            _run("ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(path))
        (self.root / "etc/ssh/fleet_authorized").write_text(self.key.with_suffix(".pub").read_text())
        (self.root / "etc/ssh/fleet_config").write_text(CONFIGURATION)
        (self.root / "run/sshd").mkdir(exist_ok=True, mode=0o755)
        for name, text in PROGRAMS.items():
            path = self.root / name.lstrip("/")
            path.write_text(text)
            path.chmod(0o755)
        with open(self.root / "etc/passwd", "a") as users, open(self.root / "etc/shadow", "a") as shadow:
            for name in ("noisy", "junk"):
                users.write("%s:x:0:0::/root:/usr/local/bin/shell-%s\n" % (name, name))
                shadow.write("%s:*:20000:0:99999:7:::\n" % name)

    def _make_network(self) -> None:
        for part in range(_PARTS):
            name = "gthf%d" % part
            done = subprocess.run(["ip", "netns", "add", name], capture_output=True, text=True, check=False)
            if done.returncode == 0:
                break
        else:
            raise OSError("no network namespace could be made: %s" % done.stderr.strip())
        self.name, self._part = name, part
        _run("ip", "link", "add", name, "type", "veth", "peer", "name", "host0", "netns", name)
        _run("ip", "addr", "add", "198.18.%d.2/20" % (16 * part), "dev", name)
        _run("ip", "link", "set", name, "up")
        addresses = "".join("addr add %s/20 dev host0\n" % self.address(number) for number in range(self._count))
        script = "link set lo up\n%slink set host0 up\n" % addresses
        subprocess.run(["ip", "-n", name, "-batch", "-"], input=script, text=True, check=True, capture_output=True)

    def listen_silently(self) -> None:
        """On port 2222 of every host: the connection is accepted, and nothing is ever said."""
        program = (
            "import socket, time\ns = socket.socket()\ns.bind(('', 2222))\ns.listen(100)\nkept = []\n"
            "while True: kept.append(s.accept())"
        )
        self._silent = subprocess.Popen(
            ["ip", "netns", "exec", self.name, sys.executable, "-c", program], stdin=subprocess.DEVNULL
        )
