"""The checks of a directory, as Ansible reads them: once a process, and in its children once more at most.

The strategy imports the action plugins before it forks a worker for every host, so what is read on import is read once
a run. And what was found without fault is kept for the runs to come, in .cache/checks of the clone or the collection:
to parse the files, and to validate and compile every expression in them, takes 2.4 s, to read what was kept 0.07 s.
"""

from __future__ import annotations

import contextlib
import functools
import hashlib
import json
import os
import sys
from typing import Any

import ansible.release
import jinja2
from ansible import constants
from ansible.parsing.dataloader import DataLoader
from ansible.template import is_trusted_as_template, trust_as_template

from . import check_files, compiled, evaluator, expressions, installation, kept_files, rules

OWN = str(installation.ROOT / "checks")
# What a report says of a check, and no single result repeats.
OF_THE_CHECK = ("title", "severity", "tags", "docs", "explains")
KEPT = os.path.join(kept_files.DIRECTORY, "checks")
_KEPT_DIRECTORIES = 16  # of checks: those that were kept last


def load_checks_cached(directory: str = OWN) -> list[check_files.Check]:
    """The checks in `directory`. ChecksError names the faults, each time anew."""
    found = _read(os.path.abspath(directory))
    if isinstance(found, check_files.ChecksError):
        raise found
    return found


@functools.cache
def _read(directory: str) -> list[check_files.Check] | check_files.ChecksError:
    try:
        key = _find_key(directory)
        kept = _read_kept(directory, key) if key else None
        if kept is not None:
            return kept
        files = {path: check_files.restore_on_keys(items) for path, items in _parse_files(directory).items()}
        found = check_files.build_checks(files)
    except check_files.ChecksError as error:
        return error
    conditions = check_files.prepare_conditions(files)
    texts = _list_texts(found)
    compiled.compile_ahead([*conditions, *texts])
    if key:
        _keep(directory, key, files, conditions, texts)
    return found


def _list_texts(checks: list[check_files.Check]) -> list[str]:
    """What is filled in of `checks` on every host, as expressions: why a check does not apply."""
    found = (evaluator.find_expression(check.skip) for check in checks if is_trusted_as_template(check.skip))
    return [expression for expression in dict.fromkeys(found) if expression]


def _parse_files(directory: str) -> dict[str, Any]:
    loader = DataLoader()
    # "unsafe" is Ansible's word for "not copied", which takes as long as the reading.
    return check_files.read_files(
        directory, lambda path: loader.load_from_file(path, cache="none", unsafe=True, trusted_as_template=True)
    )


def _find_key(directory: str) -> str:
    """What the checks in `directory` and their validation depend on, as one number: their bytes, and the code that
    reads them. Empty where something of it cannot be read, which the parser then tells of."""
    digest = hashlib.sha256()
    embedded = constants.config.get_config_value("ALLOW_EMBEDDED_TEMPLATES")
    versions = (ansible.release.__version__, jinja2.__version__, sys.version, directory, embedded)
    digest.update(repr(versions).encode())
    code = [
        str(module.__file__) for module in (sys.modules[__name__], check_files, compiled, evaluator, expressions, rules)
    ]
    try:
        for path in (*check_files.find_files(directory), *code):
            with open(path, "rb") as handle:
                content = handle.read()
            digest.update(b"%s\0%d\0%s" % (os.path.basename(path).encode(), len(content), content))
    except OSError:
        return ""
    return digest.hexdigest()


def _name_kept(directory: str) -> str:
    return os.path.join(KEPT, hashlib.sha256(directory.encode()).hexdigest()[:16] + ".json")


def _read_kept(directory: str, key: str) -> list[check_files.Check] | None:
    """The checks that an earlier run kept; None where none did, or of another content."""
    try:
        kept = json.loads(kept_files.read_kept(_name_kept(directory)) or "{}")
        if kept["key"] != key:
            return None
        expressions.take_expressions(kept["expressions"])
        compiled.take_code(kept["code"])
        return check_files.make_checks(_trusted(kept["files"]))
    except (OSError, ValueError, KeyError, TypeError, AttributeError, EOFError):
        return None


def _keep(directory: str, key: str, files: dict[str, Any], conditions: list[str], texts: list[str]) -> None:
    """Keep `files`, which are without fault, for runs to come. Where that cannot be done, those read them anew."""
    with contextlib.suppress(ValueError):
        kept = {
            "key": key,
            "files": _plain_values(files),
            "expressions": expressions.keep_expressions(conditions),
            "code": compiled.keep_code([*conditions, *texts]),
        }
        kept_files.write_kept(_name_kept(directory), json.dumps(kept).encode(), _KEPT_DIRECTORIES)


def _plain_values(value: Any) -> Any:
    """`value` as JSON holds it. ValueError where it is more than that: a text that is no template (`!unsafe`), a
    secret."""
    if isinstance(value, dict):
        return {_plain_key(key): _plain_values(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain_values(item) for item in value]
    if isinstance(value, str) and is_trusted_as_template(value):
        return str(value)
    if value is None or isinstance(value, (bool, int, float)):
        return value
    raise ValueError("%s is not kept" % type(value).__name__)


def _plain_key(key: Any) -> str:
    if not isinstance(key, str):
        raise ValueError("a key that is %s is not kept" % type(key).__name__)
    return str(key)


def _trusted(value: Any) -> Any:
    if isinstance(value, str):
        return trust_as_template(value)
    if isinstance(value, list):
        return [_trusted(item) for item in value]
    return {key: _trusted(item) for key, item in value.items()} if isinstance(value, dict) else value


def load_definitions(directory: str) -> dict[str, dict[str, Any]]:
    """``{id: {title, severity, tags, docs, explains}}``."""
    return {
        check.id: {name: _plain(getattr(check, name)) for name in OF_THE_CHECK}
        for check in load_checks_cached(directory)
    }


def _plain(value: Any) -> Any:
    return [str(part) for part in value] if isinstance(value, tuple) else str(value)
