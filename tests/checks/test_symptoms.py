"""docs/symptoms.md: its checks exist, its commands run, and hosts with a symptom get the cause that the page names."""

from __future__ import annotations

import functools
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import degraded
import harness
import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
SYMPTOMS = yaml.safe_load((ROOT / "docs/symptoms.yml").read_text())
CHECKS = {check.id: check for check in harness.loaded_checks()}
BY_ID = [symptom["id"] for symptom in SYMPTOMS]


def host_files(cause: dict[str, Any]) -> list[Path]:
    return [harness.BROKEN / (name + ".yml") for name in cause["hosts"]]


def words_of(command: str) -> list[str]:
    return shlex.split(command)


def tags_of(command: str) -> list[str]:
    found = re.search(r"--tags (\S+)", command)
    return found[1].split(",") if found else []


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=BY_ID)
def test_a_symptom_has_what_the_page_needs(symptom: dict[str, Any]) -> None:
    assert set(symptom) == {"id", "title", "says", "causes", "shows", "command"}
    assert 1 <= len(symptom["causes"]) <= 8, "a page is short"
    assert len(symptom["says"].split()) < 90, "a page is short"
    names = [cause["check"] for cause in symptom["causes"]]
    assert [name for name in names if name not in CHECKS] == [] and len(set(names)) == len(names)


def test_each_symptom_has_a_name_of_its_own() -> None:
    assert len({symptom["id"] for symptom in SYMPTOMS}) == len(SYMPTOMS) >= 15


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=BY_ID)
def test_a_cause_has_hosts_that_fail_for_it_and_one_shows_the_symptom(symptom: dict[str, Any]) -> None:
    """test_broken.py holds that each of these files fails its check, as a root cause, and no other by itself."""
    texts = []
    for cause in symptom["causes"]:
        assert cause["hosts"]
        for path in host_files(cause):
            assert path.exists(), "%s names no file of tests/checks/broken" % path.stem
            assert path.name.split(".")[0] == cause["check"]
            texts.append(path.read_text())
    assert [text for text in texts if re.search("^status:", text, re.M)] == [], "what is unknown is no cause"
    assert any(re.search(symptom["shows"], text) for text in texts), symptom["shows"]


@pytest.mark.parametrize("symptom", SYMPTOMS, ids=BY_ID)
def test_its_command_looks_at_every_cause(symptom: dict[str, Any]) -> None:
    """A check without one of the command's tags would not run, and its cause would not be found."""
    chosen = tags_of(symptom["command"])
    assert "--tags" in symptom["command"] or "probe_between_hosts" in symptom["command"]
    left_out = [
        cause["check"] for cause in symptom["causes"] if chosen and not set(chosen) & set(CHECKS[cause["check"]].tags)
    ]
    assert left_out == []
    known = {tag for check in CHECKS.values() for tag in check.tags}
    assert [tag for tag in chosen if tag not in known] == []


def test_the_page_is_written_from_the_symptoms_and_the_checks() -> None:
    page = (ROOT / "docs/symptoms.md").read_text()
    for symptom in SYMPTOMS:
        part = page.split('<a id="%s"></a>' % symptom["id"])[1].split("\n## ")[0]
        assert part.rstrip().endswith("```console\n%s\n```" % symptom["command"])
        for cause in symptom["causes"]:
            [link] = re.findall(r"\[%s\]\((checks/\w+\.md)#" % cause["check"], part)
            assert "\n## %s\n" % cause["check"] in (ROOT / "docs" / link).read_text()


# One process that forks once per command: Ansible's imports take longer than a syntax check.
SEVERAL = """
import os, sys
from ansible.cli.playbook import PlaybookCLI
failed = []
for line in sys.stdin.read().splitlines():
    child = os.fork()
    if not child:
        try:
            os._exit(PlaybookCLI(line.split()).run())
        except BaseException as error:
            print(type(error).__name__, error, file=sys.stderr, flush=True)
            os._exit(1)
    if os.waitpid(child, 0)[1]:
        failed.append(line)
print("FAILED", failed)
"""


@pytest.mark.slow
def test_every_command_is_one_that_ansible_takes() -> None:
    """All options, the playbook and the hosts of the inventory; which checks they choose is tested above."""
    shapes: dict[str, str] = {}  # without its tags -> the command
    for symptom in SYMPTOMS:
        words = words_of(symptom["command"])
        assert words[0] == "ansible-playbook" and (ROOT / words[1]).exists()
        shapes.setdefault(re.sub(r"--tags \S+", "", symptom["command"]), symptom["command"])
    settings = dict(os.environ, ANSIBLE_NOCOLOR="1", LC_ALL="C.UTF-8")
    done = subprocess.run(
        [sys.executable, "-c", SEVERAL],
        input="\n".join("%s --syntax-check" % command for command in shapes.values()),
        cwd=ROOT, env=settings, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "FAILED []" in done.stdout, done.stdout + done.stderr


@functools.cache
def judged(path: Path) -> dict[str, dict[str, Any]]:
    return degraded.judge_broken(harness.overlay(path)).results


@pytest.mark.slow
@pytest.mark.long
@pytest.mark.parametrize("symptom", SYMPTOMS, ids=BY_ID)
def test_a_host_with_the_symptom_gets_the_cause(symptom: dict[str, Any]) -> None:
    """As test_broken.py does for each file by itself, here by symptom."""
    for cause in symptom["causes"]:
        for path in host_files(cause):
            result = judged(path)[cause["check"]]
            assert (result["status"], result["root_cause"]) == ("fail", True), path.name
            assert result["remedy"], path.name


@pytest.mark.slow
@pytest.mark.long
def test_the_virtual_machine_of_the_example_says_ns_because_of_its_chipset() -> None:
    evidence = harness.base("kvm-story")
    assert b"NS" in evidence.run(["nvidia-smi", "topo", "-p2p", "r"]).stdout
    place = {"facts": harness.facts_of_hypervisor(harness.base("pve-story")), "vmid": 101}
    results = harness.judge(evidence, {"gpus": {"count": 8}}, hypervisor=place)
    assert SYMPTOMS[0]["causes"][0]["check"] == "vm_machine_q35"
    assert results["vm_machine_q35"]["root_cause"] and "vm_machine_q35" in results["p2p_granted"]["caused_by"]
