"""Whether this very system is a Proxmox VE host, by what its evidence shows; the inventory need not say so.

pve-manager brings /etc/pve (the cluster's file system, pmxcfs) and the program pveversion. Its kernel and the names
that its installer gives are weaker signs: other products of Proxmox have the same kernel, and a container shows its
host's.
"""

from __future__ import annotations

import re

from ..evidence.interface import ABSENT, NOT_CAPTURED, Evidence

DIRECTORY = "/etc/pve"
VERSION_COMMAND = ("pveversion",)
VERSION_SECONDS = 20.0
KERNEL_FILE = "/proc/sys/kernel/osrelease"
# file -> (what in it is a sign, how to say it)
_WEAK_SIGNS = (
    (KERNEL_FILE, re.compile(r"-pve\b"), "Proxmox's kernel"),
    ("/etc/os-release", re.compile(r"\bproxmox\b|\bpve\b", re.IGNORECASE), "its name in /etc/os-release"),
    ("/proc/cmdline", re.compile(r"root=\S{0,200}?\bpve\b"), "a root file system that Proxmox's installer named"),
)


def find_signs(evidence: Evidence, container: str | None) -> tuple[bool | None, list[str]]:
    """(whether this is a Proxmox VE host, the signs of it). `container`: its kind, "" for none, None for unknown.

    True where /etc/pve or pveversion is there, whether or not it may be read. False in a container; where /etc/pve is
    looked for and not there; and where neither was captured, but the kernel was and is another one. None where only the
    weaker signs speak for it, or nothing at all is known.
    """
    if container:
        return False, []
    directory = evidence.list(DIRECTORY)
    version = evidence.run(VERSION_COMMAND, VERSION_SECONDS)
    signs = []
    if directory.entries or directory.status not in (ABSENT, NOT_CAPTURED):
        signs.append(DIRECTORY)
    if "pve-manager/" in version.text:
        signs.append(version.text.split()[0])
    elif version.status not in (ABSENT, NOT_CAPTURED):
        signs.append("the program pveversion")
    if signs:
        return True, signs
    readings = {path: evidence.read(path, 65536) for path, _sign, _words in _WEAK_SIGNS}
    signs = [words for path, sign, words in _WEAK_SIGNS if sign.search(readings[path].text)]
    if directory.status == ABSENT:
        return False, signs
    return (False if readings[KERNEL_FILE].ok and not signs else None), signs
