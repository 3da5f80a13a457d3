"""P2P statuses: the matrix in every shape seen, and what follows from it."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

import pytest
from ansible.module_utils.gpu_host import gpus, p2p
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import ABSENT, DENIED, FAILED, HUNG, OK, TIMEOUT, Outcome
from ansible.module_utils.gpu_host.smi import topo_matrix
from smi_host import Answers, evidence, host

A, B, C = "0000:01:00.0", "0000:02:00.0", "0000:03:00.0"
INDEX = "index, pci.bus_id\n0, 00000000:01:00.0\n1, 00000000:02:00.0\n2, 00000000:03:00.0\n"
LEGEND = "\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n  NS   = Not supported\n"


def matrix(*rows: str, legend: str = LEGEND) -> str:
    """As driver 595 prints it, from rows such as ``X OK NS``."""
    header = " \t\x1b[4m" + "".join("GPU%d\t" % number for number in range(len(rows))) + "\x1b[0m\n"
    return (
        header
        + "".join(" GPU%d\t%s\t\n" % (number, row.replace(" ", "\t")) for number, row in enumerate(rows))
        + legend
    )


ALL_OK = matrix("X OK OK", "OK X OK", "OK OK X")
NONE = matrix("X NS NS", "NS X NS", "NS NS X")


def answers(
    read: str | Outcome | None = ALL_OK,
    write: str | None = ALL_OK,
    nvlink: str | None = NONE,
    index: str | None = INDEX,
) -> Answers:
    table: Answers = {}
    for letter, text in (("r", read), ("w", write), ("n", nvlink), ("a", NONE), ("p", ALL_OK)):
        if text is not None:
            table["nvidia-smi", "topo", "-p2p", letter] = text
    if index is not None:
        table[gpus.INDEX] = index
    return table


def gathered(table: Answers) -> tuple[dict[str, Any], list[str]]:
    errors = Errors("p2p")
    return p2p.gather(evidence(table), errors), [entry["problem"] for entry in errors.entries]


def test_all_granted_by_address() -> None:
    facts, problems = gathered(answers())
    assert (facts["gpu_count"], facts["pair_count"], facts["all_granted"], facts["all_nvlink"]) == (3, 6, True, False)
    assert facts["read"][A] == {B: "OK", C: "OK"}
    assert {"source": C, "destination": A} in facts["granted_pairs"] and len(facts["granted_pairs"]) == 6
    assert facts["blocked_pairs"] == facts["unknown_pairs"] == facts["nvlink_pairs"] == [] and problems == []


def test_atomics_not_supported_is_normal() -> None:
    facts, _problems = gathered(answers())
    assert facts["atomics"][A][B] == "NS" and facts["all_granted"] is True


def test_blocked_in_one_direction_only() -> None:
    facts, _problems = gathered(answers(read=matrix("X OK OK", "OK X CNS", "OK OK X")))
    assert facts["all_granted"] is False
    assert facts["blocked_pairs"] == [
        {"source": B, "destination": C, "capability": "read", "status": "CNS", "meaning": "chipset not supported"}
    ]
    assert facts["blocked_by_status"] == [{"status": "CNS", "meaning": "chipset not supported", "count": 1}]
    assert len(facts["granted_pairs"]) == 5


def test_writes_count_too() -> None:
    facts, _problems = gathered(answers(write=matrix("X DR OK", "OK X OK", "OK OK X")))
    assert (
        facts["blocked_pairs"][0]["capability"] == "write"
        and facts["blocked_pairs"][0]["meaning"] == "disabled by regkey"
    )
    facts, _problems = gathered(answers(write=None))
    assert facts["all_granted"] is None and len(facts["unknown_pairs"]) == 6, (
        "granted to read, but nobody looked at writes"
    )
    assert facts["unreadable_pairs"] is None, "no matrix shows a pair without a status"


@pytest.mark.parametrize("cell", ["U", "", "OK!", "ok", "??", "SYS", "O"])
def test_what_is_no_known_status_is_unknown(cell: str) -> None:
    facts, _problems = gathered(answers(read=matrix("X OK OK", "OK X %s" % cell, "OK OK X")))
    assert facts["all_granted"] is None
    assert {"source": B, "destination": C, "unknown": ["read"]} in facts["unknown_pairs"]


@pytest.mark.parametrize(
    "text",
    [
        "$ nvidia-smi topo -p2p r\n        GPU0    GPU1    GPU2\n GPU0   X       OK      OK\n GPU1   OK      X       "
        "OK\n GPU2   OK      OK      X\n",
        "                GPU0    GPU1    GPU2\n"
        "      GPU0      X       OK      OK\n      GPU1      OK      X       OK\n      GPU2      OK      OK      X\n",
        "\t[4mGPU0\tGPU1\tGPU2\t[0m\r\nGPU0\tX\tOK\tOK\t\r\nGPU1\tOK\tX\tOK\t\r\nGPU2\tOK\tOK\tX\t\r\nLegend:\r\n  X "
        "= Self\r\n",
        "nvidia-smi topo -p2p r\n GPU0 GPU1 GPU2\n GPU0 X OK OK\n GPU1 OK X OK\n GPU2 OK OK X\nLegend:\n  X    = "
        "Self\n",
    ],
)
def test_every_layout(text: str) -> None:
    parsed = topo_matrix.parse_matrix(text.encode())
    assert set(p2p.read_statuses(parsed).values()) == {"OK"} and len(p2p.read_statuses(parsed)) == 6


def test_a_missing_row_leaves_its_pairs_unknown() -> None:
    facts, problems = gathered(answers(read=ALL_OK[: ALL_OK.index(" GPU2")]))
    assert len(facts["unknown_pairs"]) == len(facts["unreadable_pairs"]) == 2 and facts["all_granted"] is None
    assert problems == ["is cut off: no row of GPU2"]


def test_a_gpu_that_the_matrix_leaves_out_is_not_forgotten() -> None:
    facts, _problems = gathered(answers(read=matrix("X OK", "OK X"), write=matrix("X OK", "OK X")))
    assert (facts["gpu_count"], facts["pair_count"], facts["all_granted"]) == (3, 6, None)


def test_a_lost_cell_shifts_nothing() -> None:
    facts, _problems = gathered(
        answers(read=ALL_OK.replace("GPU0\tX\tOK\tOK", "GPU0\tX\tOK").replace("GPU1\tOK\tX\tOK", "GPU1\tX\tOK\tOK"))
    )
    assert {pair["source"] for pair in facts["unknown_pairs"]} == {A, B}


def test_one_gpu_has_no_pair() -> None:
    one = matrix("X")
    table: Answers = {argv: one for argv, _limit in p2p.COMMANDS}
    facts, _problems = gathered(table)
    assert (facts["gpu_count"], facts["pair_count"], facts["all_granted"]) == (1, 0, None)


def test_labels_stand_in_for_unknown_addresses() -> None:
    facts, _problems = gathered(answers(index=None))
    assert facts["read"]["GPU0"]["GPU2"] == "OK"


def test_without_an_answer_everything_is_unknown() -> None:
    facts, problems = gathered({})
    assert facts["all_granted"] is None and facts["pair_count"] is None and facts["read"] is None
    assert set(problems) == {"not captured in this bundle"}
    failed = Outcome(("nvidia-smi", "topo", "-p2p", "r"), OK, rc=9, stdout=b"NVIDIA-SMI has failed")
    facts, problems = gathered(answers(read=failed))
    assert (
        facts["read"] is None
        and facts["all_granted"] is None
        and len(facts["unknown_pairs"]) == 6
        and facts["unreadable_pairs"] is None
    )
    assert problems == ["exit code 9, no matrix: NVIDIA-SMI has failed"]


@pytest.mark.parametrize("status", [ABSENT, HUNG, TIMEOUT, DENIED, FAILED])
def test_one_matrix_that_does_not_come_leaves_the_others_their_answer(status: str) -> None:
    refused = matrix("X CNS CNS", "CNS X CNS", "CNS CNS X")
    facts, problems = gathered(answers(read=Outcome(("nvidia-smi", "topo", "-p2p", "r"), status), write=refused))
    assert facts["read"] is None and len(facts["blocked_pairs"]) == 6 and facts["all_granted"] is False
    assert bool(problems) is (status != ABSENT)


def test_a_matrix_that_was_cut_off_grants_nothing() -> None:
    cut = Outcome(("nvidia-smi", "topo", "-p2p", "r"), OK, rc=0, stdout=ALL_OK.encode()[:60], truncated=True)
    facts, problems = gathered(answers(read=cut))
    assert facts["all_granted"] is None and any("cut off" in problem for problem in problems)


def test_the_recording_with_nvlink() -> None:
    facts = p2p.gather(host("h200-x2"), Errors("p2p"))
    assert (facts["pair_count"], facts["all_granted"], facts["all_nvlink"]) == (2, True, True)
    assert facts["pcie"]["0000:00:06.0"] == {"0000:00:07.0": "NS"}
