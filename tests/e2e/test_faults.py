"""Faults of hosts, runs and clocks that need no host to be tried, and the table of all of them in docs/faults.md."""

from __future__ import annotations

import errno
import gzip
import importlib
import json
import os
import re
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence import commands
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence, parse_bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.nvidia import stuck_processes
from ansible.module_utils.gpu_host.probe import one_at_a_time
from ansible.module_utils.gpu_report import files, host_failures
from ansible.module_utils.gpu_server import gather, processes

from .conftest import HOSTS, ROOT

worker_run = importlib.import_module("ansible.module_utils.gpu_host.probe.worker_run")
UNANSWERED = "Module result deserialization failed: No start of json char found"
TRACEBACK = 'Traceback (most recent call last):\n  File "<stdin>", line 266, in <module>\n'
TOO_OLD = "ansible-core requires a minimum of Python version 3.9. Current version: 3.7.16 (default, May  9 2026)"
YEAR_S = 365 * 86400


# What a host says, in words
@pytest.mark.parametrize(
    ("result", "words"),
    [
        ({"msg": UNANSWERED, "rc": 127, "module_stderr": "sh: 1: sudo: not found\n"}, ["the host has no sudo"]),
        ({"msg": UNANSWERED, "module_stderr": "bash: line 1: sudo: command not found"}, ["the host has no sudo"]),
        ({"msg": "Task failed: Missing sudo password"}, ["sudo on the host wants a password", "-K"]),
        ({"msg": "Task failed: Missing doas password"}, ["doas on the host wants a password"]),
        (
            {"msg": UNANSWERED, "module_stderr": "bob is not in the sudoers file.\nThis incident has been reported"},
            ["does not let this user become root", "bob is not in the sudoers file"],
        ),
        (
            {"msg": UNANSWERED, "module_stderr": TRACEBACK + "OSError: [Errno 28] No space left on device"},
            ["a disk of the host is full", "make room"],
        ),
        ({"msg": UNANSWERED, "module_stderr": "OSError: [Errno 122] Disk quota exceeded"}, ["Disk quota exceeded"]),
        ({"msg": UNANSWERED, "module_stderr": "OSError: [Errno 30] Read-only file system: '/x'"}, ["findmnt -O ro"]),
        ({"msg": UNANSWERED, "module_stdout": "pam_nologin: The system is booting up"}, ["refuses logins"]),
        (
            {"msg": "Task failed: Module failed: " + TOO_OLD},
            ["the host's Python is 3.7.16, too old"],
        ),
        (
            {"msg": UNANSWERED, "rc": 1, "module_stderr": TRACEBACK + "KeyError: 'a'"},
            ["exit status 1", "KeyError: 'a'"],
        ),
        ({"msg": UNANSWERED, "rc": 1, "module_stderr": "login: --api-key=sk-abcdefghijklmnopqrstu"}, ["exit status 1"]),
        ({"msg": "Task failed: Module failed: a device of the host is odd"}, ["a device of the host is odd"]),
        ({"msg": "", "module_stderr": ""}, []),
    ],
)  # fmt: skip
def test_a_module_that_gave_no_answer(result: dict[str, Any], words: list[str]) -> None:
    said = host_failures.explain_failure(result)
    assert all(word in said for word in words), said
    assert "\n" not in said and "Traceback" not in said and "deserialization" not in said and "sk-abcdef" not in said
    assert not said.startswith("Task failed")
    assert host_failures.explain_failure({**result, "msg": said or result["msg"]}) == said, "said once, it stays so"


def test_a_long_message_of_a_module_is_left_as_it_is() -> None:
    message = (
        "apt failed: E: Write error - write (28: No space left on device) E: The package lists could not be parsed"
    )
    assert host_failures.explain_failure({"msg": message}) == message


@pytest.mark.parametrize(
    ("message", "advice"),
    [
        ("Failed to connect to the host via ssh: ssh: connect to host gpu1 port 22: Connection refused", "no sshd"),
        ("Failed to connect to the host via ssh: Connection to 10.0.0.1 closed by remote host.", "was cut"),
        ("Failed to connect to the host via ssh: connect to host gpu1 port 22: Connection timed out", "host is up"),
        ("Failed to connect to the host via ssh: root@gpu1: Permission denied (publickey).", "--private-key"),
        ("Failed to connect to the host via ssh: Host key verification failed.", "its key"),
        ("Failed to connect to the host via ssh: Could not resolve hostname gpu1: Name not known", "ansible_host"),
        ("Failed to connect to the host via ssh: System is booting up. See pam_nologin(8)", "validate it again"),
    ],
)
def test_an_unreachable_host(message: str, advice: str) -> None:
    said = host_failures.explain_unreachable({"msg": "Task failed: " + message})
    assert said.startswith(message.rstrip(".")) and advice in said[len(message) :], said


@pytest.mark.parametrize("package", ["gpu_host", "gpu_provision"])
def test_an_older_python_is_refused_before_it_fails_at_something(package: str) -> None:
    """In a process of its own, whose Python says that it is 3.8."""
    code = "import sys; sys.version_info = (3, 8, 18, 'final', 0); import %s" % package
    done = subprocess.run(
        [sys.executable, "-S", "-c", code], cwd=ROOT / "module_utils", capture_output=True, text=True, check=False
    )
    last = done.stderr.strip().splitlines()[-1]
    assert re.fullmatch(r"RuntimeError: Python 3\.9 or newer is needed, \S+ is 3\.8", last), done.stderr
    said = host_failures.explain_failure({"msg": "Module failed: " + last.partition(": ")[2]})
    assert said.endswith("Name a newer one with ansible_python_interpreter.")


# Disks and files
def test_no_disk_is_needed_for_what_programs_print(monkeypatch: pytest.MonkeyPatch) -> None:
    """Of 200000 bytes none is missing, and no file of a directory was opened for them."""

    def full(*_arguments: Any, **_more: Any) -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(commands.tempfile, "TemporaryFile", full)
    program = (sys.executable, "-S", "-c", "print('x' * 199999)")
    begun = commands.Command.begin(program, 30)
    assert isinstance(begun, commands.Command)
    outcome = begun.finish()
    assert outcome.succeeded and len(outcome.stdout) == 200000

    monkeypatch.setattr(commands.os, "memfd_create", full)
    refused = commands.Command.begin(program, 30)
    assert not isinstance(refused, commands.Command) and refused.status == "failed"
    assert "No space left on device" in refused.reason


def test_a_probe_without_a_place_for_its_files_is_unknown() -> None:
    def full() -> Any:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    evidence = worker_run.ProbeEvidence({}, 5)
    evidence.commands = {worker_run.PROBE_COMMAND: full}
    outcome = evidence.run(worker_run.PROBE_COMMAND)
    assert not outcome.ok and "No space left on device" in outcome.reason


def test_what_a_killed_run_was_writing_is_removed_by_the_next(tmp_path: Path) -> None:
    left, young, other = (
        tmp_path / name for name in (".report.json.ab12_xyz", ".report.json.cd34_xyz", ".report.json")
    )
    for path in (left, young, other):
        path.write_text("half")
    for path in (left, other):
        os.utime(path, (time.time() - 3600,) * 2)
    files.write_file(str(tmp_path / "report.json"), b"whole")
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted([young.name, other.name, "report.json"])


# Two runs at once
def test_one_run_measures_on_a_host_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(one_at_a_time, "NAME", "\0gpu-host-test-%d" % os.getpid())
    monkeypatch.setattr(one_at_a_time, "_held", held := [])
    other = "import socket, sys; one = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)\n"
    other += "one.bind('\\0' + sys.argv[1]); print(flush=True); sys.stdin.read()"
    words = [sys.executable, "-S", "-c", other, one_at_a_time.NAME[1:]]
    with subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE) as holder:
        assert holder.stdout and holder.stdin
        holder.stdout.readline()
        assert one_at_a_time.take_turn() == one_at_a_time.TAKEN
        holder.kill()  # not even a run that is killed keeps it
    assert one_at_a_time.take_turn() is None
    for one in held:
        one.close()


def test_a_host_that_another_run_measures_is_unproven_also_in_its_bundle() -> None:
    told: list[str] = []
    idle = {"run": list(worker_run.APPS_COMMAND), "status": "ok", "rc": 0, "stdout": ""}
    gpus = {"run": list(worker_run.GPUS_COMMAND), "status": "ok", "rc": 0, "stdout": "00000000:01:00.0, 4, 0, Disabled"}
    raw = {"cuda": None, "options": {"only_initialise": True, "left_alone": one_at_a_time.TAKEN}}
    probe = {"run": list(worker_run.PROBE_COMMAND), "status": "ok", "rc": 0, "stdout": json.dumps(raw)}
    evidence = BundleEvidence({}, [idle, gpus, probe])
    live = p2p_probe.gather(evidence, {}, Errors("probe"), told.append, one_at_a_time.TAKEN)
    recorded = p2p_probe.gather(evidence, {}, Errors("probe"))
    assert told == [one_at_a_time.TAKEN], "the probe is told to leave the GPUs alone"
    for facts in (live, recorded):
        assert facts["ran"] is False and facts["skipped_reason"] == one_at_a_time.TAKEN
        assert facts["collective"]["ran"] is False


# A user who does not see the processes of others
@pytest.mark.parametrize("option", ["hidepid=2", "hidepid=invisible", "gid=30,hidepid=ptraceable"])
def test_with_hidepid_a_server_that_is_not_seen_may_be_there(option: str) -> None:
    stat = "400 (bash) S 1 400 400 0 -1 0 0 0 0 0 5 5 0 0 20 0 1 0 100 0 0"
    shown = {"list": "/proc", "status": "ok", "entries": {"400": {"kind": "dir"}}}
    mounts = "sysfs /sys sysfs rw 0 0\nproc /proc proc rw,nosuid,relatime,%s 0 0\n" % option
    records = [shown, {"read": "/proc/400/stat", "status": "ok", "text": stat}]
    records.append({"read": "/proc/mounts", "status": "ok", "text": mounts})
    errors = Errors("server")
    table = processes.read_processes(BundleEvidence({}, records), errors)
    assert table is not None and table.hidden and table.unread == [1]
    assert "hidepid" in errors.entries[0]["problem"]
    assert stuck_processes.find_stuck(BundleEvidence({}, records)) is None
    facts = gather.gather(BundleEvidence({"captured_at": 1.79e9}, records), {"only_if_found": True}, Errors("server"))
    assert facts is not None and facts["state"] is None, "not known, rather than none"


# Clocks
@pytest.fixture(scope="module")
def serving() -> tuple[dict[str, Any], list[dict[str, Any]]]:
    manifest, *records = map(json.loads, gzip.decompress((HOSTS / "serving.jsonl.gz").read_bytes()).splitlines())
    return manifest, records


def look_after(serving: tuple[dict[str, Any], list[dict[str, Any]]], step_s: float) -> dict[str, Any]:
    """The facts of the server of the recorded host whose clock was set by `step_s` after its server wrote its log.

    The kernel's btime moves with the clock, what runs keeps its age by the uptime: proc_stat(5).
    """
    manifest, records = serving
    lines = [json.dumps({**manifest, "captured_at": manifest["captured_at"] + step_s})]
    for record in records:
        moved = {}
        if record.get("read") == "/proc/stat":
            text = re.sub(r"(?m)^btime (\d+)$", lambda match: "btime %d" % (int(match[1]) + step_s), record["text"])
            moved = {"text": text}
        lines.append(json.dumps({**record, **moved}))
    errors = Errors("server")
    facts = gather.gather(parse_bundle("\n".join(lines).encode()), {}, errors)
    assert facts is not None
    return {**facts, "errors": errors.entries}


def test_a_clock_that_is_off_makes_no_age_and_no_verdict(serving: tuple[dict[str, Any], list[dict[str, Any]]]) -> None:
    right = look_after(serving, 0)
    assert right["process"]["age_s"] > 60 and right["log"]["lines"] and right["log"]["without_fault"] is True
    forward, back = look_after(serving, 3 * YEAR_S), look_after(serving, -3 * YEAR_S)
    for facts in (forward, back):
        assert facts["process"]["age_s"] == right["process"]["age_s"], "by the uptime"
        age = facts["log"]["age_s"]
        assert age is None or 0 <= age <= facts["process"]["age_s"], "a log is not older than its server"
        decode = facts["log"]["decode"]
        assert decode is None or decode["age_s"] is None or decode["age_s"] >= 0
        assert facts["state"] == right["state"], facts["why"]
    assert forward["log"]["without_fault"] is None, "its lines cannot be told from those of an older start"
    assert any("older than the start of the server" in entry["problem"] for entry in forward["errors"])
    assert back["log"]["without_fault"] is True and back["log"]["age_s"] is None


# The table
def test_every_test_of_the_table_is_there() -> None:
    text = (ROOT / "docs" / "faults.md").read_text()
    rows = [line.split("|")[1:-1] for line in text.splitlines() if line.startswith("| ") and line[:7] != "| fault"]
    named = [set(re.findall(r"`(tests/[\w/]+\.py)::(\w+)`", row[-1])) for row in rows]
    assert len(named) >= 14 and all(named), "every row names its tests"
    for path, name in sorted(set().union(*named)):
        assert re.search(r"(?m)^def %s\(" % name, (ROOT / path).read_text()), (path, name)
