# ruff: noqa: E501  (programs in strings)
"""CONTRIBUTING.md's recipe for an engine, literally: one file and its line in the table, in a copy of the project."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
BIN = Path(sys.executable).parent
PARTS = ("module_utils", "library", "plugins", "roles", "callback_plugins", "checks")

ENTRY = '''"""An engine that nobody made."""

from __future__ import annotations

import re

from ..load.generator import Generator
from ..load.result_files import parse_serving
from ..log.log_faults import Fault
from .engine import Engine, make_phase

ENGINE = Engine(
    name="madeup",
    label="Made Up",
    launch=("{venv}/bin/madeup", "run"),
    model_flag="weights-at",
    default_port=7000,
    command=re.compile(r"(?:^|[/ ])madeup run"),
    process_name=re.compile(r"madeup"),
    unit_names=("madeup*.service",),
    log_sign=re.compile(r"madeup says"),
    rank=re.compile(r"madeup::shard(\\d+)"),
    starts=re.compile(r"madeup says hello"),
    phases=(
        make_phase("hello", r"madeup says hello"),
        make_phase("warp", r"warping (?P<x>.)", words="warps its weights", patience_s=77.0),
        make_phase("graphs", r"recording graphs"),
        make_phase("ready", r"madeup serves"),
    ),
    ready=re.compile(r"madeup serves"),
    decode=re.compile(r"made (?P<running>\\d+) (?P<rate>[0-9.]+) (?P<queue>\\d+)(?P<usage>)(?P<tokens>)(?P<graph>)"),
    faults=(Fault("warp_core", re.compile(r"warp core breach"), True, "the core is gone", "Leave."),),
    tensor_parallel=("shards",),
    model_names=("weights-at",),
    help=("--tell-all",),
    renamed={"--old": "--new"},
    packages=("madeup",),
    environment_prefixes=("MADEUP",),
    generator=Generator(
        name="madeup", distribution="madeup", modules=(("madeup.load",),), program=None, verb=(), key_variable="KEY",
        required=lambda job: [("--at", job.base)], optional=lambda job: [], choices={}, parse=parse_serving,
    ),
)
'''

LOOK = r"""
LIST = "systemctl list-units --all --type=service --plain --no-legend --no-pager --full"
import json, sys
import ansible.module_utils
ansible.module_utils.__path__[:0] = [sys.argv[1] + "/module_utils"]
sys.path.insert(0, sys.argv[2])
from ansible.module_utils.gpu_host.evidence import secrets
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_server import arguments, detection, engines, gather, settings, watching
from ansible.module_utils.gpu_server.load import generator_find, generators
from ansible.module_utils.gpu_server.load.job import Job
from host_evidence import Host

def gpu(name):
    return {"gpus": {"devices": {"0000:01:00.0": {"processes": [{"pid": 7, "type": "C", "name": name}]}}}}

def host(log, units=""):
    stat = "%d (%s) S %d 7 7 0 -1 4194560 0 0 0 0 100 10 0 0 20 0 9 0 1000 1 1 1"
    made = Host(2000.0).directory("/proc", {"7": {}, "8": {}}).file("/proc/stat", "btime 1000\n").command("date +%z", "+0000\n")
    made.file("/proc/7/stat", stat % (7, "madeup", 1)).file("/proc/8/stat", stat % (8, "madeup::shard0", 7))
    made.file("/proc/7/cmdline", "/v/bin/madeup\0run\0--sha\x004\0--weights-at\0/srv/m\0").file("/proc/8/cmdline", "madeup::shard0\0")
    made.file("/proc/7/environ", "HOME=/root\0").directory("/v/lib", {"python3.12": {"kind": "dir"}})
    made.file("/proc/7/cgroup", "0::/user.slice/session-1.scope\\n")
    made.directory("/v/lib/python3.12/site-packages", {"madeup-1.5.dist-info": {"kind": "dir"}})
    made.directory("/proc/7/fd", {"2": {"kind": "link", "target": "/srv/log"}}).directory("/srv", {"log": {"modified": 1990.0}}).file("/srv/log", log)
    made.command(LIST, units)
    return made

def facts(log):
    return gather.gather(host(log), {"generate": "never", "only_if_found": True}, Errors("server"))

engine = engines.ENGINES["madeup"]
warping, broken, served = (facts("madeup says hello\n" + text) for text in ("warping 1\n", "warp core breach\n", "made 3 50.5 0\nmadeup serves\n"))
unit = Host().directory("/proc", {}).command(LIST, "madeup-a.service loaded failed failed x\n")
unit.command(gather.units.show_command("madeup-a.service"), "Id=madeup-a.service\nLoadState=loaded\nActiveState=failed\n")
options = arguments.parse_options("options:\n  --shards N   how many\n  --new {a,b}\n")
job = Job("http://h", "m", 1, 1, 1, 1, 1, 1)
print(json.dumps({
    "seen": [detection.sees_server(gpu(name), "auto") for name in ("/v/bin/madeup", "madeup::shard0", "python3", "nbody")],
    "engine": warping["engine"], "ranks": [warping["ranks_expected"], [rank["rank"] for rank in warping["ranks"]]],
    "model": engines.find_model_path("madeup", warping["process"]["arguments"]), "packages": warping["packages"],
    "imports": facts("")["log"]["phase"], "phase": warping["log"]["phase"], "words": watching.describe_start(warping),
    "patience": engines.find_patience_of_phase("warp"), "decode": served["log"]["decode"]["tokens_per_s"],
    "phases": [one["name"] for one in served["log"]["phases"]], "ready": served["log"]["ready"],
    "fault": broken["log"]["fatal"]["kind"], "log": engines.find_engine_of_log("madeup says").name,
    "unit": gather.gather(unit, {"only_if_found": True}, Errors("server"))["unit"]["name"],
    "problems": [(one["argument"], one["successor"]) for one in arguments.find_problems({"sha": 4, "old": "a", "new": "c"}, options, engine)],
    "differences": settings.compare_settings({"arguments": {"tp": 8}}, warping["process"]["settings"], {}),
    "environment": secrets.redact_environment(b"MADEUP_X=1\0MADEUP_API_KEY=2\0OTHER=3").decode(),
    "generators": [generators.NAMES, generator_find.find_generator("auto", None, {"engine": "madeup"}, job, "/nowhere").why[0]["name"]],
}))
"""

PLAY = """
- hosts: localhost
  connection: local
  gather_facts: false
  vars:
    ansible_python_interpreter: "{{ ansible_playbook_python }}"
    inference_server_engine: madeup
    inference_server_model: /srv/m
    inference_server_venv: /srv/v
    inference_server_validate: false
  tasks:
    - ansible.builtin.validate_argument_spec:
        argument_spec: "{{ (lookup('file', 'roles/inference_server/meta/argument_specs.yml') | from_yaml).argument_specs.main.options }}"
        provided_arguments: {inference_server_engine: madeup, inference_server_model: /srv/m}
    - ansible.builtin.include_role: {name: inference_server, tasks_from: preconditions, public: true}
    - inference_server_arguments:
        engine: madeup
        command: ["{{ playbook_dir }}/engine"]
        arguments: {sha: 4}
      register: checked
    - inference_server_load:
        base: http://127.0.0.1:1
        model: m
        generator: madeup
        cells: [{concurrency: 1}]
      check_mode: true
    - gpu_users:
      register: users
    - ansible.builtin.copy:
        content: "{{ {'command': __inference_server_command, 'arguments': __inference_server_all_arguments,
          'words': __inference_server_model_words, 'shortened': checked.shortened} | to_json }}"
        dest: "{{ playbook_dir }}/told.json"
"""


@pytest.fixture(scope="module")
def scratch(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of the project with the engine added as CONTRIBUTING.md says."""
    copy = tmp_path_factory.mktemp("madeup")
    for part in PARTS:
        shutil.copytree(ROOT / part, copy / part, ignore=shutil.ignore_patterns("__pycache__"))
    shutil.copy(ROOT / "ansible.cfg", copy)
    (copy / "inventory").mkdir()
    room = copy / "module_utils" / "gpu_server" / "engines"
    (room / "madeup.py").write_text(ENTRY)
    table = (room / "__init__.py").read_text()
    table, imported = re.subn(r"^from \. import ", "from . import madeup, ", table, count=1, flags=re.MULTILINE)
    table, listed = re.subn(r"^(_ENTRIES = \([a-z_, ]+)\)$", r"\1, madeup)", table, flags=re.MULTILINE)
    assert (imported, listed) == (1, 1)
    (room / "__init__.py").write_text(table)
    return copy


def test_a_made_up_engine_is_one_entry(scratch: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", LOOK, str(scratch), str(ROOT / "tests" / "unit")],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    told: dict[str, Any] = json.loads(done.stdout)
    assert told == {
        "seen": ["yes", "yes", "if_found", "no"],
        "engine": "madeup",
        "ranks": [4, [0]],
        "model": "/srv/m",
        "packages": {"madeup": "1.5"},
        "imports": "imports",
        "phase": "warp",
        "words": "warps its weights",
        "patience": 77.0,
        "decode": 50.5,
        "phases": ["hello", "ready"],
        "ready": True,
        "fault": "warp_core",
        "log": "madeup",
        "unit": "madeup-a.service",
        "problems": [["--old", "--new"], ["--new", None]],
        "differences": [{"name": "--tp", "expected": "8", "live": "4"}],
        "environment": "MADEUP_X=1",
        "generators": [["auto", "sglang", "vllm", "madeup", "guidellm", "builtin"], "madeup"],
    }


@pytest.mark.slow
def test_the_role_and_the_modules_take_a_made_up_engine(scratch: Path) -> None:
    engine = scratch / "engine"
    engine.write_text('#!/bin/sh\n[ "$1" = --tell-all ] && printf "options:\\n  --shards N   how many\\n"\n')
    engine.chmod(0o755)
    (scratch / "play.yml").write_text(PLAY)
    environment = dict(
        os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), ANSIBLE_CONFIG=str(scratch / "ansible.cfg")
    )
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), "-i", "localhost,", "play.yml"],
        cwd=scratch, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout + done.stderr
    assert json.loads((scratch / "told.json").read_text()) == {
        "command": ["/srv/v/bin/madeup", "run"],
        "arguments": {"host": "127.0.0.1", "port": 30000, "weights-at": "/srv/m"},
        "words": [],
        "shortened": {"--sha": "--shards"},
    }


def test_an_engine_that_is_not_in_the_table_is_refused_by_name(scratch: Path) -> None:
    play = [
        {
            "hosts": "localhost", "connection": "local", "gather_facts": False,
            "vars": {"inference_server_engine": "unheard", "inference_server_model": "/srv/m"},
            "tasks": [{"ansible.builtin.include_role": {"name": "inference_server", "tasks_from": "preconditions"}}],
        }
    ]  # fmt: skip
    (scratch / "unknown.yml").write_text(yaml.safe_dump(play))
    environment = dict(
        os.environ, PATH="%s:%s" % (BIN, os.environ["PATH"]), ANSIBLE_CONFIG=str(scratch / "ansible.cfg")
    )
    done = subprocess.run(
        [str(BIN / "ansible-playbook"), "-i", "localhost,", "unknown.yml"],
        cwd=scratch, env=environment, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 2
    assert (
        "'unheard', which is not known. Known are: sglang, tensorrt_llm, llamacpp, lmdeploy, vllm, transformers, madeup."
        in " ".join((done.stdout + done.stderr).split())
    )


NAMED = re.compile(r"(?i)\b(?:sglang|vllm|transformers|trtllm|tensorrt[-_]llm|llama(?:cpp|-server)|lmdeploy)\b")
CODE = ("module_utils", "plugins", "library")
# A name of an engine stands in no code but its entry's. These lines are about the libraries of that name.
EXCEPTIONS = {
    "module_utils/gpu_host/evidence/secrets.py",  # variables that may leave a host whatever engine runs
    "module_utils/gpu_host/evidence/secret_words.py",  # programs with a flag that a secret follows
    "module_utils/gpu_server/model_type.py",  # the library transformers, which every engine reads models with
    "module_utils/gpu_server/installed.py",  # the same
    "module_utils/gpu_server/units.py",  # the command of bundles of former times
    "module_utils/gpu_server/engines/__init__.py",  # the table
    "module_utils/gpu_server/log/log_faults.py",  # their messages, as they print them
    "library/inference_server_arguments.py",  # the library
    # What people paste is told by the words in it; gpu_host does not import gpu_server.
    "module_utils/gpu_host/loose/command_lines.py",
    "module_utils/gpu_host/loose/of_servers.py",
    "module_utils/gpu_host/measured/other_tools.py",  # the headings of their benchmarks' outputs
    # The engine's own all-reduce is called as a class of its Python package.
    "module_utils/gpu_host/probe/engine_all_reduce.py",
    "module_utils/gpu_probe/engine_all_reduce.py",
}


def test_no_other_code_knows_an_engine_by_its_name() -> None:
    found = set()
    for part in CODE:
        for path in sorted((ROOT / part).rglob("*.py")):
            text = re.sub(r'"""(?:.|\n)*?"""', "", path.read_text(encoding="utf-8"))
            lines = [line.partition("  # ")[0] for line in text.splitlines() if not line.lstrip().startswith("#")]
            if any(NAMED.search(line) for line in lines) and path.parent.name != "engines":
                found.add(str(path.relative_to(ROOT)))
    assert found <= EXCEPTIONS, found - EXCEPTIONS
