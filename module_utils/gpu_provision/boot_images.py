"""The initramfs of each kernel, and the copies that a boot loader keeps: which of them must be built anew, and by what.

Decided by state, so that a step that failed or was killed is done by the next run. An initramfs is to be built anew
where it is older than a file that it must contain, or where a mark says that an earlier run did not come to the end of
the step. One function for all builders: update-initramfs (initramfs-tools), dracut, mkinitcpio; proxmox-boot-tool
copies what they built to the partitions that the firmware reads.
"""

from __future__ import annotations

import os
import re
import time
from collections.abc import Sequence
from typing import Any

MARK = "/var/lib/gpu-host/initramfs-unfinished"
BUILDERS = ("update-initramfs", "dracut", "mkinitcpio")
BOOT_UUIDS = "/etc/kernel/proxmox-boot-uuids"
PRESETS = "/etc/mkinitcpio.d"
# dracut takes /etc/modprobe.d along only where it builds for this host alone (hostonly), which Debian's does not.
INCLUSIONS = "/etc/dracut.conf.d"
_PLACES = ("/usr/local/sbin", "/usr/local/bin", "/usr/sbin", "/usr/bin", "/sbin", "/bin")
# What update-initramfs builds has one name only; dracut is told the name.
_NAMES = {
    "update-initramfs": ("initrd.img-%s",),
    "dracut": ("initramfs-%s.img", "initrd.img-%s", "initrd-%s"),
}
_CLOCK_SECONDS = 2.0


class BuildError(Exception):
    """An initramfs that is stale and cannot be built, or still is after it was built; the message says what to do."""


def plan_builds(files: Sequence[str], changing: bool = False, root: str = "/") -> dict[str, Any]:
    """``{builder, images, stale, because, inclusions, commands}``.

    `images` are the paths of what the builder makes on this host; `stale` those to be built anew; `because` says why,
    as the end of a sentence; `inclusions`: ``[{path, content}]`` to be written first, so that the builder takes the
    files along; `commands` are ``[{label, argv}]`` in order, empty where nothing is to be done.
    `changing`: one of the files is about to change, as in check mode. `files` that are not there ask for nothing.
    """
    builder = find_builder(root)
    images = find_images(builder, root)
    unfinished = os.path.exists(_below(root, MARK))
    inclusions = [row for row in find_inclusions(builder, files, root) if not _holds(root, row["path"], row["content"])]
    files = [*files, *_inclusion_paths(builder, files, root)]
    stale = {
        path: [name for name in files if (_modified(root, name) or 0.0) > (_modified(root, path) or 0.0)]
        for path in images
    }
    chosen = [path for path in images if unfinished or changing or inclusions or stale[path]]
    if images and chosen and not builder:
        raise BuildError(
            "%s is older than %s, and this host has none of %s to build it anew"
            % (chosen[0], " and ".join(stale[chosen[0]]) or "a change of an earlier run", ", ".join(BUILDERS))
        )
    because = ""
    if chosen:
        older = sorted({name for path in chosen for name in stale[path]})
        because = (
            "an earlier run did not come to the end of this step"
            if unfinished
            else "a file that it holds changes"
            if changing and not older
            else "%s does not take %s along by itself" % (builder, " and ".join(row["of"] for row in inclusions))
            if inclusions and not older
            else "%s was changed after it was built" % ", ".join(older)
        )
    commands = _commands(builder, chosen, images)
    if (chosen or unfinished) and _is_copied(root):
        commands.append({"label": "boot partitions", "argv": ["proxmox-boot-tool", "refresh"]})
    return {
        "builder": builder,
        "images": sorted(images),
        "stale": sorted(chosen),
        "because": because,
        "inclusions": [{"path": row["path"], "content": row["content"]} for row in inclusions] if chosen else [],
        "commands": commands,
    }


def begin_builds(files: Sequence[str], because: str, root: str = "/") -> None:
    """Leave the mark of a step that was begun, for the next run where this one does not come to its end.

    A file whose time lies ahead (a clock that was wrong) would stay newer than every image: it gets the present time.
    """
    mark = _below(root, MARK)
    os.makedirs(os.path.dirname(mark), mode=0o755, exist_ok=True)
    if not os.path.exists(mark):
        with open(mark, "w", encoding="utf-8") as handle:
            handle.write(because + "\n")
    for name in files:
        if (_modified(root, name) or 0.0) > time.time() + _CLOCK_SECONDS:
            os.utime(_below(root, name))


def finish_builds(files: Sequence[str], root: str = "/") -> None:
    """Verify that no image is older than the files, and take the mark away. BuildError where one still is."""
    builder = find_builder(root)
    files = [*files, *_inclusion_paths(builder, files, root)]
    for path in find_images(builder, root):
        older = [name for name in files if (_modified(root, name) or 0.0) > (_modified(root, path) or 0.0)]
        if older:
            raise BuildError(
                "%s ended without an error, and %s is still older than %s%s"
                % (
                    builder,
                    path,
                    ", ".join(older),
                    "; does /etc/initramfs-tools/update-initramfs.conf say update_initramfs=no?"
                    if builder == "update-initramfs"
                    else "",
                )
            )
    if os.path.exists(_below(root, MARK)):
        os.remove(_below(root, MARK))


def find_builder(root: str = "/") -> str:
    """The program that builds an initramfs on this host; empty where it has none."""
    return next((name for name in BUILDERS if _has_program(root, name)), "")


def find_inclusions(builder: str, files: Sequence[str], root: str = "/") -> list[dict[str, str]]:
    """``[{of, path, content}]``: what makes the builder take each of the files along that is there; dracut alone asks.

    dracut.conf(5), install_optional_items: a file that is gone later is no error.
    """
    if builder != "dracut":
        return []
    return [
        {
            "of": name,
            "path": "%s/%s" % (INCLUSIONS, os.path.basename(name)),
            "content": '# Written by Ansible; changes are overwritten.\ninstall_optional_items+=" %s "\n' % name,
        }
        for name in files
        if _modified(root, name) is not None
    ]


def _inclusion_paths(builder: str, files: Sequence[str], root: str) -> list[str]:
    return [row["path"] for row in find_inclusions(builder, files, root)]


def _holds(root: str, path: str, content: str) -> bool:
    try:
        with open(_below(root, path), encoding="utf-8", errors="replace") as handle:
            return handle.read() == content
    except OSError:
        return False


def find_images(builder: str, root: str = "/") -> dict[str, str]:
    """Path of each initramfs -> the kernel release that it is for; empty text where it is named by a preset.

    What is left of kernels whose modules are gone cannot be built and is not listed.
    """
    if builder == "mkinitcpio":
        return dict.fromkeys(_preset_images(root), "")
    names = _NAMES.get(builder) or _NAMES["dracut"]
    releases = sorted({name for place in ("/lib/modules", "/usr/lib/modules") for name in _names(_below(root, place))})
    found = {}
    for release in releases:
        for name in names:
            path = "/boot/" + name % release
            if os.path.isfile(_below(root, path)):
                found[path] = release
    return found


def _preset_images(root: str) -> list[str]:
    """The images of the presets that `mkinitcpio -P` builds: NAME_image or NAME_uki of each NAME in PRESETS."""
    found = []
    for name in sorted(_names(_below(root, PRESETS))):
        if not name.endswith(".preset"):
            continue
        with open(os.path.join(_below(root, PRESETS), name), encoding="utf-8", errors="replace") as handle:
            text = handle.read()
        listed = re.findall(r"^\s*PRESETS=\(([^)]*)\)", text, re.MULTILINE)
        presets = [word.strip("'\"") for word in (listed[-1].split() if listed else ())]
        images = re.findall(r"^\s*(\w+)_(?:image|uki)=[\"']?([^\"'\s]+)", text, re.MULTILINE)
        found += [path for preset, path in images if preset in presets and os.path.isfile(_below(root, path))]
    return found


def _commands(builder: str, chosen: list[str], images: dict[str, str]) -> list[dict[str, Any]]:
    if builder == "mkinitcpio":
        return [{"label": "initramfs", "argv": ["mkinitcpio", "-P"]}] if chosen else []
    rows = []
    for path in sorted(chosen):
        release = images[path]
        argv = ["update-initramfs", "-u", "-k", release]
        if builder == "dracut":
            argv = ["dracut", "--force", path, release]
        rows.append({"label": "initramfs of %s" % release, "argv": argv})
    return rows


def _is_copied(root: str) -> bool:
    """Whether proxmox-boot-tool keeps copies on the partitions that the firmware reads."""
    try:
        with open(_below(root, BOOT_UUIDS), encoding="utf-8", errors="replace") as handle:
            return bool(handle.read().strip()) and _has_program(root, "proxmox-boot-tool")
    except OSError:
        return False


def _has_program(root: str, name: str) -> bool:
    return any(os.access(_below(root, "%s/%s" % (place, name)), os.X_OK) for place in _PLACES)


def _modified(root: str, path: str) -> float | None:
    try:
        return os.stat(_below(root, path)).st_mtime
    except OSError:
        return None


def _names(directory: str) -> list[str]:
    return os.listdir(directory) if os.path.isdir(directory) else []


def _below(root: str, path: str) -> str:
    return os.path.join(root, path.lstrip("/"))
