"""How a Proxmox host boots: which loader, where its command line is written, and whether the running kernel has it.

GRUB takes the command line from /etc/default/grub, systemd-boot from /etc/kernel/cmdline; where ESPs are kept in step
by proxmox-boot-tool, `proxmox-boot-tool refresh` writes them. Source: pve-docs "Host Bootloader", `info grub` (Simple
configuration).
"""

from __future__ import annotations

import re
from typing import Any

from ..evidence import values
from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence

GRUB_FILE = "/etc/default/grub"
GRUB_DIRECTORY = "/etc/default/grub.d"
GRUB_VARIABLES = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
# What the role proxmox_passthrough writes.
OWN_GRUB_FILE = "gpu-host.cfg"
KERNEL_COMMAND_LINE = "/etc/kernel/cmdline"
BOOT_UUIDS = "/etc/kernel/proxmox-boot-uuids"
STATUS = ["proxmox-boot-tool", "status"]

_ASSIGNMENT = re.compile(r"^[ \t]*(?:export[ \t]+)?([A-Za-z_]\w*)(\+?)=", re.M)
_VARIABLE = re.compile(r"\$(?:\{(\w+)\}|(\w+))")
# What the loader itself adds, and so is never in the configuration.
_OF_THE_LOADER = re.compile(r"(BOOT_IMAGE|initrd|root|boot|rootflags)=|(ro|rw)$")
# Parameters whose disappearance at the next boot matters to GPUs.
_OF_GPUS = re.compile(
    r"(amd_iommu|intel_iommu|iommu|pci|pcie_\w+|vfio|nvidia|nokaslr|hugepages\w*|default_hugepagesz|initcall_blacklist|module_blacklist|modprobe\.)"
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """{loader: grub | systemd-boot, refresh: command that applies a change, source: file, live [], configured [],
    to_come [], to_go [], ignored_source: the other loader's file, ignored [], grub_settings: {variable: words} without
    our own drop-in}

    `to_come` are the parameters that the next boot adds, `to_go` those about GPUs that it drops; None where a side is
    unknown. `ignored` are the parameters about GPUs that stand only in the file of the loader that is not used.
    """
    live_file = evidence.read("/proc/cmdline")
    errors.unanswered(live_file)
    live = live_file.text.split() if live_file.ok else None
    uuids = evidence.read(BOOT_UUIDS)
    managed = bool(uuids.text.strip()) if uuids.ok else (False if uuids.status == ABSENT else None)
    loader = _loader(live, managed, evidence, errors)
    configured: list[str] | None = None
    source = refresh = None
    if loader == "systemd-boot":
        source, refresh = KERNEL_COMMAND_LINE, "proxmox-boot-tool refresh"
        reading = evidence.read(source)
        errors.unanswered(reading)
        # Only the first line counts.
        configured = (reading.text.splitlines() or [""])[0].split() if reading.ok else None
    elif loader == "grub":
        source, refresh = GRUB_FILE, "proxmox-boot-tool refresh" if managed else "update-grub"
        configured = grub_command_line(evidence, errors)
    known = live is not None and configured is not None
    # The file of the other loader: what stands there never takes effect.
    unused = {"systemd-boot": GRUB_FILE, "grub": KERNEL_COMMAND_LINE}.get(loader or "")
    ignored: list[str] | None = None
    if unused == GRUB_FILE:
        other = evidence.read(GRUB_FILE)
        if other.ok:
            ignored = grub_command_line(evidence, errors)
        else:
            ignored = [] if other.status == ABSENT else None
    elif unused:
        other = evidence.read(unused)
        ignored = (other.text.splitlines() or [""])[0].split() if other.ok else ([] if other.status == ABSENT else None)
    others = _grub_variables(evidence, errors, without=OWN_GRUB_FILE) if loader == "grub" else None
    return {
        "loader": loader,
        "grub_settings": None if others is None else {name: others.get(name, "").split() for name in GRUB_VARIABLES},
        "ignored_source": unused,
        "ignored": None
        if ignored is None
        else [word for word in ignored if _OF_GPUS.match(word) and word not in (live or []) + (configured or [])],
        "managed_by_proxmox_boot_tool": managed,
        "refresh": refresh,
        "source": source,
        "live": live,
        "configured": configured,
        "to_come": [word for word in configured or [] if word not in (live or []) and not _OF_THE_LOADER.match(word)]
        if known
        else None,
        "to_go": [word for word in live or [] if word not in (configured or []) and _OF_GPUS.match(word)]
        if known
        else None,
    }


def find_boot_faults(
    boot: dict[str, Any], kernel: str | None, iommu_on: bool | None, needs_iommu: bool | None
) -> list[str] | None:
    """What is written for the boot and cannot work, as sentences; None where a side is unknown and nothing is found."""
    found = []
    if boot["ignored"]:
        text = "%s has %s, and this host boots by %s, which reads %s"
        found.append(text % (boot["ignored_source"], " ".join(boot["ignored"]), boot["loader"], boot["source"]))
    if needs_iommu and iommu_on is False and _needs_intel_option(kernel):
        words = (boot["live"] or []) + (boot["configured"] or [])
        if boot["live"] is not None and not any(word.startswith(("intel_iommu=on", "amd_iommu=")) for word in words):
            found.append(
                "kernel %s does not switch an Intel IOMMU on by itself, and intel_iommu=on is not given" % kernel
            )
    return found if found or boot["ignored"] is not None else None


def _needs_intel_option(kernel: str | None) -> bool:
    """Proxmox's kernels have Intel's IOMMU on by default since 6.8 (pve-docs, PCI passthrough)."""
    match = re.match(r"([0-9]{1,4})\.([0-9]{1,4})", kernel or "")
    return match is not None and tuple(map(values.number_in_name, match.groups())) < (6, 8)


def _loader(live: list[str] | None, managed: bool | None, evidence: Evidence, errors: Errors) -> str | None:
    # GRUB always passes BOOT_IMAGE; systemd-boot passes the initrd's path on the ESP.
    for word in live or []:
        if word.startswith("BOOT_IMAGE="):
            return "grub"
        if word.lower().startswith("initrd=\\efi\\"):
            return "systemd-boot"
    if managed is False:
        return "grub"
    status = evidence.run(STATUS, 20.0)
    if not status.ok:
        errors.unanswered(status)
        return None
    configured = set(re.findall(r"configured with: (\w+)", status.text))
    if configured == {"uefi"}:
        return "systemd-boot"
    return "grub" if configured == {"grub"} else None


def grub_command_line(evidence: Evidence, errors: Errors) -> list[str] | None:
    """The parameters that update-grub will write: GRUB_CMDLINE_LINUX, then GRUB_CMDLINE_LINUX_DEFAULT; None if
    unreadable."""
    variables = _grub_variables(evidence, errors)
    return None if variables is None else " ".join(variables.get(name, "") for name in GRUB_VARIABLES).split()


def _grub_variables(evidence: Evidence, errors: Errors, without: str = "") -> dict[str, str] | None:
    """The shell variables after GRUB's files, of which the drop-in `without` is left out; None if unreadable."""
    main = evidence.read(GRUB_FILE)
    if not main.ok:
        errors.unanswered(main)
        return None
    variables = parse_assignments(main.text, {})
    directory = evidence.list(GRUB_DIRECTORY)
    for name in sorted(directory.entries):
        if name.endswith(".cfg") and name != without:
            reading = evidence.read("%s/%s" % (GRUB_DIRECTORY, name))
            errors.unanswered(reading)
            variables = parse_assignments(reading.text, variables)
    return variables


def parse_assignments(text: str, before: dict[str, str]) -> dict[str, str]:
    """The variables after a shell file of plain assignments.

    Quotes, line breaks inside quotes, `$NAME` and `+=` are understood.
    """
    variables = dict(before)
    position = 0
    while True:
        match = _ASSIGNMENT.search(text, position)
        if match is None:
            return variables
        value, position = _word(text, match.end(), variables)
        name, append = match.group(1), match.group(2)
        variables[name] = variables.get(name, "") + value if append else value


def _word(text: str, start: int, variables: dict[str, str]) -> tuple[str, int]:
    """One shell word from `start`: (its value, where it ends)."""
    result, quote, position = [], "", start
    while position < len(text):
        character = text[position]
        if quote:
            if character == quote:
                quote = ""
            elif character == "\\" and quote == '"' and position + 1 < len(text):
                position += 1
                result.append("" if text[position] == "\n" else text[position])
            elif character == "$" and quote == '"':
                value, position = _expand(text, position, variables)
                result.append(value)
                continue
            else:
                result.append(character)
        elif character in "'\"":
            quote = character
        elif character in " \t\n;#&|":
            break
        elif character == "\\" and position + 1 < len(text):
            position += 1
            result.append("" if text[position] == "\n" else text[position])
        elif character == "$":
            value, position = _expand(text, position, variables)
            result.append(value)
            continue
        else:
            result.append(character)
        position += 1
    return "".join(result), position


def _expand(text: str, position: int, variables: dict[str, str]) -> tuple[str, int]:
    match = _VARIABLE.match(text, position)
    if match is None:
        return "$", position + 1
    return variables.get(match.group(1) or match.group(2), ""), match.end()
