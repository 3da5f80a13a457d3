"""Conditions and texts are Ansible's, whether their code was kept or not, and what is kept spares the compiling."""

from __future__ import annotations

from typing import Any

import jinja2.parser
import pytest
from ansible.module_utils.gpu_checks import compiled, evaluator
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template

VARIABLES: dict[str, Any] = {
    "host": {
        "name": "H200",
        "null": None,
        "count": 8,
        "trap": "{{ 1 / 0 }}",
        "list": ["a"],
        "yes": True,
        "path": "a\\b",
    },
    "expected": {},
}
TEXTS = [
    "{{ host.name }}",
    "{{ 'no GPU' if host.count == 0 else 'GPUs: ' ~ host.count }}\n",
    "  {{ host.trap }}",
    "{{ host.list | join(',') }}",
    "{{ '%s of %d' % (host.name, host.count) }}",
    "{{ host.path | regex_replace('\\\\', '/') }}",
    "nothing to fill in",
    "{{ host.name }} has {{ host.count }}",
    "{{- host.name -}}",
    "{{ host.name }}{{ host.count }}",
    "{% if host.yes %}yes{% endif %}",
    "{{ host.name }}{# a comment #}",
    "{{ host.null }}",
    "{{ host.count }}",
    "{{ host.list }}",
    "{{ host.yes }}",
    "{{ '}}' }}",
]
CONDITIONS = {
    "host.count == 8": True,
    "host.name is match('h200')": False,
    "host.name is match('(?i)^h[0-9]+$')": True,
    "host.list | select('eq', 'a') | list == ['a']": True,
    "host.absent is defined": False,
}


@pytest.fixture(autouse=True)
def _nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    forget(monkeypatch)


def forget(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(compiled, "KNOWN", {})


def make() -> evaluator.TemplarEvaluator:
    return evaluator.TemplarEvaluator(Templar(loader=DataLoader()), VARIABLES)


def fill(template: str) -> str:
    """By Ansible alone."""
    value = Templar(loader=DataLoader(), variables=VARIABLES).template(trust_as_template(template))
    return evaluator.EMPTY if value is None else str(value).strip()


@pytest.mark.parametrize("template", TEXTS)
def test_a_text_is_what_ansible_makes_of_it(template: str) -> None:
    for _time in ("compiled", "known"):
        assert make().text(trust_as_template(template)) == fill(template)


def test_what_a_host_says_is_no_template() -> None:
    assert make().text(trust_as_template("{{ host.trap }}")) == "{{ 1 / 0 }}"
    assert make().text("{{ host.name }}") == "{{ host.name }}", "not trusted"


@pytest.mark.parametrize("bad", ["{{ host.absent.deeper }}", "{{ 1 / 0 }}", "{{ host. }}"])
def test_a_text_without_a_value_says_so_each_time(bad: str) -> None:
    for _time in ("compiled", "known"):
        with pytest.raises(evaluator.EvaluationError):
            make().text(trust_as_template(bad))


@pytest.mark.parametrize(("condition", "value"), CONDITIONS.items())
def test_a_condition_is_what_ansible_makes_of_it(condition: str, value: bool) -> None:
    trusted = trust_as_template(condition)
    assert Templar(loader=DataLoader(), variables=VARIABLES).evaluate_conditional(trusted) is value
    for _time in ("compiled", "known"):
        assert make().condition(trusted) is value


def test_a_condition_that_is_not_trusted_is_refused_though_its_code_is_known() -> None:
    assert make().condition(trust_as_template("host.count == 8"))
    with pytest.raises(evaluator.EvaluationError):
        make().condition("host.count == 8")


def test_what_is_kept_is_not_compiled_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    """On every release of Ansible that we support: where one keeps its environment elsewhere, this says so."""
    inner = [expression for expression in map(evaluator.find_expression, TEXTS) if expression]
    asked = [*CONDITIONS, *inner]
    compiled.compile_ahead(asked)
    kept = compiled.keep_code(asked)
    assert set(compiled.KNOWN) == set(asked)
    forget(monkeypatch)
    compiled.take_code(kept)

    def refuse(*_args: Any) -> None:
        pytest.fail("compiled anew")

    monkeypatch.setattr(jinja2.parser.Parser, "parse_expression", refuse)
    judge = make()
    assert {text: judge.condition(trust_as_template(text)) for text in CONDITIONS} == CONDITIONS
    assert judge.text(trust_as_template(TEXTS[0])) == "H200"


def test_an_expression_that_does_not_parse_is_compiled_by_nobody() -> None:
    compiled.compile_ahead(["host. ==", "host."])
    assert not compiled.KNOWN
