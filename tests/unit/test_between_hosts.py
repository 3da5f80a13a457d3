"""The all-reduce between hosts: planned, run for real between two network namespaces on the stand-ins, and judged."""

from __future__ import annotations

import contextlib
import copy
import json
import os
import shutil
import struct
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "hardware"))

import between_hosts as two_hosts
import nccl_standin
import pytest
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.p2p_probe import gather_between_hosts
from ansible.module_utils.gpu_host.probe import between_hosts, host_network, host_ranks
from nccl_standin import LARGE, SMALL
from probe_library import A, B, environment

pytestmark = pytest.mark.xdist_group("between_hosts")  # each looks for what the others could have left behind
NO_NAMESPACES = os.geteuid() != 0 or shutil.which("ip") is None
LIMITS = {"join_limit_s": 4.0, "step_limit_s": 2.0, "arm_limit_s": 12.0, "limit_s": 30.0}


# -- for real, between two network namespaces
# ----------------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nccl_standin.compiled(tmp_path_factory.mktemp("libnccl-between"))


@pytest.fixture(scope="module")
def places(library: Path) -> Iterator[list[two_hosts.Place]]:
    if NO_NAMESPACES:
        pytest.skip("network namespaces need root and ip")
    with environment(LD_LIBRARY_PATH=str(library)), two_hosts.two_places(networks=2) as made:
        if made[0].namespace is None:
            pytest.skip("network namespaces cannot be made here")
        yield made


def measured(
    places: list[two_hosts.Place], library: Path, arms: int = 1, absent: bool = False, **steered: str
) -> dict[str, Any]:
    """The raw result of an all-reduce between the two; `two_NAME=value` steers the second host alone."""
    more: dict[str, dict[str, str]] = {host: {"STANDIN_NCCL_TCP": "1"} for host in two_hosts.HOSTS}
    for name, value in steered.items():
        for host in two_hosts.HOSTS if not name.startswith("two_") else ("two",):
            more[host][name.removeprefix("two_")] = value
    path = str(library / "libnccl.so.2")
    raw, _looks = two_hosts.measure(places, (A, B), path, (SMALL, LARGE), more, absent, LIMITS, arms)
    assert left_behind() == []
    return raw


def left_behind() -> list[str]:
    """Processes of ranks that are still there, by the directory that they run in, and directories of theirs."""
    time.sleep(0.1)
    found = [str(path) for path in Path(tempfile.gettempdir()).glob("gpu-host-between-*")]
    for entry in Path("/proc").glob("[0-9]*/cwd"):
        with contextlib.suppress(OSError):
            if "/gpu-host-between-" in str(entry.readlink()):
                found.append(str(entry))
    return found


def facts_of(raw: dict[str, Any]) -> dict[str, Any]:
    """The facts as they come out of a bundle."""
    answer = {"run": list(between_hosts.BETWEEN_COMMAND), "status": "ok", "rc": 0, "stdout": json.dumps(raw)}
    evidence = bundle.BundleEvidence({}, [answer])
    errors = Errors("probe")
    found = gather_between_hosts(evidence, errors)
    assert not any("another shape" in entry["problem"] for entry in errors.entries), errors.entries
    return found


def test_the_hosts_sum_over_the_network_and_the_faster_one_is_named(places: Any, library: Path) -> None:
    raw = measured(places, library, 3, STANDIN_NCCL_RATES="eth1=2000")
    found = facts_of(raw)
    assert (found["verdict"], found["ran"], found["missing"], found["wrong"]) == ("ok", True, [], [])
    assert found["network"] == {"kind": "Socket", "devices": ["eth0"], "channels": 1, "gdr_channels": 0, "disabled": []}
    assert (found["nccl"], found["gdr"], found["rank_count"], found["hosts"]) == ("2.28.9", False, 2, ["one", "two"])
    assert found["link"] == {"gb_s": 1.25, "text": "eth0 10 Gbit/s on one"} and found["slow"] == []
    figure = found["bus_bandwidth_gb_s"]
    assert figure["size_bytes"] == LARGE and 0 < figure["min"] <= figure["median"] <= figure["max"]
    assert found["share_of_link"] == pytest.approx(figure["median"] / 1.25, abs=0.001)
    assert set(found["arms"]) == {"configured", "network 10.77.0.0/24", "network 10.77.1.0/24"}
    assert found["arms"]["network 10.77.1.0/24"]["devices"] == {"one": ["eth1"], "two": ["eth1"]}
    assert len(found["faster_controls"]) == 1 and "Socket over eth1" in found["faster_controls"][0]


def test_wrong_values_are_named_with_rank_and_host(places: Any, library: Path) -> None:
    found = facts_of(measured(places, library, STANDIN_NCCL_WRONG="1@%d" % LARGE))
    assert (found["verdict"], found["connected"], found["completed"]) == ("wrong_values", True, True)
    assert found["wrong"] == [text for text in found["wrong"] if text.startswith("%d bytes: 1 wrong" % LARGE)]
    assert "on rank 1 (two)" in found["explanation"]


@pytest.mark.slow
def test_a_rank_that_stops_is_a_hang(places: Any, library: Path) -> None:
    found = facts_of(measured(places, library, two_STANDIN_NCCL_HANG="1@%d" % LARGE))
    assert found["verdict"] == "hangs" and "in place" in found["explanation"]
    assert "one: rank 0 (%s)" % A in found["explanation"] and "two: rank 1 (%s)" % B in found["explanation"]


@pytest.mark.slow
def test_a_rank_that_never_joins_is_no_connection(places: Any, library: Path) -> None:
    found = facts_of(measured(places, library, two_STANDIN_NCCL_INIT_HANG="1"))
    assert found["verdict"] == "no_connection"
    assert "two: rank 1 (%s) waits in 'ncclCommInitRank'" % B in found["explanation"]


def test_a_host_that_never_comes_is_named(places: Any, library: Path) -> None:
    began = time.monotonic()
    raw = measured(places, library, absent=True)
    found = facts_of(raw)
    assert time.monotonic() - began < 8 and raw["hosts"][0]["result"]["stopped"] == "not all hosts came"
    assert (found["verdict"], found["missing"]) == ("no_connection", ["rank 1 (two): its ranks were not started"])


def test_an_address_that_the_other_cannot_reach_is_told(places: Any, library: Path) -> None:
    """NCCL of rank 0 chose an interface that joins nothing (a firewall that rejects looks the same)."""
    two_hosts._ip("-n", places[0].namespace, "link", "add", "aaa0", "type", "veth", "peer", "name", "aaa1")
    try:
        two_hosts._ip("-n", places[0].namespace, "address", "add", "10.99.0.1/24", "dev", "aaa0")
        for name in ("aaa0", "aaa1"):
            two_hosts._ip("-n", places[0].namespace, "link", "set", name, "up")
        raw = measured(places, library, NCCL_SOCKET_IFNAME="aaa", two_NCCL_SOCKET_IFNAME="eth0")
    finally:
        two_hosts._ip("-n", places[0].namespace, "link", "del", "aaa0")
    found = facts_of(raw)
    assert found["verdict"] == "no_connection"
    assert found["missing"][0].startswith("rank 1 (two): there is no route to 10.99.0.1:")


def test_a_play_that_is_killed_leaves_nothing(places: Any, library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The ranks' own limit ends them, and the directory goes where nobody fetches it."""
    module = two_hosts.load_module()
    gpu = {"nccl": {"path": str(library / "libnccl.so.2"), "owner": None}}
    plan = {"arms": [{"name": "configured", "environment": {"one": {}}}], "ranks": {"one": [0]}, "addresses": [A, B]}
    order = module.between_hosts.make_order(
        {**plan, "sizes": [SMALL]}, "one", gpu, {"STANDIN_NCCL_TCP": "1"}, None, "t"
    )
    started = places[0].call("first", {"order": {**order, "limit_s": 1.5}})
    directory = Path(started["directory"])
    assert started["identifiers"]["configured"] and directory.is_dir()
    os.utime(directory / host_ranks.ALIVE, (1, 1))
    ends = time.monotonic() + 10
    while directory.exists() and time.monotonic() < ends:
        time.sleep(0.05)
    assert left_behind() == []


# -- what is run
# ----------------------------------------------------------------------------------------------------------------------


def look(address: str, **more: Any) -> dict[str, Any]:
    rows = [{"interface": "eth0", "address": address, "network": "10.0.0.0/24"}]
    found = {
        "gpus": [A, B], "busy": None, "nccl": {"path": "/opt/libnccl.so.2", "owner": None, "version": "2.28.9",
        "reason": None}, "way": {"address": "10.0.0.1", "source": address, "interface": "eth0", "problem": None},
        "addresses": rows, "speeds": {"eth0": 25000}, "rdma": [],
    }  # fmt: skip
    return {**found, **more}


def planned(**of_second: Any) -> dict[str, Any]:
    hosts = [{"host": "gpu1", "look": look("10.0.0.1"), "lost": None, "own_probe": None}]
    second = {"host": "gpu2", "look": look("10.0.0.2"), "lost": None, "own_probe": None}
    for name, value in of_second.items():
        if name in second:
            second[name] = value
        else:
            second["look"] = {**second["look"], name: value}
    return between_hosts.plan_run([*hosts, second])


def test_ranks_go_through_the_hosts_in_their_order() -> None:
    plan = planned()
    assert plan["ranks"] == {"gpu1": [0, 1], "gpu2": [2, 3]} and plan["addresses"] == [A, B, A, B]
    assert (
        [arm["name"] for arm in plan["arms"]] == ["configured"] and plan["not_run"] is None and plan["problems"] == []
    )


@pytest.mark.parametrize(
    ("of_second", "says"),
    [
        ({"look": None, "lost": "it was not reached"}, "gpu2 was not looked at: it was not reached"),
        ({"busy": "the GPUs are in use by sglang (pid 7)"}, "gpu2: the GPUs are in use by sglang (pid 7)"),
        ({"own_probe": "P2P does not deliver on this host"}, "gpu2: P2P does not deliver on this host"),
        ({"gpus": []}, "gpu2: nvidia-smi shows no GPU"),
    ],
)
def test_nothing_runs_beside_a_server_or_without_a_host(of_second: dict[str, Any], says: str) -> None:
    plan = planned(**of_second)
    assert (plan["not_run"], plan["arms"]) == (says, [])


@pytest.mark.parametrize(
    ("of_second", "says"),
    [
        (
            {"nccl": {"path": "/usr/lib/libnccl.so.2", "version": "2.21.5"}},
            "the versions of NCCL differ: 2.28.9 on gpu1",
        ),
        (
            {"nccl": {"path": None, "version": None, "reason": "none was found"}},
            "gpu2: no NCCL can be loaded: none was",
        ),
        (
            {"way": {"address": None, "problem": "the name gpu1 is not known here: x"}},
            "gpu2: the name gpu1 is not known",
        ),
        (
            {"way": {"address": "127.0.1.1", "problem": None, "interface": "lo"}},
            "gpu2: the address of rank 0, 127.0.1.1, is",
        ),
    ],
)
def test_what_keeps_hosts_from_meeting_is_told_before_anything_runs(of_second: dict[str, Any], says: str) -> None:
    plan = planned(**of_second)
    assert plan["arms"] == [] and len(plan["problems"]) == 1 and plan["problems"][0].startswith(says)


def test_controls_are_run_for_what_the_hosts_have() -> None:
    port = [{"device": "mlx5_0", "port": 1, "active": True, "gigabits_s": 400.0, "layer": "InfiniBand"}]
    hosts = [
        {"host": name, "look": look(address, rdma=port), "lost": None, "own_probe": None}
        for name, address in (("gpu1", "10.0.0.1"), ("gpu2", "10.0.0.2"))
    ]
    for number, one in enumerate(hosts, start=1):
        one["look"]["addresses"] = [
            *one["look"]["addresses"],
            {"interface": "docker0", "address": "172.17.0.1", "network": "172.17.0.0/16"},
            {"interface": "nebula%d" % number, "address": "192.168.9.%d" % number, "network": "192.168.9.0/24"},
        ]
    plan = between_hosts.plan_run(hosts)
    arms = {arm["name"]: arm["environment"] for arm in plan["arms"]}
    assert list(arms) == ["configured", "gdr_off", "ib_disabled", "network 10.0.0.0/24", "network 192.168.9.0/24"]
    assert arms["configured"] == {"gpu1": {}, "gpu2": {}}
    assert arms["gdr_off"]["gpu1"] == {"NCCL_NET_GDR_LEVEL": "LOC", "NCCL_NET_GDR_READ": "0"}
    assert arms["network 192.168.9.0/24"]["gpu2"] == {"NCCL_SOCKET_IFNAME": "=nebula2", "NCCL_IB_DISABLE": "1"}
    assert plan["sizes"][-1] == 256 << 20
    hosts[1]["look"]["rdma"] = [{**port[0], "active": None}]
    assert "gdr_off" not in [arm["name"] for arm in between_hosts.plan_run(hosts)["arms"]]


@pytest.mark.parametrize(
    ("speed", "largest"), [(1000, 16 << 20), (25000, 64 << 20), ("n/a", 64 << 20), (None, 64 << 20)]
)
def test_a_slow_link_gets_smaller_sizes(speed: Any, largest: int) -> None:
    assert between_hosts.choose_sizes([look("10.0.0.1", speeds={"eth0": speed}), look("10.0.0.2")])[-1] == largest


@pytest.mark.parametrize(
    ("probe", "says"),
    [
        (None, "its own probe did not run"),
        ({"attempted": False}, "its own probe did not run"),
        ({"attempted": True, "cuda": {"initialised": None}}, "CUDA does not initialise"),
        (
            {"attempted": True, "cuda": {"initialised": True}, "all_delivered": False},
            "P2P does not deliver on this host",
        ),
        ({"attempted": True, "cuda": {"initialised": True}, "hung_pairs": ["a->b"]}, "its own probe hung"),
        (
            {"attempted": True, "cuda": {"initialised": True}, "collective": {"verdict": "wrong_values"}},
            "the all-reduce on this host alone: wrong values",
        ),
        ({"attempted": True, "cuda": {"initialised": True}, "collective": {"verdict": "ok"}}, None),
    ],
)
def test_a_host_that_is_wrong_alone_is_not_measured_with_others(probe: Any, says: str | None) -> None:
    assert between_hosts.find_own_problem(probe) == says


# -- what NCCL says
# ---------------------------------------------------------------------------------------------------------------------


def test_rdma_is_read_from_nccls_log() -> None:
    log = """
gpu1:71:99 [0] NCCL INFO NET/IB : Using [0]mlx5_0:1/IB [1]mlx5_3:1/RoCE [RO]; OOB eth0:10.0.0.1<0>
gpu1:71:99 [0] NCCL INFO Using network IB
gpu1:71:120 [0] NCCL INFO Channel 00/0 : 8[0] -> 0[0] [receive] via NET/IB/0/GDRDMA
gpu1:71:120 [0] NCCL INFO Channel 01/0 : 0[0] -> 8[0] [send] via NET/IB/1(8)/GDRDMA(PCI)/Shared
gpu1:71:120 [0] NCCL INFO Channel 02/0 : 0[0] -> 8[0] [send] via NET/IB/1
gpu1:71:120 [0] NCCL INFO Channel 02/0 : 0[0] -> 1[1] via P2P/CUMEM
gpu1:71:120 [0] NCCL INFO GPU Direct RDMA Disabled for HCA 1 'mlx5_3'
"""
    found = host_ranks.parse_network(log)
    assert (found["kind"], found["channels"], found["gdr_channels"]) == ("IB", 3, 2)
    assert [(one["name"], one["layer"]) for one in found["devices"]] == [("mlx5_0:1", "IB"), ("mlx5_3:1", "RoCE")]
    assert found["disabled"] == ["GPU Direct RDMA Disabled for HCA 1 'mlx5_3'"]
    assert host_ranks.parse_network("")["kind"] is None


def test_the_place_of_rank_0_is_read_from_its_identifier() -> None:
    def identifier(*parts: bytes) -> bytes:
        return b"".join(parts).ljust(128, b"\0")

    four = struct.pack("=H", 2) + struct.pack("!H", 41000) + bytes([10, 0, 0, 7])
    six = struct.pack("=H", 10) + struct.pack("!H", 41000) + bytes(4) + bytes.fromhex("fd00") + bytes(13) + b"\x07"
    assert host_network.parse_meeting_place(identifier(bytes(8), four)) == ("10.0.0.7", 41000)
    assert host_network.parse_meeting_place(identifier(b"\x11" * 8, six)) == ("fd00::7", 41000)
    assert host_network.parse_meeting_place(identifier(four)) == ("10.0.0.7", 41000)
    assert (
        host_network.parse_meeting_place(b"/standin".ljust(128, b"\0")) is None
        and host_network.parse_meeting_place(b"") is None
    )


# -- what it means
# ----------------------------------------------------------------------------------------------------------------------


def good(seconds: float = 0.06, **network: Any) -> dict[str, Any]:
    """What two hosts with an RDMA port of 100 Gbit/s each bring: 64 MiB in 60 ms are 1.1 GB/s."""
    port = {"device": "mlx5_0", "port": 1, "active": True, "gigabits_s": 100.0, "layer": "InfiniBand"}
    taken = {
        "kind": "IB", "devices": [{"index": "0", "name": "mlx5_0:1", "layer": "IB"}], "channels": 4, "gdr_channels": 4,
        "disabled": [], **network,
    }  # fmt: skip

    def arm(rank: int) -> dict[str, Any]:
        sizes = [
            {"rank": rank, "size_bytes": size, "wrong": 0, "seconds": [took, 1.01 * took], "rounds": 4}
            for size, took in ((12288, 4e-5), (64 << 20, seconds))
        ]
        return {"state": "finished", "ready": True, "nccl": "2.28.9", "sizes": sizes, "network": taken}

    hosts = [
        {
            "host": name, "ranks": [rank], "gpus": [A], "why": None,
            "look": {"nccl": {"version": "2.28.9"}, "way": {}, "speeds": {"eth0": 25000}, "rdma": [port]},
            "result": {"arms": {"configured": arm(rank), "gdr_off": arm(rank)}, "seconds": 9.0},
        }
        for rank, name in enumerate(("gpu1", "gpu2"))
    ]  # fmt: skip
    named = {"group": "glm", "host": "gpu2", "not_run": None, "problems": [], "arms": ["configured", "gdr_off"]}
    return {**named, "sizes": [12288, 64 << 20], "hosts": hosts}


def test_a_good_network_is_described() -> None:
    found = facts_of(good(0.006))
    assert (found["verdict"], found["gdr"], found["rdma_everywhere"], found["slow"]) == ("ok", True, True, [])
    assert found["link"] == {"gb_s": 12.5, "text": "mlx5_0:1 100 Gbit/s on gpu1"}
    assert found["bus_bandwidth_gb_s"]["median"] == pytest.approx(11.1, abs=0.1) and found["share_of_link"] == 0.888
    assert found["faster_controls"] == []


def test_a_network_far_below_its_link_is_told_with_its_figures() -> None:
    found = facts_of(good(0.06))
    assert found["slow"] == [
        "1.113 GB/s (1.107 to 1.118) of 64 MiB, which is 9 % of 12.5 GB/s: mlx5_0:1 100 Gbit/s on gpu1"
    ]


def test_a_control_counts_only_where_the_spreads_are_apart() -> None:
    raw = good(0.006)
    for one in raw["hosts"]:
        one["result"]["arms"]["gdr_off"] = copy.deepcopy(one["result"]["arms"]["gdr_off"])
        one["result"]["arms"]["gdr_off"]["sizes"][1]["seconds"] = [0.004, 0.0041]
    assert facts_of(raw)["faster_controls"][0].startswith("gdr_off, IB over mlx5_0:1: 16.6 GB/s")
    for one in raw["hosts"]:
        one["result"]["arms"]["gdr_off"]["sizes"][1]["seconds"] = [0.003, 0.0065]
    assert facts_of(raw)["faster_controls"] == []


def test_a_link_without_a_speed_is_not_unknown_and_an_unread_one_is() -> None:
    raw = good(0.06, kind="Socket", devices=[{"index": "0", "name": "eth0", "layer": None}], gdr_channels=0)
    for speed, link, slow in (("n/a", {"gb_s": "n/a", "text": "eth0 of no speed on gpu1"}, []), (None, None, None)):
        for one in raw["hosts"]:
            one["look"]["speeds"]["eth0"] = speed
        found = facts_of(raw)
        assert (found["verdict"], found["link"], found["slow"], found["share_of_link"]) == ("ok", link, slow, None)


def test_what_a_rank_did_not_say_is_never_taken_for_right() -> None:
    for change in ("wrong", "rank", "size"):
        raw = good()
        sizes = raw["hosts"][1]["result"]["arms"]["configured"]["sizes"]
        if change == "wrong":
            sizes[0]["wrong"] = None
        elif change == "rank":
            sizes.clear()
        else:
            sizes[1]["size_bytes"] = 1 << 20
        found = facts_of(raw)
        assert found["verdict"] is None and found["ran"] is True, change


def test_a_library_that_does_not_load_says_nothing_of_the_network() -> None:
    raw = good()
    failure = {"kind": "memory", "name": "CUDA_ERROR_OUT_OF_MEMORY"}
    arm = raw["hosts"][1]["result"]["arms"]["configured"]
    arm.update(state="failed", detail="rank 1: too little memory", failure=failure, ready=False, sizes=[])
    raw["hosts"][0]["result"]["arms"]["configured"].update(state="hung", detail="rank 0 waits", ready=False)
    found = facts_of(raw)
    assert (found["ran"], found["verdict"]) == (None, None) and found["reason"].startswith("gpu2: rank 1: too little")


def test_what_is_no_result_is_unknown() -> None:
    for text in (
        "",
        "null",
        "[]",
        '{"hosts": 3}',
        '{"hosts": [{"ranks": 7}]}',
        '{"hosts": [], "arms": ["configured"]}',
    ):
        records = [{"run": list(between_hosts.BETWEEN_COMMAND), "status": "ok", "rc": 0, "stdout": text}]
        found = gather_between_hosts(bundle.BundleEvidence({}, records), Errors("probe"))
        assert (found["ran"], found["verdict"], found["missing"]) == (None, None, None), text
        assert set(found) == set(between_hosts.empty_facts(""))
