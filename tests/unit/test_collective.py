"""The checked all-reduce on the stand-ins for NCCL and CUDA: good, and broken in every way that it has a name for."""

from __future__ import annotations

import os
import sys
import time
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import nccl_standin
import pytest
from ansible.module_utils.gpu_host import p2p_probe
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.probe import all_reduce, nccl_library
from ansible.module_utils.gpu_probe import nccl
from nccl_standin import LARGE, SMALL
from probe_library import AB, BA, A, B, Host, environment


@pytest.fixture(scope="session")
def library(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return nccl_standin.compiled(tmp_path_factory.mktemp("libnccl"))


def test_all_arms_are_right_and_say_how_they_went(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, found = nccl_standin.run(library, monkeypatch, tuple(all_reduce.ARMS))
    assert (found["verdict"], found["nccl"], found["failure"], found["wrong"]) == ("ok", "2.28.9", None, [])
    assert found["pairs_without_p2p"] == [] and found["diagnostics"] is None
    assert {name: set(map(tuple, arm["transports"].values())) for name, arm in raw["arms"].items()} == {
        "configured": {("P2P/CUMEM",)},
        "p2p_disabled": {("SHM/direct/direct",)},
        "one_process": {("P2P/direct pointer",)},
    }
    assert set(raw["arms"]["configured"]["transports"]) == {AB, BA}
    for arm in raw["arms"].values():
        assert (arm["state"], arm["cuda"], set(arm["sizes"])) == ("finished", "13.0", {str(SMALL), str(LARGE)})
        for size, figures in arm["sizes"].items():
            assert figures["wrong"] == 0 and figures["iterations"] == 5 and figures["latency_us"]["min"] > 0
            rate = int(size) / figures["latency_us"]["median"] / 1e3
            assert figures["algorithm_bandwidth_gb_s"] == pytest.approx(rate, abs=0.02)  # 2 ranks: both are the same
            assert figures["bus_bandwidth_gb_s"] == figures["algorithm_bandwidth_gb_s"]


def test_a_wrong_value_is_found_with_its_rank_and_size(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    raw, found = nccl_standin.run(library, monkeypatch, STANDIN_NCCL_WRONG="1@%d" % LARGE)
    assert found["verdict"] == "wrong_values"
    entry = raw["arms"]["configured"]["sizes"][str(LARGE)]
    assert (entry["wrong"], entry["first_wrong"], entry["wrong_gpus"]) == (1, LARGE // 8, [B])
    assert entry["got"] == entry["wanted"] + 1 and entry["checked"] == "in place"
    assert raw["arms"]["configured"]["sizes"][str(SMALL)]["wrong"] == 0
    assert found["explanation"].startswith("%d bytes: 1 wrong elements on %s, the first at" % (LARGE, B))


def test_what_goes_wrong_without_p2p_too_does_not_blame_p2p(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    _, found = nccl_standin.run(library, monkeypatch, STANDIN_NCCL_WRONG="0@1", STANDIN_NCCL_ALWAYS="1")
    assert found["verdict"] == "inconclusive"


def test_one_process_that_goes_wrong_is_told_apart(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(all_reduce.ARMS, "one_process", {"STANDIN_NCCL_WRONG": "0@1"})
    _, found = nccl_standin.run(library, monkeypatch, tuple(all_reduce.ARMS))
    assert found["verdict"] == "wrong_values" and "bytes in one process: 1 wrong" in found["explanation"]


@pytest.mark.slow
def test_a_hang_ends_in_time_and_says_who_waits_where(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    began = time.monotonic()
    raw, found = nccl_standin.run(library, monkeypatch, STANDIN_NCCL_HANG="1@%d" % LARGE)
    assert time.monotonic() - began < 10
    arm = raw["arms"]["configured"]
    assert (found["verdict"], arm["state"], raw["arms"]["p2p_disabled"]["state"]) == ("hangs", "hung", "finished")
    assert [line.partition(" waits in ")[0] for line in arm["waiting"]] == ["rank 0 (%s)" % A, "rank 1 (%s)" % B]
    assert all("all-reduce of %d bytes, in place" % LARGE in line for line in arm["waiting"])
    assert arm["hang_signature"] == [] and arm["ras"]["answered"] is False  # no nvidia-smi, no RAS here
    assert arm["sizes"][str(SMALL)]["wrong"] == 0  # what was measured before stays


@pytest.mark.slow
def test_a_rank_that_never_joins_is_named(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(all_reduce, "JOIN_LIMIT_S", 1.0)
    raw, found = nccl_standin.run(library, monkeypatch, ("configured",), STANDIN_NCCL_INIT_HANG="1")
    assert raw["arms"]["configured"]["state"] == "hung" and found["verdict"] == "inconclusive"
    assert raw["arms"]["configured"]["ready"] is False
    assert any("rank 1" in line and "ncclCommInitRank" in line for line in raw["arms"]["configured"]["waiting"])


@pytest.mark.parametrize(
    ("steered", "kind", "said"),
    [
        (
            {"STANDIN_NCCL_FAIL": "ncclAllReduce:2:Error while attaching to shared memory segment /dev/shm/nccl-x"},
            "nccl",
            "ncclAllReduce returned ncclSystemError: Error while attaching to shared memory segment",
        ),
        (
            {"STANDIN_NCCL_FAIL": "ncclCommInitRank:1:Cuda failure 'CUDA driver version is insufficient for ...'"},
            "driver_too_old",
            "built for a newer CUDA than the driver has",
        ),
        (
            {"STANDIN_NCCL_FAIL": "ncclAllReduce:1:Cuda failure 'no kernel image is available for execution'"},
            "nccl_too_old",
            "it is too old for them",
        ),
        ({"STANDIN_NCCL_ASYNC": "1@1"}, "nccl", "ncclCommGetAsyncError returned ncclSystemError: socketProgress"),
        ({"STANDIN_NCCL_CRASH": "1@1"}, "signal", "rank 1 (%s) ended with signal SIGSEGV in the stage" % B),
    ],
)
def test_a_failure_is_named(
    library: Path, monkeypatch: pytest.MonkeyPatch, steered: dict[str, str], kind: str, said: str
) -> None:
    raw, found = nccl_standin.run(library, monkeypatch, **steered)
    assert raw["arms"]["configured"]["state"] == "failed" and raw["arms"]["p2p_disabled"]["state"] == "finished"
    assert (found["verdict"], found["failure"]["kind"]) == ("fails", kind)
    assert said in found["explanation"], found["explanation"]


@pytest.mark.parametrize(
    ("steered", "kind", "said"),
    [
        ({"STANDIN_FREE_MIB": "0"}, "memory", "CUDA_ERROR_OUT_OF_MEMORY"),
        ({"STANDIN_TAKEN": "1"}, "taken", "another process holds a GPU for itself"),
    ],
)
def test_an_all_reduce_that_cannot_begin_is_unknown(
    library: Path, monkeypatch: pytest.MonkeyPatch, steered: dict[str, str], kind: str, said: str
) -> None:
    _, found = nccl_standin.run(library, monkeypatch, **steered)
    assert (found["ran"], found["verdict"], found["failure"]["kind"]) == (None, None, kind)
    assert said in found["reason"], found["reason"]


def test_a_library_that_is_none_or_too_old_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    old = nccl_standin.compiled(tmp_path, "-DOLD")
    _, found = nccl_standin.run(old, monkeypatch, ("configured",))
    assert (found["ran"], found["failure"]["kind"], found["failure"]["function"]) == (None, "symbol", "ncclCommInitAll")
    (tmp_path / "libnccl.so.2").write_bytes(b"\x7fELF and no more")
    _, found = nccl_standin.run(old, monkeypatch, ("configured",))
    assert (found["ran"], found["failure"]["kind"]) == (None, "library")
    assert "libnccl.so.2" in found["reason"]


def test_diagnostics_of_nccl_are_read(library: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    said = "host:1 NCCL DIAG [INFO] p2p: only 1/2 GPU-to-GPU peer accesses passed verification"
    _, found = nccl_standin.run(library, monkeypatch, ("configured",), STANDIN_NCCL_SAY=said)
    assert found["diagnostics"] == ["p2p: only 1/2 GPU-to-GPU peer accesses passed verification"]


@pytest.mark.parametrize(("code", "text"), [(22809, "2.28.9"), (23203, "2.32.3"), (2809, "2.8.9"), (21005, "2.10.5")])
def test_versions_are_read_in_both_forms(library: Path, code: int, text: str) -> None:
    with environment(LD_LIBRARY_PATH=str(library), STANDIN_NCCL_VERSION=str(code)):
        script = "import sys; sys.path.insert(0, %r)\nfrom gpu_probe.nccl import Nccl\nprint(Nccl(%r).version())"
        module_utils = str(Path(nccl.__file__).parents[1])
        done = os.popen('%s -c "%s"' % (sys.executable, script % (module_utils, str(library / "libnccl.so.2")))).read()
    assert done.strip() == text


def test_the_facts_of_a_host_hold_it_and_an_error_where_it_could_not_begin(
    library: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, _ = nccl_standin.run(library, monkeypatch, ("configured",), STANDIN_TAKEN="1")
    host = Host(library)
    host.commands[all_reduce.COLLECTIVE_COMMAND] = lambda: raw
    errors = Errors("probe")
    found = all_reduce_facts(host, errors)
    assert found["ran"] is None and any("could not begin" in entry["problem"] for entry in errors.entries)


def all_reduce_facts(host: Host, errors: Errors) -> dict[str, Any]:
    return p2p_probe.gather(host, {"when_busy": "skip", "collective": "auto"}, errors)["collective"]


# -- where the library is
# ------------------------------------------------------------------------------------------------------------------


def put(path: Path) -> str:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(b"")
    return str(path)


@pytest.fixture
def bare(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A host on which nothing has NCCL."""
    monkeypatch.setattr(nccl_library, "UNITS", (str(tmp_path / "units"),))
    monkeypatch.setattr(nccl_library, "HOMES", (str(tmp_path / "opt" / "*"),))
    monkeypatch.setattr(nccl_library, "LIBRARY_DIRECTORIES", (str(tmp_path / "lib"),))
    monkeypatch.setattr(nccl_library, "list_of_processes", lambda: iter(()))
    monkeypatch.setattr(nccl_library.sys, "executable", str(tmp_path / "py" / "bin" / "python3"))
    monkeypatch.setattr(nccl_library.shutil, "which", lambda name, path=None: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    return tmp_path


def test_the_library_is_found_in_the_order_of_who_uses_it(bare: Path) -> None:
    found = nccl_library.find_library(None, None)
    assert found["path"] is None and "host_validation_probe_nccl" in found["reason"]
    packages = "lib/python3.12/site-packages/nvidia/nccl/lib/libnccl.so.2"
    system = put(bare / "lib" / "libnccl.so.2")
    assert nccl_library.find_library(None, None)["path"] == system
    below = put(bare / "opt" / "sglang" / packages)
    assert nccl_library.find_library(None, None)["path"] == below
    served = put(bare / "srv" / "engine" / packages)
    (bare / "units").mkdir()
    unit = "[Service]\nExecStart=%s/bin/python3 -m sglang.launch_server\n" % (bare / "srv" / "engine")
    (bare / "units" / "engine.service").write_text(unit)
    found = nccl_library.find_library(None, None)
    assert (found["path"], found["source"]) == (served, "the environment that a systemd unit starts")


def test_what_is_named_is_taken_or_refused_with_the_reason(bare: Path) -> None:
    library = put(bare / "somewhere" / "libnccl.so.2")
    assert nccl_library.find_library(library, None)["path"] == library
    assert nccl_library.find_library(str(bare / "somewhere"), None)["path"] == library
    assert "is no file" in nccl_library.find_library(str(bare / "nowhere"), None)["reason"]
    put(bare / "venv" / "bin" / "python3")
    found = nccl_library.find_library(None, str(bare / "venv" / "bin" / "python3"))
    assert found["path"] is None and "has no NCCL beside it" in found["reason"]
    wanted = put(bare / "venv" / "lib" / "python3.11" / "site-packages" / "nvidia" / "nccl" / "lib" / "libnccl.so.2")
    assert nccl_library.find_library(None, str(bare / "venv" / "bin" / "python3"))["path"] == wanted
    assert "does not exist" in nccl_library.find_library(None, "/nonexistent/python3")["reason"]


def test_a_library_that_others_can_write_is_not_loaded_by_itself(bare: Path) -> None:
    library = put(bare / "lib" / "libnccl.so.2")
    (bare / "lib" / "libnccl.so.2").chmod(0o666)
    found = nccl_library.find_library(None, None)
    assert found["path"] is None and "others can write" in found["reason"]
    assert nccl_library.find_library(library, None)["path"] == library  # but if it is named
    assert nccl_library.find_objection("/proc/4711/root/opt/libnccl.so.2") == "it is in a container"


@pytest.mark.skipif(os.geteuid() != 0, reason="only root gives its rights up")
def test_a_library_of_another_user_is_loaded_as_that_user(
    library: Path, bare: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = put(bare / "lib" / "libnccl.so.2")
    os.chown(path, 4711, -1)
    assert nccl_library.find_library(path, None)["owner"] == 4711
    for parent in (library, *library.parents[:-2]):  # all below /tmp
        parent.chmod(0o755)
    monkeypatch.undo()
    monkeypatch.setattr(all_reduce, "ARMS", {"configured": {}})
    with environment(LD_LIBRARY_PATH=str(library)):
        raw = all_reduce.run_all_reduce(str(library / "libnccl.so.2"), [A, B], {}, sizes=(SMALL,), owner=4711)
    assert raw["arms"]["configured"]["state"] == "finished", raw["arms"]["configured"]
