"""Root file systems of the test hosts: Debian releases made by mmdebstrap, cached below .test-hosts/rootfs."""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path

RELEASES = ("bookworm", "trixie")
# What a small real server has; kmod and initramfs-tools because the roles run modprobe and update-initramfs for real.
INCLUDE = (
    "systemd,systemd-sysv,dbus,python3,openssh-server,iproute2,kmod,initramfs-tools,udev,procps,ca-certificates,"
    "pciutils,apt-utils"
)
# A release with further packages: VARIANT-RELEASE. What podman starts a container with, and its process 1.
VARIANTS = {"podman": "podman,crun,runc,catatonit"}
# Services that have no work in a test host and only cost time at each boot, and logs that nobody reads.
MASKED = (
    "systemd-udevd.service",
    "systemd-udev-trigger.service",
    "apt-daily.timer",
    "apt-daily-upgrade.timer",
    "e2scrub_all.timer",
    "fstrim.timer",
)


class RootfsError(Exception):
    """A root file system that cannot be made; the message says what to do."""


def mirror() -> str:
    """The Debian mirror that this machine uses itself, or Debian's own."""
    for path in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for line in path.read_text(errors="replace").splitlines():
            if line.startswith("URIs:") and "debian" in line:
                return line.split()[1]
    for line in (
        Path("/etc/apt/sources.list").read_text(errors="replace").splitlines()
        if Path("/etc/apt/sources.list").exists()
        else ()
    ):
        fields = line.split()
        if fields[:1] == ["deb"] and len(fields) > 2:
            return next((field for field in fields if "://" in field), "http://deb.debian.org/debian")
    return "http://deb.debian.org/debian"


def ensure(release: str, state: Path) -> Path:
    """The directory of `release` (trixie, podman-trixie), made if it is not there yet.

    Safe beside another process that makes the same one.
    """
    known = (*RELEASES, *("%s-%s" % (variant, name) for variant in VARIANTS for name in RELEASES))
    if release not in known:
        raise RootfsError("no such release: %s; known are %s" % (release, ", ".join(known)))
    version = hashlib.sha256((release + _packages(release) + ",".join(MASKED) + "1").encode()).hexdigest()[:10]
    final = state / "rootfs" / ("%s-%s" % (release, version))
    final.parent.mkdir(parents=True, exist_ok=True)
    with open(final.parent / (release + ".lock"), "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return final
        began = time.monotonic()
        print("making the root file system of %s, about 40 s ..." % release, file=sys.stderr, flush=True)
        partial = final.with_name(final.name + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        _make(release, partial)
        for stale in final.parent.glob(release + "-*"):
            if stale not in (partial, final) and not _in_use(stale):
                shutil.rmtree(stale, ignore_errors=True)
        os.rename(partial, final)
        print("made in %.0f s: %s" % (time.monotonic() - began, final), file=sys.stderr, flush=True)
    return final


def _packages(release: str) -> str:
    variant = release.rpartition("-")[0]
    return ",".join([INCLUDE, *([VARIANTS[variant]] if variant else [])])


def _make(release: str, target: Path) -> None:
    argv = [
        "mmdebstrap",
        "--quiet",
        "--variant=minbase",
        "--include=" + _packages(release),
        "--skip=cleanup/apt/lists",
        release.rpartition("-")[2],
        str(target),
        mirror(),
    ]
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode:
        raise RootfsError("mmdebstrap failed for %s:\n%s" % (release, result.stdout[-2000:]))
    (target / "etc/machine-id").write_text("")
    (target / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    for unit in MASKED:
        link = target / "etc/systemd/system" / unit
        link.unlink(missing_ok=True)
        link.symlink_to("/dev/null")
    # Nothing here can boot a kernel of its own; hosts that test the initramfs lay a kernel tree down themselves.
    (target / "etc/apt/apt.conf.d/99test-host").write_text('Acquire::Retries "0";\nDpkg::Use-Pty "0";\n')


def _in_use(directory: Path) -> bool:
    return ("lowerdir=%s," % directory) in Path("/proc/mounts").read_text()
