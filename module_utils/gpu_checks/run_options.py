"""What is wrong with how a run of validate.yml was started, said before any host is asked."""

from __future__ import annotations

import os
from collections.abc import Iterable

from ansible import constants

from . import check_cache, installation
from .check_files import ChecksError, suggest_name

# Words that ansible-playbook itself gives a meaning to.
_ANSIBLES_TAGS = {"all", "always", "never", "tagged", "untagged"}
_REPORT = "check_report"


def find_problems(tags: Iterable[str], playbook_directory: str) -> list[str]:
    """Sentences about tags that no check has, and about a configuration by which nothing would be reported."""
    return [*_unknown_tags(tags), *_foreign_configuration(playbook_directory)]


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
