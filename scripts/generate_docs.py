#!/usr/bin/env python3
"""Writes docs/checks.md, docs/checks/SUBJECT.md, docs/remedies.md, docs/symptoms.md, docs/facts.md and
checks/check.schema.json.

The pages of the checks are made from checks/*.yml, the facts from the docstrings of the readers and what they read on
recorded hosts, the schema from the rules. `--check` only says whether they are current.
"""

from __future__ import annotations

import ast
import sys
from pathlib import Path
from typing import Any

import ansible.module_utils
import yaml

ROOT = Path(__file__).resolve().parents[1]
ansible.module_utils.__path__.append(str(ROOT / "module_utils"))
sys.path.insert(0, str(ROOT / "scripts"))

import fact_sources  # type: ignore[import-not-found]
import remedies_page  # type: ignore[import-not-found]
import symptoms_page  # type: ignore[import-not-found]
from ansible.module_utils.gpu_checks import check_files as loading
from ansible.module_utils.gpu_checks import remedy_plan, rules

NOTE = "<!-- Written by `make docs` from %s. Change it there. -->\n\n"


def items() -> dict[str, list[dict[str, Any]]]:
    """The checks as their files have them: subject (the file's name without .yml) -> items. ChecksError where one is
    faulty."""
    files = {
        str(path): yaml.safe_load(path.read_text(encoding="utf-8")) for path in sorted((ROOT / "checks").glob("*.yml"))
    }
    loading.build_checks(files)
    return {Path(path).stem: loading.restore_on_keys(content) for path, content in files.items()}


def checks_pages() -> dict[str, str]:
    """docs/checks.md, the index, and a page for each subject."""
    files = items()
    pages = {"docs/checks.md": _index(files)}
    subject_of = {item["id"]: subject for subject, content in files.items() for item in content}
    explained_by: dict[str, list[str]] = {}
    for content in files.values():
        for item in content:
            for symptom in loading.name_symptoms(item):
                explained_by.setdefault(symptom, []).append(item["id"])
    for subject, content in files.items():
        parts = [NOTE % ("checks/%s.yml" % subject), "# Checks: %s\n\n[All checks](../checks.md)\n" % subject]
        parts += [_check(item, explained_by.get(item["id"], []), subject, subject_of) for item in content]
        pages["docs/checks/%s.md" % subject] = "".join(parts)
    return pages


def _index(files: dict[str, list[dict[str, Any]]]) -> str:
    every = [item for content in files.values() for item in content]
    tags = sorted({tag for item in every for tag in item["tags"]})
    parts = [NOTE % "checks/*.yml", "# Checks\n\n"]
    parts.append(
        "%d checks, one per line; each leads to its reason and its remedy. `error`: the host is not ready; `warning`: "
        "reported only; `info`: worth knowing. What is unknown never passes.\n\n" % len(every)
    )
    parts.append(
        "Tags, for `ansible-playbook validate.yml --tags TAG`: %s.\n\n" % ", ".join("`%s`" % tag for tag in tags)
    )
    parts.append("Subjects: %s.\n" % ", ".join("[%s](#%s)" % (subject, subject) for subject in files))
    for subject, content in files.items():
        parts.append("\n## %s\n\n| check | holds when it passes | severity | tags |\n|---|---|---|---|\n" % subject)
        parts += [_row(item, subject) for item in content]
    return "".join(parts)


def _row(item: dict[str, Any], subject: str) -> str:
    # The anchor is for links of reports that were written while all checks stood on this page.
    link = '<a id="%s"></a>[%s](checks/%s.md#%s)' % (item["id"], item["id"], subject, item["id"])
    title = _line(item["title"]).replace("|", "\\|")
    return "| %s | %s | %s | %s |\n" % (link, title, item["severity"], ", ".join(item["tags"]))


def _check(item: dict[str, Any], causes: list[str], subject: str, subject_of: dict[str, str]) -> str:
    def link(name: str) -> str:
        page = "" if subject_of[name] == subject else "%s.md" % subject_of[name]
        return "[%s](%s#%s)" % (name, page, name)

    head = "\n## %s\n\n**%s.** `%s` · %s\n\n" % (item["id"], item["title"], item["severity"], ", ".join(item["tags"]))
    lines = [head, item["why"].strip() + "\n\n"]
    when = item.get("when")
    if when is not None:
        conditions = when if isinstance(when, list) else [when]
        lines.append("Applies when %s.\n\n" % " and ".join("`%s`" % _line(condition) for condition in conditions))
    lines.append("Holds when:\n\n" + "".join("- `%s`\n" % _line(condition) for condition in item["that"]) + "\n")
    if item.get("needs"):
        lines.append("Unknown without %s.\n\n" % ", ".join("`%s`" % need for need in item["needs"]))
    for label, names in (("Explained by", causes), ("Explains", loading.name_symptoms(item))):
        if names:
            lines.append("%s %s.\n\n" % (label, ", ".join(link(name) for name in names)))
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
    if remedy.get("disrupts"):
        text += "  Stops: %s.\n" % remedy_plan.describe_disruption(remedy["disrupts"], "the machine")
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
        "gpus", "p2p", "topology", "driver", "modules", "kernel", "pci", "iommu", "virtualization", "device_nodes",
        "kernel_log", "system",
    )),
    ("measurements", "gpu_host/measurements.py", "gather"),
    ("joined", "gpu_host/cross_facts.py", "join_facts"),
    ("server", "gpu_server/gather.py", "gather"),
    ("probe (`p2p_facts`)", "gpu_host/p2p_probe.py", "gather"),
    ("probe.collective", "gpu_host/probe/all_reduce.py", "summarise_all_reduce"),
    ("probe.engine_all_reduce", "gpu_host/probe/engine_all_reduce.py", "summarise_engine"),
    ("probe.host_links", "gpu_host/probe/host_link_verdict.py", "judge_host_links"),
    ("probe.path_classes", "gpu_host/probe/path_classes.py", "summarise_classes"),
    ("proxmox (`proxmox_facts`)", "gpu_host/proxmox.py", "gather"),
    ("proxmox.boot", "gpu_host/pve/node_boot.py", "gather"),
    ("proxmox.driver", "gpu_host/pve/node_driver.py", "read_driver"),
    ("proxmox.at_boot", "gpu_host/pve/node_driver.py", "find_nodes_at_boot"),
    ("proxmox.gpus", "gpu_host/pve/card_claims.py", "list_gpus"),
    ("proxmox.vms", "gpu_host/pve/node_guests.py", "read_vms"),
    ("proxmox.containers", "gpu_host/pve/node_guests.py", "read_containers"),
    ("hypervisor", "gpu_host/proxmox.py", "select_guest"),
    ("inventory", "gpu_checks/subject.py", "describe_place"),
    ("evidence", "gpu_host/gather.py", "gather"),
]  # fmt: skip
# Subject -> the functions whose facts stand beside those of its reader.
BESIDE = {
    "hypervisor": [("gpu_checks/subject.py", "describe_hypervisor")],
    "inventory": [("gpu_checks/subject.py", "look_at_hypervisor"), ("gpu_checks/subject.py", "name_guest")],
    "gpus": [("gpu_host/smi/gpu_findings.py", "find_offenders")],
    "p2p": [("gpu_host/p2p.py", "summarise_statuses")],
    "topology": [("gpu_host/topology.py", "summarise_topology")],
    "measurements": [("gpu_host/measured/pairs.py", "complete_pairs")],
    "driver": [
        ("gpu_host/nvidia/driver_requirements.py", "find_requirements"),
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
        "why; `n/a` is what a tool calls not applicable. GPUs are keyed by PCI address.\n\n"
        "The tables say what each fact is read from. They are found by running the readers on recorded hosts and "
        "denying them one thing after the other (`scripts/fact_sources.py`). A fact is null where one of its sources "
        "cannot be had, or says so in another way; of sources with *or* between them, one is enough. Words in capital "
        "letters stand for what differs between hosts: `ADDRESS` of a PCI device, `PID`, `VMID`, `KERNEL` (a release), "
        "`GROUP` (IOMMU), `N` (a number), `LOG` (of the server), `FILE`, `VERSION`, `PORT`.\n\n"
    )
    for subject, path, function in FACTS:
        texts = [_docstring(*place) for place in ((path, function), *BESIDE.get(subject, ()))]
        parts.append("## host.%s\n\n%s\n\n" % (subject, "\n\n".join(texts)))
        name = subject.split(" ")[0]
        if name in fact_sources.READERS:
            parts.append(_sources_table(fact_sources.find_sources(name)))
        elif name == "joined":
            parts.append(_joined_table())
    for path in MODULES_SHOWN:
        if (ROOT / "module_utils" / path).exists():
            parts.append("## %s\n\n%s\n\n" % (Path(path).name, _docstring(path, None)))
    parts.append(
        "## host.errors\n\nA list of `{subject, source, problem, needs_root}`: what could not be read or understood.\n"
    )
    return "".join(parts)


def _sources_table(found: fact_sources.Sources) -> str:
    rows = []
    for names, needed, one_of in fact_sources.group_facts(found):
        parts = [_source(key) for key in needed]
        parts += [" or ".join(_source(key) for key in one_of)] if one_of else []
        rows.append((names, ", ".join(parts)))
    if found.constant:
        rows.append(
            (sorted(found.constant), "the same on every recorded host; follows from what the others are read from")
        )
    text = _table(rows)
    for key, others in found.instead.items():
        if others:
            text += "Where %s gives nothing, %s asked instead.\n\n" % (
                _source(key),
                "%s %s" % (", ".join(_source(other) for other in others), "is" if len(others) == 1 else "are"),
            )
    return text


def _joined_table() -> str:
    grouped: dict[tuple[str, ...], list[str]] = {}
    for name, sources in sorted(fact_sources.find_sources_of_joined().items()):
        grouped.setdefault(tuple(sorted(sources)), []).append(name)
    return _table([(names, ", ".join("`%s`" % source for source in sources)) for sources, names in grouped.items()])


def _table(rows: list[tuple[list[str], str]]) -> str:
    lines = ["| %s | %s |\n" % (", ".join("`%s`" % name for name in names), sources) for names, sources in rows]
    return "| facts | read from |\n|---|---|\n%s\n" % "".join(lines)


def _source(key: fact_sources.Key) -> str:
    kind, name = key
    text = "`%s`" % name.replace("|", "\\|")
    return "the directory " + text if kind == "list" else text


def _docstring(path: str, function: str | None) -> str:
    tree: Any = ast.parse((ROOT / "module_utils" / path).read_text(encoding="utf-8"))
    if function:
        tree = next(node for node in tree.body if isinstance(node, ast.FunctionDef) and node.name == function)
    return (ast.get_docstring(tree) or "").replace("``", "`")


def pages() -> dict[str, str]:
    """Path below the repository -> the text of the page."""
    return {
        **checks_pages(),
        "docs/remedies.md": NOTE % "checks/*.yml" + remedies_page.render_remedies(items()),
        "docs/symptoms.md": NOTE % "docs/symptoms.yml and checks/*.yml" + symptoms_page.render_symptoms(items()),
        "docs/facts.md": facts_page(),
        "checks/check.schema.json": rules.render_schema(),
    }


def main(arguments: list[str]) -> int:
    made = pages()
    there = {str(path.relative_to(ROOT)) for path in (ROOT / "docs" / "checks").glob("*.md")}
    stale = [
        name
        for name, text in made.items()
        if not (ROOT / name).exists() or (ROOT / name).read_text(encoding="utf-8") != text
    ]
    left_over = sorted(there - set(made))  # of a subject that is no more
    if "--check" in arguments:
        if stale or left_over:
            print("out of date, run `make docs`:", ", ".join(stale + left_over))
        return 1 if stale or left_over else 0
    for name in stale:
        (ROOT / name).parent.mkdir(exist_ok=True)
        (ROOT / name).write_text(made[name], encoding="utf-8")
        print("wrote", name)
    for name in left_over:
        (ROOT / name).unlink()
        print("removed", name)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
