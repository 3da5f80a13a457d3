"""What nvidia-smi prints for the GPUs of a model, in the shape of the 580 and 595 drivers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from .tree import HostModel

LEGEND = """
Legend:

  X    = Self
  SYS  = Connection traversing PCIe as well as the SMP interconnect between NUMA nodes (e.g., QPI/UPI)
  NODE = Connection traversing PCIe as well as the interconnect between PCIe Host Bridges within a NUMA node
  PHB  = Connection traversing PCIe as well as a PCIe Host Bridge (typically the CPU)
  PXB  = Connection traversing multiple PCIe bridges (without traversing the PCIe Host Bridge)
  PIX  = Connection traversing at most a single PCIe bridge
  NV#  = Connection traversing a bonded set of # NVLinks
"""
P2P_LEGEND = """
Legend:

  X    = Self
  OK   = Status Ok
  CNS  = Chipset not supported
  GNS  = GPU not supported
  TNS  = Topology not supported
  NS   = Not supported
  U    = Unknown
"""
DEPRECATED = "Requested functionality has been deprecated"
NA = "N/A"


@dataclass
class Gpu:
    """One RTX PRO 6000 Blackwell Server Edition as nvidia-smi sees it; every default is a healthy idle card."""

    index: int
    address: str  # 0000:01:00.0
    used_mib: int = 0
    power_w: float = 33.0
    pstate: str = "P8"
    link_gen: int | None = 1
    host_gen: int | None = 5
    width: int | None = 16
    virtualization: str = "None"
    utilisation: int = 0
    processes: list[tuple[int, str, int]] = field(default_factory=list)  # pid, name, MiB
    temperature: int = 28

    @property
    def uuid(self) -> str:
        return "GPU-00000000-0000-4000-8000-%012d" % (self.index + 1)

    @property
    def long_address(self) -> str:
        return "0000" + self.address.upper()


def _block(name: str, rows: Sequence[tuple[str, object]], depth: int) -> str:
    pad = "\t" * depth
    inner = "".join("%s\t<%s>%s</%s>\n" % (pad, key, value, key) for key, value in rows)
    return "%s<%s>\n%s%s</%s>\n" % (pad, name, inner, pad, name)


def _rows(rows: Sequence[tuple[str, object]]) -> str:
    return "".join("\t\t<%s>%s</%s>\n" % (key, value, key) for key, value in rows)


def _gpu_xml(gpu: Gpu, driver: str) -> str:
    domain, bus, slot = gpu.address.split(":")
    idle = gpu.pstate == "P8"
    clocks = (180, 180, 405, 600) if idle else (2370, 2370, 12481, 2070)
    out = ['\t<gpu id="%s">\n' % gpu.long_address]
    out.append(
        _rows(
            [
                ("product_name", "NVIDIA RTX PRO 6000 Blackwell Server Edition"),
                ("product_brand", "NVIDIA"),
                ("product_architecture", "Blackwell"),
                ("display_mode", DEPRECATED),
                ("display_attached", "Yes"),
                ("display_active", "Disabled"),
                ("persistence_mode", "Enabled"),
                ("addressing_mode", "None"),
            ]
        )
    )
    out.append(_block("mig_mode", [("current_mig", "Disabled"), ("pending_mig", "Disabled")], 2))
    out.append("\t\t<mig_devices>\n\t\t\tNone\n\t\t</mig_devices>\n")
    out.append(_rows([("accounting_mode", "Disabled"), ("accounting_mode_buffer_size", 4000)]))
    out.append(_block("driver_model", [("current_dm", NA), ("pending_dm", NA)], 2))
    out.append(
        _rows(
            [
                ("serial", "%013d" % (gpu.index + 1)),
                ("uuid", gpu.uuid),
                ("pdi", "0x%016x" % (gpu.index + 1)),
                ("minor_number", gpu.index),
                ("vbios_version", "98.02.67.00.0A"),
                ("multigpu_board", "No"),
                ("board_id", "0x%x" % (int(bus, 16) << 8)),
                ("board_part_number", "900-2G153-0000-000"),
                ("gpu_part_number", "2BB5-895-A1"),
                ("gpu_fru_part_number", NA),
            ]
        )
    )
    out.append(
        _block(
            "platformInfo",
            [
                ("chassis_serial_number", ""),
                ("slot_number", 0),
                ("tray_index", 0),
                ("host_id", 1),
                ("peer_type", "Direct Connected"),
                ("module_id", 1),
                ("gpu_fabric_guid", "0x0000000000000000"),
            ],
            2,
        )
    )
    out.append(_block("inforom_version", [("img_version", "G153.0210.00.02"), ("oem_object", "2.1"), ("ecc_object", "7.16"), ("pwr_object", NA)], 2))
    out.append(_block("inforom_bbx_flush", [("latest_timestamp", NA), ("latest_duration", NA)], 2))
    out.append(_block("gpu_operation_mode", [("current_gom", NA), ("pending_gom", NA)], 2))
    out.append(_rows([("c2c_mode", "Disabled")]))
    out.append(
        _block("gpu_virtualization_mode", [("virtualization_mode", gpu.virtualization), ("host_vgpu_mode", NA), ("vgpu_heterogeneous_mode", NA)], 2)
    )
    out.append(_rows([("gpu_recovery_action", "None"), ("gsp_firmware_version", driver)]))
    out.append(_block("ibmnpu", [("relaxed_ordering_mode", NA)], 2))
    number = lambda value: NA if value is None else value  # noqa: E731
    out.append("\t\t<pci>\n")
    out.append(
        "".join(
            "\t\t\t<%s>%s</%s>\n" % (key, value, key)
            for key, value in [
                ("pci_bus", bus.upper()),
                ("pci_device", slot.split(".")[0].upper()),
                ("pci_domain", domain),
                ("pci_base_class", 3),
                ("pci_sub_class", 2),
                ("pci_device_id", "2BB510DE"),
                ("pci_bus_id", gpu.long_address),
                ("pci_sub_system_id", "204E10DE"),
            ]
        )
    )
    out.append("\t\t\t<pci_gpu_link_info>\n")
    out.append(
        _block(
            "pcie_gen",
            [
                ("max_link_gen", 5 if gpu.link_gen else NA),
                ("current_link_gen", number(gpu.link_gen)),
                ("device_current_link_gen", number(gpu.link_gen)),
                ("max_device_link_gen", 5 if gpu.link_gen else NA),
                ("max_host_link_gen", number(gpu.host_gen)),
            ],
            4,
        )
    )
    out.append(
        _block("link_widths", [("max_link_width", "16x" if gpu.width else NA), ("current_link_width", "%dx" % gpu.width if gpu.width else NA)], 4)
    )
    out.append("\t\t\t</pci_gpu_link_info>\n")
    out.append(_block("pci_bridge_chip", [("bridge_chip_type", NA), ("bridge_chip_fw", NA)], 3))
    out.append(
        "".join(
            "\t\t\t<%s>%s</%s>\n" % (key, value, key)
            for key, value in [
                ("replay_counter", 0),
                ("replay_rollover_counter", 0),
                ("tx_util", "%d KB/s" % (420 + 7 * gpu.index)),
                ("rx_util", "%d KB/s" % (510 + 3 * gpu.index)),
                ("atomic_caps_outbound", NA),
                ("atomic_caps_inbound", "FETCHADD_32 FETCHADD_64 SWAP_32 SWAP_64 CAS_32 CAS_64 "),
            ]
        )
    )
    out.append("\t\t</pci>\n")
    out.append(_rows([("fan_speed", NA), ("performance_state", gpu.pstate)]))
    out.append(
        _block(
            "clocks_event_reasons",
            [
                ("clocks_event_reason_gpu_idle", "Active" if gpu.utilisation == 0 else "Not Active"),
                *[
                    ("clocks_event_reason_" + name, "Not Active")
                    for name in (
                        "applications_clocks_setting",
                        "sw_power_cap",
                        "hw_slowdown",
                        "hw_thermal_slowdown",
                        "hw_power_brake_slowdown",
                        "sync_boost",
                        "sw_thermal_slowdown",
                        "display_clocks_setting",
                    )
                ],
            ],
            2,
        )
    )
    out.append(
        _block(
            "clocks_event_reasons_counters",
            [
                ("clocks_event_reasons_counters_" + name, "%d us" % value)
                for name, value in (
                    ("sw_power_cap", 91204),
                    ("sync_boost", 0),
                    ("sw_therm_slowdown", 0),
                    ("hw_therm_slowdown", 0),
                    ("hw_power_brake", 0),
                )
            ],
            2,
        )
    )
    out.append(_rows([("sparse_operation_mode", NA)]))
    out.append(
        _block(
            "fb_memory_usage",
            [
                ("total", "97887 MiB"),
                ("reserved", "636 MiB"),
                ("used", "%d MiB" % gpu.used_mib),
                ("free", "%d MiB" % (97887 - 636 - gpu.used_mib if gpu.used_mib < 97251 else 0)),
            ],
            2,
        )
    )
    out.append(_block("bar1_memory_usage", [("total", "131072 MiB"), ("used", "1 MiB"), ("free", "131071 MiB")], 2))
    out.append(_block("cc_protected_memory_usage", [("total", "0 MiB"), ("used", "0 MiB"), ("free", "0 MiB")], 2))
    out.append(_rows([("compute_mode", "Default")]))
    out.append(
        _block(
            "utilization",
            [("gpu_util", "%d %%" % gpu.utilisation), *[(name + "_util", "0 %") for name in ("memory", "encoder", "decoder", "jpeg", "ofa")]],
            2,
        )
    )
    for stats in ("encoder_stats", "fbc_stats"):
        out.append(_block(stats, [("session_count", 0), ("average_fps", 0), ("average_latency", 0)], 2))
    out.append(_block("dram_encryption_mode", [("current_dram_encryption", "Disabled"), ("pending_dram_encryption", "Disabled")], 2))
    out.append(_block("ecc_mode", [("current_ecc", "Enabled"), ("pending_ecc", "Enabled")], 2))
    counters = [
        (name, 0) for name in ("sram_correctable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_correctable", "dram_uncorrectable")
    ]
    out.append("\t\t<ecc_errors>\n")
    out.append(_block("volatile", counters, 3))
    out.append(_block("aggregate", [*counters, ("sram_threshold_exceeded", "No")], 3))
    out.append(_block("aggregate_uncorrectable_sram_sources", [("sram_" + name, 0) for name in ("l2", "sm", "microcontroller", "pcie", "other")], 3))
    out.append("".join("\t\t\t<%s>No</%s>\n" % (name, name) for name in ("channel_repair_pending", "tpc_repair_pending", "unrepairable_memory")))
    out.append("\t\t</ecc_errors>\n\t\t<retired_pages>\n")
    for name in ("multiple_single_bit_retirement", "double_bit_retirement"):
        out.append(_block(name, [("retired_count", NA), ("retired_pagelist", NA)], 3))
    out.append("\t\t\t<pending_blacklist>N/A</pending_blacklist>\n\t\t\t<pending_retirement>N/A</pending_retirement>\n\t\t</retired_pages>\n")
    out.append("\t\t<remapped_rows>\n\t\t\t<remapped_row_corr>0</remapped_row_corr>\n\t\t\t<remapped_row_unc>0</remapped_row_unc>\n")
    out.append("\t\t\t<remapped_row_pending>No</remapped_row_pending>\n\t\t\t<remapped_row_failure>No</remapped_row_failure>\n")
    out.append(
        _block(
            "row_remapper_histogram",
            [
                ("row_remapper_histogram_" + name, "%d bank(s)" % value)
                for name, value in (("max", 512), ("high", 0), ("partial", 0), ("low", 0), ("none", 0))
            ],
            3,
        )
    )
    out.append("\t\t</remapped_rows>\n")
    out.append(
        _block(
            "temperature",
            [
                ("gpu_temp", "%d C" % gpu.temperature),
                ("gpu_temp_tlimit", "%d C" % (86 - gpu.temperature)),
                ("gpu_temp_max_tlimit_threshold", "-5 C"),
                ("gpu_temp_slow_tlimit_threshold", "-2 C"),
                ("gpu_temp_max_gpu_tlimit_threshold", "0 C"),
                ("gpu_target_temperature", NA),
                ("memory_temp", NA),
                ("gpu_temp_max_mem_tlimit_threshold", NA),
            ],
            2,
        )
    )
    out.append(_block("supported_gpu_target_temp", [("gpu_target_temp_min", NA), ("gpu_target_temp_max", NA)], 2))
    watts = "%.2f W" % gpu.power_w
    out.append(
        _block(
            "gpu_power_readings",
            [
                ("power_state", DEPRECATED),
                ("average_power_draw", watts),
                ("instant_power_draw", watts),
                ("current_power_limit", "600.00 W"),
                ("requested_power_limit", "600.00 W"),
                ("default_power_limit", "600.00 W"),
                ("min_power_limit", "300.00 W"),
                ("max_power_limit", "600.00 W"),
            ],
            2,
        )
    )
    out.append(_block("gpu_memory_power_readings", [("average_power_draw", NA), ("instant_power_draw", NA)], 2))
    out.append(
        _block(
            "module_power_readings",
            [
                ("power_state", DEPRECATED),
                *[
                    (name, NA)
                    for name in (
                        "average_power_draw",
                        "instant_power_draw",
                        "current_power_limit",
                        "requested_power_limit",
                        "default_power_limit",
                        "min_power_limit",
                        "max_power_limit",
                    )
                ],
            ],
            2,
        )
    )
    out.append(_rows([("power_smoothing", NA)]))
    out.append(_block("power_profiles", [("power_profile_requested_profiles", NA), ("power_profile_enforced_profiles", NA)], 2))
    out.append(_rows([("edpp_multiplier", NA)]))
    names = ("graphics_clock", "sm_clock", "mem_clock", "video_clock")
    out.append(_block("clocks", [(name, "%d MHz" % value) for name, value in zip(names, clocks)], 2))
    for name in ("applications_clocks", "default_applications_clocks"):
        out.append(_block(name, [("graphics_clock", DEPRECATED), ("mem_clock", DEPRECATED)], 2))
    out.append(_block("deferred_clocks", [("mem_clock", NA)], 2))
    out.append(_block("max_clocks", [(name, "%d MHz" % value) for name, value in zip(names, (2430, 2430, 12481, 2107))], 2))
    out.append(_block("max_customer_boost_clocks", [("graphics_clock", "2430 MHz")], 2))
    out.append(_block("clock_policy", [("auto_boost", NA), ("auto_boost_default", NA)], 2))
    out.append("\t\t<fabric>\n" + "".join("\t\t\t<%s>N/A</%s>\n" % (name, name) for name in ("state", "status", "cliqueId", "clusterUuid")))
    out.append(
        _block(
            "health",
            [
                (name, NA)
                for name in (
                    "summary",
                    "bandwidth",
                    "route_recovery_in_progress",
                    "route_unhealthy",
                    "access_timeout_recovery",
                    "incorrect_configuration",
                    "partition_assigned",
                )
            ],
            3,
        )
    )
    out.append("\t\t</fabric>\n\t\t<processes>\n")
    for pid, name, mib in gpu.processes:
        out.append(
            _block(
                "process_info",
                [
                    ("gpu_instance_id", NA),
                    ("compute_instance_id", NA),
                    ("pid", pid),
                    ("type", "C"),
                    ("process_name", name),
                    ("used_memory", "%d MiB" % mib),
                ],
                3,
            )
        )
    out.append("\t\t</processes>\n\t\t<accounted_processes>\n\t\t</accounted_processes>\n")
    out.append(_block("capabilities", [("egm", "disabled")], 2))
    out.append("\t</gpu>\n\n")
    return "".join(out)


def query_xml(gpus: Sequence[Gpu], driver: str, cuda: str) -> str:
    """`nvidia-smi -q -x`."""
    head = '<?xml version="1.0" ?>\n<!DOCTYPE nvidia_smi_log SYSTEM "nvsmi_device_v13.dtd">\n<nvidia_smi_log>\n'
    head += "\t<timestamp>Fri Apr 10 00:13:20 2026</timestamp>\n\t<driver_version>%s</driver_version>\n\t<cuda_version>%s</cuda_version>\n" % (
        driver,
        cuda,
    )
    return head + "\t<attached_gpus>%d</attached_gpus>\n" % len(gpus) + "".join(_gpu_xml(gpu, driver) for gpu in gpus) + "</nvidia_smi_log>\n"


def topology(cells: Sequence[Sequence[str]], cpus: Sequence[str], nodes: Sequence[str]) -> str:
    """`nvidia-smi topo -m`; `cells[i][j]` is the class of a pair."""
    count = len(cells)
    out = "\t\x1b[4m" + "\t".join("GPU%d" % i for i in range(count)) + "\tCPU Affinity\tNUMA Affinity\tGPU NUMA ID\x1b[0m\n"
    for i in range(count):
        row = ["%4s" % " X " if i == j else cells[i][j] for j in range(count)]
        out += "GPU%d\t%s\t%s\t%s\t\tN/A\n" % (i, "\t".join(cell if cell.strip() != "X" else " X " for cell in row), cpus[i], nodes[i])
    return out + LEGEND


def p2p(count: int, word: str) -> str:
    """`nvidia-smi topo -p2p …` with the same word for every pair."""
    out = " \t\x1b[4m" + "\t".join("GPU%d" % i for i in range(count)) + "\t\x1b[0m\n"
    for i in range(count):
        out += " GPU%d\t%s\t\n" % (i, "\t".join("X" if i == j else word for j in range(count)))
    return out + P2P_LEGEND


def install(
    model: HostModel,
    gpus: Sequence[Gpu],
    cells: Sequence[Sequence[str]],
    cpus: Sequence[str],
    nodes: Sequence[str],
    read_write: str = "OK",
    driver: str = "595.58.03",
    cuda: str = "13.2",
) -> None:
    """Every nvidia-smi command that the readers know, answered for `gpus`."""
    model.command("nvidia-smi -q -x", query_xml(gpus, driver, cuda), seconds=0.31)
    model.command("nvidia-smi topo -m", topology(cells, cpus, nodes), seconds=0.12)
    for letter, word in (("r", read_write), ("w", read_write), ("n", "NS"), ("a", "NS"), ("p", read_write)):
        model.command("nvidia-smi topo -p2p " + letter, p2p(len(gpus), word), seconds=0.09)
    listing = "".join("GPU %d: NVIDIA RTX PRO 6000 Blackwell Server Edition (UUID: %s)\n" % (gpu.index, gpu.uuid) for gpu in gpus)
    model.command("nvidia-smi -L", listing)
    model.command("nvidia-smi nvlink -s", listing)  # cards without NVLink print their name and nothing under it
    model.command(
        "nvidia-smi --query-gpu=index,pci.bus_id --format=csv,noheader", "".join("%d, %s\n" % (gpu.index, gpu.long_address) for gpu in gpus)
    )
