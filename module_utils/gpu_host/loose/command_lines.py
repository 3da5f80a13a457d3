"""Command lines as people paste them: with a prompt, sudo, a path, a pipe behind them; and file names."""

from __future__ import annotations

import posixpath
import re
import shlex

# Programs whose output says something of a host. A bare word that is none of these is prose.
PROGRAMS = frozenset(
    (  # noqa: SIM905  a hundred words, one a line, would hide the code below
        "nvidia-smi lspci dmesg journalctl cat head tail grep egrep zgrep zcat ls find uname lsmod lscpu modinfo dkms "
        "qm pct "
        "pveversion pvesh pveperf dmidecode systemd-detect-virt systemctl hostname mokutil df free numactl ulimit "
        "curl wget "
        "nvbandwidth p2pBandwidthLatencyTest bandwidthTest simpleP2P all_reduce_perf sendrecv_perf alltoall_perf "
        "all_gather_perf reduce_scatter_perf broadcast_perf ib_write_bw ib_read_bw ib_send_bw ibstat dcgmi sb "
        "nvidia-bug-report.sh update-grub proxmox-boot-tool docker podman kubectl python python3 sglang vllm ps top "
        "nvtop "
        "rocm-smi xpu-smi lsb_release date nvcc sysctl dpkg apt rpm dnf lsusb lsblk mount swapon ip ifconfig env "
        "printenv "
        "echo for cd export sudo nvidia-debugdump"
    ).split()
)
# A line that is nothing but one of these with arguments is a command line even without a prompt.
_BARE = frozenset(
    [
        "nvidia-smi",
        "lspci",
        "dmesg",
        "journalctl",
        "lsmod",
        "lscpu",
        "dmidecode",
        "pveversion",
        "nvbandwidth",
        "p2pBandwidthLatencyTest",
        "dcgmi",
    ]
)
_BARE_WITH_ARGUMENT = frozenset(
    ["cat", "qm", "pct", "uname", "modinfo", "dkms", "ib_write_bw", "grep", "systemd-detect-virt", "curl"]
)
ROOTS = ("/etc/", "/proc/", "/sys/", "/var/", "/run/", "/boot/", "/lib/", "/usr/", "/dev/")

_PROMPT = re.compile(
    r"^\s{0,8}(?:\([\w.-]{1,40}\)\s{0,3})?\[?[\w.-]{1,64}@(?P<machine>[\w.-]{1,64})(?:(?::| "
    r")[^\]#$%>\n]{0,120})?\]?\s{0,2}[#$%>]"
    r"(?:\s{1,4}(?P<command>\S.*)|\s{0,8})$"
)
# How pvereport heads its parts: "==== info about hardware ====".
_PART = re.compile(r"^={4} [a-z][\w ,/()-]{1,80} ={4}\s{0,8}$")
_SHORT = re.compile(r"^\s{0,8}(?:[$#%>+❯➜]|\$>|#>|PS [A-Z]:\\[^>\n]{0,120}>)\s{1,4}(?P<command>\S.*)$")
_FRAME = re.compile(r"^[\s#=*>~`:+-]{0,80}(?P<command>[^\s#=*<~`:+-].*?)[\s#=*<~`:-]{0,80}$")
_ARGUMENTS = re.compile(r"[\w\s./*=,:;\"'|<>&@+%\\{}\[\]()$^-]{0,300}")
_LINE_LIMIT = 500


def find_command(line: str) -> str | None:
    """The command line, or the path of a file, that `line` announces; "" for a prompt without one; None for text."""
    if len(line) > _LINE_LIMIT:
        return None
    if _PART.match(line):
        return ""
    prompt = _PROMPT.match(line)
    if prompt:
        return (prompt["command"] or "").strip()
    short = _SHORT.match(line)
    if short and _known(short["command"]):
        return short["command"].strip()
    frame = _FRAME.match(line)
    if frame and (_is_bare(frame["command"]) or _is_path(frame["command"])):
        return frame["command"].strip()
    return None


def find_machine(line: str) -> str:
    """The name of the machine in a prompt, "" where the line has none."""
    prompt = _PROMPT.match(line[:_LINE_LIMIT])
    return prompt["machine"] if prompt else ""


def find_quoted_command(line: str) -> str | None:
    """The command that prose names just before a block: "Output of `nvidia-smi topo -m`:"."""
    for inner in reversed(re.findall(r"`([^`\n]{3,200})`", line[:_LINE_LIMIT])):
        if _known(inner) or _is_path(inner):
            return str(inner).strip()
    frame = _FRAME.match(line[:_LINE_LIMIT])
    return frame["command"].strip() if frame and line.rstrip().endswith(":") and _known(frame["command"]) else None


def _known(text: str) -> bool:
    return name_program(text) in PROGRAMS


def _is_bare(text: str) -> bool:
    if _ARGUMENTS.fullmatch(text) is None:
        return False
    words = split_words(text)
    if not words:
        return False
    name = posixpath.basename(words[0])
    if name in _BARE:
        # prose has its own words: "nvidia-smi shows nothing"
        return all(
            re.match(r"[-\d/|.\"'<>=&]|topo$|nvlink$|grep$|-?[a-z]$|diag$|m$|head$|tail$|less$", word)
            for word in words[1:2]
        )
    return (
        name in _BARE_WITH_ARGUMENT
        and len(words) > 1
        and bool(re.match(r"[-/\d\"'h]|config$|status$|nvidia", words[1]))
    )


def _is_path(text: str) -> bool:
    return text.startswith(ROOTS) and re.fullmatch(r"/[\w./@:+,~-]{3,200}", text) is not None


def split_words(command: str) -> list[str]:
    """The words up to the first pipe or redirection, without sudo, environment and time in front."""
    try:
        words = shlex.split(command, posix=True)
    except ValueError:
        words = command.split()
    for position, word in enumerate(words):
        if word in ("|", "||", "&&", ";", "&") or word.startswith((">", "2>", "<", "|")):
            words = words[:position]
            break
    while words and (words[0] in ("sudo", "time", "env", "-n", "-E") or re.fullmatch(r"[A-Z_][A-Z0-9_]*=.*", words[0])):
        words = words[1:]
    return [word.rstrip(";:") if position == len(words) - 1 else word for position, word in enumerate(words)]


def name_program(command: str) -> str:
    words = split_words(command)
    return posixpath.basename(words[0]) if words else ""


def is_filtered(command: str) -> bool:
    """Whether something behind the command, or the command itself, leaves lines out."""
    return bool(re.search(r"\|\s*(?:sudo\s+)?(?:e?grep|rg|head|tail|sed|awk|less|more)\b", command)) or name_program(
        command
    ) in (
        "grep",
        "egrep",
        "zgrep",
        "head",
        "tail",
    )


def find_option(command: str, *names: str) -> str | None:
    """The value of an option: `-p2p r`, `-p2p=r`, `--p2pstatus r`."""
    words = split_words(command)
    for position, word in enumerate(words):
        name, equals, value = word.partition("=")
        if name in names:
            return value if equals else (words[position + 1] if position + 1 < len(words) else "")
    return None


def find_shown_file(command: str) -> str:
    """The one file of a host that the command shows whole: `cat FILE`, or a bare path; "" for any other."""
    if _is_path(command.strip()):
        return posixpath.normpath(command.strip())
    words = split_words(command)
    if words and posixpath.basename(words[0]) in ("cat", "zcat") and not is_filtered(command):
        files = [word for word in words[1:] if not word.startswith("-")]
        if len(files) == 1 and files[0].startswith("/") and not re.search(r"[*?\[]", files[0]):
            return posixpath.normpath(files[0])
    return ""


def decode_file_name(name: str) -> str:
    """The command that a file name of sosreport's form stands for: `nvidia-smi_-q_-x` -> `nvidia-smi -q -x`."""
    base = posixpath.basename(name)
    base = re.sub(r"\.(txt|log|out|xml|csv)$", "", base)
    words = base.replace("_", " ").strip()
    return words if name_program(words) in PROGRAMS and name_program(words) != "" else ""
