"""Which element of ``nvidia-smi -q`` holds which fact of a GPU, in every spelling of drivers 470 to 610.

The XML and the text form name the same things differently; ``device`` reads either into the same dictionary. A field
that the driver does not print is None (unknown), one that it prints as N/A is ``"n/a"``.
"""

from __future__ import annotations

import re
from typing import Any, Callable

from . import smi_values
from .log_tree import Node

_WORD: Callable[[Any], Any] = smi_values.parse_word
_YES: Callable[[Any], Any] = smi_values.parse_boolean
_PLAIN: Callable[[Any], Any] = smi_values.parse_number


def _unit(unit: str) -> Callable[[Any], Any]:
    return lambda text: smi_values.parse_number(text, unit)


_MIB, _WATT, _CELSIUS, _PERCENT, _MHZ, _LANES, _US = (_unit(unit) for unit in ("MiB", "W", "C", "%", "MHz", "x", "us"))

_GPU_POWER, _GPU_POWER_TEXT = "gpu_power_readings/", "gpu power readings/"
_LINK, _LINK_TEXT = "pci/pci_gpu_link_info/", "pci/gpu link info/"


def _ceiling(name: str) -> tuple[str, str]:
    """Driver 610 moved the limits one level down, into "GPU Ceiling Power Limit".

    That is the name of the XML after that of the text form.
    """
    xml = "_" in name
    section = _GPU_POWER if xml else _GPU_POWER_TEXT
    return section + name, section + ("gpu_ceiling_power_limit/" if xml else "gpu ceiling power limit/") + name


# Fact -> (how its text is read, elements in the XML, keys in the text form); the first that exists counts.
_FIELDS: dict[str, tuple[Callable[[Any], Any], tuple[str, ...], tuple[str, ...]]] = {
    "uuid": (_WORD, ("uuid",), ("gpu uuid",)),
    "serial": (_WORD, ("serial",), ("serial number",)),
    "minor": (_PLAIN, ("minor_number",), ("minor number",)),
    "name": (_WORD, ("product_name",), ("product name",)),
    "architecture": (_WORD, ("product_architecture",), ("product architecture",)),
    "pci_id": (smi_values.device_id, ("pci/pci_device_id",), ("pci/device id",)),
    "vbios_version": (_WORD, ("vbios_version",), ("vbios version",)),
    "gsp_firmware_version": (_WORD, ("gsp_firmware_version",), ("gsp firmware version",)),
    "display_active": (_YES, ("display_active",), ("display active",)),
    "persistence": (_YES, ("persistence_mode",), ("persistence mode",)),
    "addressing_mode": (_WORD, ("addressing_mode",), ("addressing mode",)),
    "compute_mode": (_WORD, ("compute_mode",), ("compute mode",)),
    "virtualization_mode": (
        _WORD,
        ("gpu_virtualization_mode/virtualization_mode",),
        ("gpu virtualization mode/virtualization mode",),
    ),
    "vgpu_license": (
        _WORD,
        ("vgpu_software_licensed_product/license_status", "grid_licensed_product/license_status"),
        ("vgpu software licensed product/license status", "grid licensed product/license status"),
    ),
    "mig": (_YES, ("mig_mode/current_mig",), ("mig mode/current",)),
    "mig_pending": (_YES, ("mig_mode/pending_mig",), ("mig mode/pending",)),
    "performance_state": (_WORD, ("performance_state",), ("performance state",)),
    "recovery_action": (_WORD, ("gpu_recovery_action",), ("gpu recovery action",)),
    "reset_required": (_YES, ("gpu_reset_status/reset_required",), ("gpu reset status/reset required",)),
    "fan_percent": (_PERCENT, ("fan_speed",), ("fan speed",)),
    "memory_total_mib": (_MIB, ("fb_memory_usage/total",), ("fb memory usage/total",)),
    "memory_used_mib": (_MIB, ("fb_memory_usage/used",), ("fb memory usage/used",)),
    "memory_reserved_mib": (_MIB, ("fb_memory_usage/reserved",), ("fb memory usage/reserved",)),
    "bar1_mib": (_MIB, ("bar1_memory_usage/total",), ("bar1 memory usage/total",)),
    "bar1_used_mib": (_MIB, ("bar1_memory_usage/used",), ("bar1 memory usage/used",)),
    "utilization_percent": (_PERCENT, ("utilization/gpu_util",), ("utilization/gpu",)),
    "memory_utilization_percent": (_PERCENT, ("utilization/memory_util",), ("utilization/memory",)),
    "power_draw_w": (
        _WATT,
        (
            *(_GPU_POWER + name for name in ("instant_power_draw", "power_draw", "average_power_draw")),
            "power_readings/power_draw",
        ),
        (
            *(_GPU_POWER_TEXT + name for name in ("instantaneous power draw", "power draw", "average power draw")),
            "power readings/power draw",
        ),
    ),
    "power_limit_w": (
        _WATT,
        (*_ceiling("current_power_limit"), "power_readings/enforced_power_limit", "power_readings/power_limit"),
        (*_ceiling("current power limit"), "power readings/enforced power limit", "power readings/power limit"),
    ),
    "power_limit_default_w": (
        _WATT,
        (*_ceiling("default_power_limit"), "power_readings/default_power_limit"),
        (*_ceiling("default power limit"), "power readings/default power limit"),
    ),
    "power_limit_max_w": (
        _WATT,
        ("gpu_power_readings/max_power_limit", "power_readings/max_power_limit"),
        ("gpu power readings/max power limit", "power readings/max power limit"),
    ),
    "temperature_c": (_CELSIUS, ("temperature/gpu_temp",), ("temperature/gpu current temp",)),
    "temperature_margin_c": (
        _CELSIUS,
        ("temperature/gpu_temp_tlimit",),
        ("temperature/gpu t.limit temp", "temperature/gpu current t.limit temp"),
    ),
    "temperature_shutdown_c": (_CELSIUS, ("temperature/gpu_temp_max_threshold",), ("temperature/gpu shutdown temp",)),
    "temperature_slowdown_c": (_CELSIUS, ("temperature/gpu_temp_slow_threshold",), ("temperature/gpu slowdown temp",)),
    "temperature_max_operating_c": (
        _CELSIUS,
        ("temperature/gpu_temp_max_gpu_threshold",),
        ("temperature/gpu max operating temp",),
    ),
    # From Ada on the limits are margins: degrees left of the present one at which the GPU slows down or stops.
    "temperature_margin_slowdown_c": (
        _CELSIUS,
        ("temperature/gpu_temp_slow_tlimit_threshold",),
        ("temperature/gpu slowdown t.limit temp",),
    ),
    "temperature_margin_shutdown_c": (
        _CELSIUS,
        ("temperature/gpu_temp_max_tlimit_threshold",),
        ("temperature/gpu shutdown t.limit temp",),
    ),
    "memory_temperature_c": (_CELSIUS, ("temperature/memory_temp",), ("temperature/memory current temp",)),
    "memory_temperature_max_c": (
        _CELSIUS,
        ("temperature/gpu_temp_max_mem_threshold",),
        ("temperature/memory max operating temp",),
    ),
    "clock_graphics_mhz": (_MHZ, ("clocks/graphics_clock",), ("clocks/graphics",)),
    "clock_graphics_max_mhz": (_MHZ, ("max_clocks/graphics_clock",), ("max clocks/graphics",)),
    "clock_memory_mhz": (_MHZ, ("clocks/mem_clock",), ("clocks/memory",)),
    "clock_memory_max_mhz": (_MHZ, ("max_clocks/mem_clock",), ("max clocks/memory",)),
    "ecc": (_YES, ("ecc_mode/current_ecc",), ("ecc mode/current",)),
    "ecc_pending": (_YES, ("ecc_mode/pending_ecc",), ("ecc mode/pending",)),
    "ecc_sram_threshold_exceeded": (
        _YES,
        ("ecc_errors/aggregate/sram_threshold_exceeded",),
        ("ecc errors/aggregate/sram threshold exceeded",),
    ),
    "ecc_channel_repair_pending": (
        _YES,
        ("ecc_errors/channel_repair_pending",),
        ("ecc errors/channel repair pending",),
    ),
    "ecc_tpc_repair_pending": (_YES, ("ecc_errors/tpc_repair_pending",), ("ecc errors/tpc repair pending",)),
    "ecc_unrepairable_memory": (_YES, ("ecc_errors/unrepairable_memory",), ("ecc errors/unrepairable memory",)),
    "retired_pages_pending": (
        _YES,
        ("retired_pages/pending_blacklist", "retired_pages/pending_retirement"),
        ("retired pages/pending page blacklist", "retired pages/pending"),
    ),
    "link_generation": (_PLAIN, (_LINK + "pcie_gen/current_link_gen",), (_LINK_TEXT + "pcie generation/current",)),
    "link_generation_max": (_PLAIN, (_LINK + "pcie_gen/max_link_gen",), (_LINK_TEXT + "pcie generation/max",)),
    "link_generation_device_max": (
        _PLAIN,
        (_LINK + "pcie_gen/max_device_link_gen",),
        (_LINK_TEXT + "pcie generation/device max",),
    ),
    "link_generation_host_max": (
        _PLAIN,
        (_LINK + "pcie_gen/max_host_link_gen",),
        (_LINK_TEXT + "pcie generation/host max",),
    ),
    "link_width": (_LANES, (_LINK + "link_widths/current_link_width",), (_LINK_TEXT + "link width/current",)),
    "link_width_max": (_LANES, (_LINK + "link_widths/max_link_width",), (_LINK_TEXT + "link width/max",)),
    "link_replays": (_PLAIN, ("pci/replay_counter",), ("pci/replays since reset",)),
    "fabric_state": (_WORD, ("fabric/state",), ("fabric/state",)),
    "fabric_status": (_WORD, ("fabric/status",), ("fabric/status",)),
    "fabric_clique_id": (_WORD, ("fabric/cliqueId",), ("fabric/cliqueid", "fabric/clique id")),
    "fabric_cluster_uuid": (_WORD, ("fabric/clusterUuid",), ("fabric/clusteruuid", "fabric/cluster uuid")),
}
_REMAPPED_ROWS = {
    "correctable": (_PLAIN, "remapped_row_corr", "correctable error"),
    "uncorrectable": (_PLAIN, "remapped_row_unc", "uncorrectable error"),
    "pending": (_YES, "remapped_row_pending", "pending"),
    "failure": (_YES, "remapped_row_failure", "remapping failure occurred"),
}
_REASON_LABELS = {"idle": "gpu_idle", "display_clock_setting": "display_clocks_setting"}
# Members of <fabric><health> (nvmlGpuFabricInfo_v3_t, healthSummary and healthMask) -> what each reads when all is
# well. partition_assigned is no fault either way; a partition that lacks is `incorrect_configuration`.
_FABRIC_HEALTH: dict[str, tuple[str, ...]] = {
    "summary": ("healthy",),
    "bandwidth": ("full",),
    "route_recovery_in_progress": ("false",),
    "route_unhealthy": ("false",),
    "access_timeout_recovery": ("false",),
    "incorrect_configuration": ("none",),
    "partition_assigned": ("true", "false"),
}
# Fields that other readers fill, so that a GPU has the same keys whatever it was read from.
_FILLED_APART = (
    "index",
    "lost",
    "unreadable",
    "fabric_health",
    "clock_event_reasons",
    "remapped_rows",
    "ecc_volatile",
    "ecc_aggregate",
    "processes",
    "mig_devices",
)


def make_empty_device() -> dict[str, Any]:
    """A GPU of which nothing is known: every key of ``device``."""
    facts: dict[str, Any] = dict.fromkeys((*_FILLED_APART, *_FIELDS))
    facts["lost"] = False
    facts["unreadable"] = []
    return facts


def read_device(gpu: Node, form: str) -> dict[str, Any]:
    """The facts of one ``<gpu>`` block; `form` is ``xml`` or ``text``.

    ``unreadable``: names of the facts for which the driver printed an error in the place of a value. ``fabric_health``:
    ``{member: word}`` of every member, ``"n/a"`` where none applies, None where the driver prints no health.
    """
    xml = form == "xml"
    facts = make_empty_device()
    texts = gpu.flat()
    for name, (read, in_xml, in_text) in _FIELDS.items():
        path = next((path for path in (in_xml if xml else in_text) if path in texts), None)
        facts[name] = read(texts[path]) if path is not None else None
        if facts[name] is None and path is not None and texts[path].strip():
            facts["unreadable"].append(name)
    facts["fabric_health"] = _fabric_health(gpu.find("fabric/health"))
    facts["lost"] = any("gpu is lost" in text.lower() for text in texts.values())
    facts["clock_event_reasons"] = _reasons(gpu, xml)
    facts["remapped_rows"] = _remapped_rows(gpu, xml)
    for kind in ("volatile", "aggregate"):
        facts["ecc_" + kind] = _ecc(gpu.find(("ecc_errors/" if xml else "ecc errors/") + kind))
    facts["processes"] = _processes(gpu, xml)
    facts["mig_devices"] = sum(1 for node in gpu.below() if node.name == "mig_device") if xml else None
    if any("requires reset" in text.lower() for text in texts.values()):
        facts["reset_required"] = True
    return facts


def _fabric_health(node: Node | None) -> dict[str, str | None] | str | None:
    if node is None:
        return None
    if not node.children:
        return smi_values.NOT_APPLICABLE if smi_values.is_not_applicable(node.value) else None
    members = {member.name.replace(" ", "_"): smi_values.parse_word(member.value) for member in node.children}
    applies = any(value != smi_values.NOT_APPLICABLE for value in members.values())
    return members if applies else smi_values.NOT_APPLICABLE


def judge_fabric_health(health: dict[str, str | None] | str | None) -> tuple[list[str], list[str]]:
    """(members that are not well, members of which nothing can be said), each as ``name value``.

    A member that no table of ours has counts as unknown, unless NVML's own summary says that the GPU is healthy.
    """
    if not isinstance(health, dict):
        return [], []
    bad, unsure = [], []
    healthy = str(health.get("summary")).lower() == "healthy"
    for name, value in health.items():
        said = "%s %s" % (name, value if value is not None else "cannot be read")
        good = _FABRIC_HEALTH.get(name)
        if value == smi_values.NOT_APPLICABLE or (value is not None and good and value.lower() in good):
            continue
        if value is None or (good is None and not healthy):
            unsure.append(said)
        elif good is not None:
            bad.append(said)
    return bad, unsure


def read_location(gpu: Node, form: str) -> str | None:
    """The PCI address of a block."""
    return smi_values.parse_address(gpu.text("id")) or smi_values.parse_address(
        gpu.text("pci/pci_bus_id" if form == "xml" else "pci/bus id")
    )


_COUNTED = re.compile(r"ecc[_ ]errors/(?:volatile|aggregate)/(?!.*threshold).*(?:correctable|/total)")


def list_unreadable(gpu: Node, form: str) -> list[tuple[str, str]]:
    """(element, word) for each element that is read and holds no such value: one of NVML's error strings, or anything
    else."""
    texts = gpu.flat()
    found = []
    for read, in_xml, in_text in _FIELDS.values():
        path = next((path for path in (in_xml if form == "xml" else in_text) if path in texts), None)
        if path is not None and texts[path].strip() and read(texts[path]) is None:
            found.append((path, " ".join(texts[path].split())[:60]))
    for path, text in texts.items():
        if _COUNTED.match(path) and text and smi_values.parse_number(text) is None:
            found.append((path, " ".join(text.split())[:60]))
    return found


def _reasons(gpu: Node, xml: bool) -> list[str] | str | None:
    """Names of the active clock event reasons as NVML spells them (``hw_slowdown``).

    None where the hardware's are not readable.
    """
    for section in (
        ("clocks_event_reasons", "clocks_throttle_reasons")
        if xml
        else ("clocks event reasons", "clocks throttle reasons")
    ):
        node = gpu.find(section)
        if node is None:
            continue
        if smi_values.is_not_applicable(node.value):
            return smi_values.NOT_APPLICABLE
        states = {_reason_name(entry.name): smi_values.parse_boolean(entry.value) for entry in node.below()}
        active = [name for name, state in states.items() if state is True]
        return active if active or states.get("hw_slowdown") is not None else None
    return None


def _reason_name(label: str) -> str:
    name = re.sub(r"^clocks_(event|throttle)_reasons?_", "", label.replace(" ", "_"))
    return _REASON_LABELS.get(name, name)


def _remapped_rows(gpu: Node, xml: bool) -> dict[str, Any] | str | None:
    node = gpu.find("remapped_rows" if xml else "remapped rows")
    if node is None:
        return None
    if not node.children:
        return smi_values.NOT_APPLICABLE if smi_values.is_not_applicable(node.value) else None
    return {
        name: read(node.text(in_xml if xml else in_text)) for name, (read, in_xml, in_text) in _REMAPPED_ROWS.items()
    }


def _ecc(node: Node | None) -> dict[str, Any] | None:
    """``{correctable, uncorrectable}`` summed over the memories; ``"n/a"`` if no counter applies.

    None if one is unknown.

    Ampere and later count SRAM and DRAM; before that there were single bit and double bit totals.
    """
    if node is None:
        return None
    totals: dict[str, Any] = {"correctable": smi_values.NOT_APPLICABLE, "uncorrectable": smi_values.NOT_APPLICABLE}
    for entry in node.below():
        kind = _ecc_kind(node, entry)
        count = smi_values.parse_number(entry.value)
        if kind is None or totals[kind] is None or count == smi_values.NOT_APPLICABLE:
            continue
        if not isinstance(count, int):
            totals[kind] = None
        else:
            totals[kind] = count + (totals[kind] if isinstance(totals[kind], int) else 0)
    return totals


def _ecc_kind(node: Node, entry: Node) -> str | None:
    name = entry.name.replace(" ", "_")
    if "threshold" in name:
        return None
    if "uncorrectable" in name:
        return "uncorrectable"
    if "correctable" in name:
        return "correctable"
    for section, kind in (("single_bit", "correctable"), ("double_bit", "uncorrectable")):
        parent = node.find(section) or node.find(section.replace("_", " "))
        if parent is not None and parent.find("total") is entry:
            return kind
    return None


def _processes(gpu: Node, xml: bool) -> list[dict[str, Any]] | None:
    """``{pid, type, name, memory_mib}`` of each; None if the list is not there.

    `type` is C, G, C+G or M as nvidia-smi has it.
    """
    section = gpu.find("processes")
    if section is None or (not section.children and section.value.strip().lower() not in ("", "none")):
        return None
    entries = [node for node in section.children if node.name == ("process_info" if xml else "process id")]
    names = ("type", "process_name", "used_memory") if xml else ("type", "name", "used gpu memory")
    found = []
    for entry in entries:
        kind, name, memory = (entry.text(path) for path in names)
        pid = smi_values.parse_whole(entry.text("pid") if xml else entry.value)
        found.append(
            {
                "pid": pid,
                "type": smi_values.parse_word(kind),
                "name": smi_values.parse_word(name),
                "memory_mib": smi_values.parse_number(memory, "MiB"),
            }
        )
    return found
