"""Facts that need two subjects, such as cards on the PCI bus that the driver does not show."""
from __future__ import annotations

from typing import Any

from .errors import Errors


def join(facts: dict[str, Any], errors: Errors) -> dict[str, Any]:
    """Computed from the facts of the subjects; each value is None where a subject is unknown."""
    return {}
