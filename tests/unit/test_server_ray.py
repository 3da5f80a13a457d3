"""An engine whose ranks are started by Ray: what the processes of Ray say, and what the role starts.

The command lines and titles are those of a Ray 2.48.0 with two nodes on one machine, cut where nothing is read; the
lines of the log are those of vLLM 0.10.1 over two hosts, as somebody posted them.
"""

from __future__ import annotations

import importlib.util
from pathlib import Path
from typing import Any

import inference_server_arguments
import pytest
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, OK, Evidence, Outcome, Reading
from ansible.module_utils.gpu_server import engines, processes, ray_nodes, server_state, stall, watching
from ansible.module_utils.gpu_server.log import log_reader
from ansible.plugins.loader import action_loader

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = "/opt/vllm/lib/python3.11/site-packages/ray"
SESSION = "/tmp/ray/session_2026-11-30_22-03-37_560962_3920"
VLLM = engines.ENGINES["vllm"]


def _filters() -> Any:
    path = ROOT / "roles" / "inference_server" / "filter_plugins" / "inference_rank_arguments.py"
    spec = importlib.util.spec_from_file_location("inference_rank_arguments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ranks = _filters()


def raylet(ip: str, gpus: int | None = 1, head: bool = False, gcs: str = "10.0.0.1:20000") -> list[str]:
    inner = "node:__internal_head__,1.0," if head else ""
    resources = "node:%s,1.0,%sCPU,1,%smemory,17148915303,object_store_memory,7349535129" % (
        ip, inner, "" if gpus is None else "GPU,%d," % gpus)  # fmt: skip
    worker = "/opt/vllm/bin/python3 %s/_private/workers/setup_worker.py --node-ip-address=%s --gcs-address=%s" % (
        PACKAGES, ip, gcs)  # fmt: skip
    return [
        PACKAGES + "/core/src/ray/raylet/raylet", "--raylet_socket_name=%s/sockets/raylet" % SESSION,
        "--object_manager_port=0", "--min_worker_port=10002", "--max_worker_port=19999", "--node_ip_address=" + ip,
        "--static_resource_list=" + resources, "--python_worker_command=" + worker, "--temp_dir=/tmp/ray",
        "--gcs-address=" + gcs, "--labels=", *(["--head"] if head else []), "--num_prestart_python_workers=1",
        "--node-name=" + ip,
    ]  # fmt: skip


class Host(Evidence):
    """Evidence of some processes: number -> (parent, name, words, environment)."""

    def __init__(self, found: dict[int, tuple[int, str, list[str], str]]) -> None:
        self.files = {}
        self.table = {}
        for pid, (parent, name, words, environment) in found.items():
            self.files["/proc/%d/cmdline" % pid] = "\0".join(words) + "\0" * 40
            self.files["/proc/%d/environ" % pid] = environment
            self.table[pid] = processes.Process(pid, parent, name, "S", 1.0, 1000.0, 4)

    def read(self, path: str, limit: int = 0) -> Reading:
        return Reading(path, OK, self.files[path].encode()) if path in self.files else Reading(path, ABSENT)


def worker_host(environment: str = "VLLM_HOST_IP=10.0.0.2\0", ranks_here: int = 0, gpus: int = 2) -> Host:
    start = ["/opt/vllm/bin/python3", "/opt/vllm/bin/ray", "start", "--address=10.0.0.1:20000", "--block"]
    found = {
        10: (1, "ray", start, environment),
        11: (10, "raylet", raylet("10.0.0.2", gpus), environment),
        12: (10, "python3", ["/opt/vllm/bin/python3", "-u", PACKAGES + "/_private/log_monitor.py"], environment),
        13: (11, "ray::IDLE", ["ray::IDLE"], environment),
    }
    for number in range(ranks_here):
        title = "ray::RayWorkerWrapper" + (".execute_method" if number else "")
        found[20 + number] = (11, "ray::RayWorkerW", [title], environment)
    return Host(found)


def part_of(host: Host, follows: bool = True) -> dict[str, Any]:
    errors = Errors("server")
    top = ray_nodes.find_followers(host, host.table, [], errors)[0][0]
    node = ray_nodes.choose_node(host, top.pid, host.table, errors)
    return ray_nodes.read_part(host, VLLM, {}, node, host.table, errors, follows=follows)


def test_a_node_says_what_it_is() -> None:
    head = ray_nodes.parse_node(7, raylet("10.0.0.1", 8, head=True))
    assert (head.head, head.address, head.port, head.gpus) == (True, "10.0.0.1", 20000, 8)
    other = ray_nodes.parse_node(7, raylet("10.0.0.2", None, gcs="[fd00::1]:6379"))
    assert (other.head, other.address, other.port, other.gpus) == (False, "fd00::1", 6379, 0)
    assert other.python == "/opt/vllm/bin/python3"
    assert ray_nodes.parse_node(7, ["raylet", "--gcs-address=x:y"]).gpus is None
    assert ray_nodes.parse_node(7, ["raylet", "--static_resource_list=CPU,1.0,GPU,4.0"]).gpus == 4
    assert ray_nodes.parse_node(7, ["raylet", "--static_resource_list=GPU,many"]).gpus is None


def test_a_node_is_an_engines_by_its_ranks_or_its_environment() -> None:
    errors = Errors("server")
    for host, found in (
        (worker_host(), True), (worker_host("A=b\0"), False), (worker_host("A=b\0", ranks_here=1), True),
    ):  # fmt: skip
        followers = ray_nodes.find_followers(host, host.table, [], errors)
        assert [(top.pid, engine.name) for top, _words, engine in followers] == ([(10, "vllm")] if found else [])
    early = Host(
        {10: (1, "ray", ["python3", "/opt/vllm/bin/ray", "start", "--address=a:1", "--block"], "VLLM_HOST_IP=b\0")}
    )
    assert [top.pid for top, _words, _one in ray_nodes.find_followers(early, early.table, [], errors)] == [10]
    assert ray_nodes.waits_for_server(facts_of(part_of(early), "imports")), "it waits for the head without a raylet"
    head = Host({11: (1, "raylet", raylet("10.0.0.1", 2, head=True), "VLLM_HOST_IP=10.0.0.1\0")})
    assert ray_nodes.find_followers(head, head.table, [], errors) == []


@pytest.mark.parametrize(("here", "expected"), [(0, 2), (1, None), (2, 2)])
def test_the_ranks_of_a_node_are_counted_by_its_gpus(here: int, expected: int | None) -> None:
    part = part_of(worker_host(ranks_here=here))
    assert [rank["rank"] for rank in part["ranks"]] == list(range(here))
    assert part["ranks_expected"] == expected, "where only some have a rank, nobody here knows how many belong to it"
    node = part["node"]
    assert (node["follower"], node["rank"], node["address"], node["port"]) == (True, None, "10.0.0.1", 20000)


@pytest.mark.parametrize(
    ("words", "gpus", "hosts", "here"),
    [
        ("--tensor-parallel-size 16", 8, 2, 8),
        ("-tp 8 -pp 3", 8, 3, 8),
        ("-tp 4", 8, 1, 4),
        ("-tp 16", None, None, None),
    ],
)
def test_rank_0_takes_as_many_hosts_as_have_the_gpus(
    words: str, gpus: int | None, hosts: int | None, here: int | None
) -> None:
    live = engines.find_settings(VLLM, [*words.split(), "--distributed-executor-backend", "ray"])
    assert ray_nodes.uses_ray(VLLM, live)
    assert not ray_nodes.uses_ray(VLLM, {})
    node = None if gpus is None else ray_nodes.parse_node(7, raylet("10.0.0.1", gpus, head=True))
    part, expected = ray_nodes.describe_server(VLLM, live, node)
    assert (part["nodes"], expected, part["follower"]) == (hosts, here, False)
    assert part["peers_missing"] == (0 if hosts == 1 else None)


def facts_of(part: dict[str, Any], phase: str | None) -> dict[str, Any]:
    return {
        **part, "process": {"state": "S"}, "engine": "vllm", "compilers": [], "api": {"health": None},
        "log": {"phase": phase, "age_s": 1.0, "fatal": None, "progress": None}, "gpu": {"highest_mib": None},
    }  # fmt: skip


def test_a_node_without_ranks_waits_for_rank_0_and_is_never_ready() -> None:
    facts = facts_of(part_of(worker_host()), "imports")
    assert ray_nodes.waits_for_server(facts)
    assert watching.describe_start(facts) == "its Ray node waits for the ranks that rank 0 will start in it"
    assert server_state._state_of_follower(facts, "", 1.0)[0] == "starting"
    facts = facts_of(part_of(worker_host(ranks_here=1)), "graphs")
    assert server_state._state_of_follower(facts, "", 1.0)[0] is None
    facts = facts_of(part_of(worker_host(ranks_here=2)), "weights")
    assert server_state._state_of_follower(facts, "", 1.0)[0] == "starting"
    facts = facts_of(part_of(worker_host(ranks_here=2)), "graphs")
    assert server_state._state_of_follower(facts, "", 1.0)[0] == "ready"


# (EngineCore_0 pid=...) of a log that was posted; the line of the wait from vllm-project/aibrix, issue 927.
POSTED = """\
INFO 10-08 13:11:28 [utils.py:326] non-default args: {'model': 'Qwen/Qwen3', 'distributed_executor_backend': 'ray'}
(EngineCore_0 pid=132079) INFO 10-08 13:11:46 [core.py:74] Initializing a V1 LLM engine (v0.10.1.2.dev0) with config: x
(EngineCore_0 pid=132079) 2025-10-08 13:11:46,924\tINFO worker.py:1951 -- Connected to Ray cluster.
(EngineCore_0 pid=132079) INFO 10-08 13:11:50 [ray_utils.py:339] No current placement group found. Creating a new \
placement group.
WARNING 10-08 13:11:50 [ray_utils.py:320] The number of required GPUs exceeds the total number of available GPUs in \
the placement group.
INFO 10-08 13:12:00 [ray_utils.py:214] Waiting for creating a placement group of specs for 10 seconds. \
specs=[{'node:10.163.194.101': 0.001, 'GPU': 1.0}, {'GPU': 1.0}]. Check `ray status` to see if you have enough resources
"""
GOES_ON = """\
(EngineCore_0 pid=132079) INFO 10-08 13:12:01 [ray_env.py:65] Copying the following environment variables to workers: []
(EngineCore_0 pid=132079) (RayWorkerWrapper pid=132266) INFO 10-08 13:12:14 [gpu_model_runner.py:1953] Starting to \
load model Qwen/Qwen3...
"""


def test_a_start_that_waits_for_a_placement_group_says_for_whom() -> None:
    log = log_reader.read_log(POSTED, 1759929200.0, engine=VLLM)
    assert (log["phase"], log["fatal"]) == ("placement", None)
    assert log_reader.read_log(POSTED + GOES_ON, 1759929200.0, engine=VLLM)["phase"] == "weights"
    node = {"rank": 0, "nodes": 2, "address": "10.0.0.1", "port": 20000, "follower": False, "ray": True}
    node.update(peers=[], peers_missing=1)
    name_absent = action_loader.get("inference_server_ready", class_only=True).run.__globals__["name_absent"]
    facts = facts_of({"node": node, "ranks": []}, "placement")
    name_absent(facts, {"rank 1 (gpu2)": "10.0.0.2"})
    assert watching.describe_start(facts) == (
        "waits until Ray has a GPU for each rank; not connected yet: rank 1 (gpu2)"
    )
    told = stall._describe_missing_hosts(facts)
    assert told == "Ray at 10.0.0.1 port 20000 waits for the GPUs of rank 1 (gpu2); connected: none"
    node["peers"], node["peers_missing"] = ["10.0.0.2"], 0
    name_absent(facts, {"rank 1 (gpu2)": "10.0.0.2"})
    assert "not connected" not in watching.describe_start(facts)


@pytest.mark.parametrize(
    ("line", "kind"),
    [
        ("[2026-11-30 22:02:01,431 W 2366 2366] gcs_rpc_client.h:151: Failed to connect to GCS at address "
         "127.0.0.2:26379 within 5 seconds.", None),
        ("RuntimeError: Failed to connect to GCS. Last connection error: RPC Error message: Deadline", "host_missing"),
        ("RuntimeError: Version mismatch: The cluster was started with:", "versions_differ"),
        ("ValueError: Cannot provide a placement group of placement_group_specs=[{'GPU': 1.0}] within 1800 seconds.",
         "host_missing"),
    ],
)  # fmt: skip
def test_what_ray_says_of_its_faults(line: str, kind: str | None) -> None:
    fatal = log_reader.read_log(line + "\n", 1000.0, engine=VLLM)["fatal"]
    assert (fatal or {}).get("kind") == kind


def test_the_line_of_a_rank_says_on_which_host_it_is() -> None:
    name_place = action_loader.get("inference_server_ready", class_only=True).run.__globals__["name_place"]
    line = "its log: (RayWorkerWrapper pid=7, ip=10.0.0.2) torch.OutOfMemoryError"
    assert name_place(line, {"rank 1 (gpu2)": "10.0.0.2", "rank 2 (gpu3)": "10.0.0.22"}) == " (rank 1 (gpu2))"
    assert name_place(line, {"rank 1 (gpu2)": "10.0.0.3", "rank 2 (gpu3)": ""}) == ""


@pytest.mark.parametrize(
    ("engine", "arguments", "options", "container", "needed", "problem"),
    [
        ("vllm", {}, ["--port", "--nnodes"], False, False, ""),
        ("vllm", {}, ["--port"], False, True, ""),
        ("vllm", {"distributed_executor_backend": "ray"}, ["--port", "--nnodes"], False, True, ""),
        ("vllm", {"distributed-executor-backend": "mp"}, ["--port"], False, True, "has no --nnodes and needs Ray"),
        ("vllm", {}, ["--port"], True, True, "does not do in a container"),
        ("vllm", {}, [], False, False, ""),  # in check mode, an engine that is not installed yet
        ("sglang", {}, ["--port"], False, False, ""),
    ],
)
def test_ray_is_needed_where_the_engine_has_no_argument_for_several_hosts(
    engine: str, arguments: dict[str, Any], options: list[str], container: bool, needed: bool, problem: str
) -> None:
    found = ranks.find_ray_problem(engine, arguments, options, container)
    assert found["needed"] == needed
    assert problem in found["problem"]
    assert bool(found["problem"]) == bool(problem)


class Answers(Evidence):
    """An engine that answers each way to ask for help."""

    def __init__(self, by_way: dict[str, str]) -> None:
        self.by_way = by_way

    def run(self, argv: Any, limit_s: float = 0.0) -> Outcome:
        text = self.by_way.get(argv[-1])
        return Outcome(tuple(argv), OK, 2 if text is None else 0, (text or "error: ignored explicit argument").encode())


@pytest.mark.parametrize(
    ("by_way", "options"),
    [
        ({"--help=all": "  --port P\n  --nnodes N\n", "--help": "  --help\n"}, ["--nnodes", "--port"]),
        # 0.9 and 0.10 search for the word "all"; 0.8 refuses it.
        ({"--help=all": "  --disable-custom-all-reduce\n", "--help": "  --port P\n  --tp N\n"}, ["--port", "--tp"]),
        ({"--help": "  --port P\n  --tp N\n"}, ["--port", "--tp"]),
        ({}, []),
    ],
)
def test_every_version_is_asked_for_its_options_in_its_own_way(by_way: dict[str, str], options: list[str]) -> None:
    params = {"engine": "vllm", "command": ["vllm", "serve"], "container": None, "timeout": 5}
    found = inference_server_arguments.ask_for_help(Answers(by_way), params, {})[1]
    assert sorted(found) == options


def test_each_host_runs_its_node_and_the_first_the_engine() -> None:
    engine = ["/opt/vllm/bin/python", "-m", "vllm.entrypoints.cli.main", "serve", "a model"]
    first = ranks.make_ray_command(engine, "/opt/vllm/bin/ray", 0, "10.0.0.1", 20000, "10.0.0.1", 8)
    assert first[:2] == ["/bin/sh", "-c"]
    assert first[2] == (
        "/opt/vllm/bin/ray start --head --port=20000 --node-ip-address=10.0.0.1 --num-gpus=8 "
        '--include-dashboard=false --disable-usage-stats && exec "$@"'
    )
    assert first[4:] == engine
    other = ranks.make_ray_command(engine, "/opt/vllm/bin/ray", 1, "fd00::1", 20000, "fd00::2", 8)
    assert other == [
        "/opt/vllm/bin/ray", "start", "--address=[fd00::1]:20000", "--node-ip-address=fd00::2", "--num-gpus=8",
        "--block",
    ]  # fmt: skip
    plan = ranks.plan_arguments("vllm", 0, 2, "gpu1", 20000, True)
    assert plan["arguments"] == {"distributed-executor-backend": "ray"}
    assert "nnodes" in plan["reserved"]
    assert plan["address_variable"] == "VLLM_HOST_IP"
    members = ranks.list_members(["gpu1", "gpu2", "gpu3"], {
        "gpu1": {}, "gpu2": {"__inference_server_rank_way": {"brings": {"source": "10.0.0.2"}}}, "gpu3": {},
    })  # fmt: skip
    assert members == {"rank 1 (gpu2)": "10.0.0.2", "rank 2 (gpu3)": ""}


@pytest.mark.parametrize(
    ("active", "seconds", "state"),
    [
        ("active", 10.0, "waiting"),
        ("active", 100.0, "waiting"),
        ("active", 400.0, "failed"),
        ("inactive", 100.0, "failed"),
    ],
)
def test_a_unit_may_run_something_before_its_engine(active: str, seconds: float, state: str) -> None:
    moving = {"log_lines": 1, "last_line": "x", "phase": None, "memory": {}, "compilers": 0, "read_bytes": 0}
    facts = {
        "moving": moving, "state": "stopped", "why": "a.service is %s" % active, "fault": None, "log": {"phase": None},
        "unit": {"active": active, "restarts": 0},
    }  # fmt: skip
    watch = watching.Watch()
    assert watch.look(facts, 1000.0).state == "waiting"
    assert watch.look(facts, 1000.0 + seconds).state == state
