"""Versions are compared as numbers."""

from __future__ import annotations

import pytest
from ansible.module_utils.gpu_host.linux import versions
from hypothesis import given
from hypothesis import strategies as st

DRIVERS = st.builds(lambda parts: ".".join(map(str, parts)), st.lists(st.integers(0, 999), min_size=1, max_size=4))


@pytest.mark.parametrize(
    ("left", "right", "newer"),
    [
        ("440.100", "440.95.01", True),  # a comparison of texts has it the other way round
        ("440.95.01", "440.100", False),
        ("580.95.05", "580.95.5", True),
        ("580", "580.0.0", True),
        ("6.17.0-20-generic", "6.8.0-64-generic", True),
        ("6.14.11-3-pve", "6.14.8-2-pve", True),
        (None, "580", None),
        ("580", None, None),
        ("unknown", "580", None),
    ],
)
def test_at_least(left: str | None, right: str | None, newer: bool | None) -> None:
    assert versions.is_at_least(left, right) is newer


def test_same_ignores_leading_zeros_and_missing_parts() -> None:
    assert versions.is_same_version("580.95.05", "580.95.5") is True
    assert versions.is_same_version("580.95", "580.95.00") is True
    assert versions.is_same_version("580.95.05", "580.95.06") is False
    assert versions.is_same_version(None, "580.95.06") is None


@given(DRIVERS, DRIVERS, DRIVERS)
def test_the_order_is_total_and_transitive(a: str, b: str, c: str) -> None:
    assert versions.is_at_least(a, b) or versions.is_at_least(b, a)
    if versions.is_at_least(a, b) and versions.is_at_least(b, c):
        assert versions.is_at_least(a, c)


@given(st.text())
def test_any_text_is_survived(text: str) -> None:
    assert versions.is_at_least(text, "1") in (True, False, None)
    assert versions.parse_major(text) is None or versions.parse_major(text) >= 0  # type: ignore[operator]
