"""The checks of a directory, as Ansible reads them: once a process, and in its children once more at most.

The strategy imports the action plugins before it forks a worker for every host, so what is read on import is read once
a run.
"""

from __future__ import annotations

import functools
import os
from typing import Any

from ansible.parsing.dataloader import DataLoader

from . import check_files, installation

OWN = str(installation.ROOT / "checks")
# What a report says of a check, and no single result repeats.
OF_THE_CHECK = ("title", "severity", "tags", "docs", "explains")


def load_checks_cached(directory: str = OWN) -> list[check_files.Check]:
    """The checks in `directory`. ChecksError names the faults, each time anew."""
    found = _read(os.path.abspath(directory))
    if isinstance(found, check_files.ChecksError):
        raise found
    return found


@functools.cache
def _read(directory: str) -> list[check_files.Check] | check_files.ChecksError:
    loader = DataLoader()
    try:
        # "unsafe" is Ansible's word for "not copied", which takes as long as the reading.
        return check_files.load_checks(
            directory, lambda path: loader.load_from_file(path, cache="none", unsafe=True, trusted_as_template=True)
        )
    except check_files.ChecksError as error:
        return error


def load_definitions(directory: str) -> dict[str, dict[str, Any]]:
    """``{id: {title, severity, tags, docs, explains}}``."""
    return {
        check.id: {name: _plain(getattr(check, name)) for name in OF_THE_CHECK}
        for check in load_checks_cached(directory)
    }


def _plain(value: Any) -> Any:
    return [str(part) for part in value] if isinstance(value, tuple) else str(value)
