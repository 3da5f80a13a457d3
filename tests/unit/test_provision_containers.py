"""What a host runs containers with, whether it can give one its GPUs, and the words that run an engine in it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host.evidence.interface import TIMEOUT, Outcome
from ansible.module_utils.gpu_provision import cdi_specs, container_runtimes, container_trial, container_words
from ansible.module_utils.gpu_server import engines, model_type, processes
from host_evidence import Host

# Indented as nvidia-ctk 1.17 writes it.
SPEC = """---
cdiVersion: 0.5.0
containerEdits:
  deviceNodes:
  - path: /dev/nvidiactl
  env:
  - NVIDIA_VISIBLE_DEVICES=void
  hooks:
  - args:
    - nvidia-ctk
    - hook
    - create-symlinks
    hookName: createContainer
    path: /usr/bin/nvidia-ctk
  mounts:
  - containerPath: /usr/lib/libcuda.so.580.95.05
    hostPath: /usr/lib/libcuda.so.580.95.05
    options:
    - ro
    - nosuid
devices:
- containerEdits:
    deviceNodes:
    - path: /dev/nvidia0
  name: "0"
- containerEdits:
    deviceNodes:
    - hostPath: /dev/nvidia0
      path: /dev/other
  name: all
kind: nvidia.com/gpu
"""
JSON_SPEC = """{"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [
 {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia0"}]}}],
 "containerEdits": {"mounts": [{"hostPath": "/usr/lib/libcuda.so.580.95.05", "containerPath": "/x"}],
                    "hooks": [{"path": "/usr/bin/nvidia-ctk"}]}}"""


def gpu_host(**directories: dict[str, str]) -> Host:
    """A host with the driver's files, and specifications in `etc` and `run`."""
    made = Host().directory("/dev", {"nvidiactl": {}, "nvidia0": {}}).directory("/usr/bin", {"nvidia-ctk": {}})
    made.directory("/usr/lib", {"libcuda.so.580.95.05": {}})
    for top, files in directories.items():
        made.directory("/%s/cdi" % top, {name: {} for name in files})
        for name, text in files.items():
            made.file("/%s/cdi/%s" % (top, name), text)
    return made


@pytest.mark.parametrize("wanted", [["all"], ["0"], ["0", "all"]])
def test_a_specification_of_the_running_driver_is_taken(wanted: list[str]) -> None:
    assert cdi_specs.find_problem(gpu_host(etc={"nvidia.yaml": SPEC}), wanted, "580.95.05") is None


def test_a_specification_in_json_is_read_as_well() -> None:
    assert cdi_specs.find_problem(gpu_host(run={"nvidia.json": JSON_SPEC}), ["all"], "580.95.05") is None
    other = cdi_specs.find_problem(gpu_host(run={"nvidia.json": JSON_SPEC}), ["all"], "590.10") or ""
    assert "is of the driver 580.95.05, and 590.10 runs" in other


@pytest.mark.parametrize(
    ("host", "driver", "says"),
    [
        (Host(), "580.95.05", "No CDI specification of NVIDIA's GPUs is in /etc/cdi and /run/cdi"),
        (gpu_host(etc={"amd.yaml": "kind: amd.com/gpu\n"}), None, "No CDI specification"),
        (gpu_host(etc={"nvidia.yaml": SPEC}), "590.10", "/etc/cdi/nvidia.yaml is of the driver 580.95.05, and 590.10"),
        (gpu_host(etc={"nvidia.yaml": SPEC.replace("nvidia0\n", "nvidia9\n")}), None, "has not: /dev/nvidia9"),
        (gpu_host(etc={"nvidia.yaml": SPEC.replace('"0"', '"1"')}), None, "no device nvidia.com/gpu=0, only 1, all"),
        (gpu_host(etc={"a.yaml": SPEC, "b.json": JSON_SPEC, "c.yaml": SPEC}), None, "/a.yaml, /etc/cdi/c.yaml both"),
    ],
)
def test_what_would_leave_a_container_without_gpus_is_told(host: Host, driver: str | None, says: str) -> None:
    assert says in (cdi_specs.find_problem(host, ["0"], driver) or "")


def test_of_two_directories_the_later_one_counts() -> None:
    """NVIDIA's service writes /run anew at each boot; a file in /etc may be years old."""
    old = SPEC.replace("580.95.05", "550.10")
    assert (
        cdi_specs.find_problem(gpu_host(etc={"a.yaml": old}, run={"nvidia.yaml": SPEC}), ["all"], "580.95.05") is None
    )
    problem = cdi_specs.find_problem(gpu_host(etc={"a.yaml": SPEC}, run={"nvidia.yaml": old}), ["all"], "580.95.05")
    assert "nvidia-ctk cdi generate --output=/run/cdi/nvidia.yaml" in (problem or "")


def test_what_cannot_be_read_is_no_specification_that_is_good() -> None:
    host = Host().directory("/etc/cdi", {}, status="denied")
    assert "could not be read: /etc/cdi" in (cdi_specs.find_problem(host, ["all"], None) or "")
    host = gpu_host(etc={"nvidia.yaml": SPEC}).file("/etc/cdi/nvidia.yaml", status="denied")
    assert "could not be read: /etc/cdi/nvidia.yaml" in (cdi_specs.find_problem(host, ["all"], None) or "")


def podman(version: str, generators: dict[str, dict[str, Any]] | None = None) -> Host:
    made = Host().directory("/usr/bin", {"podman": {}, "catatonit": {}})
    made.command(["/usr/bin/podman", "--version"], "podman version %s\n" % version)
    for directory, entry in (generators or {}).items():
        made.directory(directory, {"podman-system-generator": entry})
    return made


USR, ETC = "/usr/lib/systemd/system-generators", "/etc/systemd/system-generators"


@pytest.mark.parametrize(
    ("host", "quadlet"),
    [
        (podman("5.4.2", {USR: {}}), True),
        (podman("4.4.0", {USR: {}}), True),
        (podman("4.3.1", {USR: {}}), False),
        (podman("5.4.2"), False),
        (podman("5.4.2", {USR: {}, ETC: {"kind": "link", "target": "/dev/null"}}), False),
    ],
)
def test_quadlet_is_used_where_systemd_runs_it(host: Host, quadlet: bool) -> None:
    found, problem = container_runtimes.read_runtime(host, "")
    assert (found["runtime"], found["quadlet"], found["init"], problem) == ("podman", quadlet, True, None)


@pytest.mark.parametrize(
    ("host", "wanted", "says"),
    [
        (Host(), "", "neither podman nor docker is installed"),
        (Host().directory("/usr/bin", {"podman": {}}), "docker", "docker is not installed"),
        (podman("3.4.4"), "", "podman 3.4.4 is too old: 4.1 or newer is needed"),
        (
            Host()
            .directory("/usr/bin", {"docker": {}})
            .command(
                ["/usr/bin/docker", "version", "--format", "{{.Server.Version}}"], rc=1, stderr="Cannot connect\n"
            ),
            "",
            "docker's daemon does not answer: Cannot connect",
        ),
    ],
)
def test_a_host_that_runs_no_container_says_why(host: Host, wanted: str, says: str) -> None:
    assert says in (container_runtimes.read_runtime(host, wanted)[1] or "")


def docker(version: str, cdi: str = "null", toolkit: bool = True) -> Host:
    made = gpu_host(run={"nvidia.yaml": SPEC})
    programs: dict[str, dict[str, Any]] = {"docker": {}, "nvidia-ctk": {}, "docker-init": {}}
    made.directory("/usr/bin", {**programs, **({"nvidia-container-runtime-hook": {}} if toolkit else {})})
    made.command(["/usr/bin/docker", "version", "--format", "{{.Server.Version}}"], version + "\n")
    return made.command(["/usr/bin/docker", "info", "--format", "{{json .CDISpecDirs}}"], cdi + "\n")


@pytest.mark.parametrize(
    ("host", "gpus", "options"),
    [
        (docker("28.3.1", '["/etc/cdi","/var/run/cdi"]'), ["0"], ["--device=nvidia.com/gpu=0"]),
        (docker("26.1.5+dfsg1"), ["all"], ["--gpus=all"]),
        (docker("20.10.24+dfsg1", '["/etc/cdi"]'), ["0", "1"], ['--gpus="device=0,1"']),
        (docker("28.3.1", "[]", toolkit=False), [], []),
    ],
)
def test_docker_takes_cdi_where_it_is_switched_on(host: Host, gpus: list[str], options: list[str]) -> None:
    found, problem = container_runtimes.read_runtime(host, "")
    assert (found["init"], problem) == (True, None)
    assert container_runtimes.find_gpu_options(host, found, gpus) == (options, None)


def test_docker_without_the_toolkit_is_refused() -> None:
    host = docker("26.1.5", toolkit=False)
    _options, problem = container_runtimes.find_gpu_options(host, container_runtimes.read_runtime(host, "")[0], ["all"])
    assert "install nvidia-container-toolkit" in (problem or "")


ID = "8543e8830014b44775d152c7c67b9980f2a5421d3cbce3d35a8a4dc09785e650"


def image(printed: str, machine: str = "x86_64", **rest: Any) -> tuple[dict[str, Any] | None, str | None]:
    argv = ["env", "/usr/bin/podman", "image", "inspect", "--format", container_runtimes.IMAGE_FORMAT, "a:1"]
    host = Host().command(argv, printed, **rest).command(["uname", "-m"], machine + "\n")
    return container_runtimes.read_image(host, "/usr/bin/podman", "a:1")


def test_an_image_is_known_by_its_id_and_by_the_name_that_a_registry_has_for_it() -> None:
    remote = "docker.io/lmsysorg/sglang@sha256:" + "ab" * 32
    found, problem = image('sha256:%s\namd64\n2026-11-30\n["%s"]\n' % (ID, remote))
    assert (found, problem) == ({"id": ID, "digest": remote, "created": "2026-11-30"}, None)
    local, _problem = image('%s\namd64\n2026-11-30\n["localhost/a@sha256:%s"]\n' % (ID, "ab" * 32))
    assert local is not None and local["digest"] is None


@pytest.mark.parametrize(
    ("printed", "rest", "says"),
    [
        ("", {"rc": 125, "stderr": "Error: a:1: image not known\n"}, None),
        ("[]\n", {"rc": 1, "stderr": "Error: No such image: a:1\n"}, None),
        ("", {"rc": 125, "stderr": "Error: database is locked\n"}, "database is locked"),
        ("junk\n", {}, "does not say the id"),
        (ID + "\narm64\nx\n[]\n", {}, "is for arm64, and this host is amd64"),
    ],
)
def test_an_image_that_is_not_here_is_told_from_one_that_cannot_be_asked_for(
    printed: str, rest: dict[str, Any], says: str | None
) -> None:
    found, problem = image(printed, **rest)
    assert (problem is None) if says is None else says in (problem or "")
    assert found is None or says


@pytest.mark.parametrize(
    ("name", "moving"),
    [
        ("a/b", True),
        ("a/b:latest", True),
        ("host:5000/b", True),
        ("a/b:v1", False),
        ("a@sha256:" + "0" * 64, False),
        (ID, False),
    ],
)
def test_a_tag_that_moves_is_known(name: str, moving: bool) -> None:
    assert container_runtimes.is_moving_tag(name) is moving


PLAN: dict[str, Any] = {
    "runtime": "podman", "program": "/usr/bin/podman", "name": "glm", "image": ID, "user": "999:998",
    "home": "/var/lib/glm", "nofile": 1024, "shm_size": "32g", "gpu_options": ["--device=nvidia.com/gpu=all"],
    "init": True, "selinux": False, "slice": "glm.slice", "volumes": ["/var/lib/glm:/var/lib/glm"],
    "readable": ["/srv/templates"],
    "environment": {"HOME": "/var/lib/glm", "HF_HOME": "/var/lib/glm/hf", "NCCL_DEBUG": "INFO"},
    "secrets": ["KEY", "HF_TOKEN"], "options": [], "command": ["python3", "-m", "sglang.launch_server"],
    "arguments": {"tp": 8, "api-key": "${KEY}", "trust-remote-code": True, "off": False, "list": [1, "a b"]},
}  # fmt: skip


def test_a_secret_stands_in_no_word_of_the_runtime() -> None:
    made = container_words.make_run_words(PLAN)
    assert made["words"] == [
        "-c", 'exec "$@" --api-key "$KEY"', "glm", "python3", "-m", "sglang.launch_server", "--tp", "8",
        "--trust-remote-code", "--list", "1", "a b",
    ]  # fmt: skip
    assert {"--entrypoint=sh", "--env=KEY", "--env=HF_TOKEN"} <= set(made["options"])


def test_the_shell_inside_gives_the_engine_its_words_as_they_are() -> None:
    plan = {**PLAN, "command": ["printf", "%s|"], "arguments": {"odd": ["a 'b' $KEY", "${KEY}"], "plain": "$KEY x"}}
    words = container_words.make_run_words(plan)["words"]
    done = subprocess.run(["sh", *words], env={"KEY": 'a "b" $c `d`'}, capture_output=True, text=True, check=True)
    assert done.stdout.split("|")[:-1] == ["--plain", "$KEY x", "--odd", "a 'b' $KEY", 'a "b" $c `d`']


def test_without_a_secret_among_the_arguments_no_shell_is_needed() -> None:
    made = container_words.make_run_words({**PLAN, "arguments": {"tp": 8, "odd": "${OTHER}"}})
    assert "--entrypoint=python3" in made["options"]
    assert made["words"] == ["-m", "sglang.launch_server", "--tp", "8", "--odd", "${OTHER}"]


def test_podman_and_docker_get_what_each_needs() -> None:
    for_podman = container_words.make_run_words(PLAN)["options"]
    for_docker = container_words.make_run_words({**PLAN, "runtime": "docker"})["options"]
    both = {"--network=host", "--shm-size=32g", "--user=999:998", "--cap-drop=all", "--init", "--pull=never"}
    assert both <= set(for_podman) & set(for_docker)
    assert {"--ulimit=host", "--pids-limit=0", "--log-driver=passthrough"} == set(for_podman) - set(for_docker)
    assert {"--ulimit=memlock=-1", "--ulimit=nofile=1024:1024", "--cgroup-parent=glm.slice"} <= set(for_docker)


def test_what_the_inventory_says_overrides() -> None:
    options = container_words.make_run_words({**PLAN, "options": ["--user=0:0", "--ipc=host"], "selinux": True})[
        "options"
    ]
    assert options[-2:] == ["--user=0:0", "--ipc=host"]
    assert not any(one.startswith("--shm-size") for one in options), "podman refuses it beside --ipc=host"
    assert "--security-opt=label=disable" in options


@pytest.mark.parametrize(
    ("model", "readable", "writable", "volumes"),
    [
        ("org/name", [], [], ["/home"]),
        ("/srv/models/glm/", [], [], ["/home", "/srv/models/glm:ro"]),
        ("/srv/models/a.gguf", [], [], ["/home", "/srv/models:ro"]),
        ("/hf/hub/models--o--n/snapshots/1a2b", [], [], ["/home", "/hf/hub/models--o--n:ro"]),
        ("/hf/hub/models--o--n/snapshots/1a2b", [], ["/hf"], ["/hf", "/home"]),
        ("/srv/models/glm", ["/srv/models", "/srv"], ["-/home/cache", "/data"], ["/data", "/home", "/srv:ro"]),
        ("/srv/models-2/glm", ["/srv/models"], [], ["/home", "/srv/models:ro", "/srv/models-2/glm:ro"]),
    ],
)
def test_a_model_is_mounted_with_what_its_files_are_links_to(
    model: str, readable: list[str], writable: list[str], volumes: list[str]
) -> None:
    made = container_words.make_volumes("/home", model, readable, writable)
    assert [one.replace(one.partition(":")[0] + ":", "", 1) for one in made] == volumes


def test_links_out_of_what_is_mounted_are_named() -> None:
    links = {"config.json": {}, "a.safetensors": {"target": "../../blobs/1"}, "b.safetensors": {"target": "/nfs/b"}}
    host = Host().directory("/hf/models--o--n/snapshots/1", links)
    volumes = ["/hf/models--o--n:/hf/models--o--n:ro"]
    found = container_words.find_outside_links(host, "/hf/models--o--n/snapshots/1", volumes)
    assert found == ["b.safetensors -> /nfs/b"]


class Trial(Host):
    """A host whose runtime answers `answers`, one after the other, and notes what it was asked."""

    def __init__(self, *answers: Outcome) -> None:
        super().__init__()
        self.answers, self.asked = list(answers), []

    def run(self, argv: Any, timeout: float = 30.0) -> Outcome:
        self.asked.append(list(argv))
        return self.answers.pop(0) if argv[2] == "run" else Outcome(tuple(argv), "ok", 0)


def outcome(text: str = "", rc: int = 0, status: str = "ok") -> Outcome:
    return Outcome((), status, rc, text.encode())


def ask(host: Trial) -> Outcome:
    return container_trial.run_in_image(host, PLAN, ["python3", "-m", "x", "--help"], 9.0, lambda text: "--tp" in text)


def test_an_engine_is_asked_without_gpus_and_without_network() -> None:
    host = Trial(outcome("--tp"))
    assert ask(host).text == "--tp"
    removed, asked = host.asked
    assert removed == ["env", "/usr/bin/podman", "rm", "-f", "glm-check"]
    assert {
        "--network=none",
        "--rm",
        "--pull=never",
        "--env=HOME=/tmp",
        "--volume=/srv/templates:/srv/templates:ro",
    } <= set(asked)
    assert not {"--device=nvidia.com/gpu=all", "--env=KEY", "--env=HF_HOME=/var/lib/glm/hf"} & set(asked)
    assert asked[-5:] == ["--entrypoint=python3", ID, "-m", "x", "--help"]


@pytest.mark.parametrize("first", [outcome("RuntimeError: Failed to infer device type", rc=1), outcome("usage:")])
def test_an_engine_that_wants_a_gpu_first_is_asked_with_gpus(first: Outcome) -> None:
    host = Trial(first, outcome("--tp"))
    assert ask(host).text == "--tp"
    assert "--device=nvidia.com/gpu=all" in host.asked[-1]


def test_a_trial_that_does_not_end_is_removed() -> None:
    host = Trial(outcome(status=TIMEOUT))
    assert ask(host).status == TIMEOUT
    assert host.asked[-1] == ["env", "/usr/bin/podman", "rm", "-f", "glm-check"]


@pytest.mark.parametrize("engine", engines.ENGINES.values(), ids=lambda one: one.name)
def test_every_engine_of_an_image_is_recognised_by_its_command(engine: engines.Engine) -> None:
    words = engines.make_image_command(engine)
    assert not any("/" in word or "{" in word for word in words)
    assert engines.find_engine_of_command([*words, "--port", "1"]) is engine


@pytest.mark.parametrize(
    ("cgroup", "belongs"),
    [
        ("0::/system.slice/inference-server.service/libpod-payload-87cd", True),
        ("0::/inference_server.slice/docker-a9ba.scope", True),
        ("5:devices:/inference_server.slice/a9ba\n0::/", True),
        ("0::/system.slice/docker-a9ba.scope", False),
        ("0::/system.slice/other.service/libpod-payload-87cd", False),
        ("0::/my_inference_server.slice/docker-a9ba.scope", False),
    ],
)
def test_a_process_of_a_container_belongs_to_the_unit_that_runs_it(cgroup: str, belongs: bool) -> None:
    host = Host().file("/proc/7/cgroup", cgroup + "\n")
    assert processes.is_of_unit(host, 7, "inference-server.service") is belongs


def test_the_type_of_a_model_is_looked_up_in_the_files_of_the_image(tmp_path: Path) -> None:
    table = tmp_path / "transformers/models/auto"
    table.mkdir(parents=True)
    (tmp_path / "transformers-5.2.0.dist-info").mkdir()
    (table / "configuration_auto.py").write_text('("glm5", "Glm5Config")\n')

    def ask_image(words: list[str]) -> str:
        environment = {"PYTHONPATH": str(tmp_path)}
        command = [sys.executable, "-S", *words[1:]]
        return subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True, check=True).stdout

    for kind, known in (("glm5", True), ("glm6", False)):
        host = Host().file("/srv/m/config.json", '{"model_type": "%s"}' % kind)
        found = model_type.read_type_of_image(host, "/srv/m", {}, ask_image)
        assert (found["known"], found["transformers"], found["config"]) == (known, "5.2.0", "/srv/m/config.json")
    host = Host().file("/srv/m/config.json", '{"model_type": "glm6", "auto_map": {"a": "b"}}')
    assert model_type.read_type_of_image(host, "/srv/m", {}, ask_image)["known"] is True
    assert model_type.read_type_of_image(host, "/srv/m", {}, lambda _words: "no python here")["transformers"] is None
    assert model_type.read_type_of_image(Host(), "org/name", {}, ask_image)["known"] is None
