"""Whether the initramfs of the running kernel holds the module configuration that the files hold now."""

from __future__ import annotations

import re
from typing import Any

from ..evidence.errors import Errors
from ..evidence.interface import ABSENT, Evidence
from . import modprobe

_NAMES = ("initrd.img-%s", "initramfs-%s.img", "initrd-%s")
_LISTERS = (("lsinitramfs", "initrd.img-"), ("lsinitrd", "init"))
_GPU_MODULES = re.compile(r"/(nvidia[\w-]*|nouveau|vfio[\w-]*pci)\.ko(?:\.\w+)?$", re.MULTILINE)
_CONCERNS_GPU = re.compile(r"nvidia|nouveau|vfio", re.IGNORECASE)
_NO_TIME = "the time of its last change is not known"


def gather(evidence: Evidence, errors: Errors, configuration: modprobe.Configuration) -> dict[str, Any]:
    """Facts of the initramfs of the running kernel.

    `path` (None if there is none), `modified` (seconds since 1970), `older_than` (modprobe.d files about GPUs that were
    changed later), `modules` (GPU modules inside; None if not looked), `stale` (True: an early load would use old
    options; False; None: unknown).

    The listing of an initramfs takes seconds, so it is only asked for when a file is newer than it.
    """
    running = evidence.read("/proc/sys/kernel/osrelease")
    errors.unanswered(running, absent_is_fine=True)
    release = running.text.strip() if running.ok else ""
    boot = evidence.list("/boot")
    name = next((form % release for form in _NAMES if release and form % release in boot.entries), None)
    facts: dict[str, Any] = {"path": None, "modified": None, "older_than": [], "modules": None, "stale": None}
    if name is None:
        if boot.status not in ("ok", ABSENT):
            errors.unanswered(boot)
        elif release:
            facts["stale"] = False  # nothing is loaded from one
        return facts
    facts.update(path="/boot/" + name, modified=boot.entries[name].modified)
    if facts["modified"] is None:
        errors.add(facts["path"], _NO_TIME)
        return facts
    later = [
        path for path, changed in configuration.files.items() if changed is not None and changed > facts["modified"]
    ]
    newer = [path for path in later if _concerns_gpu(path, configuration)]
    facts["older_than"] = newer
    if not newer:
        # A file that could not be read may be newer, and about GPUs.
        undated = [path for path, changed in configuration.files.items() if changed is None]
        for path in undated:
            errors.add(path, _NO_TIME)
        facts["stale"] = False if configuration.complete and not undated else None
        return facts
    facts["modules"] = _modules_inside(evidence, errors, facts["path"])
    facts["stale"] = None if facts["modules"] is None else bool(facts["modules"])
    return facts


def _concerns_gpu(path: str, configuration: modprobe.Configuration) -> bool:
    said = [option.module for option in configuration.options if option.file == path]
    said += [command.module + " " + command.rest for command in configuration.commands if command.file == path]
    return any(_CONCERNS_GPU.search(text) for text in said)


def _modules_inside(evidence: Evidence, errors: Errors, path: str) -> list[str] | None:
    for program, prefix in _LISTERS:
        if not path.rpartition("/")[2].startswith(prefix):
            continue
        outcome = evidence.run((program, path), 20.0)
        if outcome.ok and outcome.rc == 0 and outcome.stdout:
            return sorted({match.replace("-", "_") for match in _GPU_MODULES.findall(outcome.text)})
        if outcome.ok:
            said = outcome.error_text.strip()[:200]
            errors.add(
                "%s %s" % (program, path),
                "ended with %s: %s" % (outcome.ending, said),
                needs_root="ermission" in said,
            )
        else:
            errors.unanswered(outcome, absent_is_fine=True)
    errors.add(path, "its content is unknown: lsinitramfs or lsinitrd gave no list")
    return None
