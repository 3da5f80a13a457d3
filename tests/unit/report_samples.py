"""A small run to make reports of: one host ready, one with a cause and its symptoms, one unreachable."""

from __future__ import annotations

import json
from typing import Any

from ansible.module_utils.gpu_checks import causes, check_cache, verdict
from ansible.module_utils.gpu_report import collector, digest

MADE: dict[str, dict[str, Any]] = {}  # the last result of each check
RUN = {"playbook": "validate.yml", "started_at": "2026-01-02T03:04:05+00:00", "seconds": 4.2, "ansible_core": "2.21.5"}


def result(name: str, status: str = "pass", **more: Any) -> dict[str, Any]:
    """One result as run_checks gives it."""
    made = {
        "id": name, "title": "%s holds" % name, "severity": "error", "tags": ["p2p"],
        "docs": "docs/checks.md#%s" % name, "status": status,
        "found": "", "reason": "", "needs_root": False, "why": "", "failed_condition": "", "remedy": None,
        "explains": [], "caused_by": [],
        "root_cause": False, "waiver": None, **more,
    }  # fmt: skip
    MADE[name] = made
    return made


def definitions(_directory: str) -> dict[str, dict[str, Any]]:
    """What the checks of the results that were made say of themselves."""
    return {name: {key: made[key] for key in check_cache.OF_THE_CHECK} for name, made in MADE.items()}


def run() -> collector.Collector:
    """A run with no host yet."""
    return collector.Collector(definitions)


def chipset(status: str = "fail", **more: Any) -> dict[str, Any]:
    found = {
        "found": "i440FX chipset (440FX - 82441FX PMC [Natoma])",
        "why": "i440FX has no PCIe root ports. A second sentence.",
    }
    remedy = {
        "on": "hypervisor",
        "hypervisor": "proxmox",
        "text": "Give the VM a Q35 machine, then stop and start it.",
        "commands": ["qm set 101 --machine q35", "qm stop 101 && qm start 101"],
        "risk": "The guest is stopped.",
        "verify": "nvidia-smi topo -p2p r",
    }
    seen = {**found, "remedy": remedy} if status != "pass" else {}
    return result("chipset_supports_p2p", status, **seen, explains=["p2p_granted", "p2p_fast"], **more)


def broken_host() -> list[dict[str, Any]]:
    waiver = {"reason": "ticket 4711", "expires": "2027-01-31", "expired": False, "status": "fail"}
    return [
        result("driver_loaded"),
        chipset(),
        result("p2p_granted", "fail", found="56 of 56 directed pairs NS (not supported)"),
        result("p2p_fast", "unknown", reason="the P2P probe has not run on this host"),
        result(
            "acs_redirect_off",
            "unknown",
            reason="needs root: /sys/bus/pci/devices/0000:00:01.0/config",
            needs_root=True,
        ),
        result("gpu_persistence_on", "fail", severity="warning", found="persistence mode is off on 8 of 8 GPUs"),
        result("nvlink_expected", "skip", reason="no NVLink is expected"),
        result("memlock_unlimited", "waived", found="64 KiB", waiver=waiver),
    ]


def judged(
    results: list[dict[str, Any]], problems: tuple[str, ...] = (), facts: dict[str, Any] | None = None
) -> dict[str, Any]:
    """What run_checks returns."""
    causes.fill_in_causes(results)
    return {
        **verdict.summarise_verdict(results, problems),
        "checks_dir": check_cache.OWN,
        "report_facts": json.dumps(facts or {}),
    }


def report() -> dict[str, Any]:
    """The report of the run."""
    found = run()
    found.results(
        "gpu2",
        judged(
            [result(entry["id"], explains=entry["explains"], severity=entry["severity"]) for entry in broken_host()]
        ),
    )
    facts = digest.digest_facts({"evidence": {"recorded": True}, "gpus": {"count": 8}, "kernel_log": "not kept"})
    found.results("gpu10", judged(broken_host(), facts=facts))
    found.failed("gpu3", "Failed to connect to the host via ssh: Connection refused", unreachable=True)
    return found.report(RUN)
