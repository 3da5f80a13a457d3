"""Reads checks/*.yml: every fault is named with its file and line, and a faulty set of checks runs nothing."""

from __future__ import annotations

import difflib
import os
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Callable

import yaml

from . import expressions, rules

_SHOWN = 20  # faults in one message


class ChecksError(ValueError):
    """The checks cannot be used; the message lists every fault as FILE:LINE: what is wrong."""


@dataclass(frozen=True)
class Check:
    """One item of checks/*.yml.

    Conditions and texts are as the file has them (trusted as templates where Ansible loaded them).
    """

    id: str
    title: str
    why: str
    severity: str
    tags: tuple[str, ...]
    needs: tuple[tuple[str, ...], ...]
    when: tuple[Any, ...]
    skip: str
    that: tuple[Any, ...]
    found: str
    remedy: tuple[dict[str, Any], ...]
    explains: tuple[str, ...]
    explains_when: dict[str, tuple[Any, ...]]  # those of `explains` that need more than this check's failure
    docs: str
    file: str


def load_checks(directory: str, read: Callable[[str], Any], strict: bool = True) -> list[Check]:
    """The checks of every *.yml in `directory`, in the order of file names and of items.

    `read` parses one file; Ansible's is ``lambda path: loader.load_from_file(path, trusted_as_template=True)``.
    ChecksError names the faults. With `strict` false, `explains` may name checks that are not among them (a part of the
    checks).
    """
    return build_checks(read_files(directory, read), strict)


def read_files(directory: str, read: Callable[[str], Any]) -> dict[str, Any]:
    """Path -> parsed content of every file of checks in `directory`. ChecksError names the one that cannot be read."""
    files: dict[str, Any] = {}
    for path in find_files(directory):
        try:
            files[path] = read(path)
        except Exception as error:  # a YAML or reading error of the loader's own kind
            raise ChecksError(
                "%s:%s: %s" % (path, _line_of(error), getattr(error, "message", None) or error)
            ) from error
    return files


def find_files(directory: str) -> list[str]:
    """The paths of the files of checks in `directory`. ChecksError where there is none."""
    try:
        names = sorted(name for name in os.listdir(directory) if name.endswith((".yml", ".yaml")))
    except OSError as error:
        raise ChecksError(
            "%s: %s. Set checks_dir to the directory of the checks." % (directory, error.strerror)
        ) from error
    if not names:
        raise ChecksError("%s holds no *.yml: there is nothing to check." % directory)
    return [os.path.join(directory, name) for name in names]


def _line_of(error: BaseException) -> int:
    cause: BaseException | None = error
    while cause is not None:
        mark = getattr(cause, "problem_mark", None)
        if mark is not None:
            return int(mark.line) + 1
        cause = cause.__cause__
    return 1


def build_checks(files: dict[str, Any], strict: bool = True) -> list[Check]:
    """The checks in `files` (path -> parsed content); ChecksError where any is faulty."""
    files = {path: restore_on_keys(content) for path, content in files.items()}
    faults = list(_faults(files, strict))
    if faults:
        lines = _Lines()
        named = ["%s:%s: %s" % (path, lines.of(path, where), problem) for path, where, problem in faults[:_SHOWN]]
        if len(faults) > _SHOWN:
            named.append("and %d more faults" % (len(faults) - _SHOWN))
        raise ChecksError("\n".join(named))
    prepare_conditions(files)
    return make_checks(files)


def prepare_conditions(files: dict[str, Any]) -> list[str]:
    """Read every condition of `files`, which are without fault: the texts that were read, and those of their parts."""
    conditions = [condition for items in files.values() for item in items for _where, condition in _conditions_of(item)]
    return [text for condition in conditions for text in expressions.prepare_expression(str(condition))]


def make_checks(files: dict[str, Any]) -> list[Check]:
    """The checks in `files` (path -> parsed content), which are without fault."""
    return [_check(item, path) for path, items in files.items() for item in items]


def restore_on_keys(items: Any) -> Any:
    """YAML 1.1 reads the key `on` as true; this gives it its name back, in the remedies of `items`."""
    if not isinstance(items, list):
        return items
    return [
        {**item, "remedy": [_renamed(remedy) for remedy in item["remedy"]]} if _has_remedies(item) else item
        for item in items
    ]


def _has_remedies(item: Any) -> bool:
    return isinstance(item, dict) and isinstance(item.get("remedy"), list)


def _renamed(remedy: Any) -> Any:
    if not isinstance(remedy, dict):
        return remedy
    return {"on" if key is True else key: value for key, value in remedy.items()}


def name_symptoms(item: dict[str, Any]) -> list[str]:
    """The ids in `explains` of an item, with and without a condition."""
    return [str(entry["check"] if isinstance(entry, dict) else entry) for entry in item.get("explains", ())]


def _check(item: dict[str, Any], path: str) -> Check:
    when = item.get("when", ())
    conditional = [entry for entry in item.get("explains", ()) if isinstance(entry, dict)]
    return Check(
        id=str(item["id"]),
        title=item["title"],
        why=item["why"],
        severity=str(item["severity"]),
        tags=tuple(str(tag) for tag in item["tags"]),
        needs=tuple(tuple(str(need).split(".")) for need in item.get("needs", ())),
        when=_listed(when),
        skip=item.get("skip", ""),
        that=tuple(item["that"]),
        found=item["found"],
        remedy=tuple(dict(remedy) for remedy in item["remedy"]),
        explains=tuple(name_symptoms(item)),
        explains_when={str(entry["check"]): _listed(entry["when"]) for entry in conditional},
        docs=str(
            item.get("docs") or "docs/checks/%s.md#%s" % (os.path.splitext(os.path.basename(path))[0], item["id"])
        ),
        file=os.path.basename(path),
    )


def _listed(when: Any) -> tuple[Any, ...]:
    return tuple(when) if isinstance(when, (list, tuple)) else (when,)


# (file, path inside it, problem)
_Fault = tuple[str, tuple[Any, ...], str]


def _faults(files: dict[str, Any], strict: bool) -> Iterator[_Fault]:
    good: dict[str, tuple[str, int, dict[str, Any]]] = {}
    formed = True
    for path, items in files.items():
        if not isinstance(items, list):
            yield path, (), "must be a list of checks"
            formed = False
            continue
        for index, item in enumerate(items):
            faults = list(rules.find_item_faults(item))
            faults = faults or list(_faults_of_expressions(item))
            for where, problem in faults:
                formed = False
                yield path, (index, *where), _named(item) + problem
            name = item.get("id") if isinstance(item, dict) else None
            if not isinstance(name, str):
                continue
            if name in good:
                formed = False
                yield (
                    path,
                    (index, "id"),
                    "the id '%s' is taken already, in %s" % (name, os.path.basename(good[name][0])),
                )
            elif not faults:
                good[name] = (path, index, item)
    if formed:  # with a check left out for its form, a missing target would only be noise
        yield from _faults_of_graph(good, strict)


def _named(item: Any) -> str:
    name = item.get("id") if isinstance(item, dict) else None
    return "check %s: " % name if isinstance(name, str) else ""


def _faults_of_expressions(item: dict[str, Any]) -> Iterator[rules.Fault]:
    for where, expression in _conditions_of(item):
        yield from _faults_of_one(where, expression, lambda text: expressions.find_reads(text).strangers)
    for where, text in _texts_of(item):
        yield from _faults_of_one(where, text, expressions.find_strangers)


def _faults_of_one(
    where: tuple[Any, ...], text: Any, reader: Callable[[str], tuple[str, ...]]
) -> Iterator[rules.Fault]:
    try:
        strangers = reader(str(text))
    except ValueError as error:
        yield where, "'%s' does not parse: %s" % (text, error)
        return
    for name in strangers:
        yield where, "'%s' is no variable of a check; there are host, expected and inventory_hostname" % name


def _conditions_of(item: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], Any]]:
    when = item.get("when", [])
    for index, entry in enumerate(when) if isinstance(when, list) else [(None, when)]:
        yield ("when",) if index is None else ("when", index), entry
    for index, entry in enumerate(item["that"]):
        yield ("that", index), entry
    for number, remedy in enumerate(item["remedy"]):
        when = remedy.get("when", [])
        for entry in when if isinstance(when, list) else [when]:
            yield ("remedy", number, "when"), entry
    for number, symptom in enumerate(item.get("explains", ())):
        for entry in _listed(symptom["when"]) if isinstance(symptom, dict) else ():
            yield ("explains", number, "when"), entry


def _texts_of(item: dict[str, Any]) -> Iterator[tuple[tuple[Any, ...], str]]:
    for key in ("found", "skip"):
        if key in item:
            yield (key,), item[key]
    for number, remedy in enumerate(item["remedy"]):
        for key in ("text", "risk", "verify"):
            if key in remedy:
                yield ("remedy", number, key), remedy[key]
        for index, command in enumerate(remedy.get("commands", ())):
            yield ("remedy", number, "commands", index), command


def _faults_of_graph(good: dict[str, tuple[str, int, dict[str, Any]]], strict: bool) -> Iterator[_Fault]:
    for name, (path, index, item) in good.items():
        for number, target in enumerate(name_symptoms(item)):
            if strict and target not in good:
                yield (
                    path,
                    (index, "explains", number),
                    "check %s explains '%s', which is no check%s" % (name, target, suggest_name(target, good)),
                )
    cycle = _cycle(
        {name: [t for t in name_symptoms(item) if t in good] for name, (_path, _index, item) in good.items()}
    )
    if cycle:
        path, index, _item = good[cycle[0]]
        yield path, (index, "explains"), "checks explain each other in a circle: %s" % " -> ".join([*cycle, cycle[0]])


def _cycle(graph: dict[str, list[str]]) -> list[str]:
    done: set[str] = set()

    def visit(name: str, trail: list[str]) -> list[str]:
        if name in trail:
            return trail[trail.index(name) :]
        if name in done:
            return []
        for target in graph[name]:
            found = visit(target, [*trail, name])
            if found:
                return found
        done.add(name)
        return []

    for name in graph:
        found = visit(name, [])
        if found:
            return found
    return []


def suggest_name(word: str, known: Iterable[str]) -> str:
    """ ", did you mean X?" where `known` has something alike, else the empty text."""

    near = difflib.get_close_matches(str(word), list(known), n=1)
    return "; did you mean %s?" % near[0] if near else ""


class _Lines:
    """The line of a place in a YAML file, read again only where there is a fault to report."""

    def __init__(self) -> None:
        self._roots: dict[str, Any] = {}

    def of(self, path: str, where: tuple[Any, ...]) -> int:
        if path not in self._roots:
            self._roots[path] = self._compose(path)
        node = self._roots[path]
        line = 1
        for step in where:
            found = self._step(node, step)
            if found is None:
                break
            line, node = found
        return line

    @staticmethod
    def _compose(path: str) -> Any:
        try:
            with open(path, encoding="utf-8") as handle:
                return yaml.compose(handle, Loader=yaml.SafeLoader)
        except (OSError, ValueError, yaml.YAMLError):
            return None

    @staticmethod
    def _step(node: Any, step: Any) -> tuple[int, Any] | None:
        if isinstance(node, yaml.SequenceNode) and isinstance(step, int) and step < len(node.value):
            child = node.value[step]
            return child.start_mark.line + 1, child
        if isinstance(node, yaml.MappingNode):
            for key, value in node.value:
                if key.value == step:
                    return key.start_mark.line + 1, value
        return None
