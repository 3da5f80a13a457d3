"""Kernel command lines: the running one, and those that the boot loader's files hold for the next boot."""

from __future__ import annotations

import re
import shlex
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from . import modprobe

GRUB = "/etc/default/grub"
GRUB_DROPINS = "/etc/default/grub.d"
KERNEL_CMDLINE = "/etc/kernel/cmdline"
_GRUB_NAMES = ("GRUB_CMDLINE_LINUX", "GRUB_CMDLINE_LINUX_DEFAULT")
_ASSIGNMENT = re.compile(r"[ \t]*(?:export[ \t]+)?(?P<name>[A-Z_][A-Z0-9_]*)=")


def parse(text: str) -> list[dict[str, Any]]:
    """The parameters in order: `[{name, value}]`, value None for a bare word. Split as the kernel does (double quotes);
    dashes in names become underscores as the kernel compares them. What follows `--` belongs to init and is left
    out."""
    found = []
    for word in modprobe.split_words(text):
        if word == "--":
            break
        whole = len(word) > 1 and word.startswith('"') and word.endswith('"')
        name, equals, value = (word[1:-1] if whole else word).partition("=")
        found.append({"name": name.replace("-", "_"), "value": modprobe.unquote(value) if equals else None})
    return found


def as_words(parameters: list[dict[str, Any]]) -> list[str]:
    """The parameters as `name` or `name=value`: what a check compares with an expected word."""
    return [item["name"] if item["value"] is None else "%s=%s" % (item["name"], item["value"]) for item in parameters]


def last_values(parameters: list[dict[str, Any]]) -> dict[str, Any]:
    """name -> value of its last occurrence, True for a bare word."""
    return {item["name"]: True if item["value"] is None else item["value"] for item in parameters}


def module_parameters(parameters: list[dict[str, Any]]) -> list[tuple[str, str, str | None]]:
    """(module, parameter, value) of each `module.parameter=value`."""
    found = []
    for item in parameters:
        module, dot, name = item["name"].partition(".")
        if dot and module and name:
            found.append((modprobe.module_name(module), name, item["value"]))
    return found


def shell_assignments(text: str, names: tuple[str, ...]) -> dict[str, str]:
    """Values of simple shell assignments in `text`, as sourcing the file would leave them: quotes may span lines, a
    later
    one wins, `NAME="$NAME more"` adds. Anything else that a shell can do is not followed."""
    found: dict[str, str] = {}
    position = 0
    while position < len(text):
        match = _ASSIGNMENT.match(text, position)
        if match is None:
            position = _next_line(text, position)
            continue
        raw, position = _shell_word(text, match.end())
        position = _next_line(text, position)
        name = match["name"]
        if name in names:
            before = found.get(name, "")
            found[name] = _without_quotes(raw.replace("${%s}" % name, before).replace("$" + name, before))
    return found


def _next_line(text: str, position: int) -> int:
    end = text.find("\n", position)
    return len(text) if end < 0 else end + 1


def _shell_word(text: str, start: int) -> tuple[str, int]:
    """The shell word from `start` on, quotes kept, and where it ends."""
    quote, position = "", start
    while position < len(text):
        character = text[position]
        if quote:
            if character == "\\" and quote == '"':
                position += 1
            elif character == quote:
                quote = ""
        elif character in "\"'":
            quote = character
        elif character == "\\":
            position += 1
        elif character in " \t\n;#&|":
            break
        position += 1
    return text[start : min(position, len(text))], min(position, len(text))


def _without_quotes(word: str) -> str:
    try:
        return " ".join(" ".join(shlex.split(word)).split())
    except ValueError:  # an unclosed quote
        return " ".join(word.replace('"', "").replace("'", "").split())


def configured(evidence: Evidence, errors: Errors) -> list[dict[str, Any]] | None:
    """Command lines written for the next boot: `[{source, text, words}]`; None when one of the files could not be read.

    GRUB's two variables are joined as grub-mkconfig joins them. Whether GRUB or systemd-boot is in use is not decided
    here: a host may hold both files.
    """
    found = []
    grub = evidence.read(GRUB)
    known = grub.ok or grub.status == ABSENT
    errors.unanswered(grub, absent_is_fine=True)
    if grub.ok:
        text = grub.text
        dropins = evidence.list(GRUB_DROPINS)
        errors.unanswered(dropins, absent_is_fine=True)
        known = known and (dropins.ok or dropins.status == ABSENT)
        for name in sorted(dropins.entries):
            if name.endswith(".cfg"):
                dropin = evidence.read("%s/%s" % (GRUB_DROPINS, name))
                errors.unanswered(dropin)
                known = known and dropin.ok
                text += "\n" + dropin.text
        values = shell_assignments(text, _GRUB_NAMES)
        line = " ".join(filter(None, (values.get(name) for name in _GRUB_NAMES)))
        found.append({"source": GRUB, "text": line, "words": as_words(parse(line))})
    plain = evidence.read(KERNEL_CMDLINE)
    known = known and (plain.ok or plain.status == ABSENT)
    errors.unanswered(plain, absent_is_fine=True)
    if plain.ok:
        line = " ".join(part for part in plain.text.splitlines() if not part.lstrip().startswith("#")).strip()
        found.append({"source": KERNEL_CMDLINE, "text": line, "words": as_words(parse(line))})
    return found if known else None
