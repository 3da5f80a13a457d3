"""One QEMU guest without KVM, reached by SSH on a port of the loopback address."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO

from gpu_device import Gpu, disguise
from vm_image import Image

QEMU = "qemu-system-x86_64"
# A guest of a test run that was killed ends by itself.
LIFETIME_SECONDS = 1200
SSH_OPTIONS = (
    "-o",
    "StrictHostKeyChecking=no",
    "-o",
    "UserKnownHostsFile=/dev/null",
    "-o",
    "LogLevel=ERROR",
    "-o",
    "BatchMode=yes",
)


class VmError(Exception):
    """A guest that does not start or answer; the message holds the end of its console."""


@dataclass(frozen=True)
class Guest:
    """What to start: QEMU's arguments; the GPUs by PCI address, made of some of the devices that the arguments name.

    Kernel options.
    """

    name: str
    arguments: list[str]
    gpus: dict[str, Gpu]
    append: str = ""


class Vm:
    """A running guest. Its console and QEMU's messages are written to `directory`."""

    def __init__(self, guest: Guest, image: Image, directory: Path) -> None:
        self.name = guest.name
        self.port = _free_port()
        self._key = image.key
        self._console = directory / (guest.name + ".console")
        self._log = directory / (guest.name + ".qemu")
        monitor, theirs = socket.socketpair()
        command = [
            "timeout",
            "--foreground",
            "--kill-after=5",
            str(LIFETIME_SECONDS),
            QEMU,
            "-accel",
            "tcg",
            "-smp",
            "1",
        ]
        command += [
            "-S",
            "-nodefaults",
            "-display",
            "none",
            "-no-reboot",
            "-serial",
            "file:%s" % self._console,
            "-kernel",
            str(image.kernel),
        ]
        command += [
            "-append",
            "root=/dev/nvme0n1 rw console=ttyS0 init=/vm-init mitigations=off random.trust_cpu=on " + guest.append,
        ]
        command += ["-drive", "if=none,id=disk,file=%s,format=raw,snapshot=on,cache=unsafe" % image.disk]
        command += ["-netdev", "user,id=net,restrict=on,hostfwd=tcp:127.0.0.1:%d-:22" % self.port]
        command += [
            "-chardev",
            "socket,id=qmp,fd=%d" % theirs.fileno(),
            "-mon",
            "chardev=qmp,mode=control",
            *guest.arguments,
        ]
        with open(self._log, "wb") as log, theirs:
            self._process = subprocess.Popen(
                command,
                stdin=subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                pass_fds=[theirs.fileno()],
                start_new_session=True,
            )
        try:
            self._begin(monitor, list(guest.gpus.values()))
        except BaseException:
            self.stop()
            raise

    def _begin(self, monitor: socket.socket, gpus: list[Gpu]) -> None:
        """Wait until QEMU has made all its devices, turn some into GPUs, and let the guest run."""
        monitor.settimeout(60)
        with monitor, monitor.makefile("rw") as lines:
            # The greeting comes early; commands are answered when all devices are there.
            self._ask(lines, "qmp_capabilities")
            # QEMU is a child of `timeout`.
            children = Path("/proc/%d/task/%d/children" % (self._process.pid, self._process.pid)).read_text().split()
            disguise(int(children[0]), gpus)
            self._ask(lines, "cont")

    def _ask(self, lines: IO[str], command: str) -> None:
        lines.write('{"execute": "%s"}\n' % command)
        lines.flush()
        for answer in lines:
            if '"return"' in answer:
                return
        self._process.wait(10)
        raise VmError("QEMU does not start: %s" % _tail(self._log))

    def wait_ready(self, deadline: float) -> None:
        """Wait until sshd greets; `deadline` in the clock of time.monotonic()."""
        while time.monotonic() < deadline and self._process.poll() is None:
            try:
                with socket.create_connection(("127.0.0.1", self.port), timeout=2) as link:
                    link.settimeout(5)
                    if link.recv(16).startswith(b"SSH-"):
                        return
            except OSError:
                pass
            time.sleep(0.2)
        state = (
            "ended with exit code %s" % self._process.poll() if self._process.poll() is not None else "does not answer"
        )
        raise VmError(
            "the guest %s %s.\nQEMU: %s\nEnd of its console:\n%s"
            % (self.name, state, _tail(self._log), _tail(self._console))
        )

    def ssh(self, command: str) -> str:
        """The output of a shell command in the guest; VmError if it fails."""
        argv = ["ssh", *SSH_OPTIONS, "-i", str(self._key), "-p", str(self.port), "root@127.0.0.1", command]
        result = subprocess.run(
            argv, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=120, check=False
        )
        if result.returncode:
            raise VmError(
                "%s: %s: exit code %d: %s"
                % (self.name, command, result.returncode, (result.stdout + result.stderr).strip())
            )
        return result.stdout

    def inventory_line(self) -> str:
        """The guest as a host of an INI inventory."""
        variables = "ansible_host=127.0.0.1 ansible_port=%d ansible_user=root ansible_ssh_private_key_file=%s" % (
            self.port,
            self._key,
        )
        return "%s %s ansible_python_interpreter=/usr/bin/python3 ansible_ssh_common_args='%s'" % (
            self.name,
            variables,
            " ".join(SSH_OPTIONS),
        )

    def stop(self) -> None:
        """End QEMU."""
        if self._process.poll() is None:
            os.killpg(self._process.pid, signal.SIGKILL)
            self._process.wait(10)


def _free_port() -> int:
    with socket.socket() as listener:
        listener.bind(("127.0.0.1", 0))
        return int(listener.getsockname()[1])


def _tail(path: Path) -> str:
    try:
        return path.read_text(errors="replace")[-2500:].strip() or "(nothing)"
    except OSError as error:
        return str(error)
