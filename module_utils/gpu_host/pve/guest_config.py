"""The grammar of a Proxmox guest configuration, /etc/pve/qemu-server/VMID.conf and /etc/pve/lxc/CTID.conf.

Current settings are the lines before the first section; `[PENDING]` (`[pve:pending]` in a container) holds what applies
at the next start, `[special:NAME]` is Proxmox's own, every other `[NAME]` is a snapshot. A reader that takes keys from
the whole file reads snapshots as if they were in force. Source: pve-docs qm.conf(5), pct.conf(5), and what qemu-server
accepts.

Every line is kept as it was, so `render(parse(text)) == text` for any text.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

CURRENT, PENDING, SPECIAL, SNAPSHOT, UNKNOWN = "current", "pending", "special", "snapshot", "unknown"

_SECTION = re.compile(r"\[([^\]]*)\][ \t\r]*$")
_KEY = re.compile(r"([a-z][a-z_\-]*[0-9]*):[ \t]*(\S.*?)?[ \t\r]*$")
# Raw LXC settings are written with a colon by Proxmox and with `=` in files that came from plain LXC.
_RAW_KEY = re.compile(r"(lxc\.[a-z0-9_.\-]+)(?::|[ \t]*=)[ \t]*(.*?)[ \t\r]*$")
_SNAPSHOT_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_\-]+$")


@dataclass(frozen=True)
class Line:
    """One line: `number` from 1, `text` with its line end, and `key`/`value` where it sets something, else None."""

    number: int
    text: str
    key: str | None = None
    value: str = ""

    @property
    def is_comment(self) -> bool:
        return self.text.startswith("#")

    @property
    def is_junk(self) -> bool:
        """Neither empty, nor a description line, nor a setting: Proxmox ignores it with a warning."""
        return self.key is None and not self.is_comment and bool(self.text.strip())


@dataclass
class Section:
    """`kind` as above; `header` is its `[…]` line, None for the current settings."""

    kind: str
    name: str = ""
    header: Line | None = None
    lines: list[Line] = field(default_factory=list)

    def settings(self) -> dict[str, str]:
        """Key -> value; of a repeated key the last, as Proxmox takes it. Without raw `lxc.*` keys."""
        return {line.key: line.value for line in self.lines if line.key is not None and not line.key.startswith("lxc.")}

    def raw(self) -> list[tuple[str, str]]:
        """The `lxc.*` settings in order; they may repeat."""
        return [(line.key, line.value) for line in self.lines if line.key is not None and line.key.startswith("lxc.")]

    def duplicates(self) -> list[str]:
        """Keys that are set more than once although only the last counts."""
        seen: dict[str, int] = {}
        for line in self.lines:
            if line.key is not None and not line.key.startswith("lxc."):
                seen[line.key] = seen.get(line.key, 0) + 1
        return [key for key, times in seen.items() if times > 1]


@dataclass
class GuestConfig:
    """A whole file: `sections[0]` holds the current settings."""

    sections: list[Section]

    @property
    def current(self) -> Section:
        return self.sections[0]

    @property
    def pending(self) -> Section | None:
        """The last pending section; Proxmox starts afresh at each."""
        return next((section for section in reversed(self.sections) if section.kind == PENDING), None)

    @property
    def snapshots(self) -> list[str]:
        return [section.name for section in self.sections if section.kind == SNAPSHOT]


def parse_config(text: str) -> GuestConfig:
    """Read a configuration; never raises, whatever the text."""
    sections = [Section(CURRENT)]
    for number, line in enumerate(_lines(text), start=1):
        body = line.rstrip("\n")
        header = _SECTION.match(body)
        if header:
            kind = _kind(header.group(1))
            sections.append(Section(kind, header.group(1), Line(number, line)))
            continue
        match = None if body.startswith("#") else _RAW_KEY.match(body) or _KEY.match(body)
        if match and match.group(2):
            sections[-1].lines.append(Line(number, line, match.group(1), match.group(2)))
        else:
            sections[-1].lines.append(Line(number, line))
    return GuestConfig(sections)


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


def _kind(name: str) -> str:
    lower = name.lower()
    if lower in ("pending", "pve:pending"):
        return PENDING
    if lower.startswith("special:"):
        return SPECIAL
    return SNAPSHOT if _SNAPSHOT_NAME.match(name) else UNKNOWN


def parse_properties(value: str, default_key: str) -> dict[str, str]:
    """A property string such as `0000:01:00.0,pcie=1`: the part without `=` is the `default_key`'s.

    Of a repeated key the last.
    """
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
    return int(value) if value is not None and re.fullmatch(r"[0-9]{1,15}", value.strip()) else None


def pending_changes(section: Section | None) -> tuple[dict[str, str], list[str]]:
    """What a pending section will set, and the keys that it will remove.

    `delete: a,!b`; `!` marks a forced removal.
    """
    if section is None:
        return {}, []
    settings = section.settings()
    deleted = [key.strip().lstrip("!") for key in settings.pop("delete", "").split(",") if key.strip()]
    return settings, deleted
