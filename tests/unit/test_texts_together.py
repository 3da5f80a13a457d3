"""Texts that are filled in together say what each says alone, and most are filled in together."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_checks import evaluator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

VARIABLES: dict[str, Any] = {
    "host": {"name": "H200", "null": None, "count": 8, "trap": "{{ 1 / 0 }}", "list": ["a"], "yes": True},
    "expected": {},
}
TOGETHER = [
    "{{ host.name }}",
    "{{ 'no GPU' if host.count == 0 else 'GPUs: ' ~ host.count }}\n",
    "  {{ host.trap }}",
    "{{ host.list | join(',') }}",
    "{{ '%s of %d' % (host.name, host.count) }}",
]
ALONE = [
    "nothing to fill in",
    "{{ host.name }} has {{ host.count }}",
    "{{- host.name -}}",
    "{{ host.name }}{{ host.count }}",
    "{% if host.yes %}yes{% endif %}",
    "{{ host.name }}{# a comment #}",
    "{{ host.null }}",
    "{{ host.count }}",
    "{{ '}}' }}",
]


class Counting(evaluator.TemplarEvaluator):
    def __init__(self) -> None:
        super().__init__(Templar(loader=DataLoader(), variables=VARIABLES))
        self.alone: list[str] = []

    def text(self, template: str) -> str:
        self.alone.append(str(template))
        return super().text(template)


def fill(templates: list[str]) -> tuple[list[str], list[str]]:
    """(the texts, those that were filled in alone)."""
    counting = Counting()
    asked = evaluator.Asked(counting)
    trusted = [trust_as_template(template) for template in templates]
    asked.fill_ahead(trusted)
    return [asked.text(template) for template in trusted], counting.alone


def test_together_they_say_what_each_says_alone() -> None:
    plain = Counting()
    texts, alone = fill(TOGETHER + ALONE)
    assert texts == [plain.text(trust_as_template(template)) for template in TOGETHER + ALONE]
    assert alone == ALONE
    assert "{{ 1 / 0 }}" in texts, "what a host says is no template"


@pytest.mark.parametrize("bad", ["{{ host.absent.deeper }}", "{{ 1 / 0 }}", "{{ host. }}"])
def test_one_without_a_value_costs_the_others_nothing_but_time(bad: str) -> None:
    counting = Counting()
    asked = evaluator.Asked(counting)
    asked.fill_ahead([trust_as_template(template) for template in [*TOGETHER, bad]])
    assert asked.text(trust_as_template(TOGETHER[0])) == "H200"
    with pytest.raises(evaluator.EvaluationError):
        asked.text(trust_as_template(bad))


def test_what_is_not_trusted_is_not_filled_in_with_the_others() -> None:
    counting = Counting()
    asked = evaluator.Asked(counting)
    asked.fill_ahead(["{{ host.name }}"])
    assert asked.text("{{ host.name }}") == "{{ host.name }}"
