"""What is wrong with a guest's configuration, line by line, in the words of what Proxmox makes of it."""

from __future__ import annotations

import re
from typing import Any

from . import ct_schema, vm_schema
from .guest_config import CURRENT, PENDING, UNKNOWN, VM, GuestConfig, Line, Section
from .property_string import Refused, parse_property_string

# Settings that decide what the guest's GPUs can do, or whether it starts.
_VM_GPU_KEY = re.compile(
    r"(machine|cpu|args|bios|efidisk0|memory|numa[0-9]*|hugepages|affinity|hostpci[0-9]+|arch|template|onboot|kvm|cores|"
    r"sockets|balloon|vga)$"
)
_CT_GPU_KEY = re.compile(r"(dev[0-9]+|features|unprivileged|template|onboot|hostname|arch|lxc\..*)$")
# A line without a key that was meant to be one of them: `hostpci0 : …`, `DEV1: …`, `machine = q35`.
_MEANT = re.compile(
    r"\W*(hostpci|dev|machine|cpu|args|lxc\.|unprivileged|features)[0-9 \t]*"
    r"(?:[^\s0-9]\S*\s*|[^\S \t]\s*)?[:=]",
    re.I,
)
# A line that was meant to give the guest a device.
_MEANT_DEVICE = re.compile(r"\W*(hostpci\s*[0-9]|dev\s*[0-9]+\s*[:=].*nvidia|lxc\..*nvidia)", re.I)
_COMMENT = re.compile(r"(?<!\s)\s+(#|//|;).*$")
_KEY_OF_JUNK = re.compile(r"\s*([A-Za-z][A-Za-z_\-]*\d*)\s*[:=]\s*(\S(?:.*\S)?)\s*$")


def describe_faults(path: str, config: GuestConfig) -> tuple[list[str], list[dict[str, Any]]]:
    """(all faults as sentences with file and line; those about GPUs or the start).

    Each of the latter: {line, key (None: no setting), text, sentence, fix: {key, value} | None}. A fix is the value
    that was meant, where it is certain: another case, blanks, a comment, an option given twice alike.
    """
    faults: list[str] = []
    refused: list[dict[str, Any]] = []
    for section in config.sections:
        if section.kind == UNKNOWN and section.header is not None and config.kind == VM:
            lines = sum(1 for line in section.lines if line.text.strip())
            faults.append(
                "%s line %d: Proxmox does not know the section %s and skips its %d lines"
                % (path, section.header.number, section.header.text.strip(), lines)
            )
        if section.kind not in (CURRENT, PENDING) or _superseded(config, section):
            continue
        for line in section.lines:
            if line.problem is None or (line.counts and (line.key or "").startswith("lxc.")):
                continue  # a renamed raw key counts
            sentence = "%s line %d: %s" % (path, line.number, _sentence(config, section, line))
            faults.append(sentence)
            if _about_gpus(config.kind, line):
                refused.append(
                    {
                        "line": line.number,
                        "key": line.key,
                        "text": _short(line.text),
                        "sentence": sentence,
                        "fix": find_correction(config.kind, line),
                    }
                )
    faults += ["%s: %s is set more than once; the last counts" % (path, key) for key in config.current.duplicates()]
    return faults, refused


def mentions_gpus(config: GuestConfig) -> bool:
    """Whether a line that Proxmox refuses was meant to give the guest a device."""
    return any(_MEANT_DEVICE.match(line.text) for line in config.warnings() if not line.text.startswith("["))


def _superseded(config: GuestConfig, section: Section) -> bool:
    return section.kind == PENDING and section is not config.pending


def _about_gpus(kind: str, line: Line) -> bool:
    if line.key is None:
        return bool(_MEANT.match(line.text))
    return bool((_VM_GPU_KEY if kind == VM else _CT_GPU_KEY).match(line.key))


def _sentence(config: GuestConfig, section: Section, line: Line) -> str:
    text, problem = _short(line.text), str(line.problem)
    reason = problem.partition(" - ")[2] or problem
    if line.key is None:
        return "not a setting, Proxmox ignores it: %s" % text
    if line.key == "delete":
        return "Proxmox ignores it (%s): %s" % (problem, text)
    if line.key.startswith("lxc."):
        return "Proxmox ignores it (%s): %s" % (reason, text)
    if config.kind == VM:
        value = section.settings().get(line.key)
        stays = "%s is not set" % line.key if value is None else "in force is %s: %s" % (line.key, _short(value))
        return "Proxmox drops the line (%s), %s: %s" % (reason, stays, text)
    if re.fullmatch("dev[0-9]+", line.key):
        try:
            ct_schema.check_device(line.value)
        except Refused:
            return "Proxmox keeps the value and refuses to start the container with it (%s): %s" % (reason, text)
        return "Proxmox warns (%s) and passes the device all the same: %s" % (reason, text)
    if line.key == "features":
        return "Proxmox keeps the value and refuses to start the container with it (%s): %s" % (reason, text)
    return "Proxmox warns (%s) and keeps the value as it stands: %s" % (reason, text)


def _short(text: str) -> str:
    text = text.strip()
    return text if len(text) <= 80 else text[:77] + "..."


def find_correction(kind: str, line: Line) -> dict[str, str] | None:
    """{key, value} that was meant by a refused hostpci, machine or devN line, None where that is not certain."""
    key, value = line.key, line.value
    if key is None:
        match = _KEY_OF_JUNK.match(line.text)
        if match is None:
            return None
        key, value = match.group(1).lower(), match.group(2)
    form = _form(kind, key)
    if form is None:
        return None
    default = next(name for name, prop in form.items() if prop.default)
    options: dict[str, str] = {}
    for part in _COMMENT.sub("", value).split(","):
        name, separator, rest = (word.strip() for word in part.partition("="))
        if not name:
            continue
        name, rest = (name.lower(), rest) if separator else (default, name)
        if name in ("host", "type", "pcie", "x-vga", "rombar", "driver", "viommu"):
            rest = rest.lower()
        if name == "mode" and re.fullmatch("[0-7]{3}", rest):
            rest = "0" + rest
        if options.setdefault(name, rest) != rest:
            return None
    value = ",".join(rest if name == default else "%s=%s" % (name, rest) for name, rest in options.items())
    try:
        found = parse_property_string(form, value)
    except Refused:
        return None
    return {"key": key, "value": value} if (found and default in found) or "mapping" in found else None


def _form(kind: str, key: str) -> Any:
    if kind != VM:
        return ct_schema.DEVICE if re.fullmatch("dev(0|[1-9][0-9]*)", key) and ct_schema.find_rule(key) else None
    if key == "machine":
        return vm_schema.MACHINE
    return vm_schema.HOSTPCI if key.startswith("hostpci") and vm_schema.find_rule(key) is not None else None
