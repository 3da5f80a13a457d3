"""Values in a text: a number or unknown, and nothing raises."""

from __future__ import annotations

from typing import Any

import pytest
from ansible.module_utils.gpu_host.evidence import values

ODD = (
    "",
    " ",
    "①",
    "²",
    "٣",
    "1_000",
    "0x10",
    "inf",
    "-inf",
    "nan",
    "1e999",
    "9" * 4400,
    "1 2",
    "--1",
    None,
    [],
    {},
    True,
    b"1",
)


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_what_is_no_whole_number_is_unknown(odd: Any) -> None:
    assert values.whole_number(odd) is None
    assert values.is_digits(odd) is False


@pytest.mark.parametrize("odd", [odd for odd in ODD if odd not in ("0x10", "1e999")] + ["-1", "g", "1" * 17], ids=repr)
def test_what_is_no_hexadecimal_number_is_unknown(odd: Any) -> None:
    assert values.hexadecimal_number(odd) is None


@pytest.mark.parametrize(
    "odd", [*ODD, ".", "1.5.2", 2**5000, float("nan"), float("inf")], ids=lambda odd: repr(odd)[:20]
)
def test_what_is_no_finite_number_is_unknown(odd: Any) -> None:
    assert values.decimal_number(odd) is None
    assert values.moment(odd) is None


def test_numbers() -> None:
    assert [values.whole_number(text) for text in ("0", " 12\n", "-3", "+4", 5, "007")] == [0, 12, -3, 4, 5, 7]
    assert [values.hexadecimal_number(text) for text in ("0x10", "ff", "0XFFFF ", "10de")] == [16, 255, 65535, 0x10DE]
    assert [values.decimal_number(text) for text in ("1.5", ".5", "2.", "1e3", -2, "-0.25")] == [
        1.5,
        0.5,
        2.0,
        1000.0,
        -2.0,
        -0.25,
    ]
    assert values.is_digits("0123") and not values.is_digits("-1") and not values.is_digits("1 ")


def test_a_time_beyond_every_calendar_is_unknown() -> None:
    assert values.moment(1e17) is None and values.moment("999999999999999999") is None
    found = values.moment("1775600000")
    assert found is not None and found.isoformat() == "2026-04-07T22:13:20+00:00"


def test_json_numbers_are_finite() -> None:
    text = '{"a": %s, "b": Infinity, "c": 1e999, "d": 3, "e": 2.5, "f": NaN}' % ("9" * 4400)
    assert values.json_value(text) == {"a": None, "b": None, "c": None, "d": 3, "e": 2.5, "f": None}
    with pytest.raises(ValueError):
        values.json_value("{")
    with pytest.raises(ValueError):
        values.json_value("[" * 100000)


def test_shapes() -> None:
    assert values.mapping("x") == {} and values.mapping({"a": 1}) == {"a": 1}
    assert values.sequence({}) == [] and values.sequence([1]) == [1]
    assert values.shown("9" * 4400).startswith("'999") and len(values.shown("9" * 4400)) < 70
