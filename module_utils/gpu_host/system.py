"""The system under the GPUs.

NUMA nodes, memory, /dev/shm, locked-memory limit, NUMA balancing, CPU frequency governor, release.
"""

from __future__ import annotations

import re
from typing import Any

from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence, Reading

DEV_SHM = "/dev/shm"  # noqa: S108  the mount is looked at, nothing is written there
COMMANDS = [(["df", "-kP", DEV_SHM], 10.0)]
NODES = "/sys/devices/system/node"
POLICIES = "/sys/devices/system/cpu/cpufreq"
SYSTEMD_FILES = ("/etc/systemd/system.conf", "/usr/lib/systemd/system.conf")
SYSTEMD_DROP_INS = ("/etc/systemd/system.conf.d", "/run/systemd/system.conf.d", "/usr/lib/systemd/system.conf.d")
UNLIMITED = "unlimited"
UNIT_BYTES = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """The facts:

    - ``numa_nodes``: {number: {cpus: "0-31", memory_mib}}; ``memory_mib``: total
    - ``dev_shm``: {mounted, size_mib, available_mib, filesystem}
    - ``memlock``: {own_kib, init_kib, systemd_default}: soft limits in KiB or "unlimited"; systemd_default as written,
      "" if not set
    - ``numa_balancing``: True | False; ``cpu_governors``: [name], [] where the kernel offers none (as in a virtual
      machine)
    - ``os``: {id, version, name}; ``uptime_s``, ``booted_at`` (seconds since the epoch)
    """
    return {
        "numa_nodes": _numa_nodes(evidence, errors),
        "memory_mib": _memory(evidence, errors),
        "dev_shm": _dev_shm(evidence, errors),
        "memlock": {
            "own_kib": _limit(evidence, "/proc/self/limits", errors),
            "init_kib": _limit(evidence, "/proc/1/limits", errors),
            "systemd_default": _systemd_default(evidence, errors),
        },
        "numa_balancing": _numa_balancing(evidence, errors),
        "cpu_governors": _governors(evidence, errors),
        "os": _release(evidence, errors),
        "uptime_s": _uptime(evidence, errors),
        "booted_at": _booted_at(evidence, errors),
    }


def _numa_nodes(evidence: Evidence, errors: Errors) -> dict[str, dict[str, Any]] | None:
    listing = evidence.list(NODES)
    if not listing.ok:
        errors.unanswered(listing, absent_is_fine=True)  # a kernel without NUMA has no such directory
        return {} if listing.status == ABSENT else None
    nodes = {}
    for name in sorted(listing.entries, key=lambda name: (len(name), name)):
        if not re.fullmatch(r"node\d+", name):
            continue
        cpus = evidence.read("%s/%s/cpulist" % (NODES, name))
        memory = evidence.read("%s/%s/meminfo" % (NODES, name))
        errors.unanswered(cpus)
        errors.unanswered(memory)
        nodes[name[4:]] = {
            "cpus": cpus.text.strip() if cpus.ok else None,
            "memory_mib": _total_mib(memory, errors),
        }
    return nodes


def _memory(evidence: Evidence, errors: Errors) -> int | None:
    reading = evidence.read("/proc/meminfo")
    errors.unanswered(reading)
    return _total_mib(reading, errors)


def _total_mib(reading: Reading, errors: Errors) -> int | None:
    total = re.search(r"\bMemTotal:\s+(\S+)", reading.text) if reading.ok else None
    kib = errors.read_whole(reading.path, "MemTotal", total.group(1)) if total else None
    return None if kib is None else kib // 1024


def _dev_shm(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    found: dict[str, Any] = {"mounted": None, "size_mib": None, "available_mib": None, "filesystem": None}
    mounts = evidence.read("/proc/mounts")
    errors.unanswered(mounts)
    options = ""
    if mounts.ok:
        # The last mount on a path is the one that is seen.
        rows = [
            row for row in (line.split() for line in mounts.text.splitlines()) if len(row) >= 4 and row[1] == DEV_SHM
        ]
        found["mounted"] = bool(rows)
        if rows:
            found["filesystem"], options = rows[-1][2], rows[-1][3]
    outcome = evidence.run(["df", "-kP", DEV_SHM], 10.0)
    numbers = outcome.text.splitlines()[-1].split() if outcome.succeeded and outcome.text.strip() else []
    if len(numbers) >= 6 and numbers[-1] == DEV_SHM:
        size = errors.read_whole("df -kP " + DEV_SHM, "its size", numbers[-5])
        available = errors.read_whole("df -kP " + DEV_SHM, "what is available of it", numbers[-3])
        found["size_mib"] = None if size is None else size // 1024
        found["available_mib"] = None if available is None else available // 1024
        return found
    option = re.search(r"(?:^|,)size=([0-9]+)([kmgtKMGT]?)(?:,|$)", options)
    amount = values.whole_number(option.group(1)) if option else None
    if option and amount is not None and outcome.status == ABSENT:
        found["size_mib"] = amount * UNIT_BYTES[option.group(2).upper()] >> 20
    elif found["mounted"] is not False:
        errors.unsuccessful(outcome)
    return found


def _limit(evidence: Evidence, path: str, errors: Errors) -> int | str | None:
    reading = evidence.read(path)
    errors.unanswered(reading)
    row = re.search(r"^Max locked memory\s+(\S+)\s", reading.text, re.M) if reading.ok else None
    if row is None:
        return None
    if row.group(1) == UNLIMITED:
        return UNLIMITED
    limit = errors.read_whole(path, "Max locked memory", row.group(1))
    return None if limit is None else limit // 1024


def _systemd_default(evidence: Evidence, errors: Errors) -> str | None:
    """DefaultLimitMEMLOCK= of systemd, from the file or drop-in that is read last; "" if nothing sets it."""
    texts = []
    known = True
    for path in SYSTEMD_FILES:
        reading = evidence.read(path)
        if reading.ok:
            texts.append(reading.text)
            break
        errors.unanswered(reading, absent_is_fine=True)
        known = known and reading.status == ABSENT
    drop_ins: dict[str, str] = {}
    for directory in reversed(SYSTEMD_DROP_INS):  # one in /etc hides its namesake elsewhere
        listing = evidence.list(directory)
        errors.unanswered(listing, absent_is_fine=True)
        known = known and (listing.ok or listing.status == ABSENT)
        for name in sorted(listing.entries):
            if name.endswith(".conf"):
                drop_ins[name] = directory
    for name, directory in sorted(drop_ins.items()):
        reading = evidence.read("%s/%s" % (directory, name))
        errors.unanswered(reading)
        known = known and reading.ok
        texts.append(reading.text)
    set_to = [value for text in texts for value in re.findall(r"^\s*DefaultLimitMEMLOCK\s*=\s*(\S*)", text, re.M)]
    return None if not known else set_to[-1] if set_to else ""


def _numa_balancing(evidence: Evidence, errors: Errors) -> bool | None:
    reading = evidence.read("/proc/sys/kernel/numa_balancing")
    if reading.status == ABSENT:
        return False  # a kernel without it cannot balance
    errors.unanswered(reading)
    number = errors.read_whole(reading.path, "it", reading.text) if reading.ok else None
    return None if number is None else number != 0


def _governors(evidence: Evidence, errors: Errors) -> list[str] | None:
    listing = evidence.list(POLICIES)
    if not listing.ok:
        errors.unanswered(listing, absent_is_fine=True)
        return [] if listing.status == ABSENT else None
    found = set()
    for name in sorted(listing.entries):
        if not name.startswith("policy"):
            continue
        reading = evidence.read("%s/%s/scaling_governor" % (POLICIES, name))
        errors.unanswered(reading)
        if not reading.ok:
            return None
        found.add(reading.text.strip())
    return sorted(found)


def _release(evidence: Evidence, errors: Errors) -> dict[str, str | None]:
    reading = evidence.read("/etc/os-release")
    errors.unanswered(reading)
    fields = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', reading.text, re.M)) if reading.ok else {}
    return {"id": fields.get("ID"), "version": fields.get("VERSION_ID"), "name": fields.get("PRETTY_NAME")}


def _uptime(evidence: Evidence, errors: Errors) -> float | None:
    reading = evidence.read("/proc/uptime")
    errors.unanswered(reading)
    return errors.read_decimal(reading.path, "the uptime", (reading.text.split() or [""])[0]) if reading.ok else None


def _booted_at(evidence: Evidence, errors: Errors) -> int | None:
    reading = evidence.read("/proc/stat")
    errors.unanswered(reading)
    match = re.search(r"^btime (.+)$", reading.text, re.M) if reading.ok else None
    return errors.read_whole(reading.path, "btime", match.group(1)) if match else None
