"""The report as JSON: docs/report.schema.json is its form, and `schema` its version."""

from __future__ import annotations

import json
from typing import Any


def render_json(report: dict[str, Any]) -> bytes:
    """The bytes of report.json: one line per part, and one line per host.

    (Indented throughout, a fleet's takes Python twenty times as long.)
    """
    parts = [
        "%s: %s" % (_json(name), _lines(part) if name == "hosts" else _json(part)) for name, part in report.items()
    ]
    return ("{%s}\n" % ",\n ".join(parts)).encode("utf-8", "replace")


def _lines(hosts: dict[str, Any]) -> str:
    return "{%s}" % ",\n  ".join("%s: %s" % (_json(name), _json(host)) for name, host in hosts.items())


def _json(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, default=str)
