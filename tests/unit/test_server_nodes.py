"""A server over several hosts: what one host knows of its part, and what all ranks say together."""

from __future__ import annotations

import importlib.util
import os
import socket
import sys
from pathlib import Path
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(Path(__file__).resolve().parent))
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, DENIED, OK, Evidence, Reading
from ansible.module_utils.gpu_host.probe import host_network
from ansible.module_utils.gpu_server import engines, nodes, ports, rank_host
from engine_standin import free_port, running

HEAD = "  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode\n"
ROW = "   0: %s %s %s 00000000:00000000 00:00000000 00000000     0        0 12345 1 0000000000000000 100 0 0 10 0\n"


def _filters() -> Any:
    path = ROOT / "roles" / "inference_server" / "filter_plugins" / "inference_rank_arguments.py"
    spec = importlib.util.spec_from_file_location("inference_rank_arguments", path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


ranks = _filters()


class Files(Evidence):
    """Evidence that holds some files, and nothing else."""

    def __init__(self, files: dict[str, str], denied: tuple[str, ...] = ()) -> None:
        self.files, self.denied = files, denied

    def read(self, path: str, limit: int = 0) -> Reading:
        if path in self.denied:
            return Reading(path, DENIED)
        return Reading(path, OK, self.files[path].encode()) if path in self.files else Reading(path, ABSENT)


def node_of(name: str, words: str) -> tuple[dict[str, Any], int | None]:
    engine, errors = engines.ENGINES[name], Errors("server")
    live = engines.find_settings(engine, words.split())
    node = nodes.read_node(engine, live, errors)
    return node, nodes.count_local_ranks(engine, live, node)


@pytest.mark.parametrize(
    ("engine", "words", "rank", "count", "local", "first", "place"),
    [
        ("sglang", "--tp 8", 0, 1, 8, 0, (None, None)),
        ("sglang", "--tp 16 --nnodes 2 --node-rank 1 --dist-init-addr 10.0.0.1:20000", 1, 2, 8, 8, ("10.0.0.1", 20000)),
        ("sglang", "--tp-size 16 --nnodes 2 --dist-init-addr [fd00::1]:5000", 0, 2, 8, 0, ("fd00::1", 5000)),
        ("sglang", "--tp 8 --pp-size 2 --nnodes 2 --node-rank 1", 1, 2, 8, None, (None, None)),
        ("sglang", "--tp 16 --pp-size 2 --nnodes 4 --node-rank 3", 3, 4, 8, None, (None, None)),
        ("vllm", "-tp 16 -n 2 -r 1 --master-addr gpu1 --master-port 29501 --headless", 1, 2, 8, 8, ("gpu1", 29501)),
        ("vllm", "--tensor-parallel-size 8 -pp 2 --nnodes 2 --node-rank 0 --master-addr gpu1", 0, 2, 8, None,
         ("gpu1", None)),
        ("transformers", "--nnodes 2", 0, 1, 1, 0, (None, None)),
    ],
)  # fmt: skip
def test_the_part_of_a_host_is_in_its_arguments(
    engine: str, words: str, rank: int, count: int, local: int, first: int | None, place: tuple[Any, Any]
) -> None:
    node, here = node_of(engine, words)
    assert (node["rank"], node["nodes"], here, node["first_rank"]) == (rank, count, local, first)
    assert (node["address"], node["port"]) == place
    assert node["follower"] == (rank > 0)


@pytest.mark.parametrize(
    ("engine", "words", "spans"),
    [
        ("sglang", "--tp 8", False),  # one host
        ("sglang", "--tp 16 --nnodes 2", True),
        ("sglang", "--tp 8 --pp-size 2 --nnodes 2", True),
        ("sglang", "--tp 8 --dp 2 --nnodes 2", False),  # a copy of the model on each host: each answers alone
        ("sglang", "--nnodes 2", False),
        ("sglang", "--tp 16 --nnodes two", None),
        ("sglang", "--tp many --nnodes 2", None),
        ("vllm", "-tp 8 -pp 2 -n 2 -r 1 --headless", True),
        ("vllm", "-tp 8 -dp 2 -n 2", False),
    ],
)
def test_whether_a_generation_takes_the_ranks_of_all_hosts(engine: str, words: str, spans: bool | None) -> None:
    assert node_of(engine, words)[0]["spans_hosts"] is spans


def test_a_rank_that_is_no_number_is_not_taken_for_one() -> None:
    node, here = node_of("sglang", "--tp 16 --nnodes two --node-rank x --dist-init-addr nowhere")
    assert (node["rank"], node["nodes"], here, node["port"]) == (None, None, None, None)
    assert node["peers_missing"] is None


def test_other_hosts_are_counted_by_their_connections() -> None:
    table = HEAD + ROW % ("0100000A:4E20", "00000000:0000", "0A")
    table += ROW % ("0100000A:4E20", "0100000A:9C41", "01")  # its own rank
    table += ROW % ("0100000A:4E20", "0200000A:9C41", "01") + ROW % ("0100000A:4E20", "0200000A:9C42", "01")
    table += ROW % ("0100000A:4E20", "0300000A:9C41", "06") + ROW % ("0100000A:1F40", "0400000A:9C41", "01")
    mapped = HEAD + ROW % ("0000000000000000FFFF00000100000A:4E20", "0000000000000000FFFF00000500000A:9C41", "01")
    evidence = Files({"/proc/net/tcp": table, "/proc/net/tcp6": mapped})
    assert ports.find_clients(evidence, 20000) == ["10.0.0.2", "10.0.0.5"]
    node, _here = node_of("sglang", "--tp 32 --nnodes 4 --node-rank 0 --dist-init-addr 10.0.0.1:20000")
    nodes.count_peers(evidence, node)
    assert (node["peers"], node["peers_missing"]) == (["10.0.0.2", "10.0.0.5"], 1)
    node, _here = node_of("sglang", "--tp 32 --nnodes 4 --node-rank 0 --dist-init-addr 10.0.0.1:20000")
    nodes.count_peers(Files({}, denied=("/proc/net/tcp",)), node)
    assert node["peers_missing"] is None


@pytest.mark.slow
def test_a_rank_without_an_api_is_ready_and_is_not_asked(tmp_path: Path) -> None:
    (tmp_path / "zero").mkdir()
    (tmp_path / "one").mkdir()
    meeting = ("--nnodes", "2", "--dist-init-addr", "127.0.0.1:%d" % free_port())
    with running(tmp_path / "one", "healthy", words=(*meeting, "--node-rank", "1")) as follower:
        alone = follower.facts(light=True, generate="idle")
        assert alone["state"] == "starting"
        assert alone["why"].startswith("rank 1 of 2 hosts; requests go to rank 0 at 127.0.0.1")
        with running(tmp_path / "zero", "healthy", words=meeting) as first:
            assert first.wait(scale=0.2, model="glm-5")[0].state == "ready"
            verdict, _watch = follower.wait(scale=0.2)
            assert verdict.state == "ready", verdict
            facts = follower.facts(generate="always")
    assert (facts["ranks_expected"], [rank["rank"] for rank in facts["ranks"]]) == (1, [1])
    assert facts["ranks_missing"] == 0
    assert facts["generation"]["ran"] is False
    assert facts["api"]["models_problem"] is None
    assert facts["exposed"] is False
    assert [entry for entry in facts["errors"] if "/v1/models" in entry["source"]] == []


def row(host: str, **brings: Any) -> dict[str, Any]:
    alike = {"versions": {"sglang": "0.5.23"}, "model": {"config.json": "a" * 64}, "gpus": 8}
    arguments = brings.pop("arguments", {"tp": 16})
    return {"host": host, "problems": brings.pop("problems", []), "arguments": arguments, "brings": {**alike, **brings}}


@pytest.mark.parametrize(
    ("second", "told"),
    [
        ({}, None),
        ({"versions": {"sglang": "0.5.22"}}, "the version of sglang is 0.5.22, and 0.5.23 on rank 0"),
        ({"versions": {}}, "the version of sglang is not there, and 0.5.23 on rank 0"),
        ({"model": {"config.json": "b" * 64}}, "the model's config.json is bbbbbbbbbbbb, and aaaaaaaaaaaa on rank 0"),
        ({"model": None}, "the model's config.json is not there"),
        ({"arguments": {"tp": 8}}, "the argument tp is 8, and 16 on rank 0"),
        ({"gpus": 4}, "the hosts have 8 + 4 = 12 GPUs"),
        ({"problems": ["it does not reach rank 0 at gpu1 port 20000: refused"]}, "rank 1 (gpu2): it does not reach"),
    ],
)
def test_hosts_that_do_not_fit_are_told_apart(second: dict[str, Any], told: str | None) -> None:
    found = ranks.find_disagreements([row("gpu1"), row("gpu2", **second)], "sglang")
    assert (found == []) if told is None else any(told in one for one in found), found


def test_a_host_that_was_lost_does_not_fit() -> None:
    rows = ranks.list_rows(["gpu1", "gpu2"], {"gpu1": {"__inference_server_says": row("gpu1")}, "gpu2": {}}, "now")
    assert [one["brings"] for one in rows] == [None, None], "what was said at another stage counts for nothing"
    assert "rank 1 (gpu2) could not be looked at" in ranks.find_disagreements(rows, "sglang")


@pytest.mark.parametrize(("gpus", "arguments", "right"), [
    ((8, 8), {"tp": 16}, True), ((8, 8), {"tp": 8, "pp-size": 2}, True), ((8, 8), {"tp": 16, "dp": 16}, True),
    ((8, 8), {"tp": 8}, False), ((8, 4), {"tp": 12}, False), ((4, 4), {"tp": 4, "dp-size": 2}, True),
])  # fmt: skip
def test_there_are_as_many_ranks_as_gpus(gpus: tuple[int, int], arguments: dict[str, Any], right: bool) -> None:
    rows = [row("gpu%d" % number, gpus=count, arguments=arguments) for number, count in enumerate(gpus)]
    assert (ranks.find_disagreements(rows, "sglang") == []) == right


def test_the_rank_that_failed_comes_before_those_that_ended_with_it() -> None:
    failed = {"state": "failed", "msg": "failed: GPU memory ran out", "cause": "out_of_memory"}
    gone = {"state": "failed", "msg": "failed: another rank ended first", "cause": "peer_gone"}
    waited = {"state": "failed", "msg": "failed: it waited", "cause": "other_rank"}
    rows = [{"host": "gpu1", "result": gone}, {"host": "gpu2", "result": waited}, {"host": "gpu3", "result": failed}]
    text = ranks.judge_start(rows)
    assert text.startswith("rank 2 (gpu3) is missing: failed: GPU memory ran out")
    assert text.endswith("Ended with it: rank 0 (gpu1), rank 1 (gpu2).")
    assert "the host was lost" in ranks.judge_start([*rows[:2], {"host": "gpu3", "result": None}])
    assert ranks.judge_start(rows[:1]).startswith("The ranks did not come together. rank 0 (gpu1): failed: another")
    assert ranks.judge_start([{"host": "gpu1", "result": {"state": "ready"}}]) == ""


def test_each_engine_is_told_its_rank_in_its_own_words() -> None:
    plan = ranks.plan_arguments("sglang", 1, 2, "10.0.0.1", 20000)
    assert plan["arguments"] == {"nnodes": 2, "node-rank": 1, "dist-init-addr": "10.0.0.1:20000"}
    assert ranks.plan_arguments("sglang", 0, 2, "fd00::1", 1)["arguments"]["dist-init-addr"] == "[fd00::1]:1"
    first, second = (ranks.plan_arguments("vllm", rank, 2, "gpu1", 20000) for rank in (0, 1))
    meeting = {"nnodes": 2, "master-addr": "gpu1", "master-port": "20000"}
    assert first["arguments"] == {**meeting, "node-rank": 0}
    assert second["arguments"] == {**meeting, "node-rank": 1, "headless": True}
    assert first["reserved"] == ["nnodes", "node-rank", "master-addr", "master-port", "headless"]
    with pytest.raises(Exception, match="Those that are: sglang, vllm"):
        ranks.plan_arguments("llamacpp", 0, 2, "gpu1", 1)


@pytest.mark.parametrize(
    ("setting", "exact", "found"),
    [
        ("eth", False, ["eth0", "eth1"]), ("=eth", False, []), ("=eth1", False, ["eth1"]), ("^lo,docker", False,
        ["eth0", "eth1"]), ("eth", True, []), ("eth0,ib0", True, ["eth0"]), ("ens3", False, []),
    ],
)  # fmt: skip
def test_interfaces_are_named_as_nccl_and_gloo_take_them(setting: str, exact: bool, found: list[str]) -> None:
    assert rank_host.match_interfaces(setting, ["docker0", "eth0", "eth1", "lo"], exact) == found


def test_a_port_is_tried_before_it_is_needed() -> None:
    port = free_port()
    assert rank_host.find_port_problem("127.0.0.1", port) is None
    assert "refused" in str(rank_host.find_connection_problem("127.0.0.1", port, True))
    listener = rank_host.start_listening("127.0.0.1", port, 20)
    assert listener
    try:
        assert rank_host.find_connection_problem("127.0.0.1", port, True) is None
        assert rank_host.find_port_problem("127.0.0.1", port) == "in use"
        assert rank_host.start_listening("127.0.0.1", port, 1) is None
    finally:
        os.kill(listener, 9)
        os.waitpid(listener, 0)
    with socket.create_server(("127.0.0.1", 0)) as other:
        other.settimeout(10)
        number = int(other.getsockname()[1])
        assert rank_host.find_connection_problem("127.0.0.1", number, False) is None


def test_the_way_to_rank_0_is_read_by_one_reader() -> None:
    assert host_network.find_interface("127.0.0.1") == "lo"
    assert host_network.find_interface("192.0.2.77") is None
    way = host_network.find_way("127.0.0.1")
    assert (way["address"], way["source"], way["problem"]) == ("127.0.0.1", "127.0.0.1", None)
    assert "lo" in host_network.list_interfaces()
    assert "lo" not in [row["interface"] for row in host_network.list_addresses()]
    assert "is not known here" in host_network.find_way("no.such.name.invalid")["problem"]


def test_a_model_is_told_by_what_says_how_it_is_cut(tmp_path: Path) -> None:
    assert rank_host.hash_model(str(tmp_path)) is None
    assert rank_host.hash_model("") is None
    (tmp_path / "config.json").write_text("{}")
    first = rank_host.hash_model(str(tmp_path))
    (tmp_path / "config.json").write_text("{ }")
    assert first
    assert rank_host.hash_model(str(tmp_path)) != first
