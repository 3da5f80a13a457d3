"""What a condition reads, found in its text.

So a null fact makes a condition unknown, never true or false by accident.

`host.a != 'x'` is true in Jinja when host.a is null. Here it is unknown, unless the condition itself asks about the
null (`host.a is none`, `host.a is defined`, `host.a | default(…)`) or another part decides alone (`false and …`, `true
or …`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache
from typing import Any

import jinja2
from jinja2 import nodes

ROOTS = ("host", "expected")
NAMES = frozenset((*ROOTS, "inventory_hostname"))
_ENVIRONMENT = jinja2.Environment()  # noqa: S701  used to read expressions, never to render one
# Of Jinja and Ansible; `loop` is set by a loop.
_GLOBALS = frozenset({"range", "dict", "namespace", "loop", "lookup", "query", "q", "now", "undef"})
_GUARDING_TESTS = {
    "none",
    "defined",
    "undefined",
    "mapping",
    "sequence",
    "string",
    "number",
    "boolean",
    "integer",
    "float",
    "true",
    "false",
}
_GUARDING_FILTERS = {"default", "d"}


@dataclass(frozen=True)
class Reads:
    """`paths`: every fact read, as tuples such as ('host', 'gpus', 'count'). `unguarded`: those about whose null the
    author does not
    ask, so that a null makes the condition unknown. `strangers`: names that no check has. `defaulted`: those of
    `unguarded` that have a value where they are not there at all: `x | default(y)` says nothing of a null, unlike
    `x | default(y, true)`."""

    paths: tuple[tuple[str, ...], ...]
    unguarded: tuple[tuple[str, ...], ...]
    strangers: tuple[str, ...]
    defaulted: tuple[tuple[str, ...], ...] = ()


# What is known of every expression that was read so far, by its text.
_READS: dict[str, Reads] = {}
_SPLIT: dict[str, tuple[str, list[str]]] = {}


def find_reads(expression: str) -> Reads:
    """What `expression` reads. ValueError (with the reason) where it is no Jinja expression."""
    if expression not in _READS:
        _READS[expression] = _find_reads(expression)
    return _READS[expression]


def _find_reads(expression: str) -> Reads:
    # Nothing, and ")(", are expressions between brackets only; "x }}{{ y" is one only without.
    if not any(kind != "whitespace" for _depth, kind, _word in _lexemes(expression)):
        raise ValueError("Expected an expression")
    return _reads_of(_parse("{{ (%s) }}" % expression))


def find_reads_of_text(template: str) -> Reads:
    """The same for a text with {{ }} in it."""
    return _reads_of(_parse(template))


def find_strangers(template: str) -> tuple[str, ...]:
    """Only the names that no check has; cheaper, as most texts have no {{ }} at all."""
    return _strangers(_parse(template)) if "{" in template else ()


def _parse(text: str) -> nodes.Template:
    try:
        return _ENVIRONMENT.parse(text)
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(error.message or "syntax error") from error


def prepare_expression(expression: str) -> list[str]:
    """Read `expression` and its parts now, so that the workers that are forked later need not: the texts read."""
    find_reads(expression)
    operator, operands = split_expression(expression)
    parts = [part for operand in operands for part in prepare_expression(operand)] if operator != "leaf" else []
    return [expression, *parts]


def keep_expressions(texts: Iterable[str]) -> dict[str, list[Any]]:
    """What is known of `texts`, as JSON holds it, for `take_expressions` of another run."""
    return {
        text: [
            *([list(path) for path in paths] for paths in (reads.paths, reads.unguarded, reads.defaulted)),
            list(reads.strangers),
            *split_expression(text),
        ]
        for text, reads in ((text, find_reads(text)) for text in texts)
    }


def take_expressions(kept: dict[str, list[Any]]) -> None:
    """Know of expressions what `keep_expressions` gave."""
    for text, (paths, unguarded, defaulted, strangers, operator, operands) in kept.items():
        _READS[text] = Reads(_tuples(paths), _tuples(unguarded), tuple(strangers), _tuples(defaulted))
        _SPLIT[text] = operator, operands


def _tuples(paths: Iterable[list[str]]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(path) for path in paths)


def _reads_of(tree: nodes.Template) -> Reads:
    guarded = {path for node in _guards(tree) for path in _paths(node)}
    defaulted = {path for node in _defaulted(tree) for path in _paths(node)} - guarded
    found = dict.fromkeys(path for path in _paths(tree) if len(path) > 1)
    unguarded = tuple(path for path in found if path not in guarded)
    return Reads(tuple(found), unguarded, _strangers(tree), tuple(path for path in unguarded if path in defaulted))


def _strangers(tree: nodes.Template) -> tuple[str, ...]:
    names = list(tree.find_all(nodes.Name))
    own = {node.name for node in names if node.ctx != "load"}  # of a loop or a set
    return tuple(sorted({node.name for node in names} - own - NAMES - _GLOBALS))


def _guards(tree: nodes.Node) -> Iterator[nodes.Node]:
    """The operands about whose null the author asked."""
    for test in tree.find_all(nodes.Test):
        if test.name in _GUARDING_TESTS:
            yield test.node
    for chosen in tree.find_all(nodes.Filter):
        if chosen.name in _GUARDING_FILTERS and chosen.node is not None and _replaces_null(chosen):
            yield chosen.node
    for compare in tree.find_all(nodes.Compare):
        operands = [compare.expr, *(operand.expr for operand in compare.ops)]
        if any(isinstance(operand, nodes.Const) and operand.value is None for operand in operands):
            yield from operands


def _replaces_null(default: nodes.Filter) -> bool:
    """Whether a `default` stands for a null too: its second argument is true."""
    given = [*default.args[1:2], *(argument.value for argument in default.kwargs if argument.key == "boolean")]
    return any(isinstance(argument, nodes.Const) and bool(argument.value) for argument in given)


def _defaulted(tree: nodes.Node) -> Iterator[nodes.Node]:
    """What stands before a `default` that replaces only what is not there."""
    for chosen in tree.find_all(nodes.Filter):
        if chosen.name in _GUARDING_FILTERS and chosen.node is not None and not _replaces_null(chosen):
            yield chosen.node


def _paths(node: nodes.Node) -> Iterator[tuple[str, ...]]:
    path = _path(node)
    if path is not None:
        yield path
        return
    if isinstance(node, nodes.Call) and isinstance(node.node, nodes.Getattr) and _path(node.node.node):
        yield from _paths(node.node.node)  # host.x.items(): the method is no key
        for child in node.iter_child_nodes(exclude=("node",)):
            yield from _paths(child)
        return
    for child in node.iter_child_nodes():
        yield from _paths(child)


def _path(node: nodes.Node) -> tuple[str, ...] | None:
    parts: list[str] = []
    while True:
        if isinstance(node, nodes.Getattr):
            parts.append(node.attr)
            node = node.node
        elif isinstance(node, nodes.Getitem) and isinstance(node.arg, nodes.Const) and isinstance(node.arg.value, str):
            parts.append(node.arg.value)
            node = node.node
        else:
            break
    if isinstance(node, nodes.Name) and node.name in ROOTS:
        return (node.name, *reversed(parts))
    return None


MISSING = object()


def look_up_path(variables: Any, path: tuple[str, ...]) -> Any:
    """The value at `path`: None where it or a parent is null, MISSING where a mapping lacks the key.

    A parent that is no mapping (a text, a list) ends the walk: what stands behind it is no fact of its own.
    """
    value = variables
    for part in path:
        if value is None:
            return None
        if not isinstance(value, dict):
            return value
        if part not in value:
            return MISSING
        value = value[part]
    return value


def split_expression(expression: str) -> tuple[str, list[str]]:
    """The outermost operator of `expression` and its operands:

    ('or' | 'and' | 'not', [...]) or ('leaf', [expression]).
    """
    if expression not in _SPLIT:
        _SPLIT[expression] = _split_expression(expression)
    return _SPLIT[expression]


def _split_expression(expression: str) -> tuple[str, list[str]]:
    lexemes = _lexemes(expression)
    lexemes = _without_outer_parentheses(lexemes)
    if any(depth == 0 and word == "if" for depth, _kind, word in lexemes):
        return "leaf", [expression]
    for operator in ("or", "and"):
        operands = _split_at(lexemes, operator)
        if len(operands) > 1:
            return operator, operands
    solid = [index for index, (_depth, kind, _word) in enumerate(lexemes) if kind != "whitespace"]
    if solid and lexemes[solid[0]][1:] == ("name", "not"):
        return "not", ["".join(word for _depth, _kind, word in lexemes[solid[0] + 1 :]).strip()]
    return "leaf", ["".join(word for _depth, _kind, word in lexemes).strip()]


_Lexeme = tuple[int, str, str]


@cache
def _lexemes(expression: str) -> list[_Lexeme]:
    """(depth of brackets, kind, text); a bracket itself stands at the depth outside it."""
    result: list[_Lexeme] = []
    depth = 0
    try:
        tokens = list(_ENVIRONMENT.lexer.tokeniter("{{ %s }}" % expression, None))[1:-1]
    except jinja2.TemplateSyntaxError as error:
        raise ValueError(error.message or "syntax error") from error
    for _line, kind, word in tokens:
        if kind == "operator" and word in ")]}":
            depth -= 1
        result.append((depth, kind, word))
        if kind == "operator" and word in "([{":
            depth += 1
    return result


def _without_outer_parentheses(lexemes: list[_Lexeme]) -> list[_Lexeme]:
    while True:
        solid = [index for index, (_depth, kind, _word) in enumerate(lexemes) if kind != "whitespace"]
        if len(solid) < 2 or lexemes[solid[0]][2] != "(" or lexemes[solid[-1]][2] != ")":
            return lexemes
        inner = lexemes[solid[0] + 1 : solid[-1]]
        if any(depth == 0 for depth, _kind, _word in inner):
            return lexemes  # (a) or (b)
        lexemes = [(depth - 1, kind, word) for depth, kind, word in inner]


def _split_at(lexemes: list[_Lexeme], operator: str) -> list[str]:
    operands = [""]
    for depth, kind, word in lexemes:
        if depth == 0 and kind == "name" and word == operator:
            operands.append("")
        else:
            operands[-1] += word
    return [operand.strip() for operand in operands]
