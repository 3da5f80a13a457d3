"""The disk that the virtual machines boot from, and their kernel.

Made from Debian's packages, cached in .test-hosts/vm.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import sys
import time
from pathlib import Path
from typing import NamedTuple

HERE = Path(__file__).resolve().parent
sys.path.insert(0, str(HERE.parent / "hosts"))

import machine
import rootfs

RELEASE = "bookworm"
# The cloud flavour has the IOMMU, NVMe and ext4 built in, so that it boots without an initramfs.
KERNEL = "linux-image-cloud-amd64"
INIT = HERE / "init.sh"


class ImageError(Exception):
    """An image that cannot be made; the message says why."""


class Image(NamedTuple):
    disk: Path
    kernel: Path
    key: Path  # of root's SSH


def ensure(state: Path) -> Image:
    """The image, made if it is not there yet. Safe beside another process that makes it too."""
    tree = rootfs.ensure(RELEASE, state)
    key = machine.ssh_key(state)
    public = Path(str(key) + ".pub").read_bytes()
    version = hashlib.sha256(
        b"\0".join([tree.name.encode(), KERNEL.encode(), INIT.read_bytes(), public, b"1"])
    ).hexdigest()[:10]
    directory = state / "vm"
    directory.mkdir(parents=True, exist_ok=True)
    final = directory / version
    image = Image(final / "disk.img", final / "vmlinuz", key)
    with open(directory / "lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if final.is_dir():
            return image
        began = time.monotonic()
        print("making the disk of the virtual machines, about 20 s ...", file=sys.stderr, flush=True)
        partial = directory / (version + ".partial")
        shutil.rmtree(partial, ignore_errors=True)
        partial.mkdir()
        _make(tree, public, partial)
        for stale in directory.iterdir():
            if stale.is_dir() and stale != partial:
                shutil.rmtree(stale, ignore_errors=True)
        os.rename(partial, final)
        print("made in %.0f s: %s" % (time.monotonic() - began, final), file=sys.stderr, flush=True)
    return image


def _make(source: Path, public: bytes, target: Path) -> None:
    tree = target / "tree"
    _run("cp", "-a", str(source), str(tree))
    _kernel(tree, target / "vmlinuz")
    (tree / "root/.ssh").mkdir(mode=0o700, exist_ok=True)
    (tree / "root/.ssh/authorized_keys").write_bytes(public)
    (tree / "root/.ssh/authorized_keys").chmod(0o600)
    shutil.copy(INIT, tree / "vm-init")
    (tree / "vm-init").chmod(0o755)
    shutil.rmtree(tree / "var/cache/apt", ignore_errors=True)
    shutil.rmtree(tree / "var/lib/apt/lists", ignore_errors=True)
    _run("mke2fs", "-q", "-t", "ext4", "-L", "root", "-d", str(tree), str(target / "disk.img"), "900M")
    shutil.rmtree(tree)


def _kernel(tree: Path, vmlinuz: Path) -> None:
    """Unpack the kernel and its modules. Not installed: that would make an initramfs, which nothing needs."""
    shutil.copy("/etc/resolv.conf", tree / "etc/resolv.conf")
    fetch = [
        "chroot",
        str(tree),
        "apt-get",
        "-q",
        "-y",
        "--no-install-recommends",
        "--download-only",
        "install",
        KERNEL,
    ]
    if subprocess.run(
        fetch, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, check=False
    ).returncode:
        _run("chroot", str(tree), "apt-get", "-q", "update")
        _run(*fetch)
    packages = list((tree / "var/cache/apt/archives").glob("linux-image-[0-9]*-cloud-amd64_*.deb"))
    if len(packages) != 1:
        raise ImageError(
            "%s brought %s instead of one kernel" % (KERNEL, [package.name for package in packages] or "nothing")
        )
    # Beside the tree: extracting into it would replace the link /lib by a directory.
    unpacked = tree.with_name("kernel")
    _run("dpkg-deb", "-x", str(packages[0]), str(unpacked))
    kernel = next((unpacked / "boot").glob("vmlinuz-*"))
    shutil.copytree(unpacked / "lib/modules", tree / "usr/lib/modules", symlinks=True, dirs_exist_ok=True)
    _run("chroot", str(tree), "/usr/sbin/depmod", kernel.name.partition("-")[2])
    shutil.move(str(kernel), str(vmlinuz))
    shutil.rmtree(unpacked)


def _run(*argv: str) -> None:
    result = subprocess.run(
        argv, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False
    )
    if result.returncode:
        raise ImageError("%s: %s" % (" ".join(argv), result.stdout.strip()[-1500:]))


if __name__ == "__main__":
    print(ensure(Path(sys.argv[1])))
