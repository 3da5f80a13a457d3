"""What the roles left on the host after everything that the scenario did to it."""

from __future__ import annotations

import os

import testinfra.utils.ansible_runner

testinfra_hosts = testinfra.utils.ansible_runner.AnsibleRunner(os.environ["MOLECULE_INVENTORY_FILE"]).get_hosts("all")
DRIVER = (
    "libcuda1",
    "libnvidia-ml1",
    "nvidia-driver-cuda",
    "nvidia-kernel-open-dkms",
    "nvidia-persistenced",
    "nvidia-smi",
)


def test_one_version_of_all_driver_packages(host):
    assert {host.package(name).version for name in DRIVER} == {"580.65.06-1"}
    assert not host.package("nvidia-kernel-dkms").is_installed


def test_packages_are_held(host):
    assert set(host.check_output("apt-mark showhold").split()) >= set(DRIVER)


def test_key_is_scoped_to_its_source(host):
    source = host.file("/etc/apt/sources.list.d/gpu-host-nvidia.sources").content_string
    assert "Signed-By: /etc/apt/keyrings/gpu-host-nvidia.asc" in source
    assert host.check_output("ls /etc/apt/trusted.gpg.d | grep -v -c debian || true") == "0"


def test_pin_keeps_other_branches_out_and_leaves_others_alone(host):
    assert "580.65.06-1" in host.check_output("apt-cache policy nvidia-driver-cuda | grep Candidate")
    assert "1.17.8-1" in host.check_output("apt-cache policy nvidia-container-toolkit | grep Candidate")
    assert "1.17.8-1" in host.check_output("apt-cache policy libnvidia-container1 | grep Candidate")


def test_headers_of_running_kernel(host):
    assert host.package("linux-headers-" + host.check_output("uname -r")).is_installed


def test_nouveau_is_kept_away_in_the_initramfs_too(host):
    assert "blacklist nouveau" in host.file("/etc/modprobe.d/gpu-host-nouveau.conf").content_string
    assert "etc/modprobe.d/gpu-host-nouveau.conf" in host.check_output("lsinitramfs /boot/initrd.img-6.1.0-test")


def test_services(host):
    # No module is in use here, and the daemon would end at once: it waits for the boot.
    assert not host.service("nvidia-persistenced").is_running
    assert host.service("nvidia-persistenced").is_enabled
    assert not host.package("nvidia-fabricmanager").is_installed  # no NVSwitch here


def test_toolkits_side_by_side(host):
    assert "12.8" in host.check_output("/usr/local/cuda-12.8/bin/nvcc --version")
    assert "13.1" in host.check_output("/usr/local/cuda-13.1/bin/nvcc --version")
    assert host.file("/usr/local/cuda").linked_to == "/usr/local/cuda-12.8"
    assert not host.package("cuda").is_installed


def test_scratch_directories_are_gone(host):
    assert host.check_output("ls -d /tmp/gpu-host-apt-* /tmp/long-step.* 2>/dev/null || true") == ""
