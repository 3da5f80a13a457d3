"""The real worker on a stand-in for libcuda.

Every way in which CUDA or a pair of GPUs can fail is a fact, in bounded time.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import p2p_probe
from probe_library import AB, BA, A, B, C, Host, compiled, run_probe

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return compiled(tmp_path_factory.mktemp("libcuda"))


def facts(library: Path, **steered: str) -> dict[str, Any]:
    return Host(library, **steered).facts()


def verdicts(found: dict[str, Any]) -> dict[str, str]:
    return {name: pair["verdict"] for name, pair in found["pairs"].items()}


def test_a_healthy_pair_is_measured_in_full(library: Path) -> None:
    found = facts(library)
    assert verdicts(found) == {AB: "ok", BA: "ok"}
    assert found["ran"] and found["all_delivered"] is found["all_fast"] is True and found["cuda"]["result_code"] == 0
    assert {name: found[name] for name in p2p_probe.LISTS if found[name]} == {}
    pair = found["pairs"][AB]
    assert {method: result["status"] for method, result in pair["delivered"].items()} == dict.fromkeys(
        ("copy_engine", "sm_store", "sm_load"), "ok"
    )
    assert pair["control_delivered"]["status"] == "ok"
    assert set(pair["bandwidth_gb_s"]) == {"copy", "both_ways", "sm_store", "sm_load", "control_copy"}
    assert (
        set(pair["latency_us"])
        == set(pair["control_latency_us"])
        == {"copy_12k_back_to_back", "copy_12k_synchronised", "flag_round_trip"}
    )
    for figure in (*pair["bandwidth_gb_s"].values(), *pair["latency_us"].values()):
        assert figure["min"] <= figure["median"] <= figure["max"] and figure["iterations"] >= 3
        assert "size_mib" in figure or "size_bytes" in figure
    # The stand-in reckons 1.2 us + size / 50 GB/s with peer access and 14 us + size / 20 GB/s without.
    assert pair["latency_us"]["copy_12k_back_to_back"]["median"] == pytest.approx(1.2 + 12288 / 50e3, rel=0.02)
    assert pair["control_latency_us"]["copy_12k_back_to_back"]["median"] == pytest.approx(14 + 12288 / 20e3, rel=0.02)
    assert pair["bandwidth_gb_s"]["copy"]["median"] == pytest.approx(2**20 / (1.2 + 2**20 / 50e3) / 1e3, rel=0.02)
    assert pair["bandwidth_gb_s"]["both_ways"]["median"] == pytest.approx(
        2 * pair["bandwidth_gb_s"]["copy"]["median"], rel=0.05
    )
    assert found["all_at_once"]["corrupt_pairs"] == []


def test_sizes_and_odd_offsets_are_verified(library: Path) -> None:
    script = """
import json, sys
sys.path.insert(0, sys.argv[1])
from gpu_probe import deliver
from gpu_probe.driver import Cuda
from gpu_probe.gpu import MIB, Gpu, HostMemory
cuda = Cuda()
cuda.call("cuInit", 0)
one, other = Gpu(cuda, 0), Gpu(cuda, 1)
one.open(64 * MIB), other.open(64 * MIB)
one.enable(other), other.enable(one)
host = HostMemory(cuda, one, 64 * MIB)
print(json.dumps([deliver.check_delivery(one, other, method, host) for method in deliver.METHODS]))
"""
    command = [sys.executable, "-c", script, str(ROOT / "module_utils")]
    answer = subprocess.run(
        command, env={**os.environ, "LD_LIBRARY_PATH": str(library)}, stdout=subprocess.PIPE, check=True
    )
    for result in json.loads(answer.stdout):
        assert result["status"] == "ok" and result["sizes"] == [12288, 65537, 2**20 + 16, 64 * 2**20]


@pytest.mark.slow
def test_a_private_mirror_is_caught_and_named(library: Path) -> None:
    found = facts(library, STANDIN_MIRROR="0>1")
    assert found["mirrored_pairs"] == [AB]
    assert found["pairs"][AB]["verdict"] == "not_delivered"
    for method in ("copy_engine", "sm_store"):
        result = found["pairs"][AB]["delivered"][method]
        assert (result["status"], result["found"], result["writer_sees_it"]) == ("corrupt", "nothing_arrived", True)
    # A flag that goes into the mirror never shows on the other side.
    assert found["pairs"][AB]["latency_us"]["flag_round_trip"]["no_answer"] is True
    # GPU 0 reads GPU 1 through the same window.
    assert found["pairs"][BA]["delivered"]["sm_load"]["status"] == "corrupt"
    assert found["pairs"][BA]["delivered"]["copy_engine"]["status"] == "ok"


def test_one_wrong_byte_at_the_end_of_a_large_transfer_is_found(library: Path) -> None:
    found = facts(library, STANDIN_CORRUPT="1>0")
    result = found["pairs"][BA]["delivered"]["sm_store"]
    size = 2**20 - 4080
    wanted = {
        "status": "corrupt",
        "first_bad_offset": size - 1,
        "bad_size": size,
        "bad_blocks_4k": 1,
        "found": "altered",
    }
    assert {name: result[name] for name in wanted} == wanted
    assert found["undelivered_pairs"] == [BA] == found["one_way_pairs"]
    assert found["pairs"][AB]["verdict"] == "ok"
    assert BA in found["corrupt_under_load"]


@pytest.mark.parametrize(
    ("steered", "lists", "words"),
    [
        ({"STANDIN_REFUSE": "0>1,1>0"}, {"not_granted_pairs": [AB, BA]}, "grants no peer access"),
        ({"STANDIN_REFUSE": "0>1"}, {"not_granted_pairs": [AB], "one_way_pairs": [AB]}, "grants no peer access"),
        ({"STANDIN_ENABLE_FAILS": "0>1,1>0"}, {"unusable_pairs": [AB, BA]}, "CUDA_ERROR_PEER_ACCESS_UNSUPPORTED"),
        ({"STANDIN_STAGED": "0>1,1>0"}, {"staged_pairs": [AB, BA]}, "as if through host memory"),
    ],
)
def test_a_pair_that_stops_on_a_rung_is_in_its_list(
    library: Path, steered: dict[str, str], lists: dict[str, list[str]], words: str
) -> None:
    found = facts(library, **steered)
    assert {name: found[name] for name in p2p_probe.LISTS if found[name]} == lists
    assert words in found["pairs"][AB]["reason"]
    assert words in str(found["explanations"])


def test_without_peer_access_the_control_is_measured_all_the_same(library: Path) -> None:
    pair = facts(library, STANDIN_REFUSE="0>1,1>0")["pairs"][AB]
    assert pair["control_delivered"]["status"] == "ok" and pair["bandwidth_gb_s"]["control_copy"]["median"] > 1
    assert "delivered" not in pair


def test_a_slow_pair_among_four_is_measured_again_alone(library: Path) -> None:
    raw = run_probe(library, STANDIN_GPUS="4", STANDIN_SLOW="0>2")
    slow = raw["pairs"]["%s->%s" % (A, C)]["bandwidth_gb_s"]
    assert slow["copy_alone"]["concurrent"] == 1 and slow["copy"]["concurrent"] == 2
    assert [name for name, pair in raw["pairs"].items() if "copy_alone" in pair["bandwidth_gb_s"]] == [
        "%s->%s" % (A, C)
    ]


@pytest.mark.parametrize("count", [3, 4])
def test_more_gpus_than_the_driver_allows_peers(library: Path, count: int) -> None:
    found = facts(library, STANDIN_GPUS=str(count), STANDIN_PEERS="1")
    assert found["verdicts"] == {"pairs": count * (count - 1), "ok": count * (count - 1)}
    assert found["all_at_once"] is None


def test_many_to_one_is_measured_and_verified(library: Path) -> None:
    found = facts(library, STANDIN_GPUS="3")
    assert set(found["many_to_one"]) == {A, B, C}
    assert found["all_at_once"]["bandwidth_gb_s"]["concurrent"] == 6
    assert found["corrupt_under_load"] == []


@pytest.mark.parametrize(
    ("code", "cause"),
    [
        (3, "uvm_disable_hmm"),
        (34, "stub"),
        (46, "EXCLUSIVE_PROCESS"),
        (100, "/dev/nvidia"),
        (101, "node"),
        (304, "cgroup"),
        (802, "fabricmanager"),
        (803, "different versions"),
        (804, "compat"),
        (999, "/dev/nvidia-uvm"),
    ],
)
def test_a_code_of_cuinit_is_a_fact_with_its_causes(library: Path, code: int, cause: str) -> None:
    found = facts(library, STANDIN_INIT=str(code))
    assert (found["cuda"]["initialised"], found["cuda"]["result_code"], found["cuda"]["hung"]) == (False, code, False)
    assert any(cause in text for text in found["cuda"]["causes"])
    assert found["ran"] is False and found["skipped_reason"] == "CUDA does not initialise"


def test_cuinit_that_hangs_costs_its_limit_and_no_more(library: Path) -> None:
    began = time.monotonic()
    raw = run_probe(library, options={"init_limit_s": 0.5}, STANDIN_INIT="hang")
    assert time.monotonic() - began < 8
    event = raw["events"][0]
    assert (event["stage"], event["kind"]) == ("cuInit", "hung") and "waits in" in event["detail"]
    assert len(raw["events"]) == 1


def test_cuinit_that_crashes_is_a_fact(library: Path) -> None:
    found = facts(library, STANDIN_INIT="crash")
    assert found["cuda"]["initialised"] is False and "SIGABRT" in found["cuda"]["detail"]


def test_a_missing_library_is_a_fact(tmp_path: Path) -> None:
    found = facts(tmp_path)
    assert "cannot open shared object file" in found["cuda"]["library_error"]
    assert any("not installed" in text for text in found["cuda"]["causes"])


def test_a_library_that_is_no_library_is_a_fact(tmp_path: Path) -> None:
    (tmp_path / "libcuda.so.1").write_bytes(b"junk")
    assert "libcuda.so.1" in facts(tmp_path)["cuda"]["library_error"]


def test_a_transfer_that_hangs_costs_its_pair_only(library: Path) -> None:
    raw = run_probe(library, options={"pair_limit_s": 1.5}, STANDIN_GPUS="3", STANDIN_HANG="0>1")
    assert [event["kind"] for event in raw["events"]] == ["hung"]
    context: dict[str, Any] = {"topology": {}, "p2p": {}, "in_guest": None}
    found = p2p_probe.fill_result(raw, p2p_probe._empty(), context)
    assert found["hung_pairs"] == [AB] and found["pairs"][AB]["failed_rung"] == "delivered"
    # Both directions of a round are left out together; every other pair is measured.
    others = {name: verdict for name, verdict in verdicts(found).items() if {A, B} != set(name.split("->"))}
    assert set(others.values()) == {"ok"}


def test_a_gpu_lost_in_the_middle_takes_only_its_own_pairs(library: Path) -> None:
    raw = run_probe(library, STANDIN_GPUS="4", STANDIN_LOST="1@700")
    found = p2p_probe.fill_result(raw, p2p_probe._empty(), {"topology": {}, "p2p": {}, "in_guest": None})
    assert raw["events"] and all(event["kind"] == "lost" for event in raw["events"])
    assert {verdict for name, verdict in verdicts(found).items() if B not in name} == {"ok"}
    assert "ok" not in {verdict for name, verdict in verdicts(found).items() if B in name}
    assert any(text.startswith(B) for text in found["skipped_gpus"])


@pytest.mark.parametrize(
    ("steered", "reason"),
    [
        ({"STANDIN_NO_MEMORY": "1"}, "CUDA_ERROR_OUT_OF_MEMORY"),
        ({"STANDIN_TAKEN": "1"}, "CUDA_ERROR_DEVICE_UNAVAILABLE"),
    ],
)
def test_a_gpu_that_cannot_be_used_is_left_out_with_the_reason(
    library: Path, steered: dict[str, str], reason: str
) -> None:
    found = facts(library, STANDIN_GPUS="3", **steered)
    assert found["skipped_gpus"] == ["%s: %s" % (B, reason)]
    assert found["pairs"]["%s->%s" % (A, C)]["verdict"] == "ok"
    assert found["pairs"][AB]["verdict"] == "unknown" and reason in found["pairs"][AB]["reason"]
    assert found["all_usable"] is found["all_delivered"] is found["all_fast"] is None


@pytest.mark.parametrize(("free_mib", "buffer_mib"), [(10000, 8), (150, 8), (140, 4), (5, 1)])
@pytest.mark.slow
def test_buffers_shrink_to_what_is_free(library: Path, free_mib: int, buffer_mib: int) -> None:
    raw = run_probe(library, options={"buffer_mib": 8}, STANDIN_FREE_MIB=str(free_mib))
    assert raw["devices"][A]["opened"]["buffer_mib"] == buffer_mib
    assert raw["pairs"][AB]["delivered"]["copy_engine"]["status"] == "ok"


def test_a_driver_that_refuses_the_kernels_leaves_the_copy_engine(library: Path) -> None:
    found = facts(library, STANDIN_PTX="218")
    pair = found["pairs"][AB]
    assert pair["verdict"] == "ok" and pair["delivered"]["sm_store"]["status"] == "skipped"
    assert found["devices"][A]["opened"]["kernels_error"]["code"] == 218


def test_instances_of_a_divided_gpu_are_left_out(library: Path) -> None:
    found = facts(library, STANDIN_MIG="0,1")
    assert found["ran"] is False and found["skipped_gpus"] == ["%s: MIG is on" % A]


def test_one_gpu_is_measured_with_itself(library: Path) -> None:
    found = facts(library, STANDIN_GPUS="1")
    assert found["ran"] and found["pairs"] == {} and set(found["loopback"]) == {A}
    assert {result["status"] for result in found["loopback"][A]["delivered"].values()} == {"ok"}
    assert found["loopback"][A]["latency_us"]["flag_round_trip"]["median"] > 0


def test_no_gpu(library: Path) -> None:
    assert facts(library, STANDIN_GPUS="0")["skipped_reason"] == "CUDA shows no GPU"


def test_the_environment_hides_no_gpu(library: Path) -> None:
    assert set(facts(library, CUDA_VISIBLE_DEVICES="", CUDA_DEVICE_ORDER="FASTEST_FIRST")["devices"]) == {A, B}


def test_the_same_keys_on_every_host(library: Path, tmp_path: Path) -> None:
    assert (
        set(facts(library))
        == set(facts(tmp_path))
        == set(facts(library, STANDIN_INIT="999"))
        == set(p2p_probe._empty())
    )
