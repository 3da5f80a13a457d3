"""Files of a host, by their path where one stands with them, else by their content; and commands that show the same."""

from __future__ import annotations

import posixpath
import re

from ..evidence import values
from . import command_lines
from .piece import Piece, Recognised, Record, read_record, run_record

_MODPROBE = re.compile(r"^\s*(?:options|blacklist|softdep|install|alias|remove|weakdep)\s+\S")
_CMDLINE = re.compile(r"(?:^|\s)(?:BOOT_IMAGE=|initrd=\\|root=\S)")
_PARAMETER = re.compile(
    r"(?:(?:amd_|intel_)?iommu(?:\.passthrough)?=\S+|quiet|splash|nokaslr|pcie_acs_override=\S+"
    r"|pci=\S+|ro|rw|mitigations=\S+|[\w.]+=\S*)"
)
_GONE = re.compile(
    r"^\S{0,20}: (?:cannot (?:open|access) )?'?(?P<path>/[^':\n]{1,200})'?:? .{0,20}?"
    r"(?P<why>No such file or directory|Permission denied|Operation not permitted)",
    re.M,
)
_SHOWN_VALUE = re.compile(
    r"^(?P<path>/sys/(?:module|bus|kernel|class|devices)/[\w./:@-]{3,200}):(?P<value>[^\n]{0,400})$", re.M
)
_CONTENT = (
    (re.compile(r"^NVRM version: ", re.M), "/proc/driver/nvidia/version"),
    (re.compile(r"^(?:ResmanDebugLevel|RmLogonRC|ModifyDeviceFiles): ", re.M), "/proc/driver/nvidia/params"),
    (re.compile(r"^processor\s*: 0$", re.M), "/proc/cpuinfo"),
    (re.compile(r"^Character devices:$", re.M), "/proc/devices"),
    (re.compile(r"^MemTotal:\s+\d+ kB$", re.M), "/proc/meminfo"),
    (re.compile(r"^\w+ \d+ \d+ \S+ (?:Live|Loading|Unloading) 0x", re.M), "/proc/modules"),
    (re.compile(r'^PRETTY_NAME="?[^\n]{2,80}$', re.M), "/etc/os-release"),
    (re.compile(r"^\s*GRUB_CMDLINE_LINUX(?:_DEFAULT)?=", re.M), "/etc/default/grub"),
)
_DMI = {
    "System Information": {
        "Manufacturer": "sys_vendor",
        "Product Name": "product_name",
        "Version": "product_version",
        "UUID": "product_uuid",
    },
    "Base Board Information": {
        "Manufacturer": "board_vendor",
        "Product Name": "board_name",
        "Serial Number": "board_serial",
    },
    "BIOS Information": {"Vendor": "bios_vendor", "Version": "bios_version", "Release Date": "bios_date"},
    "Chassis Information": {"Manufacturer": "chassis_vendor"},
}
_VIRTUAL = frozenset(
    ["kvm", "qemu", "vmware", "microsoft", "oracle", "xen", "amazon", "google", "parallels", "bhyve", "none"]
)
_CONTAINERS = frozenset(["lxc", "lxc-libvirt", "docker", "podman", "systemd-nspawn", "openvz", "none"])


def recognise_piece(piece: Piece) -> Recognised | None:
    for look in (_gone, _by_path, _by_command, _by_content):
        found = look(piece, piece.text)
        if found is not None:
            return found
    return None


def _gone(piece: Piece, text: str) -> Recognised | None:
    if piece.command == "absent" and piece.path:
        return Recognised(piece.path + ", which does not exist", ({"read": piece.path, "status": "absent"},))
    lines = [line for line in text.split("\n") if line.strip()]
    refused = [match for match in map(_GONE.match, lines) if match]
    if not lines or len(refused) != len(lines) or command_lines.name_program(piece.command) == "ls":
        return None
    status = {"No such file or directory": "absent"}
    records: list[Record] = [
        {"read": match["path"], "status": status.get(match["why"], "denied"), "reason": match["why"]}
        for match in refused
    ]
    return Recognised("%s: %s" % (refused[0]["path"], refused[0]["why"]), tuple(records))


def _by_path(piece: Piece, text: str) -> Recognised | None:
    path = piece.path
    if not path or not path.startswith(command_lines.ROOTS) or path.startswith(("/var/log/", "/etc/pve/")):
        return None
    if path.startswith("/dev/"):
        return None
    return Recognised(path, (read_record(path, text),), rank=2)


def _by_command(piece: Piece, text: str) -> Recognised | None:
    words = command_lines.split_words(piece.command)
    name = posixpath.basename(words[0]) if words else ""
    said = text.strip()
    if name == "uname" and said:
        release = said.split()[2] if re.match(r"Linux \S+ \d", said) else said.split()[0]
        if re.match(r"\d+\.\d+", release):
            return Recognised("uname", (read_record("/proc/sys/kernel/osrelease", release + "\n"),))
    if name == "" and "detect-virt" in piece.name and re.fullmatch(r"[\w-]{2,30}", said.partition("\n")[0]):
        name, said = "systemd-detect-virt", said.partition("\n")[0]
    if name == "systemd-detect-virt" and re.fullmatch(r"[\w-]{2,30}", said):
        return Recognised("systemd-detect-virt", _virtualization(said, words))
    if name == "dkms" and "status" in words:
        return Recognised("dkms status", (run_record(("dkms", "status"), piece.data),))
    if (
        name == "modinfo"
        and re.search(r"^(?:filename|version|license|vermagic):", said, re.M)
        and re.search(r"\bnvidia(?:-current)?$", " ".join(words))
    ):
        whole = "license:" in said
        records = [run_record(("modinfo", "nvidia"), piece.data)] if whole else []
        return Recognised(
            "modinfo nvidia%s" % ("" if whole else ", a line of it: nothing is read from it"), tuple(records)
        )
    if name == "mokutil" and "SecureBoot" in said:
        return Recognised("mokutil --sb-state", (run_record(("mokutil", "--sb-state"), piece.data),))
    if name == "nvidia-bug-report.sh":
        return _header(text)
    return None


def _virtualization(said: str, words: list[str]) -> tuple[Record, ...]:
    """Without options a container is named before the machine below it: a machine named says that there is none."""
    machine, container = said, said
    if "--vm" not in words and "--container" not in words:
        machine, container = (said, "none") if said in _VIRTUAL else ("", said)
    records: list[Record] = []
    if "--container" not in words and machine in _VIRTUAL:
        records.append(run_record(("systemd-detect-virt", "--vm"), machine.encode() + b"\n"))
    if "--vm" not in words and container in _CONTAINERS:
        records.append(run_record(("systemd-detect-virt", "--container"), container.encode() + b"\n"))
    return tuple(records)


def _header(text: str) -> Recognised:
    uname = re.search(r"^uname: Linux \S+ (\S+)", text, re.M)
    date = re.search(r"^Date: (.{5,60})$", text, re.M)
    records = (read_record("/proc/sys/kernel/osrelease", uname.group(1) + "\n"),) if uname else ()
    return Recognised("nvidia-bug-report.sh", records, extra={"date": date.group(1)} if date else {})


def _by_content(piece: Piece, text: str) -> Recognised | None:
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return None
    values = list(_SHOWN_VALUE.finditer(text))
    if values and len(values) * 2 > len(lines):
        records = tuple(read_record(match["path"], match["value"] + "\n") for match in values)
        return Recognised("values below /sys, %d files" % len(records), records)
    said = [line for line in lines if not line.lstrip().startswith("#")]
    options = all(_MODPROBE.match(line) or before.endswith("\\") for before, line in zip(["", *said], said))
    if said and options and not command_lines.is_filtered(piece.command):
        path = "/etc/modprobe.d/" + _conf_name(piece.name)
        return Recognised("options of modules, as /etc/modprobe.d holds them", (read_record(path, text),))
    for begins, path in _CONTENT:
        if begins.search(text) and not command_lines.is_filtered(piece.command):
            return Recognised(path, (read_record(path, text),), partial=piece.cut)
    return (
        _table_of_modules(text)
        or _cmdline(piece, said)
        or _cpus(piece, text)
        or _dmi(text)
        or _kernel_line(said)
        or _dkms(piece, said)
    )


def _conf_name(name: str) -> str:
    base = re.sub(r"[^\w.-]", "_", posixpath.basename(name.partition(":")[0])) or "pasted"
    return base if base.endswith(".conf") else base + ".conf"


def _cmdline(piece: Piece, said: list[str]) -> Recognised | None:
    if len(said) != 1 or len(said[0]) > 8192:
        return None
    words = said[0].split()
    known = sum(1 for word in words if _PARAMETER.fullmatch(word))
    named = "cmdline" in piece.name.lower() or "iommu=" in said[0]
    if not (_CMDLINE.search(said[0]) or named) or known * 2 < len(words):
        return None
    return Recognised("/proc/cmdline", (read_record("/proc/cmdline", said[0].strip() + "\n"),))


def _table_of_modules(text: str) -> Recognised | None:
    """lsmod, in the form of /proc/modules."""
    if not re.search(r"^Module\s+Size\s+Used by", text, re.M):
        return None
    rows = [line.split(None, 3) for line in text.split("\n")]
    kept = [row for row in rows if len(row) >= 3 and values.is_digits(row[1]) and values.is_digits(row[2])]
    modules = "".join(
        "%s %s %s %s Live 0x0000000000000000\n"
        % (row[0], row[1], row[2], (row[3].strip() + "," if len(row) > 3 else "-"))
        for row in kept
    )
    return Recognised("lsmod", (read_record("/proc/modules", modules),)) if kept else None


def _cpus(piece: Piece, text: str) -> Recognised | None:
    if re.search(r"^Architecture:\s", text, re.M) and re.search(r"^CPU\(s\):\s", text, re.M):
        return Recognised("lscpu", (run_record(("lscpu",), piece.data),))
    return None


def _dmi(text: str) -> Recognised | None:
    if not re.search(r"^System Information$", text, re.M):
        return None
    records: list[Record] = []
    for block in re.split(r"\n\s*\n", text):
        title = next((line.strip() for line in block.split("\n") if line.strip() in _DMI), "")
        for label, name in _DMI.get(title, {}).items():
            value = re.search(r"^\s+%s: (.{1,200})$" % label, block, re.M)
            if value and not any(record["read"].endswith("/" + name) for record in records):
                records.append(read_record("/sys/class/dmi/id/" + name, value.group(1).strip() + "\n"))
    return Recognised("dmidecode", tuple(records)) if records else None


def _kernel_line(said: list[str]) -> Recognised | None:
    if len(said) == 1 and (match := re.match(r"Linux \S{1,255} (\d{1,3}\.\d{1,4}\S{0,80}) #", said[0])):
        return Recognised("uname -a", (read_record("/proc/sys/kernel/osrelease", match.group(1) + "\n"),))
    return None


def _dkms(piece: Piece, said: list[str]) -> Recognised | None:
    if said and all(
        re.match(r"[\w-]+(?:/|, )[\w.~+-]+(?:, [\w.~+-]+)*: (?:installed|built|added)", line) for line in said
    ):
        return Recognised("dkms status", (run_record(("dkms", "status"), piece.data),))
    return None
