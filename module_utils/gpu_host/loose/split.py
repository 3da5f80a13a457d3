"""Takes a file apart: the sections of a bug report, the commands of a pasted session, what stands in it one after
another."""

from __future__ import annotations

import posixpath
import re

from . import command_lines
from .piece import Piece
from .sources import File

PIECES_LIMIT = 4000
SESSION_LIMIT = 4 << 20  # characters; a longer text is one log, not what somebody pasted
_COLOURS = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_BUG_REPORT = "Start of NVIDIA bug report log file"
_SEPARATOR = re.compile(r"^_{20,}\s*$", re.M)
_SECTION_FILE = re.compile(
    r"(?:\*\*\* )?(?P<path>/\S{1,300})(?P<gone> does not exist| is not readable| is a directory)?\s*$"
)
_LOG_HEADING = re.compile(r"^ {0,4}(?P<what>(?:/var/log/\S{1,80}|journalctl -b \S{1,4}|[\w./-]{1,60}):)\s*$", re.M)
_KERNEL_STAMP = re.compile(r"^\s{0,8}(?:<\d{1,3}>)?\[\s{0,8}\d{1,9}\.\d{6}\](?:\[[ TC\d]{1,12}\])? ")
_LSPCI = re.compile(
    r"^(?:[0-9a-f]{4,8}:)?[0-9a-f]{2}:[0-9a-f]{2}\.[0-7] (?:[A-Z\d][\w /-]{2,60}(?: \[[0-9a-f]{4}\])?: |[0-9a-f]{4}: "
    r"[0-9a-f]{4}:)"
)
# How outputs begin that people paste one after another, without a prompt between them.
_BEGINS = (
    ("table", re.compile(r"^\|\s{1,4}NVIDIA-SMI \d")),
    ("log", re.compile(r"^\s{0,8}=+NVSMI LOG=+")),
    ("xml", re.compile(r"^\s{0,8}(?:<\?xml |<nvidia_smi_log>)")),
    ("matrix", re.compile(r"^(?:\s{0,40}(?:\x1b?\[4m)?)GPU0(?:\s|GPU1|$)(?!.{0,80}\bX\b)")),
    ("p2ptest", re.compile(r"^\s{0,8}\[P2P \(Peer-to-Peer\) GPU Bandwidth Latency Test\]")),
    ("nvbandwidth", re.compile(r"^\s{0,8}nvbandwidth Version")),
    ("nccl", re.compile(r"^\s{0,8}# (?:nccl-tests version|nThread |Collective test starting)")),
    ("links", re.compile(r"^\s{0,4}GPU 0: .{1,120}\(UUID: ")),
    ("treeview", re.compile(r"^\s{0,8}-\+?-?\[[0-9a-f]{4}:[0-9a-f]{2}\]-")),
)


def split_file(file: File) -> list[Piece]:
    """The parts of one file, each with the command line or the path that stands with it."""
    data = _decoded(file.data)
    if b"\0" in data[:8192] and "/proc/" not in file.name:
        return [Piece(file.name, data, cut=file.cut)]
    text = _COLOURS.sub("", data.decode("utf-8", "replace").replace("\r\n", "\n"))
    if _BUG_REPORT in text[:20_000]:
        return _bug_report(file, text)
    path = find_host_path(file.name)
    if path:
        return [Piece(file.name, text.encode("utf-8"), path=path, cut=file.cut)]
    # A file that tools write whole: what looks like a prompt in it is none.
    if text.lstrip()[:1] in ("{", "<", "[") and _one_document(text):
        return [Piece(file.name, text.encode("utf-8"), command_lines.decode_file_name(file.name), cut=file.cut)]
    if len(text) > SESSION_LIMIT:
        return [Piece(file.name, text.encode("utf-8"), command_lines.decode_file_name(file.name), cut=file.cut)]
    return _sessions(file, text)[:PIECES_LIMIT]


def _decoded(data: bytes) -> bytes:
    """UTF-16, as Windows' shell writes it, becomes UTF-8."""
    if data[:2] in (b"\xff\xfe", b"\xfe\xff"):
        return data.decode("utf-16", "replace").encode("utf-8")
    return data[3:] if data.startswith(b"\xef\xbb\xbf") else data


def _one_document(text: str) -> bool:
    start = text.lstrip()
    if start.startswith("<"):
        return start[:2000].count("<") > 3 and ("<?xml" in start[:200] or "<nvidia_smi_log" in start[:2000])
    return bool(re.match(r'[\[{]\s*[\[{"\]}]', start))


_HOST_PATH = re.compile(
    r"(?:^|/)(?P<path>(?:etc/(?:modprobe\.d|default|kernel|pve|modules-load\.d|modules|apt|ld\.so\.conf\.d"
    r"|systemd|os-release|nccl\.conf)"
    r"|usr/lib/modprobe\.d|lib/modprobe\.d|run/modprobe\.d|usr/lib/os-release|proc/(?:cmdline|cpuinfo"
    r"|meminfo|modules|devices|version|mounts|uptime|stat|driver|sys|1|self|\d+)"
    r"|sys/(?:bus/pci|module|class|kernel|firmware|devices)|run/reboot-required|boot/)(?:/.*)?)$"
)


def find_host_path(name: str) -> str:
    """The path on the host that a file in a copied tree (sosreport, rsync) stands for; "" where its name says none."""
    match = _HOST_PATH.search(name)
    return posixpath.normpath("/" + match["path"]) if match else ""


def _bug_report(file: File, text: str) -> list[Piece]:
    """The sections of nvidia-bug-report.sh: a line of underscores, then `*** PATH` (or `PATH`) or the command line."""
    found = []
    for section in _SEPARATOR.split(text):
        body = section.strip("\n")
        head, _newline, rest = body.partition("\n")
        if not head.strip():
            continue
        if _BUG_REPORT in body[:2000]:
            found.append(Piece("%s: header" % file.name, body.encode("utf-8"), "nvidia-bug-report.sh"))
            continue
        if head.startswith("Scanning kernel log files"):
            found += _scanned_logs(file.name, rest)
            continue
        named = _SECTION_FILE.match(head)
        if named and not _is_program(named["path"], rest):
            path = posixpath.normpath(named["path"])
            if named["gone"] == " does not exist":
                found.append(Piece("%s: %s" % (file.name, path), b"", "absent", path))
            elif not named["gone"]:
                lines = rest.split("\n")
                lines = lines[1:] if lines and lines[0].startswith("*** ls:") else lines
                content = "\n".join(lines).rstrip("\n") + "\n"
                found.append(Piece("%s: %s" % (file.name, path), content.encode("utf-8"), path=path, cut=False))
            continue
        command = head.strip().rstrip(":").strip()
        found += _again(Piece("%s: %s" % (file.name, command[:60]), rest.strip("\n").encode("utf-8") + b"\n", command))
    if found and "End of NVIDIA bug report log file" not in text[-4000:]:
        last = found[-1]
        found[-1] = Piece(last.name, last.data, last.command, last.path, True)
    return found[:PIECES_LIMIT]


def _again(piece: Piece) -> list[Piece]:
    """A section that holds several command lines: `nvidia-smi --query` and then `nvidia-smi --query --unit`."""
    parts: list[tuple[str, list[str]]] = [(piece.command, [])]
    for line in piece.text.split("\n"):
        if line.startswith("/") and command_lines.name_program(line) in ("nvidia-smi", "lspci", "nvidia-debugdump"):
            parts.append((line.strip(), []))
        else:
            parts[-1][1].append(line)
    return [
        Piece(
            piece.name if not number else "%s: %s" % (piece.name.partition(":")[0], command[:60]),
            "\n".join(lines).encode("utf-8"),
            command,
        )
        for number, (command, lines) in enumerate(parts)
    ]


def _is_program(path: str, rest: str) -> bool:
    """`/usr/bin/nvidia-smi` alone is a command; `*** /proc/cmdline` is a file."""
    return posixpath.basename(path) in command_lines.PROGRAMS and not rest.startswith("*** ls:")


def _scanned_logs(name: str, text: str) -> list[Piece]:
    """What the script found in the logs by words, log by log; of the journal only the present boot."""
    found = []
    marks = list(_LOG_HEADING.finditer(text))
    for number, mark in enumerate(marks):
        end = marks[number + 1].start() if number + 1 < len(marks) else len(text)
        what = mark["what"].rstrip(":")
        command = what + " | grep -e NVRM" if what.startswith("journalctl") else "grep NVRM " + what
        found.append(
            Piece("%s: %s" % (name, what), text[mark.end() : end].strip("\n").encode("utf-8") + b"\n", command)
        )
    return found


def _sessions(file: File, text: str) -> list[Piece]:
    """The commands of a pasted session, or the outputs that follow one another in it."""
    # (command line, machine, lines)
    segments: list[tuple[str, str, list[str]]] = [(command_lines.decode_file_name(file.name), "", [])]
    before = ""
    fenced = False
    for line in text.split("\n"):
        if line.lstrip().startswith(("```", "~~~")):
            fenced = not fenced
            segments.append(((command_lines.find_quoted_command(before) or "") if fenced else "", "", []))
            continue
        command = command_lines.find_command(line)
        if command is not None:
            machine = command_lines.find_machine(line)
            segments.append((command, machine or segments[-1][1], []))
        else:
            segments[-1][2].append(line)
        before = line if line.strip() else before
    several = len([1 for command, _machine, lines in segments if command or any(line.strip() for line in lines)]) > 1
    found = []
    for command, machine, lines in segments:
        if not any(line.strip() for line in lines):
            continue
        for part in _by_content(lines) if not command_lines.find_shown_file(command) else [lines]:
            title = "%s: %s" % (file.name, command[:60]) if several and command else file.name
            path = command_lines.find_shown_file(command)
            data = ("\n".join(part).strip("\n") + "\n").encode("utf-8")
            found.append(Piece(title, data, command, path, file.cut, machine))
    return found


def _by_content(lines: list[str]) -> list[list[str]]:
    """Lines of one output each, told by how outputs begin."""
    parts: list[list[str]] = [[]]
    current = ""
    for line in lines:
        kind = _kind_of(line, current)
        if kind and (kind != current or kind in ("table", "log", "xml", "matrix", "p2ptest")):
            carried = _heading_of(parts[-1]) if kind == "table" else []
            if any(one.strip() for one in parts[-1]):
                parts.append(carried)
            else:
                parts[-1] = parts[-1] + carried
            current = kind
        parts[-1].append(line)
    return [part for part in parts if any(line.strip() for line in part)]


def _kind_of(line: str, current: str) -> str:
    if current == "xml" and "<nvidia_smi_log>" in line:
        return ""
    for kind, begins in _BEGINS:
        if begins.match(line):
            return kind
    if _KERNEL_STAMP.match(line):
        return "kernel"
    return "lspci" if _LSPCI.match(line) else ""


def _heading_of(lines: list[str]) -> list[str]:
    """Takes off the end of `lines` what belongs to the table that follows: its upper border, date and complaints."""
    taken: list[str] = []
    while lines and len(taken) < 12:
        last = lines[-1]
        if re.match(
            r"^\+[-=+]{10,}|^[A-Z][a-z]{2} [A-Z][a-z]{2} {1,2}\d|^Unable to determine the device handle|^\s*$", last
        ):
            taken.insert(0, lines.pop())
        else:
            break
    return taken
