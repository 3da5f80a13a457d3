"""Whatever stands in a record, no reader and no check raises; mutations.py tries 250,000 of them."""

from __future__ import annotations

import harness
import mutations
import pytest

AT_ONCE = 40
ROUNDS = 6  # per host


@pytest.mark.parametrize("base", sorted(harness.BASES))
def test_odd_records_break_nothing(base: str) -> None:
    mutant = mutations.Mutant(base)
    found = {}
    for number in range(ROUNDS):
        problems = mutant.judge("%s %d" % (base, number), min(AT_ONCE, len(mutant.records)))
        if problems:
            found[number] = problems
    assert found == {}


def test_a_mutation_changes_the_record() -> None:
    """The test above can fail: most mutations are another answer than the recorded one."""
    mutant = mutations.Mutant("bare-metal")
    dice = mutations.random.Random("changes")
    changed = 0
    for side, key in mutant.records[:200]:
        answer = mutations.degraded.answer_of(mutant.host.side(side), key)
        changed += mutations.mutated(answer, dice) != answer
    assert changed > 150
