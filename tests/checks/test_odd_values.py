"""A value that is none is unknown, and its reason names the value: "①" in the place of a number."""

from __future__ import annotations

import collections
import random
import re
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import degraded
import harness
import pytest

ODD = "①"
# A number that stands by itself: no part of a name, of a version or of an address.
NUMBER = re.compile(rb"(?<![\w.:-])[0-9]+(?:\.[0-9]+)?(?![\w.:-])")
JSON_NUMBER = re.compile(rb"(?<=: )[0-9]+(?:\.[0-9]+)?(?=[,}\]])")
OF_A_RECORD = 2  # numbers of one record that are tried
OF_A_KIND = 2  # records whose names differ only in numbers and addresses
BASES = ("bare-metal", "serving", "kvm-q35", "h200-x2", "pve-kvm", "pve-lxc")
# What says as much as the value: the row that cannot be told from another one.
ROWS = re.compile(r"does not show the (?:links|path)|no row of|cannot be read|not measured")
# Records whose text is no value: a name that a file is found by, lines of which one more or less says nothing, and
# configurations of guests, whose lines are named by Proxmox's grammar.
NO_VALUES = ("/proc/sys/kernel/osrelease", "sglang.log", "N.conf")


def facts_of(place: degraded.Place, host: degraded.Host, memory: degraded.Memory) -> dict[str, Any]:
    with degraded.remembering_readers(memory):
        return harness.facts_of_host(host.evidence, place.expected, place.facts, None, place.proxmox, ask=memory.ask)


def entries_of(facts: dict[str, Any]) -> list[dict[str, Any]]:
    others = [(facts.get(name) or {}).get("errors") or [] for name in ("proxmox", "probe", "server")]
    return [*facts["errors"], *(entry for entries in others for entry in entries)]


def lost(before: Any, after: Any, path: str = "") -> Iterator[str]:
    """The facts that were known and are not any more."""
    if isinstance(before, dict) and isinstance(after, dict):
        for name in set(before) - {"errors", "evidence"}:
            yield from lost(before[name], after.get(name), "%s.%s" % (path, name))
    elif isinstance(before, list) and isinstance(after, list) and len(before) == len(after):
        for old, new in zip(before, after):
            yield from lost(old, new, path + "[]")
    elif before is not None and after is None:
        yield path


def odd_answers(base: str) -> Iterator[Any]:
    """Answers of the recorded host, each with one number replaced."""
    host, kinds, dice = degraded.base_host(base), collections.Counter[str](), random.Random(base)
    for key in sorted(degraded.base_memory(base).asked(), key=str):
        answer = degraded.answer_of(host.evidence, key)
        field = "stdout" if isinstance(answer, degraded.Outcome) else "data"
        data = getattr(answer, field, None)
        kind = re.sub(r"[0-9a-f]{4}:[0-9a-f]{2}:[0-9a-f]{2}\.[0-7]|\d+", "N", degraded.shown(key))
        kinds[kind] += 1
        if answer.status != "ok" or not data or kinds[kind] > OF_A_KIND or kind.endswith(NO_VALUES) or b"\0" in data:
            continue
        json = data.lstrip()[:1] == b"{"
        found = list((JSON_NUMBER if json else NUMBER).finditer(data))
        for match in dice.sample(found, min(OF_A_RECORD, len(found))):
            odd = ('"%s"' % ODD if json else ODD).encode()
            yield replace(answer, **{field: data[: match.start()] + odd + data[match.end() :]})


@pytest.mark.slow
@pytest.mark.parametrize("base", BASES)
def test_an_odd_value_is_named_where_it_makes_a_fact_unknown(base: str) -> None:
    place, host, memory = degraded.place_of(base), degraded.base_host(base), degraded.base_memory(base)
    before = facts_of(place, host, memory)
    known, silent, tried = entries_of(before), {}, 0
    for answer in odd_answers(base):
        after = facts_of(place, host.with_answers([("host", answer)]), degraded.Memory(memory, keep=False))
        tried += 1
        missing = sorted(set(lost(before, after)))
        told = [entry["problem"] for entry in entries_of(after) if entry not in known]
        if missing and not any(ODD in problem or ROWS.search(problem) for problem in told):
            silent[degraded.shown(degraded.key_of(answer))] = "%s unknown, told: %s" % (missing[:3], told[:2])
    assert tried > 20
    assert silent == {}


def test_a_port_that_is_none_leaves_it_unknown_whether_the_server_answers() -> None:
    change = {"read": "/proc/400/cmdline", "replace": {"--port\x008000": "--port\x00%s5" % ODD}}
    evidence = harness.evidence_with(harness.base("serving"), [change], "odd port")
    result = harness.judge(evidence, harness.BASES["serving"]["expected"])["server_ready"]
    assert result["status"] == "unknown" and "--port is no port: '%s5'" % ODD in result["reason"], result
