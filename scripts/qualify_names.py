"""Gives what is ours its full name, in the texts of Python, YAML and Markdown files: what a clone names by one word has
the name of the collection before it there.

Names are replaced where the parser found them (an import, a task, a role, a filter), so comments, line numbers and form
stay as they are.
"""

from __future__ import annotations

import ast
import functools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field

import yaml

LOADER = getattr(yaml, "CSafeLoader", yaml.SafeLoader)  # the same places, ten times as fast
UTILS = "ansible.module_utils."
# Keys of a play or of a block that hold tasks, and tasks that name a role.
_LISTS_OF_TASKS = ("tasks", "pre_tasks", "post_tasks", "handlers", "block", "rescue", "always")
_ROLE_TASKS = ("include_role", "import_role")
_DOCUMENTS = ("DOCUMENTATION", "EXAMPLES", "RETURN")
# A file of Python without any of these has nothing to qualify; most have none, and reading them takes seconds.
_TO_QUALIFY = re.compile(r"ansible\.module_utils|_loader\b|ansible-playbook|\bM\(|^(?:%s)" % "|".join(_DOCUMENTS), re.M)

# (start, end, what stands there instead), in characters of the text
Edit = tuple[int, int, str]


class NamesError(ValueError):
    """A text that cannot be read; the message names the line."""


@dataclass(frozen=True)
class Names:
    """The collection, and what it holds by one word. `utils` are the packages of module_utils/."""

    collection: str
    modules: frozenset[str] = field(default_factory=frozenset)
    actions: frozenset[str] = field(default_factory=frozenset)
    filters: frozenset[str] = field(default_factory=frozenset)
    fragments: frozenset[str] = field(default_factory=frozenset)
    callbacks: frozenset[str] = field(default_factory=frozenset)
    roles: frozenset[str] = field(default_factory=frozenset)
    playbooks: frozenset[str] = field(default_factory=frozenset)
    utils: frozenset[str] = field(default_factory=frozenset)

    def qualify(self, name: str) -> str:
        return "%s.%s" % (self.collection, name)

    @property
    def package(self) -> str:
        """The Python package in the place of ``ansible.module_utils.``, with its dot."""
        return "ansible_collections.%s.plugins.module_utils." % self.collection


def apply_edits(text: str, edits: Iterator[Edit]) -> str:
    """`text` with every edit made. Two edits never overlap."""
    for start, end, instead in sorted(set(edits), reverse=True):
        text = text[:start] + instead + text[end:]
    return text


def _match_edits(pattern: str, text: str, start: int, end: int, instead: Callable[[str], str]) -> Iterator[Edit]:
    """Where group 1 of `pattern` is found in text[start:end]."""
    for match in re.compile(pattern).finditer(text, start, end):
        yield match.start(1), match.end(1), instead(match[1])


@functools.cache
def _one_of(names: frozenset[str]) -> str:
    """A pattern for one of `names`; one that is found nowhere, where there is none."""
    return "(?:%s)" % "|".join(sorted(map(re.escape, names), key=len, reverse=True)) if names else "(?!)"


def _prose_edits(text: str, start: int, end: int, names: Names) -> Iterator[Edit]:
    """The commands and the marks of documentation (M(module)) in words for people."""
    command = r"\bansible-playbook\s+(%s\.yml)\b" % _one_of(names.playbooks)
    yield from _match_edits(command, text, start, end, lambda found: names.qualify(found.removesuffix(".yml")))
    yield from _match_edits(r"\bM\((%s)\)" % _one_of(names.modules), text, start, end, names.qualify)


# ---------------------------------------------------------------------------------------------------------------- YAML


def qualify_yaml(text: str, names: Names, in_playbooks: bool = False) -> str:
    """A file of plays, tasks, variables, checks or argument specifications.

    In a clone reports stand beside playbooks/. In an installed collection nobody looks there, so in its playbooks the
    current directory takes that one's place.
    """
    return apply_edits(text, _yaml_edits(text, 0, names, in_playbooks))


def _yaml_edits(text: str, offset: int, names: Names, in_playbooks: bool = False) -> Iterator[Edit]:
    try:
        roots = list(yaml.compose_all(text, Loader=LOADER))
    except yaml.YAMLError as error:
        raise NamesError(str(error)) from error
    for root in roots:
        edits = list(_list_edits(root, names))
        for node in _scalars(root):
            start, end = node.start_mark.index, node.end_mark.index
            edits += _prose_edits(text, start, end, names)
            edits += _match_edits(r"\|\s*(%s)\b(?!\.)" % _one_of(names.filters), text, start, end, names.qualify)
            if in_playbooks:
                root_of_clone = r"(\bplaybook_dir\s*\|\s*(?:ansible\.builtin\.)?dirname\b)"
                edits += _match_edits(root_of_clone, text, start, end, lambda _found: "'.' | ansible.builtin.realpath")
        yield from ((start + offset, end + offset, instead) for start, end, instead in edits)


def _scalars(node: yaml.Node | None) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for child in node.value:
            yield from _scalars(child)
    elif isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            yield from _scalars(key)
            yield from _scalars(value)


def _list_edits(node: yaml.Node | None, names: Names) -> Iterator[Edit]:
    """A list of plays or tasks; any other list has no task's keys."""
    for item in node.value if isinstance(node, yaml.SequenceNode) else ():
        if isinstance(item, yaml.MappingNode):
            yield from _play_or_task_edits(item, names)


def _play_or_task_edits(item: yaml.MappingNode, names: Names) -> Iterator[Edit]:
    for key, value in item.value:
        word = str(key.value)
        if word in _LISTS_OF_TASKS:
            yield from _list_edits(value, names)
        elif word == "roles" and isinstance(value, yaml.SequenceNode):
            for role in value.value:
                yield from _name_edits(role, names.roles, names, "role", "name")
        elif word in ("action", "local_action"):
            yield from _name_edits(value, names.modules, names, "module")
        elif word == "module_defaults" and isinstance(value, yaml.MappingNode):
            for name, _defaults in value.value:
                yield from _name_edits(name, names.modules, names)
        elif word.removeprefix("ansible.builtin.") in _ROLE_TASKS and isinstance(value, yaml.MappingNode):
            yield from _name_edits(value, names.roles, names, "name", "role")
        else:
            yield from _name_edits(key, names.modules, names)


def _name_edits(node: yaml.Node, known: frozenset[str], names: Names, *keys: str) -> Iterator[Edit]:
    """The first word of a scalar that is a name, or of the value of one of `keys` in a mapping."""
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            if key.value in keys and isinstance(value, yaml.ScalarNode):
                yield from _name_edits(value, known, names)
    elif isinstance(node, yaml.ScalarNode):
        words = str(node.value).split(None, 1)
        if words and words[0] in known:
            if node.style in ("|", ">"):
                raise NamesError("line %d: write the name %s on one line" % (node.start_mark.line + 1, words[0]))
            start = node.start_mark.index + (1 if node.style in ("'", '"') else 0)
            yield start, start + len(words[0]), names.qualify(words[0])


# -------------------------------------------------------------------------------------------------------------- Python


def qualify_python(text: str, names: Names) -> str:
    """A module, a plugin or a file of module_utils/: its imports, its documentation, and the plugins that it loads."""
    if not _TO_QUALIFY.search(text):
        return text
    try:
        tree = ast.parse(text)
    except SyntaxError as error:
        raise NamesError("line %s: %s" % (error.lineno, error.msg)) from error
    places = _Places(text)
    edits: list[Edit] = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Import, ast.ImportFrom)):
            edits += _import_edits(node, places, names)
        elif isinstance(node, ast.Call):
            edits += _call_edits(node, places, names)
        elif isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) in _DOCUMENTS:
            edits += _document_edits(node.value, places, names)
        elif isinstance(node, ast.Constant) and isinstance(node.value, str):
            edits += _prose_edits(text, *places.of(node), names)
    return apply_edits(text, iter(edits))


class _Places:
    """Where a node of the syntax tree stands in the text, in characters (the tree counts bytes of UTF-8)."""

    def __init__(self, text: str) -> None:
        self.text = text
        self._lines = text.splitlines(keepends=True)
        self._starts = [0]
        for line in self._lines:
            self._starts.append(self._starts[-1] + len(line))

    def of(self, node: ast.expr | ast.stmt) -> tuple[int, int]:
        return self._index(node.lineno, node.col_offset), self._index(node.end_lineno or 0, node.end_col_offset or 0)

    def _index(self, line: int, column: int) -> int:
        return self._starts[line - 1] + len(self._lines[line - 1].encode()[:column].decode())


def _import_edits(node: ast.Import | ast.ImportFrom, places: _Places, names: Names) -> Iterator[Edit]:
    whole = isinstance(node, ast.ImportFrom) and node.module == UTILS[:-1]
    if whole and {part.name for part in node.names} & names.utils:
        raise NamesError("line %d: import a package of ours by its whole name, %spackage" % (node.lineno, UTILS))
    pattern = r"(?:\bfrom\s+|\bimport\s+|,\s*)(%s)%s\b" % (re.escape(UTILS), _one_of(names.utils))
    yield from _match_edits(pattern, places.text, *places.of(node), lambda _found: names.package)


def _call_edits(node: ast.Call, places: _Places, names: Names) -> Iterator[Edit]:
    """``importlib.import_module("ansible.module_utils.gpu_…")`` and ``action_loader.get("gpu_facts", …)``."""
    called = ast.unparse(node.func)
    if called.endswith("import_module") and node.args:
        for part in ast.walk(node.args[0]):
            if isinstance(part, ast.Constant) and isinstance(part.value, str):
                ours = r"(%s)(?:%s\b|(?=[\"']))" % (re.escape(UTILS), _one_of(names.utils))
                yield from _match_edits(ours, places.text, *places.of(part), lambda _found: names.package)
    loaded = re.search(r"(\w+)_loader\.\w+$", called)
    kinds = {"action": names.actions, "module": names.modules, "filter": names.filters, "callback": names.callbacks}
    if loaded and node.args and isinstance(node.args[0], ast.Constant):
        known = kinds.get(loaded[1], frozenset())
        quoted = r"[\"'](%s)[\"']" % _one_of(known)
        yield from _match_edits(quoted, places.text, *places.of(node.args[0]), names.qualify)


def _document_edits(node: ast.expr, places: _Places, names: Names) -> Iterator[Edit]:
    """The YAML inside r\"\"\"…\"\"\", where text and value are the same."""
    start, end = places.of(node)
    inner = re.fullmatch(r'r?"""(.*)"""', places.text[start:end], re.S)
    if not inner or inner[1] != getattr(node, "value", None):
        raise NamesError('line %s: documentation has to be an r"""…""" text' % node.lineno)
    offset = start + inner.start(1)
    yield from _yaml_edits(inner[1], offset, names)
    root = yaml.compose(inner[1], Loader=LOADER)
    for key, value in root.value if isinstance(root, yaml.MappingNode) else ():
        if key.value == "extends_documentation_fragment":
            for item in value.value if isinstance(value, yaml.SequenceNode) else (value,):
                if str(item.value).split(".")[0] in names.fragments:
                    place = item.start_mark.index + offset
                    yield place, place, names.collection + "."


# ------------------------------------------------------------------------------------------------------------ Markdown


def qualify_markdown(text: str, names: Names) -> str:
    """The commands, and the examples that are YAML."""
    edits = list(_prose_edits(text, 0, len(text), names))
    for block in re.finditer(r"^```yaml\n(.*?)^```", text, re.M | re.S):
        edits += _yaml_edits(block[1], block.start(1), names)
    return apply_edits(text, iter(edits))
