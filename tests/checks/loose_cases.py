"""Judges pieces that were handed in, by the readers and checks that a playbook uses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import harness
import inference_server_facts
import p2p_facts
import proxmox_facts
from ansible.module_utils.gpu_checks import engine, subject
from ansible.module_utils.gpu_host.gather import gather
from ansible.module_utils.gpu_host.loose import case
from ansible.module_utils.gpu_report import gathering

LOOSE = Path(__file__).resolve().parents[1] / "fixtures" / "loose"


def facts_of(path: Path) -> dict[str, Any]:
    """What the tasks of a validation gather, as `ansible_facts` holds it."""
    evidence = case.load(str(path))
    found: dict[str, Any] = {"gpu_host": gather(evidence)}
    if gathering.sees_proxmox(found["gpu_host"], False):
        found.update(proxmox_facts.facts(evidence, {})["ansible_facts"])
    if gathering.probes(found["gpu_host"], "auto"):
        found.update(p2p_facts.facts(evidence, {})["ansible_facts"])
    found.update(inference_server_facts.facts(evidence, {})["ansible_facts"])
    return found


def judge(path: Path, expected: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The result of every check by id; of a Proxmox host only those of a hypervisor, as the role chooses them."""
    facts = facts_of(path)
    host = subject.host({"ansible_facts": facts}, lambda value: value)
    proxmox = (host["evidence"]["loose"] or {}).get("hypervisor") == "self"
    variables = engine.variables(host, expected or {}, "case")
    templar = harness.shared_templar()
    templar.available_variables = variables
    chosen = [check for check in harness.loaded_checks() if not proxmox or "hypervisor" in check.tags]
    return {result["id"]: result for result in engine.evaluate(chosen, variables, harness.OneByOne(templar))}
