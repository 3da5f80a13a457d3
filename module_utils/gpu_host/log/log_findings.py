"""Turns the lines of a kernel log into findings: what happened, to which device, how often, when first and last."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from ..pcie import gpu_addresses
from . import log_patterns, sxid, xid
from .log_lines import Line

TEXT_LIMIT = 300
# A hostile or broken log must not fill the memory: more different findings than this are only counted.
FINDINGS_LIMIT = 400
_MULTI_LINE_REACH = 4  # lines within which a message of several lines ends
_OOPS_REACH = 40  # of the lines that are looked at, so many may stand between an oops and the driver's frame in it


class Findings:
    """Takes lines in order through `add`; `result()` gives the findings at any time.

    `concerns_gpu(address)` says whether a PCI address belongs to a GPU or its path: True, False, or None for unknown.
    """

    def __init__(self, concerns_gpu: Callable[[str], bool | None]) -> None:
        self._concerns_gpu = concerns_gpu
        self._found: dict[tuple[str, str | None, str | None], dict[str, Any]] = {}
        self._nvidia_in_log: set[str] = set()
        self._assigned: set[tuple[str, str]] = set()  # BARs that got their place after all: (address, "BAR 1")
        self._subject: tuple[str, int, Line] | None = None  # "The NVIDIA GPU ADDRESS": address, line number, line
        self._mismatch: tuple[list[str], int, Line] | None = None
        self._all_clear: dict[str | None, int] = {}  # the line in which a GPU's recovery was said to be done
        self._oops: tuple[int, Line] | None = None  # the kernel stopped: line number, line
        self._number = 0
        self._last_begin = 0  # line of the last "Nvlink Core is being initialized": the driver starts to load
        self._loaded_from = 0  # the same of the last load that succeeded
        self.boot_seen = False
        self.dropped = 0

    def add(self, line: Line) -> None:
        self._number += 1
        text = line.text
        if "Linux version" in text and log_patterns.BOOT.search(text):
            self.boot_seen = True
        elif log_patterns.DRIVER_BEGINS in text:
            self._last_begin = self._number
        elif log_patterns.DRIVER_LOADED in text:
            self._loaded_from = self._last_begin
        elif not (self._kernel_oops(line) or self._several_lines(line) or self._kernel_bar(line)):
            self._one_line(line)

    def _kernel_oops(self, line: Line) -> bool:
        """Whether the line belongs to a fault of the kernel. It counts if the driver stands in its trace."""
        if log_patterns.OOPS.search(line.text):
            if self._oops is None or self._number - self._oops[0] > _OOPS_REACH:
                self._oops = (self._number, line)  # else a second line of the same one: "BUG: ...", then "Oops: ..."
            return True
        if self._oops is None:
            return False
        if log_patterns.OOPS_ENDS in line.text or self._number - self._oops[0] > _OOPS_REACH:
            self._oops = None
            return log_patterns.OOPS_ENDS in line.text
        frame = log_patterns.DRIVER_FRAME.match(line.text)
        if frame is None:
            return False
        what = self._oops[1]
        self._oops = None
        self._note("driver_oops", None, "%s [%s]" % (frame["code"], frame["module"]), what, detail=line.text)
        return True

    def _one_line(self, line: Line) -> None:
        for pattern in log_patterns.PATTERNS:
            match = pattern.regex.search(line.text) if pattern.word in line.text else None
            if match:
                groups = match.groupdict()
                address = gpu_addresses.normalise_address(groups.get("address") or "")
                code = groups.get("code")
                self._note(
                    pattern.kind,
                    address,
                    code,
                    line,
                    driver=groups.get("driver"),
                    rest=groups.get("rest"),
                    detail=groups.get("detail"),
                )
                return

    def _several_lines(self, line: Line) -> bool:
        text = line.text
        if "NVRM" not in text or "Xid (" in text:
            return False
        region = log_patterns.INVALID_REGION.search(text)
        if region:
            self._note(
                "bar_unassigned",
                gpu_addresses.normalise_address(region["address"]),
                "BAR " + region["bar"],
                line,
                driver="nvidia",
            )
            return True
        subject = log_patterns.THE_GPU.search(text)
        if subject:
            self._subject = (subject["address"], self._number, line)
        if self._subject and self._number - self._subject[1] <= _MULTI_LINE_REACH:
            for kind, ending in log_patterns.ENDINGS:
                if ending.search(text):
                    self._note(
                        kind,
                        gpu_addresses.normalise_address(self._subject[0]),
                        None,
                        self._subject[2],
                        driver="nvidia",
                        detail=text,
                    )
                    self._subject = None
                    return True
        if log_patterns.API_MISMATCH.search(text):
            self._mismatch = ([text], self._number, line)
        elif self._mismatch and self._number - self._mismatch[1] <= _MULTI_LINE_REACH:
            self._mismatch[0].append(text)
        else:
            return bool(subject)
        versions = log_patterns.HAS_VERSION.findall(" ".join(part.partition("NVRM: ")[2] for part in self._mismatch[0]))
        if len(versions) == 2:
            client, module = (version.rstrip(".") for version in versions)
            self._note(
                "api_mismatch",
                None,
                "%s, %s" % (client, module),
                self._mismatch[2],
                detail="client %s, module %s" % (client, module),
            )
            self._mismatch = None
        return True

    def _kernel_bar(self, line: Line) -> bool:
        if ": BAR " not in line.text and "[10de:" not in line.text:
            return False
        device = log_patterns.NVIDIA_DEVICE.search(line.text)
        if device:
            self._nvidia_in_log.add(gpu_addresses.normalise_address(device["address"]) or "")
            return True
        match = log_patterns.KERNEL_BAR.search(line.text)
        if not match:
            return False
        address, bar = gpu_addresses.normalise_address(match["address"]), "BAR " + match["bar"]
        if address and log_patterns.BAR_REFUSED.search(match["rest"]):
            self._assigned.discard((address, bar))
            self._note("bar_unassigned", address, bar, line)
        elif address and log_patterns.BAR_ASSIGNED.search(match["rest"]):
            self._assigned.add((address, bar))
        return True

    def _note(
        self,
        kind: str,
        address: str | None,
        code: str | None,
        line: Line,
        *,
        driver: str | None = None,
        rest: str | None = None,
        detail: str | None = None,
    ) -> None:
        key = (kind, address, code)
        finding = self._found.get(key)
        if finding is None:
            if len(self._found) >= FINDINGS_LIMIT:
                self.dropped += 1
                return
            finding = {
                "kind": kind,
                "address": address,
                "xid": int(code) if kind == "xid" and code else None,
                "code": code,
                "name": None,
                "severity": None,
                "action": log_patterns.KINDS[kind],
                "bucket": None,
                "investigate": None,
                "count": 0,
                "first": line.when,
                "text": line.text[:TEXT_LIMIT],
                "detail": detail[:TEXT_LIMIT] if detail else None,
                "driver": driver,
            }
            self._found[key] = finding
        finding["count"] += 1
        finding["last"] = line.when
        finding["_number"] = self._number
        if kind == "xid":
            row = xid.describe_xid(int(code or 0), rest or "")
            # Of a state that changes, such as the recovery action that is due, the newest line counts.
            if finding["severity"] != xid.FATAL or row.action == xid.STATE:
                finding.update(name=row.name, severity=row.severity, action=row.advice)
            if row.action == xid.STATE:
                finding.update(text=line.text[:TEXT_LIMIT])
                self._all_clear[address] = self._number if row.severity == xid.NOTICE else 0
            if finding["bucket"] is None:
                finding.update(bucket=row.bucket, investigate=row.investigate)
        elif kind == "sxid" and finding["severity"] != xid.FATAL:
            of_switch = sxid.describe_sxid(int(code or 0), rest or "")
            finding.update(name=of_switch.name, severity=of_switch.severity, action=of_switch.advice)

    def result(self) -> list[dict[str, Any]]:
        """The findings in the order of their first line. See `kernel_log.gather` for the keys."""
        findings = []
        for finding in self._found.values():
            bar = (finding["address"] or "", finding["code"] or "")
            if finding["kind"] == "bar_unassigned" and finding["driver"] is None and bar in self._assigned:
                continue  # refused at first, assigned when the kernel tried again
            ended = finding["kind"] in log_patterns.ENDED_BY_RELOAD and finding["_number"] < self._loaded_from
            by_kernel = finding["kind"] == "bar_unassigned" and finding["driver"] is None
            ended = (ended and not by_kernel) or self._is_recovered(finding)
            findings.append({**finding, "gpu": self._is_gpu(finding), "superseded": ended})
            del findings[-1]["_number"]
        for finding in findings:
            finding["consequence_of"] = _cause(finding, findings)
            finding["summary"] = summarise_log(finding)
        return findings

    def _is_recovered(self, finding: dict[str, Any]) -> bool:
        """Whether the driver said later that nothing is due for this GPU any more: the Xid that asked for a reset, and
        the recovery action that it led to, are over. Damage that a reset does not mend is not."""
        cleared = self._all_clear.get(finding["address"], 0)
        if finding["kind"] != "xid" or not cleared or finding["_number"] > cleared:
            return False
        return xid.describe_xid(finding["xid"] or 0).action in xid.ENDED_BY_RESET

    def _is_gpu(self, finding: dict[str, Any]) -> bool | None:
        """Whether the finding concerns a GPU; the driver's own messages always do."""
        if (
            finding["driver"] == "nvidia"
            or finding["address"] is None
            or finding["text"].startswith(("NVRM", "nvidia"))
        ):
            return True
        if finding["address"] in self._nvidia_in_log:
            return True
        known = self._concerns_gpu(finding["address"])
        if known is None and finding["driver"] not in (None, "pci", "pcieport", "vfio-pci"):
            return False  # bound to another driver
        return known


def _cause(finding: dict[str, Any], findings: list[dict[str, Any]]) -> str | None:
    """The kind of the finding that explains this one, None where it stands for itself."""
    causes = {
        "fallen_off_bus": ("bar_unassigned",),
        "rm_init_failed": (
            "needs_open_modules",
            "unsupported_gpu",
            "bar_unassigned",
            "fallen_off_bus",
            "power_cable",
        ),
        "probe_failed": ("bar_unassigned", "fallen_off_bus", "needs_open_modules", "unsupported_gpu", "rm_init_failed"),
        "sxid": ("fallen_off_bus",),
    }.get(finding["kind"], ())
    anywhere = finding["kind"] == "sxid"  # the switch names its own address, not the GPU's
    for other in findings:
        kind = "fallen_off_bus" if other["xid"] == 79 else other["kind"]
        if (
            finding["kind"] == kind == "fallen_off_bus"
            and other["xid"] == 79
            and finding["xid"] is None
            and other["address"] == finding["address"]
        ):
            return "xid"  # the same event, said twice
        if kind in causes and other is not finding and (anywhere or other["address"] == finding["address"]):
            return str(kind)
    return None


def summarise_log(finding: dict[str, Any]) -> str:
    """One finding in a few words: 'Xid 119 (GSP RPC timeout) at 0000:9b:00.0, 5 times, last 2025-02-23T16:30:13Z'."""
    kind, code = finding["kind"], finding["code"]
    if kind == "xid":
        what = "Xid %s%s" % (code, " (%s)" % finding["name"] if finding["name"] else "")
    elif kind == "sxid":
        what = "SXid %s%s" % (code, " (%s)" % finding["name"] if finding["name"] else "")
    elif kind == "api_mismatch":
        what = "API mismatch: " + (finding["detail"] or "")
    else:
        what = kind.replace("_", " ") + (" " + code if code else "")
    where = " at %s" % finding["address"] if finding["address"] else ""
    times = "once" if finding["count"] == 1 else "%d times" % finding["count"]
    last = ", last %s" % finding["last"] if finding["last"] else ""
    return "%s%s, %s%s" % (what, where, times, last)


def merge_findings(logs: Iterable[list[dict[str, Any]]]) -> list[dict[str, Any]]:
    """The findings of several logs of the same boot, each once, with the larger count and the earlier `first`."""
    merged: dict[tuple[Any, ...], dict[str, Any]] = {}
    for findings in logs:
        for finding in findings:
            key = (finding["kind"], finding["address"], finding["code"])
            known = merged.get(key)
            if known is None or finding["count"] > known["count"]:
                merged[key] = finding
    return list(merged.values())
