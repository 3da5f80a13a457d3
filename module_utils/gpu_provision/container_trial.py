"""Runs a command in a throw-away container of an image, before the server that runs is touched."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ..gpu_host.evidence.interface import Evidence, Outcome
from . import container_words

REMOVE_SECONDS = 60.0


def run_in_image(
    evidence: Evidence,
    plan: Mapping[str, Any],
    words: Sequence[str],
    limit: float,
    is_answer: Callable[[str], bool] | None = None,
) -> Outcome:
    """What `words` print in a container of `plan` (container_words.make_trial_words), without network and GPUs.

    `is_answer`: whether an output is what was asked for; where it is not, as of a vLLM that asks for its device first,
    the same is run once more with the GPUs, which it does not use. `limit` in seconds, of each.
    """
    outcome = _run_once(evidence, plan, words, limit, with_gpus=False)
    if is_answer is None or not plan["gpu_options"] or not outcome.ok:
        return outcome
    if outcome.rc == 0 and is_answer(outcome.text + "\n" + outcome.error_text):
        return outcome
    return _run_once(evidence, plan, words, limit, with_gpus=True)


def _run_once(
    evidence: Evidence, plan: Mapping[str, Any], words: Sequence[str], limit: float, *, with_gpus: bool
) -> Outcome:
    remove = ["env", plan["program"], "rm", "-f", container_words.make_trial_name(plan["name"])]
    # By env: a program that did not end is not asked again, and this one has to be.
    evidence.run(remove, REMOVE_SECONDS)  # of a run that was killed
    outcome = evidence.run(["env", *container_words.make_trial_words(plan, words, with_gpus)], limit)
    if not outcome.ok:  # its client was ended, and it may run on
        evidence.run(remove, REMOVE_SECONDS)
    return outcome
