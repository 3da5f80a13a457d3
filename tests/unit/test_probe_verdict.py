"""What the figures mean, with those that were measured on real hosts; what NCCL's log says; the kernels."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "module_utils"))

import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.probe import all_reduce, pair_verdict
from gpu_probe import driver, gpu, kernels, measure

GEN5 = {"link": {"speed_gt_s": 32.0, "width": 16}}
GEN4 = {"link": {"speed_gt_s": 16.0, "width": 16}}
H200 = {"compute_capability": "9.0"}
GOOD = {method: {"status": "ok"} for method in ("copy_engine", "sm_store", "sm_load")}
NOTHING_KNOWN: dict[str, Any] = {"gb_s": None, "basis": ""}


def pair(
    rate: float, latency: float, control: float = 32.6, control_latency: float = 13.7, **more: Any
) -> dict[str, Any]:
    """A directed pair as the worker puts it, with these medians."""
    return {
        "claims": {"can_access": True},
        "peer": {"enabled": True},
        "delivered": GOOD,
        "bandwidth_gb_s": {"copy": {"median": rate}, "control_copy": {"median": control}},
        "latency_us": {
            "copy_12k_back_to_back": {"median": latency},
            "flag_round_trip": {"median": 1.0, "no_answer": False},
        },
        "control_latency_us": {"copy_12k_back_to_back": {"median": control_latency}},
        **more,
    }


@pytest.mark.parametrize(
    ("path", "ends", "in_guest", "rate", "good"),
    [
        ("NODE", GEN5, False, 53.0, True),  # RTX PRO 6000, one NUMA node
        ("NODE", GEN5, False, 45.0, False),
        ("SYS", GEN5, False, 39.0, True),  # across sockets
        ("SYS", GEN5, False, 36.0, False),
        ("PHB", GEN5, True, 39.0, True),  # a guest does not show the sockets
        ("PIX", GEN4, False, 26.3, True),  # A6000 below one switch
        ("SYS", GEN4, False, 22.0, True),
        ("PHB", GEN4, True, 27.1, True),  # 3090 in a guest with a clique
        ("PIX", GEN4, False, 14.0, False),  # x8 behind x16
        ("NV18", H200, True, 394.5, True),
        ("NV18", H200, False, 376.0, True),  # H100
        ("NV18", H200, False, 300.0, False),
        ("NV12", {"compute_capability": "8.0"}, False, 235.0, True),  # A100, Azure's limit
        ("NV18", {}, False, 10.0, True),  # nothing is known of the link: no judgement
        ("NODE", {}, False, 10.0, True),
    ],
)
def test_the_least_bandwidth_by_path_and_link(
    path: str, ends: dict[str, Any], in_guest: bool, rate: float, good: bool
) -> None:
    least = pair_verdict.expect_bandwidth(path, (ends, ends), None, in_guest)
    assert (least["gb_s"] is None or rate >= least["gb_s"]) is good, least
    verdict = pair_verdict.judge_pair(pair(rate, 1.0, control=5.0), least)
    assert verdict["verdict"] == ("ok" if good else "slow")
    assert good or least["basis"] in verdict["reason"]


def test_the_slower_of_two_links_counts() -> None:
    assert pair_verdict.expect_bandwidth("NODE", (GEN5, GEN4), None, False)["basis"].startswith("PCIe 16 GT/s x16")


@pytest.mark.parametrize(
    ("found", "verdict", "rung"),
    [
        (pair(53.0, 0.45), "ok", None),
        (pair(32.6, 13.7), "staged", "fast"),  # the story's guest
        (pair(11.3, 15.2, 11.3, 15.23), "staged", "fast"),
        (pair(27.1, 1.01, 11.3, 15.23), "ok", None),
        (pair(394.5, 2.39, 37.4, 15.18), "ok", None),  # our H200 pair
        (pair(33.0, 7.9, 32.6, 8.1), "staged", "fast"),  # no better than its own control
        (pair(53.0, 0.45, claims={"can_access": False}), "not_granted", "granted"),
        (
            pair(53.0, 0.45, claims={"can_access": False}, driver_status={"read": "OK", "write": "OK"}),
            "not_usable",
            "usable",
        ),
        (
            pair(53.0, 0.45, claims={"can_access": False}, driver_status={"read": "NS", "write": "NS"}),
            "not_granted",
            "granted",
        ),
        (
            pair(53.0, 0.45, peer={"enabled": False, "error": {"name": "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"}}),
            "not_usable",
            "usable",
        ),
        (
            pair(53.0, 0.45, delivered={**GOOD, "sm_store": {"status": "corrupt", "found": "altered"}}),
            "not_delivered",
            "delivered",
        ),
        (
            pair(53.0, 0.45, delivered={**GOOD, "sm_load": {"status": "error", "error": "x"}}),
            "not_delivered",
            "delivered",
        ),
        (pair(53.0, 0.45, error={"kind": "hung", "stage": "deliver by sm_store"}), "hung", "delivered"),
        (pair(53.0, 0.45, error={"kind": "hung", "stage": "latency"}), "hung", "fast"),
        (pair(53.0, 0.45, error={"name": "CUDA_ERROR_UNKNOWN", "stage": "control"}), "error", "granted"),
        (pair(53.0, 0.45, latency_us=None), "unknown", None),
        ({}, "unknown", None),
    ],
)
def test_the_first_rung_that_fails(found: dict[str, Any], verdict: str, rung: str | None) -> None:
    judged = pair_verdict.judge_pair(found, NOTHING_KNOWN)
    assert (judged["verdict"], judged["failed_rung"]) == (verdict, rung)
    assert judged["reason"]


def test_a_flag_that_never_shows_is_data_that_does_not_arrive() -> None:
    flags = {
        "copy_12k_back_to_back": {"median": 1.0},
        "flag_round_trip": {"median": None, "no_answer": True, "reason": "after 0 of 550 trips"},
    }
    assert pair_verdict.judge_pair(pair(53.0, 1.0, latency_us=flags), NOTHING_KNOWN)["verdict"] == "not_delivered"


def measured(total_into_one: float, total_of_all: float) -> dict[str, Any]:
    """The facts of four GPUs whose pairs are good one by one."""
    names = ["0000:%02x:00.0" % number for number in (1, 2, 3, 4)]
    raw = {
        "devices": {name: {"cuda_index": at, **GEN5} for at, name in enumerate(names)},
        "pairs": {"%s->%s" % (one, other): pair(53.0, 0.5) for one in names for other in names if one != other},
        "many_to_one": {names[0]: {"bandwidth_gb_s": {"median": total_into_one}, "corrupt_pairs": []}},
        "all_at_once": {"bandwidth_gb_s": {"median": total_of_all}, "corrupt_pairs": []},
        "cuda": {"initialised": True},
    }
    return p2p_probe.fill_result(raw, p2p_probe._empty(), {"topology": {}, "p2p": {}, "in_guest": False})


def test_a_collapse_under_load_shows_only_there() -> None:
    assert measured(51.0, 90.0)["collapsed_under_load"] == []
    (one,) = measured(2.7, 90.0)["collapsed_under_load"]
    assert "2.7 GB/s together" in one
    (every,) = measured(51.0, 11.0)["collapsed_under_load"]
    assert every.startswith("all pairs at once: 11 GB/s")


NCCL_LOG = """host:11:52 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM
host:11:52 [0] NCCL INFO Channel 01/0 : 0[0] -> 1[1] via P2P/CUMEM/read
host:12:53 [1] NCCL INFO Channel 00 : 1[11000] -> 0[1000] via SHM/direct/direct
host:12:53 [1] NCCL INFO Channel 01/0 : 1[1] -> 2[2] [send] via NET/Socket/0
host:12:53 [1] NCCL INFO Channel 02/0 : 2[2] -> 1[1] via P2P/direct pointer
host:12:53 [1] NCCL INFO Connected all rings
"""


def test_transports_of_nccl() -> None:
    found = all_reduce.parse_transports(NCCL_LOG, {0: "0000:01:00.0", 1: "0000:11:00.0"})
    assert found == {
        "0000:01:00.0->0000:11:00.0": ["P2P/CUMEM", "P2P/CUMEM/read"],
        "0000:11:00.0->0000:01:00.0": ["SHM/direct/direct"],
        "0000:11:00.0->2": ["NET/Socket/0"],
        "2->0000:11:00.0": ["P2P/direct pointer"],
    }


def arm(state: str = "finished", wrong: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "state": state,
        "sizes": {"12288": {"wrong": wrong}},
        "detail": None if state == "finished" else "rank 1 ended",
        "warnings": [],
        **more,
    }


@pytest.mark.parametrize(
    ("configured", "control", "verdict"),
    [
        (arm(), arm(), "ok"),
        (arm(wrong=7), arm(), "wrong_values"),
        (arm("hung"), arm(), "hangs"),
        (arm("left_behind"), arm(), "hangs"),
        (arm("failed"), arm(), "fails"),
        (arm("failed"), arm("failed"), "inconclusive"),
        (arm(wrong=7), arm(wrong=7), "inconclusive"),
        (arm("hung"), {}, "inconclusive"),
    ],
)
def test_the_all_reduce_is_judged_against_its_control(
    configured: dict[str, Any], control: dict[str, Any], verdict: str
) -> None:
    found = all_reduce.summarise_all_reduce({"arms": {"configured": configured, "p2p_disabled": control}}, None)
    assert found["verdict"] == verdict
    assert (found["explanation"] is None) is (verdict == "ok")


def test_bus_bandwidth_is_reckoned_as_nccl_tests_does() -> None:
    sizes: dict[str, Any] = {}
    for rank, seconds in enumerate((0.001, 0.002)):
        all_reduce._merge(sizes, {"size_bytes": 10**6, "rank": rank, "wrong": 0, "seconds": [seconds] * 5}, ["gpu"] * 8)
    assert sizes["1000000"]["algorithm_bandwidth_gb_s"] == pytest.approx(1e6 / 0.002 / 1e9, rel=0.01)
    assert sizes["1000000"]["bus_bandwidth_gb_s"] == pytest.approx(2 * 7 / 8 * 1e6 / 0.002 / 1e9, rel=0.01)


def test_pairs_that_nccl_does_not_join_by_p2p_are_named() -> None:
    found = all_reduce.summarise_all_reduce(
        {"arms": {"configured": arm(transports={"a->b": ["SHM/direct/direct"], "b->a": ["P2P/CUMEM"]})}}, None
    )
    assert found["pairs_without_p2p"] == ["a->b via SHM/direct/direct"]


@pytest.mark.parametrize("architecture", ["sm_75", "sm_80", "sm_90", "sm_120"])
def test_the_kernels_are_valid_for_every_architecture(tmp_path: Path, architecture: str) -> None:
    compiler = shutil.which("ptxas")
    if compiler is None:
        pytest.skip("no ptxas")
    (tmp_path / "kernels.ptx").write_text(kernels.PTX)
    done = subprocess.run(
        [compiler, "-arch", architecture, "kernels.ptx", "-o", "out"],
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_kernels_have_the_names_and_parameters_that_the_callers_use() -> None:
    for name, parameters in zip(kernels.NAMES, (3, 3, 7, 1)):
        head = kernels.PTX.partition(".entry %s(" % name)[2].partition(")")[0]
        assert head.count(".param") == parameters, name


def test_the_signatures_are_those_of_cuda_h() -> None:
    """Counts of parameters against the header, where a toolkit is installed."""
    header = next(
        (path for path in map(Path, ("/usr/local/cuda/include/cuda.h", "/usr/include/cuda.h")) if path.exists()), None
    )
    header = header or next(iter(sorted(Path("/usr/local").glob("cuda-*/include/cuda.h"))), None)
    if header is None:
        pytest.skip("no cuda.h")
    text = header.read_text()
    for function, signature in driver.SIGNATURES.items():
        bare = function.replace("_v2", "")
        counts = set()
        for name in (function, bare):
            for part in text.split("CUresult CUDAAPI %s(" % name)[1:]:
                inside = part.partition(")")[0]
                counts.add(0 if inside.strip() == "void" else inside.count(",") + 1)
        assert len(signature) in counts, function


@pytest.mark.parametrize(
    ("text", "address"),
    [
        ("0000:01:00.0", "0000:01:00.0"),
        ("00000000:E1:00.0", "0000:e1:00.0"),
        ("10000:01:00.0", "10000:01:00.0"),
        ("0:3:00.0", "0000:3:00.0"),
    ],
)
def test_addresses_are_the_kernels(text: str, address: str) -> None:
    assert gpu.normal_address(text) == address


def test_a_figure_has_its_spread() -> None:
    assert measure.summarise_samples([3.0, 1.0, 2.0, 10.0], size_mib=1) == {
        "median": 2.5,
        "min": 1.0,
        "max": 10.0,
        "iterations": 4,
        "size_mib": 1,
    }
