"""The driver's device nodes: present, of the right major number, open to those who should use them.

nvidia0…N, nvidiactl and nvidia-modeset have the fixed major 195; nvidia-uvm, nvidia-caps, nvidia-nvswitch and
nvidia-nvlink get a new one at each load of their module, so a node that a container keeps from before is a door to
nothing. Nodes of other modules (nvidia-fs of GPUDirect Storage, vGPU's) are listed and not judged.
"""

from __future__ import annotations

from typing import Any

from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, DENIED, FAILED, NOT_CAPTURED, OK, Entry, Evidence, Outcome
from .evidence.offenders import Offenders

GPUS = "/proc/driver/nvidia/gpus"
_DEFAULT_MODE = 0o666  # NVreg_DeviceFileMode
# What this process may do with each node, without opening it: access(2) asks the modes and the device rules of a
# container's cgroup alike (inode_permission in fs/namei.c). One line per node: "/dev/nvidia0 rw".
ACCESS_COMMAND = (
    "sh",
    "-c",
    "for n in /dev/nvidia[0-9]* /dev/nvidiactl /dev/nvidia-uvm; do "
    '[ -c "$n" ] || continue; r=-; w=-; [ -r "$n" ] && r=r; [ -w "$n" ] && w=w; echo "$n $r$w"; done',
)
# Names in /proc/devices by driver release; those that share a device with a node of /dev.
_REGISTERED = {
    "nvidia": ("nvidia", "nvidia-frontend"),
    "nvidia_uvm": ("nvidia-uvm",),
    "nvidia_caps": ("nvidia-caps",),
    "nvidia_nvswitch": ("nvidia-nvswitch",),
    "nvidia_nvlink": ("nvidia-nvlink",),
}


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Facts of the nodes.

    `nodes`: name -> {kind, major, minor, mode, uid, gid} of /dev/nvidia* and nvidia-caps/*; None if /dev cannot be
    listed. `majors`: {nvidia, nvidia_uvm, nvidia_caps, nvidia_nvswitch, nvidia_nvlink} as the kernel registered them
    (None: not registered); None if unknown. `gpu_minors`: PCI address -> minor number of its node, from
    /proc/driver/nvidia/gpus. `missing`: names that should be there; `missing_control`: those among them that every CUDA
    process needs; `no_gpu_node`: no nvidiaN is there although the driver holds GPUs. `stale`: [{name, major,
    registered, text}]. `refused`: those of `opens` whose mode lets everybody in and that cannot be opened all the
    same: a container's device policy refuses them. `opens`: {nvidiactl, nvidia-uvm} -> whether opening them works here
    (None: not tried).
    `access`: name -> "rw", "r", "w" or "", what this process may do with it; None where that is not known.
    `unusable`: [{name, why, text}].
    """
    listing = evidence.list("/dev")
    errors.unanswered(listing)
    nodes = (
        {name: entry for name, entry in listing.entries.items() if name.startswith("nvidia") and entry.kind != "dir"}
        if listing.ok
        else None
    )
    caps = evidence.list("/dev/nvidia-caps") if listing.ok and "nvidia-caps" in listing.entries else None
    if nodes is not None and caps is not None:
        errors.unanswered(caps)
        nodes.update({"nvidia-caps/" + name: entry for name, entry in caps.entries.items()})
    majors = _majors(evidence, errors)
    minors = gpu_minors(evidence, errors)
    opens = {name: _opens(evidence, errors, name, nodes, majors) for name in ("nvidiactl", "nvidia-uvm")}
    asked = evidence.run(ACCESS_COMMAND, 10.0) if nodes else None
    access = _access(asked)
    missing = None if nodes is None else _missing(nodes, majors, minors)
    nodes_unread = caps is not None and not caps.ok
    return {
        "nodes": None if nodes is None else {name: _fields(entry) for name, entry in nodes.items()},
        "majors": majors,
        "gpu_minors": minors,
        "missing": missing,
        "missing_control": None if missing is None else [name for name in missing if not name[-1].isdigit()],
        "no_gpu_node": None
        if nodes is None or minors is None
        else bool(minors) and not any(_is_gpu_node(name) for name in nodes),
        "stale": None if nodes is None or majors is None else _stale(nodes, majors, nodes_unread),
        "opens": opens,
        "refused": None if nodes is None else _refused(nodes, opens),
        "access": access,
        "unusable": None
        if nodes is None
        else _unusable(nodes, majors, opens, _file_mode(evidence, errors), access, _is_unanswered(asked)),
    }


def _refused(nodes: dict[str, Entry], opens: dict[str, bool | None]) -> list[str] | None:
    found = Offenders()
    for name, works in opens.items():
        mode = nodes[name].mode if name in nodes else None
        found.judge(works is False and mode is not None and mode & _DEFAULT_MODE == _DEFAULT_MODE, name)
        if works is None and name in nodes:
            found.unread()
    return found.listed()


def gpu_minors(evidence: Evidence, errors: Errors) -> dict[str, int | None] | None:
    """PCI address -> device minor of every GPU that the driver holds; {} without a driver; None when unknown."""
    gpus = evidence.list(GPUS)
    if gpus.status == ABSENT:
        return {}
    errors.unanswered(gpus)
    if not gpus.ok:
        return None
    found: dict[str, int | None] = {}
    for address in gpus.entries:
        fields = read_information(evidence, errors, address)
        found[address.lower()] = errors.read_whole(
            "%s/%s/information" % (GPUS, address), "Device Minor", fields.get("Device Minor")
        )
    return found


def read_information(evidence: Evidence, errors: Errors, address: str) -> dict[str, str]:
    """Fields of /proc/driver/nvidia/gpus/ADDRESS/information.

    Model, GPU UUID, Device Minor, GPU Firmware, GPU Excluded, …
    """
    reading = evidence.read("%s/%s/information" % (GPUS, address))
    errors.unanswered(reading)
    pairs = (line.partition(":") for line in (reading.text if reading.ok else "").splitlines())
    return {name.strip(): value.strip() for name, colon, value in pairs if colon}


def _fields(entry: Entry) -> dict[str, Any]:
    return {
        "kind": entry.kind,
        "major": entry.major,
        "minor": entry.minor,
        "mode": entry.mode,
        "uid": entry.uid,
        "gid": entry.gid,
    }


def _majors(evidence: Evidence, errors: Errors) -> dict[str, int | None] | None:
    reading = evidence.read("/proc/devices")
    errors.unanswered(reading)
    if not reading.ok:
        return None
    registered: dict[str, int] = {}
    characters, _block, _rest = reading.text.partition("Block devices:")
    for line in characters.splitlines():
        number, _space, name = line.strip().partition(" ")
        if not name.strip().startswith("nvidia"):
            continue
        major = errors.read_whole(reading.path, "the major number of %s" % name.strip(), number)
        if major is not None:
            registered.setdefault(name.strip(), major)
    return {
        key: next((registered[name] for name in names if name in registered), None)
        for key, names in _REGISTERED.items()
    }


def _missing(
    nodes: dict[str, Entry], majors: dict[str, int | None] | None, minors: dict[str, int | None] | None
) -> list[str] | None:
    """Nothing is missing where the driver is not loaded or holds no GPU."""
    if minors == {}:
        return []
    found = Offenders(unknown=minors is None)
    for minor in sorted(minor for minor in (minors or {}).values() if minor is not None):
        found.judge("nvidia%d" % minor not in nodes, "nvidia%d" % minor)
    if None in (minors or {}).values():
        found.unread()
    if minors:
        found.judge("nvidiactl" not in nodes, "nvidiactl")
        with_uvm = None if majors is None else majors["nvidia_uvm"] is not None
        found.judge("nvidia-uvm" not in nodes and with_uvm, "nvidia-uvm")
    return found.listed()


def _stale(nodes: dict[str, Entry], majors: dict[str, int | None], unread: bool) -> list[dict[str, Any]] | None:
    found = Offenders(unread)
    for name, entry in nodes.items():
        owner = _owner(name)
        registered = majors[owner] if owner else None
        if entry.kind == "char" and registered is not None and entry.major != registered:
            text = "/dev/%s has major %s, the kernel registered %s" % (name, entry.major, registered)
            found.judge(True, {"name": name, "major": entry.major, "registered": registered, "text": text})
    return found.listed()


def _is_gpu_node(name: str) -> bool:
    return name.startswith("nvidia") and values.is_digits(name[len("nvidia") :])


def _owner(name: str) -> str | None:
    """Which of `_REGISTERED` a node belongs to.

    None for a node of another module, whose number has nothing to do with these.
    """
    if _is_gpu_node(name) or name in ("nvidiactl", "nvidia-modeset"):
        return "nvidia"
    kinds = {
        "nvidia-uvm": "nvidia_uvm",
        "nvidia-caps/": "nvidia_caps",
        "nvidia-nvswitch": "nvidia_nvswitch",
        "nvidia-nvlink": "nvidia_nvlink",
    }
    return next((owner for prefix, owner in kinds.items() if name.startswith(prefix)), None)


def _opens(
    evidence: Evidence,
    errors: Errors,
    name: str,
    nodes: dict[str, Entry] | None,
    majors: dict[str, int | None] | None,
) -> bool | None:
    """Whether this user can open the node.

    Only tried where the kernel has the major: otherwise opening would load a module.

    These two start nothing on a GPU when opened. The driver has no read(), so after a successful open() the read fails
    with EINVAL; a container's device policy refuses the open() itself.
    """
    if nodes is None or name not in nodes or majors is None or not _is_current(name, nodes, majors):
        return None
    reading = evidence.read("/dev/" + name, 1)
    if reading.status not in (OK, DENIED, FAILED):
        errors.unanswered(reading)
    if reading.status == OK or (reading.status == FAILED and reading.reason == "Invalid argument"):
        return True
    return False if reading.status in (DENIED, FAILED) else None


def _is_unanswered(asked: Outcome | None) -> bool:
    """Whether it was asked and no answer came; a bundle from before it was asked has none to give."""
    return asked is not None and not asked.succeeded and asked.status not in (NOT_CAPTURED, ABSENT)


def _access(asked: Outcome | None) -> dict[str, str] | None:
    if asked is None or not asked.succeeded:
        return None
    words = (line.split() for line in asked.text.splitlines())
    return {item[0][len("/dev/") :]: item[1].replace("-", "") for item in words if len(item) == 2}


def _file_mode(evidence: Evidence, errors: Errors) -> int | None:
    """The mode that the driver gives its nodes (NVreg_DeviceFileMode); None if it cannot be read."""
    reading = evidence.read("/proc/driver/nvidia/params")
    errors.unanswered(reading, absent_is_fine=True)
    if not reading.ok and reading.status != ABSENT:
        return None
    for line in reading.text.splitlines():
        name, _colon, value = line.partition(": ")
        if name == "DeviceFileMode":
            return errors.read_whole(reading.path, name, value)
    return _DEFAULT_MODE


def _unusable(
    nodes: dict[str, Entry],
    majors: dict[str, int | None] | None,
    opens: dict[str, bool | None],
    mode: int | None,
    access: dict[str, str] | None,
    access_unanswered: bool,
) -> list[dict[str, str]] | None:
    found = Offenders(unknown=access_unanswered)

    def judge(name: str, offends: bool | None, why: str) -> None:
        found.judge(offends, {"name": name, "why": why, "text": "/dev/%s %s" % (name, why)})

    for name, works in opens.items():
        if works is None and name in nodes and (majors is None or _is_current(name, nodes, majors)):
            found.unread()  # it was tried, or it is unknown whether it would have been
        judge(name, works is False, "cannot be opened")
    for name, entry in nodes.items():
        if opens.get(name) is False or _owner(name) not in ("nvidia", "nvidia_uvm"):
            continue
        if entry.kind != "char":
            judge(name, True, "is no device but a %s" % entry.kind)
        elif entry.mode is None or mode is None:
            found.unread()
        elif entry.mode & mode != mode:
            judge(name, True, "has mode %04o, the driver gives %04o" % (entry.mode, mode))
        elif (access or {}).get(name, "rw") != "rw":
            # The mode allows it: what forbids it is the device rule of a container.
            only = {"r": "reading", "w": "writing"}.get((access or {})[name])
            rule = "is open for %s only, by a device rule" % only if only else "is forbidden by a device rule"
            judge(name, True, rule)
    return found.listed()


def _is_current(name: str, nodes: dict[str, Entry], majors: dict[str, int | None]) -> bool:
    """Whether a node is a device of the number that the kernel has registered for it now."""
    return nodes[name].kind == "char" and nodes[name].major == majors[_owner(name) or "nvidia"]
