"""Placement, hypervisor, chipset and CPU from recorded guests and from single pieces of evidence."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host import virtualization
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors

RECORDINGS = Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "qemu"
METAL_CPU = (
    "processor\t: 0\nvendor_id\t: AuthenticAMD\ncpu family\t: 26\nmodel\t\t: 2\nmodel name\t: AMD EPYC 9335 32-Core "
    "Processor\n"
    "flags\t\t: fpu sse\n\n"
)
GUEST_CPU = METAL_CPU.replace("fpu sse", "fpu sse hypervisor")
INITIAL = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]", "uts": "uts:[4026531838]"}
OWN = {"pid": "pid:[4026532836]", "cgroup": "cgroup:[4026532835]", "uts": "uts:[4026532838]"}


def read(path: str, text: str) -> dict[str, Any]:
    return {"read": path, "status": "ok", "text": text}


def dmi(**names: str) -> list[dict[str, Any]]:
    return [read("/sys/class/dmi/id/" + name, value + "\n") for name, value in names.items()]


def said(option: str, word: str) -> dict[str, Any]:
    return {
        "run": ["systemd-detect-virt", "--" + option],
        "status": "ok",
        "rc": 1 if word == "none" else 0,
        "stdout": word + "\n",
    }


def spaces(targets: dict[str, str]) -> dict[str, Any]:
    return {
        "list": "/proc/self/ns",
        "status": "ok",
        "entries": {name: {"kind": "link", "target": target} for name, target in targets.items()},
    }


def bridge(ids: str) -> dict[str, Any]:
    return read("/sys/bus/pci/devices/0000:00:00.0/uevent", "PCI_CLASS=60000\nPCI_ID=%s\n" % ids.upper())


def listing(path: str, *names: str) -> dict[str, Any]:
    return {"list": path, "status": "ok", "entries": {name: {"kind": "file"} for name in names}}


def absent(path: str) -> dict[str, Any]:
    return {"list": path, "status": "absent"}


def gathered(*records: dict[str, Any]) -> dict[str, Any]:
    return virtualization.gather(BundleEvidence({}, records), Errors("virtualization"))


def no_signature() -> list[dict[str, Any]]:
    lscpu = {"run": ["lscpu"], "status": "ok", "rc": 0, "stdout": "Vendor ID: AuthenticAMD\n"}
    return [lscpu, read(virtualization.CLOCKSOURCES, "tsc hpet acpi_pm\n")]


def recorded(name: str) -> list[dict[str, Any]]:
    records = []
    for line in (RECORDINGS / (name + "-dmi.txt")).read_text().splitlines():
        path, value = line.split(": ", 1)
        records.append({"read": path, "status": "absent"} if value.startswith("cat: ") else read(path, value + "\n"))
    first = (RECORDINGS / (name + "-pci-sysfs.txt")).read_text().splitlines()[0]
    values = dict(word.split("=", 1) for word in first.split()[1:])
    records.append(bridge("%s:%s" % (values["vendor"][2:], values["device"][2:])))
    return [*records, said("vm", "qemu"), said("container", "none"), read("/proc/cpuinfo", GUEST_CPU)]


@pytest.mark.parametrize(
    ("name", "chipset"), [("tcg-i440fx", "i440fx"), ("tcg-q35-intel-iommu", "q35"), ("tcg-q35-acs8", "q35")]
)
def test_recorded_guests(name: str, chipset: str) -> None:
    """The third has the DMI of a real server: the host bridge tells the truth."""
    facts = gathered(*recorded(name))
    assert (facts["placement"], facts["vm"], facts["chipset"]) == ("kvm", True, chipset)


def test_bare_metal() -> None:
    facts = gathered(
        said("vm", "none"),
        said("container", "none"),
        read("/proc/cpuinfo", METAL_CPU),
        spaces(INITIAL),
        absent("/etc/pve"),
        *dmi(sys_vendor="Supermicro", product_name="AS -5126GS-TNRT2"),
        bridge("1022:153a"),
    )
    assert (facts["placement"], facts["container"], facts["hypervisor"], facts["vm"]) == ("bare_metal", "", "", False)
    assert (facts["chipset"], facts["chipset_reason"]) == (None, "not a virtual machine")
    assert (facts["hypervisor_hidden"], facts["hypervisor_is_proxmox"], facts["host_facts"]) == (False, False, False)
    assert facts["cpu"] == {
        "vendor": "AuthenticAMD",
        "model_name": "AMD EPYC 9335 32-Core Processor",
        "family": 26,
        "model": 2,
        "hypervisor_flag": False,
        "kind": "host",
    }


def test_bare_metal_without_systemd() -> None:
    without = [{"run": ["systemd-detect-virt", "--" + option], "status": "absent"} for option in ("vm", "container")]
    none = [
        {"read": path, "status": "absent"} for path in ("/run/systemd/container", "/proc/1/environ", "/proc/1/cgroup")
    ]
    seen = [read("/proc/cpuinfo", METAL_CPU), listing("/", "bin", "etc"), *dmi(sys_vendor="Supermicro"), *none]
    assert gathered(*without, *seen)["placement"] == "bare_metal"
    assert gathered(*seen)["placement"] is None, "whether systemd sees a virtual machine is not known"


# Containers, from one marker each
@pytest.mark.parametrize(
    ("records", "placement", "container"),
    [
        ([said("container", "lxc")], "lxc", "lxc"),
        ([said("container", "docker")], "container", "docker"),
        ([read("/run/systemd/container", "lxc\n")], "lxc", "lxc"),
        ([read("/proc/1/environ", "PATH=/bin\0container=lxc\0")], "lxc", "lxc"),
        ([read("/proc/1/environ", "container=podman\0")], "container", "podman"),
        ([read("/proc/1/cgroup", "0::/kubepods.slice/pod1\n")], "container", "kubernetes"),
        ([read("/proc/1/cgroup", "1:name=systemd:/lxc.payload.101/init.scope\n")], "lxc", "lxc"),
        ([listing("/", ".dockerenv", "bin")], "container", "docker"),
        ([read("/run/.containerenv", "engine=podman\n")], "container", "podman"),
    ],
)
def test_containers(records: list[dict[str, Any]], placement: str, container: str) -> None:
    facts = gathered(*records, spaces(OWN), read("/proc/cpuinfo", METAL_CPU), said("vm", "none"))
    assert (facts["placement"], facts["container"], facts["host_facts"]) == (placement, container, True)
    assert facts["vm"] is False


def test_a_container_inside_a_virtual_machine_is_both() -> None:
    facts = gathered(
        said("container", "docker"), said("vm", "kvm"), read("/proc/cpuinfo", GUEST_CPU), bridge("8086:1237")
    )
    assert (facts["placement"], facts["vm"], facts["chipset"]) == ("container", True, "i440fx")


def test_a_small_virtual_machine_made_from_a_container_image_is_no_container() -> None:
    facts = gathered(
        said("container", "docker"),
        listing("/", ".dockerenv"),
        spaces(INITIAL),
        read("/proc/cpuinfo", GUEST_CPU),
        said("vm", "kvm"),
    )
    assert (facts["placement"], facts["container"]) == ("kvm", "")


# Hypervisors
@pytest.mark.parametrize(
    ("records", "hypervisor", "placement"),
    [
        ([said("vm", "kvm")], "kvm", "kvm"),
        ([said("vm", "vmware")], "vmware", "vm"),
        ([said("vm", "microsoft")], "microsoft", "vm"),
        ([said("vm", "kvm"), *dmi(sys_vendor="Amazon EC2")], "amazon", "kvm"),
        (
            [said("vm", "kvm"), *dmi(sys_vendor="Cloud Hypervisor", product_name="cloud-hypervisor")],
            "cloud_hypervisor",
            "kvm",
        ),
        (
            [{"run": ["lscpu"], "status": "ok", "rc": 0, "stdout": "Hypervisor vendor:                       KVM\n"}],
            "kvm",
            "kvm",
        ),
        ([read(virtualization.CLOCKSOURCES, "kvm-clock tsc hpet acpi_pm\n")], "kvm", "kvm"),
        ([read(virtualization.CLOCKSOURCES, "hyperv_clocksource_tsc_page acpi_pm\n")], "microsoft", "vm"),
        ([*dmi(sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)")], "qemu", "kvm"),
        ([], None, "vm"),  # the CPU says "a hypervisor" and nothing says which
    ],
)
def test_hypervisors(records: list[dict[str, Any]], hypervisor: str | None, placement: str) -> None:
    facts = gathered(*records, said("container", "none"), read("/proc/cpuinfo", GUEST_CPU))
    assert (facts["hypervisor"], facts["placement"], facts["vm"]) == (hypervisor, placement, True)


@pytest.mark.parametrize(
    ("records", "kind", "cloud"),
    [
        (dmi(sys_vendor="QEMU", product_version="pc-q35-9.2+pve1"), "proxmox", False),
        (dmi(sys_vendor="QEMU", bios_vendor="Proxmox distribution of EDK II"), "proxmox", False),
        (dmi(sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)"), "qemu", None),
        (dmi(sys_vendor="Red Hat", product_name="KVM"), "libvirt", False),
        (dmi(sys_vendor="oVirt", product_name="RHEL"), "libvirt", False),
        (dmi(sys_vendor="OpenStack Foundation", product_name="OpenStack Nova"), "openstack", False),
        (dmi(sys_vendor="KubeVirt", product_name="None"), "kubevirt", False),
        (dmi(sys_vendor="VMware, Inc.", product_name="VMware7,1"), "vmware", False),
        (
            [said("vm", "microsoft"), *dmi(sys_vendor="Microsoft Corporation", product_name="Virtual Machine")],
            "hyperv",
            False,
        ),
        (
            [
                said("vm", "microsoft"),
                *dmi(sys_vendor="Microsoft Corporation", chassis_asset_tag="7783-7084-3265-9085-8269-3286-77"),
            ],
            "azure",
            True,
        ),
        (dmi(sys_vendor="QEMU", chassis_asset_tag="OracleCloud.com"), "oracle_cloud", True),
        (dmi(sys_vendor="Amazon EC2", product_name="p5.48xlarge"), "amazon", True),
        (dmi(sys_vendor="Xen", product_name="HVM domU", bios_version="4.11.amazon"), "amazon", True),
        (dmi(sys_vendor="Xen", product_name="HVM domU", bios_version="4.13"), "xen", False),
        (dmi(sys_vendor="Google", product_name="Google Compute Engine"), "google", True),
        (dmi(sys_vendor="Alibaba Cloud", product_name="Alibaba Cloud ECS"), "alibaba", True),
        (dmi(sys_vendor="DigitalOcean", product_name="Droplet"), "digitalocean", True),
        ([], None, None),
    ],
)
def test_who_runs_a_guest(records: list[dict[str, Any]], kind: str | None, cloud: bool | None) -> None:
    kvm = [] if any("run" in record for record in records) else [said("vm", "kvm")]
    facts = gathered(*kvm, *records, said("container", "none"), read("/proc/cpuinfo", GUEST_CPU))
    assert (facts["hypervisor_kind"], facts["cloud"]) == (kind, cloud)


def test_nobody_runs_a_machine_of_metal() -> None:
    seen = [
        said("vm", "none"),
        said("container", "none"),
        read("/proc/cpuinfo", METAL_CPU),
        *dmi(sys_vendor="Supermicro"),
    ]
    assert gathered(*seen)["hypervisor_kind"] == ""


@pytest.mark.parametrize(("release", "kind"), [("6.14.11-3-pve", "proxmox"), ("6.8.0-64-generic", None)])
def test_the_kernel_of_a_container_tells_whose_it_is(release: str, kind: str | None) -> None:
    facts = gathered(
        said("container", "lxc"), said("vm", "none"), read("/proc/sys/kernel/osrelease", release + "\n"),
        read("/proc/cpuinfo", METAL_CPU), *dmi(sys_vendor="QEMU"),
    )  # fmt: skip
    assert (facts["placement"], facts["hypervisor_kind"]) == ("lxc", kind)


def test_amazon_also_sells_metal() -> None:
    facts = gathered(
        *dmi(sys_vendor="Amazon EC2"), said("vm", "none"), said("container", "none"), read("/proc/cpuinfo", METAL_CPU)
    )
    assert facts["placement"] == "bare_metal"


def test_the_ids_of_the_machine_are_roots_to_read_and_nobody_misses_them() -> None:
    """No check asks for them, so what cannot be read is no error that could explain another fact."""
    ids = dmi(product_uuid="8c7d6e5f-0001-4000-8000-3cecef123456", board_serial="OM25CS0042", bios_date="06/12/2025")
    facts = gathered(*ids)
    assert facts["identity"] == {
        "product_uuid": "8c7d6e5f-0001-4000-8000-3cecef123456",
        "board_serial": "OM25CS0042",
    }
    assert facts["dmi"]["bios_date"] == "06/12/2025"
    errors = Errors("virtualization")
    denied = [{"read": record["read"], "status": "denied"} for record in ids]
    facts = virtualization.gather(BundleEvidence({}, denied), errors)
    assert facts["identity"] == {"product_uuid": None, "board_serial": None} and facts["dmi"]["bios_date"] is None
    assert not any("product_uuid" in entry["source"] for entry in errors.entries)


def test_nothing_known() -> None:
    errors = Errors("virtualization")
    facts = virtualization.gather(BundleEvidence({}, []), errors)
    names = (
        "placement",
        "container",
        "vm",
        "hypervisor",
        "chipset",
        "hypervisor_hidden",
        "hypervisor_is_proxmox",
        "host_facts",
    )
    assert {facts[name] for name in names} == {None}
    assert facts["chipset_reason"] == "it is unknown whether this is a virtual machine"
    assert errors.entries


# Chipset
def test_a_guest_without_dmi_on_an_unknown_bridge() -> None:
    """The recorded H200 guest: no DMI, host bridge 8086:0d57."""
    facts = gathered(
        said("vm", "kvm"), said("container", "none"), read("/proc/cpuinfo", GUEST_CPU), bridge("8086:0d57")
    )
    assert facts["chipset"] is None
    assert facts["chipset_reason"] == "no DMI, and host bridge 8086:0d57 is not one of QEMU's"


def test_the_chipset_by_dmi_alone() -> None:
    seen = [said("vm", "kvm"), *dmi(sys_vendor="QEMU", product_name="Standard PC (i440FX + PIIX, 1996)")]
    bus = [{"read": bridge("")["read"].replace("uevent", name), "status": "absent"} for name in ("uevent", "vendor")]
    assert gathered(*seen, *bus)["chipset"] == "i440fx"
    assert gathered(*seen)["chipset"] is None, "any words may stand in DMI, and the bridge was not read"


def test_another_machine() -> None:
    machine = dmi(sys_vendor="Google", product_name="Google Compute Engine")
    facts = gathered(said("vm", "google"), said("container", "none"), *machine, bridge("1af4:1234"))
    assert (facts["chipset"], facts["placement"]) == ("other", "kvm")


# CPU
@pytest.mark.parametrize(
    ("name", "kind"),
    [
        ("AMD EPYC 9335 32-Core Processor", "host"),
        ("Intel(R) Xeon(R) Processor", "host"),
        ("QEMU Virtual CPU version 2.5+", "generic"),
        ("Common KVM processor", "generic"),
        ("AMD EPYC-Genoa Processor", "named"),
        ("AMD EPYC Processor", "named"),
        ("Intel Xeon Processor (SapphireRapids)", "named"),
    ],
)
def test_cpu_models(name: str, kind: str) -> None:
    facts = gathered(read("/proc/cpuinfo", GUEST_CPU.replace("AMD EPYC 9335 32-Core Processor", name)))
    assert facts["cpu"]["kind"] == kind


def test_a_recorded_cpu() -> None:
    facts = gathered(read("/proc/cpuinfo", (RECORDINGS / "tcg-i440fx-cpuinfo.txt").read_text()))
    assert (facts["cpu"]["kind"], facts["cpu"]["family"], facts["cpu"]["hypervisor_flag"]) == ("generic", 15, True)


# Hidden
@pytest.mark.parametrize(
    ("records", "hidden"),
    [
        ([said("vm", "qemu"), *no_signature()], True),
        ([said("vm", "qemu")], None),  # neither lscpu nor the clocks were captured
        ([said("vm", "kvm"), *no_signature()], False),
        ([said("vm", "qemu"), read(virtualization.CLOCKSOURCES, "kvm-clock tsc\n")], False),
        # The word comes from DMI or from the signature of QEMU without KVM; another maker's DMI leaves the signature.
        (
            [
                said("vm", "qemu"),
                *no_signature(),
                *dmi(sys_vendor="QEMU", product_name="Standard PC (Q35 + ICH9, 2009)"),
            ],
            True,
        ),
        (
            [
                said("vm", "qemu"),
                *no_signature(),
                *dmi(sys_vendor="Supermicro", product_name="AS-4124GS-TNR", bios_vendor="SeaBIOS"),
            ],
            False,
        ),
        (
            [
                said("vm", "vm-other"),
                *no_signature(),
                *dmi(sys_vendor="Supermicro", product_name="AS-4124GS-TNR", bios_vendor="SeaBIOS"),
            ],
            True,
        ),
    ],
)
def test_a_hidden_hypervisor(records: list[dict[str, Any]], hidden: bool | None) -> None:
    facts = gathered(*records, bridge("8086:29c0"), read("/proc/cpuinfo", GUEST_CPU))
    assert facts["hypervisor_hidden"] is hidden


def test_a_cpu_without_the_hypervisor_flag_on_qemus_bridge_hides() -> None:
    facts = gathered(said("vm", "qemu"), bridge("8086:29c0"), read("/proc/cpuinfo", METAL_CPU))
    assert (facts["vm"], facts["hypervisor_hidden"]) == (True, True)


# Proxmox
@pytest.mark.parametrize(
    ("records", "host", "kernel"),
    [
        (
            [
                listing("/etc/pve", "qemu-server"),
                read("/proc/sys/kernel/osrelease", "6.14.11-3-pve\n"),
                said("container", "none"),
            ],
            True,
            True,
        ),
        ([{"list": "/etc/pve", "status": "denied"}, said("container", "none")], True, None),
        (
            [absent("/etc/pve"), read("/proc/sys/kernel/osrelease", "6.8.0-64-generic\n"), said("container", "none")],
            False,
            False,
        ),
        ([said("container", "lxc"), read("/proc/sys/kernel/osrelease", "6.14.11-3-pve\n")], False, True),
        ([said("container", "none")], None, None),
    ],
)
def test_is_this_a_proxmox_host(records: list[dict[str, Any]], host: bool | None, kernel: bool | None) -> None:
    facts = gathered(*records)
    assert (facts["hypervisor_is_proxmox"], facts["pve_kernel"]) == (host, kernel)
