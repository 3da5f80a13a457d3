"""What bad pairs have in common, and figures that cannot be."""

from __future__ import annotations

from itertools import permutations
from typing import Any

import pytest
from ansible.module_utils.gpu_host.probe import bad_pairs, pair_verdict

CARDS = ["0000:0%d:00.0" % number for number in range(1, 5)]
ALL = ["%s->%s" % pair for pair in permutations(CARDS, 2)]


def common(bad: list[str], small: tuple[str, ...] = (), display: tuple[str, ...] = ()) -> dict[str, Any]:
    gpus = {
        "devices": {where: {"index": index, "display_active": where in display} for index, where in enumerate(CARDS)},
        "bar1_smaller_than_memory": [{"address": where} for where in small],
    }
    return bad_pairs.find_common_ground({"pairs": dict.fromkeys(ALL), "undelivered_pairs": bad}, gpus)


def of(*cards: str) -> list[str]:
    return [name for name in ALL if set(name.split("->")) & set(cards)]


def test_one_card_in_every_bad_pair() -> None:
    assert common(of(CARDS[2]))["gpus"] == ["GPU 2 (0000:03:00.0)"]
    assert common(of(CARDS[2], CARDS[1]))["gpus"] == []  # two cards, neither is in all
    assert common(ALL)["gpus"] == []  # where all are bad, nothing is told apart
    assert common([ALL[0], "%s->%s" % tuple(ALL[0].split("->")[::-1])])["gpus"] == []  # one pair has two ends
    assert common([]) == {"gpus": [], "small_bar1": [], "display": []}


def test_small_windows_and_screens() -> None:
    assert common(of(CARDS[0]), small=(CARDS[0],))["small_bar1"] == ["GPU 0 (0000:01:00.0)"]
    assert len(common(ALL, small=tuple(CARDS))["small_bar1"]) == 4
    assert common(ALL, small=(CARDS[0],))["small_bar1"] == []  # there are bad pairs without it
    assert common(of(CARDS[3]), display=(CARDS[3],))["display"] == ["GPU 3 (0000:04:00.0)"]
    assert common(ALL, display=tuple(CARDS))["display"] == []  # the good ones show a screen too, or none is good


GEN5 = {"link": {"speed_gt_s": 32.0, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}}
IDLE = {"link": {"speed_gt_s": 2.5, "width": 16, "max_speed_gt_s": 32.0, "max_width": 16}}


@pytest.mark.parametrize(
    ("path", "end", "rate", "impossible"),
    [
        ("NODE", GEN5, 128.0, True),
        ("SYS", GEN5, 56.0, False),
        ("NODE", IDLE, 56.0, False),  # what the link can do counts, not what it does while idle
        ("NV18", GEN5, 394.0, False),
        (None, GEN5, 394.0, False),  # it may be NVLink
        ("NODE", {"link": {}}, 394.0, False),
    ],
)
def test_a_copy_faster_than_its_link(path: str | None, end: dict[str, Any], rate: float, impossible: bool) -> None:
    most = pair_verdict.expect_bandwidth(path, (end, GEN5), None, False)["most_gb_s"]
    assert (pair_verdict.name_impossible(rate, most) is not None) is impossible
