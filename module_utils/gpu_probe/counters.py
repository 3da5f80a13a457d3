"""What the links and the kernel counted while a phase of the probe ran.

From NVML (replays and NVLink errors), the kernel's counters of PCI Express errors (sysfs) of each GPU and of the
bridges above it, and what the kernel wrote about GPUs and PCI Express into its log in that time.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from typing import Any

from . import places
from .nvml import Nvml

_AER = {"correctable": "aer_dev_correctable", "nonfatal": "aer_dev_nonfatal", "fatal": "aer_dev_fatal"}
_LOG = "/dev/kmsg"
_TELLING = ("NVRM", "nvidia", "AER", "PCIe Bus Error", "pcieport", "DMAR", "AMD-Vi", "IO_PAGE_FAULT")
_MOST_LINES, _LONGEST = 12, 300


class Counters:
    """Call `compare` at the end of each phase: what grew since the call before it."""

    def __init__(self, addresses: Iterable[str], paths: dict[str, list[str]], root: str = "/sys") -> None:
        self._nvml = Nvml()
        self._root = root
        self._gpus = sorted(addresses)
        self._devices = sorted({*self._gpus, *(bridge for path in paths.values() for bridge in path)})
        self._log = _open_log()
        self._before = self._read()

    def describe_sources(self) -> dict[str, Any]:
        """``{nvml, aer, log}``: None where it answers, else why it does not."""
        counted = any(self._before["aer"].values())
        return {
            "nvml": self._nvml.error,
            "aer": None if counted else "the kernel shows no counters of PCI Express errors here",
            "log": None if self._log is not None else "%s is not readable" % _LOG,
        }

    def have_nvlink(self, addresses: Iterable[str]) -> bool:
        """Whether each of these GPUs has an active NVLink; True where NVML does not say."""
        return all(self._nvml.has_active_links(address) is not False for address in addresses)

    def compare(self) -> dict[str, Any]:
        """``{gpus: {address: {replays, nvlink, nvlink_counters, brakes, generation}}, aer: {address: {"correctable
        BadTLP": count}}, log: [line]}``.

        Growth, counts above 0 only; None where it is not known. `nvlink_counters`: how many were compared.
        """
        now, before = self._read(), self._before
        self._before = now
        found: dict[str, Any] = {"gpus": {}, "aer": {}, "log": self._new_lines()}
        for address in self._gpus:
            one, other = now["gpus"][address], before["gpus"][address]
            grown: dict[str, Any] = {"nvlink": None, "nvlink_counters": None}
            if "replays" in one:
                both = (one["replays"], other.get("replays"))
                grown["replays"] = None if None in both else max(0, both[0] - both[1])
            if one["nvlink"] is not None and other["nvlink"] is not None:
                grown["nvlink"] = _grown(one["nvlink"], other["nvlink"])
                grown["nvlink_counters"] = len(one["nvlink"])
            found["gpus"][address] = {**one, **grown}
        for address in self._devices:
            errors = _grown(now["aer"][address], before["aer"][address])
            if errors:
                found["aer"][address] = errors
        return found

    def _read(self) -> dict[str, Any]:
        return {
            "gpus": {address: self._nvml.read_counters(address) for address in self._gpus},
            "aer": {address: self._read_aer(address) for address in self._devices},
        }

    def _read_aer(self, address: str) -> dict[str, int]:
        found = {}
        for kind, name in _AER.items():
            for line in places.read_text(os.path.join(self._root, "bus/pci/devices", address, name)).splitlines():
                word, _, count = line.partition(" ")
                if count.strip().isdigit() and not word.startswith("TOTAL"):
                    found["%s %s" % (kind, word)] = int(count)
        return found

    def _new_lines(self) -> list[str] | None:
        if self._log is None:
            return None
        lines: list[str] = []
        while True:
            try:
                record = os.read(self._log, 8192)
            except BrokenPipeError:
                continue  # the kernel overwrote what was not read yet
            except OSError:
                return lines[:_MOST_LINES]
            if not record:
                return lines[:_MOST_LINES]
            text = record.decode("utf-8", "replace").partition(";")[2].split("\n")[0]
            if any(word in text for word in _TELLING):
                lines.append("".join(char if char.isprintable() else "?" for char in text)[:_LONGEST])


def _grown(now: dict[str, int], before: dict[str, int]) -> dict[str, int]:
    return {name: count - before.get(name, 0) for name, count in now.items() if count > before.get(name, 0)}


def _open_log() -> int | None:
    """The kernel's log, from its end on."""
    try:
        log = os.open(_LOG, os.O_RDONLY | os.O_NONBLOCK)
    except OSError:
        return None
    try:
        os.lseek(log, 0, os.SEEK_END)
        os.read(log, 8192)
    except BlockingIOError:
        return log
    except OSError:
        os.close(log)
        return None
    return log
