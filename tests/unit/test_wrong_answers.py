"""A host that hangs or talks nonsense is named with what to do; one that says itself what is wrong is left to speak."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_report import wrong_answers


def test_a_host_over_its_limit() -> None:
    said = wrong_answers.explain_wrong_answer({"failed": True, "timedout": {"period": 900}, "msg": "Timed out"})
    assert "no answer within 900 s" in said and "wchan" in said and "host_validation_timeout" in said


@pytest.mark.parametrize(
    ("printed", "shown"),
    [
        ("Welcome to gpu1\nLast login", "It begins with: Welcome to gpu1 Last login (26 characters in all)"),
        ("\x00\ufffd\x1b[2J", "It begins with: [2J (6 characters"),
        ("\ufffd\ufffd", "nothing that can be read (2 characters"),
        ("password=hunter2secret", "begins with: password="),
        ("x" * 5000, "It begins with: " + "x" * 60 + " (5000"),
    ],
)
def test_nonsense_with_exit_status_0(printed: str, shown: str) -> None:
    said = wrong_answers.explain_wrong_answer({"failed": True, "rc": 0, "module_stdout": printed})
    assert "hunter2" not in said
    assert shown in said and "ansible_python_interpreter" in said and said.isprintable()


@pytest.mark.parametrize(
    "result",
    [
        {"failed": True, "msg": "no such bundle"},
        {"failed": True, "rc": 1, "module_stdout": "No space left on device"},
        {"failed": True, "rc": 0, "module_stdout": ""},
        {},
    ],
)
def test_other_failures_are_told_elsewhere(result: dict[str, Any]) -> None:
    assert wrong_answers.explain_wrong_answer(result) == ""
