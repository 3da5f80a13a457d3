"""The grammar of a Proxmox guest configuration, /etc/pve/qemu-server/VMID.conf and /etc/pve/lxc/CTID.conf, and what
Proxmox makes of each line.

Current settings are the lines before the first section; `[PENDING]` (`[pve:pending]` in a container) holds what applies
at the next start, `[special:NAME]` of a VM is Proxmox's own, every other `[NAME]` is a snapshot. A reader that takes
keys from the whole file reads snapshots as if they were in force. In a VM a line whose value the schema refuses has no
effect (an earlier line of the key stays in force); in a container the value stays. Source: parse_vm_config
(qemu-server), parse_pct_config (pve-container).

Every line is kept as it was, so `render(parse(text)) == text` for any text.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from ..evidence import values
from . import ct_schema, vm_schema
from .property_string import BLANK, Refused
from .value_checks import split_list

CURRENT, PENDING, SPECIAL, SNAPSHOT, UNKNOWN = "current", "pending", "special", "snapshot", "unknown"
VM, CONTAINER = "vm", "lxc"

# Proxmox reads bytes; BLANK is Perl's white space among them.
_EMPTY = re.compile(BLANK + "*")
_HEADER = re.compile(r"\[([^\]]*)\]%s*" % BLANK)
_NAME = re.compile(r"[a-zA-Z][a-zA-Z0-9_\-]+")
_SPECIALS = ("cloudinit", "fleecing")
_NOT_BLANK = "[^\\t-\\r \\x85\\xa0]"
_NOT_BLANK_AT_END = "(.*%s)" % _NOT_BLANK
_DESCRIPTION = re.compile("description:%s*%s%s*" % (BLANK, _NOT_BLANK_AT_END, BLANK))
_SNAPSTATE = re.compile(r".*snapstate:%s*(prepare|delete)%s*" % (BLANK, BLANK))
_ARGS = re.compile("(args):%s*%s%s*" % (BLANK, _NOT_BLANK_AT_END, BLANK))
_DELETE = re.compile("(delete):%s*%s%s*" % (BLANK, _NOT_BLANK_AT_END, BLANK))
# Of blanks alone, the last one is the value.
_VM_KEY = re.compile(r"([a-z][a-z_\-]*\d*):%s*(.*%s|%s)%s*" % (BLANK, _NOT_BLANK, BLANK, BLANK))
_CT_KEY = re.compile(r"([a-z][a-z_]*\d*):%s*(.*%s|%s)%s*" % (BLANK, _NOT_BLANK, BLANK, BLANK))
# Raw LXC settings are written with a colon by Proxmox and with `=` in files that came from plain LXC; one without a
# value (`lxc.cap.drop:`) is a setting in force.
_RAW = re.compile(r"(lxc\.[a-z0-9_\-.]+)(?::|%s*=)%s*((?:.*%s)?)%s*" % (BLANK, BLANK, _NOT_BLANK, BLANK))
_ENVIRONMENT = "lxc.environment.runtime"


@dataclass(frozen=True)
class Line:
    """One line: `number` from 1, `text` with its line end, and `key`/`value` where it names a setting, else None.

    `value` is the one that Proxmox keeps (a boolean is 1 or 0). `problem` is Proxmox's warning about the line, None
    without one; `counts` says whether the line has an effect all the same (a refused value of a container, a deprecated
    raw key).
    """

    number: int
    text: str
    key: str | None = None
    value: str = ""
    problem: str | None = None
    counts: bool = True

    @property
    def is_comment(self) -> bool:
        return self.text.startswith("#")

    @property
    def is_junk(self) -> bool:
        """Neither empty, nor a description line, nor a setting: Proxmox ignores it with a warning."""
        return self.key is None and self.problem is not None


@dataclass
class Section:
    """`kind` as above; `header` is its `[…]` line, None for the current settings."""

    kind: str
    name: str = ""
    header: Line | None = None
    lines: list[Line] = field(default_factory=list)

    def _effective(self) -> Iterator[Line]:
        return (line for line in self.lines if line.key is not None and line.counts)

    def settings(self) -> dict[str, str]:
        """Key -> value; of a repeated key the last that Proxmox takes. Without description and raw `lxc.*` keys."""
        return {
            str(line.key): line.value
            for line in self._effective()
            if line.key not in ("description", "env") and not str(line.key).startswith("lxc.")
        }

    def raw(self) -> list[tuple[str, str]]:
        """The `lxc.*` settings in order; they may repeat."""
        return [
            (str(line.key), line.value)
            for line in self._effective()
            if str(line.key).startswith("lxc.") and line.key != _ENVIRONMENT
        ]

    def environment(self) -> list[str]:
        """`NAME=value` of a container: its `env` line and what the lxc.environment.runtime lines after it add."""
        found: list[str] = []
        for line in self._effective():
            if line.key == "env":
                found = line.value.split("\0")
            elif line.key == _ENVIRONMENT:
                found.append(line.value)
        return found

    def duplicates(self) -> list[str]:
        """Keys that are set more than once although only the last counts."""
        seen: dict[str, int] = {}
        for line in self._effective():
            if not str(line.key).startswith("lxc.") and line.key != "description":
                seen[str(line.key)] = seen.get(str(line.key), 0) + 1
        return [key for key, times in seen.items() if times > 1]


@dataclass
class GuestConfig:
    """A whole file: `sections[0]` holds the current settings. `kind`: VM or CONTAINER."""

    sections: list[Section]
    kind: str = VM

    @property
    def current(self) -> Section:
        return self.sections[0]

    @property
    def pending(self) -> Section | None:
        """The last pending section; Proxmox starts afresh at each."""
        return next((section for section in reversed(self.sections) if section.kind == PENDING), None)

    @property
    def snapshots(self) -> list[str]:
        """Their names, each once: of a repeated section the last counts."""
        return list(dict.fromkeys(section.name for section in self.sections if section.kind == SNAPSHOT))

    def section(self, kind: str, name: str) -> Section | None:
        """The section of this kind and name that Proxmox goes by: the last."""
        found = (section for section in reversed(self.sections) if section.kind == kind and section.name == name)
        return next(found, None)

    def warnings(self) -> list[Line]:
        """The lines that Proxmox warns of, in any section, in order."""
        return [line for line in _every_line(self) if line.problem is not None]


def parse_config(text: str, kind: str = VM, custom_models: Collection[str] | None = None) -> GuestConfig:
    """Read a configuration as Proxmox reads one of this kind; never raises, whatever the text.

    `custom_models`: the CPU models of cpu-models.conf; None where they are not known, and any is let pass.
    """
    section = Section(CURRENT)
    sections = [section]
    seen: set[tuple[str, str]] = set()
    for number, line in enumerate(_lines(text), start=1):
        body = _bytes(line[:-1] if line.endswith("\n") else line)
        header = None if _EMPTY.fullmatch(body) else _section(body, kind, seen, number, line)
        if header is not None:
            section = header
            sections.append(section)
            seen.add((section.kind, section.name))
        elif section.kind == UNKNOWN or _EMPTY.fullmatch(body) or body.startswith("#"):
            section.lines.append(Line(number, line))
        elif kind == VM:
            section.lines.append(_vm_line(number, line, body, section, custom_models))
        else:
            section.lines.append(_container_line(number, line, body, section))
    return GuestConfig(sections, kind)


def _bytes(text: str) -> str:
    """The text with one character for each byte, as Perl's patterns see the file."""
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def _text(body: str) -> str:
    return body.encode("latin-1").decode("utf-8", "surrogateescape")


def _section(body: str, kind: str, before: set[tuple[str, str]], number: int, line: str) -> Section | None:
    """The section that this line begins, None if it begins none. `before`: kind and name of those above it."""
    match = _HEADER.fullmatch(body)
    if match is None:
        return None
    name = match.group(1)
    lower = name.lower()
    if lower == ("pending" if kind == VM else "pve:pending"):
        found, name, what = PENDING, "pending", "duplicate section: pending"
    elif kind == VM and lower.startswith("special:") and lower[len("special:") :] in _SPECIALS:
        found, name = SPECIAL, name[len("special:") :]
        what = "duplicate special section: %s" % name
    elif _NAME.fullmatch(name):
        found, what = SNAPSHOT, "duplicate snapshot section: %s" % name
    elif kind == VM:
        problem = "skipping unknown section: '%s'" % _text(name)
        return Section(UNKNOWN, _text(name), Line(number, line, problem=problem, counts=False))
    else:
        return None  # in a container a bad line, and the lines after it belong to the section before
    repeated = kind == VM and (found, name) in before
    return Section(found, name, Line(number, line, problem=what if repeated else None))


def _vm_line(number: int, line: str, body: str, section: Section, custom_models: Collection[str] | None) -> Line:
    match = _DESCRIPTION.fullmatch(body)
    if match:
        return Line(number, line, "description", _text(match.group(1)))
    match = _SNAPSTATE.fullmatch(body)
    if match:
        return Line(number, line, "snapstate", match.group(1), counts=section.kind != CURRENT)
    match = _ARGS.fullmatch(body)
    if match:
        return Line(number, line, "args", _text(match.group(2)))
    match = _DELETE.fullmatch(body)
    if match:
        return _delete_line(number, line, match.group(2), section, "[PENDING]")
    match = _VM_KEY.fullmatch(body)
    if match is None:
        return Line(number, line, problem="unable to parse config: %s" % _text(body), counts=False)
    key, value = match.groups()
    if section.kind == SPECIAL and section.name == "cloudinit":
        return Line(number, line, key, _text(value))
    try:
        if section.kind == SPECIAL and key != "fleecing-images":
            raise Refused("unknown setting '%s'" % key)
        if section.kind != SPECIAL:
            value = vm_schema.check_value(key, value, custom_models)
    except Refused as error:
        problem = "unable to parse value of '%s' - %s" % (key, _text(str(error)))
        return Line(number, line, key, _text(value), problem, counts=False)
    return Line(number, line, "ide2" if key == "cdrom" else key, _text(value))


def _container_line(number: int, line: str, body: str, section: Section) -> Line:
    match = _RAW.fullmatch(body)
    if match:
        counts, problem = ct_schema.raw_problem(match.group(1))
        if problem == "unable to parse config":
            problem += ": " + _text(body)
        elif problem is not None and " is deprecated" not in problem:
            problem = "%s: %s" % (match.group(1), problem)
        return Line(number, line, match.group(1), _text(match.group(2)), problem, counts)
    match = _DESCRIPTION.fullmatch(body)
    if match:
        return Line(number, line, "description", _text(match.group(1)))
    match = _SNAPSTATE.fullmatch(body)
    if match:
        return Line(number, line, "snapstate", match.group(1), counts=section.kind != CURRENT)
    match = _DELETE.fullmatch(body)
    if match:
        return _delete_line(number, line, match.group(2), section, "[pve:pending]")
    match = _CT_KEY.fullmatch(body)
    if match is None:
        return Line(number, line, problem="unable to parse config: %s" % _text(body), counts=False)
    key, value = match.groups()
    try:
        return Line(number, line, key, _text(ct_schema.check_value(key, value)))
    except Refused as error:
        problem = "unable to parse value of '%s' - %s" % (key, _text(str(error)))
        return Line(number, line, key, _text(value), problem)


def _delete_line(number: int, line: str, value: str, section: Section, where: str) -> Line:
    if section.kind == PENDING:
        return Line(number, line, "delete", _text(value))
    problem = "property 'delete' is only allowed in %s" % where
    return Line(number, line, "delete", _text(value), problem, counts=False)


def render_config(config: GuestConfig) -> str:
    """The text of `config`, byte for byte what was parsed."""
    return "".join(line.text for line in _every_line(config))


def without_lines(config: GuestConfig, numbers: Iterable[int]) -> str:
    """The text with the lines of these numbers left out and nothing else touched."""
    dropped = set(numbers)
    return "".join(line.text for line in _every_line(config) if line.number not in dropped)


def _every_line(config: GuestConfig) -> Iterable[Line]:
    for section in config.sections:
        if section.header is not None:
            yield section.header
        yield from section.lines


def _lines(text: str) -> list[str]:
    """Split at line feeds only: a description may hold the other characters that str.splitlines() splits at."""
    parts = text.split("\n")
    lines = [part + "\n" for part in parts[:-1]]
    return [*lines, parts[-1]] if parts[-1] else lines


def parse_properties(value: str, default_key: str) -> dict[str, str]:
    """A property string of QEMU, or of a file whose schema we do not check: the part without `=` is the
    `default_key`'s;
    of a repeated key the last."""
    result: dict[str, str] = {}
    for part in value.split(","):
        name, separator, rest = part.strip().partition("=")
        if separator:
            result[name.strip()] = rest.strip()
        elif name:
            result[default_key] = name
    return result


def parse_truth(value: str | None, default: bool | None = None) -> bool | None:
    """A Proxmox boolean: 1, on, yes, true or 0, off, no, false; None for anything else."""
    if value is None:
        return default
    return {
        "1": True,
        "on": True,
        "yes": True,
        "true": True,
        "0": False,
        "off": False,
        "no": False,
        "false": False,
    }.get(value.strip().lower())


def parse_number(value: str | None) -> int | None:
    """A decimal number, else None."""
    return values.whole_number(value) if value is not None and re.fullmatch(r"[0-9]{1,15}", value.strip()) else None


def pending_changes(section: Section | None) -> tuple[dict[str, str], list[str]]:
    """What a pending section will set, and the keys that it will remove.

    `delete: a,!b`; `!` marks a forced removal.
    """
    if section is None:
        return {}, []
    settings = section.settings()
    deleted = [word[1:] if word.startswith("!") else word for word in split_list(settings.pop("delete", ""))]
    return settings, deleted


def describe_guest(config: GuestConfig, name_key: str, gpu_keys: re.Pattern[str]) -> dict[str, Any]:
    """What the facts of a VM and of a container both say:

    `{name, template, onboot, lock, pending (keys), pending_gpu_keys, snapshots (count)}`.
    """
    settings = config.current.settings()
    changed, deleted = pending_changes(config.pending)
    pending = sorted(set(changed) | set(deleted))
    return {
        "name": settings.get(name_key),
        "template": parse_truth(settings.get("template"), False),
        "onboot": parse_truth(settings.get("onboot"), False),
        "lock": settings.get("lock"),
        "pending": pending,
        "pending_gpu_keys": [key for key in pending if gpu_keys.match(key)],
        "snapshots": len(config.snapshots),
    }


def effective_settings(config: GuestConfig) -> dict[str, str]:
    """The settings of the next start: the current ones with the pending changes applied."""
    settings = config.current.settings()
    changed, deleted = pending_changes(config.pending)
    for key in deleted:
        settings.pop(key, None)
    settings.update(changed)
    return settings


def make_printable(value: Any) -> Any:
    """Facts with every byte that is no UTF-8 shown as U+FFFD: a configuration keeps such bytes, a report cannot."""
    if isinstance(value, str):
        return value.encode("utf-8", "surrogateescape").decode("utf-8", "replace")
    if isinstance(value, dict):
        return {key: make_printable(item) for key, item in value.items()}
    return [make_printable(item) for item in value] if isinstance(value, list) else value
