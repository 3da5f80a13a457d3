"""Odd evidence: records of the recorded hosts with damaged values, one or a few at a time.

`python tests/checks/mutations.py 250000` runs every reader and every check over so many mutated records and prints what
broke.
"""

from __future__ import annotations

import os
import random
import re
import sys
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

if __name__ == "__main__":
    sys.path[:0] = [str(Path(__file__).resolve().parents[1]), str(Path(__file__).resolve().parent)]
    __import__("conftest")

import degraded
import harness
from ansible.module_utils.gpu_host.evidence.interface import Fetched, Listing, Outcome, Reading

# What no reader expects where a number, a word or a line should stand.
ODD_WORDS = [
    b"\xe2\x91\xa0",
    b"2\xc2\xb2" + b"36",
    b"\xd9\xa3",
    b"inf",
    b"-inf",
    b"nan",
    b"1e999",
    b"-1",
    b"0",
    b"9" * 19,
    b"9" * 310,
    b"9" * 4400,
    b"0x",
    b"0x" + b"f" * 40,
    b"1_000",
    b"",
    b" ",
    b"\x00",
    b"\xff\xfe",
    b"N/A",
    b"[Unknown Error]",
    b"ERR!",
    b"null",
    b"true",
    b'"x"',
    b"{}",
    b"[]",
    b"[[[[",
    b'{"a": ',
    b"<",
    b"</gpu>",
    b":",
    b"=",
    b"%s",
    b"{{ 1 }}",
    b"\n",
    b"\r",
    b"\t",
    b"A" * 3000,
    b"-",
    b"1.2.3",
    b"..",
    b"/",
]
NUMBER = re.compile(rb"[0-9]+(?:\.[0-9]+)?")
WORD = re.compile(rb"[^\s,;:=<>\"']+")
JSON_VALUE = re.compile(rb'(?<=: )(?:"[^"]{0,80}"|[0-9.eE+-]+|true|false|null|\{|\[)')


def mutated_bytes(data: bytes, dice: random.Random) -> bytes:
    """`data` with one to three pieces replaced, cut, doubled or moved."""
    for _step in range(dice.randint(1, 3)):
        how = dice.random()
        pattern = NUMBER if how < 0.35 else JSON_VALUE if how < 0.5 else WORD if how < 0.7 else None
        found = list(pattern.finditer(data, 0, 200_000)) if pattern else []
        if found:
            match = dice.choice(found)
            data = data[: match.start()] + dice.choice(ODD_WORDS) + data[match.end() :]
            continue
        start = dice.randint(0, len(data))
        end = min(len(data), start + dice.randint(0, 200))
        kind = dice.randrange(4)
        if kind == 0:
            data = data[:start] + data[end:]
        elif kind == 1:
            data = data[:end] + data[start:end] + data[end:]
        elif kind == 2:
            data = data[:start] + dice.choice(ODD_WORDS) + data[start:]
        else:
            lines = data.splitlines(keepends=True)
            dice.shuffle(lines)
            data = b"".join(lines[: dice.randint(0, len(lines))])
    return data


def mutated(answer: Any, dice: random.Random) -> Any:
    """One answer as no host would give it, or as a broken one does."""
    if dice.random() < 0.05:
        return dice.choice(list(degraded.degradations(answer).values()) or [answer])
    if isinstance(answer, Reading):
        return replace(answer, data=mutated_bytes(answer.data or b"", dice), status="ok")
    if isinstance(answer, Fetched):
        return replace(answer, data=mutated_bytes(answer.data, dice), status="ok", code=answer.code or 200)
    if isinstance(answer, Outcome):
        which = dice.choice(["stdout", "stdout", "stdout", "stderr", "rc"])
        if which == "rc":
            return replace(answer, status="ok", rc=dice.choice([None, -11, 1, 2, 127, 255, 2**40]))
        return replace(answer, status="ok", rc=answer.rc or 0, **{which: mutated_bytes(getattr(answer, which), dice)})
    entries = dict(answer.entries)
    for name in dice.sample(sorted(entries), min(len(entries), dice.randint(1, 3))):
        entry = entries.pop(name)
        field, value = dice.choice(
            [
                ("target", None),
                ("target", "①"),
                ("target", "../" * 50),
                ("mode", None),
                ("major", None),
                ("major", 2**70),
                ("minor", -1),
                ("modified", None),
                ("modified", float("inf")),
                ("modified", float("nan")),
                ("size", 2**70),
                ("kind", "dir"),
            ]
        )
        odd = name
        if dice.random() < 0.3:
            odd = dice.choice(["①", "nvidia②", "node①", "0000:01:00.0", "..", "9" * 300, name + "x", "policy"])
        entries[odd] = replace(entry, **{field: value})
    return Listing(answer.path, "ok", entries)


class Mutant:
    """One recorded host; `judge` tells what broke when some of its records are mutated."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.place = degraded.place_of(base)
        self.host = degraded.base_host(base)
        self.healthy = degraded.judged_base(base)
        self.memory = degraded.base_memory(base)
        known = sorted(self.memory.asked(), key=str)
        self.records = [
            ("host", key) for key in known if degraded.answer_of(self.host.evidence, key).status != "not_captured"
        ]
        if self.host.hypervisor is not None:
            other = [key for key in known if degraded.answer_of(self.host.hypervisor, key).status != "not_captured"]
            self.records += [("hypervisor", key) for key in other]

    def judge(self, seed: str, count: int) -> list[str]:
        """The sentences that say which reader or check broke on `count` mutated records."""
        dice = random.Random(seed)
        changes = [
            (side, mutated(degraded.answer_of(self.host.side(side), key), dice))
            for side, key in dice.sample(self.records, count)
        ]
        now = degraded.judge(
            self.place, self.host.with_answers(changes), degraded.Memory(self.memory, keep=False), self.healthy
        )
        broken = [
            result["id"] + ": " + result["reason"] for result in now.results.values() if result["status"] == "error"
        ]
        return now.faults + broken


def run(count: int, seed: str, at_once: int = 12) -> dict[str, list[str]]:
    """What broke in `count` mutated records, by the seed that shows it again."""
    mutants = [Mutant(base) for base in harness.BASES]
    found: dict[str, list[str]] = {}
    for number in range(0, count, at_once):
        mutant = mutants[(number // at_once) % len(mutants)]
        name = "%s %s %d" % (mutant.base, seed, number)
        try:
            problems = mutant.judge(name, min(at_once, len(mutant.records)))
        except Exception as error:  # what is looked for
            problems = ["%s: %s" % (type(error).__name__, error)]
        if problems:
            found[name] = problems
    return found


if __name__ == "__main__":
    began, wanted = time.monotonic(), int(sys.argv[1]) if len(sys.argv) > 1 else 10_000
    broke = run(
        wanted, sys.argv[2] if len(sys.argv) > 2 else str(os.getpid()), int(sys.argv[3]) if len(sys.argv) > 3 else 12
    )
    for where, what in broke.items():
        print(where, "; ".join(what)[:400])
    print("%d mutated records, %d broke something, %.0f s" % (wanted, len(broke), time.monotonic() - began))
    sys.exit(bool(broke))
