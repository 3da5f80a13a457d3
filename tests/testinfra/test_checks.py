"""Each check of checks/*.yml on each host. A warning does not fail its test; unknown is never good."""

from __future__ import annotations

import warnings
from typing import Any

import pytest


def test_check(check: str, results: dict[str, dict[str, Any]]) -> None:
    result = results.get(check)
    if result is None:
        pytest.skip("not selected by the tags or the inventory")
    status, words = result["status"], said(result)
    if status in ("skip", "waived"):
        pytest.skip("%s: %s" % (status, words))
    if status != "pass" and result.get("severity", "error") != "error":
        warnings.warn("%s: %s" % (check, words), stacklevel=1)
    elif status != "pass":
        pytest.fail(words, pytrace=False)


def said(result: dict[str, Any]) -> str:
    """What was found and what to do, as the report has it."""
    remedy = result.get("remedy") or {}
    lines = [str(result.get("found") or result.get("reason") or "")]
    if isinstance(remedy, dict) and remedy:
        lines.append("on the %s: %s" % (remedy.get("on", "host"), remedy.get("text", "")))
        lines += [str(command) for command in remedy.get("commands", [])]
    return "\n".join(line for line in lines if line)
