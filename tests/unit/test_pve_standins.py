"""The stand-ins for qm, pct and pvesh refuse what Proxmox refuses: held to the answers of Proxmox's own code."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

FIXTURES = Path(__file__).resolve().parents[1] / "fixtures" / "pve"
sys.path.insert(0, str(FIXTURES / "bin"))

import standin  # type: ignore[import-not-found]

TOOLS = {"vm": ("qm", "qemu-server", "101"), "lxc": ("pct", "lxc", "102")}


def rows(name: str) -> Iterator[dict[str, Any]]:
    text = (FIXTURES / "oracle" / name).read_text(encoding="utf-8")
    return (json.loads(line) for line in text.split("\n") if line)


@pytest.fixture
def root(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(standin, "ROOT", str(tmp_path))
    return tmp_path


def write(root: Path, path: str, text: str) -> None:
    target = root / path.lstrip("/")
    target.parent.mkdir(parents=True, exist_ok=True)
    target.write_bytes(text.encode("utf-8", "surrogateescape"))


def refusal(capsys: pytest.CaptureFixture[str], tool: str, *words: str) -> str:
    """What the tool prints when it refuses; the empty text where it does as it is told."""
    try:
        (standin.pvesh(list(words)) if tool == "pvesh" else standin.main(tool, list(words)))
    except SystemExit:
        return capsys.readouterr().err.strip() or "refused"
    capsys.readouterr()
    return ""


def test_qm_set_and_pct_set_take_what_the_schema_takes(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    disagree, count = [], 0
    for row in rows("values.jsonl"):
        tool, directory, vmid = TOOLS[row["kind"]]
        count += 1
        write(root, "/etc/pve/%s/%s.conf" % (directory, vmid), "memory: 512\n")
        said = refusal(capsys, tool, "set", vmid, "--" + row["key"], row["value"])
        # The machine is checked further when it is set: assert_valid_machine_property.
        further = row["key"] == "machine" and ("vIOMMU" in said)
        if bool(said) != ("error" in row) and not further and "Unknown option" not in said:
            disagree.append((row, said))
    print("values: %d of %d" % (count - len(disagree), count))
    assert count > 100 and disagree == []


def build_node(root: Path, row: dict[str, Any]) -> None:
    (root / "etc/pve/nodes/pve1").mkdir(parents=True)
    (root / "etc/pve/local").symlink_to("nodes/pve1")
    (root / "sys/bus/pci/devices").mkdir(parents=True)
    for address, (pair, subsystem, group, vgpu) in row.get("devices_of_node", {}).items():
        base = "/sys/devices/pci0000:00/" + address
        uevent = "PCI_CLASS=30200\nPCI_ID=%s\n" % pair.upper()
        write(root, base + "/uevent", uevent + ("PCI_SUBSYS_ID=%s\n" % subsystem.upper() if subsystem else ""))
        (root / base[1:] / "config").write_bytes(bytes.fromhex(pair[2:4] + pair[:2]) + bytes(254))
        if group:
            (root / base[1:] / "iommu_group").symlink_to("../../../kernel/iommu_groups/" + group)
        if vgpu:
            (root / base[1:] / {"mdev": "mdev_supported_types"}.get(vgpu, vgpu)).mkdir()
        (root / "sys/bus/pci/devices" / address).symlink_to("../../../devices/pci0000:00/" + address)
    if row.get("iommu", True):
        write(root, "/sys/class/iommu/ivhd0/uevent", "")
    if row.get("mapping"):
        write(root, "/etc/pve/mapping/pci.cfg", row["mapping"])
    for number, (address, vmid) in enumerate(row.get("in_use", {}).items()):
        write(root, "/etc/pve/qemu-server/%s.conf" % vmid, "hostpci0: %s\n" % address)
        write(root, "/var/run/qemu-server/%s.pid" % vmid, "%d\n" % (5000 + number))
        words = ("/usr/bin/kvm", "-id", vmid, "-device", "vfio-pci,host=%s,id=hostpci0" % address)
        write(root, "/proc/%d/cmdline" % (5000 + number), "\0".join(words) + "\0")
    for path in row.get("nodes", ()):
        write(root, path, "")


@pytest.mark.parametrize("row", [pytest.param(row, id=row["about"]) for row in rows("start.jsonl")])
def test_qm_start_and_pct_start_refuse_what_proxmox_refuses(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch, row: dict[str, Any]
) -> None:
    started: list[str] = []
    monkeypatch.setattr(standin, "spawn", lambda argv, *_rest: started.append(argv[0]))
    tool, directory, vmid = TOOLS[row["kind"]]
    build_node(root, row)
    write(root, "/etc/pve/%s/%s.conf" % (directory, vmid), row["config"])
    said = refusal(capsys, tool, "start", vmid)
    assert said == row.get("error", ""), said
    assert bool(started) == row["starts"]


def test_a_machine_that_cannot_be_is_refused_when_it_is_set(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write(root, "/etc/pve/qemu-server/101.conf", "memory: 512\n")
    assert "q35" in refusal(capsys, "qm", "set", "101", "--machine", "pc,viommu=intel")
    assert "Unknown option" in refusal(capsys, "qm", "set", "101", "--hostpci16", "0000:01:00.0")
    assert "unknown setting" in refusal(capsys, "qm", "set", "101", "--delete", "hostpci99")
    assert (root / "etc/pve/qemu-server/101.conf").read_text() == "memory: 512\n"


def test_pvesh_answers_what_remedies_ask(root: Path, capsys: pytest.CaptureFixture[str]) -> None:
    row = next(row for row in rows("start.jsonl") if row["about"] == "mapping-stale-id")
    build_node(root, row)
    standin.pvesh(["get", "/cluster/mapping/pci", "--check-node", "pve1"])
    checks = [item for entry in json.loads(capsys.readouterr().out) for item in entry["checks"]]
    assert any("'id' does not match" in item["message"] for item in checks), checks
    assert refusal(capsys, "pvesh", "get", "/nodes/pve1/tasks", "--vmid", "101", "--source", "active") == ""
    assert "failed" in refusal(capsys, "pvesh", "get", "/nodes/other/tasks")
    assert "No 'get' handler" in refusal(capsys, "pvesh", "get", "/nodes/pve1/nosuch")
    assert "Unknown option" in refusal(capsys, "pvesh", "get", "/cluster/mapping/pci", "--node", "pve1")
