"""How a server was started: what stands before the engine's command, and what it does before its log names a phase."""

from __future__ import annotations

import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.bundle import BundleEvidence
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.live import LiveEvidence
from ansible.module_utils.gpu_server import gather, launch, model_type, watching
from ansible.module_utils.gpu_server.detection import sees_server

from .host_evidence import Host

ENGINE = ["/opt/e/bin/python3", "-m", "sglang.launch_server"]


@pytest.mark.parametrize(
    ("before", "given", "environment"),
    [
        ([], {"A": "1"}, {"A": "1"}),
        (["env", "PYTHONPATH=/srv/site", "B="], {"A": "1"}, {"A": "1", "PYTHONPATH": "/srv/site", "B": ""}),
        (["/usr/bin/env", "-i", "B=2"], {"A": "1"}, {"B": "2"}),
        (["env", "-u", "A", "-C", "/srv", "--", "B=2"], {"A": "1"}, {"B": "2"}),
        (["env", "--unset=A", "--chdir=/srv", "-uC"], {"A": "1", "C": "3", "D": "4"}, {"D": "4"}),
        (["env", "-S", "B=2 C=3"], {}, {"B": "2", "C": "3"}),
        (["env", "-vSB=2"], {}, {"B": "2"}),
        (["numactl", "--interleave=all", "env", "B=2", "nice", "-n", "-5"], {}, {"B": "2"}),
        (["timeout", "-s", "KILL", "3600", "taskset", "-c", "0-31"], {}, {}),
        (["sudo", "-u", "inference", "B=2"], {}, {"B": "2"}),
    ],
)
def test_what_stands_before_the_command(before: list[str], given: dict[str, str], environment: dict[str, str]) -> None:
    assert launch.unwrap_command([*before, *ENGINE, "--tp", "8"], given) == ([*ENGINE, "--tp", "8"], environment)


def test_a_command_in_a_shell() -> None:
    line = "cd /srv && B=2 exec env C='x y' " + " ".join(ENGINE)
    assert launch.unwrap_command(["bash", "-lc", line], {})[0][-3:] == ENGINE
    assert launch.unwrap_command(["sh", "-c", "exec env C='x y' " + " ".join(ENGINE)], {}) == (ENGINE, {"C": "x y"})


@pytest.mark.parametrize("words", [["env"], ["env", "A=1"], ["sh", "-c", "sleep 'unended"], ["timeout", "5"], []])
def test_nothing_behind_it(words: list[str]) -> None:
    assert launch.unwrap_command(words, {})[0] == words


SITE = "/srv/site"
AUTO = SITE + "/transformers/models/auto/configuration_auto.py"


@pytest.mark.parametrize(
    ("words", "environment"),
    [
        (["env", "PYTHONPATH=/srv/site", "python3", "-m", "sglang.launch_server"], {}),
        (["/usr/bin/env", "PYTHONPATH=/opt/x:/srv/site", "HF_HOME=/srv/hf", "/usr/bin/python3", "-m", "vllm"], {}),
        (["numactl", "-m", "0", "env", "PYTHONPATH=/srv/site", "python3", "-m", "sglang.launch_server"], {}),
        (["sh", "-c", "PYTHONPATH=/srv/site exec python3 -m sglang.launch_server"], {}),
        (["python3", "-m", "sglang.launch_server"], {"PYTHONPATH": SITE}),
    ],
)
@pytest.mark.parametrize(("model", "known"), [("llama", True), ("glm_moe_dsa", False)])
def test_the_type_of_a_model_by_packages_that_the_command_names(
    words: list[str], environment: dict[str, str], model: str, known: bool
) -> None:
    host = Host().directory(SITE, {"transformers-5.2.0.dist-info": {"kind": "dir"}})
    host.file(AUTO, '("llama", "LlamaConfig"),').file("/srv/m/config.json", '{"model_type": "%s"}' % model)
    found = model_type.read_model_type(host, "/srv/m", words, environment)
    assert (found["model_type"], found["known"], found["transformers"]) == (model, known, "5.2.0")


def test_a_model_of_the_hub_that_the_command_names() -> None:
    snapshots = "/srv/hf/hub/models--a--b/snapshots"
    host = (
        Host().directory(snapshots, {"01": {"kind": "dir"}}).file(snapshots + "/01/config.json", '{"model_type": "x"}')
    )
    found = model_type.read_model_type(host, "a/b", ["env", "HF_HOME=/srv/hf", "python3"], {})
    assert (found["model_type"], found["known"]) == ("x", None)


def test_a_python_that_only_path_names() -> None:
    site = "/opt/v/lib/python3.12/site-packages"
    host = Host().directory("/usr/bin").directory("/opt/v/bin", {"python3": {}})
    host.directory("/opt/v/lib", {"python3.12": {"kind": "dir"}})
    host.directory(site, {"transformers-5.2.0.dist-info": {"kind": "dir"}})
    found = model_type.read_model_type(host, "/srv/m", ["env", "PATH=/usr/bin:/opt/v/bin", "python3", "-m", "vllm"], {})
    assert found["transformers"] == "5.2.0"


# The first lines of a real start, SGLang 0.5.17, shortened: 20 s of imports, and nothing that names a phase.
IMPORTING = """/srv/site/torchao/quantization/quant_api.py:1731: SyntaxWarning: invalid escape sequence '\\.'
  warnings.warn(
[2026-11-30 07:18:36] CUDA IPC pool-handle caching is enabled.
"""
COMMANDS = {
    "sglang": "/opt/e/bin/python3 -m sglang.launch_server --model-path /srv/m --tp 1",
    "vllm": "/opt/e/bin/python3 /opt/e/bin/vllm serve /srv/m",
    "transformers": "/opt/e/bin/python /opt/e/bin/transformers serve /srv/m",
    "tensorrt_llm": "/opt/e/bin/python /opt/e/bin/trtllm-serve serve /srv/m",
    "lmdeploy": "/opt/e/bin/python /opt/e/bin/lmdeploy serve api_server /srv/m",
}
FIRST_LINES = {
    "sglang": ("[2026-11-30 07:18:38] server_args=ServerArgs(model_path='/srv/m')\n", "arguments"),
    "vllm": ("INFO 11-30 07:18:38 [utils.py:1] non-default args: {'model': '/srv/m'}\n", "arguments"),
    "transformers": ("Loading weights:   0%| | 0/9 [00:00<?, ?it/s]\n", "weights"),
    "tensorrt_llm": ("[11/30/2026-07:18:38] [TRT-LLM] [I] Using LLM with PyTorch backend\n", "arguments"),
    "lmdeploy": ("Loading weights from safetensors:   0%| | 0/9 [00:00<?, ?it/s]\n", "weights"),
}


def starting(engine: str, log: str | None) -> dict[str, Any]:
    """The facts of a server that started 10 s ago, listens nowhere yet, and wrote this log."""
    boot, now = 1_796_020_000, 1_796_023_120.0
    host = Host(now).directory("/proc", {"7": {"kind": "dir"}}).file("/proc/stat", "btime %d\n" % boot)
    host.file("/proc/7/stat", "7 (python3) S 1 7 7 0 -1 4194560 0 0 0 0 100 10 0 0 20 0 9 0 %d 1 1 1" % (3110 * 100))
    host.file("/proc/7/cmdline", COMMANDS[engine].replace(" ", "\0") + "\0").file("/proc/7/environ", "HOME=/root\0")
    host.command("date +%z", "+0000\n")
    if log is not None:
        host.directory("/proc/7/fd", {"2": {"kind": "link", "target": "/srv/server.log"}})
        host.directory("/srv", {"server.log": {"modified": now - 2}}).file("/srv/server.log", log)
    facts = gather.gather(host, {"generate": "never"}, Errors("server"))
    assert facts is not None
    return facts


@pytest.mark.parametrize("engine", COMMANDS)
@pytest.mark.parametrize("log", ["", IMPORTING])
def test_before_its_first_phase_an_engine_imports(engine: str, log: str) -> None:
    facts = starting(engine, log)
    assert (facts["engine"], facts["state"], facts["log"]["phase"]) == (engine, "starting", "imports")
    assert facts["why"] == "phase imports"
    assert watching.describe_start(facts) == "imports its libraries"
    assert facts["moving"]["phase"] == "imports"


@pytest.mark.parametrize("engine", COMMANDS)
def test_the_first_phase_ends_the_imports(engine: str) -> None:
    line, phase = FIRST_LINES[engine]
    assert starting(engine, IMPORTING + line)["log"]["phase"] == phase


def test_a_log_that_cannot_be_read_or_begins_late_says_nothing_of_imports() -> None:
    assert starting("sglang", None)["log"]["phase"] is None
    served = '[2026-11-30 07:18:38] INFO:     127.0.0.1:1 - "POST /v1/completions HTTP/1.1" 200 OK\n'
    assert starting("sglang", served)["log"]["phase"] is None


def test_nothing_is_gathered_where_a_server_is_only_supposed() -> None:
    job = Host().directory("/proc", {"7": {"kind": "dir"}}).file("/proc/7/cmdline", "python3\0train.py\0")
    job.file("/proc/7/stat", "7 (python3) S 1 7 7 0 -1 4194560 0 0 0 0 100 10 0 0 20 0 9 0 100 1 1 1")
    assert gather.gather(job, {"only_if_found": True}, Errors("server")) is None
    assert gather.gather(job, {}, Errors("server")) is not None
    job.file("/proc/7/cmdline", COMMANDS["transformers"].replace(" ", "\0"))
    found = gather.gather(job, {"only_if_found": True}, Errors("server"))
    assert found is not None and found["engine"] == "transformers"


@pytest.mark.parametrize(
    ("cgroup", "own"),
    [
        ("0::/lxc/102/ns/system.slice/sglang.service\n", False),
        ("0::/lxc.payload.web/ns/init.scope\n", False),
        ("12:devices:/lxc/102\n1:name=systemd:/lxc/102\n", False),
        ("0::/system.slice/sglang.service\n", True),
        ("0::/user.slice/user-0.slice/lxcfs-test.scope\n", True),
        ("", True),  # not known: it may be the host's own
    ],
)
def test_a_server_in_a_container_is_not_the_proxmox_hosts_own(cgroup: str, own: bool) -> None:
    host = Host().directory("/proc", {"7": {"kind": "dir"}}).file("/proc/7/cgroup", cgroup)
    host.file("/proc/7/cmdline", COMMANDS["transformers"].replace(" ", "\0"))
    host.file("/proc/7/stat", "7 (python3) S 1 7 7 0 -1 4194560 0 0 0 0 100 10 0 0 20 0 9 0 100 1 1 1")
    found = gather.gather(host, {"only_if_found": True, "outside_containers": True}, Errors("server"))
    assert (found is not None) == own


def test_a_live_transformers_server_is_found_behind_the_name_python(tmp_path: Path) -> None:
    """A real process, its own /proc: nvidia-smi would show it as python3, so the host is asked, and says what it is."""
    program = tmp_path / "bin" / "transformers"
    program.parent.mkdir()
    program.write_text("import time; print('Loading weights', flush=True); time.sleep(60)")
    log = tmp_path / "server.log"
    with log.open("wb") as output:
        command = [sys.executable, str(program), "serve", "/srv/m", "--port", "65001"]
        process = subprocess.Popen(command, stdout=output, stderr=output)
    try:
        until = time.monotonic() + 20
        while not log.read_bytes() and time.monotonic() < until:
            time.sleep(0.05)
        shown = {"pid": process.pid, "type": "C", "name": sys.executable, "memory_mib": 100}
        assert sees_server({"gpus": {"devices": {"0000:01:00.0": {"processes": [shown]}}}}, "auto") == "if_found"
        params = {"only_if_found": True, "port": 65001, "generate": "never", "light": True}
        found = gather.gather(LiveEvidence(), params, Errors("server"))
        assert found is not None
        assert (found["engine"], found["process"]["pid"], found["model"]) == ("transformers", process.pid, "/srv/m")
        assert (found["state"], found["log"]["phase"]) == ("starting", "weights")
    finally:
        process.kill()
        process.wait()


def test_a_unit_is_enough_to_be_looked_at() -> None:
    rows = "ssh.service loaded active running SSH\nvllm-big.service loaded failed failed vLLM\n"
    host = Host().directory("/proc", {})
    host.command("systemctl list-units --all --type=service --plain --no-legend --no-pager --full", rows)
    host.command(
        gather.units.show_command("vllm-big.service"), "Id=vllm-big.service\nLoadState=loaded\nActiveState=failed\n"
    )
    found = gather.gather(host, {"only_if_found": True}, Errors("server"))
    assert found is not None and found["unit"]["name"] == "vllm-big.service" and found["state"] == "failed"


def test_a_bundle_of_former_times_asked_by_patterns() -> None:
    command = gather.units.FORMER_LIST_COMMAND
    row = {"run": list(command), "status": "ok", "rc": 0, "stdout": "sglang.service loaded active running x\n"}
    assert gather.units.find_units(BundleEvidence({}, [row]), Errors("server")) == ["sglang.service"]
