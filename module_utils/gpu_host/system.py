"""The system under the GPUs.

NUMA nodes, memory, /dev/shm, locked-memory limit, NUMA balancing, CPU frequency governor, release.
"""

from __future__ import annotations

import re
from typing import Any

from .evidence.errors import Errors
from .evidence.interface import ABSENT, Evidence

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
        total = re.search(r"MemTotal:\s+(\d+) kB", memory.text)
        nodes[name[4:]] = {
            "cpus": cpus.text.strip() if cpus.ok else None,
            "memory_mib": int(total.group(1)) // 1024 if total else None,
        }
    return nodes


def _memory(evidence: Evidence, errors: Errors) -> int | None:
    reading = evidence.read("/proc/meminfo")
    errors.unanswered(reading)
    total = re.search(r"^MemTotal:\s+(\d+) kB", reading.text, re.M)
    return int(total.group(1)) // 1024 if total else None


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
    numbers = outcome.text.splitlines()[-1].split() if outcome.ok and outcome.rc == 0 and outcome.text.strip() else []
    if len(numbers) >= 6 and numbers[-1] == DEV_SHM and numbers[-5].isdigit() and numbers[-3].isdigit():
        found["size_mib"], found["available_mib"] = int(numbers[-5]) // 1024, int(numbers[-3]) // 1024
        return found
    size = re.search(r"(?:^|,)size=(\d+)([kmgtKMGT]?)(?:,|$)", options)
    if size:
        found["size_mib"] = int(size.group(1)) * UNIT_BYTES[size.group(2).upper()] >> 20
    elif found["mounted"] is not False:
        errors.unanswered(outcome)
    return found


def _limit(evidence: Evidence, path: str, errors: Errors) -> int | str | None:
    reading = evidence.read(path)
    errors.unanswered(reading)
    row = re.search(r"^Max locked memory\s+(\d+|unlimited)\s", reading.text, re.M)
    if row is None:
        return None
    return UNLIMITED if row.group(1) == UNLIMITED else int(row.group(1)) // 1024


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
        for name in sorted(evidence.list(directory).entries):
            if name.endswith(".conf"):
                drop_ins[name] = directory
    texts += [evidence.read("%s/%s" % (directory, name)).text for name, directory in sorted(drop_ins.items())]
    values = [value for text in texts for value in re.findall(r"^\s*DefaultLimitMEMLOCK\s*=\s*(\S*)", text, re.M)]
    return values[-1] if values else ("" if known else None)


def _numa_balancing(evidence: Evidence, errors: Errors) -> bool | None:
    reading = evidence.read("/proc/sys/kernel/numa_balancing")
    if reading.status == ABSENT:
        return False  # a kernel without it cannot balance
    errors.unanswered(reading)
    word = reading.text.strip()
    return word != "0" if word.isdigit() else None


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
    values = dict(re.findall(r'^([A-Z_]+)="?([^"\n]*)"?$', reading.text, re.M))
    return {"id": values.get("ID"), "version": values.get("VERSION_ID"), "name": values.get("PRETTY_NAME")}


def _uptime(evidence: Evidence, errors: Errors) -> float | None:
    reading = evidence.read("/proc/uptime")
    errors.unanswered(reading)
    match = re.match(r"(\d+(?:\.\d+)?) ", reading.text)
    return float(match.group(1)) if match else None


def _booted_at(evidence: Evidence, errors: Errors) -> int | None:
    reading = evidence.read("/proc/stat")
    errors.unanswered(reading)
    match = re.search(r"^btime (\d+)$", reading.text, re.M)
    return int(match.group(1)) if match else None
