"""Conditions and texts, evaluated by Ansible's own engine."""
from __future__ import annotations

from typing import Any, Protocol

from ansible.errors import AnsibleError, AnsibleUndefinedVariable


class EvaluationError(Exception):
    """An expression that has no value. `unknown`: because something in it is null or undefined, not because it is wrong."""

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
    """Evaluator over an ``ansible.template.Templar`` whose variables are those of the check."""

    def __init__(self, templar: Any) -> None:
        self._templar = templar

    def condition(self, expression: Any) -> bool:
        try:
            return bool(self._templar.evaluate_conditional(expression))
        except AnsibleError as error:
            raise _explained(error) from error

    def text(self, template: str) -> str:
        try:
            value = self._templar.template(template)
        except AnsibleError as error:
            raise _explained(error) from error
        return "unknown" if value is None else str(value).strip()


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
