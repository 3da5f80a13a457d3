"""What is wrong with how a run of validate.yml was started, said before any host is asked."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any

from ansible import constants
from ansible.module_utils.common.arg_spec import ArgumentSpecValidator
from ansible.parsing.dataloader import DataLoader

from . import check_cache, installation
from .check_files import ChecksError, suggest_name

# Words that ansible-playbook itself gives a meaning to.
_ANSIBLES_TAGS = {"all", "always", "never", "tagged", "untagged"}
_REPORT = "check_report"


def find_problems(tags: Iterable[str], playbook_directory: str) -> list[str]:
    """Sentences about tags that no check has, and about a configuration by which nothing would be reported."""
    return [*_unknown_tags(tags), *_foreign_configuration(playbook_directory)]


@functools.cache
def load_role_variables() -> dict[str, Any]:
    """The variables of the role host_validation and what each may be, as its argument_specs.yml has them."""
    path = installation.ROOT / "roles" / "host_validation" / "meta" / "argument_specs.yml"
    specs = DataLoader().load_from_file(str(path), cache="none", unsafe=True)
    variables: dict[str, Any] = specs["argument_specs"]["main"]["options"]
    return variables


def find_wrong_variables(given: Mapping[str, Any], template: Callable[[Any], Any]) -> list[str]:
    """What is wrong with the variables of a host, in Ansible's words for it.

    Ansible's own task for this at the start of a role says the same, and takes a process of its own for each host.
    """
    variables = load_role_variables()
    values = template({name: given[name] for name in variables if name in given})
    found: list[str] = []
    for name in values:  # the role has a default for each of the others
        spec = variables[name]
        # Ansible's validator ends in an exception where a number stands for a dictionary with keys of its own.
        problems = list(_find_no_dictionaries(name, values[name], spec))
        if not problems:
            validated = ArgumentSpecValidator({name: spec}).validate(
                {name: values[name]}, validate_role_argument_spec=True
            )
            problems = list(validated.error_messages)
        found += [problem if name in problem else "%s: %s" % (name, problem) for problem in problems]
    return found


def _find_no_dictionaries(name: str, value: Any, spec: Mapping[str, Any]) -> Iterator[str]:
    options = spec.get("options")
    if spec.get("type") != "dict" or not options or (value is None and "." in name):
        return
    if isinstance(value, Mapping):
        for key in value:
            if key in options:
                yield from _find_no_dictionaries("%s.%s" % (name, key), value[key], options[key])
    else:  # also of text that could be read as one: what expects something of a host must never be left out
        yield "%s must be a dictionary, and is %s" % (name, value)


def _unknown_tags(tags: Iterable[str]) -> list[str]:
    asked = [tag for tag in dict.fromkeys(tags) if tag not in _ANSIBLES_TAGS]
    if not asked:  # most runs; this is called in the worker of each host, and reading the checks takes a second
        return []
    try:
        known = {tag for check in check_cache.load_checks_cached() for tag in check.tags}
    except ChecksError:  # run_checks says what is wrong with them
        return []
    unknown = [tag for tag in asked if tag not in known]
    named = ["There is no tag '%s'%s." % (tag, suggest_name(tag, known)) for tag in unknown]
    return [*named, "Known tags: %s." % ", ".join(sorted(known))] if named else []


def _foreign_configuration(playbook_directory: str) -> list[str]:
    """A playbook of another project may include our role under its own configuration; one of ours may not."""
    root = str(installation.ROOT)
    enabled = {str(name).rpartition(".")[2] for name in constants.CALLBACKS_ENABLED or ()}
    if _REPORT in enabled or os.path.commonpath((root, os.path.realpath(playbook_directory or "/"))) != root:
        return []
    if installation.COLLECTION:
        name = installation.qualify_name(_REPORT)
        return [
            "Nothing would be reported: add callbacks_enabled = %s to [defaults] in ansible.cfg (%s), or set "
            "ANSIBLE_CALLBACKS_ENABLED=%s." % (name, _describe_used(), name)
        ]
    return [
        "The ansible.cfg of this project is not in force (%s), so nothing would be reported. Run in %s, or with "
        "ANSIBLE_CONFIG=%s." % (_describe_used(), root, os.path.join(root, "ansible.cfg"))
    ]


def _describe_used() -> str:
    if constants.CONFIG_FILE:
        return "%s is" % constants.CONFIG_FILE
    return "there is none in %s" % os.getcwd()
