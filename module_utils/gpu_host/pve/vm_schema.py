"""The settings of a VM as qemu-server checks them when it reads a configuration (version 9.2).

Source: PVE::QemuServer ($confdesc, check_type) and the modules whose formats it names: PCI, Machine, CPUConfig,
CPUFlags, Memory, Drive, Network, USB. While it reads, Proxmox checks booleans, whole numbers and formats; plain strings
(`lock`, `ostype`, `bios`, `args`) and ranges of plain numbers are not looked at.
"""

from __future__ import annotations

import re
from collections.abc import Collection

from . import value_checks as checks
from .property_string import Format, Property, Refused, find_numbered, parse_property_string

PCI_ADDRESS = "(?:[a-f0-9]{4,}:)?[a-f0-9]{2}:[a-f0-9]{2}(?:\\.[a-f0-9])?"
MAX_HOSTPCI = 16
_YES_NO = Property("boolean")
_TEXT = Property()
_HEX_ID = Property(pattern="0x[0-9a-fA-F]{4}")
_NUMBER_SETS = r"\d+(?:-\d+)?(?:;\d+(?:-\d+)?)*"


def _enum(*words: str, default: bool = False, optional: bool = True) -> Property:
    return Property(enum=words, default=default, optional=optional)


HOSTPCI: Format = {
    "host": Property(default=True, pattern="%s(?:;%s)*" % (PCI_ADDRESS, PCI_ADDRESS)),
    "mapping": Property(check=checks.config_id),
    "rombar": _YES_NO,
    "romfile": Property(pattern="[^,;]+"),
    "pcie": _YES_NO,
    "x-vga": _YES_NO,
    "legacy-igd": _YES_NO,
    "mdev": Property(pattern=r"[^/.:]+"),
    "vendor-id": _HEX_ID,
    "device-id": _HEX_ID,
    "sub-vendor-id": _HEX_ID,
    "sub-device-id": _HEX_ID,
    "driver": _enum("vfio", "keep"),
}
_VERSION = r"\d+(?:\.\d+)+(?:\+pve\d+)?(?:\.pxe)?"
MACHINE: Format = {
    "type": Property(
        default=True,
        pattern=r"pc|q35|pc(?:-i440fx|-q35)?-%s|virt(?:-\d+(?:\.\d+)+)?(?:\+pve\d+)?" % _VERSION,
        max_length=40,
    ),
    "viommu": _enum("intel", "virtio"),
    "aw-bits": Property("number", minimum=32, maximum=64),
    "enable-s3": _YES_NO,
    "enable-s4": _YES_NO,
}
MEMORY: Format = {"current": Property("integer", default=True, minimum=16)}

# What a VM's own `flags` may name; a model of cpu-models.conf may name any.
CPU_FLAGS = (
    "aes", "amd-no-ssb", "amd-ssbd", "hv-evmcs", "hv-tlbflush", "ibpb", "md-clear", "nested-virt", "pcid", "pdpe1gb",
    "spec-ctrl", "ssbd", "virt-ssbd",
)  # fmt: skip
# QEMU's CPU models by vendor, `name: suffixes`, as qemu-server lists them.
_CPU_FAMILIES = {
    "486 pentium pentium2 pentium3 coreduo core2duo Conroe Penryn KnightsMill ClearwaterForest": ("",),
    "athlon phenom Opteron_G1 Opteron_G2 Opteron_G3 Opteron_G4 Opteron_G5 EPYC-Turin": ("",),
    "kvm32 kvm64 qemu32 qemu64 max host": ("",),
    "a64fx cortex-a35 cortex-a53 cortex-a55 cortex-a57 cortex-a710 cortex-a72 cortex-a76": ("",),
    "neoverse-n1 neoverse-n2 neoverse-v1": ("",),
    "x86-64-v2 x86-64-v2-AES x86-64-v3 x86-64-v4": ("",),
    "Nehalem Westmere SandyBridge IvyBridge": ("", "-IBRS"),
    "Haswell Broadwell": ("", "-IBRS", "-noTSX", "-noTSX-IBRS"),
    "Skylake-Client": ("", "-IBRS", "-noTSX-IBRS", "-v4"),
    "Skylake-Server": ("", "-IBRS", "-noTSX-IBRS", "-v4", "-v5"),
    "Cascadelake-Server": ("", "-v2", "-noTSX", "-v4", "-v5"),
    "Cooperlake": ("", "-v2"),
    "Icelake-Client": ("", "-noTSX"),
    "Icelake-Server": ("", "-noTSX", "-v3", "-v4", "-v5", "-v6", "-v7"),
    "SapphireRapids": ("", "-v2", "-v3", "-v4"),
    "GraniteRapids SierraForest": ("", "-v2", "-v3"),
    "EPYC": ("", "-IBPB", "-v3", "-v4", "-v5"),
    "EPYC-Rome": ("", "-v2", "-v3", "-v4", "-v5"),
    "EPYC-Milan": ("", "-v2", "-v3"),
    "EPYC-Genoa": ("", "-v2"),
}
CPU_MODELS = frozenset(
    name + suffix for names, suffixes in _CPU_FAMILIES.items() for name in names.split() for suffix in suffixes
)
# The x86-64-vN are Proxmox's own names for qemu64 with flags, and none that a model can report.
_REPORTED = tuple(sorted((name for name in CPU_MODELS if not name.startswith("x86-64-")), key=str.lower))
_ANY_FLAG = r"[+-][a-zA-Z0-9\-_.]+"
CPU: Format = {
    "cputype": Property(default=True),
    "reported-model": _enum(*_REPORTED),
    "hidden": _YES_NO,
    "hv-vendor-id": Property(pattern="[a-zA-Z0-9]{1,12}"),
    "flags": Property(pattern="%s(?:;%s)*" % (_ANY_FLAG, _ANY_FLAG)),
    "guest-phys-bits": Property("integer", minimum=32, maximum=64),
    "phys-bits": Property(check=checks.phys_bits),
    "level": Property("integer", minimum=0, maximum=4294967295),
}
_OWN_FLAG = "[+-](?:%s)" % "|".join(CPU_FLAGS)
_OWN_FLAGS = re.compile("%s(?:;%s)*" % (_OWN_FLAG, _OWN_FLAG))


def parse_cpu(value: str, custom_models: Collection[str] | None) -> dict[str, str]:
    """A VM's `cpu` line. `custom_models` are the names in cpu-models.conf, without `custom-`; None: the file was not
    read, and any such name is let pass."""
    found = parse_property_string(CPU, value)
    kind = found.get("cputype")
    if not kind or kind == "0":
        raise Refused("CPU is missing cputype")
    if kind.startswith("custom-"):
        if custom_models is not None and kind[len("custom-") :] not in custom_models:
            raise Refused("Custom cputype '%s' not found" % kind[len("custom-") :])
    elif kind not in CPU_MODELS:
        raise Refused("Built-in cputype '%s' is not defined (missing 'custom-' prefix?)" % kind)
    if found.get("flags") and not _OWN_FLAGS.fullmatch(found["flags"]):
        raise Refused("VM-specific CPU flags must be a subset of: %s" % ", ".join(CPU_FLAGS))
    if "reported-model" in found:
        raise Refused("Property 'reported-model' not allowed in VM-specific CPU config.")
    return found


_IMAGE = _enum("raw", "qcow", "qed", "qcow2", "vmdk", "cloop")
_FILE = Property(default=True, optional=False, check=checks.volume_or_path)
_SIZE = Property(check=checks.disk_size)
_COUNT = Property("integer")
_RATE = Property("number")
_SECONDS = Property("integer", minimum=1)
_DRIVE: Format = {
    "volume": Property(alias="file"),
    "file": _FILE,
    "media": _enum("cdrom", "disk"),
    "snapshot": _YES_NO,
    "cache": _enum("none", "writethrough", "writeback", "unsafe", "directsync"),
    "format": _IMAGE,
    "size": _SIZE,
    "backup": _YES_NO,
    "replicate": _YES_NO,
    "rerror": _enum("ignore", "report", "stop"),
    "werror": _enum("enospc", "ignore", "report", "stop"),
    "aio": _enum("native", "threads", "io_uring"),
    "discard": _enum("ignore", "on"),
    "detect_zeroes": _YES_NO,
    "serial": Property(check=checks.url_encoded, max_length=60),
    "shared": _YES_NO,
    **{name + way: _COUNT for name in ("bps", "iops") for way in ("", "_rd", "_wr")},
    **{"mbps" + way: _RATE for way in ("", "_rd", "_wr", "_max", "_rd_max", "_wr_max")},
    **{"iops%s_max" % way: _COUNT for way in ("", "_rd", "_wr")},
    **{"%s%s_max_length" % (name, way): _SECONDS for name in ("bps", "iops") for way in ("", "_rd", "_wr")},
    **{
        "%s%s_length" % (name, way): Property(alias="%s%s_max_length" % (name, way))
        for name in ("bps", "iops")
        for way in ("_rd", "_wr")
    },
}
_WWN = Property(pattern="0x[0-9a-fA-F]{16}")
_IDE: Format = {**_DRIVE, "model": Property(check=checks.url_encoded, max_length=120), "ssd": _YES_NO, "wwn": _WWN}
_SATA: Format = {**_DRIVE, "ssd": _YES_NO, "wwn": _WWN}
_VIRTIO: Format = {**_DRIVE, "iothread": _YES_NO, "ro": _YES_NO}
_SCSI: Format = {
    **_VIRTIO,
    "product": Property(pattern=r"[A-Za-z0-9\-_\s]{,16}"),
    "vendor": Property(pattern=r"[A-Za-z0-9\-_\s]{,8}"),
    "queues": Property("integer", minimum=2),
    "scsiblock": _YES_NO,
    "ssd": _YES_NO,
    "wwn": _WWN,
}
_STATE_FILE: Format = {"volume": Property(alias="file"), "file": _FILE, "format": _IMAGE, "size": _SIZE}
_EFI_DISK: Format = {
    **_STATE_FILE,
    "efitype": _enum("2m", "4m"),
    "pre-enrolled-keys": _YES_NO,
    "ms-cert": _enum("2011", "2023", "2023w", "2023k"),
}
_UNUSED: Format = {
    "volume": Property(alias="file"),
    "file": Property(default=True, optional=False, check=checks.volume_id),
}
_NIC_MODELS = (
    "e1000", "e1000-82540em", "e1000-82544gc", "e1000-82545em", "e1000e", "i82551", "i82557b", "i82559er", "ne2k_isa",
    "ne2k_pci", "pcnet", "rtl8139", "virtio", "vmxnet3",
)  # fmt: skip
_NET: Format = {
    "macaddr": Property(check=checks.mac_address),
    "model": _enum(*_NIC_MODELS, default=True, optional=False),
    **{model: Property(alias="macaddr", key_alias="model") for model in _NIC_MODELS},
    "bridge": Property(check=checks.bridge_id),
    "queues": Property("integer", minimum=0, maximum=64),
    "rate": Property("number", minimum=0),
    "tag": Property("integer", minimum=1, maximum=4094),
    "trunks": Property(pattern=_NUMBER_SETS),
    "firewall": _YES_NO,
    "link_down": _YES_NO,
    "mtu": Property("integer", minimum=1, maximum=65520),
    "host-tunnel": _YES_NO,
}
_USB: Format = {
    "host": Property(
        default=True,
        pattern=r"(?:0x)?[0-9A-Fa-f]{4}:(?:0x)?[0-9A-Fa-f]{4}|\d+-\d+(?:\.\d+)*|[Ss][Pp][Ii][Cc][Ee]",
    ),
    "mapping": Property(check=checks.config_id),
    "usb3": _YES_NO,
}
_BASE64 = Property(pattern="[A-Za-z0-9+/]+={0,2}")


def _boot_devices(value: str) -> None:
    for word in checks.split_list(value):
        name = re.fullmatch(r"([a-z]+)(\d+)", word)
        if (
            not name
            or name.group(1) not in ("ide", "sata", "scsi", "virtio", "net", "usb", "hostpci")
            or not (is_known(word))
        ):
            raise Refused("invalid boot device '%s'" % word)


def _boot_disk(value: str) -> None:
    if not re.match("ide|sata|scsi|virtio[0-9]|efidisk|tpmstate", value) or not is_known(value):
        raise Refused("invalid boot disk '%s'" % value)


BOOLEAN, INTEGER, NUMBER = Property("boolean"), Property("integer"), Property("number")
_FORMATS: dict[str, Format] = {
    "memory": MEMORY,
    "machine": MACHINE,
    "runningmachine": MACHINE,
    "amd-sev": {
        "type": Property(default=True, optional=False, enum=("std", "es", "snp"), max_length=3),
        **dict.fromkeys(("no-debug", "no-key-sharing", "allow-smt", "kernel-hashes"), _YES_NO),
    },
    "intel-tdx": {
        "type": _enum("tdx", default=True, optional=False),
        "attestation": Property("boolean", optional=False),
        "vsock-cid": Property("integer", minimum=2),
        "vsock-port": Property("integer", minimum=0),
    },
    "boot": {"legacy": Property(default=True, pattern="[acdn]{1,4}"), "order": Property(check=_boot_devices)},
    "agent": {
        "enabled": Property("boolean", default=True, optional=False),
        "fstrim_cloned_disks": _YES_NO,
        "freeze-fs-on-backup": Property(alias="freeze-fs"),
        "guest-fsfreeze": Property(alias="freeze-fs"),
        "freeze-fs": _YES_NO,
        "type": _enum("virtio", "isa"),
    },
    "vga": {
        "type": _enum(
            *[
                "cirrus",
                "qxl",
                "qxl2",
                "qxl3",
                "qxl4",
                "none",
                "serial0",
                "serial1",
                "serial2",
                "serial3",
                "std",
                "virtio",
                "virtio-gl",
                "vmware",
            ],
            default=True,
        ),
        "memory": Property("integer", minimum=4, maximum=512),
        "clipboard": _enum("vnc"),
    },
    "watchdog": {
        "model": _enum("i6300esb", "ib700", default=True),
        "action": _enum("reset", "shutdown", "poweroff", "pause", "debug", "none"),
    },
    "cdrom": _IDE,
    "smbios1": {
        "uuid": Property(pattern="[a-fA-F0-9]{8}(?:-[a-fA-F0-9]{4}){3}-[a-fA-F0-9]{12}"),
        **dict.fromkeys(("version", "serial", "manufacturer", "product", "sku", "family"), _BASE64),
        "base64": _YES_NO,
    },
    "ivshmem": {
        "size": Property("integer", optional=False, minimum=1),
        "name": Property(pattern=r"[a-zA-Z0-9\-]+"),
    },
    "audio0": {
        "device": _enum("ich9-intel-hda", "intel-hda", "AC97", optional=False),
        "driver": _enum("spice", "none"),
    },
    "spice_enhancements": {"foldersharing": _YES_NO, "videostreaming": _enum("off", "all", "filter")},
    "rng0": {
        "source": _enum("/dev/urandom", "/dev/random", "/dev/hwrng", default=True, optional=False),
        "max_bytes": _COUNT,
        "period": _COUNT,
    },
    "meta": {"ctime": Property("integer", minimum=0), "creation-qemu": Property(pattern=r"\d+(?:\.\d+)+")},
    "cicustom": dict.fromkeys(("meta", "network", "user", "vendor"), Property(check=checks.volume_id)),
    "efidisk0": _EFI_DISK,
    "tpmstate0": {**_STATE_FILE, "version": _enum("v1.2", "v2.0")},
}
_NUMBERED: dict[str, tuple[int, Format | Property]] = {
    "hostpci": (MAX_HOSTPCI, HOSTPCI),
    "ide": (4, _IDE),
    "sata": (6, _SATA),
    "scsi": (31, _SCSI),
    "virtio": (16, _VIRTIO),
    "unused": (256, _UNUSED),
    "net": (32, _NET),
    "ipconfig": (
        32,
        {
            "ip": Property(check=checks.ipv4_config),
            "gw": Property(check=checks.check_ipv4, requires="ip"),
            "ip6": Property(check=checks.ipv6_config),
            "gw6": Property(check=checks.check_ipv6, requires="ip6"),
        },
    ),
    "numa": (
        8,
        {
            "cpus": Property(optional=False, pattern=_NUMBER_SETS),
            "memory": _RATE,
            "hostnodes": Property(pattern=_NUMBER_SETS),
            "policy": _enum("preferred", "bind", "interleave"),
        },
    ),
    "virtiofs": (
        10,
        {
            "dirid": Property(default=True, optional=False, check=checks.config_id),
            "cache": _enum("auto", "always", "metadata", "never"),
            **dict.fromkeys(("direct-io", "expose-xattr", "expose-acl"), _YES_NO),
        },
    ),
    "usb": (14, _USB),
    "serial": (4, _TEXT),
    "parallel": (3, _TEXT),
}
_BOOLEANS = (
    "onboot autostart reboot numa keephugepages acpi kvm tdf localtime freeze template tablet protection allow- "
    "ksm ciupgrade"
)
_INTEGERS = "cpuunits balloon shares smp sockets cores vcpus migrate_speed snaptime"
_TEXTS = (
    "lock keyboard scsihw description ostype hugepages startdate args runningcpu running-nets-host-mtu arch "
    "bios vmgenid citype ciuser cipassword searchdomain"
)
_PLAIN: dict[str, Property] = {
    **dict.fromkeys(_BOOLEANS.split(), BOOLEAN),
    **dict.fromkeys(_INTEGERS.split(), INTEGER),
    **dict.fromkeys(["cpulimit", "migrate_downtime"], NUMBER),
    **dict.fromkeys(_TEXTS.split(), _TEXT),
    "hotplug": Property(check=checks.check_hotplug),
    "name": Property(check=checks.dns_name),
    "bootdisk": Property(check=_boot_disk),
    "startup": Property(check=checks.startup_order),
    "parent": Property(check=checks.config_id),
    "vmstate": Property(check=checks.volume_id),
    "vmstatestorage": Property(check=checks.storage_id),
    "hookscript": Property(check=checks.volume_id),
    "tags": Property(check=checks.make_each(checks.tag)),
    "affinity": Property(check=checks.cpu_set),
    "nameserver": Property(check=checks.make_each(checks.check_address)),
    "sshkeys": Property(check=checks.url_encoded),
}


def find_rule(key: str) -> Format | Property | None:
    """How the value of `key` is checked; None where Proxmox has no such setting."""
    if key in _FORMATS:
        return _FORMATS[key]
    if key in _PLAIN:
        return _PLAIN[key]
    return find_numbered(key, _NUMBERED)


def is_known(key: str) -> bool:
    return key == "cpu" or find_rule(key) is not None


def check_value(key: str, value: str, custom_models: Collection[str] | None) -> str:
    """The value as Proxmox keeps it; Refused where it drops the line."""
    if key == "cpu" and "\r" not in value:
        parse_cpu(value, custom_models)
        return value
    if key == "cpu":
        return check_by_rule(CPU, key, value)
    return check_by_rule(find_rule(key), key, value)


def check_by_rule(found: Format | Property | None, key: str, value: str) -> str:
    """`value` after the check of one setting, common to VMs and containers."""
    if found is None:
        raise Refused("unknown setting '%s'" % key)
    if "\r" in value:
        raise Refused("property contains a line feed")
    if not isinstance(found, Property):
        parse_property_string(found, value)
        return value
    if found.type == "boolean":
        lower = value.lower()
        if lower in ("1", "on", "yes", "true"):
            return "1"
        if lower in ("0", "off", "no", "false"):
            return "0"
        raise Refused("type check ('boolean') failed - got '%s'" % value)
    if found.type == "integer":
        if not re.fullmatch("[0-9]+", value):
            raise Refused("type check ('integer') failed - got '%s'" % value)
        return value.lstrip("0") or "0"
    if found.type == "number" and not re.fullmatch(r"[0-9]+(?:\.[0-9]+)?", value):
        raise Refused("type check ('number') failed - got '%s'" % value)
    if found.check is not None:
        found.check(value)
        return value
    # Quotes around a plain string are taken off.
    return value[1:-1] if found.type == "string" and re.fullmatch('"(.*)"', value) else value
