"""What a generation proves of the hosts that serve one model together: that a collective works between them.

Rank 0 computes an answer with the ranks of all hosts: tensor and pipeline parallel ranks exchange data for every token.
So an answer that came proves that their collective ends. It says nothing of single values, nor of the speed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ..gpu_host.evidence import values

Facts = dict[str, Any]
# Facts of one run are read within this time; what a cache of facts or an old bundle holds is of another day.
SAME_LOOK_S = 1800.0


def find_generating_host(facts: dict[str, Facts | None]) -> str:
    """The host of rank 0, where its server generated over the ranks of all these hosts in this look; "" where that is
    not shown.

    `facts`: the ansible_facts of every host of the group, None of one that is not part of this run.
    """
    servers = {name: values.parse_mapping((found or {}).get("inference_server")) for name, found in facts.items()}
    parts = {name: values.parse_mapping(server.get("node")) for name, server in servers.items()}
    if sorted(str(part.get("rank")) for part in parts.values()) != sorted(map(str, range(len(facts)))):
        return ""
    first = next(name for name, part in parts.items() if part["rank"] == 0)
    meeting = (parts[first].get("address"), parts[first].get("port"), len(facts))
    places = {(part.get("address"), part.get("port"), part.get("nodes")) for part in parts.values()}
    # Another server of the same inventory meets elsewhere; replicas (data parallel) answer without the other hosts.
    if None in meeting or places != {meeting} or parts[first].get("spans_hosts") is not True:
        return ""
    answer = values.parse_mapping(servers[first].get("generation"))
    answered = answer.get("ran") is True and answer.get("answered") is True and answer.get("sane") is True
    complete = answered and parts[first].get("peers_missing") == 0
    return first if complete and _are_of_one_look(list(facts.values())) else ""


def _are_of_one_look(facts: Sequence[Facts | None]) -> bool:
    looks = [((found or {}).get("gpu_host") or {}).get("evidence") or {} for found in facts]
    times = [look.get("taken_at") for look in looks]
    known = [time for time in times if isinstance(time, (int, float))]
    same_kind = len({bool(look.get("recorded")) for look in looks}) == 1
    return same_kind and len(known) == len(times) and max(known) - min(known) <= SAME_LOOK_S
