"""What is left out of the configuration of a Proxmox guest before it is taken in.

No reader asks for a guest's description, its cloud-init settings or its SMBIOS strings, and people write passwords
there. Every line stays where it is, since faults are told by their line, and a value keeps its shape: what Proxmox
takes or refuses, it takes or refuses afterwards, too. `qm set --digest` is not concerned: that reads the file itself.
"""

from __future__ import annotations

import re
from typing import Callable

from .secret_words import MASK

PATH = re.compile(r"(?:.*/)?(?:qemu-server|lxc)/[^/]+\.conf(?:\.tmp)?")
_LINE = re.compile(rb"(?P<start>\s*(?P<key>[A-Za-z][A-Za-z_\-]*[0-9]*)[ \t]*[:=][ \t]*)(?P<value>[^\n]*)")
_RAW_LINE = re.compile(rb"\s*lxc\.", re.I)
# Settings that a reader asks for, or whose values only say how the guest is built. Any other is masked.
_BUILT = re.compile(
    rb"(?i)(?:(?:hostpci|dev|numa|net|ide|sata|scsi|virtio|virtiofs|unused|usb|serial|parallel|mp|efidisk|tpmstate|audio|rng)[0-9]+"
    rb"|acpi|affinity|agent|allow-ksm|amd-sev|arch|args|autostart|balloon|bios|boot|bootdisk|cdrom|ciupgrade|citype|cmode|console|cores"
    rb"|cpu|cpulimit|cpuunits|debug|delete|entrypoint|features|freeze|hookscript|hostname|hotplug|hugepages|intel-tdx|ivshmem"
    rb"|keephugepages|keyboard|kvm|localtime|lock|machine|memory|meta|migrate_downtime|migrate_speed|name|numa|onboot|ostype|parent"
    rb"|protection|reboot|rootfs|runningcpu|runningmachine|running-nets-host-mtu|scsihw|shares|smp|snapstate|snaptime|sockets"
    rb"|spice_enhancements|startdate|startup|swap|tablet|tags|tdf|template|timezone|tty|unprivileged|vcpus|vga|vmstate|vmstatestorage"
    rb"|watchdog)"
)
# Settings whose form Proxmox checks: the letters and digits go, the form stays.
_SHAPED = re.compile(rb"(?:smbios1|sshkeys|vmgenid|cicustom|ipconfig[0-9]+|nameserver|searchdomain)")
_PROPERTY = re.compile(
    rb"(?:(?<=,)|^)(?:uuid|version|serial|manufacturer|product|sku|family|ip6?|gw6?|meta|network|user|vendor)="
    rb"|base64=[A-Za-z0-9]{0,5}(?=,|\s*$)|(?<==)(?:dhcp|auto|manual)(?=,|\s*$)"
)
_SERIAL = re.compile(rb"(?<=[,\s])serial=[^,\s]+")
# A line that is no setting, and begins like one that decides about GPUs: its text helps to mend it.
_MEANT = re.compile(
    rb"\W*(?:hostpci|dev|machine|cpu|args|lxc\.|unprivileged|features)[0-9 \t]*(?:[^\s0-9]\S*\s*|[^\S \t]\s*)?[:=]",
    re.I,
)
_SHAPE = bytes.maketrans(
    bytes(range(256)),
    bytes(
        ord("1") if chr(code).isdigit() and code < 128
        else ord("a") if chr(code) in "abcdef"
        else ord("A") if chr(code) in "ABCDEF"
        else ord("x") if chr(code) in "ghijklmnopqrstuvwxyz"
        else ord("X") if chr(code) in "GHIJKLMNOPQRSTUVWXYZ"
        else code if code < 128 or code in (0x85, 0xA0)  # Perl takes these two for blanks
        else ord("?")
        for code in range(256)
    ),
)  # fmt: skip


def redact_guest(data: bytes, redact_text: Callable[[bytes], bytes]) -> bytes:
    """The configuration of a VM or a container without what no reader asks for; what stays has gone through
    `redact_text`."""
    return b"\n".join(_redact_line(line, redact_text) for line in data.split(b"\n"))


def _redact_line(line: bytes, redact_text: Callable[[bytes], bytes]) -> bytes:
    if line.startswith(b"#"):
        return b"#"
    if not line.strip() or line.startswith(b"[") or _RAW_LINE.match(line):
        return redact_text(line)
    match = _LINE.match(line)
    key = match.group("key").lower() if match else b""
    if match is None or not line.startswith(match.group("key") + b":"):
        # Proxmox takes it for no setting at all.
        meant = _MEANT.match(line) or _BUILT.fullmatch(key)
        return _SERIAL.sub(_shape, redact_text(line)) if meant else _mask(line)
    start, value = match.group("start"), match.group("value")
    if key == b"env":
        return redact_text(line)
    if _BUILT.fullmatch(key):
        return start + _SERIAL.sub(_shape, redact_text(b" " + value)[1:])
    return start + (_shape_value(value) if _SHAPED.fullmatch(key) else _mask(value))


def _mask(value: bytes) -> bytes:
    """The mask in the place of each part; a carriage return inside is what Proxmox refuses a value for."""
    parts = [MASK if part.strip() else part for part in value.rstrip().split(b"\r")]
    return b"\r".join(parts) + value[len(value.rstrip()) :]


def _shape(match: re.Match[bytes]) -> bytes:
    return match.group(0)[:7] + match.group(0)[7:].translate(_SHAPE)


def _shape_value(value: bytes) -> bytes:
    parts, end = [], 0
    for match in _PROPERTY.finditer(value):
        parts += [value[end : match.start()].translate(_SHAPE), match.group(0)]
        end = match.end()
    return b"".join([*parts, value[end:].translate(_SHAPE)])
