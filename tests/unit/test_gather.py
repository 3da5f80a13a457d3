"""Gathering: subjects are chosen, a broken reader hides no other, and nothing is left running."""

from __future__ import annotations

import types
from typing import Any

import pytest
from ansible.module_utils.gpu_host import gather
from ansible.module_utils.gpu_host.evidence import bundle
from ansible.module_utils.gpu_host.evidence.errors import Errors
from ansible.module_utils.gpu_host.evidence.interface import Listing, Outcome, Reading


def test_choice_of_subjects() -> None:
    everything = list(gather.SUBJECTS)
    assert gather.choose_subjects(["all"]) == gather.choose_subjects([]) == everything
    assert gather.choose_subjects(["p2p", "gpus"]) == ["gpus", "p2p"]
    assert (
        gather.choose_subjects(["!kernel_log"])
        == gather.choose_subjects(["all", "!kernel_log"])
        == [name for name in everything if name != "kernel_log"]
    )
    assert gather.choose_subjects(["gpus", "!gpus"]) == []
    for word in ("gpu", "!gpu"):
        with pytest.raises(ValueError, match="unknown subject"):
            gather.choose_subjects([word])


@pytest.fixture
def readers(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Two subjects of our own: one that answers, one that breaks."""

    def good(evidence: Any, errors: Errors) -> dict[str, Any]:
        errors.unanswered(evidence.read("/nothing"))
        return {"value": 1}

    def bad(evidence: Any, errors: Errors) -> dict[str, Any]:
        errors.add("tool", "said something odd")
        raise KeyError("gone")

    def reader(function: Any) -> Any:
        return types.SimpleNamespace(gather=function, COMMANDS=[(["sleep", "60"], 60.0)])

    monkeypatch.setattr(gather, "SUBJECTS", {"good": reader(good), "bad": reader(bad)})


class Watched(bundle.BundleEvidence):
    def __init__(self) -> None:
        super().__init__({}, ())
        self.started: list[list[str]] = []
        self.abandoned = False

    def start(self, argv: Any, timeout: float = 30.0) -> None:
        self.started.append(list(argv))

    def abandon(self) -> None:
        self.abandoned = True


def test_a_broken_reader_hides_no_other(readers: Any) -> None:
    facts = gather.gather(bundle.BundleEvidence({"reconstructed": True, "captured_at": 7}, ()))
    assert facts["good"] == {"value": 1} and facts["bad"] is None
    by_subject = {entry["subject"]: [] for entry in facts["errors"]} | {}
    for entry in facts["errors"]:
        by_subject[entry["subject"]].append(entry["problem"])
    assert by_subject["good"] == ["not captured in this bundle"]
    assert (
        by_subject["bad"][0] == "said something odd"
        and "KeyError" in by_subject["bad"][1]
        and "report it" in by_subject["bad"][1]
    )
    assert (
        facts["evidence"]["recorded"] is True
        and facts["evidence"]["reconstructed"] is True
        and facts["evidence"]["taken_at"] == 7.0
    )
    assert facts["evidence"]["subjects"] == ["good", "bad"]


def test_commands_are_started_first_and_none_is_left(readers: Any) -> None:
    watched = Watched()
    gather.gather(watched)
    assert watched.started == [["sleep", "60"], ["sleep", "60"]]
    assert watched.abandoned


def test_subjects_that_were_not_chosen_are_null(readers: Any) -> None:
    facts = gather.gather(bundle.BundleEvidence({}, ()), ["good"])
    assert facts["bad"] is None and facts["evidence"]["subjects"] == ["good"]


@pytest.mark.parametrize(
    ("answer", "problem", "needs_root"),
    [
        (Reading("/f", "denied"), "needs root", True),
        (Reading("/f", "absent"), "is not there", False),
        (Reading("/f", "not_captured"), "not captured in this bundle", False),
        (Reading("/f", "failed", reason="Input/output error"), "Input/output error", False),
        (Listing("/d", "denied"), "needs root", True),
        (Outcome(("a", "b"), "timeout", reason="no answer within 5 s"), "no answer within 5 s", False),
        (
            Outcome(("a", "b"), "hung", reason="pid 7 ignores SIGKILL"),
            "hung in the kernel: pid 7 ignores SIGKILL",
            False,
        ),
    ],
)
def test_errors_say_what_went_wrong(answer: Any, problem: str, needs_root: bool) -> None:
    errors = Errors("x")
    errors.unanswered(answer)
    errors.unanswered(answer)
    source = "a b" if isinstance(answer, Outcome) else answer.path
    assert errors.entries == [{"subject": "x", "source": source, "problem": problem, "needs_root": needs_root}]


def test_an_answer_is_no_error() -> None:
    errors = Errors("x")
    errors.unanswered(Reading("/f", "ok", b""))
    errors.unanswered(Reading("/f", "absent"), absent_is_fine=True)
    assert errors.entries == []
