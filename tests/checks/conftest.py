"""Lets the tests here import harness.py, and tells a fault in a fixture by its message alone: whoever writes fixtures
has no
use for the harness's own lines."""

from __future__ import annotations

import sys
from collections.abc import Generator
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent))

import harness  # type: ignore[import-not-found]


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(
    item: pytest.Item, call: pytest.CallInfo[None]
) -> Generator[None, pytest.TestReport, pytest.TestReport]:
    report = yield
    if call.excinfo is not None and isinstance(call.excinfo.value, harness.OverlayError):
        report.longrepr = str(call.excinfo.value)
    return report
