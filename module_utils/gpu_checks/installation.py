"""Where this code stands on the controller: in a clone, or in the collection that `make collection` makes.

What looks for a file of ours outside its own package, or for a plugin of ours by its name, asks here.
"""

from __future__ import annotations

import os
from pathlib import Path

_PACKAGE = __name__.split(".")
# "NAMESPACE.NAME" in a collection, "" in a clone.
COLLECTION = ".".join(_PACKAGE[1:3]) if _PACKAGE[0] == "ansible_collections" else ""
# The clone, or the collection's own directory: the first above this file that holds the checks.
ROOT = next(
    (parent for parent in Path(__file__).resolve().parents if (parent / "checks" / "check.schema.json").is_file()),
    Path(__file__).resolve().parents[2],
)


def qualify_name(name: str) -> str:
    """The name by which Ansible finds a module or a plugin of ours: in a collection, with that one's name before it."""
    return "%s.%s" % (COLLECTION, name) if COLLECTION and "." not in name else name


def find_output_directory() -> str:
    """Where reports go unless somebody says where: the clone, or, as nobody looks into a collection, the current
    directory."""
    return os.getcwd() if COLLECTION else str(ROOT)
