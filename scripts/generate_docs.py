#!/usr/bin/env python3
"""Writes docs/checks.md from checks/*.yml, and docs/facts.md from the docstrings of the readers. `--check` only says
whether they are current."""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))

from ansible.module_utils.gpu_checks import checks as loading

NOTE = "<!-- Written by `make docs` from %s. Change it there. -->\n\n"


def items() -> dict[str, list[dict[str, Any]]]:
    """The checks as their files have them: file name -> items. ChecksError where one is faulty."""
    files = {
        str(path): yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "checks").glob("*.yml"))
    }
    loading.build(files)
    return {Path(path).name: loading.with_on(content) for path, content in files.items()}


def checks_page() -> str:
    """docs/checks.md."""
    files = items()
    every = [item for content in files.values() for item in content]
    explained_by: dict[str, list[str]] = {}
    for item in every:
        for symptom in item.get("explains", ()):
            explained_by.setdefault(symptom, []).append(item["id"])
    parts = [NOTE % "checks/*.yml", "# Checks\n\n"]
    parts.append(
        "%d checks. `error`: the host is not ready; `warning`: reported only; `info`: worth knowing. What is unknown "
        "never passes.\n\n" % len(every)
    )
    tags = sorted({tag for item in every for tag in item["tags"]})
    parts.append(
        "Tags, for `ansible-playbook validate.yml --tags TAG`: %s.\n\n" % ", ".join("`%s`" % tag for tag in tags)
    )
    for name, content in files.items():
        parts.append(
            "- [%s](#%s): %s\n"
            % (name, _anchor(name), ", ".join("[%s](#%s)" % (item["id"], item["id"]) for item in content))
        )
    for name, content in files.items():
        parts.append("\n## %s\n" % name)
        parts += [_check(item, explained_by.get(item["id"], [])) for item in content]
    return "".join(parts)


def _anchor(heading: str) -> str:
    return heading.lower().replace(".", "").replace(" ", "-")


def _check(item: dict[str, Any], causes: list[str]) -> str:
    head = "\n### %s\n\n**%s.** `%s` · %s\n\n" % (item["id"], item["title"], item["severity"], ", ".join(item["tags"]))
    lines = [head, item["why"].strip() + "\n\n"]
    when = item.get("when")
    if when is not None:
        conditions = when if isinstance(when, list) else [when]
        lines.append("Applies when %s.\n\n" % " and ".join("`%s`" % _line(condition) for condition in conditions))
    lines.append("Holds when:\n\n" + "".join("- `%s`\n" % _line(condition) for condition in item["that"]) + "\n")
    if item.get("needs"):
        lines.append("Unknown without %s.\n\n" % ", ".join("`%s`" % need for need in item["needs"]))
    for label, names in (("Explained by", causes), ("Explains", item.get("explains", []))):
        if names:
            lines.append("%s %s.\n\n" % (label, ", ".join("[%s](#%s)" % (name, name) for name in names)))
    lines.append("What to do:\n\n")
    lines += [_remedy(remedy) for remedy in item["remedy"]]
    return "".join(lines)


def _remedy(remedy: dict[str, Any]) -> str:
    when = remedy.get("when", [])
    conditions = [_line(condition) for condition in (when if isinstance(when, list) else [when])]
    text = "- On the %s%s: %s\n" % (
        remedy["on"],
        " (when `%s`)" % " and ".join(conditions) if conditions else "",
        _line(remedy["text"]),
    )
    if remedy.get("risk"):
        text += "  Risk: %s\n" % _line(remedy["risk"])
    if remedy.get("commands"):
        text += (
            "\n  ```console\n"
            + "".join("  %s\n" % line for command in remedy["commands"] for line in command.strip().split("\n"))
            + "  ```\n\n"
        )
    if remedy.get("verify"):
        text += "  Verify: `%s`\n" % _line(remedy["verify"])
    return text


def _line(text: Any) -> str:
    return " ".join(str(text).split())


# Heading -> (module, function whose docstring lists the facts).
FACTS = [
    *((subject, "gpu_host/%s.py" % subject, "gather") for subject in (
        "gpus", "p2p", "topology", "driver", "modules", "kernel", "pci", "iommu", "virtualization", "device_nodes", "kernel_log", "system",
    )),
    ("measurements", "gpu_host/measurements.py", "gather"),
    ("joined", "gpu_host/cross_facts.py", "join"),
    ("server", "gpu_server/gather.py", "gather"),
    ("probe (`p2p_facts`)", "gpu_host/p2p_probe.py", "facts"),
    ("probe.collective", "gpu_host/probe/all_reduce.py", "facts"),
    ("proxmox (`proxmox_facts`)", "gpu_host/proxmox.py", "gather"),
    ("proxmox.boot", "gpu_host/pve/node_boot.py", "gather"),
    ("proxmox.driver", "gpu_host/pve/node_driver.py", "driver"),
    ("proxmox.at_boot", "gpu_host/pve/node_driver.py", "at_boot"),
    ("proxmox.gpus", "gpu_host/pve/card_claims.py", "gpus"),
    ("proxmox.vms", "gpu_host/pve/node_guests.py", "vms"),
    ("proxmox.containers", "gpu_host/pve/node_guests.py", "containers"),
    ("hypervisor", "gpu_host/proxmox.py", "for_guest"),
]  # fmt: skip
# Subject -> the functions whose facts stand beside those of its reader.
BESIDE = {
    "gpus": [("gpu_host/smi/gpu_findings.py", "findings")],
    "p2p": [("gpu_host/p2p.py", "summary")],
    "topology": [("gpu_host/topology.py", "summary")],
    "measurements": [("gpu_host/measured/pairs.py", "complete")],
    "driver": [
        ("gpu_host/nvidia/driver_requirements.py", "of_gpus"),
        ("gpu_host/nvidia/driver_services.py", "gather"),
        ("gpu_host/nvidia/driver_packages.py", "gather"),
        ("gpu_host/nvidia/cuda_toolkits.py", "gather"),
    ],
}
# Parts that the docstrings above point to.
MODULES_SHOWN = ("gpu_host/smi/log_fields.py", "gpu_host/smi/gpu_findings.py")


def facts_page() -> str:
    """docs/facts.md."""
    parts = [NOTE % "the docstrings of module_utils/gpu_host", "# Facts\n\n"]
    parts.append(
        "`ansible_facts.gpu_host` of the `gpu_facts` module, `host` in a check. Null is unknown, and `errors` says "
        "why; `n/a` is what a tool "
        "calls not applicable. GPUs are keyed by PCI address.\n\n"
    )
    for subject, path, function in FACTS:
        texts = [_docstring(*place) for place in ((path, function), *BESIDE.get(subject, ()))]
        parts.append("## host.%s\n\n%s\n\n" % (subject, "\n\n".join(texts)))
    for path in MODULES_SHOWN:
        if (ROOT / "module_utils" / path).exists():
            parts.append("## %s\n\n%s\n\n" % (Path(path).name, _docstring(path, None)))
    parts.append(
        "## host.errors\n\nA list of `{subject, source, problem, needs_root}`: what could not be read or understood.\n"
    )
    return "".join(parts)


def _docstring(path: str, function: str | None) -> str:
    tree: Any = ast.parse((ROOT / "module_utils" / path).read_text(encoding="utf-8"))
    if function:
        tree = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return (ast.get_docstring(tree) or "").replace("``", "`")


PAGES = {"docs/checks.md": checks_page, "docs/facts.md": facts_page}


def main(arguments: list[str]) -> int:
    stale = []
    for name, page in PAGES.items():
        path = ROOT / name
        text = page()
        if path.exists() and path.read_text(encoding="utf-8") == text:
            continue
        stale.append(name)
        if "--check" not in arguments:
            path.write_text(text, encoding="utf-8")
            print("wrote", name)
    if stale and "--check" in arguments:
        print("out of date, run `make docs`:", ", ".join(stale))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
