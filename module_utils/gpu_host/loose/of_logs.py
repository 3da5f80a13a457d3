"""The kernel's log: dmesg in each form, the journal, syslog, and lines of it that somebody posted."""

from __future__ import annotations

import re

from . import command_lines
from .piece import Piece, Recognised, read_record, run_record

DMESG = ("dmesg",)
_SAMPLE = 2000  # lines at either end of a long log that say what it is
WHOLE_LINES = 250  # the shortest boot that is known here prints more
_STAMPED = re.compile(
    r"^\s{0,8}(?:<\d{1,3}>)?(?:[a-z]{2,8} {0,4}:[a-z]{2,6} {0,4}: )?"
    r"(?:\[\s{0,8}\d{1,10}\.\d{4,9}\]|\[[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8} \d{4}\]|\[[A-Z][a-z]{2} "
    r"?\d{1,2} \d\d:\d\d\]"
    r"|\[ {0,8}\+ {0,8}\d{1,8}\.\d{4,9}\]|\d{1,4},\d{1,12},\d{1,18},[^;\n]{0,80};"
    r"|(?:[A-Z][a-z]{2} {1,2}\d{1,2} [\d:]{8}|\d{4}-\d\d-\d\dT[\d:.,+Z-]{8,24}|\d{9,11}\.\d{6}) \S{1,255} kernel:)",
    re.M,
)
_OF_THE_KERNEL = re.compile(
    r"^\s{0,8}(?:.{0,60}?)(?:NVRM: |nvidia-(?:uvm|nvlink|modeset|nvswitch\d*|peermem)[: ]|AMD-Vi: |DMAR: |iommu: "
    r"Default domain|"
    r"pci(?:eport)? [0-9a-f]{4}:[0-9a-f]{2}:|vfio-pci [0-9a-f]{4}:|Out of memory: Killed|nvidia [0-9a-f]{4}:)",
    re.M,
)
_BOOT = re.compile(r"Linux version \d\S*")
_COMMAND_LINE = re.compile(r"(?:Kernel command line|Command line): (?P<line>.{1,4096})$", re.M)
_RELEASE = re.compile(r"Linux version (?P<release>\d\S{1,100}) ")
_DMI = re.compile(r"\bDMI: (?P<words>.{3,200}?), BIOS (?P<bios>.{0,120})$", re.M)
# The maker and the name stand one after another; these makers are those of virtual machines.
_MAKERS = ("QEMU", "Microsoft Corporation", "VMware, Inc.", "innotek GmbH", "Amazon EC2", "Google", "Xen")


def recognise_piece(piece: Piece) -> Recognised | None:
    text = piece.text
    lines = [line for line in text.split("\n") if line.strip()]
    if not lines:
        return None
    sample = lines if len(lines) <= 2 * _SAMPLE else lines[:_SAMPLE] + lines[-_SAMPLE:]
    shown = "\n".join(sample)
    stamped, spoken = len(_STAMPED.findall(shown)), len(_OF_THE_KERNEL.findall(shown))
    by_command = command_lines.name_program(piece.command) in ("dmesg", "journalctl", "grep")
    if stamped * 2 < len(sample) and spoken * 3 < len(sample) and not (by_command and (stamped or spoken)):
        return None
    if re.search(r"(?:^|\s)-b\s+-[1-9]|_COMM=", piece.command):
        return Recognised("a log of an earlier boot, or of one program: nothing is read from it")
    # A line of the boot is in many an excerpt, too: without the command that wrote it, only its length tells.
    said = command_lines.split_words(piece.command)
    sure = (
        bool(said)
        and said[0].rpartition("/")[2] in ("dmesg", "journalctl")
        and not command_lines.is_filtered(piece.command)
    )
    whole = bool(_BOOT.search(text)) and (sure or (not said and len(lines) >= WHOLE_LINES))
    last = text.rfind("Linux version ")
    records = [run_record(DMESG, piece.data)]
    if last >= 0:
        records += _said_of_the_host(text[last - 200 if last > 200 else 0 :])
    form = "kernel log, %d lines%s" % (len(lines), "" if whole else ", an excerpt")
    return Recognised(form, tuple(records), "kernel_log", not whole, len(piece.data) + (1 << 30 if whole else 0))


def _said_of_the_host(text: str) -> list[dict[str, object]]:
    """What the kernel says of its host at every boot, as the files hold it that a live host is asked for."""
    found: list[dict[str, object]] = []
    line, release, dmi = _COMMAND_LINE.search(text), _RELEASE.search(text), _DMI.search(text)
    if line:
        found.append(read_record("/proc/cmdline", line["line"].strip() + "\n"))
    if release:
        found.append(read_record("/proc/sys/kernel/osrelease", release["release"] + "\n"))
    if dmi:
        words = dmi["words"].strip()
        maker = next((maker for maker in _MAKERS if words.startswith(maker + " ")), "")
        if maker:
            found.append(read_record("/sys/class/dmi/id/sys_vendor", maker + "\n"))
            found.append(read_record("/sys/class/dmi/id/product_name", words[len(maker) :].strip() + "\n"))
    return found
