"""Expressions as Jinja compiled them, for every host and for the runs to come.

Ansible compiles an expression each time when it evaluates it, and runs each task of each host in a process of its own:
to compile the conditions of all checks takes some 0.3 s per host, to evaluate them 0.05 s. `serve_code` gives a templar
the code that is known by the text of an expression, and keeps the code of those that it has to compile.

All of this is Jinja's documented interface, but for the way from a templar to its environment. Where a release of
Ansible keeps that elsewhere, each expression is compiled anew as before, and nothing else changes.
"""

from __future__ import annotations

import base64
import contextlib
import marshal
from collections.abc import Callable, Iterable
from types import CodeType
from typing import Any

from ansible.errors import AnsibleError
from ansible.parsing.dataloader import DataLoader
from ansible.template import Templar, trust_as_template
from jinja2.environment import TemplateExpression

KNOWN: dict[str, CodeType] = {}  # by the text of the expression


def serve_code(templar: Any) -> None:
    """Give the environment of `templar` the code that is known, and have what it compiles become known."""
    environment = getattr(getattr(templar, "_engine", None), "environment", None)
    if environment is None:
        return
    compile_anew: Callable[..., Any] = environment.compile_expression
    compile_template: Callable[..., CodeType] = environment.compile
    made: dict[str, Any] = {}

    def find_or_compile(source: str, undefined_to_none: bool = True) -> Any:
        text = str(source)
        if text not in made:
            code = KNOWN.get(text)
            made[text] = _compile(source, undefined_to_none) if code is None else _build(code, undefined_to_none)
        return made[text]

    def _build(code: CodeType, undefined_to_none: bool) -> TemplateExpression:
        template = environment.template_class.from_code(environment, code, environment.make_globals(None))
        return TemplateExpression(template, undefined_to_none)

    def _compile(source: str, undefined_to_none: bool) -> Any:
        def keep(*args: Any, **named: Any) -> CodeType:
            code = KNOWN[str(source)] = compile_template(*args, **named)
            return code

        environment.compile = keep
        try:
            return compile_anew(source, undefined_to_none)
        finally:
            environment.compile = compile_template

    environment.compile_expression = find_or_compile


def compile_ahead(expressions: Iterable[str]) -> None:
    """Compile `expressions` now, so that no worker has to."""
    templar = Templar(loader=DataLoader(), variables={})
    serve_code(templar)
    for expression in expressions:
        # It is evaluated because Ansible compiles nothing otherwise. Without variables it has no value.
        with contextlib.suppress(AnsibleError):
            templar.evaluate_expression(trust_as_template(expression))


def keep_code(expressions: Iterable[str]) -> str:
    """The code of `expressions`, for `take_code` of another run of the same Python, Jinja and Ansible."""
    chosen = {text: KNOWN[text] for text in expressions if text in KNOWN}
    return base64.b64encode(marshal.dumps(chosen)).decode("ascii")


def take_code(kept: str) -> None:
    """Know what `keep_code` gave. ValueError, EOFError or TypeError where it is nothing of the kind."""
    KNOWN.update(marshal.loads(base64.b64decode(kept)))  # noqa: S302  of a file that only we or root could write
