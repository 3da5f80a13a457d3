"""What keeps a module from being loaded at the next boot, and what loads it all the same.

`blacklist M` (a file of modprobe.d, modprobe.blacklist= on the command line) only stops the load for a device that the
kernel finds: whoever asks for the module by its name still gets it, as systemd-modules-load and nvidia-persistenced do.
`install M /bin/false` and module_blacklist= refuse it to everybody (modprobe.d(5), kernel-parameters.txt).
"""

from __future__ import annotations

from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from . import kernel_cmdline, modprobe

LOAD_DIRECTORIES = ("/etc/modules-load.d", "/run/modules-load.d", "/usr/lib/modules-load.d")
LOAD_FILE = "/etc/modules"
_COMMAND_LINE = "/proc/cmdline"


def find_kept_off(
    evidence: Evidence, errors: Errors, module: str, configuration: modprobe.Configuration
) -> dict[str, Any]:
    """{always: [places], for_devices: [places], loaded_by: [files that ask for the module by its name]}.

    The first two are None where none is known and a part of the configuration could not be read. `loaded_by` is read
    only where `for_devices` holds something; None where it could not be, and none was found.
    """
    commands = configuration.blacklisted(module)
    always = [command.source for command in commands if command.verb == "install"]
    for_devices = [command.source for command in commands if command.verb == "blacklist"]
    reading = evidence.read(_COMMAND_LINE)
    for item in kernel_cmdline.parse_command_line(reading.text) if reading.ok else ():
        names = {modprobe.module_name(name) for name in str(item["value"] or "").split(",")}
        if module in names and item["name"] == "module_blacklist":
            always.append(_COMMAND_LINE)
        elif module in names and item["name"] in ("modprobe.blacklist", "rd.driver.blacklist"):
            for_devices.append(_COMMAND_LINE)
    known = configuration.complete and reading.ok
    return {
        "always": always or ([] if known else None),
        "for_devices": for_devices or ([] if known else None),
        "loaded_by": _loaded_by(evidence, errors, module) if for_devices else [],
    }


def _loaded_by(evidence: Evidence, errors: Errors, module: str) -> list[str] | None:
    found, unread = [], False
    paths = [LOAD_FILE]
    for directory in LOAD_DIRECTORIES:
        listing = evidence.list(directory)
        errors.unanswered(listing, absent_is_fine=True)
        unread = unread or not (listing.ok or listing.status == ABSENT)
        paths += ["%s/%s" % (directory, name) for name in sorted(listing.entries) if name.endswith(".conf")]
    for path in paths:
        reading = evidence.read(path)
        errors.unanswered(reading, absent_is_fine=True)
        unread = unread or not (reading.ok or reading.status == ABSENT)
        words = [line.split() for line in reading.text.splitlines() if not line.lstrip().startswith(("#", ";"))]
        if any(line and modprobe.module_name(line[0]) == module for line in words):
            found.append(path)
    return found or (None if unread else [])
