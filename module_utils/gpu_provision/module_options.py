"""Options of kernel modules.

The drop-in file, what other files say of the same options, and what the running modules have.

Values are compared as the kernel reads them: Y is 1, 0x11 is 17, -1 is 4294967295, and a RegistryDwords string is its
set of keys.
"""

from __future__ import annotations

import re
from typing import Any

from ..gpu_host.evidence.errors import Errors
from ..gpu_host.evidence.interface import Evidence
from ..gpu_host.linux import modprobe

_NAME = re.compile(r"[A-Za-z][A-Za-z0-9_]*\Z")
_PLAIN = re.compile(r"[A-Za-z0-9_.:,+-]+\Z")
HEADER = "# Written by Ansible (nvidia_module_options); changes are overwritten.\n"
# The order in which modules go, users before what they use; they come back the other way round.
UNLOAD_ORDER = ("nvidia_uvm", "nvidia_drm", "nvidia_modeset", "nvidia_peermem", "nvidia")
# Modules that must go first when one is reloaded.
_DEPENDENTS = {"nvidia": UNLOAD_ORDER, "nvidia_modeset": ("nvidia_drm", "nvidia_modeset")}


class OptionError(ValueError):
    """An option that cannot be written as asked; the message says which and why."""


def render_options(options: dict[str, dict[str, Any]]) -> str:
    """The text of the drop-in file, sorted, one `options` line a module.

    OptionError for what modprobe would misread.
    """
    lines = []
    for module in sorted(options):
        if not _NAME.match(module.replace("-", "_")):
            raise OptionError("%r is no name of a kernel module" % module)
        pairs = [
            "%s=%s" % (_checked(module, name), quote_text(value_text(module, name, value)))
            for name, value in sorted(options[module].items())
        ]
        if pairs:
            lines.append("options %s %s\n" % (modprobe.module_name(module), " ".join(pairs)))
    return HEADER + "".join(lines)


def _checked(module: str, name: str) -> str:
    if not _NAME.match(name):
        raise OptionError("%r is no name of an option of %s" % (name, module))
    return name


def value_text(module: str, name: str, value: Any) -> str:
    """The value as modprobe passes it on: true is 1, a dictionary is NVIDIA's `key=value;key=value`."""
    if isinstance(value, bool):
        return "1" if value else "0"
    if isinstance(value, dict):
        text = ";".join("%s=%s" % (key, value_text(module, name, inner)) for key, inner in value.items())
        if " " in text:
            raise OptionError("%s.%s must not hold blanks: the driver ends its RegistryDwords there" % (module, name))
        return text
    if value is None or isinstance(value, list):
        raise OptionError(
            "%s.%s has no value that can be written; give a number, a text or a dictionary" % (module, name)
        )
    text = str(value)
    if any(sign in text for sign in '"\n\r\\'):
        raise OptionError(
            "%s.%s holds a quote, a backslash or a line break, which modprobe.d cannot carry" % (module, name)
        )
    return text


def quote_text(text: str) -> str:
    return text if _PLAIN.match(text) else '"%s"' % text


def is_same_value(left: str | None, right: str | None) -> bool | None:
    """Whether two spellings are one value; None when either is unknown."""
    if left is None or right is None:
        return None
    return _normal(left) == _normal(right)


def _normal(text: str) -> Any:
    text = text.strip().strip('"')
    if text in ("Y", "y", "N", "n"):
        return 1 if text in "Yy" else 0
    if re.fullmatch(r"-?(0[xX][0-9a-fA-F]+|\d+)", text):
        return int(text, 0 if "x" in text.lower() else 10) % 2**32
    if "=" in text:
        pairs = (part.partition("=") for part in text.split(";") if part.strip())
        return frozenset((key.strip(), _normal(value)) for key, _equals, value in pairs)
    return text


def find_conflicts(evidence: Evidence, errors: Errors, wanted: dict[str, dict[str, Any]], own_file: str) -> list[str]:
    """Where another file or the kernel command line gives one of the wanted options another value, one line each."""
    found = []
    configuration = modprobe.read_configuration(evidence, errors)
    cmdline = dict(modprobe.parse_parameters(evidence.read("/proc/cmdline").text))
    for module, options in sorted(wanted.items()):
        name = modprobe.module_name(module)
        others = [option for option in configuration.options_of(name) if option.file != own_file]
        for key, value in sorted(options.items()):
            text = value_text(module, key, value)
            found += [
                "%s sets %s %s=%s, but %s is wanted" % (option.source, name, key, option.value, text)
                for option in others
                if option.name == key
                and is_same_value(option.value if option.value is not None else "1", text) is False
            ]
            on_line = cmdline.get("%s.%s" % (name, key))
            if is_same_value(on_line, text) is False:
                found.append("the kernel command line sets %s.%s=%s, but %s is wanted" % (name, key, on_line, text))
    return found


def compare_options(evidence: Evidence, wanted: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """For each wanted option ``{module, option, wanted, live, loaded, pending}``.

    `pending` is None when it cannot be told.
    """
    found = []
    nvreg = _nvreg(evidence)
    for module, options in sorted(wanted.items()):
        name = modprobe.module_name(module)
        loaded = evidence.list("/sys/module/" + name).ok
        for key, value in sorted(options.items()):
            text = value_text(module, key, value)
            live = _live(evidence, name, key, nvreg) if loaded else None
            equal = is_same_value(live, text)
            pending = False if not loaded else None if equal is None else not equal
            found.append(
                {"module": name, "option": key, "wanted": text, "live": live, "loaded": loaded, "pending": pending}
            )
    return found


def _live(evidence: Evidence, module: str, option: str, nvreg: dict[str, str]) -> str | None:
    if module == "nvidia" and option.startswith("NVreg_"):
        return nvreg.get(option[len("NVreg_") :])
    reading = evidence.read("/sys/module/%s/parameters/%s" % (module, option))
    return reading.text.strip() if reading.ok else None


def _nvreg(evidence: Evidence) -> dict[str, str]:
    """`Name: value` lines of /proc/driver/nvidia/params, quotes taken off."""
    pairs = (line.partition(":") for line in evidence.read("/proc/driver/nvidia/params").text.splitlines())
    return {name.strip(): value.strip().strip('"') for name, colon, value in pairs if colon}


def list_modules_to_reload(modules: list[str], loaded: list[str]) -> list[str]:
    """The loaded modules that must go, in order, so that `modules` can be loaded anew."""
    wanted = {dependent for module in modules for dependent in _DEPENDENTS.get(module, (module,))}
    return [module for module in UNLOAD_ORDER if module in wanted and module in loaded]


def find_unknown_parameters(evidence: Evidence, wanted: dict[str, dict[str, Any]]) -> list[str]:
    """Wanted options that the installed module does not have: the kernel would ignore them without a word."""
    found = []
    for module, options in sorted(wanted.items()):
        outcome = evidence.run(["modinfo", "-F", "parm", module], 15)
        known = {line.partition(":")[0].strip() for line in outcome.text.splitlines()}
        if outcome.ok and outcome.rc == 0 and known:
            found += ["%s has no option %s" % (module, name) for name in sorted(options) if name not in known]
    return found
