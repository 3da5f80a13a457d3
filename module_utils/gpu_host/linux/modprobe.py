"""modprobe.d semantics, as kmod's libkmod-config.c has them.

Which option files count, in which order, and what they say.

A file in an earlier directory hides one of the same name in a later directory. The rest are read in the order of their
names as bytes. Options of one module add up; for one parameter the last word wins.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from ..evidence.errors import Errors
from ..evidence.interface import Evidence

DIRECTORIES = (
    "/etc/modprobe.d",
    "/run/modprobe.d",
    "/usr/local/lib/modprobe.d",
    "/usr/lib/modprobe.d",
    "/lib/modprobe.d",
)
_FILE_LIMIT = 1 << 20
# The files of Debian's packages, of which several can be installed beside one another.
_DEBIAN_NAME = re.compile(r"^nvidia_(?:current|tesla(?:_\d+)?|legacy_\d+xx)(?:_open)?(?=_|$)")
_MODPROBE_WORD = re.compile(r"\bmodprobe\s+(?:-\S+\s+)*([A-Za-z0-9][\w-]{0,80})(?=\s+\$CMDLINE_OPTS|\s*$)")


@dataclass(frozen=True)
class Option:
    """One `parameter=value` of an `options` line; `value` is None for a parameter that stands alone."""

    module: str
    name: str
    value: str | None
    file: str
    line: int

    @property
    def source(self) -> str:
        return "%s:%d" % (self.file, self.line)


@dataclass(frozen=True)
class Command:
    """Any other line: `blacklist M`, `install M SHELL…`, `alias PATTERN M`, `softdep M …`, `remove M SHELL…`."""

    verb: str
    module: str
    rest: str
    file: str
    line: int

    @property
    def source(self) -> str:
        return "%s:%d" % (self.file, self.line)


@dataclass
class Configuration:
    """`complete` is False when a directory or file could not be read: then what is not found here is unknown."""

    options: list[Option] = field(default_factory=list)
    commands: list[Command] = field(default_factory=list)
    files: dict[str, float | None] = field(default_factory=dict)  # path -> time of the last change
    faults: list[str] = field(default_factory=list)  # lines that modprobe ignores, as "file:line: why"
    complete: bool = True

    def options_of(self, module: str) -> list[Option]:
        return [option for option in self.options if option.module == module]

    def blacklisted(self, module: str) -> list[Command]:
        """The lines that keep `module` from being loaded for a device: `blacklist M`, or `install M /bin/false`.

        None of them proves nothing unless the configuration is `complete`.
        """
        return [
            command
            for command in self.commands
            if command.module == module and (command.verb == "blacklist" or _installs_nothing(command))
        ]


def module_name(text: str) -> str:
    """Dash and underscore are the same; Debian's nvidia-current-uvm and nvidia-current-open-uvm run as nvidia_uvm."""
    return _DEBIAN_NAME.sub("nvidia", text.replace("-", "_"))


def find_module_file(configuration: Configuration, module: str) -> str | None:
    """The name under which `modprobe -i` of an install line finds the module's file; None where no line has one.

    Debian's /etc/modprobe.d/nvidia.conf: `install nvidia modprobe -i nvidia-current-open $CMDLINE_OPTS`.
    """
    for command in configuration.commands:
        if command.verb == "install" and command.module == module:
            found = _MODPROBE_WORD.search(command.rest)
            if found and module_name(found[1]) == module and found[1].replace("-", "_") != module:
                return found[1]
    return None


def read_configuration(evidence: Evidence, errors: Errors) -> Configuration:
    """The configuration that `modprobe` on this host would use."""
    result = Configuration()
    chosen: dict[str, tuple[str, float | None]] = {}
    for directory in DIRECTORIES:
        listing = evidence.list(directory)
        if not listing.ok:
            errors.unanswered(listing, absent_is_fine=True)
            result.complete = result.complete and listing.status == "absent"
        for name, entry in listing.entries.items():
            if name.endswith((".conf", ".alias")) and not name.startswith(".") and entry.kind != "dir":
                chosen.setdefault(name, (directory + "/" + name, entry.modified))
    for _name, (path, modified) in sorted(chosen.items(), key=lambda item: item[0].encode("utf-8", "surrogateescape")):
        reading = evidence.read(path, _FILE_LIMIT)
        if not reading.ok:
            errors.unanswered(reading)
            result.complete = False
            if reading.data is None:
                continue
        result.files[path] = modified
        parse_configuration(reading.text, path, result)
    return result


def parse_configuration(text: str, path: str, into: Configuration) -> None:
    """Add what one file says. Comments are whole lines; a backslash at the end of a line joins the next."""
    for number, line in _logical_lines(text):
        words = line.split(None, 2)
        if not words or words[0].startswith("#"):
            continue
        verb, module = words[0], module_name(words[1]) if len(words) > 1 else ""
        rest = words[2] if len(words) > 2 else ""
        if not module or (verb in ("options", "install", "alias", "softdep", "remove") and not rest):
            into.faults.append("%s:%d: %s without what belongs to it" % (path, number, verb[:40]))
        elif verb == "options":
            into.options += [Option(module, name, value, path, number) for name, value in parse_parameters(rest)]
        elif verb == "alias":
            into.commands.append(Command(verb, module_name(rest.split()[0]), words[1], path, number))
        elif verb in ("blacklist", "install", "softdep", "remove", "weakdep"):
            into.commands.append(Command(verb, module, rest, path, number))
        else:
            into.faults.append("%s:%d: unknown word %s" % (path, number, verb[:40]))


def parse_parameters(text: str) -> list[tuple[str, str | None]]:
    """`a=1 b="x y" c` -> [('a', '1'), ('b', 'x y'), ('c', None)], as the kernel's next_arg() splits.

    A double quote anywhere in a word shields blanks up to the next one. Dashes in names become underscores.
    """
    found = []
    for word in split_words(text):
        name, equals, value = word.partition("=")
        if name:
            found.append((name.strip('"').replace("-", "_"), strip_quotes(value) if equals else None))
    return found


def split_words(text: str) -> list[str]:
    """Words at blanks, except inside double quotes (an unclosed quote runs to the end)."""
    words: list[str] = []
    word: list[str] = []
    quoted = False
    for character in text:
        if character == '"':
            quoted = not quoted
        if character.isspace() and not quoted:
            if word:
                words.append("".join(word))
            word = []
        else:
            word.append(character)
    if word:
        words.append("".join(word))
    return words


def strip_quotes(value: str) -> str:
    """The value without the double quotes around it; quotes inside stay."""
    if value.startswith('"'):
        value = value[1:]
        value = value[:-1] if value.endswith('"') else value
    return value


def _logical_lines(text: str) -> Iterator[tuple[int, str]]:
    """(number of the first line, text) with continued lines joined."""
    joined, first = "", 0
    for number, line in enumerate(text.split("\n"), start=1):
        first = first or number
        if line.endswith("\\"):
            joined += line[:-1]
            continue
        yield first, joined + line
        joined, first = "", 0
    if joined:
        yield first, joined


def _installs_nothing(command: Command) -> bool:
    words = command.rest.split()
    return command.verb == "install" and bool(words) and words[0].rpartition("/")[2] in ("false", "true", ":")
