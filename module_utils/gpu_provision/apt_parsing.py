"""What apt and dpkg print, read into plain values (all with LC_ALL=C)."""

from __future__ import annotations

import re
from fnmatch import fnmatch
from typing import Any

# Inst nvidia-smi [580.65.06-1] (580.95.05-1 NVIDIA:stable [amd64]) [] / Remv libcuda1 [580.65.06-1]
_STEP = re.compile(r"^(Inst|Remv|Purg) (\S+)(?: \[([^\]]*)\])?(?: \((\S+)(?: ([^)]*))?\))?")
_NEED = re.compile(r"Need to get ([\d.,]+) ?([kMG]?B)(?:/([\d.,]+) ?([kMG]?B))? of archives")
_AFTER = re.compile(
    r"After this operation, ([\d.,]+) ?([kMG]?B) (of additional disk space will be used|disk space will be freed)"
)
_UNITS = {"B": 1, "kB": 1000, "MB": 1000**2, "GB": 1000**3}
DPKG_QUERY = [
    "dpkg-query",
    "-W",
    "-f=${Package}\\t${Version}\\t${db:Status-Want}\\t${db:Status-Status}\\t${Architecture}\\n",
]


def parse_installed(text: str) -> dict[str, dict[str, Any]]:
    """Installed packages of a DPKG_QUERY output: name -> {version, held, broken, halfway}.

    `broken`: not configured; `halfway`: not even its files are all there, so that it has to be installed once more.
    Configuration remains do not count.
    """
    found = {}
    for line in text.splitlines():
        fields = line.split("\t")
        if len(fields) < 4 or fields[3] in ("not-installed", "config-files"):
            continue
        found[fields[0]] = {
            "version": fields[1],
            "held": fields[2] == "hold",
            "broken": fields[3] != "installed",
            "halfway": fields[3] == "half-installed",
        }
    return found


def parse_steps(text: str, before: dict[str, dict[str, Any]]) -> list[dict[str, Any]]:
    """The steps of an `apt-get -s` output: {action, package, from, to}.

    Action is install, upgrade, downgrade, remove.
    """
    found = []
    for line in text.splitlines():
        match = _STEP.match(line)
        if not match:
            continue
        verb, package, old, new, _rest = match.groups()
        old = old or before.get(package, {}).get("version")
        action = (
            "remove"
            if verb != "Inst"
            else "install"
            if not old
            else "upgrade"
            if is_newer(new or "", old)
            else "downgrade"
            if is_newer(old, new or "")
            else "reinstall"
        )
        found.append({"action": action, "package": package, "from": old, "to": new if verb == "Inst" else None})
    return found


def parse_sizes(text: str) -> tuple[int | None, int | None]:
    """(bytes to download, bytes more on disk afterwards; negative when space is freed); None where apt does not say."""
    need, after = _NEED.search(text), _AFTER.search(text)
    download = _bytes(need.group(1), need.group(2)) if need else None
    disk = _bytes(after.group(1), after.group(2)) * (1 if "additional" in after.group(3) else -1) if after else None
    return download, disk


def _bytes(number: str, unit: str) -> int:
    return int(float(number.replace(",", "")) * _UNITS[unit])


def find_problem(text: str) -> str:
    """The lines of apt's output that say what is wrong, joined; the last lines when none is marked."""
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    marked = [
        line
        for line in lines
        if line.startswith(("E:", "Err:", "W: GPG", "W: OpenPGP"))
        or "unmet" in line
        or "Depends:" in line
        or "is not going to be" in line
    ]
    return " ".join(dict.fromkeys(line[:300] for line in (marked or lines[-3:])[:6]))


def find_failed_script(text: str, limit: int = 4) -> str:
    """What a package's own script printed before dpkg gave up on it, in one line; empty where no package failed.

    dpkg itself says only "installed X package post-installation script subprocess returned error exit status 1".
    """
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    failures = [number for number, line in enumerate(lines) if line.startswith("dpkg: error processing")]
    if not failures:
        return ""
    # The last run of dpkg counts, and in it the first package: the others wait for it.
    begin = max((number for number in range(failures[-1]) if lines[number].startswith("Log started:")), default=0)
    at = next(number for number in failures if number >= begin)
    package = re.match(r"dpkg: error processing (?:package|archive) (\S+)", lines[at])
    said: list[str] = []
    for line in reversed(lines[begin:at]):
        if line.startswith(("Setting up ", "Unpacking ", "Preparing to unpack", "Processing triggers", "dpkg: error")):
            break
        said.insert(0, line[:300])
    reason = lines[at + 1][:300] if at + 1 < len(lines) else "no reason given"
    return "%s: %s" % (package.group(1) if package else "a package", " | ".join([*said[-limit:], reason]))


def upstream_version(version: str) -> str:
    """The upstream part of a Debian version: '1:580.95.05-0ubuntu1' -> '580.95.05'."""
    return (
        version.partition(":")[2].rpartition("-")[0] or version.partition(":")[2]
        if ":" in version
        else version.rpartition("-")[0] or version
    )


def version_fits(version: str, wanted: str) -> bool:
    """Whether a Debian version belongs to a branch ('580') or is an exact driver version ('580.95.05')."""
    own = upstream_version(version)
    return own == wanted or own.startswith(wanted + ".")


def matches_pattern(name: str, patterns: list[str]) -> bool:
    return any(fnmatch(name, pattern) for pattern in patterns)


def is_newer(left: str, right: str) -> bool:
    """Whether Debian version `left` sorts after `right` (deb-version(7))."""
    return _key(left) > _key(right)


def _key(version: str) -> tuple[int, list[Any], list[Any]]:
    epoch, colon, rest = version.partition(":")
    if not colon:
        epoch, rest = "0", version
    own, dash, revision = rest.rpartition("-")
    if not dash:
        own, revision = rest, "0"
    return int(epoch) if epoch.isdigit() else 0, _part_key(own), _part_key(revision)


def _part_key(text: str) -> list[Any]:
    """Alternating non-digit and digit parts; a tilde sorts before the end, letters before other signs."""
    key: list[Any] = []
    for letters, digits in re.findall(r"(\D*)(\d*)", text):
        if letters or digits:
            key.append(
                [(-1 if sign == "~" else ord(sign) if sign.isalpha() else ord(sign) + 256) for sign in letters] + [0]
            )
            key.append([int(digits or 0)])
    return [*key, [0]]
