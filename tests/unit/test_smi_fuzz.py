"""Cuts and damage at random.

Nothing raises, nothing that is not OK becomes granted, nothing that is not whole is complete.
"""

from __future__ import annotations

import functools
import gzip
import sys
from pathlib import Path
from typing import Any

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ansible.module_utils.gpu_host import cross_facts, gpus, p2p, topology
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.smi import nvlink, plain_table, topo_matrix
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st
from smi_host import block, evidence, gathered, printed, xml

LOG = xml(
    block() + block("00000000:02:00.0", minor_number="1") + block("00000000:03:00.0", minor_number="2"), attached=3
).encode()
FUZZ = settings(deadline=None, max_examples=100, suppress_health_check=[HealthCheck.too_slow])
NAMES = {number: "0000:%02x:00.0" % number for number in range(8)}


@functools.cache
def text_log() -> bytes:
    recorded = (
        Path(__file__).resolve().parents[1] / "fixtures" / "recordings" / "h200-x2-nvlink" / "nvidia-smi_-q.txt.gz"
    )
    return gzip.decompress(recorded.read_bytes())


@st.composite
def damaged(draw: Any, whole: bytes) -> bytes:
    """`whole` with pieces cut out, doubled, moved to the end or overwritten by junk."""
    data = whole
    for _step in range(draw(st.integers(1, 4))):
        start = draw(st.integers(0, len(data)))
        end = min(len(data), start + draw(st.integers(0, 600)))
        kind = draw(st.sampled_from(["cut", "double", "move", "junk", "truncate"]))
        piece = data[start:end]
        if kind == "cut":
            data = data[:start] + data[end:]
        elif kind == "double":
            data = data[:end] + piece + data[end:]
        elif kind == "move":
            data = data[:start] + data[end:] + piece
        elif kind == "truncate":
            data = data[:start]
        else:
            data = data[:start] + draw(st.binary(max_size=20)) + data[end:]
    return data


def consistent(facts: dict[str, Any]) -> None:
    """What must hold of any facts at all."""
    if facts["count"] is not None:
        assert facts["count"] <= facts["parsed"] == len(facts["devices"])
    else:
        assert facts["models"] is None and facts["idle"] is not True
        # An empty list needs a look at every GPU.
        assert all(
            facts[name] is None or facts[name] for name in ("mig_enabled", "ecc_errors", "slowed", "width_reduced")
        )
    cross_facts.join_facts({"gpus": facts}, Errors("joined"))


@FUZZ
@given(data=damaged(LOG))
def test_damaged_xml(data: bytes) -> None:
    facts, _problems = gathered({gpus.XML: data})
    consistent(facts)
    if (
        b"<attached_gpus>3</attached_gpus>" in data
        and data.count(b"</gpu>") < 3
        and data.count(b"<attached_gpus>") == 1
    ):
        assert facts["complete"] is not True and facts["count"] is None


@FUZZ
@given(cut=st.integers(0, len(LOG) - 2))
def test_a_cut_log_is_never_complete(cut: int) -> None:
    facts, problems = gathered({gpus.XML: LOG[:cut]})
    consistent(facts)
    assert facts["complete"] is not True and problems


@FUZZ
@given(data=st.data())
def test_damaged_text(data: Any) -> None:
    facts, _problems = gathered({gpus.TEXT: data.draw(damaged(text_log()))})
    consistent(facts)


@FUZZ
@given(data=st.data())
def test_a_cut_text_has_not_every_gpu(data: Any) -> None:
    whole = text_log()
    cut = data.draw(st.integers(0, whole.index(b"GPU 00000000:00:07.0")))
    facts, _problems = gathered({gpus.TEXT: whole[:cut]})
    consistent(facts)
    assert facts["count"] is None and facts["complete"] is not True


@FUZZ
@given(
    data=st.one_of(
        st.binary(max_size=400), st.text(max_size=400).map(lambda text: text.encode("utf-8", "surrogatepass"))
    )
)
def test_junk_in_place_of_anything(data: bytes) -> None:
    commands = [
        gpus.XML,
        gpus.TEXT,
        gpus.TABLE,
        gpus.INDEX,
        topology.MATRIX,
        topology.NVLINK,
        *(argv for argv, _limit in p2p.COMMANDS),
    ]
    answers: dict[tuple[str, ...], Any] = dict.fromkeys(commands, data)
    host = evidence(answers)
    facts = {
        "gpus": gpus.gather(host, Errors("gpus")),
        "p2p": p2p.gather(host, Errors("p2p")),
        "topology": topology.gather(host, Errors("topology")),
    }
    consistent(facts["gpus"])
    assert facts["p2p"]["all_granted"] is not True
    cross_facts.join_facts(facts, Errors("joined"))


def matrix(cells: list[list[str]], separator: str) -> bytes:
    labels = ["GPU%d" % number for number in range(len(cells))]
    rows = [" " + separator + separator.join(labels) + separator]
    rows += [" " + separator.join([label, *row]) + separator for label, row in zip(labels, cells)]
    return ("\n".join(rows) + "\n\nLegend:\n\n  X    = Self\n  OK   = Status Ok\n").encode()


@st.composite
def matrices(draw: Any) -> tuple[bytes, dict[tuple[int, int], str]]:
    size = draw(st.integers(2, 8))
    status = st.sampled_from(["OK", "OK", "OK", "NS", "CNS", "GNS", "TNS", "DR", "U"])
    cells = [["X" if row == column else draw(status) for column in range(size)] for row in range(size)]
    told = {(row, column): cells[row][column] for row in range(size) for column in range(size) if row != column}
    return matrix(cells, draw(st.sampled_from(["\t", "    "]))), told


@FUZZ
@given(drawn=matrices())
def test_a_whole_matrix_says_what_it_says(drawn: tuple[bytes, dict[tuple[int, int], str]]) -> None:
    data, told = drawn
    assert p2p.read_statuses(topo_matrix.parse_matrix(data)) == {
        pair: None if status == "U" else status for pair, status in told.items()
    }


@FUZZ
@given(drawn=matrices(), cuts=st.data())
def test_damage_never_grants(drawn: tuple[bytes, dict[tuple[int, int], str]], cuts: Any) -> None:
    """Whatever is cut out of a matrix: a pair that it did not grant is not granted."""
    data, told = drawn
    start = cuts.draw(st.integers(0, len(data)))
    end = min(len(data), start + cuts.draw(st.integers(1, 12)))
    # A cut that makes one status out of another (the C of CNS) is beyond any reader; statuses that end in OK do not
    # exist.
    statuses = p2p.read_statuses(topo_matrix.parse_matrix(data[:start] + data[end:]))
    size = max(pair[0] for pair in told) + 1
    for pair, status in statuses.items():
        if status == "OK" and max(pair) < size:
            assert told[pair] == "OK", (data[:start] + data[end:]).decode()
    facts = p2p.summarise_statuses(
        {"read": statuses or None, "write": statuses or None}, {number: NAMES[number] for number in range(size)}
    )
    if any(status != "OK" for status in told.values()):
        assert facts["all_granted"] is not True


@FUZZ
@given(cut=st.integers(0, 10_000))
def test_a_cut_matrix_is_never_all_granted(cut: int) -> None:
    whole = printed("bare-metal", "nvidia-smi", "topo", "-p2p", "r")
    rows_end = whole.index(b"\n\nLegend") - 2
    statuses = p2p.read_statuses(topo_matrix.parse_matrix(whole[: cut % rows_end]))
    assert p2p.summarise_statuses({"read": statuses, "write": statuses}, NAMES)["all_granted"] is not True


@FUZZ
@given(data=st.data())
def test_damaged_topology_links_and_tables(data: Any) -> None:
    facts = topology.summarise_topology(
        topo_matrix.parse_matrix(data.draw(damaged(printed("bare-metal", *topology.MATRIX)))), NAMES
    )
    assert facts["pairs_beyond"] is None or not facts["unknown_pairs"]
    links = nvlink.parse_nvlink(data.draw(damaged(printed("h200-x2", *topology.NVLINK)))) or {}
    for found in links.values():
        nvlink.summarise_nvlink(found)
    plain_table.parse_plain_table(
        data.draw(
            damaged(
                b"+---+\n| NVIDIA-SMI 610.43.02\n|   0  NVIDIA L40S     On  |   00000000:16:00.0 Off |      Off |\n" * 3
            )
        )
    )
