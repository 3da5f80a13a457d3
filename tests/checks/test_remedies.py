"""Every remedy says what its commands stop and where a test has run them; the rules find what they are for.

tests/checks/test_broken.py asks the rules of every remedy that is filled in from a broken host.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import degraded
import harness
import pytest
import remedy_rules
from ansible.module_utils.gpu_checks import remedy_commands

sys.path.insert(0, str(harness.ROOT / "tests" / "roles"))
import remedies_run  # type: ignore[import-not-found]

REMEDIES = {
    (check.id, number): remedy for check in harness.loaded_checks() for number, remedy in enumerate(check.remedy, 1)
}


@pytest.mark.parametrize("key", [key for key, remedy in REMEDIES.items() if remedy.get("commands")], ids=str)
def test_a_remedy_that_changes_something_says_what_it_stops_and_who_tried_it(key: tuple[str, int]) -> None:
    remedy = REMEDIES[key]
    assert ("disrupts" in remedy) == ("tried" in remedy), "they stand together, where a command changes something"
    assert remedy.get("verify"), "how does one see that it worked?"
    literal = [command for command in remedy["commands"] if not re.search(r"\{[{%]", command)]
    changes = [part for command in literal for part in remedy_commands.find_changes(command)]
    if "disrupts" not in remedy:
        assert changes == []
        assert not {"role", "settings", "by_hand"} & set(remedy)
    elif literal == remedy["commands"] and "role" not in remedy:
        assert changes, "it disrupts something, and its commands only look"


@pytest.mark.parametrize("key", [key for key, remedy in REMEDIES.items() if remedy.get("commands")], ids=str)
@pytest.mark.slow
def test_the_linter_reads_commands_that_no_broken_host_fills_in(key: tuple[str, int]) -> None:
    literal = [command for command in REMEDIES[key]["commands"] if not re.search(r"\{[{%]", command)]
    if literal:
        assert remedy_rules.lint_commands("\n".join(literal)) == ()


def remedy_of(*commands: str, **keys: Any) -> dict[str, Any]:
    return {"commands": list(commands), "verify": "ls", "risk": "", **keys}


@pytest.mark.parametrize(
    ("remedy", "fault"),
    [
        (remedy_of("modprobe nvidia"), "does not say what it disrupts"),
        (remedy_of("lspci -nn | grep 10de"), ""),
        (remedy_of("nvidia-smi -pm 1", disrupts="nothing"), ""),
        (remedy_of("nvidia-smi --gpu-reset -i 0", disrupts="nothing", risk="x"), "disrupts gpus, not only nothing"),
        (remedy_of("modprobe -r nvidia_uvm && modprobe nvidia_uvm", disrupts="gpus"), "names no risk"),
        (remedy_of("qm shutdown 101 && qm start 101", disrupts="gpus", risk="x"), "disrupts guest"),
        (remedy_of("rm -f /tmp/x", disrupts="nothing", verify=""), "how to see that it worked"),
        (remedy_of("echo x > /etc/modprobe.d/x", disrupts="nothing"), "/etc/modprobe.d/x and does not save it"),
        (remedy_of("sed -i 's/a/b/' /etc/default/grub", disrupts="nothing"), "/etc/default/grub and does not save it"),
        (
            remedy_of("cp -a --backup=numbered /etc/x /root/x.before", "sed -i 's/a/b/' /etc/x", disrupts="nothing"),
            "",
        ),
        (remedy_of("qm set 101 --cpu host", disrupts="nothing"), "qemu-server/101.conf and does not save it"),
        (remedy_of("echo x | install --backup=numbered -m 644 /dev/stdin /etc/x", disrupts="nothing"), ""),
        (remedy_of("echo 0 > /sys/bus/pci/devices/0000:01:00.0/numa_node", disrupts="nothing"), ""),
        (remedy_of("echo $(uname -r) $x"), "SC2086"),
        (remedy_of("if true; then"), "bash cannot read"),
    ],
    ids=str,
)
def test_the_rules_find_what_they_are_for(remedy: dict[str, Any], fault: str) -> None:
    found = " ".join(remedy_rules.find_faults(remedy))
    assert fault in found if fault else not found, found


@pytest.mark.parametrize(
    ("command", "changes"),
    [
        ("dmesg | grep -E 'Xid|NVRM' | tail -20", []),
        ("nvidia-smi -q -d ECC,ROW_REMAPPER -i 0000:01:00.0", []),
        ("nvidia-smi --query-gpu=index,name --format=csv", []),
        ("nvidia-smi -pl 300", ["nvidia-smi -pl 300"]),
        ("nvidia-smi -i 0 -mig 0", ["nvidia-smi -i 0 -mig 0"]),
        ("timeout 30 nvidia-smi", []),
        ("cat /proc/version 2>/dev/null >&2", []),
        ("echo on > /etc/x", ["echo on > /etc/x"]),
        ("find / -delete", ["find / -delete"]),
        ("echo $(reboot)", ["reboot"]),
        ("for p in a b; do setpci -s $p X=0; done", ["setpci -s $p X=0"]),
        ("! grep -q a /etc/x || sed -i s/a/b/ /etc/x", ["sed -i s/a/b/ /etc/x"]),
        ("NCCL_DEBUG=INFO rm x", ["rm x"]),
        ("ls # ; rm x", []),
        ("ls\nrm x", ["rm x"]),
        ("fuser -vk /dev/nvidia0", ["fuser -vk /dev/nvidia0"]),
        ("a-program-that-nobody-knows", ["a-program-that-nobody-knows"]),
        ("env A=1 nvidia-smi -L", []),
        ("env A=1 nvidia-smi -pm 1", ["env A=1 nvidia-smi -pm 1"]),
        ("ps aux | xargs kill", ["xargs kill"]),
        ("timeout -k 5 30 rm x", ["timeout -k 5 30 rm x"]),
        ("awk '$2 ~ /^D/ && /nvidia/'", []),
        ("awk 'BEGIN{system(\"reboot\")}'", ["awk 'BEGIN{system(\"reboot\")}'"]),
        ("dmesg -T", []),
        ("dmesg -C", ["dmesg -C"]),
        ("sort -rn", []),
        ("sort -o x x", ["sort -o x x"]),
        ("uniq -c x", []),
        ("uniq x y", ["uniq x y"]),
        ("find / -fprint x", ["find / -fprint x"]),
        ("journalctl -k -b", []),
        ("journalctl --vacuum-size=1M", ["journalctl --vacuum-size=1M"]),
        ("curl -fsS http://127.0.0.1:8000/health", []),
        ("curl -o x http://127.0.0.1", ["curl -o x http://127.0.0.1"]),
        ("sed -n '1,3p' x", []),
        ("sed -n 's/a/b/w y' x", ["sed -n 's/a/b/w y' x"]),
        ("ls `rm x`", ["ls `rm x`"]),
        ("cat <(rm x)", ["cat <(rm x)"]),
        ('echo "it', ['echo "it']),
    ],
)
def test_what_changes_a_machine_is_told_from_what_looks(command: str, changes: list[str]) -> None:
    assert remedy_commands.find_changes(command) == changes


PVE_PROGRAMS = harness.ROOT / "tests" / "fixtures" / "pve" / "bin"
ON_PROXMOX = [key for key, remedy in REMEDIES.items() if remedy.get("tried") == "proxmox"]
# What another test holds: a guest is stopped and started by the stand-ins in tests/roles/test_proxmox_passthrough.py.
STOPS_OR_MAKES_NODES = re.compile(
    r"^(?:(?:qm|pct) (?:shutdown|reboot|start|stop)|nvidia-modprobe|modprobe|echo 'options)"
)


def broken_on_proxmox() -> list[Any]:
    """The broken hosts of a check with such a remedy."""
    checks = {check for check, _number in ON_PROXMOX}
    return [path for path in harness.overlays() if path.name.split(".")[0] in checks]


def lay_configurations(broken: harness.Overlay, root: Path) -> None:
    settings = harness.BASES[broken.base]
    place = settings.get("hypervisor")
    evidence = (
        harness.evidence_with(harness.base(place["recording"]), broken.hypervisor, broken.path.name)
        if place
        else harness.changed(broken)
    )
    (root / "root").mkdir()
    for directory in ("/etc/pve/qemu-server", "/etc/pve/lxc"):
        target = root / directory[1:]
        target.mkdir(parents=True, exist_ok=True)
        for name in evidence.list(directory).entries:
            reading = evidence.read("%s/%s" % (directory, name))
            if reading.ok:
                (target / name).write_bytes(reading.data or b"")


def test_what_was_tried_with_proxmox_is_what_says_so() -> None:
    """A broken host asks for each remedy that says `tried: proxmox`, so that the test below types its commands."""
    asked = set()
    for path in broken_on_proxmox():
        broken = harness.overlay(path)
        remedy = degraded.judge_broken(broken).results[broken.check]["remedy"] or {"number": 0}
        asked.add((broken.check, remedy["number"]))
    assert set(ON_PROXMOX) - asked == set()


@pytest.mark.parametrize("path", broken_on_proxmox(), ids=lambda path: path.name[:-4])
def test_proxmox_takes_the_commands_once_and_twice(path: Path, tmp_path: Path) -> None:
    broken = harness.overlay(path)
    remedy = degraded.judge_broken(broken).results[broken.check]["remedy"]
    if remedy is None or (broken.check, remedy["number"]) not in ON_PROXMOX:
        return  # another remedy of this check fits
    lay_configurations(broken, tmp_path)
    environment = {**os.environ, "PVE_ROOT": str(tmp_path), "PATH": "%s:%s" % (PVE_PROGRAMS, os.environ["PATH"])}
    pictures = []
    for _attempt in range(2):
        for command in remedy["commands"]:
            if STOPS_OR_MAKES_NODES.match(command) or not remedy_commands.find_changes(command):
                continue
            here = re.sub(r"(?<![\w.])/(?=etc/pve|root/)", "%s/" % tmp_path, command)
            done = subprocess.run(
                ["bash", "-c", here], env=environment, capture_output=True, text=True, check=False, timeout=60
            )
            assert done.returncode == 0, "%s\n%s%s" % (command, done.stdout, done.stderr)
        pictures.append({file: file.read_bytes() for file in (tmp_path / "etc").rglob("*.conf")})
    assert pictures[0] == pictures[1], "typed twice, it changes something again"


def test_what_was_run_on_a_systemd_host_is_what_says_so() -> None:
    """Each command of a remedy that says `tried: host` and changes something stands in one that a test types."""
    said = {remedy for each in remedies_run.ROUNDS for remedy in each.remedies.items()}
    said |= set(remedies_run.BUILDS.values())
    typed = {part for remedy in said for part in raw_changes(REMEDIES[remedy])}
    untyped = {
        key: parts - typed
        for key, remedy in REMEDIES.items()
        if remedy.get("tried") == "host" and (parts := raw_changes(remedy)) - typed
    }
    assert untyped == {}
    assert {key for key in said if REMEDIES[key].get("tried") != "host"} == set()


def raw_changes(remedy: dict[str, Any]) -> set[str]:
    """The parts of its commands that change something, with one word for what is filled in."""
    plain = [re.sub(r"\{%.*?%\}", "", str(command)) for command in remedy["commands"]]
    plain = [re.sub(r"\{\{ *'([a-z][^']* [^']*)'(?: % \(.*?\))? if .*?\}\}", r"\1", command) for command in plain]
    plain = [re.sub(r"\{\{.*?\}\}|%s(?!\\n)", "FILLED", command) for command in plain]
    return {part for command in plain for part in remedy_commands.find_changes(command) if part != "reboot"} | {
        "reboot" for command in plain if command == "reboot"
    }
