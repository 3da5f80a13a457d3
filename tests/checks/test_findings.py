"""What a reader finds wrong, a check reads: otherwise it is gathered for nobody (DESIGN.md, section 2, rule 3)."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import degraded
import harness
import pytest
from ansible.module_utils.gpu_host.log import log_patterns

READ = {path for check in harness.loaded_checks() for path in degraded.paths(check)}
# Lists in the facts that say what is there, not what is wrong; and those that a check reads in another form.
DESCRIBE = {
    "host.driver.architectures",
    "host.driver.compat_libraries",
    "host.driver.libraries.libnvidia_ml",
    "host.driver.packaging.packages",
    "host.driver.nvswitches",
    "host.gpus.architectures",
    "host.gpus.busy",
    "host.gpus.mig_modes",
    "host.gpus.vbios_versions",
    "host.iommu.hardware",
    "host.iommu.options",
    "host.joined.given_to_guests",
    "host.kernel.configured",
    "host.kernel.words",
    "host.p2p.granted_pairs",
    "host.p2p.nvlink_pairs",
    "host.pci.nvswitches",
    "host.pci.pairs",
    "host.topology.pairs",
    # Judged through joined.driver_kept_off.
    "host.modules.driver_kept_off.always",
    "host.modules.driver_kept_off.for_devices",
    "host.modules.driver_kept_off.loaded_by",
    # The words of reboot_required.
    "host.kernel.pending_words",
    "host.kernel.reboot_reasons",
    "host.modules.initramfs.older_than",
    # The words of nvidia_smi_answers and pve_host_in_its_group: they judge gpus.answered and hypervisor_is_proxmox.
    "host.gpus.stuck",
    "host.virtualization.proxmox_signs",
    # Judged through kernel_log.by_kind, fatal_xids, other_xids and uvm_failures.
    "host.kernel_log.findings",
    "host.kernel_log.by_kind.xid",
    "host.kernel_log.by_kind.uvm_failed",
    "host.kernel_log.by_kind.uvm_hmm",
    # Which of device_nodes.unusable a device policy refuses: the remedy of device_nodes_usable goes by it.
    "host.device_nodes.refused",
    # A suspend is no fault while CUDA works: cuda_initialises names it where it does not.
    "host.kernel_log.by_kind.resumed",
    # Judged through p2p.all_granted and p2p.complete.
    "host.p2p.blocked_by_status",
    "host.p2p.blocked_pairs",
    "host.p2p.unknown_pairs",
    # Judged through topology.complete and joined.gpus_without_numa_node.
    "host.topology.unknown_pairs",
    "host.topology.gpus_without_numa_node",
    # Why redirecting_switch_ports and redirecting_root_ports, which are judged, are unknown.
    "host.pci.acs_unreadable",
}
# Of each module: what the kernel and the files say of it.
OF_A_MODULE = ("used_by", "blacklisted", "configured_options")
SUBJECTS_OF_A_GUEST = ("server", "probe", "proxmox", "hypervisor", "evidence", "errors")


def lists_in(value: Any, path: tuple[str, ...], depth: int = 3) -> Iterator[tuple[str, ...]]:
    if isinstance(value, list):
        yield path
    elif isinstance(value, dict) and depth:
        for key, inner in value.items():
            if ":" not in str(key):  # of one card, not of the host
                yield from lists_in(inner, (*path, str(key)), depth - 1)


def is_read(path: tuple[str, ...]) -> bool:
    return any(path[: len(read)] == read for read in READ)


@pytest.mark.parametrize("base", ["bare-metal", "kvm-q35", "lxc-story", "h200-x2"])
def test_every_list_of_faults_is_judged(base: str) -> None:
    facts = harness.facts_of_host(harness.base(base), harness.BASES[base].get("expected", {}))
    unread = {
        ".".join(path)
        for path in lists_in(facts, ("host",))
        if path[1] not in SUBJECTS_OF_A_GUEST and not is_read(path) and path[-1] not in OF_A_MODULE
    }
    assert unread <= DESCRIBE, "no check reads these: judge them, or do not gather them: %s" % sorted(unread - DESCRIBE)


@pytest.mark.parametrize("kind", sorted(log_patterns.KINDS))
def test_every_kind_of_finding_in_the_kernel_log_is_judged(kind: str) -> None:
    path = ("host", "kernel_log", "by_kind", kind)
    assert is_read(path) or ".".join(path) in DESCRIBE


def test_what_is_named_here_exists() -> None:
    facts = harness.facts_of_host(harness.base("bare-metal"), {})
    for name in DESCRIBE:
        value: Any = facts
        for part in name.split(".")[1:]:
            assert part in value, "%s is no fact any more: take it out of DESCRIBE" % name
            value = value[part]
