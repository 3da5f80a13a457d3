"""NCCL's RAS: the exchange over a socket, the answers that it gives, and what a server's facts make of them."""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.nvidia import nccl_log, nccl_ras
from ansible.module_utils.gpu_server import nccl_job
from ansible.module_utils.gpu_server.log import log_reader
from hypothesis import given
from hypothesis import strategies as st

RECORDED = Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "nccl_ras"


def recorded(name: str) -> dict[str, Any]:
    text = (RECORDED / (name + ".txt")).read_text()
    return nccl_ras.summarise_status({"status": "ok", "text": text})


@contextmanager
def service(*answers: str, greeting: str = "SERVER PROTOCOL 2\n", silent: bool = False) -> Iterator[str]:
    """A RAS service that gives `answers` one after another; its address."""
    listener = socket.create_server(("127.0.0.1", 0))
    stop = threading.Event()

    def serve() -> None:
        for answer in answers:
            connection, _ = listener.accept()
            with connection, connection.makefile("rwb") as stream:
                for line in stream:
                    words = line.decode().strip().upper()
                    if silent:
                        stop.wait(10)
                        return
                    reply = (
                        greeting if words.startswith("CLIENT") else "OK\n" if words.startswith("TIMEOUT") else answer
                    )
                    stream.write(reply.encode())
                    stream.flush()
                    if words == "VERBOSE STATUS":
                        break

    thread = threading.Thread(target=serve, daemon=True)
    thread.start()
    try:
        yield "127.0.0.1:%d" % listener.getsockname()[1]
    finally:
        stop.set()
        listener.close()


def mismatch(late: int) -> str:
    text = (RECORDED / "sglang-tp2-running.txt").read_text()
    return text + (
        "#0-0 (3920ede8615d43aa) MISMATCH\n  Communicator ranks have different AllReduce operation counts\n"
        "  Rank 0 has launched up to operation 900 -- GPU 0 managed by process 2233 on node 192.0.2.2\n"
        "  Rank 1 has launched up to operation %d -- GPU 1 (NVML 5) managed by process 2234 on node 192.0.2.2\n" % late
    )


def test_a_running_job_and_one_with_a_stopped_rank() -> None:
    """Real answers of NCCL 2.28.9."""
    running, stopped = recorded("sglang-tp2-running"), recorded("sglang-tp2-rank1-stopped")
    assert (running["answered"], running["nccl"], running["communicators"], running["ranks"]) == (True, "2.28.9", 2, 2)
    assert running["late"] == running["missing"] == running["errors"] == []
    assert stopped["missing_ranks"] == [1] and stopped["communicators"] == 1
    assert stopped["missing"] == [
        "process 2234 on 192.0.2.2 (GPU 1) does not answer",
        "rank 1 (GPU 1, process 2234) does not answer",
    ]


def test_the_examples_of_the_documentation() -> None:
    late, dead = recorded("docs-mismatch"), recorded("docs-dead")
    assert late["late_ranks"] == [0, 2, 3, 4, 5, 7] and late["ranks"] == 32
    assert late["late"][0] == "rank 0 (GPU 0, process 483072) has launched collective 6649 of 6650"
    assert dead["missing_ranks"] == [21] and "is considered dead" in dead["missing"][0]


def test_where_the_ranks_ahead_are_listed_the_others_are_late() -> None:
    text = (RECORDED / "docs-mismatch.txt").read_text()
    text = text.replace("operation 6650", "operation 1").replace("operation 6649", "operation 6649")
    found = nccl_ras.summarise_status({"status": "ok", "text": text})
    assert len(found["late_ranks"]) == 26 and 0 not in found["late_ranks"] and 1 in found["late_ranks"]


def test_the_exchange() -> None:
    with service(mismatch(899)) as address:
        answer = nccl_ras.ask_status(*nccl_ras.read_address(address))
    assert answer["status"] == "ok"
    assert nccl_ras.summarise_status(answer)["late"] == [
        "rank 1 (GPU 1 (NVML 5), process 2234) has launched AllReduce 899 of 900"
    ]


def test_what_is_no_ras_and_what_never_answers_ends_in_time() -> None:
    with service("x", greeting="SSH-2.0-OpenSSH_9.2\n") as address:
        assert "not NCCL's RAS" in nccl_ras.ask_status(*nccl_ras.read_address(address))["reason"]
    began = time.monotonic()
    with service("x", silent=True) as address:
        answer = nccl_ras.ask_status(*nccl_ras.read_address(address), limit_s=0.5)
    assert time.monotonic() - began < 3 and answer["status"] == "failed" and answer["reason"]
    assert nccl_ras.ask_status("127.0.0.1", 1)["status"] == "absent"


@pytest.mark.parametrize(
    ("setting", "address"),
    [
        (None, ("localhost", 28028)),
        ("localhost:4000", ("localhost", 4000)),
        ("[::1]:4000", ("::1", 4000)),
        ("[fd00::2]:4000", ("fd00::2", 4000)),
        ("10.0.0.7:4000", ("10.0.0.7", 4000)),
        (":4000", ("localhost", 4000)),
        ("[::]:4000", ("localhost", 4000)),
        ("nonsense", ("localhost", 28028)),
        ("host:99999", ("localhost", 28028)),
    ],
)
def test_the_address_is_that_of_the_environment(setting: str | None, address: tuple[str, int]) -> None:
    assert nccl_ras.read_address(setting) == address
    assert nccl_ras.read_address(nccl_ras.format_address(*address)) == address


def job(address: str, **more: Any) -> tuple[dict[str, Any], Errors]:
    errors = Errors("server")
    given: dict[str, Any] = {"version": "2.28.9", "ranks": 2, **more}
    environment = {"NCCL_RAS_ADDR": address, **given.pop("environment", {})}
    found = nccl_job.read_nccl_job(nccl_job.ServerEvidence(), environment, given["version"], given["ranks"], errors)
    return found, errors


def test_a_rank_that_stays_behind_is_stuck_and_one_that_catches_up_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(nccl_job, "AGAIN_SECONDS", 0.05)
    with service(mismatch(899), mismatch(899)) as address:
        found, _ = job(address)
    assert found["stuck"] == ["rank 1 (GPU 1 (NVML 5), process 2234) has launched AllReduce 899 of 900"]
    with service(mismatch(899), mismatch(900)) as address:
        found, _ = job(address)
    assert (found["answered"], found["stuck"]) == (True, []) and found["late"]
    with service(mismatch(899), "junk") as address:
        found, _ = job(address)
    assert found["stuck"] is None  # unknown is never good


def test_a_service_that_is_not_there_is_not_asked_and_one_that_fails_is_unknown() -> None:
    found, errors = job("127.0.0.1:1")
    assert (found["asked"], found["answered"], errors.entries) == (True, False, [])
    with service("what") as address:
        found, errors = job(address)
    assert found["answered"] is None and found["stuck"] is None and errors.entries
    for more in ({"ranks": 1}, {"version": "2.23.4"}, {"environment": {"NCCL_RAS_ENABLE": "0"}}):
        found, _ = job("127.0.0.1:1", **more)
        assert found["asked"] is False and found["reason"]


PIECES = st.sampled_from(
    [
        *(RECORDED / "sglang-tp2-rank1-stopped.txt").read_text().splitlines(True),
        *(RECORDED / "docs-mismatch.txt").read_text().splitlines(True),
        "    0  9  9  9-99999999999  99999999999999999999  9   RUNNING  OK\n",
        "  7 ranks have not launched any operations\n",
    ]
)


@given(st.lists(PIECES | st.text(max_size=20), max_size=30))
def test_any_answer_is_read_in_bounded_time_and_shape(parts: list[str]) -> None:
    found = nccl_ras.summarise_status({"status": "ok", "text": "Communicators... (0.00s)\n" + "".join(parts)})
    assert found["answered"] is True and all(isinstance(found[name], list) for name in ("late", "missing", "errors"))


DIAGNOSTICS = """node0:1 NCCL DIAG === NCCL Diagnostics ===
node0:1 NCCL DIAG [OK]   p2p: verified P2P access in both directions between every GPU pair (56 peer accesses)
node0:1 NCCL DIAG [INFO] p2p: only 52/56 GPU-to-GPU peer accesses passed verification
node0:1 NCCL DIAG [INFO] ECC: unavailable via NVML on rank(s) {0}
node0:1 NCCL DIAG [INFO] NCCL environment: 1 NCCL_* env var(s) differ across ranks in comm 0x5fa3
node0:1 NCCL DIAG NCCL diagnostics completed in 245.3 ms across 8 ranks
"""


def test_diagnostics_that_report_something() -> None:
    wanted = [
        "p2p: only 52/56 GPU-to-GPU peer accesses passed verification",
        "NCCL environment: 1 NCCL_* env var(s) differ across ranks in comm 0x5fa3",
    ]
    assert nccl_log.find_diagnostics(DIAGNOSTICS) == wanted
    assert nccl_log.find_diagnostics("NCCL INFO Channel 00/0") is None
    assert nccl_log.find_diagnostics("x NCCL DIAG === NCCL Diagnostics ===") == []
    assert log_reader.read_log(DIAGNOSTICS, 0.0)["nccl"]["diagnostics"] == wanted
