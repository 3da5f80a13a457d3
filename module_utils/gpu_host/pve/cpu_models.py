"""Custom CPU models of a Proxmox cluster, /etc/pve/virtual-guest/cpu-models.conf.

Source: PVE::QemuServer::CPUConfig.
"""

from __future__ import annotations

import re

FILE = "/etc/pve/virtual-guest/cpu-models.conf"
_HEADER = re.compile(r"cpu-model:\s*(\S+)\s*$")
_LINE = re.compile(r"\s+(\S+)(?:\s+(.*\S))?\s*$")


def parse_models(text: str) -> dict[str, dict[str, str]]:
    """Name without `custom-` -> its properties (`reported-model`, `hidden`, `flags`, `phys-bits` …)."""
    result: dict[str, dict[str, str]] = {}
    current: dict[str, str] | None = None
    for line in text.split("\n"):
        header = _HEADER.match(line)
        if header:
            current = result.setdefault(header.group(1), {})
            continue
        setting = _LINE.match(line)
        if not line.strip():
            current = None
        elif setting and current is not None and not line.lstrip().startswith("#"):
            current.setdefault(setting.group(1), setting.group(2) or "")
    return result
