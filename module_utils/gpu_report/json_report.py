"""The report as JSON: docs/report.schema.json is its form, and `schema` its version."""
from __future__ import annotations

import json
from typing import Any


def render(report: dict[str, Any]) -> bytes:
    """The bytes of report.json."""
    return (json.dumps(report, indent=1, ensure_ascii=False, default=str) + "\n").encode("utf-8", "replace")
