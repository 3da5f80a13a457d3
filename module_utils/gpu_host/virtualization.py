"""Where this system runs: bare metal, a virtual machine, LXC or another container.

Of a virtual machine also which one, with which chipset and CPU.

The remedy for a fault lies on the machine that owns it, so nearly every check asks for the placement first.
"""

from __future__ import annotations

import re
from typing import Any

from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence, Outcome
from .evidence.sides import is_only_pieces
from .pcie import pci_devices, pci_names
from .pve import node_signs

# Where a system can run, for a person. What the checks ask beyond the word is `host_facts`: whether the kernel, the
# driver's module and the PCI bus are those of another machine.
PLACEMENTS = {
    "bare_metal": "bare metal",
    "kvm": "KVM guest",
    "vm": "virtual machine of another hypervisor than KVM",
    "lxc": "LXC container",
    "container": "container",
}
COMMANDS = [
    (["systemd-detect-virt", "--vm"], 10.0),
    (["systemd-detect-virt", "--container"], 10.0),
    (["lscpu"], 10.0),
    (node_signs.VERSION_COMMAND, node_signs.VERSION_SECONDS),
]
DMI = "/sys/class/dmi/id"
DMI_NAMES = (
    "sys_vendor",
    "product_name",
    "product_version",
    "board_vendor",
    "board_name",
    "bios_vendor",
    "bios_version",
)
# What no check asks for: where it cannot be read (the ids are root's), it is unknown and nothing else is.
QUIET_DMI_NAMES = ("bios_date",)
IDENTITY_NAMES = ("product_uuid", "board_serial")
CLOCKSOURCES = "/sys/devices/system/clocksource/clocksource0/available_clocksource"

# systemd-detect-virt's words (man page of 257) that mean KVM or QEMU underneath.
KVM_FAMILY = ("kvm", "qemu", "amazon", "google")
# lscpu's words for the signature that CPUID shows -> ours, which are systemd's.
LSCPU_HYPERVISORS = {"KVM": "kvm", "Microsoft": "microsoft", "VMware": "vmware", "Xen": "xen", "Oracle": "oracle"}
DMI_HYPERVISORS = (
    ("Amazon EC2", "amazon"),
    ("Google", "google"),
    ("QEMU", "qemu"),
    ("Firecracker", "firecracker"),
    ("Cloud Hypervisor", "cloud_hypervisor"),
    ("VMware", "vmware"),
    ("innotek GmbH", "oracle"),
    ("Xen", "xen"),
)
# Words in DMI (maker, product, its version, firmware) -> who runs this virtual machine. The first that is found counts:
# a cloud or a manager before the QEMU that it uses. Sources: dmidecode output in public reports; cloud-init's
# ds-identify (names of clouds); systemd, src/basic/virt.c; Proxmox's edk2 package and its machine versions (+pveN).
DMI_KINDS = (
    ("Amazon EC2", "amazon"),
    (".amazon", "amazon"),  # firmware of its Xen instances
    ("Google", "google"),
    ("Alibaba Cloud", "alibaba"),
    ("Tencent Cloud", "tencent"),
    ("Huawei Cloud", "huawei"),
    ("DigitalOcean", "digitalocean"),
    ("Hetzner", "hetzner"),
    ("Scaleway", "scaleway"),
    ("Vultr", "vultr"),
    ("Linode", "linode"),
    ("Akamai", "linode"),
    ("UpCloud", "upcloud"),
    ("Exoscale", "exoscale"),
    ("IBM:Cloud Compute Server", "ibm"),
    ("Nebius", "nebius"),
    ("Yandex", "yandex"),
    ("OpenStack", "openstack"),
    ("KubeVirt", "kubevirt"),
    ("Nutanix", "nutanix"),
    ("Proxmox", "proxmox"),
    ("+pve", "proxmox"),
    ("oVirt", "libvirt"),
    ("RHEV", "libvirt"),
    ("RHEL", "libvirt"),
    ("Red Hat", "libvirt"),
    ("VMware", "vmware"),
    ("innotek", "virtualbox"),
    ("VirtualBox", "virtualbox"),
    ("Parallels", "parallels"),
    ("Xen", "xen"),
    ("Firecracker", "firecracker"),
    ("Cloud Hypervisor", "cloud_hypervisor"),
)
# Of those, who rents machines out: nobody who uses one changes its hypervisor.
CLOUDS = frozenset(
    {"amazon", "google", "azure", "oracle_cloud", "alibaba", "tencent", "huawei", "digitalocean", "hetzner"}
    | {"scaleway", "vultr", "linode", "upcloud", "exoscale", "ibm", "nebius", "yandex"}
)
# Clouds whose DMI names only the hypervisor: the asset tag of the chassis is theirs (cloud-init, DataSourceAzure and
# DataSourceOracle).
ASSET_TAGS = {"7783-7084-3265-9085-8269-3286-77": "azure", "OracleCloud.com": "oracle_cloud"}
SIGNATURE_KINDS = {
    "vmware": "vmware",
    "microsoft": "hyperv",
    "xen": "xen",
    "oracle": "virtualbox",
    "amazon": "amazon",
    "google": "google",
    "parallels": "parallels",
    "firecracker": "firecracker",
    "cloud_hypervisor": "cloud_hypervisor",
}
LXC_WORDS = ("lxc", "lxc-libvirt")
# Inode numbers of the first namespaces that the kernel makes (include/uapi/linux/nsfs.h): no container has all three.
INITIAL_NAMESPACES = {"pid": "pid:[4026531836]", "cgroup": "cgroup:[4026531835]", "uts": "uts:[4026531838]"}
BRIDGE = "0000:00:00.0"
VIRTIO_VENDOR = "1af4"
QEMU_VENDOR = "1b36"

# Names that QEMU gives to CPU models other than `host`.
GENERIC_CPU = re.compile(r"QEMU Virtual CPU|Common (?:32-bit )?KVM processor|QEMU TCG CPU", re.I)
NAMED_CPU = re.compile(
    r"^(?:AMD EPYC(?:-\w+)?(?: v\d)? Processor|Intel (?:Xeon|Core) Processor \(\w|Intel Xeon Processor$)"
)


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """The facts:

    - ``placement``: one of PLACEMENTS, or None
    - ``container``: lxc, docker, podman, kubernetes, systemd-nspawn, … or "" (in none); ``vm``: True | False | None,
      also from inside a container; ``hypervisor``: kvm, qemu, amazon, google, firecracker, cloud_hypervisor, vmware,
      microsoft, … or "" (none); None: unknown
    - ``hypervisor_kind``: who runs the guest that this is, where something says so: proxmox, libvirt (Red Hat's),
      vmware, hyperv, xen, virtualbox, openstack, kubevirt, nutanix, firecracker, cloud_hypervisor, or a cloud (amazon,
      google, azure, …); qemu where DMI is QEMU's own, which names no manager; "" for no guest; None: unknown.
      ``cloud``: whether it is a cloud's (None: unknown, as where DMI is QEMU's own)
    - ``vendor``: DMI's maker of the machine; ``dmi``: {name: text or None}; ``identity``: {product_uuid, board_serial},
      what tells this machine from another, text or None
    - ``host_facts``: True in a container: DMI, PCI, kernel and command line are those of its host
    - ``chipset``: i440fx | q35 | other | None, of a virtual machine only; ``chipset_reason``: why it is unknown or what
      it follows from
    - ``cpu``: {vendor, model_name, family, model, hypervisor_flag, kind: host | named | generic}: `named` and `generic`
      are QEMU's own models; ``hypervisor_hidden``: a QEMU machine whose CPU shows no hypervisor signature (kvm=off,
      hidden=1)
    - ``hypervisor_is_proxmox``: this very system is a Proxmox VE host, and ``proxmox_signs`` [text] say what shows it
      (node_signs.py); ``pve_kernel``: its kernel is Proxmox's, as inside its LXC
    """
    dmi = _dmi(evidence, errors)
    cpu = _cpu(evidence, errors)
    container = _container(evidence, errors)
    signature = _signature(evidence)
    hypervisor = _hypervisor(evidence, errors, dmi, cpu, signature)
    vm = None if hypervisor is None and not cpu["hypervisor_flag"] else hypervisor != ""
    release = evidence.read("/proc/sys/kernel/osrelease")
    errors.unanswered(release)
    pve_kernel = "-pve" in release.text if release.ok else None
    bridge = _host_bridge(evidence)
    chipset, reason = _chipset(vm, dmi, bridge, is_only_pieces(evidence))
    if vm and bridge is None:
        errors.add("%s/%s/uevent" % (pci_devices.DEVICES, BRIDGE), "the host bridge could not be read")
    proxmox, signs = node_signs.find_signs(evidence, container)
    if proxmox is None:
        errors.unanswered(evidence.list(node_signs.DIRECTORY))
    kind = _kind(evidence, container, vm, hypervisor, dmi, pve_kernel)
    return {
        "placement": _placement(container, vm, hypervisor),
        "container": container,
        "vm": vm,
        "hypervisor": hypervisor,
        "hypervisor_kind": kind,
        "cloud": None if kind in (None, "qemu") else kind in CLOUDS,
        "vendor": dmi["sys_vendor"],
        "dmi": {**dmi, **_quiet_dmi(evidence, QUIET_DMI_NAMES)},
        "identity": _quiet_dmi(evidence, IDENTITY_NAMES),
        "host_facts": None if container is None else bool(container),
        "chipset": chipset,
        "chipset_reason": reason,
        "host_bridge": bridge or None,
        "cpu": cpu,
        "hypervisor_hidden": _hidden(
            vm, _looks_like_qemu(dmi, bridge), cpu, hypervisor, _signature_of_qemu(hypervisor, dmi) or signature
        ),
        "hypervisor_is_proxmox": proxmox,
        "proxmox_signs": signs,
        "pve_kernel": pve_kernel,
    }


def _placement(container: str | None, vm: bool | None, hypervisor: str | None) -> str | None:
    if container is None:
        return None
    if container:
        return "lxc" if container in LXC_WORDS else "container"
    if vm is None:
        return None
    if not vm:
        return "bare_metal"
    return "kvm" if hypervisor in (*KVM_FAMILY, "firecracker", "cloud_hypervisor") else "vm"


def _container(evidence: Evidence, errors: Errors) -> str | None:
    """The kind of container, "" for none, None for unknown.

    Namespaces before marker files: a small virtual machine whose root file system was made from a container image has a
    /.dockerenv, which systemd-detect-virt takes for Docker.
    """
    listing = evidence.list("/proc/self/ns")
    spaces = listing.entries
    if all(name in spaces and spaces[name].target == target for name, target in INITIAL_NAMESPACES.items()):
        return ""
    detected = evidence.run(["systemd-detect-virt", "--container"], 10.0)
    word = _word(detected)
    if word and word != "none":
        return word
    marker_file = evidence.read("/run/systemd/container")
    stated = marker_file.text.strip()
    environment = evidence.read("/proc/1/environ")
    named = re.search(r"(?:^|\0)container=([\w.-]+)", environment.text)
    if stated or named:
        return stated or (named.group(1) if named else "")
    root = evidence.list("/")
    groups = evidence.read("/proc/1/cgroup")
    for marker, kind in (
        (r"kubepods", "kubernetes"),
        (r"docker", "docker"),
        (r"libpod", "podman"),
        (r"/lxc(?:\.payload)?[./]", "lxc"),
    ):
        if re.search(marker, groups.text):
            return kind
    if ".dockerenv" in root.entries:
        return "docker"
    if evidence.read("/run/.containerenv").ok:
        return "podman"
    if word == "none":
        return ""
    # Without systemd's word, nothing that would show a container may be unread.
    others = (marker_file, environment, groups)
    if root.ok and detected.status == ABSENT and all(answer.ok or answer.status == ABSENT for answer in others):
        return ""
    for outcome in (listing, detected):
        errors.unanswered(outcome, absent_is_fine=True)
    if detected.ok and word is None:
        errors.unsuccessful(detected)
    errors.unanswered(root)
    return None


def _word(outcome: Outcome) -> str | None:
    """systemd-detect-virt's word; it exits with 1 when it says "none"."""
    word = outcome.text.strip()
    return word if outcome.ok and outcome.rc in (0, 1) and re.fullmatch(r"[\w-]+", word) else None


def _hypervisor(
    evidence: Evidence, errors: Errors, dmi: dict[str, str | None], cpu: dict[str, Any], signature: str | None
) -> str | None:
    """The hypervisor under this system, "" for none, None for unknown."""
    asked = evidence.run(["systemd-detect-virt", "--vm"], 10.0)
    detected = _word(asked)
    maker = " ".join(dmi[name] or "" for name in ("sys_vendor", "product_name", "bios_vendor"))
    for words, name in DMI_HYPERVISORS:
        if (
            words in maker
            and detected in (None, "none", "kvm", "vm-other")
            and name in ("firecracker", "cloud_hypervisor", "amazon", "google")
        ):
            # Google and Amazon sell bare metal too.
            return name if cpu["hypervisor_flag"] is not False else ""
    if detected and detected not in ("none", "vm-other"):
        return detected
    if signature:
        return signature
    kind = evidence.read("/sys/hypervisor/type").text.strip()
    if kind == "xen":
        return "xen"
    for words, name in DMI_HYPERVISORS:
        if words in maker and name not in ("amazon", "google"):
            return name
    if cpu["hypervisor_flag"]:
        return "kvm" if _has_virtio(evidence) else None
    # A guest may hide the flag: without systemd's word, DMI has to say that it is no virtual machine's.
    if detected == "none" or (
        cpu["hypervisor_flag"] is False and asked.status == ABSENT and (dmi["sys_vendor"] or dmi["product_name"])
    ):
        return ""
    errors.unanswered(asked, absent_is_fine=True)
    errors.add("systemd-detect-virt", "neither it, nor /proc/cpuinfo, nor DMI tells whether this is a virtual machine")
    return None


def _kind(
    evidence: Evidence,
    container: str | None,
    vm: bool | None,
    hypervisor: str | None,
    dmi: dict[str, str | None],
    pve_kernel: bool | None,
) -> str | None:
    """``hypervisor_kind``. DMI of a container is its host's, and says nothing of who runs an LXC container."""
    if container in LXC_WORDS:
        return "proxmox" if pve_kernel else None
    if container is None or vm is None:
        return None
    if not vm:
        return ""
    names = ("sys_vendor", "product_name", "product_version", "bios_vendor", "bios_version")
    words = " ".join(dmi[name] or "" for name in names)
    named = next((kind for word, kind in DMI_KINDS if word in words), None)
    if named:
        return named
    if any(word in words for word in ("Microsoft", "QEMU", "Standard PC")):
        tag = ASSET_TAGS.get(evidence.read(DMI + "/chassis_asset_tag").text.strip())
        if tag:
            return tag
    if hypervisor in SIGNATURE_KINDS:
        return SIGNATURE_KINDS[hypervisor]
    return "qemu" if "QEMU" in words or "Standard PC" in words else None


def _signature(evidence: Evidence) -> str | None:
    """What CPUID tells of the hypervisor, as lscpu and the kernel's paravirtual clock show it.

    "" for nothing, None for unknown.
    """
    lscpu = evidence.run(["lscpu"], 10.0)
    answer = re.search(r"^Hypervisor vendor:\s+(\S+)", lscpu.text, re.M)
    if answer and lscpu.ok:
        return LSCPU_HYPERVISORS.get(answer.group(1), answer.group(1).lower())
    clocksources = evidence.read(CLOCKSOURCES)
    clocks = clocksources.text.split()
    for clock, name in (
        ("kvm-clock", "kvm"),
        ("hyperv_clocksource_tsc_page", "microsoft"),
        ("hyperv_clocksource", "microsoft"),
        ("xen", "xen"),
    ):
        if clock in clocks:
            return name
    return "" if lscpu.succeeded and clocksources.ok else None


def _has_virtio(evidence: Evidence) -> bool:
    devices = pci_devices.read_inventory(evidence, Errors("virtualization")) or {}
    return any(device["vendor"] in (VIRTIO_VENDOR, QEMU_VENDOR) for device in devices.values())


def _dmi(evidence: Evidence, errors: Errors) -> dict[str, str | None]:
    found: dict[str, str | None] = {}
    for name in DMI_NAMES:
        reading = evidence.read("%s/%s" % (DMI, name))
        errors.unanswered(reading, absent_is_fine=True)
        found[name] = (reading.text.strip() or None) if reading.ok else None
    return found


def _quiet_dmi(evidence: Evidence, names: tuple[str, ...]) -> dict[str, str | None]:
    readings = {name: evidence.read("%s/%s" % (DMI, name)) for name in names}
    return {name: (reading.text.strip() or None) if reading.ok else None for name, reading in readings.items()}


def _host_bridge(evidence: Evidence) -> str | None:
    """Vendor and device of the first host bridge; "" where there is none, None where it cannot be read."""
    # Errors of the bus are the pci subject's to report.
    device = pci_devices.identify_device(evidence, BRIDGE, Errors("virtualization"))
    if not device["identified"]:
        uevent = evidence.read("%s/%s/uevent" % (pci_devices.DEVICES, BRIDGE))
        return "" if uevent.status == ABSENT else None
    if not device["class"].startswith(pci_names.CLASS_HOST_BRIDGE):
        return ""
    return "%s:%s" % (device["vendor"], device["device"])


def _chipset(
    vm: bool | None, dmi: dict[str, str | None], bridge: str | None, only_pieces: bool
) -> tuple[str | None, str]:
    if vm is False:
        return None, "not a virtual machine"
    if vm is None:
        return None, "it is unknown whether this is a virtual machine"
    # The bridge before DMI: an administrator can put any words into a guest's DMI.
    known = pci_names.HOST_BRIDGE_CHIPSETS.get(bridge or "")
    if known:
        return known, "host bridge %s" % bridge
    product = dmi["product_name"]
    named = next((name for word, name in (("i440FX", "i440fx"), ("Q35", "q35")) if word in (product or "")), None)
    # Of single pieces DMI is often all that there is; on a host that was looked at, the bridge may contradict it.
    if bridge is None and not (only_pieces and named):
        return None, "the host bridge could not be read"
    if named:
        return named, "DMI product name %s" % product
    if product:
        return "other", "DMI product name %s" % product
    return None, "no DMI%s" % (
        ", and host bridge %s is not one of QEMU's" % bridge if bridge else " and no host bridge to be seen"
    )


def _cpu(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    reading = evidence.read("/proc/cpuinfo")
    first, ended, _others = reading.text.partition("\n\n")
    if not reading.ok and not (reading.truncated and ended):  # the first processor is enough
        errors.unanswered(reading)
        first = ""
    fields = dict(re.findall(r"^([^\t:\n]+?)\s*: ?(.*)$", first, re.M))
    name = fields.get("model name")
    kind = None
    if name:
        kind = "generic" if GENERIC_CPU.search(name) else ("named" if NAMED_CPU.match(name.strip()) else "host")
    flags = fields.get("flags")
    return {
        "vendor": fields.get("vendor_id"),
        "model_name": name,
        "family": _integer(fields.get("cpu family")),
        "model": _integer(fields.get("model")),
        # Only x86 has this flag; elsewhere its absence says nothing.
        "hypervisor_flag": None if flags is None else "hypervisor" in flags.split(),
        "kind": kind,
    }


def _integer(text: str | None) -> int | None:
    return values.whole_number(text)


def _looks_like_qemu(dmi: dict[str, str | None], bridge: str | None) -> bool:
    maker = "%s %s" % (dmi["sys_vendor"], dmi["product_name"])
    return "QEMU" in maker or "Standard PC" in maker or bridge in pci_names.HOST_BRIDGE_CHIPSETS


def _signature_of_qemu(hypervisor: str | None, dmi: dict[str, str | None]) -> str:
    """QEMU without KVM has a CPUID signature that lscpu does not know.

    systemd-detect-virt says "qemu" for it, and for DMI's words.
    """
    return (
        "qemu"
        if hypervisor == "qemu" and dmi["sys_vendor"] and not any("QEMU" in (text or "") for text in dmi.values())
        else ""
    )


def _hidden(
    vm: bool | None, qemu: bool, cpu: dict[str, Any], hypervisor: str | None, signature: str | None
) -> bool | None:
    """Whether QEMU hides from the guest that it is one: the driver then takes the guest for a real machine."""
    if vm is False or signature:
        return False
    if vm is None or not qemu:
        return None
    if cpu["hypervisor_flag"] is False:
        return True
    # Under DMI words of QEMU's, QEMU without KVM looks like KVM that hides.
    if "TCG" in (cpu["model_name"] or "") or hypervisor == "kvm":
        return False
    return True if signature == "" else None
