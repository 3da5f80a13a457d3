"""Our reading of guest configurations against the answers of Proxmox's own code.

A small table is a fixture of the project. The whole tables are read too where GPU_HOST_PVE_ORACLE names their
directory.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.pve import ct_schema, guest_config, pci_mapping, start_rules, vm_schema
from ansible.module_utils.gpu_host.pve.property_string import Refused, parse_property_string

TABLES = Path(__file__).resolve().parents[1] / "fixtures" / "pve" / "oracle"
WHOLE = os.environ.get("GPU_HOST_PVE_ORACLE")
needs_whole = pytest.mark.skipif(not WHOLE, reason="GPU_HOST_PVE_ORACLE names no directory of tables")


def rows(path: Path) -> Iterator[dict[str, Any]]:
    # At line feeds only: strings hold other characters that str.splitlines() splits at.
    return (json.loads(line) for line in path.read_text(encoding="utf-8").split("\n") if line)


def as_bytes(text: str) -> str:
    return text.encode("utf-8", "surrogateescape").decode("latin-1")


def as_text(body: str) -> str:
    return body.encode("latin-1").decode("utf-8", "surrogateescape")


def judged(kind: str, key: str, value: str) -> dict[str, Any]:
    """{properties} or {error}, as Proxmox parses one value."""
    body = as_bytes(value)
    try:
        if kind == "lxc":
            found = ct_schema.check_device(body)
        elif key == "cpu":
            found = vm_schema.parse_cpu(body, ())
        elif vm_schema.find_rule(key) is None:
            raise Refused("unknown setting '%s'" % key)
        else:
            found = parse_property_string(vm_schema.MACHINE if key == "machine" else vm_schema.HOSTPCI, body)
    except Refused as error:
        return {"error": as_text(str(error))}
    return {"properties": {as_text(name): as_text(item) for name, item in found.items()}}


def shown(section: guest_config.Section | None) -> dict[str, Any]:
    """A section as the tables have it."""
    settings = section.settings() if section else {}
    deleted = settings.pop("delete", None)
    result: dict[str, Any] = {"settings": settings, "raw": [list(item) for item in section.raw()] if section else []}
    if deleted is not None:
        words = guest_config.split_list(deleted)
        result["delete"] = {word.lstrip("!"): word.startswith("!") for word in words}
    return {name: item for name, item in result.items() if item}


def wanted(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: entry[name] for name in ("settings", "raw", "delete") if entry.get(name)}


def differences(kind: str, text: str, row: dict[str, Any]) -> list[Any]:
    """Where we read a whole file otherwise than Proxmox."""
    config = guest_config.parse_config(text, kind, ())
    found: list[Any] = []
    pairs = [(config.current, row["current"]), (config.pending, row.get("pending", {}))]
    pairs += [(config.section(guest_config.SNAPSHOT, name), item) for name, item in row.get("snapshots", {}).items()]
    found += [(shown(section), wanted(item)) for section, item in pairs if shown(section) != wanted(item)]
    if set(config.snapshots) != set(row.get("snapshots", {})):
        found.append(("snapshots", config.snapshots))
    ours = {line.number: line.problem for line in config.warnings()}
    theirs = dict(row.get("warnings", []))
    found += [(number, ours.get(number), theirs.get(number)) for number in set(ours) ^ set(theirs)]
    found += [(number, ours[number], text) for number, text in theirs.items() if ours.get(number, text) != text]
    return found


def agreement(name: str, results: list[tuple[str, list[Any]]]) -> None:
    agreed = sum(1 for _about, problems in results if not problems)
    print("%s: %d of %d" % (name, agreed, len(results)))
    assert results and agreed == len(results), [item for item in results if item[1]][:5]


def test_values() -> None:
    results = []
    for row in rows(TABLES / "values.jsonl"):
        expected = {name: row[name] for name in ("properties", "error") if name in row}
        found = judged(row["kind"], row["key"], row["value"])
        results.append((row["value"], [] if found == expected else [found, expected]))
    agreement("values", results)


def test_configurations() -> None:
    results = [
        (row["about"], differences(row["kind"], row["config"], row)) for row in rows(TABLES / "configurations.jsonl")
    ]
    agreement("configurations", results)


class Nodes(dict[str, str]):
    """Nodes of /dev that are all known: what is not named is not there."""

    def __contains__(self, path: object) -> bool:
        return True

    def __missing__(self, path: str) -> str:
        return ""


def verdict(row: dict[str, Any]) -> dict[str, Any]:
    settings = guest_config.effective_settings(guest_config.parse_config(row["config"], row["kind"], ()))
    if row["kind"] == "lxc":
        state = start_rules.NodeState(nodes=Nodes(dict.fromkeys(row["nodes"], "device")))
        found = start_rules.judge_container(settings, state)
    else:
        devices = {
            address: {
                **{"vendor": item[0][:4], "device": item[0][5:], "subsystem": item[1]},
                **{"iommu_group": item[2], "vgpu": item[3], "answers": True},
            }
            for address, item in row["devices_of_node"].items()
        }
        mapping = pci_mapping.parse_mappings(row.get("mapping", ""))
        state = start_rules.NodeState("pve1", devices, mapping, row.get("in_use", {}), row.get("iommu", True))
        found = start_rules.judge_vm(settings, state, "101")
    if found.starts:
        return {"starts": True, **({"devices": found.devices} if "devices" in row else {})}
    return {"starts": found.starts, "step": found.step, "error": found.error}


def start_results(table: Iterator[dict[str, Any]]) -> list[tuple[str, list[Any]]]:
    results = []
    for row in table:
        expected = {name: row[name] for name in ("starts", "step", "error", "devices") if name in row}
        found = verdict(row)
        results.append((row["about"], [] if found == expected else [found, expected]))
    return results


def test_starts() -> None:
    agreement("starts", start_results(rows(TABLES / "start.jsonl")))


@pytest.mark.parametrize(
    ("facts", "error"),
    [
        ({"devices": None, "iommu_on": True}, "the PCI devices of the node"),
        ({"devices": {"0000:01:00.0": {}}, "iommu_on": None}, "whether an IOMMU is active"),
        ({"devices": {"0000:01:00.0": {"answers": None}}, "iommu_on": True}, "whether 0000:01:00.0 answers"),
    ],
)
def test_what_is_not_known_of_the_node_leaves_the_start_unknown(facts: dict[str, Any], error: str) -> None:
    found = start_rules.judge_vm({"hostpci0": "0000:01:00.0"}, start_rules.NodeState(**facts), "101")
    assert (found.starts, found.error) == (None, error)
    # What is certain counts all the same.
    assert start_rules.judge_vm({"template": "1"}, start_rules.NodeState(**facts), "101").starts is False


@needs_whole
@pytest.mark.parametrize(("table", "kind"), [("vm", "vm"), ("vm-values", "vm"), ("ct", "lxc"), ("ct-values", "lxc")])
def test_the_whole_tables_of_configurations(table: str, kind: str) -> None:
    results = []
    for row in rows(Path(str(WHOLE)) / (table + ".jsonl")):
        answer = row["result"]
        answer["warnings"] = [
            # The first byte of a no-break space, as Perl prints a message and as we keep it.
            (item["line"], item["message"].split(" - ", 1)[1].replace("\xa0", "\udcc2"))
            for item in answer["warnings"]
        ]
        found = differences(kind, row["config"], answer)
        for value in answer["values"]:
            ours = judged(kind, value["key"], value["value"])
            same = "error" in ours if "error" in value else ours.get("properties") == value["properties"]
            # The tables judge a value of a key that does not exist by the format of its siblings.
            same = same or (kind == "vm" and vm_schema.find_rule(value["key"]) is None)
            found += [] if same else [(value, ours)]
        results.append((row["name"], found))
    agreement(table, results)


@needs_whole
def test_the_whole_table_of_starts() -> None:
    def compact() -> Iterator[dict[str, Any]]:
        for row in rows(Path(str(WHOLE)) / "start.jsonl"):
            node, answer = row["host_facts_needed"], row["result"]
            running = {item["vmid"]: item["pid"] for item in node.get("running", [])}
            held = [item for item in node.get("reserved", []) if running.get(item["vmid"]) == item["pid"]]
            devices = {
                address: (
                    "%(vendor)s:%(device)s" % item,
                    "%(subsystem_vendor)s:%(subsystem_device)s" % item if item.get("subsystem_vendor") else None,
                    "" if item.get("iommugroup") in (None, -1) else str(item["iommugroup"]),
                    "nvidia" if item.get("nvidia") else "mdev" if item.get("mdev") else "",
                )
                for address, item in node.get("devices", {}).items()
            }
            yield {
                **{"kind": "vm" if row["kind"] == "vm" else "lxc", "about": row["name"], "config": row["config"]},
                **{"starts": answer["starts"], "nodes": node.get("nodes", []), "iommu": node.get("iommu", True)},
                **{name: answer[name] for name in ("step", "devices") if name in answer and row["kind"] == "vm"},
                **({"step": answer["step"]} if "step" in answer else {}),
                **({"error": answer["error"].replace("\n", "; ", 1)} if "error" in answer else {}),
                **{"devices_of_node": devices, "mapping": node.get("mapping/pci.cfg", "")},
                "in_use": {item["address"]: str(item["vmid"]) for item in held},
            }

    agreement("start", start_results(compact()))
