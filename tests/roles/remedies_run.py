"""What the test of remedies breaks on a real systemd host, and which remedy has to mend each.

From these lists tests/checks/test_remedies.py knows what has been run.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True)
class Round:
    """Everything of one round is broken at once and mended at once.

    `breaks`: commands on the host, with which it boots before those of `then`, where there are any. `remedies`: check
    -> number of the remedy that is printed, in the order in which they are typed.
    """

    name: str
    breaks: tuple[str, ...]
    remedies: dict[str, int]
    expected: dict[str, Any] = field(default_factory=dict)
    then: tuple[str, ...] = ()


SMI = "sed -i 's|%s|%s|' /opt/kernel/smi.xml"
FIRST = "sed -i '0,/%s/s||%s|' /opt/kernel/smi.xml"
DEVICE = "/sys/bus/pci/devices/"
ROUNDS = (
    Round(
        "what a boot decides",
        (
            "rm /etc/modprobe.d/blacklist-nouveau.conf",
            "sed -i 's/ iommu=pt//' /etc/default/grub; update-grub",
        ),
        {
            "driver_loads_at_next_boot": 1,
            "gpus_stay_at_next_boot": 1,
            "nouveau_not_loaded": 2,
            "iommu_not_translating": 3,
            "kernel_command_line_expected": 3,
            "reboot_not_pending": 2,
        },
        {"kernel": {"cmdline": ["pcie_aspm=off"]}},
        (
            "echo 'install nvidia /bin/false' > /etc/modprobe.d/zz-passthrough.conf",
            "echo 'options vfio-pci ids=10de:2bb5' > /etc/modprobe.d/vfio.conf",
            "touch /run/reboot-required",
        ),
    ),
    Round(
        "what is in force at once",
        (
            "systemctl disable --now nvidia-persistenced",
            SMI % ("<persistence_mode>Enabled", "<persistence_mode>Disabled"),
            SMI % ("<compute_mode>Default", "<compute_mode>Exclusive_Process"),
            FIRST % ("<current_mig>Disabled", "<current_mig>Enabled"),
            FIRST % ("<sram_uncorrectable_secded>0", "<sram_uncorrectable_secded>3"),
            FIRST % ("<remapped_row_pending>No", "<remapped_row_pending>Yes"),
            FIRST % ("<gpu_recovery_action>None", "<gpu_recovery_action>Reset"),
            FIRST % ("<pending_ecc>Enabled", "<pending_ecc>Disabled"),
            "for p in /sys/devices/system/cpu/cpufreq/policy*; do echo powersave > $p/scaling_governor; done",
            "echo 1 > /proc/sys/kernel/numa_balancing",
            "mount -o remount,size=64M /dev/shm",
            "rm -f /etc/systemd/system.conf.d/10-memlock.conf",
            "apt-mark unhold $(apt-mark showhold)",
            "echo 'APT::Periodic::Unattended-Upgrade \"1\";' > /etc/apt/apt.conf.d/20auto-upgrades",
            "rm -f /dev/nvidia-uvm; mknod /dev/nvidia-uvm c 240 0",
            "rm -f /etc/modprobe.d/nvidia-uvm.conf; modprobe -r nvidia_uvm; modprobe nvidia_uvm",
            "sed -i 's/fbdev=0/fbdev=1/' /etc/modprobe.d/nvidia-graphics-drivers-kms.conf",
            "for p in 0000:00:01.1 0000:10:01.1; do setpci -s $p ECAP_ACS+0x6.w=001d; done",
            "echo -1 > %s0000:01:00.0/numa_node" % DEVICE,
        ),
        {
            "persistenced_running": 1,
            "gpu_persistence_on": 2,
            "gpu_compute_mode_default": 2,
            "gpu_mig_disabled": 2,
            "gpu_power_limit_expected": 2,
            "gpu_ecc_clean": 2,
            "gpu_ecc_change_not_pending": 2,
            "gpu_remapped_rows_ok": 3,
            "gpu_recovery_action_none": 5,
            "cpu_governor_performance": 2,
            "numa_balancing_off": 2,
            "dev_shm_large_enough": 3,
            "memlock_unlimited": 3,
            "driver_packages_held": 1,
            "device_node_majors_current": 3,
            "uvm_hmm_disabled": 2,
            "module_options_live": 1,
            "acs_root_port_redirect_off": 2,
            "gpu_numa_nodes_known": 2,
        },
        {"gpus": {"power_limit_w": 450}, "modules": {"options": {"nvidia_uvm": {"uvm_disable_hmm": True}}}},
    ),
    Round(
        "what waits",
        (
            "rm -f /etc/modprobe.d/nvidia-uvm.conf /etc/modprobe.d/gpu-host-nvidia.conf",
            "rm -f /dev/nvidia-uvm",
        ),
        {"module_options_saved": 1, "device_nodes_present": 3},
    ),
    Round(
        "no nvidia_uvm",
        ("modprobe -r nvidia_uvm; rm -f /dev/nvidia-uvm*",),
        {"uvm_loaded": 2},
    ),
    Round(
        "a mode that the inventory names",
        (
            SMI % ("<pending_ecc>[A-Z][a-z]*", "<pending_ecc>Disabled")
            + "; "
            + SMI % ("<current_ecc>[A-Z][a-z]*", "<current_ecc>Disabled"),
        ),
        {"gpu_ecc_mode_expected": 2, "gpu_ecc_change_not_pending": 2},
        {"gpus": {"ecc": True}},
    ),
)
# What tests/roles/test_dkms_build.py types, on a host where DKMS really builds: state -> (check, number of the remedy).
BUILDS = {
    "the headers are missing": ("driver_built_for_kernel", 3),
    "the build failed": ("driver_built_for_kernel", 2),
}
