"""Proxmox: configurations of VMs and containers, pveversion, and what stands below /etc/pve."""

from __future__ import annotations

import posixpath
import re

from .piece import Piece, Recognised, read_record, run_record

SIDE = "hypervisor"
VERSION = ("pveversion",)
_OF_A_VM = re.compile(
    r"^(?:hostpci\d+|machine|bios|scsihw|vmgenid|efidisk\d|tpmstate\d|smbios1|args|vga|agent|sockets|balloon|kvm|numa\d?"
    r"|virtio\d+|sata\d+|ide\d+|scsi\d+|serial\d|bootdisk|cpu): \S",
    re.M,
)
_OF_A_CONTAINER = re.compile(
    r"^(?:lxc\.[\w.]+\s*[:=]|dev\d+: /dev/|rootfs: |mp\d+: |unprivileged: |cmode: |swap: |features: )", re.M
)
_OF_BOTH = re.compile(
    r"^(?:boot|cores|memory|name|hostname|net\d+|onboot|ostype|arch|meta|tags|parent|description|startup|protection"
    r"|ipconfig\d+|sshkeys|ciuser|snaptime|template|vmstate): ",
    re.M,
)
_SECTION = re.compile(r"^\[", re.M)
_VERSION_LINE = re.compile(r"^pve-manager(?:/|: )(?P<version>\d[\w.~-]*)", re.M)


def recognise_piece(piece: Piece) -> Recognised | None:
    text = piece.text
    version = _VERSION_LINE.search(text)
    if version and len(text) < 20_000:
        data = b"pve-manager/%s/\n" % version["version"].encode("ascii", "replace")
        return Recognised("pveversion", (run_record(VERSION, data),), side=SIDE, extra={"of_the_node": True})
    if piece.path.startswith("/etc/pve/") and not re.search(r"/(?:qemu-server|lxc)/\d+\.conf$", piece.path):
        return Recognised(piece.path, (read_record(piece.path, text),), side=SIDE)
    return _configuration(piece, text)


def _configuration(piece: Piece, text: str) -> Recognised | None:
    current = _SECTION.split(text, 1)[0]
    lines = [line for line in current.split("\n") if line.strip() and not line.startswith("#")]
    vm, container, both = (len(found.findall(current)) for found in (_OF_A_VM, _OF_A_CONTAINER, _OF_BOTH))
    said = re.search(r"/(qemu-server|lxc)/\d+\.conf$", piece.path or piece.name) or re.search(
        r"\b(qm|pct) config\b", piece.command
    )
    if not lines or (vm + container + both) * 3 < len(lines) * 2 or not (vm or container or said):
        return None
    is_vm = said.group(1) in ("qemu-server", "qm") if said else vm >= container
    kind, directory = ("VM", "qemu-server") if is_vm else ("container", "lxc")
    number = _number(piece)
    what = "configuration of a Proxmox %s%s" % (
        kind,
        ", %s" % number if number else " (its number does not stand with it)",
    )
    path = "/etc/pve/%s/%s.conf" % (directory, number or "NUMBER")
    return Recognised(what, (read_record(path, text),), side=SIDE, extra={"guest": kind, "number": number})


def _number(piece: Piece) -> str:
    for text in (piece.path, piece.command, posixpath.basename(piece.name.partition(":")[0])):
        match = re.search(r"(?:^|[/\s_-])(?P<number>[1-9]\d{2,8})(?:\.conf|\.txt|\s|$)", text or "")
        if match:
            return match["number"]
    return ""
