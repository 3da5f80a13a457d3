"""Which system a host runs, as the tables of the roles name it, and which kernel headers it needs."""

from __future__ import annotations

import os
import platform
import re
from typing import Any

# What os-release calls the systems that have RHEL's packages under RHEL's versions.
RHEL_REBUILDS = ("rhel", "rocky", "almalinux", "centos", "ol")


# What NVIDIA's repositories call an architecture: `sbsa` for arm64 servers, under apt and dnf alike.
NVIDIA_ARCHITECTURES = {"aarch64": "sbsa"}


class PlanError(Exception):
    """Why nothing can be done; the message says what to do instead."""


def read_system(root: str = "/", packages: dict[str, dict[str, Any]] | None = None) -> dict[str, Any]:
    """``{key, label, distribution, codename, architecture, kernel}`` of this host.

    Key as in the tables: debian12, ubuntu2404, pve9, rhel10; distribution is the ID of os-release.
    """
    values = {}
    for name in ("etc/os-release", "usr/lib/os-release"):
        try:
            with open(os.path.join(root, name), encoding="utf-8", errors="replace") as handle:
                pairs = (line.rstrip("\n").partition("=") for line in handle)
                values = {key: value.strip("\"'") for key, _equals, value in pairs}
            break
        except OSError:
            continue
    distribution, version = values.get("ID", "unknown"), values.get("VERSION_ID", "")
    if distribution in RHEL_REBUILDS:
        distribution, version = "rhel", version.partition(".")[0]
    key, label = distribution + version.replace(".", ""), values.get("PRETTY_NAME") or "an unknown system"
    manager = (packages or {}).get("pve-manager")
    if manager:
        key, label = "pve" + manager["version"].partition(".")[0], "Proxmox VE " + manager["version"]
    return {
        "key": key,
        "label": label,
        "distribution": values.get("ID", ""),
        "codename": values.get("VERSION_CODENAME", ""),
        "architecture": platform.machine(),
        "kernel": _read_kernel(root),
    }


def _read_kernel(root: str) -> str:
    """The release of the running kernel."""
    try:
        with open(os.path.join(root, "proc/sys/kernel/osrelease"), encoding="utf-8", errors="replace") as handle:
            return handle.read().strip() or platform.release()
    except OSError:
        return platform.release()


def choose_system(own: dict[str, Any], table: dict[str, Any]) -> dict[str, Any]:
    """The entry of the table for this host. PlanError lists what is supported."""
    entry = table.get(own["key"])
    states = {True: "", False: " (untested)", "rebuilt": " (tried on a rebuilt archive)"}
    supported = ", ".join("%s%s" % (row["label"], states.get(row.get("tested", True), "")) for row in table.values())
    if entry is None:
        raise PlanError("%s is not supported. Supported are: %s." % (own["label"], supported))
    architectures = entry.get("architectures", ["x86_64"])
    if own["architecture"] not in architectures:
        raise PlanError(
            "the architecture %s of this host is not supported on %s; supported: %s."
            % (own["architecture"], entry["label"], ", ".join(architectures))
        )
    return dict(entry)


def fill_architecture(repository: dict[str, Any], architecture: str) -> dict[str, Any]:
    """The repository of the table with `{arch}` in its addresses filled in for this architecture."""
    name = NVIDIA_ARCHITECTURES.get(architecture, architecture)
    return {
        key: value.replace("{arch}", name) if isinstance(value, str) else value for key, value in repository.items()
    }


def choose_headers(own: dict[str, Any], packages: dict[str, dict[str, Any]]) -> dict[str, list[str]]:
    """Kernel header packages: `running` for the kernel that runs, `coming` for those that upgrades will bring.

    A kernel meta package such as linux-image-amd64 or proxmox-default-kernel names its headers; without the meta
    package of the headers, the next kernel comes up without an NVIDIA module.
    """
    kernel = own["kernel"]
    coming = []
    for name in sorted(packages):
        if re.fullmatch(r"linux-image-(?!.*\d\.\d+\.\d).*", name) and not name.endswith(("-dbg", "-dbgsym")):
            coming.append(name.replace("linux-image-", "linux-headers-", 1))
        elif name == "proxmox-default-kernel":
            coming.append("proxmox-default-headers")
        elif re.fullmatch(r"proxmox-kernel-\d+\.\d+", name):
            coming.append(name.replace("-kernel-", "-headers-", 1))
    prefix = "proxmox-headers-" if kernel.endswith("-pve") else "linux-headers-"
    if "pve-kernel-" + kernel in packages:  # the names before Proxmox VE 8.1
        prefix = "pve-headers-"
    return {"running": [prefix + kernel], "coming": coming}
