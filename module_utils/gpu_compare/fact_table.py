"""What of a host is compared, what is only computed from that, and what is noise: one line per fact.

The order is that in which changes are told. A test holds that every fact of every recorded host has a line here, so
that a new fact is either compared or declared as noise. Facts that an older version of the project did not know are
compared once both sides have them.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator

from .rules import DERIVED, ENTRY, MEASURED, NOISE, SET, SETTING, Path, Rule, build_tree, split_path


def _paths(texts: str) -> Iterator[str]:
    """The paths in a block of text; `a.(b c)` stands for a.b and a.c."""
    rest = texts
    while rest.strip():
        rest = rest.lstrip()
        word, _space, after = rest.partition(" ")
        if "(" in word:
            inside, _close, after = rest.partition(")")
            before, _open, members = inside.partition("(")
            yield from (before + member for member in members.split())
        elif word.strip():
            yield from word.split()
        rest = after


def _set(path: str, label: str, alike: bool = False, unit: str = "", null_answers: bool = False) -> Rule:
    return Rule(split_path(path), SETTING, label, unit, alike, null_answers=null_answers)


def _list(path: str, label: str, fields: str = "", left: str = "", alike: bool = False) -> Rule:
    return Rule(split_path(path), SET, label, alike=alike, fields=tuple(fields.split()), left=tuple(left.split()))


def _measured(path: str, label: str, unit: str, floor: float, alike: bool = False) -> Rule:
    return Rule(split_path(path), MEASURED, label, unit, alike, floor)


def _entry(path: str, label: str) -> Rule:
    return Rule(split_path(path), ENTRY, label)


def _derived(of: str, paths: str) -> Iterator[Rule]:
    sources: tuple[Path, ...] = tuple(split_path(name) for name in _paths(of))
    return (Rule(split_path(path), DERIVED, of=sources) for path in _paths(paths))


def _noise(reason: str, paths: str) -> Iterator[Rule]:
    return (Rule(split_path(path), NOISE, reason) for path in _paths(paths))


_COUNTER = "a counter; the checks judge it"
_MOMENT = "a state of the moment; the checks judge it"
_LABEL = "a number or a name that is handed out anew"
_LOOK = "of the look at the host, not of the host"
_IDENTITY = "tells one machine or card from another; cards.py and baseline.py compare it"

_DRIVER: list[Rule] = [
    _set("driver.version", "driver", alike=True),
    _set("driver.flavor", "kernel module", alike=True),
    _set("driver.loaded", "driver is loaded"),
    _set("driver.nouveau_loaded", "nouveau is loaded"),
    _set("driver.secure_boot", "Secure Boot", alike=True),
    _set("driver.on_disk.version", "driver that the next load takes", null_answers=True),
    _set("driver.on_disk.flavor", "kernel module that the next load takes", null_answers=True),
    _set("driver.on_disk.signer", "signer of the kernel module", null_answers=True),
    _list("driver.libraries.libcuda", "libcuda", "version", "path"),
    _list("driver.libraries.libnvidia_ml", "libnvidia-ml", "version", "path"),
    _list("driver.dkms", "DKMS", "module version kernel state"),
    _set("driver.packaging.manager", "package manager"),
    _list("driver.packaging.packages", "driver packages", "name version held"),
    _set("driver.packaging.automatic_upgrades", "automatic upgrades"),
    _list("driver.toolkits", "CUDA toolkits", "path version", "default minimum_driver runs full"),
    _list("driver.compat_libraries", "CUDA compat libraries", "path version"),
    _set("driver.compat_in_library_path", "CUDA compat library is in the library path"),
    _list("driver.nvswitches", "NVSwitches"),
    _set("driver.fabric_services.nvlsm_installed", "nvlsm is installed"),
    _set("driver.fabric_services.ib_umad_loaded", "ib_umad is loaded"),
    _set("driver.fabric_services.imex_channels", "IMEX channels"),
    _set("driver.fabric_manager.version", "Fabric Manager", alike=True, null_answers=True),
    *(
        rule
        for path, name in (
            ("driver.persistenced", "nvidia-persistenced"),
            ("driver.fabric_manager", "Fabric Manager"),
            ("driver.gridd", "nvidia-gridd"),
            ("driver.fabric_services.imex", "nvidia-imex"),
        )
        for rule in (
            _set(path + ".installed", name + " is installed"),
            _set(path + ".active", name + " is active"),
            _set(path + ".enabled", name + " is enabled"),
            *_derived(path + ".active", path + ".(state result load_state)"),
        )
    ),
    *_derived("driver.version", "driver.(branch cuda)"),
    *_derived("driver.on_disk", "driver.on_disk.(known license path)"),
    *_derived("driver.version driver.on_disk driver.libraries driver.fabric_manager", "driver.mismatched"),
    *_derived("driver.version driver.on_disk driver.libraries driver.fabric_manager", "driver.disagreement"),
    *_derived("kernel.release driver.dkms", "driver.(built_for_running_kernel build_failure)"),
    *_derived("kernel.newest_installed driver.dkms", "driver.(built_for_newest_kernel next_build_failure)"),
    *_derived("pci.gpus", "driver.(nvlink5 gpus architectures minimum_driver minimum_toolkit)"),
    *_derived("driver.version pci.gpus", "driver.below_minimum"),
    *_derived("driver.flavor pci.gpus", "driver.wrong_flavor"),
    *_derived("driver.packaging.packages", "driver.packaging.unheld"),
    *_derived("driver.version driver.toolkits", "driver.unsupported_toolkits"),
    *_derived("pci.gpus driver.toolkits", "driver.toolkits_too_old"),
    *_derived("gpus.devices.<card>.gsp_firmware_version", "driver.gsp_firmware"),
    *_derived("driver.fabric_services", "driver.fabric_services.(nvlink5 missing)"),
]

_CARD = "gpus.devices.<card>."
_GPUS: list[Rule] = [
    _set(_CARD + "name", "GPU model"),
    _set(_CARD + "pci_id", "PCI id"),
    _set(_CARD + "vbios_version", "VBIOS", alike=True),
    _set(_CARD + "gsp_firmware_version", "GSP firmware", alike=True),
    _set(_CARD + "memory_total_mib", "GPU memory", alike=True, unit="MiB"),
    _set(_CARD + "bar1_mib", "BAR1", alike=True, unit="MiB"),
    _set(_CARD + "link_width", "link width", alike=True),
    _set(_CARD + "link_width_max", "highest link width", alike=True),
    _set(_CARD + "link_generation_max", "highest PCIe generation", alike=True),
    _set(_CARD + "link_generation_device_max", "highest PCIe generation of the card"),
    _set(_CARD + "link_generation_host_max", "highest PCIe generation of the slot"),
    _set(_CARD + "power_limit_w", "power limit", alike=True, unit="W"),
    _set(_CARD + "power_limit_default_w", "default power limit", unit="W"),
    _set(_CARD + "power_limit_max_w", "highest power limit", unit="W"),
    _set(_CARD + "ecc", "ECC", alike=True),
    _set(_CARD + "ecc_pending", "ECC after the next boot"),
    _set(_CARD + "mig", "MIG mode", alike=True),
    _set(_CARD + "mig_pending", "MIG mode after the next reset"),
    _set(_CARD + "mig_devices", "MIG devices"),
    _set(_CARD + "persistence", "persistence mode", alike=True),
    _set(_CARD + "addressing_mode", "addressing mode", alike=True),
    _set(_CARD + "compute_mode", "compute mode", alike=True),
    _set(_CARD + "virtualization_mode", "virtualisation mode"),
    _set(_CARD + "vgpu_license", "vGPU licence"),
    _set(_CARD + "display_active", "display is active"),
    _set(_CARD + "clock_graphics_max_mhz", "highest graphics clock", alike=True, unit="MHz"),
    _set(_CARD + "clock_memory_max_mhz", "highest memory clock", alike=True, unit="MHz"),
    _set(_CARD + "fabric_state", "fabric state"),
    _set(_CARD + "fabric_status", "fabric status"),
    _set(_CARD + "fabric_health", "fabric health"),
    _set(_CARD + "fabric_clique_id", "fabric clique"),
    _set(_CARD + "fabric_cluster_uuid", "fabric cluster"),
    _set(_CARD + "remapped_rows.uncorrectable", "rows remapped for uncorrectable errors"),
    *(
        _set(_CARD + name, "limit " + name, unit="°C")
        for name in (
            "temperature_shutdown_c",
            "temperature_slowdown_c",
            "temperature_max_operating_c",
            "temperature_margin_slowdown_c",
            "temperature_margin_shutdown_c",
            "memory_temperature_max_c",
        )
    ),
    *_noise(_IDENTITY, _CARD + "(uuid serial)"),
    *_noise(_LABEL, _CARD + "(index minor)"),
    *_noise(
        _COUNTER,
        _CARD + "(link_replays ecc_volatile ecc_aggregate) " + _CARD + "remapped_rows.(correctable pending failure)",
    ),
    *_noise(
        _MOMENT,
        _CARD
        + "(lost unreadable clock_event_reasons processes performance_state recovery_action reset_required fan_percent"
        " memory_used_mib memory_reserved_mib bar1_used_mib utilization_percent memory_utilization_percent power_draw_w"
        " temperature_c temperature_margin_c memory_temperature_c clock_graphics_mhz clock_memory_mhz"
        " ecc_sram_threshold_exceeded ecc_channel_repair_pending ecc_tpc_repair_pending ecc_unrepairable_memory"
        " retired_pages_pending link_generation)",
    ),
    _entry("gpus.devices.<card>", ""),
    *_derived(_CARD + "name", _CARD + "architecture gpus.(models architectures)"),
    *_derived("driver", "gpus.(installed answered hung exit_code exit_meaning message failure stuck)"),
    *_derived("driver.version", "gpus.(driver_version cuda_version)"),
    *_derived("gpus.devices", "gpus.(attached parsed count complete lost differing link_reported recovery_reported)"),
    *_derived(_CARD + "virtualization_mode", "gpus.vgpu_present"),
    *_derived(_CARD + "memory_total_mib", "gpus.memory_sizes_mib"),
    *_derived(_CARD + "vbios_version", "gpus.(vbios_versions vbios_differing)"),
    *_derived(_CARD + "power_limit_w", "gpus.power_limits_w"),
    *_derived(_CARD + "ecc", "gpus.(ecc_modes ecc_change_pending)"),
    *_derived(_CARD + "addressing_mode", "gpus.addressing_modes"),
    *_derived(_CARD + "mig", "gpus.(mig_modes mig_enabled)"),
    *_derived(_CARD + "compute_mode", "gpus.compute_mode_restricted"),
    *_derived(_CARD + "persistence", "gpus.persistence_off"),
    *_derived(_CARD + "vgpu_license", "gpus.unlicensed"),
    *_derived(
        _CARD + "fabric_state " + _CARD + "fabric_status driver.fabric_manager",
        "gpus.(fabric_not_ready fabric_present fabric_split)",
    ),
    *_derived(_CARD + "link_width " + _CARD + "link_width_max", "gpus.(width_reduced link_width_lowest)"),
    *_derived(_CARD + "link_generation_max", "gpus.(generation_reduced link_generation_max_lowest)"),
    *_derived(_CARD + "bar1_mib", "gpus.(bar1_smaller_than_memory bar1_differing)"),
    *_noise(
        _MOMENT, "gpus.(recovery_needed ecc_errors remapping_unfinished slowed hot loaded busy idle seconds source)"
    ),
]

_P2P: list[Rule] = [
    _set("p2p.read.<card>.<card>", "P2P read"),
    _set("p2p.write.<card>.<card>", "P2P write"),
    _set("p2p.nvlink.<card>.<card>", "P2P over NVLink"),
    _set("p2p.atomics.<card>.<card>", "P2P atomics"),
    _set("p2p.pcie.<card>.<card>", "P2P over PCIe"),
    *_derived(
        "p2p.read p2p.write",
        "p2p.(gpu_count pair_count granted_pairs blocked_pairs unknown_pairs unreadable_pairs blocked_by_status"
        " all_granted)",
    ),
    *_derived("p2p.nvlink", "p2p.(nvlink_pairs all_nvlink)"),
    _set("topology.links.<card>.<card>", "topology"),
    _set("topology.nics.*", "device of {0}"),
    _set("topology.gpus.<card>.cpu_affinity", "CPU affinity", alike=True),
    _set("topology.gpus.<card>.numa_node", "NUMA node", alike=True),
    _set("topology.gpus.<card>.gpu_numa_node", "NUMA node of the GPU's memory"),
    _set("topology.nvlink.<card>.links", "NVLinks"),
    _set("topology.nvlink.<card>.active", "active NVLinks", alike=True),
    _set("topology.nvlink.<card>.speed_gb_s", "speed of an NVLink", unit="GB/s"),
    *_derived("topology.nvlink", "topology.nvlink.<card>.(inactive all_inactive unknown mig said)"),
    *_noise(_LABEL, "topology.gpus.<card>.index"),
    *_noise(_COUNTER, "topology.nvlink_errors"),
    *_noise(_LOOK, "topology.(nvlink_whole nvlink_shown)"),
    *_derived("topology.links", "topology.(pairs unknown_pairs class_counts worst_class pairs_beyond)"),
    *_derived("topology.gpus", "topology.(gpu_numa_nodes gpus_without_numa_node)"),
]

_SYSTEM: list[Rule] = [
    _set("kernel.release", "kernel", alike=True),
    _set("kernel.newest_installed", "newest installed kernel"),
    *_noise("follows the kernel's release", "kernel.values.(BOOT_IMAGE initrd)"),
    *(
        Rule(("kernel", "values", name), SETTING, "kernel parameter " + name)  # they name one host
        for name in (
            *("root", "resume", "ip", "nfsroot", "cryptdevice"),
            *("rd.luks.uuid", "rd.luks.name", "rd.lvm.lv", "systemd.hostname", "systemd.machine_id"),
        )
    ),
    _set("kernel.values.*", "kernel parameter {0}", alike=True),
    *_derived("kernel.values kernel.release", "kernel.(cmdline words)"),
    _list("kernel.configured", "configured kernel parameters", "source text", "words"),
    _set("kernel.boot_loader", "boot loader"),
    _set("kernel.kaslr", "KASLR", alike=True),
    *_derived("kernel.release kernel.values", "kernel.hmm_kaslr_fixed"),
    *_derived("kernel.configured kernel.values", "kernel.pending_words"),
    *_derived("kernel.newest_installed kernel.configured driver.on_disk", "kernel.(reboot_required reboot_reasons)"),
    _set("virtualization.placement", "placement"),
    _set("virtualization.container", "container"),
    _set("virtualization.vm", "virtual machine"),
    _set("virtualization.hypervisor", "hypervisor"),
    _set("virtualization.hypervisor_kind", "kind of hypervisor", alike=True),
    _set("virtualization.chipset", "chipset", alike=True),
    _set("virtualization.host_bridge", "host bridge", alike=True),
    _set("virtualization.dmi.bios_version", "BIOS version", alike=True),
    _set("virtualization.dmi.bios_date", "BIOS date", alike=True),
    _set("virtualization.dmi.*", "DMI {0}", alike=True),
    *_noise(_IDENTITY, "virtualization.identity"),
    _set("virtualization.cpu.model_name", "CPU", alike=True),
    _set("virtualization.cpu.vendor", "maker of the CPU"),
    _set("virtualization.cpu.family", "family of the CPU"),
    _set("virtualization.cpu.model", "model of the CPU"),
    _set("virtualization.cpu.hypervisor_flag", "hypervisor flag of the CPU"),
    *_derived("virtualization.cpu.model_name", "virtualization.cpu.kind"),
    _set("virtualization.hypervisor_hidden", "hypervisor is hidden"),
    _set("virtualization.hypervisor_is_proxmox", "is a Proxmox VE host"),
    *_derived("virtualization.hypervisor_kind virtualization.dmi", "virtualization.(cloud vendor)"),
    *_derived("virtualization.container", "virtualization.host_facts"),
    *_derived("virtualization.chipset", "virtualization.chipset_reason"),
    *_derived("kernel.release", "virtualization.pve_kernel"),
    *_derived("virtualization.hypervisor_is_proxmox", "virtualization.proxmox_signs"),
    _set("system.os.id", "distribution", alike=True),
    _set("system.os.version", "release of the distribution", alike=True),
    *_derived("system.os.version", "system.os.name"),
    _measured("system.memory_mib", "memory", "MiB", 0.02, alike=True),
    _set("system.numa_nodes.*.cpus", "CPUs of NUMA node {0}", alike=True),
    _measured("system.numa_nodes.*.memory_mib", "memory of NUMA node {0}", "MiB", 0.02),
    _entry("system.numa_nodes.*", "NUMA node {0}"),
    _set("system.dev_shm.mounted", "/dev/shm is mounted"),  # noqa: S108  a name
    _measured("system.dev_shm.size_mib", "/dev/shm", "MiB", 0.02, alike=True),  # noqa: S108  a name
    _set("system.dev_shm.filesystem", "file system of /dev/shm"),
    *_noise(_MOMENT, "system.dev_shm.available_mib system.(uptime_s booted_at)"),
    _set("system.memlock.own_kib", "memlock limit", unit="KiB"),
    _set("system.memlock.init_kib", "memlock limit of PID 1", unit="KiB"),
    _set("system.memlock.systemd_default", "systemd's default memlock limit"),
    _set("system.numa_balancing", "NUMA balancing", alike=True),
    _list("system.cpu_governors", "CPU governors", alike=True),
]

_MODULES: list[Rule] = [
    _set("modules.*.options.*.live", "option {1} of {0}", alike=True),
    _set("modules.*.options.*.configured", "option {1} of {0} in the files", null_answers=True),
    _set("modules.*.options.*.cmdline", "option {1} of {0} on the kernel command line", null_answers=True),
    *_derived("modules.*.options.*.configured", "modules.*.options.*.(source pending)"),
    _list("modules.*.configured_options", "options of {0} in the files"),
    _set("modules.*.loaded", "module {0} is loaded", alike=True),
    _list("modules.*.blacklisted", "blacklisted {0}"),
    *_noise(_COUNTER, "modules.*.(references used_by)"),
    _set("modules.registry_dwords.live.*", "registry key {0} in the running driver", alike=True),
    _set("modules.registry_dwords.configured.*", "registry key {0} in the files"),
    *_derived("modules", "modules.(live_options pending_options unsaved_options conflicting_options forced_p2p)"),
    *_noise(_LOOK, "modules.configuration.(complete files)"),
    _list("modules.configuration.faults", "faults of the files in modprobe.d"),
    _list("modules.driver_kept_off.always", "what keeps the driver off"),
    _list("modules.driver_kept_off.for_devices", "what keeps the driver off some cards"),
    _list("modules.driver_kept_off.loaded_by", "what loads the driver"),
    *_noise("follows the kernel's release and each update", "modules.initramfs.(path modified older_than)"),
    _list("modules.initramfs.modules", "GPU modules in the initramfs"),
    *_derived("modules", "modules.initramfs.stale"),
]

_PCI: list[Rule] = [
    _entry("pci.gpus.<card>", "GPU on the bus"),
    *(
        _set("pci.gpus.<card>." + name, label, alike)
        for name, label, alike in (
            ("device_id", "PCI device id", False),
            ("subsystem_id", "PCI subsystem id", True),
            ("class", "PCI class", False),
            ("driver", "kernel driver", True),
            ("numa_node", "NUMA node", False),
            ("root_complex", "root complex", False),
            ("path", "bridges above", False),
            ("audio", "audio function", False),
        )
    ),
    _set("pci.gpus.<card>.link.width", "link width"),
    _set("pci.gpus.<card>.link.max_width", "highest link width"),
    _set("pci.gpus.<card>.link.max_speed_gt_s", "highest link speed", alike=True, unit="GT/s"),
    _list(
        "pci.gpus.<card>.bars",
        "BARs (index, MiB)",
        "index size_mib assigned",
        "kind prefetchable bits start",
        alike=True,
    ),
    _set("pci.gpus.<card>.resizable_bars", "resizable BARs"),
    *_noise(_MOMENT, "pci.gpus.<card>.link.speed_gt_s"),
    *_noise(_LABEL, "pci.gpus.<card>.iommu_group"),
    *_noise(_LOOK, "pci.gpus.<card>.(bars_unread numa_stated)"),
    *_derived("pci.gpus.<card>.device_id", "pci.gpus.<card>.(name vendor_id express)"),
    *_derived("pci.gpus.<card>.driver", "pci.gpus.<card>.bound"),
    _entry("pci.bridges.<device>", "PCI bridge"),
    *(
        _set("pci.bridges.<device>." + name, label)
        for name, label in (
            ("kind", "kind of PCI bridge"),
            ("vendor_id", "maker of the PCI bridge"),
            ("device_id", "device id of the PCI bridge"),
            ("driver", "driver of the PCI bridge"),
            ("numa_node", "NUMA node of the PCI bridge"),
            ("link.width", "link width of the PCI bridge"),
            ("link.max_width", "highest link width of the PCI bridge"),
            ("acs.present", "ACS capability"),
        )
    ),
    _set("pci.bridges.<device>.link.max_speed_gt_s", "highest link speed of the PCI bridge", unit="GT/s"),
    _set("pci.bridges.<device>.acs.control.*", "ACS {0}"),
    *_derived("pci.bridges.<device>.acs.control", "pci.bridges.<device>.acs.(control_raw redirects)"),
    *_noise(_MOMENT, "pci.bridges.<device>.link.speed_gt_s"),
    *_noise(_LABEL, "pci.bridges.<device>.secondary_bus"),
    _entry("pci.nics.<device>", "RDMA NIC"),
    *(
        _set("pci.nics.<device>." + name, "%s of the RDMA NIC" % name)
        for name in ("vendor_id", "device_id", "class", "driver", "path", "root_complex")
    ),
    *_derived("pci.gpus.<card>.path pci.bridges", "pci.pairs"),
    *_derived("pci.nics pci.gpus.<card>.path", "pci.nic_pairs"),
    *_derived("driver.nvswitches", "pci.nvswitches"),
    _set("pci.host_bridge", "host bridge"),
    *_derived("pci.gpus.<card>.bars", "pci.unassigned_bars"),
    *_derived("pci.gpus.<card>.driver", "pci.(unbound_gpus vfio_gpus foreign_driver_gpus)"),
    *_derived("pci.gpus.<card>.numa_node", "pci.gpus_without_numa_node"),
    *_derived("pci.gpus.<card>.link.width pci.bridges.<device>.link.width", "pci.width_reduced"),
    *_derived(
        "pci.bridges.<device>.acs",
        "pci.(acs_unreadable redirecting_switch_ports redirecting_root_ports redirecting_nic_ports)",
    ),
    *_noise(_COUNTER, "pci.(aer_reported aer_uncorrected aer_replays_high)"),
    *_noise(_LOOK, "pci.source"),
    _set("iommu.state", "IOMMU", alike=True),
    _set("iommu.default_domain", "IOMMU's default domain", alike=True),
    _list("iommu.hardware", "IOMMU units"),
    _list("iommu.options", "IOMMU options", alike=True),
    _set("iommu.gpus.<card>.type", "type of the IOMMU group"),
    _set("iommu.gpus.<card>.state", "IOMMU domain"),
    *_noise(_LABEL, "iommu.gpus.<card>.group"),
    _list("iommu.gpus.<card>.others", "other devices in the IOMMU group"),
    *_derived("iommu.gpus", "iommu.(groups translated_gpus shared_group_gpus)"),
    *_noise(_LOOK, "iommu.source"),
    *(_set("device_nodes.nodes.*." + name, "%s of /dev/{0}" % name) for name in ("kind", "uid", "gid")),
    _set("device_nodes.nodes.*.mode", "mode of /dev/{0}", unit="octal"),
    _entry("device_nodes.nodes.*", "/dev/{0}"),
    *_noise(_LABEL, "device_nodes.nodes.*.(major minor) device_nodes.(majors gpu_minors)"),
    _set("device_nodes.opens.*", "/dev/{0} opens"),
    *_derived(
        "device_nodes.nodes device_nodes.opens",
        "device_nodes.(missing missing_control no_gpu_node stale refused access unusable)",
    ),
]

_PROBE: list[Rule] = [
    _set("probe.cuda.initialised", "CUDA initialises"),
    *_derived("driver", "probe.cuda.(library library_error driver_version result_code result_name function hung)"),
    *_derived("driver", "probe.cuda.(detail causes)"),
    _set("probe.pairs.<pair>.verdict", "the probe's verdict"),
    _set("probe.pairs.<pair>.claims.*", "CUDA's {0}"),
    _set("probe.pairs.<pair>.peer.enabled", "peer access is enabled"),
    _set("probe.pairs.<pair>.delivered.*.status", "bytes delivered by {0}"),
    _set("probe.pairs.<pair>.control_delivered.status", "bytes delivered without peer access"),
    _measured("probe.pairs.<pair>.bandwidth_gb_s.copy", "P2P bandwidth", "GB/s", 0.05, alike=True),
    _measured("probe.pairs.<pair>.bandwidth_gb_s.*", "bandwidth ({0})", "GB/s", 0.1),
    _measured("probe.pairs.<pair>.bandwidth_gb_s.control_copy", "bandwidth without peer access", "GB/s", 0.15),
    _measured("probe.pairs.<pair>.latency_us.copy_12k_back_to_back", "latency of a 12 KiB copy", "us", 0.15, True),
    _measured("probe.pairs.<pair>.latency_us.*", "latency ({0})", "us", 0.25),
    _measured("probe.pairs.<pair>.control_latency_us.*", "latency without peer access ({0})", "us", 0.3),
    _measured("probe.loopback.<card>.bandwidth_gb_s.*", "bandwidth within the GPU ({0})", "GB/s", 0.1),
    _measured("probe.loopback.<card>.latency_us.*", "latency within the GPU ({0})", "us", 0.25),
    _measured("probe.many_to_one.<card>.bandwidth_gb_s", "bandwidth from all others", "GB/s", 0.05),
    _measured("probe.all_at_once.bandwidth_gb_s", "bandwidth of all pairs at once", "GB/s", 0.05, alike=True),
    _set("probe.collective.verdict", "all-reduce"),
    _measured("probe.collective.arms.*.sizes.*.bus_bandwidth_gb_s", "all-reduce of {1} bytes ({0})", "GB/s", 0.1),
    _set("probe.collective.arms.*.state", "all-reduce ({0})"),
    _set("probe.collective.arms.*.nccl", "NCCL of the all-reduce ({0})"),
    _set("probe.collective.arms.*.torch", "PyTorch of the all-reduce ({0})"),
    _set("probe.collective.arms.*.transports.<pair>", "NCCL transport ({0})"),
    _set("probe.collective.arms.*.cuda", "CUDA of NCCL ({0})"),
    *_noise(
        _LOOK,
        "probe.collective.arms.*.(detail errors hang_signature seconds warnings diagnostics failure ras ready"
        " start_seconds waiting)",
    ),
    *_noise(
        "the bandwidth of the same size is compared",
        "probe.collective.arms.*.sizes.*.(algorithm_bandwidth_gb_s first_wrong iterations latency_us rounds seconds"
        " wrong checked got wanted wrong_gpus)",
    ),
    _set("probe.collective.nccl", "NCCL of the all-reduce"),
    *_noise(_LOOK, "probe.collective.(ran reason python gpus library source seconds)"),
    *_derived(
        "probe.collective.arms",
        "probe.collective.(explanation wrong pairs_without_p2p failure late_ranks diagnostics)",
    ),
    _set("probe.engine_all_reduce.verdict", "the engine's own all-reduce"),
    _set("probe.engine_all_reduce.version", "engine of the all-reduce of its own"),
    _set("probe.engine_all_reduce.kind", "kind of the engine's own all-reduce"),
    _set("probe.engine_all_reduce.used", "the engine takes its own all-reduce"),
    *_derived(
        "probe.engine_all_reduce.(verdict version kind used)",
        "probe.engine_all_reduce.(why_not needed explanation largest_bytes failure wrong)",
    ),
    *_noise(_LOOK, "probe.engine_all_reduce.(ran reason engine python gpus seconds sizes runs)"),
    _set("probe.between_hosts.verdict", "all-reduce between hosts"),
    _set("probe.between_hosts.nccl", "NCCL of the all-reduce between hosts"),
    _list("probe.between_hosts.hosts", "hosts of the all-reduce"),
    _set("probe.between_hosts.network.kind", "network between hosts"),
    _list("probe.between_hosts.network.devices", "interfaces between hosts"),
    _set("probe.between_hosts.gdr", "GPUDirect RDMA between hosts"),
    _measured("probe.between_hosts.bus_bandwidth_gb_s", "all-reduce between hosts", "GB/s", 0.1),
    _set("probe.between_hosts.link.gb_s", "rate of the links between hosts", unit="GB/s"),
    *_derived(
        "probe.between_hosts.(verdict network.kind)",
        "probe.between_hosts.(explanation connected completed missing wrong slow faster_controls share_of_link"
        " rdma_everywhere problems) probe.between_hosts.network.(channels gdr_channels disabled)"
        " probe.between_hosts.link.text",
    ),
    *_noise(_LOOK, "probe.between_hosts.(asked ran reason group host seconds rank_count arms)"),
    _set("probe.host_links.<card>.verdict", "link to the host"),
    _set("probe.host_links.<card>.node", "NUMA node by the firmware"),
    _measured("probe.host_links.<card>.near_gb_s.*", "host memory, alone ({0})", "GB/s", 0.05, alike=True),
    _measured("probe.host_links.<card>.far_gb_s.*", "host memory of another node ({0})", "GB/s", 0.1),
    _measured("probe.host_links.<card>.at_once_gb_s.*", "host memory, all GPUs at once ({0})", "GB/s", 0.1),
    *_noise("their medians are compared", "probe.host_links.<card>.(alone at_once)"),
    *_derived(
        "probe.host_links.<card>.verdict pci.gpus",
        "probe.host_links.<card>.(far_node full_gb_s least_gb_s basis reason)",
    ),
    _measured("probe.one_to_many.<card>.bandwidth_gb_s", "bandwidth to all others", "GB/s", 0.05),
    *_derived("probe.one_to_many", "probe.one_to_many.<card>.corrupt_pairs"),
    *_derived("probe.pairs.<pair>.delivered", "probe.pairs.<pair>.control_delivered.(bad_blocks_4k bad_size error)"),
    *_derived(
        "probe.pairs.<pair>.control_delivered",
        "probe.pairs.<pair>.control_delivered.(first_bad_offset found sizes writer_sees_it)",
    ),
    *_derived(
        "probe.pairs.<pair>.delivered",
        "probe.pairs.<pair>.delivered.*.(bad_blocks_4k bad_size error first_bad_offset found sizes writer_sees_it)",
    ),
    *_derived("probe.pairs.<pair>.peer.enabled", "probe.pairs.<pair>.peer.error"),
    *_derived("topology.links p2p", "probe.pairs.<pair>.(path path_class driver_status least_gb_s least_basis)"),
    *_derived("probe.pairs", "probe.pairs.<pair>.(failed_rung reason error)"),
    *_noise("stands in the name of the pair", "probe.pairs.<pair>.(source target)"),
    *_derived("gpus.devices pci.gpus", "probe.devices"),
    *_derived("probe.many_to_one", "probe.many_to_one.<card>.corrupt_pairs"),
    *_derived("probe.all_at_once", "probe.all_at_once.corrupt_pairs"),
    *_derived(
        "probe.pairs p2p",
        "probe.(verdicts lowest_bandwidth_gb_s all_usable all_delivered all_fast not_granted_pairs unusable_pairs"
        " undelivered_pairs mirrored_pairs staged_pairs slow_pairs high_latency_pairs hung_pairs wrong_control_pairs"
        " one_way_pairs corrupt_under_load collapsed_under_load impossible_pairs explanations common path_classes"
        " class_outliers compared_pairs ports_of_bad_pairs)",
    ),
    *_derived(
        "probe.host_links",
        "probe.(slow_host_links trained_down_host_links misplaced_gpus collapsed_host_links shared_uplinks)",
    ),
    *_noise(
        _COUNTER,
        "probe.(phases link_errors_in_phases throttled_in_phases kernel_lines_in_phases)",
    ),
    *_noise(
        _LOOK,
        "probe.(gate skipped_reason seconds stages complete attempted ran events unmeasured_pairs skipped_gpus errors"
        " unread host_memory host_links_measured counter_sources phases_measured unfinished_phases) probe.cuda.seconds",
    ),
]

_SERVER: list[Rule] = [
    _set("server.engine", "engine"),
    _set("server.api.version", "version of the engine", alike=True),
    _set("server.packages.*", "package {0}"),
    _set("server.process.settings.*", "server setting {0}"),
    _set("server.environment.*", "environment variable {0} of the server"),
    _set("server.process.user_id", "user of the server"),
    _set("server.process.python", "Python of the server"),
    _set("server.process.unit", "unit of the server"),
    _set("server.process.memlock_kib", "memlock limit of the server", unit="KiB"),
    _set("server.process.open_files", "open files limit of the server"),
    *_derived("server.process.settings", "server.process.(command arguments)"),
    *_noise(_MOMENT, "server.process.(pid started_at age_s rss_mib state)"),
    _set("server.state", "server"),
    _set("server.model", "model"),
    _set("server.ranks_expected", "ranks"),
    _set("server.key_set", "API key is set"),
    _set("server.exposed", "server listens to other hosts without a key"),
    *(
        _set("server.unit." + name, "%s of the unit" % name)
        for name in ("name", "file", "enabled", "output", "user", "loaded")
    ),
    *_noise(
        _MOMENT,
        "server.unit.(active sub result exit_status restarts invocation needs_reload main_pid started_after_boot_s)",
    ),
    _list("server.units_found", "units of servers"),
    _set("server.port.port", "port"),
    _set("server.port.beyond_this_host", "port is open to other hosts"),
    *_noise(_MOMENT, "server.port.(listening connections)"),
    _set("server.api.base", "address of the API"),
    _list("server.api.models", "models of the API"),
    _set("server.api.context_length", "context length", unit="tokens"),
    _set("server.api.needs_key", "API asks for a key"),
    *_noise(_MOMENT, "server.api.info.(last_gen_throughput memory_usage_gb)"),
    _set("server.api.info.*", "{0} of the server"),
    *_derived("server.api.models", "server.api.model"),
    *_noise(_MOMENT, "server.api.(reachable health models_problem owned_by created metrics)"),
    _measured("server.log.kv_tokens", "KV cache", "tokens", 0.05),
    _set("server.log.context_length", "context length in the log", unit="tokens"),
    _set("server.log.nccl.version", "NCCL of the server", alike=True),
    _set("server.log.nccl.transports.*", "pairs over NCCL transport {0}"),
    _set("server.log.nccl.p2p_used", "NCCL uses P2P"),
    _set("server.log.nccl.gdr.used", "NCCL uses GPUDirect RDMA"),
    _measured("server.log.decode.median_tokens_per_s", "throughput in the log", "tokens/s", 0.15),
    _measured("server.generation.tokens_per_s", "speed of one answer", "tokens/s", 0.25),
    _measured("server.generation.first_token_s", "time to the first token", "s", 0.5),
    *_noise(
        _MOMENT,
        "server.log.(engine lines ends_with_request started_line started_at last_line last_line_at phase phases"
        " progress ready ready_at faults fatal requests stopping kind path available gap rotated age_s without_fault"
        " show show_end)"
        " server.log.decode.(at running queue tokens_per_s usage tokens graph age_s lines saturated)"
        " server.log.nccl.(environment p2p_disabled_pairs diagnostics)"
        " server.log.nccl.gdr.(enabled disabled too_far channels without through)"
        " server.generation.(skipped_reason answered text sane finite repeatable expected tokens problem"
        " insane_because ran)",
    ),
    _set("server.nccl.level", "NCCL_P2P_LEVEL in force"),
    _set("server.nccl.disabled", "P2P is disabled for NCCL"),
    _set("server.nccl.settings.*", "NCCL setting {0}"),
    _list("server.nccl.files", "files of NCCL"),
    *_derived(
        "server.nccl.settings topology",
        "server.nccl.(level_source level_ignored paths shut_out_pairs needed_level deprecated without_effect)",
    ),
    _list("server.p2p_cache_denies", "pairs that the engine's P2P cache denies"),
    *_derived("server.packages server.log.nccl.version", "server.nccl_known_faults"),
    *_derived("server.process.settings server.environment server.model", "server.differences"),
    *_noise("rewritten by the engine when it likes", "server.p2p_caches"),
    *_derived("server", "server.(why fault stall)"),
    *_noise(
        _MOMENT,
        "server.(engines_found ranks compilers locks gpu busy busy_because moving rank_outliers ranks_missing"
        " unit_current errors unread nccl_job not_looked_at)",
    ),
    _set("server.node.nodes", "hosts of the server"),
    _set("server.node.rank", "rank of this host"),
    _set("server.node.address", "address of rank 0"),
    _set("server.node.port", "port of rank 0"),
    *_derived("server.node.(nodes rank)", "server.node.(follower first_rank ray spans_hosts)"),
    *_noise(_MOMENT, "server.node.(peers peers_missing)"),
    _set("server.in_container", "server is in a container"),
    *(
        _set("server.container." + path, "%s of the container" % label)
        for path, label in (
            ("runtime", "runtime"),
            ("name", "name"),
            ("image", "image"),
            ("digest", "digest of the image"),
            ("ipc_mode", "IPC mode"),
            ("ipc", "IPC namespace"),
            ("network_mode", "network mode"),
            ("network", "network"),
            ("privileged", "privileges"),
            ("restart_policy", "restart policy"),
            ("seccomp", "seccomp"),
            ("log_driver", "log driver"),
            ("started_by.*", "{0}"),
            ("shared_memory.kind", "kind of shared memory"),
            ("limits.memory_max_mib", "memory limit"),
            ("limits.cpus", "CPU limit"),
            ("limits.cpu_set", "CPU set"),
            ("limits.processes_max", "process limit"),
        )
    ),
    _set("server.container.shared_memory.size_mib", "shared memory of the container", unit="MiB"),
    _list("server.container.mounts", "mounts of the container", "path kind source read_only"),
    _list("server.container.published", "published ports", "port host_address host_port"),
    _list("server.container.capabilities", "capabilities of the container"),
    _list("server.container.devices.gpus", "GPUs of the container"),
    _list("server.container.devices.asked", "GPUs that the container asked for"),
    *_derived("server.container.image", "server.container.(image_id floating)"),
    *_derived("server.process.settings", "server.container.(arguments gpus_needed)"),
    *_derived("server.container.restart_policy", "server.container.comes_back"),
    *_derived("server.container.capabilities", "server.container.(may_lock_memory may_register)"),
    *_derived(
        "server.container.devices.gpus",
        "server.container.devices.(host_gpus hidden missing stale rdma meant lacking)",
    ),
    *_derived("server.container.(published network)", "server.container.reach"),
    *_derived("server.container.shared_memory.kind", "server.container.shared_memory.of_memory"),
    *_derived("server.model", "server.container.weights_mib"),
    *_noise(_LABEL, "server.container.(id pod_uid addresses ipc_namespace inner_pid log_path own_namespaces)"),
    *_noise(
        _MOMENT,
        "server.container.(inspected restarts oom_killed parts parts_share_ipc)"
        " server.container.limits.(memory_current_mib oom_kills)",
    ),
]

_GUEST = (
    ("name", "name of guest {0}"),
    ("template", "guest {0} is a template"),
    ("onboot", "guest {0} starts at boot"),
)
_VM = (
    ("machine", "machine of guest {0}"),
    ("bios", "firmware of guest {0}"),
    ("efi_disk", "EFI disk of guest {0}"),
    ("cpu", "CPU of guest {0}"),
    ("args", "args of guest {0}"),
    ("cliques", "cliques of guest {0}"),
    ("address_window_mib", "address window of guest {0}"),
    ("memory_mib", "memory of guest {0}"),
    ("balloon_mib", "balloon of guest {0}"),
    ("hugepages", "hugepages of guest {0}"),
    ("numa", "numa of guest {0}"),
    ("affinity", "affinity of guest {0}"),
)
_GUEST_DERIVED = (
    "type gpus gpu_count claims file faults refused start restart_command restart_pending next_start pending_gpu_keys"
)
_VM_DERIVED = (
    "hypervisor_hidden clique_of_all addresses gpu_entries gpus_without_pcie clique_faults needed_window_mib"
    " shared_claims kept_claims fixes fix_problem qemu"
)
_CONTAINER_DERIVED = (
    "bad_rules missing_nodes suggested_devices stale_rules wrong_majors absent_optional access_faults old_libraries"
    " root_only_nodes hand_written_lines hand_written_texts nodes live_nodes"
)


def _guest(path: str) -> Iterator[Rule]:
    """The rules of every guest on a Proxmox VE host; its configuration is compared, what follows from it is not."""
    yield from (_set("%s.%s" % (path, name), label) for name, label in _GUEST)
    yield _list(path + ".pending", "pending changes of guest {0}")
    yield from _derived(path, "%s.(%s)" % (path, _GUEST_DERIVED))
    yield from _noise(_MOMENT, "%s.(running lock snapshots)" % path)


def _vm(path: str) -> Iterator[Rule]:
    """What only a VM has."""
    yield from (_set("%s.%s" % (path, name), label) for name, label in _VM)
    yield _list(path + ".hidden_by", "what hides the hypervisor from guest {0}")
    yield _list(
        path + ".hostpci",
        "hostpci of guest {0}",
        "key value",
        "slot mapping mdev driver pcie x_vga legacy_igd rombar romfile id_overrides devices problem addresses gpus"
        " qemu_id with_pcie alternatives",
    )
    yield from _derived(path, "%s.(%s)" % (path, _VM_DERIVED))


def _container(path: str) -> Iterator[Rule]:
    """What only a container has."""
    yield _set(path + ".unprivileged", "guest {0} is unprivileged")
    yield _set(path + ".features", "features of guest {0}")
    yield _list(path + ".devices", "devices of guest {0}", "key path mode uid gid deny_write", "problem")
    yield _list(path + ".rules", "device rules of guest {0}", "key value", "type major minor access allow")
    yield _list(path + ".cgroup1_rules", "device rules of cgroup 1 of guest {0}")
    yield _list(path + ".mounts", "mounts of guest {0}", "value", "source target options optional")
    yield _list(path + ".pinned_libraries", "libraries mounted by name into guest {0}", "path version")
    yield _list(path + ".hooks", "hooks of guest {0}")
    yield from _derived(path, "%s.(%s)" % (path, _CONTAINER_DERIVED))


def _hypervisor(root: str) -> Iterator[Rule]:
    """The rules of a Proxmox VE host: as itself (`proxmox`), and as the hypervisor of a guest (`hypervisor`)."""
    of = "Proxmox VE" if root == "proxmox" else "its Proxmox host"
    yield _set(root + ".version", "version of " + of, alike=root == "proxmox")
    yield _set(root + ".kernel", "kernel of " + of)
    yield _set(root + ".is_proxmox", "is a Proxmox VE host")
    yield _set(root + ".node", "name of the node")
    yield _set(root + ".iommu_on", "IOMMU of %s is on" % of)
    yield _set(root + ".boot.loader", "boot loader of " + of)
    yield _list(root + ".boot.configured", "configured kernel parameters of " + of)
    yield from _derived(root + ".kernel", root + ".boot.live")
    yield from _derived(
        root + ".boot.configured",
        root + ".boot.(grub_settings ignored_source ignored managed_by_proxmox_boot_tool refresh source to_come to_go)",
    )
    for name in ("loaded", "version", "uvm_loaded", "uvm_disable_hmm"):
        yield _set("%s.driver.%s" % (root, name), "driver of %s: %s" % (of, name))
    yield from _noise(_LABEL, root + ".driver.(majors known_majors minors make_nodes)")
    yield from _derived(root + ".driver", root + ".driver.nodes")
    yield _set(root + ".at_boot.modules.*", "file that loads {0} at boot")
    yield _list(root + ".at_boot.makers", "what makes the nodes at boot", "path kind enabled before_guests makes_uvm")
    yield from _derived(root + ".at_boot", root + ".at_boot.ready")
    yield _set(root + ".vfio_ids.*", "file that gives {0} to vfio-pci")
    for name, label in (("id", "PCI id"), ("driver", "kernel driver"), ("numa_node", "NUMA node")):
        yield _set("%s.gpus.<device>.%s" % (root, name), "%s on %s" % (label, of))
    yield _set(root + ".gpus.<device>.d3cold_allowed", "D3cold allowed on " + of)
    yield _list(root + ".gpus.<device>.reset_methods", "reset methods on " + of)
    yield _list(root + ".gpus.<device>.claimed_by", "claims", "vmid type", "name running onboot shared kept")
    yield _set(root + ".gpus.<device>.vfio_at_boot", "file that gives the card to vfio-pci", null_answers=True)
    yield _list(root + ".gpus.<device>.group_others", "other devices in the IOMMU group on " + of)
    yield from _noise(_LABEL, root + ".gpus.<device>.iommu_group")
    yield from _noise(_MOMENT, root + ".gpus.<device>.power_state")
    yield from _derived(root + ".gpus.<device>.id", root + ".gpus.<device>.name")
    yield _entry(root + ".gpus.<device>", "card on " + of)
    yield from _derived(
        root,
        root + ".(claimed_twice driver_conflicts shared_groups vms_not_ready_for_p2p p2p_commands isolation_weakened"
        " faults refused_lines cannot_start failed_resets unresettable boot_faults needs_nodes_at_boot needs_iommu"
        " needs_driver)",
    )
    yield from _noise(_LOOK, root + ".(unread_guests errors evidence)")


_PROXMOX: list[Rule] = [
    *_hypervisor("proxmox"),
    *_guest("proxmox.vms.*"),
    *_vm("proxmox.vms.*"),
    _entry("proxmox.vms.*", "VM {0}"),
    *_guest("proxmox.containers.*"),
    *_container("proxmox.containers.*"),
    _entry("proxmox.containers.*", "container {0}"),
    *_hypervisor("hypervisor"),
    *(
        dataclasses.replace(rule, label=rule.label.replace("guest {0}", "the guest"))
        for rules in (_guest, _vm, _container)
        for rule in rules("hypervisor.guest")
    ),
    _set("hypervisor.name", "Proxmox host in the inventory"),
    _set("hypervisor.vmid", "number of the guest"),
    *_derived("hypervisor", "hypervisor.(has_guest gives kind_agrees card_findings cards_unjudged)"),
]

_REST: list[Rule] = [
    *_noise("what happened since the boot; the checks judge it", "kernel_log"),
    *_noise("what other tools measured once, and was handed in", "measurements"),
    *_noise(_LOOK, "evidence errors inventory"),
    *_derived("gpus pci", "joined.(gpu_found gpu_count driver_expected missing_from_driver)"),
    *_derived("pci.gpus.<card>.driver", "joined.given_to_guests"),
    *_derived("topology.nvlink gpus.devices.<card>.name", "joined.(nvlink_present nvlinks_down nvlink_active_fewest)"),
    *_derived("system.numa_nodes topology.gpus", "joined.(numa_node_count gpus_without_numa_node)"),
    *_derived("p2p", "joined.(p2p_gpus_differ pcie_p2p blocked_between_models)"),
    *_derived("gpus.devices.<card>.link_width virtualization.hypervisor_kind", "joined.width_by_design"),
    *_derived("modules", "joined.(taken_at_boot driver_kept_off)"),
    *_derived("topology.links topology.nics", "joined.(rdma_nics gpus_without_near_nic)"),
    *_derived("modules driver kernel.release", "joined.gpudirect_rdma"),
    *_noise(_COUNTER, "joined.link_replays_high"),
]

RULES: list[Rule] = [*_DRIVER, *_SYSTEM, *_GPUS, *_MODULES, *_P2P, *_PCI, *_PROBE, *_SERVER, *_PROXMOX, *_REST]
TREE = build_tree(RULES)
ORDER: dict[Path, int] = {rule.path: number for number, rule in enumerate(RULES)}
