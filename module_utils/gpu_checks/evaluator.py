"""Conditions and texts, evaluated by Ansible's own engine."""

from __future__ import annotations

import re
from typing import Any, Protocol

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.template import is_trusted_as_template, trust_as_template

from . import compiled

# What a template says that gives nothing, or only a null.
EMPTY = "unknown"


class EvaluationError(Exception):
    """An expression that has no value.

    `unknown`: because something in it is null or undefined, not because it is wrong.
    """

    def __init__(self, message: str, unknown: bool) -> None:
        super().__init__(message)
        self.unknown = unknown


class Evaluator(Protocol):
    """What the engine needs of a template engine."""

    def condition(self, expression: Any) -> bool:
        """The boolean value of `expression`; EvaluationError if it has none."""

    def text(self, template: str) -> str:
        """`template` filled in; EvaluationError if it cannot be."""


class TemplarEvaluator:
    """Evaluator over an ``ansible.template.Templar`` of its own. `variables` are those of a check."""

    def __init__(self, templar: Any, variables: dict[str, Any]) -> None:
        self._templar = templar
        self.use(variables)
        compiled.serve_code(templar)

    def use(self, variables: dict[str, Any]) -> None:
        """Evaluate with `variables`, those of a check, from now on."""
        self._templar.available_variables = variables

    def condition(self, expression: Any) -> bool:
        try:
            return bool(self._templar.evaluate_conditional(expression))
        except AnsibleError as error:
            raise _explained(error) from error

    def text(self, template: str) -> str:
        if "{" not in template:
            return template.strip()
        expression = find_expression(template) if is_trusted_as_template(template) else ""
        try:
            if expression:
                value = self._templar.evaluate_expression(trust_as_template(expression))
            else:
                value = self._templar.template(template)
        except AnsibleError as error:
            raise _explained(error) from error
        return EMPTY if value is None else str(value).strip()


def _explained(error: AnsibleError) -> EvaluationError:
    parts: list[str] = []
    unknown = False
    cause: BaseException | None = error
    while cause is not None:
        message = str(getattr(cause, "message", None) or cause)
        # Ansible's own texts for a null where a boolean or a number should stand.
        unknown = unknown or isinstance(cause, AnsibleUndefinedVariable) or "NoneType" in message
        if message and not any(message in part for part in parts):
            parts.append(message)
        cause = cause.__cause__
    return EvaluationError(" ".join(" ".join(parts).split()), unknown)


class Asked:
    """Evaluator that remembers the conditions that it was asked: most checks of a subject share their `when`."""

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._known: dict[str, bool] = {}
        self.text = evaluator.text

    def condition(self, expression: Any) -> bool:
        text = str(expression)
        if text not in self._known:
            self._known[text] = self._evaluator.condition(expression)
        return self._known[text]


def find_expression(template: str) -> str:
    """What stands between the braces of a template that is ``{{ one expression }}``; empty for any other, and where
    there is a backslash, which Ansible reads differently in a template and in an expression."""
    text = template.strip()
    inner = text[2:-2]
    if (
        not (text.startswith("{{") and text.endswith("}}"))
        or "\\" in text
        or re.search(r"[{][{%#]|[}%#][}]|^[-+]|[-+]$", inner)
    ):
        return ""
    return inner.strip()
