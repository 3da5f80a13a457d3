"""What can be wrong with an inventory or a bundle: said clearly, never a traceback, never taken for healthy."""

from __future__ import annotations

import gzip
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
HEALTHY = ROOT / "tests" / "fixtures" / "hosts" / "lxc-story.jsonl.gz"


@pytest.mark.slow
def test_an_empty_inventory_validates_nothing_and_says_so(play: Any) -> None:
    run = play("validate.yml", {"all": {"hosts": {}}})
    assert run.rc != 0
    assert "no host" in run.text.lower()
    assert "Traceback" not in run.text


@pytest.mark.slow
def test_an_unreachable_host_is_not_validated_and_stops_no_other(play: Any) -> None:
    gone = {
        "ansible_host": "127.0.0.1",
        "ansible_port": 1,
        "ansible_connection": "ssh",
        "ansible_ssh_common_args": "-o ConnectTimeout=3 -o BatchMode=yes",
    }
    run = play("validate.yml", {"all": {"hosts": {"gone": gone, "here": {"gpu_host_bundle": str(HEALTHY)}}}})
    assert run.rc == 4
    assert run.statuses("here")["p2p_granted"] == "pass"
    assert set(run.report["hosts"]) == {"gone", "here"}
    assert "gone" in run.text and "unreachable" in run.text.lower()
    assert "Traceback" not in run.text
    gone_report, here_report = run.report["hosts"]["gone"], run.report["hosts"]["here"]
    assert gone_report != here_report and not gone_report.get("checks")


def broken_bundles() -> dict[str, tuple[bytes, str]]:
    whole = HEALTHY.read_bytes()
    text = gzip.decompress(whole)
    lines = text.split(b"\n")
    return {
        "cut_gzip": (whole[: len(whole) // 2], "the gzip data ends early"),
        "cut_text": (b"\n".join([*lines[:3], lines[3][: len(lines[3]) // 2]]), "line 4: not JSON"),
        "junk": (b"\x00\xff\x13junk" * 50, "not a bundle: neither gzip nor JSON"),
        "empty": (b"", "the file is empty"),
        "other_json": (b'{"hello": 1}\n', "line 1: not a bundle manifest"),
        "odd_record": (b"\n".join([*lines[:2], b'{"seen": "/x"}']), "line 3: not an evidence record"),
    }


def test_a_broken_bundle_is_named_with_file_and_line(play: Any, tmp_path: Path) -> None:
    hosts: dict[str, Any] = {
        "here": {"gpu_host_bundle": str(HEALTHY)},
        "missing": {"gpu_host_bundle": "/no/such/bundle.jsonl.gz"},
    }
    for name, (data, _says) in broken_bundles().items():
        path = tmp_path / (name + ".jsonl.gz")
        path.write_bytes(data)
        hosts[name] = {"gpu_host_bundle": str(path)}
    run = play("validate.yml", {"all": {"hosts": hosts}})
    assert run.rc == 2 and "Traceback" not in run.text
    assert run.failed_hosts() == set(hosts) - {"here"}
    messages = run.messages()
    for name, (_data, says) in broken_bundles().items():
        assert "%s.jsonl.gz" % name in messages[name] and messages[name].count(says) == 1, messages[name]
    assert "/no/such/bundle.jsonl.gz" in messages["missing"] and "gpu_host_bundle" in messages["missing"]
    assert run.statuses("here")["p2p_granted"] == "pass"


@pytest.mark.slow
def test_a_broken_check_is_named_with_file_and_line(play: Any, tmp_path: Path) -> None:
    """Each host has a folder of checks of its own, and each is broken in another way."""
    hosts = {}
    for number, content in enumerate(["- {}\n", "- id: x\n  titel: y\n", "}{", ""]):
        folder = tmp_path / ("checks%d" % number)
        folder.mkdir()
        (folder / "mine.yml").write_text(content)
        hosts["host%d" % number] = {"gpu_host_bundle": str(HEALTHY), "host_validation_checks_dir": str(folder)}
    run = play("validate.yml", {"all": {"hosts": hosts}})
    assert run.rc != 0 and "Traceback" not in run.text
    assert run.failed_hosts() == set(hosts)
    for number, host in enumerate(hosts):
        assert "checks%d/mine.yml" % number in run.messages()[host], run.messages()[host]


@pytest.mark.slow
def test_a_report_that_cannot_be_written_fails_the_run(play: Any, blocked_reports: None) -> None:
    run = play("validate.yml", arguments="--limit llm-ct")
    assert run.statuses("llm-ct")["p2p_granted"] == "pass"
    assert run.rc != 0
    assert "report" in run.text and "Traceback" not in run.text


@pytest.mark.parametrize(
    ("own", "said"),
    [
        (False, "gpu_host_expected must be a dictionary, and is {"),
        (True, "failed to combine variables, expected dicts"),
    ],
    ids=["validate.yml", "somebody's own playbook"],
)
def test_an_expectation_that_is_text_is_never_left_out(play: Any, own: bool, said: str, tmp_path: Path) -> None:
    """Ansible's own task for a role takes text in JSON for a dictionary."""
    playbook = tmp_path / "own.yml"
    playbook.write_text("- hosts: all\n  gather_facts: false\n  roles: [host_validation]\n")
    here = {"gpu_host_bundle": str(HEALTHY), "gpu_host_expected": '{"gpus": {"count": 99}}'}
    run = play(str(playbook) if own else "validate.yml", {"all": {"hosts": {"here": here}}})
    assert run.rc == 2
    assert said in run.text
    assert "is ready" not in run.text
    assert "Traceback" not in run.text
