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
from ansible.module_utils.gpu_host.probe import wanted
from ansible.module_utils.gpu_host.proxmox import may_be_proxmox

LOOSE = Path(__file__).resolve().parents[1] / "fixtures" / "loose"


def facts_of(path: Path) -> dict[str, Any]:
    """What the tasks of a validation gather, as `ansible_facts` holds it."""
    evidence = case.load_case(str(path))
    found: dict[str, Any] = {"gpu_host": gather(evidence)}
    if may_be_proxmox(found["gpu_host"]):
        found.update(proxmox_facts.facts(evidence, {})["ansible_facts"])
    if wanted.wants_probe(found["gpu_host"], "auto"):
        found.update(p2p_facts.facts(evidence, {})["ansible_facts"])
    found.update(inference_server_facts.facts(evidence, {})["ansible_facts"])
    return found


def judge(path: Path, expected: dict[str, Any] | None = None) -> dict[str, dict[str, Any]]:
    """The result of every check by id; of a Proxmox host only those of a hypervisor, as the role chooses them."""
    facts = facts_of(path)
    host = subject.build_subject({"ansible_facts": facts}, lambda value: value)
    variables = engine.make_variables(host, expected or {}, "case")
    chosen = subject.choose_checks_of_pieces(harness.loaded_checks(), host)
    return {result["id"]: result for result in engine.evaluate_checks(chosen, variables, harness.evaluator(variables))}
