"""The kernel log of this boot: what the driver, the IOMMU and the PCI core reported about GPUs.

From `dmesg`; where that is refused or has lost its beginning, the journal of this boot; where there is no journal,
the end of /var/log/kern.log. Text of the log is data: it is cut, its control characters are removed, nothing more.
"""

from __future__ import annotations

from typing import Any

from .evidence import values
from .evidence.errors import Errors
from .evidence.interface import ABSENT, DENIED, Evidence
from .log import log_findings, log_lines, log_patterns, xid
from .log.log_sources import DMESG, JOURNAL, KERN_LOG, SECONDS, cut_to_this_boot, explain_unread, is_refused
from .pcie import gpu_addresses

COMMANDS = [(DMESG, 15.0)]


def gather(evidence: Evidence, errors: Errors) -> dict[str, Any]:
    """Findings of the log of this boot.

    Keys: `source` (the command that answered, None if none), `covers_boot` (whether the log reaches back to the boot),
    `findings` (list, None when no log could be read), `by_kind` (kind -> those findings that count: about a GPU or its
    path, not undone by a later load of the driver, no consequence of another one; each None when unknown), `fatal_xids`
    (without 79, which is in by_kind.fallen_off_bus), `other_xids`, `other_sxids` (those of by_kind.sxid are the fatal
    ones), `uvm_failures` (HMM and others), `other_devices` (number of findings about other devices), `dropped`
    (messages beyond the limit of different findings), `denied` (whether a log is there and was refused).

    A finding: `kind`, `address` (PCI, None if the message has none), `xid` (int or None), `code` (Xid, SXid, BAR,
    source line, process: what tells findings of a kind apart), `name`, `severity` (fatal, application, notice; Xids and
    SXids only), `action`, `bucket` and `investigate` (of an Xid: NVIDIA's own words for what to do first, and where it
    comes back), `count`, `first`, `last` (UTC where the stamp allows it, else as it stands), `text` (first
    line, at most 300 characters), `detail`, `driver`, `gpu`, `superseded`, `consequence_of`, `summary`.
    """
    devices = gpu_addresses.read_devices(evidence)
    related = gpu_addresses.gpu_related(devices) if devices is not None else None

    def concerns_gpu(address: str) -> bool | None:
        if related is None or devices is None or address not in devices:
            return None
        return address in related

    boot_time = _boot_time(evidence)
    logs: list[list[dict[str, Any]]] = []
    source, denied, whole, boot_seen, dropped = None, False, False, False, 0
    for argv in (DMESG, JOURNAL, KERN_LOG):
        outcome = evidence.run(argv, SECONDS)
        if not outcome.ok or (outcome.rc != 0 and not outcome.stdout.strip()) or is_refused(outcome):
            denied = denied or outcome.status == DENIED or is_refused(outcome)
            explain_unread(outcome, errors, quiet=argv != DMESG and (whole or outcome.status == ABSENT))
            if not outcome.stdout.strip():
                continue
        elif not outcome.stdout.strip() and argv != DMESG:
            continue
        else:
            whole = True
        collector = log_findings.Findings(concerns_gpu)
        for line in log_lines.find_lines(cut_to_this_boot(outcome), log_patterns.HINT, boot_time):
            collector.add(line)
        logs.append(collector.result())
        source = source or " ".join(argv)
        boot_seen, dropped = boot_seen or collector.boot_seen, dropped + collector.dropped
        if boot_seen and whole:
            break
    # What was found in a part of a log happened; what was not found may stand in the rest.
    findings = log_findings.merge_findings(logs) if logs and whole else None
    return {
        "source": source,
        "covers_boot": boot_seen if whole else None,
        "findings": findings,
        **_sorted_out(log_findings.merge_findings(logs) if logs else None, whole),
        "dropped": dropped,
        "denied": denied,
    }


def _sorted_out(findings: list[dict[str, Any]] | None, whole: bool) -> dict[str, Any]:
    if findings is None:
        return {
            "by_kind": dict.fromkeys(log_patterns.KINDS),
            "fatal_xids": None,
            "other_xids": None,
            "other_sxids": None,
            "uvm_failures": None,
            "other_devices": None,
        }
    counting = [
        item
        for item in findings
        if item["gpu"] is not False and not item["superseded"] and item["consequence_of"] is None
    ]
    by_kind: dict[str, list[dict[str, Any]]] = {kind: [] for kind in log_patterns.KINDS}
    harmless = [item for item in counting if item["kind"] == "sxid" and item["severity"] != xid.FATAL]
    for item in (item for item in counting if item not in harmless):
        by_kind["fallen_off_bus" if item["xid"] == 79 else item["kind"]].append(item)

    def known(offending: list[dict[str, Any]]) -> list[dict[str, Any]] | None:
        return offending or ([] if whole else None)

    return {
        "by_kind": {kind: known(offending) for kind, offending in by_kind.items()},
        "fatal_xids": known([item for item in by_kind["xid"] if item["severity"] == xid.FATAL]),
        "other_xids": known([item for item in by_kind["xid"] if item["severity"] != xid.FATAL]),
        "other_sxids": known(harmless),
        "uvm_failures": known(by_kind["uvm_hmm"] + by_kind["uvm_failed"]),
        "other_devices": sum(1 for item in findings if item["gpu"] is False) if whole else None,
    }


def _boot_time(evidence: Evidence) -> float | None:
    """When the host booted, in seconds since 1970."""
    reading = evidence.read("/proc/uptime")
    uptime = values.decimal_number((reading.text.split() or [""])[0]) if reading.ok else None
    now = evidence.now()
    return now - uptime if now and uptime is not None else None
