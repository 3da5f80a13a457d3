"""Conditions and texts, evaluated by Ansible's own engine."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from typing import Any, Protocol

from ansible.errors import AnsibleError, AnsibleUndefinedVariable
from ansible.template import is_trusted_as_template, trust_as_template

_TOGETHER = (
    24  # conditions asked in one expression: one without a value makes its whole group fall back to asking one by one
)


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

    def conditions(self, expressions: Sequence[Any]) -> list[Any]:
        """The values of all `expressions`, asked in one go; EvaluationError if any has none."""

    def text(self, template: str) -> str:
        """`template` filled in; EvaluationError if it cannot be."""


class TemplarEvaluator:
    """Evaluator over an ``ansible.template.Templar`` whose variables are those of the check."""

    def __init__(self, templar: Any) -> None:
        self._templar = templar

    def condition(self, expression: Any) -> bool:
        try:
            return bool(self._templar.evaluate_conditional(expression))
        except AnsibleError as error:
            raise _explained(error) from error

    def conditions(self, expressions: Sequence[Any]) -> list[Any]:
        together = "[%s]" % ", ".join("(%s)" % expression for expression in expressions)
        try:
            return list(self._templar.evaluate_expression(trust_as_template(together)))
        except AnsibleError as error:
            raise _explained(error) from error

    def text(self, template: str) -> str:
        if "{" not in template:
            return template.strip()
        try:
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
    """Evaluator that remembers what it was asked, and that can ask many conditions at once.

    Ansible compiles every expression anew, on every host, which costs more than all else: 240 conditions one by one
    take 260 ms, in one list 70 ms, and most checks of a subject share their `when`.
    """

    def __init__(self, evaluator: Evaluator) -> None:
        self._evaluator = evaluator
        self._known: dict[str, bool] = {}
        self._texts: dict[str, str] = {}

    def ahead(self, expressions: Iterable[Any]) -> None:
        """Ask `expressions` together.

        One that has no boolean value is left for `condition`, which says what is wrong with it.
        """
        new = {str(expression): expression for expression in expressions if is_trusted_as_template(expression)}
        asked = [expression for text, expression in new.items() if text not in self._known]
        for text, value in self._ask(asked):
            if isinstance(value, bool):
                self._known[text] = value

    def fill_ahead(self, templates: Iterable[str]) -> None:
        """Fill in those of `templates` together that are one expression; the others are left for `text`."""
        inner = {_find_expression(template): template for template in templates if is_trusted_as_template(template)}
        inner.pop("", None)
        for expression, value in self._ask([trust_as_template(expression) for expression in inner]):
            if isinstance(value, str):
                self._texts[str(inner[expression])] = str(value).strip()

    def _ask(self, expressions: list[Any]) -> Iterator[tuple[str, Any]]:
        """The text and the value of `expressions`, without the groups in which one has no value: each of those will be
        asked alone."""
        for start in range(0, len(expressions), _TOGETHER):
            group = expressions[start : start + _TOGETHER]
            try:
                values = self._evaluator.conditions(group)
            except EvaluationError:
                continue
            if len(values) == len(group):
                yield from zip(map(str, group), values)

    def condition(self, expression: Any) -> bool:
        text = str(expression)
        if text not in self._known:
            self._known[text] = self._evaluator.condition(expression)
        return self._known[text]

    def text(self, template: str) -> str:
        known = self._texts.get(str(template)) if is_trusted_as_template(template) else None
        return self._evaluator.text(template) if known is None else known


def _find_expression(template: str) -> str:
    """What stands between the braces of a template that is ``{{ one expression }}``; empty for any other."""
    text = template.strip()
    inner = text[2:-2]
    if not (text.startswith("{{") and text.endswith("}}")) or re.search(r"[{][{%#]|[}%#][}]|^[-+]|[-+]$", inner):
        return ""
    return inner.strip()
