"""What the role and the refusals left."""

from __future__ import annotations

import os

import testinfra.utils.ansible_runner

testinfra_hosts = testinfra.utils.ansible_runner.AnsibleRunner(os.environ["MOLECULE_INVENTORY_FILE"]).get_hosts("all")


def test_the_vm_runs_with_both_cards_on_q35(host):
    config = host.file("/etc/pve/qemu-server/101.conf").content_string
    assert "machine: q35\n" in config and "memory: 65536\n" in config
    assert "hostpci0: 0000:01:00.0,pcie=1\n" in config and "hostpci1: 0000:11:00.0,pcie=1\n" in config
    assert host.check_output("qm status 101") == "status: running"
    process = host.check_output("tr '\\0' ' ' < /proc/$(cat /run/qemu-server/101.pid)/cmdline")
    assert "type=q35" in process and process.count("-device vfio-pci") == 2


def test_the_container_has_no_card_left(host):
    assert "dev0" not in host.file("/etc/pve/lxc/102.conf").content_string


def test_the_nodes_are_made_at_boot_and_the_command_line_is_written(host):
    assert host.service("gpu-device-nodes.service").is_enabled
    assert "iommu=pt" in host.file("/etc/default/grub.d/gpu-host.cfg").content_string
