"""IOMMU: is it off, does it pass the GPUs' addresses through, or translate them? And which devices share a GPU's group?

The kernel's own word for what a device gets is ``/sys/kernel/iommu_groups/N/type``. The log line "iommu: Default domain
type: Translated" is printed by the IOMMU core even where no IOMMU is in use, and alone says nothing.
"""

from __future__ import annotations

import re
from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence
from .evidence.offenders import Offenders
from .pcie import pci_devices, pci_names

COMMANDS = [(["dmesg"], 20.0)]
GROUPS = "/sys/kernel/iommu_groups"
HARDWARE = "/sys/class/iommu"
GROUP_LIMIT = 4096
OFF, IDENTITY, TRANSLATED = "off", "identity", "translated"
# iommu_group_show_type() in drivers/iommu/iommu.c
TYPE_STATES = {"identity": IDENTITY, "DMA": TRANSLATED, "DMA-FQ": TRANSLATED}
OFF_OPTIONS = ("iommu=off", "amd_iommu=off", "intel_iommu=off")
IDENTITY_OPTIONS = ("iommu=pt", "iommu.passthrough=1")
# The kernel prints these only when it uses an IOMMU.
IN_USE = re.compile(
    r"Adding to iommu group|DMAR: IOMMU enabled|AMD-Vi: (?:Found IOMMU|Interrupt remapping enabled|IOMMU "
    r"performance)|SMMU.*: ias "
)
DEFAULT_DOMAIN = re.compile(r"iommu: Default domain type: (\w+)")


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """The facts:

    - ``state``: off | identity | translated for the GPUs (without GPUs: for the host's devices); translated if any is;
      None if unknown
    - ``source``: iommu_groups | sysfs | cmdline | kernel_log: what `state` was concluded from
    - ``hardware``: [dmar0, …], None if unknown; ``options``: what the kernel command line says of the IOMMU
    - ``default_domain``: the kernel log's word, for people; never used alone
    - ``groups``: the GPUs' groups {number: {type, devices}}
    - ``gpus``: by address {group, type, state, others}: `others` are the group's devices beside the card itself and
      bridges
    - ``translated_gpus``: [address]; ``shared_group_gpus``: [{gpu, group, others}]; None where a part is unknown and
      none was found
    """
    options = _options(evidence, errors)
    hardware = _names(evidence, HARDWARE, errors)
    numbers = _names(evidence, GROUPS, errors)
    devices = pci_devices.inventory(evidence, errors)
    gpus, groups = _gpus(evidence, devices, numbers, errors)
    # A device that could not be identified may be a GPU.
    unknown = devices is None or bool(pci_devices.unidentified(devices))
    log = evidence.run(["dmesg"], 20.0)
    text = log.text if log.succeeded else ""
    domain = DEFAULT_DOMAIN.search(text)
    facts: dict[str, Any] = {
        "state": None,
        "source": None,
        "hardware": hardware,
        "options": options,
        "default_domain": domain.group(1) if domain else None,
        "groups": groups,
        "gpus": None if unknown else gpus,
    }
    facts["state"], facts["source"] = _state(evidence, errors, facts, numbers, text, gpus, unknown)
    translated, shared = Offenders(unknown), Offenders(unknown)
    for address, gpu in gpus.items():
        translated.judge(None if gpu["state"] is None else gpu["state"] == TRANSLATED, address)
        others = {"gpu": address, "group": gpu["group"], "others": gpu["others"]}
        shared.judge(None if gpu["others"] is None else bool(gpu["others"]), others)
    facts["translated_gpus"], facts["shared_group_gpus"] = translated.listed(), shared.listed()
    if facts["state"] is None:
        errors.add(GROUPS, "neither the IOMMU groups nor the command line tell whether the IOMMU is in use")
    return facts


def _options(evidence: Evidence, errors: Errors) -> list[str] | None:
    cmdline = evidence.read("/proc/cmdline")
    errors.unanswered(cmdline)
    if not cmdline.ok:
        return None
    return [
        word
        for word in cmdline.text.split()
        if re.match(r"(intel_iommu|amd_iommu|iommu|iommu\.\w+|pcie_acs_override)=", word)
    ]


def _names(evidence: Evidence, path: str, errors: Errors) -> list[str] | None:
    listing = evidence.list(path)
    if listing.ok:
        return sorted(listing.entries, key=lambda name: (len(name), name))
    errors.unanswered(listing, absent_is_fine=True)
    # The kernel makes the directory when it is built with IOMMU support.
    return [] if listing.status == ABSENT else None


def _gpus(
    evidence: Evidence, devices: dict[str, dict[str, Any]] | None, numbers: list[str] | None, errors: Errors
) -> tuple[dict[str, dict[str, Any]], dict[str, dict[str, Any]]]:
    gpus: dict[str, dict[str, Any]] = {}
    groups: dict[str, dict[str, Any]] = {}
    for address, device in (devices or {}).items():
        if not pci_names.is_gpu(device["vendor"], device["class"]):
            continue
        number = _group_of(evidence, address, numbers, errors)
        gpu: dict[str, Any] = {
            "group": number,
            "type": None,
            "state": OFF if number == "" else None,
            "others": [] if number == "" else None,
        }
        if number:
            group = groups.setdefault(number, _group(evidence, number, errors))
            gpu["type"] = group["type"]
            gpu["state"] = TYPE_STATES.get(group["type"] or "")
            if group["devices"] is not None:
                gpu["others"] = [other for other in group["devices"] if not _belongs(other, address, devices or {})]
        gpus[address] = gpu
    return gpus, groups


def _group_of(evidence: Evidence, address: str, numbers: list[str] | None, errors: Errors) -> str | None:
    """The number of a device's group, "" if it has none, None if unknown."""
    listing = evidence.list("%s/%s" % (pci_devices.DEVICES, address))
    errors.unanswered(listing)
    if not listing.ok:
        return "" if numbers == [] else None
    link = listing.entries.get("iommu_group")
    return (link.target or "").rsplit("/", 1)[-1] or None if link else ""


def _group(evidence: Evidence, number: str, errors: Errors) -> dict[str, Any]:
    kind = evidence.read("%s/%s/type" % (GROUPS, number))
    errors.unanswered(kind)
    members = evidence.list("%s/%s/devices" % (GROUPS, number))
    errors.unanswered(members)
    return {"type": (kind.text.strip() or None) if kind.ok else None, "devices": sorted(members.entries) if members.ok else None}


def _belongs(other: str, gpu: str, devices: dict[str, dict[str, Any]]) -> bool:
    """Whether a member of a GPU's group is a function of the same card, or a bridge, which VFIO leaves with the host."""
    return other.rpartition(".")[0] == gpu.rpartition(".")[0] or pci_names.is_bridge(
        (devices.get(other) or {}).get("class")
    )


def _state(
    evidence: Evidence,
    errors: Errors,
    facts: dict[str, Any],
    numbers: list[str] | None,
    log: str,
    gpus: dict[str, dict[str, Any]],
    unknown: bool,
) -> tuple[str | None, str | None]:
    states = [gpu["state"] for gpu in gpus.values()]
    if states and TRANSLATED in states:
        return TRANSLATED, "iommu_groups"
    if unknown and numbers:
        return None, None
    if states and None not in states:
        return (IDENTITY if IDENTITY in states else OFF), "iommu_groups"
    if numbers == []:
        return OFF, "sysfs"
    if states and numbers:
        return None, None  # of one GPU it could not be read
    if numbers and not states:
        return _host_state(evidence, numbers, errors)
    if numbers is None and facts["hardware"] == []:
        return OFF, "sysfs"
    return _state_from_words(facts["options"], facts["default_domain"], log)


def _host_state(evidence: Evidence, numbers: list[str], errors: Errors) -> tuple[str | None, str | None]:
    states = set()
    for number in numbers[:GROUP_LIMIT]:
        kind = evidence.read("%s/%s/type" % (GROUPS, number))
        errors.unanswered(kind)
        states.add(TYPE_STATES.get(kind.text.strip()) if kind.ok else None)
    if TRANSLATED in states:
        return TRANSLATED, "iommu_groups"
    return (IDENTITY, "iommu_groups") if states == {IDENTITY} else (None, None)


def _state_from_words(options: list[str] | None, default_domain: str | None, log: str) -> tuple[str | None, str | None]:
    """Without groups: what the command line (of /proc, or as the kernel log repeats it) and the log say together."""
    source = "cmdline"
    if options is None:
        line = re.search(r"Command line: (.*)", log, re.I)
        if line is None:
            return None, None
        options, source = line.group(1).split(), "kernel_log"
    in_use = bool(IN_USE.search(log))
    if any(option in options for option in OFF_OPTIONS) and not in_use:
        return OFF, source
    if in_use and default_domain:
        return (TRANSLATED if default_domain == "Translated" else IDENTITY), "kernel_log"
    if in_use and any(option in options for option in IDENTITY_OPTIONS):
        return IDENTITY, source
    return None, None
