"""The settings of a container as pve-container checks them when it reads a configuration (version 6.1).

Source: PVE::LXC::Config ($confdesc, check_type, is_valid_lxc_conf_key). A refused value stays in force here, unlike in
a VM; devN lines are parsed again when the container starts, which then dies.
"""

from __future__ import annotations

from . import value_checks as checks
from .property_string import Format, Property, Refused, find_numbered, parse_property_string
from .vm_schema import check_by_rule

MAX_DEVICES = 256
_YES_NO = Property("boolean")
_TEXT = Property()
_OPTION = "(?:discard|lazytime|noatime|nodev|noexec|nosuid)"
_MAP = "[ug]:[0-9]+:[0-9]+:[1-9][0-9]*"

DEVICE: Format = {
    "path": Property(default=True, check=checks.device_path),
    "mode": Property(pattern="0[0-7]{3}"),
    "uid": Property("integer", minimum=0),
    "gid": Property("integer", minimum=0),
    "deny-write": _YES_NO,
}
FEATURES: Format = {
    "mount": Property(pattern="[a-zA-Z0-9_; ]+"),
    **dict.fromkeys(("nesting", "keyctl", "fuse", "mknod", "force_rw_sys"), _YES_NO),
}
_ROOT: Format = {
    "volume": Property(default=True, optional=False, check=checks.mount_source),
    "size": Property(check=checks.disk_size),
    "acl": _YES_NO,
    "mountoptions": Property(pattern="%s(?:;%s)*" % (_OPTION, _OPTION)),
    "idmap": Property(pattern="passthrough|%s(?:;%s)*" % (_MAP, _MAP)),
    **dict.fromkeys(("ro", "quota", "replicate", "shared"), _YES_NO),
}
_NET: Format = {
    "type": Property(enum=("veth",)),
    "name": Property(optional=False, pattern=r"[-_.\w]+"),
    "bridge": Property(pattern=r"[-_.\w]+"),
    "hwaddr": Property(check=checks.mac_address),
    "mtu": Property("integer", minimum=64, maximum=65535),
    "ip": Property(check=checks.ipv4_config),
    "gw": Property(check=checks.check_ipv4),
    "ip6": Property(check=checks.ipv6_config),
    "gw6": Property(check=checks.check_ipv6),
    "firewall": _YES_NO,
    "tag": Property("integer", minimum=1, maximum=4094),
    "trunks": Property(pattern=r"\d+(?:;\d+)*"),
    "rate": Property("number"),
    "link_down": _YES_NO,
    "host-managed": _YES_NO,
}
_NUMBERED: dict[str, tuple[int, Format]] = {
    "dev": (MAX_DEVICES, DEVICE),
    "net": (32, _NET),
    "mp": (
        256,
        {
            **_ROOT,
            "backup": _YES_NO,
            "mp": Property(optional=False, check=checks.mount_source),
            "keepattrs": _YES_NO,
        },
    ),
    "unused": (256, {"volume": Property(default=True, optional=False, check=checks.volume_id)}),
}


def _zone(value: str) -> None:
    if value != "host":
        checks.time_zone(value)


_PLAIN: dict[str, Format | Property] = {
    **dict.fromkeys(["onboot", "template", "console", "protection", "unprivileged", "debug"], Property("boolean")),
    **dict.fromkeys(["tty", "cores", "cpuunits", "memory", "swap", "snaptime"], Property("integer")),
    "cpulimit": Property("number"),
    **dict.fromkeys(["lock", "arch", "ostype", "description", "cmode", "entrypoint", "env"], _TEXT),
    "hostname": Property(check=checks.dns_name),
    "searchdomain": Property(check=checks.make_each(checks.dns_name)),
    "nameserver": Property(check=checks.make_each(checks.container_ip)),
    "timezone": Property(check=_zone),
    "startup": Property(check=checks.startup_order),
    "parent": Property(check=checks.config_id),
    "hookscript": Property(check=checks.volume_id),
    "tags": Property(check=checks.make_each(checks.tag)),
    "rootfs": _ROOT,
    "features": FEATURES,
}

# Raw keys that liblxc knows under `lxc.` and Proxmox lets through.
_RAW_NAMES = (
    "apparmor.profile apparmor.allow_incomplete apparmor.allow_nesting apparmor.raw selinux.context include "
    "arch uts.name signal.halt signal.reboot signal.stop init.cmd init.cwd init.uid init.gid init.groups "
    "pty.max console.logfile console.path tty.max devtty.dir hook.autodev autodev kmsg mount.fstab mount.entry "
    "mount.auto rootfs.mount cap.drop cap.keep seccomp.profile seccomp.notify.proxy seccomp.notify.cookie idmap "
    "hook.pre-start hook.pre-mount hook.mount hook.start hook.stop hook.post-stop hook.clone hook.destroy "
    "hook.version log.level log.file start.auto start.delay start.order group environment environment.runtime "
    "environment.hooks sysctl.fs.mqueue sysctl.kernel.msgmax sysctl.kernel.msgmnb sysctl.kernel.msgmni "
    "sysctl.kernel.sem sysctl.kernel.shmall sysctl.kernel.shmmax sysctl.kernel.shmmni "
    "sysctl.kernel.shm_rmid_forced"
)
_RAW = frozenset("lxc." + name for name in _RAW_NAMES.split())
_FORBIDDEN = {
    "lxc.rootfs.path": "lxc.rootfs.path is auto generated from rootfs",
    "lxc.rootfs.options": 'lxc.rootfs.options is not supported, please use mount point options in the "rootfs" key',
}
# Names of LXC 1 and 2; the line still counts.
_RENAMED = {
    "aa_profile": "apparmor.profile",
    "aa_allow_incomplete": "apparmor.allow_incomplete",
    "console": "console.path",
    "devttydir": "tty.dir",
    "haltsignal": "signal.halt",
    "rebootsignal": "signal.reboot",
    "stopsignal": "signal.stop",
    "id_map": "idmap",
    "init_cmd": "init.cmd",
    "loglevel": "log.level",
    "logfile": "log.file",
    "mount": "mount.fstab",
    **{"network." + name: "net.INDEX." + name for name in ("type", "flags", "link", "mtu", "name", "hwaddr")},
    "network.ipv4": "net.INDEX.ipv4.address",
    "network.ipv4.gateway": "net.INDEX.ipv4.gateway",
    "network.ipv6": "net.INDEX.ipv6.address",
    "network.ipv6.gateway": "net.INDEX.ipv6.gateway",
    "network.script.up": "net.INDEX.script.up",
    "network.script.down": "net.INDEX.script.down",
    "pts": "pty.max",
    "se_context": "selinux.context",
    "seccomp": "seccomp.profile",
    "tty": "tty.max",
    "utsname": "uts.name",
}


def find_rule(key: str) -> Format | Property | None:
    """How the value of `key` is checked; None where Proxmox has no such setting."""
    if key in _PLAIN:
        return _PLAIN[key]
    return find_numbered(key, _NUMBERED)


def check_value(key: str, value: str) -> str:
    """The value as Proxmox keeps it; Refused where its schema does not allow it (the value stays all the same)."""
    found = find_rule(key)
    if isinstance(found, Property) and found.type == "string" and found.check is None and "\r" not in value:
        return value  # a container keeps the quotes around a plain string
    return check_by_rule(found, key, value)


def check_device(value: str) -> dict[str, str]:
    """A devN line as the container's start parses it; Refused stops the start."""
    found = parse_property_string(DEVICE, value)
    if "path" not in found:
        raise Refused("Path has to be defined")
    return found


def parse_features(value: str) -> dict[str, str]:
    """A features line as the container's start parses it; Refused stops the start."""
    return parse_property_string(FEATURES, value) if value not in ("", "0") else {}


def raw_problem(key: str) -> tuple[bool, str | None]:
    """(does a raw `lxc.*` line count, what Proxmox warns of). Source: is_valid_lxc_conf_key."""
    if key.startswith("lxc.limit."):
        return True, "lxc.limit.* was renamed to lxc.prlimit.*"
    new_name = _RENAMED.get(key[len("lxc.") :])
    if new_name is not None:
        return True, "%s is deprecated and was renamed to lxc.%s" % (key, new_name)
    if key in _FORBIDDEN:
        return False, _FORBIDDEN[key]
    if key in _RAW or key.startswith(("lxc.cgroup2.", "lxc.prlimit.", "lxc.net.")):
        return True, None
    if key.startswith("lxc.cgroup."):
        return True, "%s is deprecated, this will be a hard error in the future!" % key
    return False, "unable to parse config"
