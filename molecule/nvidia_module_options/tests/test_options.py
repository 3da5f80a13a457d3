"""What the role left: on the host of the kernel everything, in the container nothing."""

from __future__ import annotations

import os

import testinfra.utils.ansible_runner

testinfra_hosts = testinfra.utils.ansible_runner.AnsibleRunner(os.environ["MOLECULE_INVENTORY_FILE"]).get_hosts("all")
OPTIONS = """# Written by Ansible (nvidia_module_options); changes are overwritten.
options nvidia NVreg_EnablePCIERelaxedOrderingMode=1 NVreg_RegistryDwords="ForceP2P=0x11;RMForceP2PType=1"
options nvidia_uvm uvm_disable_hmm=1
"""


def contained(host):
    return host.check_output("hostname") == "opt-ct"


def test_options_are_where_the_kernel_is(host):
    file = host.file("/etc/modprobe.d/gpu-host-nvidia.conf")
    if contained(host):
        assert not file.exists
        assert host.check_output("cat /var/log/modprobe") == ""
    else:
        assert file.content_string == OPTIONS
        assert file.mode == 0o644


def test_kmod_reads_what_was_meant(host):
    if not contained(host):
        told = host.check_output("/usr/sbin/modprobe -c | grep -E '^options nvidia' | sort")
        assert told.splitlines() == [line for line in OPTIONS.splitlines() if line.startswith("options")]


def test_running_module_has_the_option_after_a_reload_in_order(host):
    if not contained(host):
        assert host.file("/sys/module/nvidia_uvm/parameters/uvm_disable_hmm").content_string == "Y\n"
        assert host.check_output("tail -n 2 /var/log/modprobe").splitlines() == [
            "modprobe -r nvidia_uvm",
            "modprobe nvidia_uvm",
        ]


def test_initramfs_holds_the_options(host):
    held = "etc/modprobe.d/gpu-host-nvidia.conf" in host.check_output("lsinitramfs /boot/initrd.img-6.1.0-test")
    assert held is not contained(host)
