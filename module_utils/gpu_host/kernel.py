"""The running kernel, its command line, what is configured for the next boot, and whether a reboot is due."""

from __future__ import annotations

import re
from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, OK, Evidence, Listing
from .linux import kernel_cmdline, versions

# Parameters that decide how GPUs work together; others that differ from the boot loader's file are nobody's business
# here.
_RELEVANT = re.compile(
    r"(iommu|intel_iommu|amd_iommu|pci|pcie_\w+|pcie_acs_override|nokaslr|kaslr|nopat|modprobe\.blacklist|module_blacklist|rd\.driver\.blacklist"
    r"|numa_balancing|hugepages\w*|transparent_hugepage|video|vfio\w*\.\w+|nvidia\w*\.\w+|nouveau\.\w+)(?:=|$)"
)
_KERNEL_FILE = re.compile(r"vmlinu[zx]-(?P<release>\d.*)")
_INITRAMFS_NAMES = ("initrd.img-%s", "initramfs-%s.img", "initrd-%s")


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of the kernel.

    `release`; `cmdline` (text), `words` (['iommu=pt', 'quiet'], dashes in names as underscores), `values` (name ->
    value of the last occurrence, True for a bare word); `configured` ([{source, text, words}] for the next boot, None
    if unreadable); `boot_loader` (grub, systemd-boot, None), `pending_words` (relevant words of that loader's file that
    the running kernel lacks); `kaslr` (False with nokaslr, True without, as kernels have it on), `hmm_kaslr_fixed`
    (True from 6.19 on, None where only the distribution knows); `newest_installed`; `reboot_required` and
    `reboot_reasons`.
    """
    release = _line(evidence, errors, "/proc/sys/kernel/osrelease")
    cmdline = _line(evidence, errors, "/proc/cmdline")
    parameters = kernel_cmdline.parse_command_line(cmdline) if cmdline is not None else None
    words = kernel_cmdline.format_words(parameters) if parameters is not None else None
    given = kernel_cmdline.last_values(parameters) if parameters is not None else None
    configured = kernel_cmdline.read_configured(evidence, errors)
    loader = recognise_boot_loader(given, configured)
    boot = evidence.list("/boot")
    errors.unanswered(boot, absent_is_fine=True)
    facts: dict[str, Any] = {
        "release": release,
        "cmdline": cmdline,
        "words": words,
        "values": given,
        "configured": configured,
        "boot_loader": loader,
        "pending_words": find_pending_words(words, configured, loader),
        "kaslr": None if given is None else "nokaslr" not in given,
        "hmm_kaslr_fixed": True if versions.is_at_least(release, "6.19") else None,
        "newest_installed": choose_newest_kernel(find_installed_kernels(boot)),
    }
    return {**facts, **_reboot(evidence, errors, facts, boot)}


def recognise_boot_loader(values: dict[str, Any] | None, configured: list[dict[str, Any]] | None) -> str | None:
    """Which loader started this kernel.

    GRUB passes BOOT_IMAGE=, systemd-boot starts it as an EFI program with initrd=\\EFI\\…
    """
    if values is None:
        return None
    if "BOOT_IMAGE" in values:
        return "grub"
    written = {item["source"] for item in configured or ()}
    if "\\" in str(values.get("initrd", "")) and kernel_cmdline.KERNEL_CMDLINE in written:
        return "systemd-boot"
    return None


def find_pending_words(
    words: list[str] | None, configured: list[dict[str, Any]] | None, loader: str | None
) -> list[dict[str, str]] | None:
    """`[{word, source}]`: what the loader's file asks for and the running kernel was not given.

    None if that is unknown.
    """
    source = {"grub": kernel_cmdline.GRUB, "systemd-boot": kernel_cmdline.KERNEL_CMDLINE}.get(loader or "")
    if words is None or configured is None or source is None:
        return None
    wanted = [item for item in configured if item["source"] == source]
    return [
        {"word": word, "source": source}
        for item in wanted
        for word in item["words"]
        if _RELEVANT.match(word) and word not in words
    ]


def find_installed_kernels(boot: Listing) -> dict[str, float | None]:
    """Kernel release -> when it was installed (seconds since 1970: its initramfs is written then), from /boot."""
    found: dict[str, float | None] = {}
    for name in boot.entries:
        match = _KERNEL_FILE.fullmatch(name)
        if match and not name.endswith((".old", ".sig", ".bak")) and "rescue" not in name:
            release = match["release"]
            ramdisk = next(
                (boot.entries[form % release] for form in _INITRAMFS_NAMES if form % release in boot.entries), None
            )
            found[release] = ramdisk.modified if ramdisk else None
    return found


def choose_newest_kernel(releases: dict[str, float | None]) -> str | None:
    return max(releases, key=lambda release: versions.split_numbers(release) or (), default=None)


def _line(evidence: Evidence, errors: Errors, path: str) -> str | None:
    reading = evidence.read(path)
    errors.unanswered(reading)
    if not reading.ok:
        return None
    text = reading.text.strip()
    if not text:
        errors.add(path, "is empty")
    return text or None


def _reboot(evidence: Evidence, errors: Errors, facts: dict[str, Any], boot: Listing) -> dict[str, Any]:
    reasons = []
    unknown = facts["words"] is None or facts["configured"] is None
    flag = evidence.read("/run/reboot-required")
    errors.unanswered(flag, absent_is_fine=True)
    if flag.status == OK:
        packages = sorted(set(evidence.read("/run/reboot-required.pkgs").text.split()))[:12]
        reasons.append("installed packages ask for it" + (": " + ", ".join(packages) if packages else ""))
    release, latest = facts["release"], facts["newest_installed"]
    booted = _boot_time(evidence, errors)
    unknown = unknown or release is None or not (boot.ok or boot.status == ABSENT)
    if latest and booted is None and versions.is_same_version(latest, release) is not True:
        unknown = True
    if (
        release
        and latest
        and booted
        and versions.is_same_version(latest, release) is False
        and versions.is_at_least(latest, release)
    ):
        # A kernel that was there before this boot and was not chosen is pinned or deselected: that is no reason.
        since = find_installed_kernels(boot).get(latest)
        if since is not None and since > booted:
            reasons.append("kernel %s was installed after the boot, %s is running" % (latest, release))
    for item in facts["pending_words"] or ():
        reasons.append("%s is in %s and not on the running kernel's command line" % (item["word"], item["source"]))
    unknown = unknown or not (flag.ok or flag.status == ABSENT)
    required = True if reasons else (None if unknown else False)
    return {"reboot_required": required, "reboot_reasons": reasons or (None if unknown else [])}


def _boot_time(evidence: Evidence, errors: Errors) -> float | None:
    reading = evidence.read("/proc/uptime")
    errors.unanswered(reading, absent_is_fine=True)
    first = (reading.text.split() or [""])[0]
    uptime = errors.read_decimal(reading.path, "the uptime", first) if reading.ok else None
    return None if uptime is None else evidence.now() - uptime
