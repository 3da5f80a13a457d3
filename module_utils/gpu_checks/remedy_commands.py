"""What the commands of a remedy do to a machine: whether one only looks, and what one ends or restarts.

A command counts as a look only where every program in it is known here to change nothing, called as it is: what is not
known counts as a change.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterator

# Programs that change nothing, but for the arguments in _CHANGES.
_LOOKS = frozenset(
    re.findall(
        r"\S+",
        "[ awk basename cat cut df dirname dmesg du echo export false find free fuser grep head ibv_devinfo id "
        "journalctl less ls lsblk lscpu lsmod lspci modinfo nvidia-bug-report.sh printf ps py-spy pwd readlink "
        "sort ss stat systemd-detect-virt tail test tr true ulimit uname uniq wc",
    )
)
# What makes one of them change something.
_CHANGES = {
    "awk": r"system *\(|[>|]",
    "dmesg": r"(?:^| )(?:-\w*[CcDEn]|--(?:clear|read-clear|console-\w+))",
    "find": r"-(?:delete|exec|ok|f(?:print|ls))",
    "fuser": r"(?:^| )-\w*k",
    "journalctl": r"--(?:vacuum|rotate|flush|relinquish|setup-keys|update-catalog)",
    "sort": r"(?:^| )(?:-\w*o|--output)",
    "uniq": r"^(?:-\S+ )*[^-\s]\S* \S",
}
# Programs that run the rest of the line as a command, and which words stand before it.
_RUNS = {"env": r"(?:\w+=\S* )*", "timeout": r"(?:-\S+ )*\S+ ", "xargs": r""}
# Programs that change nothing where their arguments match. Of nvidia-smi, each of its options has to be one that asks.
_ASKS = {
    "ansible": r".* -m inference_server_ready\b.*",
    "ansible-inventory": r".*",
    "ansible-playbook": r"validate\.yml\b.*|capture\.yml\b.*|.* --check\b.*",
    "command": r"-v \S+",
    "apt-cache": r"policy .*|show .*",
    "apt-mark": r"showhold",
    "cp": r"-a --backup=numbered \S+ \S+",  # a copy for later, of a name that nothing has
    "curl": r"(?!.*(?:-X|--request|-d |--data|-[oOTF]|--output|--remote-name|--upload-file|--form)).*",
    "dkms": r"status",
    "crictl": r"(?:inspect|logs|ps|pods)\b.*",
    "docker": r"(?:info|ps|inspect|logs|image inspect|compose config)\b.*",
    "dpkg": r"-l.*",
    "ethtool": r"[^-\s]\S*",
    "getent": r"hosts \S+",
    "ip": r"(?:-\S+ )*(?:link|addr|address|route)(?: show.*)?",
    "ipmitool": r"sdr .*",
    "iptables": r"-S",
    "kubectl": r"(?:get|describe|logs)\b.*",
    "ldconfig": r"-p",
    "modprobe": r"-c|--showconfig",
    "mokutil": r"--sb-state",
    "nft": r"list ruleset",
    "nv-fabricmanager": r"--version",
    "nvidia-imex-ctl": r"-N",
    "nvidia-smi": r"|-L|-q.*|topo .*|nvlink (?:-[se]|-i \S+|-[se] -i \S+| )+|dmon .*|--query-\S+.*",
    "pct": r"(?:config|list|pending|status)\b.*|exec \d+ -- (?:ls|nvidia-smi) .*",
    "pip": r"index versions .*",
    "proxmox-boot-tool": r"status",
    "podman": r"(?:info|ps|inspect|logs|image inspect)\b.*",
    "pvesh": r"get .*",
    "qm": r"(?:config|list|pending|status)\b.*",
    "rdma": r"link(?: show.*)?",
    "rpm": r"-q.*",
    "sed": r"(?!.*(?:^| )(?:-i\S*|--in-place\S*)(?: |$))(?!.*[\s'/;]w ).*",
    "sysctl": r"(?!.*-w)(?!.*=).*",
    "systemctl": r"(?:status|cat|show|is-active|is-enabled|list-dependencies)\b.*",
}
# Words of the shell before a command, and those that end a loop.
_BEFORE = ("do", "then", "else", "if", "while", "!", "{", "(")
_ENDS = ("done", "fi", "}", ")", "")
# What can be seen in a command of what it ends or restarts (rules.DISRUPTIONS), the strongest first.
_DISRUPTS = (
    ("reboot", r"(?:^|[;&|] *)(?:reboot|shutdown|poweroff|systemctl (?:reboot|poweroff))\b"),
    ("guest", r"\b(?:qm|pct) (?:stop|shutdown|reboot|destroy|rollback)\b"),
    ("gpus", r"\bmodprobe -r\b|\brmmod\b|--gpu-reset|nvidia-smi (?:-mig|-r)\b"
             r"|systemctl (?:re)?start nvidia-fabricmanager|systemctl enable --now nvidia-fabricmanager"),
)  # fmt: skip


def find_changes(command: str) -> list[str]:
    """The parts of a command that are not known to change nothing; all of one that no shell could read."""
    try:
        return [part for part in split_command(command) if not _only_looks(part)]
    except ValueError:
        return [command]


def reboots_only(command: str) -> bool:
    """Whether a command is a reboot and nothing else."""
    return find_disruption(command) == "reboot" and re.search(r"[;&|\n]", command) is None


def find_disruption(command: str) -> str:
    """The strongest of rules.DISRUPTIONS that can be seen in a command.

    `server` is in no command of itself: which unit serves is known by the facts alone.
    """
    return next((name for name, pattern in _DISRUPTS if re.search(pattern, command)), "nothing")


def split_command(command: str) -> Iterator[str]:
    """Its simple commands, without words of the shell; of `x $(y)` also y."""
    for inner in re.findall(r"\$\(([^()]*)\)", command):
        yield from split_command(inner)
    words: list[str] = []
    command = re.sub(r"\d?>&\d|[\d&]?>>? ?/dev/null\b", "", command)
    for token in _tokens(re.sub(r"\$\([^()]*\)", "SUBSTITUTED", command)):
        if token in (";", "&&", "||", "|", "&", "\n"):
            yield from _simple(words)
            words = []
        else:
            words.append(token)
    yield from _simple(words)


def _tokens(command: str) -> Iterator[str]:
    lexer = shlex.shlex(command, posix=False, punctuation_chars=";&|\n")
    lexer.whitespace = " \t"
    lexer.whitespace_split = True
    lexer.commenters = ""
    comment = False
    for word in lexer:
        if word == "#":
            comment = True
        if set(word) <= set(";&|\n"):
            comment = comment and "\n" not in word
            yield "\n" if "\n" in word else word
        elif not comment:
            yield word


def _simple(words: list[str]) -> Iterator[str]:
    while words and (words[0] in _BEFORE or re.match(r"[A-Za-z_]\w*=", words[0])):
        words = words[1:]
    if words[:1] and words[0] not in _ENDS and words[0] != "for":
        yield " ".join(words)


def _only_looks(part: str) -> bool:
    words = part.split()
    if "`" in part or "<(" in part or any(re.match(r"[\d&]?>", word) for word in words):
        return False
    if not words:
        return True
    program, arguments = words[0].rpartition("/")[2], " ".join(words[1:])
    if program in _RUNS:
        before = re.match(_RUNS[program], arguments + " ")
        return before is not None and _only_looks(arguments[before.end() :])
    if program in _LOOKS:
        return program not in _CHANGES or re.search(_CHANGES[program], arguments) is None
    return program in _ASKS and bool(re.fullmatch(_ASKS[program], arguments))
