"""Carries a plan out on a Proxmox host.

By `qm` and `pct`, which check the values, and by the file only for what they cannot do.

The configuration's digest goes with every change, so that one that another process changed meanwhile is left alone. A
file is written beside its place, synced and renamed, under Proxmox's own lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Callable

from ..gpu_host.evidence.interface import Outcome
from ..gpu_host.evidence.live import LiveEvidence

LOCKS = {"vm": "/var/lock/qemu-server/lock-%s.conf", "lxc": "/run/lock/lxc/pve-config-%s.lock"}
FILES = {"vm": "/etc/pve/qemu-server/%s.conf", "lxc": "/etc/pve/lxc/%s.conf"}
TOOLS = {"vm": "qm", "lxc": "pct"}
LOCK_SECONDS = 10.0

Run = Callable[[Sequence[str], float], Outcome]


class ApplyError(ValueError):
    """The change was not made; the message says why and what to do. Nothing is half-written."""


class Guest:
    """One guest's configuration on disk. `root` prefixes every path, `run` runs a command with a time limit."""

    def __init__(self, kind: str, vmid: str, root: str = "", run: Run | None = None) -> None:
        self.kind, self.vmid = kind, vmid
        self.path = FILES[kind] % vmid
        self._root = root
        self._run = run or LiveEvidence().run

    def text(self) -> str:
        """The file as it is, every byte kept (surrogates for what is no UTF-8)."""
        try:
            with open(self._root + self.path, "rb") as handle:
                return handle.read().decode("utf-8", "surrogateescape")
        except FileNotFoundError as error:
            kind = "VM" if self.kind == "vm" else "container"
            text = "%s: this host has no %s %s. Check vmid and type, and that the guest is on this node."
            raise ApplyError(text % (self.path, kind, self.vmid)) from error
        except OSError as error:
            raise ApplyError("%s cannot be read: %s" % (self.path, error.strerror)) from error

    def configure(self, arguments: Sequence[str], before: str) -> list[str]:
        """`qm set` or `pct set` with the digest of `before`.

        Returns the command without the digest, as one would type it.
        """
        tool = TOOLS[self.kind]
        command = [tool, "set", self.vmid, *arguments]
        outcome = self._run([*command, "--digest", digest_config(before)], 120.0)
        if not outcome.ok:
            raise ApplyError(
                "%s did not run: %s. Is this a Proxmox VE host?" % (tool, outcome.reason or outcome.status)
            )
        if outcome.rc != 0:
            raise ApplyError(
                _explained(self.path, " ".join(command), outcome.error_text.strip() or outcome.text.strip())
            )
        return command

    def replace(self, before: str, after: str) -> None:
        """Write the file anew if it still is `before`."""
        with self._locked():
            if self.text() != before:
                raise ApplyError(_explained(self.path, "writing it", "file changed by other user"))
            _write(self._root + self.path, after.encode("utf-8", "surrogateescape"), self.path)

    def backup(self, directory: str, text: str) -> str:
        """Keep a copy of the configuration as it was; returns its path."""
        stamp = time.strftime("%Y%m%dT%H%M%S")
        target = "%s/%s-%s.conf.%s" % (directory, self.kind, self.vmid, stamp)
        try:
            os.makedirs(self._root + directory, mode=0o700, exist_ok=True)
            _write(self._root + target, text.encode("utf-8", "surrogateescape"), target)
        except OSError as error:
            raise ApplyError(
                "the backup %s cannot be written: %s. Nothing was changed." % (target, error.strerror)
            ) from error
        return target

    def restart(self) -> list[list[str]]:
        """Stop and start the guest; a reboot from inside would keep a VM's old process."""
        if self.kind == "lxc":
            commands = [["pct", "reboot", self.vmid, "--timeout", "120"]]
        else:
            commands = [["qm", "shutdown", self.vmid, "--timeout", "180"], ["qm", "start", self.vmid]]
        for command in commands:
            outcome = self._run(command, 400.0)
            if not outcome.ok or outcome.rc != 0:
                text = outcome.error_text.strip() or outcome.text.strip() or outcome.reason
                raise ApplyError(
                    "`%s` failed: %s. The configuration is changed; start the guest by hand."
                    % (" ".join(command), text)
                )
        return commands

    @contextmanager
    def _locked(self) -> Iterator[None]:
        """Proxmox's lock of this configuration; made if nobody held it yet."""
        path = self._root + LOCKS[self.kind] % self.vmid
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "a") as handle:
            end = time.monotonic() + LOCK_SECONDS
            while True:
                try:
                    fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
                    break
                except OSError as error:
                    if time.monotonic() > end:
                        text = (
                            "%s is locked by another process (a backup, a migration?). Nothing was changed; try "
                            "again when it is done."
                        )
                        raise ApplyError(text % self.path) from error
                    time.sleep(0.2)
            yield


def digest_config(text: str) -> str:
    """Proxmox's digest of a configuration: the SHA-1 of the file."""
    # Proxmox's choice, not a secret's.
    return hashlib.sha1(text.encode("utf-8", "surrogateescape")).hexdigest()  # noqa: S324


def _explained(path: str, action: str, problem: str) -> str:
    if "changed by other user" in problem or "modified configuration" in problem:
        return "%s was changed by another process meanwhile. Nothing was written; run this again." % path
    if "q35 machine model is not enabled" in problem:
        return "%s: pcie=1 needs the Q35 chipset (machine: q35). Nothing was written." % path
    if "Permission denied" in problem or "no quorum" in problem or "Read-only" in problem:
        return (
            "%s: %s. The cluster file system takes no changes; has the cluster a quorum (`pvecm status`)? Nothing was "
            "written." % (path, problem)
        )
    return "%s: `%s` failed: %s. Nothing was written." % (path, action, problem)


def _write(path: str, data: bytes, shown: str) -> None:
    temporary = "%s.tmp.%d" % (path, os.getpid())
    try:
        descriptor = os.open(temporary, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o640)
        try:
            view = memoryview(data)
            while view:
                view = view[os.write(descriptor, view) :]
            os.fsync(descriptor)
        finally:
            os.close(descriptor)
        os.rename(temporary, path)
    except OSError as error:
        with suppress(OSError):
            os.unlink(temporary)
        raise ApplyError(_explained(shown, "writing it", error.strerror or str(error))) from error
